//! State of the key of a call: components, or the usage of a plain key, which a call treats as one component.

use super::{CompositeUsage, Extras};
use crate::algorithm::any::PlainUsage;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::idempotency::RecordedCall;
use crate::number::{Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Spec};
use crate::usage_kind::UsageKind;
use std::any::Any;

/// State of the key of a call.
#[derive(Clone, Copy)]
pub enum StoredUsage<'a> {
    /// Key with components; without any if the key is missing.
    Composite(&'a CompositeUsage),
    /// Usage of a plain key, with its kind.
    Plain(&'a dyn Any, UsageKind),
}

impl<'a> StoredUsage<'a> {
    /// Creates the state of a plain key from its usage.
    pub fn plain<U: PlainUsage>(usage: &'a U) -> StoredUsage<'a> {
        StoredUsage::Plain(usage, U::KIND)
    }

    /// Creates the state of a missing key that a charge will create as a plain key of the given kind.
    #[must_use]
    pub fn missing(kind: UsageKind) -> StoredUsage<'a> {
        StoredUsage::Plain(&(), kind)
    }

    /// Returns the index of the component for the limit of `spec`. Tries the index `at` first. Skips the components in
    /// `taken`, which other specs of the call have found. The usage of a plain key has the index 0, as after a
    /// conversion to components.
    fn place(self, spec: &Spec, at: usize, taken: &[Option<usize>]) -> Option<usize> {
        match self {
            StoredUsage::Composite(components) => components.place(spec, at, taken),
            StoredUsage::Plain(_, kind) => (spec.limit.kind() == kind && !taken.contains(&Some(0))).then_some(0),
        }
    }

    /// Returns the usage of the component at `place`, if there is one.
    pub(super) fn usage<U: PlainUsage>(self, place: Option<usize>) -> Option<&'a U> {
        match self {
            StoredUsage::Composite(components) => U::of(&components.components.get(place?)?.usage),
            StoredUsage::Plain(usage, _) => place.and_then(|_| usage.downcast_ref()),
        }
    }

    /// Returns the idempotency records and the ban of a key with components, if there are any.
    pub(super) fn extras(self) -> Option<&'a Extras> {
        match self {
            StoredUsage::Composite(components) => components.extras.as_deref(),
            StoredUsage::Plain(..) => None,
        }
    }

    /// Returns the number of components.
    pub(super) fn components(self) -> usize {
        match self {
            StoredUsage::Composite(components) => components.components.len(),
            StoredUsage::Plain(..) => 0,
        }
    }

    /// Returns the remaining duration of the ban.
    pub(super) fn banned(self, now: Timestamp) -> Span {
        match self {
            StoredUsage::Composite(components) => components.banned(now),
            StoredUsage::Plain(..) => Span::ZERO,
        }
    }

    /// Returns the later of `now` and the time of the last change of the key.
    pub(super) fn at(self, now: Timestamp) -> Timestamp {
        match self {
            StoredUsage::Composite(components) => components.at(now),
            StoredUsage::Plain(..) => now,
        }
    }

    /// Returns the idempotency record for the id of a call.
    pub(super) fn recorded_call(self, request: &CompositeRequest, now: Timestamp) -> Option<RecordedCall<()>> {
        let id = match request.idempotency {
            Idempotency::Every => return None,
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => id,
        };
        self.extras()?.records.find(id, self.at(now))
    }

    /// Returns the indices of the components for the limits of a call.
    pub(super) fn places(self, request: &CompositeRequest) -> [Option<usize>; MAX_SPECS] {
        let mut places = [None; MAX_SPECS];
        for (at, spec) in request.specs.iter().enumerate() {
            let place = self.place(spec, at, &places);
            if let Some(room) = places.get_mut(at) {
                *room = place;
            }
        }
        places
    }

    /// Returns `true` if the id of a settling call holds a lease under one of its limits.
    pub(super) fn has_lease(self, request: &CompositeRequest, now: Timestamp) -> bool {
        let mut held_by_id = request.specs.iter().filter(|spec| spec.is_held_by_id());
        let leases = match self {
            StoredUsage::Composite(components) => {
                components.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))
            }
            StoredUsage::Plain(usage, _) => usage.downcast_ref(),
        };
        leases.is_some_and(|leases: &ConcurrencyUsage| held_by_id.any(|spec| leases.has_lease(spec.holder, now)))
    }
}
