//! What is in the key that a call is on: components, or the usage of a plain key, which a call sees as one component.

use super::{CompositeUsage, Extras};
use crate::algorithm::any::Single;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::composite::idempotency::RecordedCall;
use crate::kind::Kind;
use crate::number::{Span, Timestamp};
use crate::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Spec};
use std::any::Any;

/// What is in the key that a call is on.
#[derive(Clone, Copy)]
pub enum Held<'a> {
    /// Components; none, if the key is missing.
    Composite(&'a CompositeUsage),
    /// The usage of a plain key.
    Plain(&'a dyn Any, Kind),
}

impl<'a> Held<'a> {
    /// A plain key's usage.
    pub fn plain<U: Single>(usage: &'a U) -> Held<'a> {
        Held::Plain(usage, U::KIND)
    }

    /// A missing key that will be a plain one of that kind.
    #[must_use]
    pub fn missing(kind: Kind) -> Held<'a> {
        Held::Plain(&(), kind)
    }

    /// The place of the component that the limit of a spec finds, which most likely stands `at` there, beside those that
    /// others have `taken`. A plain key's usage is at 0: there it would be if this were a key with components.
    fn place(self, spec: &Spec, at: usize, taken: &[Option<usize>]) -> Option<usize> {
        match self {
            Held::Composite(components) => components.place(spec, at, taken),
            Held::Plain(_, kind) => (spec.limit.kind() == kind && !taken.contains(&Some(0))).then_some(0),
        }
    }

    /// What a limit's component remembers, if there is one.
    pub(super) fn usage<U: Single>(self, place: Option<usize>) -> Option<&'a U> {
        match self {
            Held::Composite(components) => U::of(&components.components.get(place?)?.usage),
            Held::Plain(usage, _) => place.and_then(|_| usage.downcast_ref()),
        }
    }

    /// The ids and the ban of a key that has components, if there are any.
    pub(super) fn extras(self) -> Option<&'a Extras> {
        match self {
            Held::Composite(components) => components.extras.as_deref(),
            Held::Plain(..) => None,
        }
    }

    /// How many components there are.
    pub(super) fn components(self) -> usize {
        match self {
            Held::Composite(components) => components.components.len(),
            Held::Plain(..) => 0,
        }
    }

    /// For how long the key is banned.
    pub(super) fn banned(self, now: Timestamp) -> Span {
        match self {
            Held::Composite(components) => components.banned(now),
            Held::Plain(..) => Span::ZERO,
        }
    }

    /// The instant that a look at `now` is at: none is before the key was last changed.
    pub(super) fn at(self, now: Timestamp) -> Timestamp {
        match self {
            Held::Composite(components) => components.at(now),
            Held::Plain(..) => now,
        }
    }

    /// What it remembers of the id of a call.
    pub(super) fn remembered(self, request: &CompositeRequest, now: Timestamp) -> Option<RecordedCall<()>> {
        let id = match request.idempotency {
            Idempotency::Every => return None,
            Idempotency::Once { id, .. } | Idempotency::Settle { id, .. } => id,
        };
        self.extras()?.records.find(id, self.at(now))
    }

    /// The places of the components that the limits of a call find.
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

    /// Whether the id of a call that settles holds a lease under one of its limits.
    pub(super) fn has_lease(self, request: &CompositeRequest, now: Timestamp) -> bool {
        let mut of_leases = request.specs.iter().filter(|spec| spec.is_held_by_id());
        let leases = match self {
            Held::Composite(components) => {
                components.components.iter().find_map(|component| ConcurrencyUsage::of(&component.usage))
            }
            Held::Plain(usage, _) => usage.downcast_ref(),
        };
        leases.is_some_and(|leases: &ConcurrencyUsage| of_leases.any(|spec| leases.has_lease(spec.holder, now)))
    }
}
