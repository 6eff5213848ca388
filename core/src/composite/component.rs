//! Usage of one limit of a key with several limits.

use super::Extras;
use super::identity::{ComponentIdentity, ShortIdentity};
use crate::algorithm::any::{AnyUsage, with_usage};
use crate::limit::{RecoverySource, Usage};
use crate::number::{Span, Timestamp};
use crate::usage_kind::UsageKind;

/// Usage of one limit, in 32 bytes: the label fits beside the tag of the usage.
#[derive(Clone, Debug)]
pub(super) struct Component {
    /// Usage, with the label of the component.
    pub(super) usage: AnyUsage<ComponentLabel>,
    /// Time of full recovery, under the limit that charged it last.
    pub(super) recovers_at: Timestamp,
}

const _: () = assert!(size_of::<Component>() == 32, "a component fits into 32 bytes");

/// Label of a component: its identity and the change made by the current call.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComponentLabel {
    /// [Serial number](Component::serial).
    pub(super) serial: u8,
    /// Identity by which a limit finds the component.
    pub(super) identity: ShortIdentity,
    /// Change made by the current call.
    pub(super) change: ComponentChange,
}

/// Change of a component by the current call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ComponentChange {
    /// No change.
    #[default]
    Nothing,
    /// Change of the usage.
    Usage,
    /// Change of the usage, and a new identity.
    UsageAndIdentity,
    /// Creation of the component.
    Created,
}

impl Component {
    /// Creates a component with an unused serial number and without an identity.
    pub(super) fn new(serial: u8, usage: AnyUsage, recovers_at: Timestamp) -> Component {
        let label = ComponentLabel { serial, identity: ShortIdentity::Nothing, change: ComponentChange::Nothing };
        Component { usage: usage.with_label(label), recovers_at }
    }

    /// Returns the serial number, by which idempotency records and effects refer to the component: the smallest unused
    /// one at its creation. A number is reused only after its component is removed, and a component stays as long as
    /// any of its charges may be settled.
    #[inline(always)]
    pub(super) fn serial(&self) -> u8 {
        self.usage.label().serial
    }

    /// Returns the kind of the usage.
    #[inline(always)]
    pub(super) fn kind(&self) -> UsageKind {
        self.usage.kind()
    }

    /// Returns `true` if the component has no identity yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.usage.label().identity == ShortIdentity::Nothing
    }

    /// Records the change made by the current call.
    #[inline(always)]
    pub(super) fn set_change(&mut self, change: ComponentChange) {
        self.usage.label_mut().change = change;
    }

    /// Returns the change made by the current call.
    #[inline(always)]
    pub(super) fn change(&self) -> ComponentChange {
        self.usage.label().change
    }

    /// Returns the identity.
    pub(super) fn identity(&self, extras: Option<&Extras>) -> ComponentIdentity {
        let long = || extras.and_then(|extras| extras.long_identity(self.serial())).cloned();
        self.usage.label().identity.full_identity().or_else(long).unwrap_or(ComponentIdentity::Nothing)
    }

    /// Returns `true` if the component must be kept at `now`: it has not recovered, or a charge may be settled.
    #[inline(always)]
    pub(super) fn must_be_kept(&self, extras: Option<&Extras>, now: Timestamp) -> bool {
        self.may_be_settled(extras) || (now < self.recovers_at && !self.is_unused())
    }

    /// Returns `true` if a key that was last changed at `written` can have this component: it must be kept, and its
    /// usage is not later than `written`.
    pub(super) fn is_sound(&self, extras: Option<&Extras>, written: Timestamp) -> bool {
        self.must_be_kept(extras, written) && with_usage!(&self.usage, usage => !usage.is_after(written))
    }

    /// Returns `true` if nothing is used.
    #[inline(always)]
    pub(super) fn is_unused(&self) -> bool {
        with_usage!(&self.usage, usage => usage.is_unused())
    }

    /// Returns `true` if any of the charges may be settled.
    #[inline(always)]
    pub(super) fn may_be_settled(&self, extras: Option<&Extras>) -> bool {
        extras.is_some_and(|extras| extras.records.may_be_settled(self.serial()))
    }

    /// Shifts the timestamps later than `now` back to `now`, also those in the idempotency records of this component.
    pub(super) fn move_back(&mut self, extras: Option<&mut Extras>, now: Timestamp) {
        if let Some(extras) = extras {
            with_usage!(&self.usage, usage => extras.records.move_charges_back(self.serial(), usage, now));
        }
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                // The whole key moves back in an effect of its own, so the move is not part of the next effect.
                usage.discard_effect();
            }
            (ahead, usage.recovery_source())
        });
        let moved_recovery = self.recovers_at.minus(ahead);
        self.recovers_at = match recovery {
            RecoverySource::MovesBack => moved_recovery,
            // The usage of a former plain key may report an earlier recovery than that of the component.
            RecoverySource::Usage => {
                let reset = with_usage!(&self.usage, usage => usage.time_to_recovery(now));
                moved_recovery.max(now.plus(reset)).min(Timestamp::MAX)
            }
            // A move back never makes the recovery later.
            RecoverySource::Limit => self.recovers_at,
        }
    }

    /// Returns the heap memory in bytes.
    pub(super) fn heap_size(&self) -> usize {
        self.usage.boxed_size().saturating_add(with_usage!(&self.usage, usage => usage.heap_size()))
    }
}
