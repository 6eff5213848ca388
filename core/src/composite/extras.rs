//! What most keys with several limits have none of: idempotency records, a ban, names.

use super::idempotency::IdempotencyRecords;
use super::identity::ComponentIdentity;
use crate::ban::Ban;
use crate::kind::Kind;
use crate::number::Span;

/// What a key remembers beside its components.
#[derive(Clone, Debug, Default)]
pub(super) struct Extras {
    /// What makes calls idempotent.
    pub(super) records: IdempotencyRecords,
    ban: Option<Box<Ban>>,
    /// What components are known by, by their serial numbers, where it is too long to stand beside their usage.
    identities: Box<[(u8, ComponentIdentity)]>,
    /// What the current call has changed, but for the components and the records, which know that themselves.
    delta: Option<Box<ExtrasDelta>>,
}

/// What is rare among the changes of one call.
#[derive(Clone, Debug, Default)]
pub(super) struct ExtrasDelta {
    /// By how much the clock has gone back.
    pub(super) moved_back: Span,
    /// Nothing more than that has been done: what has expired was not swept, and what has recovered has not gone.
    pub(super) only_moved: bool,
    /// The ban has changed.
    pub(super) ban: bool,
    /// These components have changed and gone: their serial numbers and kinds.
    pub(super) gone: Vec<(u8, Kind)>,
}

impl Extras {
    /// Whether it has nothing to remember.
    pub(super) fn is_empty(&self) -> bool {
        self.rules_nothing() && self.identities.is_empty()
    }

    /// Whether it has neither idempotency records nor a ban.
    pub(super) fn rules_nothing(&self) -> bool {
        self.records.is_empty() && self.ban.is_none()
    }

    /// Whether it can be dropped: it is empty, and has nothing to tell of the current call.
    pub(super) fn is_needless(&self) -> bool {
        self.is_empty() && self.delta.is_none()
    }

    /// The ban.
    pub(super) fn ban(&self) -> Ban {
        self.ban.as_deref().copied().unwrap_or_default()
    }

    /// Replaces the ban.
    pub(super) fn set_ban(&mut self, ban: Ban) {
        if ban.is_empty() {
            self.ban = None;
        } else {
            **self.ban.get_or_insert_default() = ban;
        }
    }

    /// Changes the ban, and notes that it has changed.
    pub(super) fn change_ban(&mut self, change: impl FnOnce(&mut Ban)) {
        let mut ban = self.ban();
        change(&mut ban);
        self.set_ban(ban);
        self.delta().ban = true;
    }

    /// What a component is known by, if that is kept here.
    pub(super) fn long_identity(&self, serial: u8) -> Option<&ComponentIdentity> {
        self.identities.iter().find(|(own, _)| *own == serial).map(|(_, identity)| identity)
    }

    /// Keeps what a component is known by.
    pub(super) fn keep_identity(&mut self, serial: u8, identity: ComponentIdentity) {
        let mut identities = std::mem::take(&mut self.identities).into_vec();
        identities.retain(|(own, _)| *own != serial);
        identities.reserve_exact(1);
        identities.push((serial, identity));
        self.identities = identities.into();
    }

    /// Forgets what a component that has gone was known by.
    pub(super) fn forget_identity(&mut self, serial: u8) {
        if self.long_identity(serial).is_some() {
            let mut identities = std::mem::take(&mut self.identities).into_vec();
            identities.retain(|(own, _)| *own != serial);
            self.identities = identities.into();
        }
    }

    /// What the current call has changed, to note more of it.
    pub(super) fn delta(&mut self) -> &mut ExtrasDelta {
        self.delta.get_or_insert_default()
    }

    /// Notes that more is done than the clock has gone back, if that was noted.
    pub(super) fn begin(&mut self) {
        if let Some(delta) = &mut self.delta {
            delta.only_moved = false;
        }
    }

    /// Takes what the current call has changed.
    pub(super) fn take_delta(&mut self) -> ExtrasDelta {
        self.delta.take().map_or_else(ExtrasDelta::default, |delta| *delta)
    }

    /// How many bytes it takes, itself too.
    pub(super) fn size(&self) -> usize {
        let ban = self.ban.as_ref().map_or(0, |_| size_of::<Ban>());
        let names = self.identities.iter().map(|(_, identity)| identity.heap_size());
        let names = names.fold(size_of_val(&*self.identities), usize::saturating_add);
        [size_of::<Extras>(), self.records.heap_size(), ban, names].into_iter().fold(0, usize::saturating_add)
    }

    #[cfg(test)]
    pub(super) fn has_delta(&self) -> bool {
        self.delta.is_some() || self.records.has_changed()
    }
}
