//! Oracle of concurrency limits.

use super::contract::{Contract, Exact, exact, period};
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage, LeaseLimit};
use crate::limit::Usage;
use crate::number::{Amount, Timestamp};
use crate::testing::calls::{amounts, lengths, moved_back_to};
use crate::testing::encoded_fields::EncodedFields;
use num_traits::Signed;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

#[derive(Clone, Debug)]
pub(super) struct LeaseTerms {
    limit: u64,
    ttl: u64,
    holder: &'static [u8],
    nx: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Lease {
    holder: &'static [u8],
    expires_at: i128,
    units: Exact,
}

#[derive(Clone, Debug)]
pub(super) struct Leases {
    written: i128,
    leases: Vec<Lease>,
}

impl LeaseTerms {
    /// Generates the calls of several holders, most of them under the same limit.
    pub(super) fn several() -> impl Strategy<Value = Vec<LeaseTerms>> {
        let holders = select(vec![&b"a"[..], b"b", b"c", b"d"]);
        let calls = (select(vec![1, 1, 1, 2, 0]), lengths(), holders, any::<bool>());
        (amounts(), vec(calls, 1..=6)).prop_map(|(limit, calls)| {
            let terms = |(divisor, ttl, holder, nx)| LeaseTerms {
                limit: limit.checked_div(divisor).unwrap_or(0),
                ttl,
                holder,
                nx,
            };
            calls.into_iter().map(terms).collect()
        })
    }
}

impl Leases {
    /// Returns the leased units of the holders for which `counts` returns `true`.
    fn units(&self, at: i128, counts: impl Fn(&[u8]) -> bool) -> Exact {
        self.leases.iter().filter(|lease| at < lease.expires_at && counts(lease.holder)).map(|lease| &lease.units).sum()
    }
}

impl Contract for LeaseTerms {
    type Limit = LeaseLimit<'static>;
    type Memory = Leases;

    fn implementation(&self) -> LeaseLimit<'static> {
        Concurrency::new(Amount::saturating(self.limit), period(self.ttl)).for_holder(self.holder).with_nx(self.nx)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Leases, at: i128) -> Exact {
        memory.units(at, |_| true)
    }

    /// Returns `true` if the cost is granted. A renewal with the same or a smaller cost always is; a larger cost must
    /// fit beside the leases of other holders. With NX, a holder of a lease is denied.
    fn fits(&self, memory: Option<&Leases>, cost: &Exact, at: i128) -> bool {
        let units = |counts: &dyn Fn(&[u8]) -> bool| memory.map_or(exact(0), |memory| memory.units(at, counts));
        let (own, others) = (units(&|holder| holder == self.holder), units(&|holder| holder != self.holder));
        let (renews, fits) = (own.is_positive() && *cost <= own, others + cost <= exact(self.limit));
        if self.nx { !own.is_positive() && fits } else { renews || fits }
    }

    fn opened(&self, now: i128, cost: Exact) -> Leases {
        let lease = Lease { holder: self.holder, expires_at: now + i128::from(self.ttl), units: cost };
        Leases { written: now, leases: vec![lease] }
    }

    fn changed(&self, memory: Leases, now: i128, amount: Exact) -> Leases {
        let mut leases = self.opened(now, amount);
        leases.leases.extend(memory.leases.into_iter().filter(|lease| lease.holder != self.holder));
        leases.leases.retain(|lease| now < lease.expires_at);
        leases
    }

    fn move_back(memory: &mut Leases, now: i128) {
        let back = (memory.written - now).max(0);
        memory.written -= back;
        memory.leases.iter_mut().for_each(|lease| lease.expires_at -= back);
    }

    /// Releases the lease of the holder, which is named twice, and that of holder c.
    fn release(&self, memory: &mut Option<Leases>, usage: &mut ConcurrencyUsage, at: Timestamp) {
        let names = [self.holder, b"c", self.holder];
        *usage = moved_back_to(usage, at);
        let released = usage.release(&names, at);
        usage.encode_effect(&mut EncodedFields::default());
        if usage.is_unused() {
            *usage = ConcurrencyUsage::default();
        }

        let now = at.micros().into();
        let Some(leases) = memory else { return assert_eq!(released, 0) };
        Self::move_back(leases, now);
        let is_active = |lease: &Lease| now < lease.expires_at;
        assert_eq!(
            released,
            leases.leases.iter().filter(|lease| is_active(lease) && names.contains(&lease.holder)).count()
        );
        if released > 0 {
            leases.leases.retain(|lease| is_active(lease) && !names.contains(&lease.holder));
            leases.written = now;
        }
        *memory = memory.take().filter(|leases| !leases.leases.is_empty());
    }
}
