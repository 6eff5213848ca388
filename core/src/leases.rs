//! Concurrency leases: at most `limit` units are held at once, each for at most `ttl` unless it is given back or
//! renewed before.
//!
//! When to use it: workers, connections, requests in flight to an upstream. Its known flaw: a holder that works on
//! past its `ttl` without renewing is not stopped. Cost: about 180 bytes a lease and its holder's name; logarithmic
//! in the leases, amortized (a table that is full doubles, and each lease is passed once when it lapses), but for a
//! denied cost of several units, whose wait is found by walking over the leases that have to lapse first.
//!
//! Leases are kept by holder and by the instant at which they lapse. The state is what had not lapsed when the table was
//! last written; a denied call and a look change nothing, so what has lapsed since is looked past. However many lapse
//! together, and wherever the clock goes:
//!
//! * to look past them is to know their sum, which is kept along with the instant up to which it was taken, and goes on
//!   from there: the first look passes each of them, and no other does;
//! * those that are no part of the state any more stay in place, unseen, and each change sweeps a few of them out;
//! * a clock gone back moves all lapses back by one number (`Shift`).

use super::codec::{CHANGE, Decoder, Encoder, WHOLE};
#[cfg(test)]
use super::effort;
use super::marks::{Mark, Shift};
use super::{Amount, Fact, Kind, Limit, Period, Span, Timestamp, Usage, Verdict};
use hashbrown::HashTable;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock};

/// A concurrency limit's numbers.
///
/// ```
/// use ratelimit_core::leases::{Concurrency, ConcurrencyUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp, Verdict};
///
/// let ttl = Period::parse(b"30s").unwrap();
/// let [alice, bob] = [b"alice", b"bobby"].map(|holder| Concurrency::new(Amount::ONE, ttl).asked_by(holder));
/// let (mut usage, now) = (ConcurrencyUsage::default(), Timestamp::EPOCH);
/// alice.charge(&mut usage, now, Amount::ONE);
/// // Alice may renew; Bobby waits until she gives it back, or it lapses.
/// assert_eq!(alice.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// assert_eq!(bob.verdict(&usage, now, Amount::ONE), Verdict::After(ttl.span()));
/// assert_eq!(usage.release(&[b"alice"], now), 1);
/// assert_eq!(bob.verdict(&usage, now, Amount::ONE), Verdict::Allowed(Span::ZERO));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Concurrency {
    limit: Amount,
    ttl: Period,
}

/// The longest name of a holder, in bytes.
pub const MAX_HOLDER: usize = 256;

impl Concurrency {
    /// At most `limit` units at once, each leased for `ttl`.
    #[must_use]
    pub fn new(limit: Amount, ttl: Period) -> Concurrency {
        Concurrency { limit, ttl }
    }

    /// The limit as it is for a holder, whose name has 1 to [`MAX_HOLDER`] bytes.
    #[must_use]
    pub fn asked_by(self, holder: &[u8]) -> Asked<'_> {
        Asked { concurrency: self, holder: Name::of(holder) }
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CONCURRENCY {} {}", self.limit, self.ttl)
    }
}

/// A concurrency limit, and who asks for a lease.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    concurrency: Concurrency,
    holder: Name<'a>,
}

impl Limit for Asked<'_> {
    type Usage = ConcurrencyUsage;

    fn limit(&self) -> Amount {
        self.concurrency.limit
    }

    fn verdict(&self, usage: &ConcurrencyUsage, now: Timestamp, cost: Amount) -> Verdict {
        let own = usage.held_by(self.holder, now);
        // A renewal takes nothing from anybody, whatever has become of the limit.
        let others = usage.present(now).minus(own.unwrap_or_default());
        if own.is_some_and(|held| cost <= held) || others.excess(cost, self.concurrency.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        if cost > self.concurrency.limit {
            return Verdict::Never;
        }
        let mut left = others;
        for (holder, lease) in usage.live(now) {
            #[cfg(test)]
            effort::entry();
            if **holder != *self.holder.text {
                left = left.minus(lease.units);
            }
            if left.excess(cost, self.concurrency.limit) == Amount::ZERO {
                return Verdict::After(lease.lapse.since(usage.at(now)));
            }
        }
        Verdict::Never
    }

    fn remaining(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Amount {
        self.concurrency.limit.minus(usage.present(now))
    }

    fn reset(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Span {
        usage.time_to_last_lapse(now)
    }

    fn charge(&self, usage: &mut ConcurrencyUsage, now: Timestamp, cost: Amount) {
        usage.tidy(Span::ZERO, now);
        let lapse = now.plus(self.concurrency.ttl.span()).min(Timestamp::MAX);
        let lease = Lease { lapse, units: cost };
        usage.delta.leased = Some((usage.lease(self.holder, lease), lease));
    }

    fn give_back(&self, _usage: &mut ConcurrencyUsage, _now: Timestamp, _amount: Amount) {
        // The grammar has no such call: a lease is given back whole, by its holder.
    }

    fn entries_after_charge(&self, usage: &ConcurrencyUsage, now: Timestamp) -> Option<usize> {
        let grows = usage.held_by(self.holder, now).is_none();
        grows.then(|| usage.counted.minus(usage.lapsed(now)).leases.saturating_add(1))
    }
}

/// The name of a holder, which both maps and the change that is told of have in common. Not an `Rc`: the server frees
/// a large table in a thread of its own, while a copy of it may be in use.
type Holder = Arc<[u8]>;

/// What a holder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    lapse: Timestamp,
    units: Amount,
}

/// A holder and its lease; with the name's hash, so that a table that grows looks no name up.
#[derive(Clone, Debug)]
struct Held {
    hash: u64,
    holder: Holder,
    lapse: Mark,
    units: Amount,
}

/// The name of a holder with its hash, which is taken once a call: it costs as much as finding the lease.
#[derive(Clone, Copy)]
struct Name<'a> {
    text: &'a [u8],
    /// Others of the same hash cannot be guessed from outside.
    hash: u64,
}

impl fmt::Debug for Name<'_> {
    /// The hash is another one in each process.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

impl<'a> Name<'a> {
    fn of(text: &'a [u8]) -> Name<'a> {
        static HASHER: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Name { text, hash: HASHER.hash_one(text) }
    }

    /// Whether a lease is this holder's.
    fn holds(self) -> impl Fn(&Held) -> bool {
        move |held| *held.holder == *self.text
    }
}

/// How many leases that are no part of the state any more a change sweeps out: more than one adds, and few enough to
/// take no longer than the rest of the call.
const SWEPT: usize = 16;

/// What a concurrency limit's key remembers.
#[derive(Clone, Debug, Default)]
pub struct ConcurrencyUsage {
    /// The units of every lease, by the instant at which it lapses and its holder. At the front may be some that lapsed
    /// by `written`, to be swept out: no part of the state.
    by_lapse: BTreeMap<(Mark, Holder), Amount>,
    /// The same by holder.
    by_holder: HashTable<Held>,
    /// How far all lapses have moved back.
    shift: Shift,
    /// When the table was last changed.
    written: Timestamp,
    /// The leases that count: those that had not lapsed by then.
    counted: Sum,
    /// Those of them that have lapsed since: a memory of the last look, no part of the state.
    lapsed: Cell<Lapsed>,
    /// What the names of holders take, in bytes.
    names: usize,
    /// What the current call has changed.
    delta: Delta,
    #[cfg(test)]
    _copies: effort::Copies,
}

/// Some leases, all together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    units: Amount,
    leases: usize,
}

impl Sum {
    fn plus(self, other: Sum) -> Sum {
        Sum { units: self.units.plus(other.units), leases: self.leases.saturating_add(other.leases) }
    }

    fn minus(self, other: Sum) -> Sum {
        Sum { units: self.units.minus(other.units), leases: self.leases.saturating_sub(other.leases) }
    }
}

/// The leases that have lapsed by an instant, not before the table was last changed.
#[derive(Clone, Copy, Debug, Default)]
struct Lapsed {
    by: Timestamp,
    sum: Sum,
}

/// What a call changes in a lease table, in this order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Delta {
    /// Every lapse moves back by so much, because the clock did.
    moved_back: Span,
    /// What has lapsed by now goes, and the table was last changed now.
    written: Timestamp,
    /// These holders' leases go.
    released: Vec<Holder>,
    /// This lease comes, in place of the one that its holder had.
    leased: Option<(Holder, Lease)>,
}

impl ConcurrencyUsage {
    /// Takes the live leases of `holders` back; how many there were.
    pub fn release(&mut self, holders: &[&[u8]], now: Timestamp) -> usize {
        let mut released = Vec::new();
        for holder in holders {
            let holder = Name::of(holder);
            if self.held_by(holder, now).is_some() {
                released.extend(self.remove(holder));
            }
        }
        let count = released.len();
        if count > 0 {
            self.tidy(Span::ZERO, now);
            self.delta.released = released;
        }
        count
    }

    /// How long until the last lease lapses.
    pub fn time_to_last_lapse(&self, now: Timestamp) -> Span {
        let last = self.by_lapse.last_key_value();
        last.map_or(Span::ZERO, |((lapse, _), _)| self.shift.instant(*lapse).since(self.at(now)))
    }

    /// The instant, on the table's own clock, that a look at `now` is at. One from before the table was last changed
    /// sees it as it was then: moved back, everything in it lies as far off as before.
    fn at(&self, now: Timestamp) -> Timestamp {
        now.max(self.written)
    }

    /// What lapses after this counts. At the end of time a lease lapses at the very instant at which it was taken.
    fn horizon(&self) -> Timestamp {
        self.written.min(Timestamp::MAX.minus(Span::MICROSECOND))
    }

    /// The units of a holder's live lease.
    fn held_by(&self, holder: Name, now: Timestamp) -> Option<Amount> {
        self.lease_of(holder).filter(|lease| self.at(now) < lease.lapse).map(|lease| lease.units)
    }

    /// A holder's lease, though it may have lapsed.
    fn lease_of(&self, holder: Name) -> Option<Lease> {
        let held = self.by_holder.find(holder.hash, holder.holds())?;
        Some(Lease { lapse: self.shift.instant(held.lapse), units: held.units })
    }

    /// The units that are held now.
    fn present(&self, now: Timestamp) -> Amount {
        self.counted.minus(self.lapsed(now)).units
    }

    /// What has lapsed by now. It goes on from where the last look was, on or back.
    fn lapsed(&self, now: Timestamp) -> Sum {
        let now = self.at(now).min(Timestamp::MAX);
        let Lapsed { by, sum } = self.lapsed.get();
        if now == by {
            return sum;
        }
        if now == self.written {
            // As any look by a clock that has gone back: it need not forget where the others are.
            return Sum::default();
        }
        let sum = if by < now { sum.plus(self.lapsing(by, now)) } else { sum.minus(self.lapsing(now, by)) };
        self.lapsed.set(Lapsed { by: now, sum });
        sum
    }

    /// The same for a change that comes now. Looks may have gone further (those of a replica do, if its clock is ahead of
    /// its master's): then they stay where they are, and what they passed is passed from the side of the last change.
    fn lapsed_by_change(&self, now: Timestamp) -> Sum {
        let now = self.at(now);
        if now < self.lapsed.get().by { self.lapsing(self.written, now) } else { self.lapsed(now) }
    }

    /// What lapses after `from`, up to and with `to`, which is not before it.
    fn lapsing(&self, from: Timestamp, to: Timestamp) -> Sum {
        let lapsing = self.by_lapse.range(self.after(from)..self.after(to));
        lapsing.fold(Sum::default(), |sum, (_, units)| {
            #[cfg(test)]
            effort::entry();
            sum.plus(Sum { units: *units, leases: 1 })
        })
    }

    /// The leases that have not lapsed, in the order in which they will.
    fn live(&self, now: Timestamp) -> impl Iterator<Item = (&Holder, Lease)> {
        self.lapsing_after(self.at(now))
    }

    /// The leases that count, likewise.
    fn counted(&self) -> impl Iterator<Item = (&Holder, Lease)> {
        self.lapsing_after(self.horizon())
    }

    fn lapsing_after(&self, instant: Timestamp) -> impl Iterator<Item = (&Holder, Lease)> {
        let leases = self.by_lapse.range(self.after(instant)..);
        leases.map(|((lapse, holder), units)| (holder, Lease { lapse: self.shift.instant(*lapse), units: *units }))
    }

    /// Where, in order of lapse, what lapses after `instant` begins.
    fn after(&self, instant: Timestamp) -> (Mark, Holder) {
        (self.shift.mark(instant.plus(Span::MICROSECOND)), Arc::default())
    }

    /// Goes on to `now`, by a clock that may have gone back by `span` before: what has lapsed by then counts no more.
    fn go_on(&mut self, span: Span, now: Timestamp) {
        // By the clock as it was before it went back.
        let at = now.plus(span);
        let gone = self.lapsed_by_change(at);
        let Lapsed { by, sum } = self.lapsed.get();
        self.lapsed.set(Lapsed { by: by.minus(span).max(now), sum: sum.minus(gone) });
        self.counted = self.counted.minus(gone);
        self.shift_back(span);
        self.written = now;
        self.delta.written = now;
    }

    /// Goes on to `now`, and sweeps out a few leases that count no more.
    fn tidy(&mut self, span: Span, now: Timestamp) {
        self.go_on(span, now);
        // At the end of time what has just come and what has lapsed lie at one instant: there all of the latter goes.
        let most = if now == Timestamp::MAX { usize::MAX } else { SWEPT };
        let now = self.shift.mark(now);
        for _ in 0..most {
            let Some(first) = self.by_lapse.first_entry().filter(|first| first.key().0 <= now) else { break };
            #[cfg(test)]
            effort::entry();
            let ((_, holder), _) = first.remove_entry();
            self.forget(Name::of(&holder));
        }
        // A table keeps the room that it once needed: of a crowd that is gone, no more than 32 times what is left. Less
        // often would waste more, and more often would move more at once.
        if self.by_holder.len() < self.by_holder.capacity() / 32 {
            self.by_holder.shrink_to(self.by_holder.len().saturating_mul(2), |held| held.hash);
        }
    }

    /// Takes a holder's lease out of the table, and of nothing else.
    fn forget(&mut self, holder: Name) -> Option<Held> {
        let entry = self.by_holder.find_entry(holder.hash, holder.holds()).ok()?;
        self.names = self.names.saturating_sub(size_of_name(holder.text));
        Some(entry.remove().0)
    }

    /// Takes a holder's lease away; the name by which it was known.
    fn remove(&mut self, holder: Name) -> Option<Holder> {
        let Held { holder, lapse, units, .. } = self.forget(holder)?;
        self.unlist(&holder, lapse, units);
        Some(holder)
    }

    /// Takes a lease out of those that lapse.
    fn unlist(&mut self, holder: &Holder, lapse: Mark, units: Amount) {
        self.by_lapse.remove(&(lapse, Arc::clone(holder)));
        self.count(lapse, |sum| sum.minus(Sum { units, leases: 1 }));
    }

    /// Counts a change of the lease that lapses at `lapse`, in whatever it counts.
    fn count(&mut self, lapse: Mark, change: impl Fn(Sum) -> Sum) {
        let lapse = self.shift.instant(lapse);
        if lapse <= self.horizon() {
            return;
        }
        self.counted = change(self.counted);
        let lapsed = self.lapsed.get_mut();
        if lapse <= lapsed.by {
            lapsed.sum = change(lapsed.sum);
        }
    }

    /// Gives a holder a lease, in place of the one that it may have; the name by which it is known.
    fn lease(&mut self, holder: Name, Lease { lapse, units }: Lease) -> Holder {
        let lapse = self.shift.mark(lapse);
        let name = if let Some(held) = self.by_holder.find_mut(holder.hash, holder.holds()) {
            let lapse_before = std::mem::replace(&mut held.lapse, lapse);
            let units_before = std::mem::replace(&mut held.units, units);
            let name = Arc::clone(&held.holder);
            self.unlist(&name, lapse_before, units_before);
            name
        } else {
            let name: Holder = Arc::from(holder.text);
            let held = Held { hash: holder.hash, holder: Arc::clone(&name), lapse, units };
            self.by_holder.insert_unique(holder.hash, held, |held| held.hash);
            self.names = self.names.saturating_add(size_of_name(holder.text));
            name
        };
        self.by_lapse.insert((lapse, Arc::clone(&name)), units);
        self.count(lapse, |sum| sum.plus(Sum { units, leases: 1 }));
        name
    }

    fn shift_back(&mut self, span: Span) {
        self.shift = self.shift.back(span);
        if !self.shift.is_far() {
            return;
        }
        let far = std::mem::take(&mut self.shift);
        for ((lapse, holder), units) in std::mem::take(&mut self.by_lapse) {
            #[cfg(test)]
            effort::entry();
            let lapse = self.shift.mark(far.instant(lapse));
            let name = Name::of(&holder);
            if let Some(held) = self.by_holder.find_mut(name.hash, name.holds()) {
                held.lapse = lapse;
            }
            self.by_lapse.insert((lapse, holder), units);
        }
    }

    /// Whether `delta` can have been caused by a call on this table.
    fn accepts(&self, delta: &Delta) -> bool {
        // By the clock as it was before it went back.
        let at = delta.written.plus(delta.moved_back);
        let in_order = at >= self.written;
        let sound = delta.leased.as_ref().is_none_or(|(holder, lease)| {
            let present = self.counted.minus(self.lapsed_by_change(at)).units;
            let others = present.minus(self.held_by(Name::of(holder), at).unwrap_or_default());
            delta.released.is_empty() && is_lease(delta.written, *lease, others)
        });
        in_order && sound
    }

    fn change(&mut self, delta: Delta) {
        self.tidy(delta.moved_back, delta.written);
        for holder in &delta.released {
            self.remove(Name::of(holder));
        }
        if let Some((holder, lease)) = delta.leased {
            self.lease(Name::of(&holder), lease);
        }
        self.delta = Delta::default();
    }
}

/// A name is in a block of its own, behind two counts.
fn size_of_name(holder: &[u8]) -> usize {
    const COUNTS: usize = 16;
    holder.len().next_multiple_of(16).saturating_add(COUNTS)
}

/// Whether a lease can have been taken, or still be there, in a table written at `written` in which others hold so
/// much: a call that took it saw to a limit, and wrote what had not lapsed by then.
fn is_lease(written: Timestamp, lease: Lease, others: Amount) -> bool {
    let Lease { lapse, units } = lease;
    let lives = lapse > written || lapse == Timestamp::MAX;
    lives
        && lapse.since(written) <= Span::MAX_ARGUMENT
        && units != Amount::ZERO
        && others.excess(units, Amount::MAX_ARGUMENT) == Amount::ZERO
}

/// A lease, written out.
fn encode_lease(to: &mut impl Encoder, holder: &[u8], Lease { lapse, units }: Lease) {
    to.bytes(holder);
    to.integer(lapse.micros());
    to.integer(units.millionths());
}

/// A lease, read back.
fn decode_lease(from: &mut impl Decoder) -> Option<(Holder, Lease)> {
    let holder = decode_holder(from)?;
    let lapse = Timestamp::from_micros(from.integer()?)?;
    let units = Amount::from_millionths(from.integer()?)?;
    Some((holder, Lease { lapse, units }))
}

fn decode_holder(from: &mut impl Decoder) -> Option<Holder> {
    from.bytes(MAX_HOLDER).filter(|holder| !holder.is_empty()).map(Arc::from)
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

impl Usage for ConcurrencyUsage {
    const KIND: Kind = Kind::Concurrency;

    fn is_unused(&self) -> bool {
        self.counted.leases == 0
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let span = self.ahead(now);
        self.go_on(span, now);
        self.delta.moved_back = span;
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.counted.leases).unwrap_or(0));
        for (holder, lease) in self.counted() {
            encode_lease(to, holder, lease);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<ConcurrencyUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let lapsed = Cell::new(Lapsed { by: written, ..Lapsed::default() });
        let mut usage = ConcurrencyUsage { written, lapsed, ..ConcurrencyUsage::default() };
        for _ in 0..from.integer()? {
            let (holder, lease) = decode_lease(from)?;
            let last = usage.by_lapse.last_key_value();
            let in_order = last.is_none_or(|(last, _)| (last.0, &last.1) < (usage.shift.mark(lease.lapse), &holder));
            let name = Name::of(&holder);
            let twice = usage.lease_of(name).is_some();
            if !in_order || twice || !is_lease(written, lease, usage.counted.units) {
                return None;
            }
            usage.lease(name, lease);
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
        if let Some((holder, lease)) = leased {
            encode_lease(to, &holder, lease);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn accepts_effect(&self, from: &mut impl Decoder, version: u32) -> bool {
        match from.integer() {
            Some(WHOLE) => ConcurrencyUsage::decode(from, version).is_some(),
            Some(CHANGE) => Delta::decode(from).is_some_and(|delta| self.accepts(&delta)),
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = ConcurrencyUsage::decode(from, version).unwrap_or_default(),
            _ => self.change(Delta::decode(from).unwrap_or_default()),
        }
    }

    fn entries(&self) -> usize {
        self.counted.leases
    }

    fn heap_size(&self) -> usize {
        // An estimate: a node of the tree has room for 11 entries and holds 6 or more, but for the only one; the table
        // has a byte beside each of its places, an eighth of which stay free.
        const NODE: usize = 384;
        const PLACE: usize = size_of::<Held>() + 1;
        let nodes = self.by_lapse.len().div_ceil(6).saturating_mul(NODE);
        let places = self.by_holder.capacity().saturating_mul(8).div_ceil(7).saturating_mul(PLACE);
        nodes.saturating_add(places).saturating_add(self.names)
    }

    fn effort(&self) -> usize {
        self.by_holder.len()
    }

    fn describe(&self) -> Vec<(&'static str, Fact)> {
        const SHOWN: usize = 100;
        let leases = self.counted().take(SHOWN);
        vec![
            ("used", Fact::Amount(self.counted.units)),
            ("written", Fact::Instant(self.written)),
            ("holders", Fact::Count(u64::try_from(self.counted.leases).unwrap_or(u64::MAX))),
            (
                "leases",
                Fact::Leases(leases.map(|(holder, lease)| (Box::from(&**holder), lease.units, lease.lapse)).collect()),
            ),
        ]
    }
}

#[cfg(test)]
mod tests;
