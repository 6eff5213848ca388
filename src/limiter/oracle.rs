//! The contract of every algorithm once more, in exact rational numbers and as plainly as it can be said; random
//! calls run on it and on the limiters side by side, and every decision must be the same.
//!
//! An algorithm here is only how much is used at any time, and what a charge does to it. All the rest follows: what
//! passes is what fits, and a wait is right if what it waits for holds after it and not a microsecond sooner (usage
//! by itself only falls). So nothing here inverts a formula, and nothing is rounded but where the contract says so.

use super::bucket::{Bucket, BucketUsage, Discipline};
use super::calls::{Script, What, amounts, call, lengths, peek, scripts};
use super::fixed_window::FixedWindow;
use super::sliding_window::SlidingWindow;
use super::{Amount, Ask, Decision, Limit, Period, Span, Timestamp, Verdict};
use num_rational::BigRational;
use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use std::fmt::Debug;

/// An exact amount, in millionths.
type Exact = BigRational;

fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// An algorithm with the numbers of a call, as the contract words it. Instants are in microseconds.
trait Contract: Clone + Debug {
    /// What keeps this contract.
    type Limit: Limit<Usage: PartialEq + Debug>;
    /// What a key remembers; to one that does not exist or has recovered, which remembers nothing, [`Key`] sees.
    type Memory: Clone + Debug;

    fn implementation(&self) -> Self::Limit;
    fn limit(&self) -> u64;
    fn used(&self, memory: &Self::Memory, at: i128) -> Exact;
    /// A charge of a key that remembers nothing.
    fn opened(&self, now: i128, cost: Exact) -> Self::Memory;
    /// A charge, or if negative a give-back; what is below 0 counts as 0.
    fn changed(&self, memory: Self::Memory, now: i128, by: Exact) -> Self::Memory;
    /// The instant that is compared with a clock.
    fn stored(memory: &mut Self::Memory) -> &mut i128;

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
        self.used(terms, at) + cost <= exact(terms.limit())
    }

    /// "A clock gone back: stored times move back by the difference."
    fn see(&mut self, now: i128) {
        if let Some(stored) = self.0.as_mut().map(C::stored) {
            *stored = now.min(*stored);
        }
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
        self.see(now);
        let before = self.clone();
        let limit = exact(terms.limit());
        let cost = match ask {
            Ask::UpTo(_) => exact(1_000_000),
            Ask::Take(cost) | Ask::Force(cost) | Ask::Within(cost, _) => exact(cost.millionths()),
            Ask::GiveBack(amount) => -exact(amount.millionths()),
        };
        let patience = if let Ask::Within(_, patience) = ask { i128::from(patience.micros()) } else { 0 };
        let passes = |at| before.fits(terms, &cost, at + patience) && cost <= limit;
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

    fn stored(memory: &mut Drained) -> &mut i128 {
        &mut memory.to
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

    fn stored(memory: &mut Counted) -> &mut i128 {
        &mut memory.instant
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

    fn stored(memory: &mut Windows) -> &mut i128 {
        &mut memory.start
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
    what.ask(&terms.implementation(), usage, now)
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
        let ask = ask(terms, step.what, &usage, now);
        let decision = if step.peeks {
            let told = peek(&limit, &usage, now, ask);
            key.clone().answer(terms, micros, ask, true, &told);
            told
        } else {
            let before = usage.clone();
            let told = call(&limit, &mut usage, now, ask);
            key.answer(terms, micros, ask, false, &told);
            if usage != before {
                expiry = Some((now.plus(told.reset), terms));
            }
            told
        };
        last = Some(decision);
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
    fn fixed_windows_keep_their_contract(terms in vec(FixedTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn sliding_windows_keep_their_contract(terms in vec(SlidingTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }
}
