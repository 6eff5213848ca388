//! Settlements compared with a replay of all calls in exact fractions.

use super::*;
use crate::algorithm::fixed_window::calendar::Offset;

/// Usage by definition. Changes receive the fields of the real usage before and after them, because windows are those
/// of the real usage.
trait Naive: Debug + Default {
    type Limit: Limit;
    /// `true`: each charge has a place of its own.
    const PLACES: bool;

    /// Returns the length of the windows of the counts, if a charge with another length starts new counts.
    fn window(_before: &[i128]) -> Option<i128> {
        None
    }

    fn limit(terms: CommonOptions) -> Self::Limit;
    fn move_back(&mut self, now: i128, before: &[i128], after: &[i128]);
    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], after: &[i128]);
    /// Returns `true` if the real usage may be saturated.
    fn is_saturated(real: &[i128]) -> bool {
        real.contains(&MAX)
    }

    /// Returns each count, by definition and in the real usage.
    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)>;
}

fn exact(amount: i128) -> BigRational {
    BigRational::from_integer(amount.into())
}

#[derive(Debug)]
struct NaiveBucket {
    used: BigRational,
    to: i128,
}

impl Default for NaiveBucket {
    fn default() -> Self {
        NaiveBucket { used: exact(0), to: 0 }
    }
}

impl Naive for NaiveBucket {
    type Limit = Bucket;
    const PLACES: bool = false;

    fn limit(CommonOptions { amount, length, .. }: CommonOptions) -> Bucket {
        let amount = millionths(amount);
        Bucket::new(amount, amount, Period::new(Span::from_micros(length)).unwrap(), Discipline::Burst).unwrap()
    }

    fn move_back(&mut self, now: i128, _: &[i128], _: &[i128]) {
        self.to = self.to.min(now);
    }

    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, _: &[i128], after: &[i128]) {
        let rate = BigRational::new(terms.amount.into(), terms.length.into());
        // Up to where the real one has taken it off; the rest is left to the next.
        let to = if after[0] == 0 { now } else { after[1] };
        let not_below = exact(now - to) * &rate;
        let used = (&self.used - exact(to - self.to) * &rate).max(not_below.clone());
        let used = (used + exact(by)).max(if by < 0 { not_below } else { exact(0) });
        *self = NaiveBucket { used: used.min(exact(MAX)), to };
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        vec![(self.used.clone(), exact(real[0]))]
    }
}

#[derive(Debug, Default)]
struct NaiveFixed(i128);

impl Naive for NaiveFixed {
    type Limit = FixedWindow;
    const PLACES: bool = false;

    fn limit(CommonOptions { amount, length, aligned }: CommonOptions) -> FixedWindow {
        let (limit, window) = (millionths(amount), Period::new(Span::from_micros(length)).unwrap());
        if aligned { FixedWindow::aligned(limit, window, Offset::UTC) } else { FixedWindow::new(limit, window) }
    }

    fn move_back(&mut self, _: i128, _: &[i128], _: &[i128]) {}

    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], _: &[i128]) {
        let [_, instant, aligned] = before.try_into().unwrap();
        let length = i128::from(terms.length);
        let start = if terms.aligned && aligned == 1 { instant / length * length } else { instant };
        let counts = if now < start + length { self.0 } else { 0 };
        self.0 = (counts + by).clamp(0, MAX);
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        vec![(exact(self.0), exact(real[0]))]
    }
}

#[derive(Debug, Default)]
struct NaiveSliding {
    previous: i128,
    current: i128,
}

impl Naive for NaiveSliding {
    type Limit = SlidingWindow;
    const PLACES: bool = true;

    fn window(before: &[i128]) -> Option<i128> {
        Some(before[1])
    }

    fn limit(CommonOptions { amount, length, .. }: CommonOptions) -> SlidingWindow {
        SlidingWindow::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap())
    }

    fn move_back(&mut self, _: i128, _: &[i128], _: &[i128]) {}

    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], after: &[i128]) {
        let [start, window, ..] = before.try_into().unwrap_or([0; 4]);
        if window > 0 {
            let windows = (now - start) / window;
            if windows > 0 {
                self.previous = if windows == 1 { self.current } else { 0 };
                self.current = 0;
            }
            if window != i128::from(terms.length) {
                let overlap = window - (now - start) % window;
                let present = exact(self.previous) * exact(overlap) / exact(window) + exact(self.current);
                (self.previous, self.current) = (0, i128::try_from(present.ceil().to_integer()).unwrap().min(MAX));
            }
        }
        let rest = (-by - self.current).max(0);
        self.current = (self.current + by).clamp(0, MAX);
        let [start, window, ..] = after.try_into().unwrap_or([0; 4]);
        let fallen = (exact(rest) * exact(window) / exact((window - (now - start)).max(1))).floor().to_integer();
        self.previous = (self.previous - i128::try_from(fallen).unwrap_or(MAX)).max(0);
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        vec![(exact(self.previous), exact(real[2])), (exact(self.current), exact(real[3]))]
    }
}

fn place_by_place(naive: &Places, real: &Places) -> Vec<(BigRational, BigRational)> {
    let places: std::collections::BTreeSet<_> = naive.keys().chain(real.keys()).collect();
    let count = |counts: &Places, place| exact(counts.get(place).copied().unwrap_or(0));
    places.into_iter().map(|place| (count(naive, place), count(real, place))).collect()
}

#[derive(Debug, Default)]
struct NaiveStrict(Places);

impl NaiveStrict {
    fn width(window: i128) -> i128 {
        ((window + 59) / 60).max(1)
    }

    fn end(slot: i128, window: i128) -> i128 {
        (slot + 1) * NaiveStrict::width(window) - 1
    }
}

impl Naive for NaiveStrict {
    type Limit = StrictWindow;
    const PLACES: bool = true;

    fn window(before: &[i128]) -> Option<i128> {
        Some(before[0])
    }

    fn limit(CommonOptions { amount, length, .. }: CommonOptions) -> StrictWindow {
        StrictWindow::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap())
    }

    fn move_back(&mut self, now: i128, before: &[i128], _: &[i128]) {
        let (window, span) = (before[0], before[1] - now);
        let width = NaiveStrict::width(window);
        for (slot, count) in std::mem::take(&mut self.0) {
            let slot = ((NaiveStrict::end(slot, window) - span).max(0) / width).min(now / width);
            if now < NaiveStrict::end(slot, window) + window {
                let moved = self.0.entry(slot).or_default();
                *moved = (*moved + count).min(MAX);
            }
        }
    }

    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], _: &[i128]) {
        let (was, window) = (before[0], i128::from(terms.length));
        self.0.retain(|slot, _| now < NaiveStrict::end(*slot, was) + was);
        if was != window {
            let present = self.0.values().sum::<i128>().min(MAX);
            self.0 = Places::from([(now / NaiveStrict::width(window), present)]);
        }
        if by > 0 {
            let count = self.0.entry(now / NaiveStrict::width(window)).or_default();
            *count = (*count + by).min(MAX);
        } else {
            give_back_oldest_first(&mut self.0, -by);
        }
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        let newest = real[1] / NaiveStrict::width(real[0]);
        place_by_place(&self.0, &real[3..].chunks(2).map(|pair| (newest - pair[0], pair[1])).collect())
    }
}

#[derive(Debug, Default)]
struct NaiveLog(Places);

impl Naive for NaiveLog {
    type Limit = SlidingLog;
    const PLACES: bool = true;

    fn is_saturated(real: &[i128]) -> bool {
        real[1..].chunks(2).map(|pair| pair[1]).sum::<i128>() == MAX
    }

    fn limit(CommonOptions { amount, length, .. }: CommonOptions) -> SlidingLog {
        SlidingLog::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap())
    }

    fn move_back(&mut self, now: i128, before: &[i128], _: &[i128]) {
        let span = before[before.len() - 2] - now;
        for (at, cost) in std::mem::take(&mut self.0) {
            *self.0.entry((at - span).max(0)).or_default() += cost;
        }
    }

    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], _: &[i128]) {
        let counts = |at: &i128| now < at + i128::from(terms.length);
        self.0.retain(|at, _| counts(at));
        if by > 0 {
            // The part of a charge that finds no room is dropped for good. The usage has less room than this model if
            // an earlier settlement could not be propagated in full.
            let in_use = before[1..].chunks(2).filter(|pair| counts(&pair[0])).map(|pair| pair[1]).sum::<i128>();
            *self.0.entry(now).or_default() += by.min(MAX - in_use);
        } else {
            give_back_oldest_first(&mut self.0, -by);
        }
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        place_by_place(&self.0, &real[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

/// Event in the history of a usage, with the fields before and after it.
#[derive(Clone, Debug)]
enum Event {
    MovedBack { now: i128, before: Vec<i128>, after: Vec<i128> },
    Changed { terms: CommonOptions, now: i128, by: i128, id: Option<usize>, before: Vec<i128>, after: Vec<i128> },
}

fn replayed<N: Naive>(history: &[Event], costs: &[i128]) -> N {
    let mut naive = N::default();
    for event in history {
        match event {
            Event::MovedBack { now, before, after } => naive.move_back(*now, before, after),
            Event::Changed { terms, now, by, id, before, after } => {
                naive.change(*terms, *now, id.map_or(*by, |id| costs[id]), before, after);
            }
        }
    }
    naive
}

/// Asserts that the usage is never less than in the replay, and equal to it where that is guaranteed.
fn settles_as_a_replay_does<N: Naive>((begin, terms, steps): (u64, Vec<CommonOptions>, Vec<Step>)) {
    let mut key = Key::<<N::Limit as Limit>::Usage>::default();
    let mut replica = key.clone();
    let (mut now, mut history) = (begin, Vec::new());
    // The actual cost and the charged amount of each id.
    let (mut costs, mut charged): (Vec<i128>, Vec<u64>) = Default::default();
    let mut equal = true;
    // Number of ids whose effect is unknown: "what saturates cannot be settled".
    let mut saturated = 0;
    for step in steps {
        let terms = *step.terms.get(&terms);
        let limit = N::limit(terms);
        let (component, micros) = step.later;
        let later = i128::from(terms.length) * i128::from(component) / 100 + i128::from(micros);
        let then = (i128::from(now) + if component == 0 { 0 } else { later }).clamp(0, i128::from(u64::MAX >> 12));
        now = u64::try_from(then).unwrap();
        let at = us(now);
        // It moves with the clock before anything is done to it.
        let mut seen = key.usage.clone();
        if seen.is_after(at) {
            seen.move_back(at);
            history.push(Event::MovedBack { now: then, before: key.fields(), after: integers(&seen) });
            // Places that would be before the epoch are lost.
            equal &= now > 1_000_000_000_000_000 || !N::PLACES;
        }
        let before = integers(&seen);
        let amount = |component: u64| {
            let amount = u128::from(terms.amount) * u128::from(component) / 100;
            millionths(u64::try_from(amount).unwrap().clamp(1, Amount::MAX_ARGUMENT.millionths()))
        };
        let name = |id: usize| id.to_be_bytes();
        let (elsewhere, kept) = (key.decoded(), key.component);
        let (sent, by, id) = match step.what {
            What::Charge(component, ttl) => {
                let (cost, id) = (amount(component), costs.len());
                let by = i128::from(cost.millionths());
                let name = name(id);
                let length = u128::from(terms.length);
                let ttl = ttl.map(|component| {
                    Span::from_micros(u64::try_from(length * u128::from(component) / 100).unwrap() + 1)
                });
                let ttl = ttl.map(|ttl| ttl.min(Span::MAX_ARGUMENT));
                if ttl.is_some() {
                    costs.push(by);
                    charged.push(cost.millionths());
                }
                let sent = key.make(&limit, at, Call::Charge(cost, ttl.map(|ttl| (&name[..], ttl))));
                (sent, by, ttl.map(|_| id))
            }
            What::Refund(component) => {
                let amount = amount(component);
                equal &= !N::PLACES || seen.is_unused();
                let by = if seen.is_unused() { 0 } else { -i128::from(amount.millionths()) };
                (key.make(&limit, at, Call::Refund(amount)), by, None)
            }
            What::Settle(which, component) => {
                let id = if costs.is_empty() { 0 } else { which.index(costs.len()) };
                let cost = charged.get(id).copied().unwrap_or(0);
                let settled = u64::try_from(u128::from(cost) * u128::from(component) / 100).unwrap();
                // By the clock before it moved backwards.
                let known = key.ids.find(&name(id), at.max(key.written)).filter(|call| !call.settled);
                if id >= saturated && known.is_some_and(|call| call.charges[0].component == key.component) {
                    costs[id] = settled.into();
                }
                (key.make(&limit, at, Call::Settle(&name(id), millionths(cost - settled))), 0, None)
            }
        };
        let after = key.fields();
        if by != 0 {
            let same = N::window(&before).is_none_or(|window| window == i128::from(terms.length));
            equal &= seen.is_unused() || same;
            history.push(Event::Changed { terms, now: then, by, id, before, after: after.clone() });
        }
        if N::is_saturated(&after) {
            saturated = costs.len();
        }
        equal &= !after.contains(&MAX) && (!N::PLACES || after.iter().sum::<i128>() < MAX);

        let naive: N = replayed(&history, &costs);
        for (naive, real) in naive.counts(&after) {
            assert!(naive <= real, "usage below the definition: {naive} by definition, {real} in fact");
            // A bucket may be off by less than a millionth.
            assert!(!equal || &real - &naive < exact(1), "{naive} by definition, {real} in fact");
        }
        key.tidy();
        for mut elsewhere in [elsewhere, std::mem::take(&mut replica)] {
            elsewhere.follow(&sent);
            assert_eq!(elsewhere.encoded(), key.encoded());
            replica = elsewhere;
        }
        if key.component != kept {
            // The charges of a removed component cannot be settled.
            (history, equal) = (Vec::new(), true);
        }
    }
}

/// Compares each kind with its replay, with and without refunds, under one limit or several.
macro_rules! settles {
    ($($name:ident: $naive:ty,)+) => {
        proptest! {
            // Each case has three histories.
            #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 3, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(
                    often in histories(false, 1), changing in histories(false, 3), by_hand in histories(true, 3),
                ) {
                    settles_as_a_replay_does::<$naive>(often);
                    settles_as_a_replay_does::<$naive>(changing);
                    settles_as_a_replay_does::<$naive>(by_hand);
                }
            )+
        }
    };
}

settles! {
    a_bucket_settles_as_a_replay_does: NaiveBucket,
    a_fixed_window_settles_as_a_replay_does: NaiveFixed,
    a_sliding_window_settles_as_a_replay_does: NaiveSliding,
    a_strict_window_settles_as_a_replay_does: NaiveStrict,
    a_log_settles_as_a_replay_does: NaiveLog,
}
