//! The contract of every algorithm once more, in exact rational numbers and as plainly as it can be said; random
//! calls run on it and on the limiters side by side, and every decision must be the same.
//!
//! An algorithm here is only how much is used at any time, and what a charge does to it. All the rest follows: what
//! passes is what fits, and a wait is right if what it waits for holds after it and not a microsecond sooner (usage
//! by itself only falls). So nothing here inverts a formula, and nothing is rounded but where the contract says so.

use super::bucket::{Bucket, BucketUsage, Discipline};
use super::calls::{Fields, Script, What, amounts, call, lengths, peek, scripts, seen_at, units};
use super::fixed_window::FixedWindow;
use super::laws::{Lawful, encoded};
use super::leases::{Asked, Concurrency, ConcurrencyUsage};
use super::log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::strict_window::StrictWindow;
use super::{Amount, Ask, Decision, Limit, Period, Span, Timestamp, Usage, Verdict};
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::fmt::Debug;

/// An exact amount, in millionths.
type Exact = BigRational;

fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// An algorithm with the numbers of a call, as the contract words it. Instants are in microseconds.
trait Contract: Clone + Debug {
    /// What keeps this contract.
    type Limit: Lawful;
    /// What a key remembers; to one that does not exist or has recovered, which remembers nothing, [`Key`] sees.
    type Memory: Clone + Debug;

    fn implementation(&self) -> Self::Limit;
    fn limit(&self) -> u64;
    fn used(&self, memory: &Self::Memory, at: i128) -> Exact;
    /// A charge of a key that remembers nothing.
    fn opened(&self, now: i128, cost: Exact) -> Self::Memory;
    /// A charge, or if negative a give-back; what is below 0 counts as 0.
    fn changed(&self, memory: Self::Memory, now: i128, by: Exact) -> Self::Memory;
    /// "A clock gone back (last written > now): stored times move back by the difference."
    fn see(memory: &mut Self::Memory, now: i128);

    /// What is admitted.
    fn fits(&self, memory: Option<&Self::Memory>, cost: &Exact, at: i128) -> bool {
        memory.map_or(exact(0), |memory| self.used(memory, at)) + cost <= exact(self.limit())
    }
    /// What comes before a call that would give back if it could, on both sides.
    fn release(&self, _: &mut Option<Self::Memory>, _: &mut <Self::Limit as Limit>::Usage, _: Timestamp) {}

    fn tells_turns(&self) -> bool {
        false
    }
    fn takes_maxwait(&self) -> bool {
        false
    }
}

/// A key: `None` if it does not exist.
struct Key<C: Contract>(Option<C::Memory>);

impl<C: Contract> Clone for Key<C> {
    fn clone(&self) -> Self {
        Key(self.0.clone())
    }
}

impl<C: Contract> Key<C> {
    fn used(&self, terms: &C, at: i128) -> Exact {
        self.0.as_ref().map_or(exact(0), |memory| terms.used(memory, at))
    }

    fn fits(&self, terms: &C, cost: &Exact, at: i128) -> bool {
        terms.fits(self.0.as_ref(), cost, at)
    }

    /// "A never-seen key and a fully recovered key are the same thing"; "a key at 0 is deleted".
    fn change(&mut self, terms: &C, now: i128, by: Exact) {
        if by.is_zero() {
            return;
        }
        self.0 = match self.0.take().filter(|memory| terms.used(memory, now).is_positive()) {
            Some(memory) => Some(terms.changed(memory, now, by)),
            None => by.is_positive().then(|| terms.opened(now, by)),
        };
        self.0 = self.0.take().filter(|memory| terms.used(memory, now).is_positive());
    }

    /// Does what is asked, and panics if `told` is not the answer. A peek is told what the call would be, and what
    /// stands.
    fn answer(&mut self, terms: &C, now: i128, ask: Ask, peeks: bool, told: &Decision) {
        if let Some(memory) = &mut self.0 {
            C::see(memory, now);
        }
        let before = self.clone();
        let limit = exact(terms.limit());
        let cost = match ask {
            Ask::UpTo(_) => exact(1_000_000),
            Ask::Take(cost) | Ask::Force(cost) | Ask::Within(cost, _) => exact(cost.millionths()),
            Ask::GiveBack(amount) => -exact(amount.millionths()),
        };
        let patience = if let Ask::Within(_, patience) = ask { i128::from(patience.micros()) } else { 0 };
        let passes = |at| before.fits(terms, &cost, at + patience);
        let allowed = passes(now) || matches!(ask, Ask::GiveBack(_));

        let unit = exact(1_000_000);
        let charge = match ask {
            Ask::Force(_) => cost.clone(),
            _ if !allowed => exact(0),
            Ask::UpTo(most) => {
                (((&limit - before.used(terms, now)) / &unit).floor() * unit).min(exact(most.millionths()))
            }
            _ => cost.clone(),
        };
        let granted = matches!(ask, Ask::UpTo(_)).then(|| charge.clone());
        self.change(terms, now, charge);

        match told.verdict {
            Verdict::Allowed(wait) => {
                assert!(allowed, "{cost} does not fit");
                let may_act = |at| match ask {
                    Ask::GiveBack(_) => true,
                    _ if terms.tells_turns() => before.used(terms, at).is_zero(),
                    _ => before.fits(terms, &cost, at),
                };
                assert_first(now, wait, may_act);
            }
            Verdict::After(wait) => {
                assert!(!allowed, "{cost} fits");
                match ask {
                    Ask::Force(_) => assert_first(now, wait, |at| self.fits(terms, &exact(0), at)),
                    // The wait less MAXWAIT, even where it is saturated.
                    _ => assert_first(now + patience, wait, |at| passes(at - patience)),
                }
            }
            Verdict::Never => assert!(cost > limit && !matches!(ask, Ask::Force(_)), "{cost} can pass"),
        }
        if peeks {
            *self = before;
        }
        let remaining = (&limit - self.used(terms, now)).max(exact(0)).floor();
        assert_eq!(exact(told.limit.millionths()), limit);
        assert_eq!(exact(told.remaining.millionths()), remaining);
        assert_eq!(told.granted.map(|granted| exact(granted.millionths())), granted);
        assert_first(now, told.reset, |at| self.used(terms, at).is_zero());
    }
}

/// Panics unless `holds` begins to hold `span` after `now`. Of what lies past the last instant nothing is told.
fn assert_first(now: i128, span: Span, holds: impl Fn(i128) -> bool) {
    let end = i128::from(Timestamp::MAX.micros());
    let then = (now + i128::from(span.micros())).min(end);
    assert!(then == end || holds(then), "{span:?} is too short");
    assert!(then == now || !holds(then - 1), "{span:?} is too long");
}

/// "Usage saturates at 2^63-1 millionths", "count by count".
fn saturated(used: Exact) -> Exact {
    used.clamp(exact(0), exact((1 << 63) - 1))
}

#[derive(Clone, Debug)]
struct BucketTerms {
    capacity: u64,
    refill: u64,
    period: u64,
    queue: bool,
    /// What a charge remembers. Ideally: what is used at that very moment, a fraction. As the contract has it: what
    /// was used at an earlier instant, whole, since that is what decides how a clock gone back and a changed rate are
    /// taken. As long as neither happens, both must come to the same.
    ideal: bool,
}

#[derive(Clone, Debug)]
struct Drained {
    used: Exact,
    to: i128,
}

impl BucketTerms {
    fn any(ideal: bool) -> impl Strategy<Value = BucketTerms> {
        (amounts(), amounts(), lengths(), any::<bool>())
            .prop_map(move |(capacity, refill, period, queue)| BucketTerms { capacity, refill, period, queue, ideal })
            .prop_filter("recovers within 36500d", |terms| {
                let longest = exact(36500 * 86_400_000_000);
                terms.refill > 0 && exact(terms.capacity) <= longest * terms.rate()
            })
    }

    fn rate(&self) -> Exact {
        exact(self.refill) / exact(self.period)
    }

    /// The fewest microseconds in which a whole number of millionths drains: the rate's denominator in lowest terms.
    fn step(&self) -> i128 {
        i128::try_from(self.rate().denom()).unwrap()
    }
}

impl Contract for BucketTerms {
    type Limit = Bucket;
    type Memory = Drained;

    fn implementation(&self) -> Bucket {
        let discipline = if self.queue { Discipline::Queue } else { Discipline::Burst };
        let (capacity, refill) = (Amount::saturating(self.capacity), Amount::saturating(self.refill));
        Bucket::new(capacity, refill, period(self.period), discipline).unwrap()
    }

    fn limit(&self) -> u64 {
        self.capacity
    }

    fn used(&self, memory: &Drained, at: i128) -> Exact {
        let drained = Exact::from_integer((at - memory.to).into()) * self.rate();
        (&memory.used - drained).max(exact(0))
    }

    fn opened(&self, now: i128, cost: Exact) -> Drained {
        Drained { used: cost, to: now }
    }

    fn changed(&self, memory: Drained, now: i128, by: Exact) -> Drained {
        let not_a_step = if self.ideal { 0 } else { (now - memory.to) % self.step() };
        let to = now - not_a_step;
        Drained { used: saturated(self.used(&memory, to) + by), to }
    }

    fn see(memory: &mut Drained, now: i128) {
        memory.to = memory.to.min(now);
    }

    fn tells_turns(&self) -> bool {
        self.queue
    }

    fn takes_maxwait(&self) -> bool {
        !self.queue
    }
}

#[derive(Clone, Debug)]
struct FixedTerms {
    limit: u64,
    window: u64,
    aligned: bool,
}

#[derive(Clone, Debug)]
struct Counted {
    used: Exact,
    instant: i128,
    aligned: bool,
}

impl FixedTerms {
    fn any() -> impl Strategy<Value = FixedTerms> {
        (amounts(), lengths(), any::<bool>()).prop_map(|(limit, window, aligned)| FixedTerms { limit, window, aligned })
    }
}

impl Contract for FixedTerms {
    type Limit = FixedWindow;
    type Memory = Counted;

    fn implementation(&self) -> FixedWindow {
        FixedWindow::new(Amount::saturating(self.limit), period(self.window), self.aligned)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Counted, at: i128) -> Exact {
        let window = i128::from(self.window);
        let counts = if self.aligned && memory.aligned {
            memory.instant / window == at / window
        } else {
            at < memory.instant + window
        };
        if counts { memory.used.clone() } else { exact(0) }
    }

    fn opened(&self, now: i128, cost: Exact) -> Counted {
        Counted { used: cost, instant: now, aligned: self.aligned }
    }

    fn changed(&self, memory: Counted, now: i128, by: Exact) -> Counted {
        let instant = if self.aligned { now } else { memory.instant };
        Counted { used: saturated(memory.used + by), instant, aligned: self.aligned }
    }

    fn see(memory: &mut Counted, now: i128) {
        memory.instant = memory.instant.min(now);
    }
}

#[derive(Clone, Debug)]
struct SlidingTerms {
    limit: u64,
    window: u64,
}

#[derive(Clone, Debug)]
struct Windows {
    start: i128,
    window: u64,
    previous: Exact,
    current: Exact,
}

impl SlidingTerms {
    fn any() -> impl Strategy<Value = SlidingTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| SlidingTerms { limit, window })
    }
}

impl Windows {
    /// The same with the window that `at` lies in as the current one.
    fn at(&self, at: i128) -> Windows {
        let mut windows = self.clone();
        while windows.start + i128::from(self.window) <= at
            && !(windows.previous.is_zero() && windows.current.is_zero())
        {
            windows.start += i128::from(self.window);
            windows.previous = std::mem::replace(&mut windows.current, exact(0));
        }
        windows
    }

    /// How much of the previous window a trailing one still overlaps.
    fn overlap(&self, at: i128) -> Exact {
        let window = i128::from(self.window);
        Exact::new((window - (at - self.start)).into(), window.into())
    }
}

impl Contract for SlidingTerms {
    type Limit = SlidingWindow;
    type Memory = Windows;

    fn implementation(&self) -> SlidingWindow {
        SlidingWindow::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Windows, at: i128) -> Exact {
        let windows = memory.at(at);
        if windows.previous.is_zero() {
            windows.current
        } else {
            &windows.previous * windows.overlap(at) + &windows.current
        }
    }

    fn opened(&self, now: i128, cost: Exact) -> Windows {
        Windows { start: now, window: self.window, previous: exact(0), current: cost }
    }

    fn changed(&self, memory: Windows, now: i128, by: Exact) -> Windows {
        let mut windows = memory.at(now);
        if windows.window != self.window {
            // Kept in whole millionths; the contract does not say which way, so: against the caller.
            windows = self.opened(now, saturated(self.used(&memory, now).ceil()));
        }
        let rest = (-&windows.current - &by).max(exact(0));
        windows.current = saturated(windows.current + by);
        windows.previous = saturated(&windows.previous - (rest / windows.overlap(now)).floor());
        windows
    }

    fn see(memory: &mut Windows, now: i128) {
        memory.start = memory.start.min(now);
    }
}

#[derive(Clone, Debug)]
struct StrictTerms {
    limit: u64,
    window: u64,
}

/// What was charged, the oldest first: when, and how much.
type Charges = Vec<(i128, Exact)>;

fn sum(charges: &Charges) -> Exact {
    charges.iter().map(|(_, cost)| cost).sum()
}

/// "The oldest first."
fn take_off(charges: &mut Charges, mut amount: Exact) {
    for (_, cost) in charges.iter_mut() {
        let taken = cost.clone().min(amount.clone());
        *cost -= &taken;
        amount -= taken;
    }
    charges.retain(|(_, cost)| cost.is_positive());
}

/// What each slot was charged, with its last microsecond for a time: slots are counted whole.
#[derive(Clone, Debug)]
struct Slots {
    window: i128,
    written: i128,
    charges: Charges,
}

impl StrictTerms {
    fn any() -> impl Strategy<Value = StrictTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| StrictTerms { limit, window })
    }
}

impl Slots {
    fn add(&mut self, at: i128, cost: Exact) {
        let width = (self.window + 59) / 60;
        let end = at / width * width + width - 1;
        match self.charges.last_mut() {
            Some((newest, count)) if *newest == end => *count = saturated(&*count + cost),
            _ => self.charges.push((end, cost)),
        }
    }
}

impl Contract for StrictTerms {
    type Limit = StrictWindow;
    type Memory = Slots;

    fn implementation(&self) -> StrictWindow {
        StrictWindow::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Slots, at: i128) -> Exact {
        memory.charges.iter().filter(|(end, _)| at < end + memory.window).map(|(_, cost)| cost).sum()
    }

    fn opened(&self, now: i128, cost: Exact) -> Slots {
        let mut slots = Slots { window: self.window.into(), written: now, charges: Vec::new() };
        slots.add(now, cost);
        slots
    }

    fn changed(&self, mut memory: Slots, now: i128, by: Exact) -> Slots {
        if memory.window != i128::from(self.window) {
            memory = self.opened(now, saturated(self.used(&memory, now)));
        }
        memory.charges.retain(|(end, _)| now < end + memory.window);
        memory.written = now;
        if by.is_positive() {
            memory.add(now, by);
        } else {
            take_off(&mut memory.charges, -by);
        }
        memory
    }

    /// Where in its slot a charge was made is forgotten: it is taken for its last microsecond, but for now at most.
    fn see(memory: &mut Slots, now: i128) {
        let back = memory.written - now;
        if back > 0 {
            memory.written = now;
            for (end, cost) in std::mem::take(&mut memory.charges) {
                memory.add((end - back).clamp(0, now), cost);
            }
        }
    }
}

#[derive(Clone, Debug)]
struct LogTerms {
    limit: u64,
    window: u64,
}

impl LogTerms {
    fn any() -> impl Strategy<Value = LogTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| LogTerms { limit, window })
    }

    fn counts(&self, charged: i128, at: i128) -> bool {
        charged > at - i128::from(self.window)
    }
}

impl Contract for LogTerms {
    type Limit = SlidingLog;
    type Memory = Charges;

    fn implementation(&self) -> SlidingLog {
        SlidingLog::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Charges, at: i128) -> Exact {
        memory.iter().filter(|(charged, _)| self.counts(*charged, at)).map(|(_, cost)| cost).sum()
    }

    fn opened(&self, now: i128, cost: Exact) -> Charges {
        vec![(now, cost)]
    }

    fn changed(&self, mut memory: Charges, now: i128, by: Exact) -> Charges {
        memory.retain(|(charged, _)| self.counts(*charged, now));
        if by.is_positive() {
            let room = saturated(exact(u64::MAX)) - sum(&memory);
            memory.push((now, by.min(room)));
            memory.retain(|(_, cost)| cost.is_positive());
        } else {
            take_off(&mut memory, -by);
        }
        memory
    }

    fn see(memory: &mut Charges, now: i128) {
        let back = memory.last().map_or(0, |(newest, _)| newest - now).max(0);
        for (charged, _) in memory {
            *charged = (*charged - back).max(0);
        }
    }
}

#[derive(Clone, Debug)]
struct LeaseTerms {
    limit: u64,
    ttl: u64,
    holder: &'static [u8],
}

#[derive(Clone, Debug)]
struct Lease {
    holder: &'static [u8],
    expires_at: i128,
    units: Exact,
}

#[derive(Clone, Debug)]
struct Leases {
    written: i128,
    leases: Vec<Lease>,
}

impl LeaseTerms {
    /// What several holders ask, most of them under the same limit.
    fn several() -> impl Strategy<Value = Vec<LeaseTerms>> {
        let holders = select(vec![&b"a"[..], b"b", b"c", b"d"]);
        (amounts(), vec((select(vec![1, 1, 1, 2, 0]), lengths(), holders), 1..=6)).prop_map(|(most, holders)| {
            let terms = |(part, ttl, holder)| LeaseTerms { limit: most.checked_div(part).unwrap_or(0), ttl, holder };
            holders.into_iter().map(terms).collect()
        })
    }
}

impl Leases {
    fn units(&self, at: i128, of: impl Fn(&[u8]) -> bool) -> Exact {
        self.leases.iter().filter(|lease| at < lease.expires_at && of(lease.holder)).map(|lease| &lease.units).sum()
    }
}

impl Contract for LeaseTerms {
    type Limit = Asked<'static>;
    type Memory = Leases;

    fn implementation(&self) -> Asked<'static> {
        Concurrency::new(Amount::saturating(self.limit), period(self.ttl)).asked_by(self.holder)
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Leases, at: i128) -> Exact {
        memory.units(at, |_| true)
    }

    /// "With the same or a smaller cost it always passes; with a larger one the others' units and it must fit."
    fn fits(&self, memory: Option<&Leases>, cost: &Exact, at: i128) -> bool {
        let units = |of: &dyn Fn(&[u8]) -> bool| memory.map_or(exact(0), |memory| memory.units(at, of));
        let (own, others) = (units(&|holder| holder == self.holder), units(&|holder| holder != self.holder));
        (own.is_positive() && *cost <= own) || others + cost <= exact(self.limit)
    }

    fn opened(&self, now: i128, cost: Exact) -> Leases {
        let lease = Lease { holder: self.holder, expires_at: now + i128::from(self.ttl), units: cost };
        Leases { written: now, leases: vec![lease] }
    }

    fn changed(&self, memory: Leases, now: i128, by: Exact) -> Leases {
        let mut leases = self.opened(now, by);
        leases.leases.extend(memory.leases.into_iter().filter(|lease| lease.holder != self.holder));
        leases.leases.retain(|lease| now < lease.expires_at);
        leases
    }

    fn see(memory: &mut Leases, now: i128) {
        let back = (memory.written - now).max(0);
        memory.written -= back;
        memory.leases.iter_mut().for_each(|lease| lease.expires_at -= back);
    }

    /// Its own lease is released, by name twice, and another that may be there.
    fn release(&self, memory: &mut Option<Leases>, usage: &mut ConcurrencyUsage, at: Timestamp) {
        let names = [self.holder, b"c", self.holder];
        *usage = seen_at(usage, at);
        let released = usage.release(&names, at);
        usage.encode_effect(&mut Fields::default());
        if usage.is_unused() {
            *usage = ConcurrencyUsage::default();
        }

        let now = at.micros().into();
        let Some(leases) = memory else { return assert_eq!(released, 0) };
        Self::see(leases, now);
        let live = |lease: &Lease| now < lease.expires_at;
        assert_eq!(released, leases.leases.iter().filter(|lease| live(lease) && names.contains(&lease.holder)).count());
        if released > 0 {
            leases.leases.retain(|lease| live(lease) && !names.contains(&lease.holder));
            leases.written = now;
        }
        *memory = memory.take().filter(|leases| !leases.leases.is_empty());
    }
}

fn period(micros: u64) -> Period {
    Period::new(Span::from_micros(micros)).unwrap()
}

/// What a call asks of a key that exists; MAXWAIT only where there is such an option.
fn ask<C: Contract>(terms: &C, what: What, usage: &<C::Limit as Limit>::Usage, now: Timestamp) -> Ask {
    let what = match what {
        What::Within(much, _) if !terms.takes_maxwait() => What::Take(much),
        what => what,
    };
    C::Limit::asks(what.ask(&terms.implementation(), usage, now))
}

/// Runs calls on both. Each brings one of the `terms`; a key may vanish as soon as it may expire. `clock` is given
/// where a script wants to go and where it was.
fn side_by_side<C: Contract>(terms: &[C], (begin, calls): Script, clock: fn(Timestamp, Timestamp) -> Timestamp) {
    let mut key = Key::<C>(None);
    let mut usage = <C::Limit as Limit>::Usage::default();
    let (mut now, mut last) = (begin, None);
    let mut expiry: Option<(Timestamp, &C)> = None;
    for step in calls {
        now = clock(step.when.after(now, last.as_ref()), now);
        let micros = i128::from(now.micros());
        if let Some((_, charged_under)) = expiry.filter(|(expires, _)| step.key_may_expire && *expires <= now) {
            assert!(key.used(charged_under, micros).is_zero(), "expired early");
            (key, usage, expiry) = (Key(None), Default::default(), None);
        }
        let terms = step.limit.get(terms);
        let limit = terms.implementation();
        let before = encoded(&usage);
        if matches!(step.what, What::GiveBack(_)) && !step.peeks {
            terms.release(&mut key.0, &mut usage, now);
        }
        let ask = ask(terms, step.what, &usage, now);
        let told = if step.peeks {
            let told = peek(&limit, &usage, now, ask);
            key.clone().answer(terms, micros, ask, true, &told);
            told
        } else {
            let told = call(&limit, &mut usage, now, ask);
            key.answer(terms, micros, ask, false, &told);
            told
        };
        if encoded(&usage) != before {
            expiry = Some((now.plus(told.reset), terms));
        }
        last = Some(told);
    }
}

/// Traffic at the edges of slots and windows: each call so many sixtieths of a window after the last, and microseconds.
fn traffic() -> impl Strategy<Value = Vec<(u64, i64, Ask)>> {
    let later = select(vec![0, 0, 0, 1, 1, 2, 7, 30, 58, 59, 60, 61]);
    let ask = prop_oneof![
        3 => (1..=20u64).prop_map(|most| Ask::UpTo(units(most))),
        2 => (1..=5u64).prop_map(|cost| Ask::Take(units(cost))),
        2 => (1..=8u64).prop_map(|amount| Ask::GiveBack(units(amount))),
    ];
    vec((later, -1..=1i64, ask), 1..=60)
}

/// Panics if ever a trailing window of a new key holds more than the limit, net of what is given back. It is fullest
/// when something has just come; and of the usage that counts, what is given back is taken to be the oldest, as else
/// it would lower a later window more.
fn never_more_in_any_trailing_window<C: Contract>(terms: &C, window: u64, begin: u64, traffic: Vec<(u64, i64, Ask)>) {
    let limit = terms.implementation();
    let (mut usage, mut now, mut net) = (<C::Limit as Limit>::Usage::default(), begin, Charges::new());
    for (sixtieths, beside, ask) in traffic {
        now = (now + window * sixtieths / 60).saturating_add_signed(beside).max(now);
        let told = call(&limit, &mut usage, Timestamp::from_micros(now).unwrap(), ask);
        let at = i128::from(now);
        net.retain(|(charged, _)| !terms.used(&terms.opened(*charged, exact(1)), at).is_zero());
        match (ask, told.granted) {
            (Ask::GiveBack(amount), _) => take_off(&mut net, exact(amount.millionths())),
            (_, Some(granted)) => net.push((at, exact(granted.millionths()))),
            (Ask::Take(cost), _) if told.verdict.allowed() => net.push((at, exact(cost.millionths()))),
            _ => {}
        }
        let trailing: Exact =
            net.iter().filter(|(charged, _)| *charged > at - i128::from(window)).map(|(_, cost)| cost).sum();
        assert!(trailing <= exact(terms.limit()), "{trailing} at {at}");
    }
}

proptest! {
    #[test]
    fn buckets_keep_their_contract(terms in vec(BucketTerms::any(false), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn buckets_drain_continuously(terms in BucketTerms::any(true), script in scripts()) {
        side_by_side(&[terms], script, Timestamp::max);
    }

    #[test]
    fn fixed_windows_keep_their_contract(terms in vec(FixedTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn sliding_windows_keep_their_contract(terms in vec(SlidingTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn strict_windows_keep_their_contract(terms in vec(StrictTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn logs_keep_their_contract(terms in vec(LogTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn leases_keep_their_contract(terms in LeaseTerms::several(), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }
}

// What takes its time, or has fewer ways to go wrong.
proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_rate_prices_at_most_one_step_anew(
        old in BucketTerms::any(false), new in BucketTerms::any(false), (begin, calls) in scripts(),
    ) {
        let (ideal, limit) = (BucketTerms { ideal: true, ..old.clone() }, old.implementation());
        let (mut contract, mut ideally) = (Key(None), Key(None));
        let (mut usage, mut now, mut last) = (BucketUsage::default(), begin, None);
        for step in calls {
            now = step.when.after(now, last.as_ref()).max(now);
            let ask = ask(&old, step.what, &usage, now);
            let told = call(&limit, &mut usage, now, ask);
            let micros = i128::from(now.micros());
            contract.answer(&old, micros, ask, false, &told);
            ideally.answer(&ideal, micros, ask, false, &told);
            last = Some(told);

            let step = Exact::from_integer(old.step().into());
            let later = i128::from(told.reset.micros() / 3);
            for at in [micros, micros + later] {
                let difference = contract.used(&new, at) - ideally.used(&new, at);
                prop_assert!(difference.abs() <= &step * (old.rate() - new.rate()).abs());
            }
        }
    }

    #[test]
    fn strict_windows_never_hold_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = StrictTerms { limit: units(limit).millionths(), window };
        never_more_in_any_trailing_window(&terms, window, begin, traffic);
    }

    #[test]
    fn logs_never_hold_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = LogTerms { limit: units(limit).millionths(), window };
        never_more_in_any_trailing_window(&terms, window, begin, traffic);
    }
}
