//! Rarely used state of a key with several limits: idempotency records, a ban, long identities of components.

use super::idempotency::IdempotencyRecords;
use super::identity::ComponentIdentity;
use crate::ban::Ban;
use crate::number::Span;
use crate::usage_kind::UsageKind;

/// State of a key beside its components.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// Idempotency records.
    pub(super) records: IdempotencyRecords,
    /// Strikes, ban and level; `None` if there are none of them.
    ban: Option<Box<Ban>>,
    /// Long identities: those that do not fit into their component, by the serial number of the component.
    identities: Box<[(u8, ComponentIdentity)]>,
    /// Change made by the current call, except for changes of components and records, which store these themselves.
    pub(super) delta: Option<Box<ExtrasDelta>>,
}

/// Rare changes made by one call.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtrasDelta {
    /// Span by which the key is shifted back because the clock moved backwards.
    pub(super) moved_back: Span,
    /// `true`: the call has moved the timestamps back, and the step that removes expired records and recovered
    /// components has not run.
    pub(super) only_moved: bool,
    /// `true`: the strikes, the ban or the level have changed.
    pub(super) ban_changed: bool,
    /// Serial numbers and kinds of the components that the call first changed and then removed, because they had
    /// recovered.
    pub(super) removed_components: Vec<(u8, UsageKind)>,
}

impl Extras {
    /// Returns `true` if there are no idempotency records, strikes, ban, level or identities.
    pub(super) fn is_empty(&self) -> bool {
        self.has_no_records_or_ban_state() && self.identities.is_empty()
    }

    /// Returns `true` if there are no idempotency records, strikes, ban or level.
    pub(super) fn has_no_records_or_ban_state(&self) -> bool {
        self.records.is_empty() && self.ban.is_none()
    }

    /// Returns `true` if there are no strikes, ban or level.
    pub(super) fn has_no_ban_state(&self) -> bool {
        self.ban.is_none()
    }

    /// Returns `true` if the extras can be dropped: they are empty and hold no change of the current call.
    pub(super) fn is_unneeded(&self) -> bool {
        self.is_empty() && self.delta.is_none()
    }

    /// Returns the strikes, the ban and the level.
    pub(super) fn ban(&self) -> Ban {
        self.ban.as_deref().copied().unwrap_or_default()
    }

    /// Replaces the strikes, the ban and the level.
    pub(super) fn set_ban(&mut self, ban: Ban) {
        if ban.is_empty() {
            self.ban = None;
        } else {
            **self.ban.get_or_insert_default() = ban;
        }
    }

    /// Changes the strikes, the ban or the level, and records that they have changed.
    pub(super) fn change_ban(&mut self, change: impl FnOnce(&mut Ban)) {
        let mut ban = self.ban();
        change(&mut ban);
        self.set_ban(ban);
        self.delta().ban_changed = true;
    }

    /// Returns the long identity of a component; `None` if the component stores its identity itself.
    pub(super) fn long_identity(&self, serial: u8) -> Option<&ComponentIdentity> {
        self.identities.iter().find(|(stored, _)| *stored == serial).map(|(_, identity)| identity)
    }

    /// Replaces the long identity of a component, or removes it.
    pub(super) fn set_long_identity(&mut self, serial: u8, identity: Option<ComponentIdentity>) {
        let mut identities = std::mem::take(&mut self.identities).into_vec();
        identities.retain(|(stored, _)| *stored != serial);
        identities.extend(identity.map(|identity| (serial, identity)));
        self.identities = identities.into();
    }

    /// Returns the change made by the current call, for modification.
    pub(super) fn delta(&mut self) -> &mut ExtrasDelta {
        self.delta.get_or_insert_default()
    }

    /// Takes the change made by the current call.
    pub(super) fn take_delta(&mut self) -> ExtrasDelta {
        self.delta.take().map_or_else(ExtrasDelta::default, |delta| *delta)
    }

    /// Returns the memory in bytes, including the struct itself.
    pub(super) fn size(&self) -> usize {
        let ban = self.ban.as_ref().map_or(0, |_| size_of::<Ban>());
        let sizes = self.identities.iter().map(|(_, identity)| identity.heap_size());
        let identities_size = sizes.fold(size_of_val(&*self.identities), usize::saturating_add);
        [size_of::<Extras>(), self.records.heap_size(), ban, identities_size].into_iter().fold(0, usize::saturating_add)
    }
}
