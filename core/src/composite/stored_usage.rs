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
    /// Composite key; without components if the key is missing.
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

    /// Returns the state of a key with components; `None` for a plain key.
    pub(super) fn composite(self) -> Option<&'a CompositeUsage> {
        if let StoredUsage::Composite(usage) = self { Some(usage) } else { None }
    }

    /// Returns the index of the component for the limit of `spec`, as [`CompositeUsage::index_of`] does. The usage of a
    /// plain key has the index 0, as after a conversion to components.
    fn index_of(self, spec: &Spec, first: usize, found: &[Option<usize>]) -> Option<usize> {
        match self {
            StoredUsage::Composite(usage) => usage.index_of(spec, first, found),
            StoredUsage::Plain(_, kind) => (spec.limit.kind() == kind && !found.contains(&Some(0))).then_some(0),
        }
    }

    /// Returns the usage of the component at `index`, if there is one.
    pub(super) fn usage<U: PlainUsage>(self, index: Option<usize>) -> Option<&'a U> {
        match self {
            StoredUsage::Composite(usage) => U::of(&usage.components.get(index?)?.usage),
            StoredUsage::Plain(usage, _) => index.and_then(|_| usage.downcast_ref()),
        }
    }

    /// Returns the idempotency records and the ban of a key with components, if there are any.
    pub(super) fn extras(self) -> Option<&'a Extras> {
        self.composite()?.extras()
    }

    /// Returns the number of components; 0 for a plain key.
    pub(super) fn component_count(self) -> usize {
        self.composite().map_or(0, |usage| usage.components.len())
    }

    /// Returns the remaining duration of the ban, or zero if there is none.
    pub(super) fn remaining_ban(self, now: Timestamp) -> Span {
        self.composite().map_or(Span::ZERO, |usage| usage.remaining_ban(now))
    }

    /// Returns the time at which to evaluate the state at `now`: not before the last change of a key with components.
    pub(super) fn effective_time(self, now: Timestamp) -> Timestamp {
        self.composite().map_or(now, |usage| usage.effective_time(now))
    }

    /// Returns the idempotency record for the id of a call.
    pub(super) fn recorded_call(self, request: &CompositeRequest, now: Timestamp) -> Option<RecordedCall<()>> {
        let id = match request.idempotency {
            Idempotency::Every => return None,
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => id,
        };
        self.extras()?.records.find(id, self.effective_time(now))
    }

    /// Returns the indexes of the components for the limits of a call.
    pub(super) fn indexes(self, request: &CompositeRequest) -> [Option<usize>; MAX_SPECS] {
        let mut indexes = [None; MAX_SPECS];
        for (position, spec) in request.specs.iter().enumerate() {
            let found = self.index_of(spec, position, &indexes);
            if let Some(index) = indexes.get_mut(position) {
                *index = found;
            }
        }
        indexes
    }

    /// Returns `true` if the id of a settling call holds a lease under one of its limits.
    pub(super) fn has_lease(self, request: &CompositeRequest, now: Timestamp) -> bool {
        let mut held_by_id = request.specs.iter().filter(|spec| spec.is_held_by_id());
        let leases = match self {
            StoredUsage::Composite(usage) => usage.leases(),
            StoredUsage::Plain(usage, _) => usage.downcast_ref(),
        };
        leases.is_some_and(|leases: &ConcurrencyUsage| {
            held_by_id.any(|spec| leases.lease_until(spec.holder_or_item, now).is_some())
        })
    }
}
