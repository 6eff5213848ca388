//! One limit's usage in a key with several.

use super::Extras;
use super::identity::{ComponentIdentity, ShortIdentity};
use crate::algorithm::any::{AnyUsage, with_usage};
use crate::kind::Kind;
use crate::limit::{Recovery, Usage};
use crate::number::{Span, Timestamp};

/// One limit's usage. It takes 32 bytes: all that is not the usage itself fits beside the usage's tag and into one
/// instant.
#[derive(Clone, Debug)]
pub(super) struct Component {
    /// What is used, and beside it what the component is known by.
    pub(super) usage: AnyUsage<ComponentLabel>,
    /// When it will have recovered, under the limit that charged it last.
    pub(super) recovers_at: Timestamp,
}

const _: () = assert!(size_of::<Component>() == 32, "a key with two limits is to take no more than a quarter more");

/// What a component is known by, and what the current call has done to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ComponentLabel {
    /// Its [`serial`](Component::serial) number.
    pub(super) serial: u8,
    /// What its limit finds it by.
    pub(super) identity: ShortIdentity,
    /// What the current call has done to it.
    pub(super) change: ComponentChange,
}

/// What the current call has done to a component.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ComponentChange {
    /// Nothing.
    #[default]
    Nothing,
    /// It has changed its usage.
    Usage,
    /// It has given it an identity as well.
    Named,
    /// It has made it.
    Made,
}

impl Component {
    /// A component of a serial number that none has, known by nothing yet.
    pub(super) fn new(serial: u8, usage: AnyUsage, recovers_at: Timestamp) -> Component {
        let label = ComponentLabel { serial, identity: ShortIdentity::Nothing, change: ComponentChange::Nothing };
        Component { usage: usage.with(label), recovers_at }
    }

    /// By which the idempotency records and the effects know it: the smallest that was free. None of a component that
    /// has gone is known any more, since it stays as long as any of its charges may be settled.
    #[inline(always)]
    pub(super) fn serial(&self) -> u8 {
        self.usage.label().serial
    }

    /// The kind of its usage.
    #[inline(always)]
    pub(super) fn kind(&self) -> Kind {
        self.usage.kind()
    }

    /// Whether it is known by nothing yet.
    pub(super) fn is_unclaimed(&self) -> bool {
        self.usage.label().identity == ShortIdentity::Nothing
    }

    /// Notes what the current call has done to it.
    #[inline(always)]
    pub(super) fn note(&mut self, change: ComponentChange) {
        self.usage.label_mut().change = change;
    }

    /// What the current call has done to it.
    #[inline(always)]
    pub(super) fn change(&self) -> ComponentChange {
        self.usage.label().change
    }

    /// What it is known by.
    pub(super) fn identity(&self, extras: Option<&Extras>) -> ComponentIdentity {
        let long = || extras.and_then(|extras| extras.long_identity(self.serial())).cloned();
        self.usage.label().identity.whole().or_else(long).unwrap_or(ComponentIdentity::Nothing)
    }

    /// Whether there is anything to remember of it: it has not recovered, or may be settled.
    #[inline(always)]
    pub(super) fn stays(&self, extras: Option<&Extras>, now: Timestamp) -> bool {
        self.may_be_settled(extras) || (now < self.recovers_at && !self.is_unused())
    }

    /// Whether a key that was last changed at `written` can have it: it stays, and was changed no later than the key.
    /// (A later one would move back with the clock by more than the instant at which it goes.)
    pub(super) fn is_sound(&self, extras: Option<&Extras>, written: Timestamp) -> bool {
        self.stays(extras, written) && with_usage!(&self.usage, usage => !usage.is_after(written))
    }

    /// Whether nothing of it is used.
    #[inline(always)]
    pub(super) fn is_unused(&self) -> bool {
        with_usage!(&self.usage, usage => usage.is_unused())
    }

    /// Whether any of its charges may be settled.
    #[inline(always)]
    pub(super) fn may_be_settled(&self, extras: Option<&Extras>) -> bool {
        extras.is_some_and(|extras| extras.records.may_be_settled(self.serial()))
    }

    /// Moves back with the clock, and with it what the idempotency records remember of it.
    pub(super) fn move_back(&mut self, extras: Option<&mut Extras>, now: Timestamp) {
        if let Some(extras) = extras {
            with_usage!(&self.usage, usage => extras.records.move_charges_back(self.serial(), usage, now));
        }
        let (ahead, recovery) = with_usage!(&mut self.usage, mut usage => {
            let ahead = usage.ahead(now);
            if ahead != Span::ZERO {
                usage.move_back(now);
                // It moves back with all else, which is an effect by itself: no part of the next.
                usage.encode_effect(&mut crate::wire::codec::Discard);
            }
            (ahead, usage.recovery())
        });
        let moved = self.recovers_at.minus(ahead);
        self.recovers_at = match recovery {
            Recovery::MovesAlong => moved,
            // Of what a plain key remembered it may be told sooner than the component goes.
            Recovery::IsTold => {
                let reset = with_usage!(&self.usage, usage => usage.time_to_recovery(now));
                moved.max(now.plus(reset)).min(Timestamp::MAX)
            }
            // It comes no later than before.
            Recovery::IsHidden => self.recovers_at,
        }
    }

    /// How many bytes it holds beside itself.
    pub(super) fn heap_size(&self) -> usize {
        self.usage.boxed_size().saturating_add(with_usage!(&self.usage, usage => usage.heap_size()))
    }
}
