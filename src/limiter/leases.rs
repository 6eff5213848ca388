//! Concurrency leases: at most `limit` units are held at once, each for at most `ttl` unless it is given back or
//! renewed before.
//!
//! When to use it: workers, connections, requests in flight to an upstream. Its known flaw: a holder that works on
//! past its `ttl` without renewing is not stopped. Cost: about 150 bytes a lease and its holder's name twice over;
//! logarithmic in the leases, but for a denied cost of several units, whose wait is found by walking over the leases
//! that have to lapse first.
//!
//! Leases are kept by holder and by the instant at which they lapse. Lapsed ones are left in place until a charge
//! tidies up, since a denied call changes nothing; so that looking past them stays cheap, the sum of what has lapsed
//! is kept along with the instant up to which it was taken.

use super::codec::{Decoder, Encoder};
use super::{Amount, Fact, Kind, Limit, Period, Span, Timestamp, Usage, Verdict};
use std::cell::Cell;
use std::collections::BTreeMap;

/// A concurrency limit's numbers, and who asks.
#[derive(Clone, Copy, Debug)]
pub struct Concurrency<'a> {
    limit: Amount,
    ttl: Period,
    holder: &'a [u8],
}

/// The longest name of a holder, in bytes.
pub const MAX_HOLDER: usize = 256;

impl<'a> Concurrency<'a> {
    /// At most `limit` units at once; `holder`, of 1 to [`MAX_HOLDER`] bytes, asks for a lease of `ttl`.
    pub fn new(limit: Amount, ttl: Period, holder: &'a [u8]) -> Concurrency<'a> {
        Concurrency { limit, ttl, holder }
    }
}

impl Limit for Concurrency<'_> {
    type Usage = LeasesUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    fn verdict(&self, usage: &LeasesUsage, now: Timestamp, cost: Amount) -> Verdict {
        let own = usage.held_by(self.holder, now);
        // A renewal takes nothing from anybody, whatever has become of the limit.
        let others = usage.present(now).minus(own.unwrap_or_default());
        if own.is_some_and(|held| cost <= held) || others.excess(cost, self.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        if cost > self.limit {
            return Verdict::Never;
        }
        let mut left = others;
        for ((lapse, holder), units) in usage.live(now) {
            if **holder != *self.holder {
                left = left.minus(*units);
            }
            if left.excess(cost, self.limit) == Amount::ZERO {
                return Verdict::After(lapse.since(now));
            }
        }
        Verdict::Never
    }

    fn remaining(&self, usage: &LeasesUsage, now: Timestamp) -> Amount {
        self.limit.minus(usage.present(now))
    }

    fn reset(&self, usage: &LeasesUsage, now: Timestamp) -> Span {
        usage.time_to_last_lapse(now)
    }

    fn charge(&self, usage: &mut LeasesUsage, now: Timestamp, cost: Amount) {
        usage.tidy(now);
        let lapse = now.plus(self.ttl.span()).min(Timestamp::MAX);
        usage.lease(self.holder, lapse, cost);
        usage.delta.leased = Some((Box::from(self.holder), lapse, cost));
    }

    fn give_back(&self, _usage: &mut LeasesUsage, _now: Timestamp, _amount: Amount) {
        // The grammar has no such call: a lease is given back whole, by its holder.
    }

    fn entries_after_charge(&self, usage: &LeasesUsage, now: Timestamp) -> Option<usize> {
        let grows = usage.held_by(self.holder, now).is_none();
        grows.then(|| usage.by_holder.len().saturating_sub(usage.lapsed(now).leases).saturating_add(1))
    }
}

/// What a concurrency limit's key remembers.
#[derive(Clone, Debug, Default)]
pub struct LeasesUsage {
    /// The units of every lease, by the instant at which it lapses and its holder.
    by_lapse: BTreeMap<(Timestamp, Box<[u8]>), Amount>,
    /// When the lease of each holder lapses.
    by_holder: BTreeMap<Box<[u8]>, Timestamp>,
    /// The units of all leases, lapsed ones included.
    total: Amount,
    /// When the table was last changed.
    written: Timestamp,
    /// What has lapsed and was not tidied up since: a memory of the last look, no part of the state.
    lapsed: Cell<Lapsed>,
    /// What the current call has changed.
    delta: Delta,
}

/// The leases that had lapsed by an instant.
#[derive(Clone, Copy, Debug, Default)]
struct Lapsed {
    by: Timestamp,
    units: Amount,
    leases: usize,
}

/// What a call changes in a lease table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Delta {
    /// Every lapse moves back by so much, because the clock did.
    moved_back: Span,
    /// What has lapsed by now goes, and the table was last changed now.
    written: Timestamp,
    /// These holders' leases go.
    released: Vec<Box<[u8]>>,
    /// This lease comes, in place of the one that its holder had.
    leased: Option<(Box<[u8]>, Timestamp, Amount)>,
}

impl LeasesUsage {
    /// Takes the live leases of `holders` back; how many there were.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut released = Vec::new();
        for holder in holders {
            if self.held_by(holder, now).is_some() {
                self.remove(holder);
                released.push(Box::from(*holder));
            }
        }
        let count = released.len();
        if count > 0 {
            self.tidy(now);
            self.delta.released = released;
        }
        count
    }

    /// How long until the last lease lapses.
    pub fn time_to_last_lapse(&self, now: Timestamp) -> Span {
        self.by_lapse.last_key_value().map_or(Span::ZERO, |((lapse, _), _)| lapse.since(now))
    }

    /// The units of a holder's live lease.
    fn held_by(&self, holder: &[u8], now: Timestamp) -> Option<Amount> {
        let lapse = self.by_holder.get(holder).filter(|lapse| now < **lapse)?;
        self.by_lapse.get(&(*lapse, Box::from(holder))).copied()
    }

    /// The units that are held now.
    fn present(&self, now: Timestamp) -> Amount {
        self.total.minus(self.lapsed(now).units)
    }

    /// What has lapsed by now. Time goes on, so this goes on from where it last was.
    fn lapsed(&self, now: Timestamp) -> Lapsed {
        let known = self.lapsed.get();
        let known = if known.by <= now { known } else { Lapsed::default() };
        let mut lapsed = Lapsed { by: now, ..known };
        for units in self.by_lapse.range(after(known.by)..after(now)).map(|(_, units)| *units) {
            lapsed.units = lapsed.units.plus(units);
            lapsed.leases = lapsed.leases.saturating_add(1);
        }
        self.lapsed.set(lapsed);
        lapsed
    }

    /// The leases that have not lapsed, in the order in which they will.
    fn live(&self, now: Timestamp) -> impl Iterator<Item = (&(Timestamp, Box<[u8]>), &Amount)> {
        self.by_lapse.range(after(now)..)
    }

    /// Drops what has lapsed.
    fn tidy(&mut self, now: Timestamp) {
        while let Some(((lapse, holder), _)) = self.by_lapse.first_key_value() {
            if *lapse > now {
                break;
            }
            let holder = holder.clone();
            self.remove(&holder);
        }
        self.lapsed = Cell::default();
        self.written = now;
        self.delta.written = now;
    }

    fn remove(&mut self, holder: &[u8]) {
        if let Some((holder, lapse)) = self.by_holder.remove_entry(holder)
            && let Some(units) = self.by_lapse.remove(&(lapse, holder))
        {
            self.total = self.total.minus(units);
        }
    }

    fn lease(&mut self, holder: &[u8], lapse: Timestamp, units: Amount) {
        self.remove(holder);
        self.by_holder.insert(Box::from(holder), lapse);
        self.by_lapse.insert((lapse, Box::from(holder)), units);
        self.total = self.total.plus(units);
    }

    fn shift_back(&mut self, span: Span) {
        if span == Span::ZERO {
            return;
        }
        for ((lapse, holder), units) in std::mem::take(&mut self.by_lapse) {
            let lapse = lapse.minus(span);
            self.by_holder.insert(holder.clone(), lapse);
            self.by_lapse.insert((lapse, holder), units);
        }
        self.lapsed = Cell::default();
    }

    /// Whether `delta` can have been caused by a call on this table.
    fn accepts(&self, delta: &Delta) -> bool {
        delta.leased.as_ref().is_none_or(|(_, lapse, units)| {
            *lapse > delta.written && *units != Amount::ZERO && *units <= Amount::MAX.minus(self.total)
        })
    }

    fn change(&mut self, delta: Delta) {
        self.shift_back(delta.moved_back);
        self.tidy(delta.written);
        for holder in &delta.released {
            self.remove(holder);
        }
        if let Some((holder, lapse, units)) = delta.leased {
            self.lease(&holder, lapse, units);
        }
        self.delta = Delta::default();
    }
}

/// Where, in order of lapse, what lapses after `instant` begins.
fn after(instant: Timestamp) -> (Timestamp, Box<[u8]>) {
    (instant.plus(Span::MICROSECOND), Box::default())
}

/// What an effect begins with: the whole table, or what a call changed.
const WHOLE: u64 = 0;
const CHANGE: u64 = 1;

/// A lease, written out.
fn encode_lease(to: &mut impl Encoder, holder: &[u8], lapse: Timestamp, units: Amount) {
    to.bytes(holder);
    to.integer(lapse.micros());
    to.integer(units.millionths());
}

/// A lease, read back.
fn decode_lease(from: &mut impl Decoder) -> Option<(Box<[u8]>, Timestamp, Amount)> {
    let holder = decode_holder(from)?;
    let lapse = Timestamp::from_micros(from.integer()?)?;
    let units = Amount::from_millionths(from.integer()?).filter(|units| *units != Amount::ZERO)?;
    Some((holder, lapse, units))
}

fn decode_holder(from: &mut impl Decoder) -> Option<Box<[u8]>> {
    from.bytes(MAX_HOLDER).filter(|holder| !holder.is_empty())
}

impl Delta {
    fn decode(from: &mut impl Decoder) -> Option<Delta> {
        let moved_back = Span::from_micros(from.integer()?);
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut released = Vec::new();
        for _ in 0..from.integer()? {
            released.push(decode_holder(from)?);
        }
        let leased = match from.integer()? {
            0 => None,
            1 => Some(decode_lease(from)?),
            _ => return None,
        };
        Some(Delta { moved_back, written, released, leased })
    }
}

impl Usage for LeasesUsage {
    const KIND: Kind = Kind::Leases;

    fn is_unused(&self) -> bool {
        self.by_holder.is_empty()
    }

    fn is_after(&self, now: Timestamp) -> bool {
        self.written > now
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.written.since(now);
        self.shift_back(span);
        self.tidy(now);
        self.delta.moved_back = span;
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.by_lapse.len()).unwrap_or(0));
        for ((lapse, holder), units) in &self.by_lapse {
            encode_lease(to, holder, *lapse, *units);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<LeasesUsage> {
        let mut usage = LeasesUsage { written: Timestamp::from_micros(from.integer()?)?, ..LeasesUsage::default() };
        for _ in 0..from.integer()? {
            let (holder, lapse, units) = decode_lease(from)?;
            if units > Amount::MAX.minus(usage.total) || usage.by_holder.contains_key(&holder) {
                return None;
            }
            usage.lease(&holder, lapse, units);
        }
        (!usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let Delta { moved_back, written, released, leased } = std::mem::take(&mut self.delta);
        to.integer(CHANGE);
        to.integer(moved_back.micros());
        to.integer(written.micros());
        to.integer(u64::try_from(released.len()).unwrap_or(0));
        for holder in &released {
            to.bytes(holder);
        }
        to.integer(u64::from(leased.is_some()));
        if let Some((holder, lapse, units)) = leased {
            encode_lease(to, &holder, lapse, units);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn accepts_effect(&self, from: &mut impl Decoder, version: u32) -> bool {
        match from.integer() {
            Some(WHOLE) => LeasesUsage::decode(from, version).is_some(),
            Some(CHANGE) => Delta::decode(from).is_some_and(|delta| self.accepts(&delta)),
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = LeasesUsage::decode(from, version).unwrap_or_default(),
            _ => self.change(Delta::decode(from).unwrap_or_default()),
        }
    }

    fn heap_size(&self) -> usize {
        // An estimate: a name of a holder in each of the two maps, and what their nodes and slots take beside it.
        const A_LEASE: usize = 112;
        let names: usize = self.by_holder.keys().map(|holder| holder.len()).sum();
        self.by_holder.len().saturating_mul(A_LEASE).saturating_add(names.saturating_mul(2))
    }

    fn effort(&self) -> usize {
        self.by_holder.len()
    }

    fn describe(&self) -> Vec<(&'static str, Fact)> {
        const SHOWN: usize = 100;
        let leases = self.by_lapse.iter().take(SHOWN);
        vec![
            ("used", Fact::Amount(self.total)),
            ("written", Fact::Instant(self.written)),
            ("holders", Fact::Count(u64::try_from(self.by_holder.len()).unwrap_or(u64::MAX))),
            ("leases", Fact::Leases(leases.map(|((lapse, holder), units)| (holder.clone(), *units, *lapse)).collect())),
        ]
    }
}
