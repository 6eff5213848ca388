//! Settlements compared with a replay of all calls, in exact fractions.

use super::*;
use crate::algorithm::fixed_window::calendar::Offset;

/// Usage by definition. Each change receives the encoded fields of the real usage before and after the change, from
/// which it takes the windows.
trait Naive: Debug + Default {
    type Limit: Limit;
    /// `true`: each charge has a place of its own.
    const HAS_PLACES: bool;

    /// Returns the window of the real usage, if a charge under another window recounts the usage.
    fn window(_before: &[i128]) -> Option<i128> {
        None
    }

    fn limit(options: LimitOptions) -> Self::Limit;
    fn move_back(&mut self, now: i128, before: &[i128], after: &[i128]);
    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, before: &[i128], after: &[i128]);
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
    drained_to: i128,
}

impl Default for NaiveBucket {
    fn default() -> Self {
        NaiveBucket { used: exact(0), drained_to: 0 }
    }
}

impl Naive for NaiveBucket {
    type Limit = Bucket;
    const HAS_PLACES: bool = false;

    fn limit(LimitOptions { amount, length, .. }: LimitOptions) -> Bucket {
        let amount = millionths(amount);
        Bucket::new(amount, amount, Period::new(Span::from_micros(length)).unwrap(), Discipline::Burst).unwrap()
    }

    fn move_back(&mut self, now: i128, _: &[i128], _: &[i128]) {
        self.drained_to = self.drained_to.min(now);
    }

    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, _: &[i128], after: &[i128]) {
        let rate = BigRational::new(options.amount.into(), options.length.into());
        // The real usage has drained up to this time, in whole millionths.
        let drained_to = if after[0] == 0 { now } else { after[1] };
        // The amount that drains from then to `now`, when the usage is not negative.
        let min = exact(now - drained_to) * &rate;
        let used = (&self.used - exact(drained_to - self.drained_to) * &rate).max(min.clone());
        let used = (used + exact(amount)).max(if amount < 0 { min } else { exact(0) });
        *self = NaiveBucket { used: used.min(exact(MAX)), drained_to };
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        vec![(self.used.clone(), exact(real[0]))]
    }
}

#[derive(Debug, Default)]
struct NaiveFixed(i128);

impl Naive for NaiveFixed {
    type Limit = FixedWindow;
    const HAS_PLACES: bool = false;

    fn limit(LimitOptions { amount, length, aligned }: LimitOptions) -> FixedWindow {
        let (limit, window) = (millionths(amount), Period::new(Span::from_micros(length)).unwrap());
        if aligned { FixedWindow::aligned(limit, window, Offset::UTC) } else { FixedWindow::new(limit, window) }
    }

    fn move_back(&mut self, _: i128, _: &[i128], _: &[i128]) {}

    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, before: &[i128], _: &[i128]) {
        let [_, instant, aligned] = before.try_into().unwrap();
        let length = i128::from(options.length);
        let start = if options.aligned && aligned == 1 { instant / length * length } else { instant };
        let count = if now < start + length { self.0 } else { 0 };
        self.0 = (count + amount).clamp(0, MAX);
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
    const HAS_PLACES: bool = true;

    fn window(before: &[i128]) -> Option<i128> {
        Some(before[1])
    }

    fn limit(LimitOptions { amount, length, .. }: LimitOptions) -> SlidingWindow {
        SlidingWindow::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap())
    }

    fn move_back(&mut self, _: i128, _: &[i128], _: &[i128]) {}

    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, before: &[i128], after: &[i128]) {
        let [start, window, ..] = before.try_into().unwrap_or([0; 4]);
        if window > 0 {
            let windows = (now - start) / window;
            if windows > 0 {
                self.previous = if windows == 1 { self.current } else { 0 };
                self.current = 0;
            }
            if window != i128::from(options.length) {
                let overlap = window - (now - start) % window;
                let estimate = exact(self.previous) * exact(overlap) / exact(window) + exact(self.current);
                (self.previous, self.current) = (0, i128::try_from(estimate.ceil().to_integer()).unwrap().min(MAX));
            }
        }
        let rest = (-amount - self.current).max(0);
        self.current = (self.current + amount).clamp(0, MAX);
        let [start, window, ..] = after.try_into().unwrap_or([0; 4]);
        let from_previous = (exact(rest) * exact(window) / exact((window - (now - start)).max(1))).floor().to_integer();
        self.previous = (self.previous - i128::try_from(from_previous).unwrap_or(MAX)).max(0);
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        vec![(exact(self.previous), exact(real[2])), (exact(self.current), exact(real[3]))]
    }
}

/// Returns the count at each place, by definition and in the real usage.
fn counts_by_place(naive: &Places, real: &Places) -> Vec<(BigRational, BigRational)> {
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
    const HAS_PLACES: bool = true;

    fn window(before: &[i128]) -> Option<i128> {
        Some(before[0])
    }

    fn limit(LimitOptions { amount, length, .. }: LimitOptions) -> StrictWindow {
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

    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, before: &[i128], _: &[i128]) {
        let (former_window, window) = (before[0], i128::from(options.length));
        self.0.retain(|slot, _| now < NaiveStrict::end(*slot, former_window) + former_window);
        if former_window != window {
            let sum = self.0.values().sum::<i128>().min(MAX);
            self.0 = Places::from([(now / NaiveStrict::width(window), sum)]);
        }
        if amount > 0 {
            let count = self.0.entry(now / NaiveStrict::width(window)).or_default();
            *count = (*count + amount).min(MAX);
        } else {
            refund_oldest_first(&mut self.0, -amount);
        }
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        let newest = real[1] / NaiveStrict::width(real[0]);
        counts_by_place(&self.0, &real[3..].chunks(2).map(|pair| (newest - pair[0], pair[1])).collect())
    }
}

#[derive(Debug, Default)]
struct NaiveLog(Places);

impl Naive for NaiveLog {
    type Limit = SlidingLog;
    const HAS_PLACES: bool = true;

    fn is_saturated(real: &[i128]) -> bool {
        real[1..].chunks(2).map(|pair| pair[1]).sum::<i128>() == MAX
    }

    fn limit(LimitOptions { amount, length, .. }: LimitOptions) -> SlidingLog {
        SlidingLog::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap())
    }

    fn move_back(&mut self, now: i128, before: &[i128], _: &[i128]) {
        let span = before[before.len() - 2] - now;
        for (at, cost) in std::mem::take(&mut self.0) {
            *self.0.entry((at - span).max(0)).or_default() += cost;
        }
    }

    fn change(&mut self, options: LimitOptions, now: i128, amount: i128, before: &[i128], _: &[i128]) {
        let counts = |at: &i128| now < at + i128::from(options.length);
        self.0.retain(|at, _| counts(at));
        if amount > 0 {
            // The part of a charge that exceeds MAX is dropped. The real usage may be closer to MAX than this one, if
            // an earlier settlement could not take everything back.
            let in_use = before[1..].chunks(2).filter(|pair| counts(&pair[0])).map(|pair| pair[1]).sum::<i128>();
            *self.0.entry(now).or_default() += amount.min(MAX - in_use);
        } else {
            refund_oldest_first(&mut self.0, -amount);
        }
    }

    fn counts(&self, real: &[i128]) -> Vec<(BigRational, BigRational)> {
        counts_by_place(&self.0, &real[1..].chunks(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

/// Event in the history of a usage, with the encoded fields of the real usage before and after the event.
#[derive(Clone, Debug)]
enum Event {
    MovedBack { now: i128, before: Vec<i128>, after: Vec<i128> },
    Changed { options: LimitOptions, now: i128, amount: i128, id: Option<usize>, before: Vec<i128>, after: Vec<i128> },
}

/// Returns the usage after a history in which the calls have these costs.
fn replay<N: Naive>(history: &[Event], costs: &[i128]) -> N {
    let mut naive = N::default();
    for event in history {
        match event {
            Event::MovedBack { now, before, after } => naive.move_back(*now, before, after),
            Event::Changed { options, now, amount, id, before, after } => {
                naive.change(*options, *now, id.map_or(*amount, |id| costs[id]), before, after);
            }
        }
    }
    naive
}

/// Asserts that the usage is never less than in the replay, and equal to it if that is guaranteed.
fn compare_with_replay<N: Naive>((begin, limits, steps): (u64, Vec<LimitOptions>, Vec<Step>)) {
    let mut key = Key::<<N::Limit as Limit>::Usage>::default();
    let mut replica = key.clone();
    let (mut now, mut history) = (begin, Vec::new());
    // The actual cost and the charged cost of each id.
    let (mut costs, mut charged_costs): (Vec<i128>, Vec<u64>) = Default::default();
    let mut is_exact = true;
    // Number of ids that were recorded before the last saturation. They cannot be settled.
    let mut saturated_ids = 0;
    for step in steps {
        let options = *step.limit.get(&limits);
        let limit = N::limit(options);
        let (percent, micros) = step.passed;
        let passed = i128::from(options.length) * i128::from(percent) / 100 + i128::from(micros);
        let then = (i128::from(now) + if percent == 0 { 0 } else { passed }).clamp(0, i128::from(u64::MAX >> 12));
        now = u64::try_from(then).unwrap();
        let at = us(now);
        let mut moved = key.usage.clone();
        if moved.is_after(at) {
            moved.move_back(at);
            history.push(Event::MovedBack { now: then, before: key.fields(), after: integers(&moved) });
            // Places that would be before the epoch are lost.
            is_exact &= now > 1_000_000_000_000_000 || !N::HAS_PLACES;
        }
        let before = integers(&moved);
        let amount = |percent: u64| {
            let amount = u128::from(options.amount) * u128::from(percent) / 100;
            millionths(u64::try_from(amount).unwrap().clamp(1, Amount::MAX_ARGUMENT.millionths()))
        };
        let name = |id: usize| id.to_be_bytes();
        let (decoded, component) = (key.decoded(), key.component);
        let (effect, change, id) = match step.action {
            Action::Charge(percent, ttl) => {
                let (cost, id) = (amount(percent), costs.len());
                let change = i128::from(cost.millionths());
                let name = name(id);
                let length = u128::from(options.length);
                let ttl = ttl
                    .map(|percent| Span::from_micros(u64::try_from(length * u128::from(percent) / 100).unwrap() + 1));
                let ttl = ttl.map(|ttl| ttl.min(Span::MAX_ARGUMENT));
                if ttl.is_some() {
                    costs.push(change);
                    charged_costs.push(cost.millionths());
                }
                let effect = key.call(&limit, at, Call::Charge(cost, ttl.map(|ttl| (&name[..], ttl))));
                (effect, change, ttl.map(|_| id))
            }
            Action::Refund(percent) => {
                let amount = amount(percent);
                is_exact &= !N::HAS_PLACES || moved.is_unused();
                let change = if moved.is_unused() { 0 } else { -i128::from(amount.millionths()) };
                (key.call(&limit, at, Call::Refund(amount)), change, None)
            }
            Action::Settle(id_index, percent) => {
                let id = if costs.is_empty() { 0 } else { id_index.index(costs.len()) };
                let cost = charged_costs.get(id).copied().unwrap_or(0);
                let settled = u64::try_from(u128::from(cost) * u128::from(percent) / 100).unwrap();
                // If the clock moved backwards, ids expire as of the last change.
                let recorded = key.ids.find(&name(id), at.max(key.written)).filter(|call| !call.settled);
                if id >= saturated_ids && recorded.is_some_and(|call| call.charges[0].component == key.component) {
                    costs[id] = settled.into();
                }
                (key.call(&limit, at, Call::Settle(&name(id), millionths(cost - settled))), 0, None)
            }
        };
        let after = key.fields();
        if change != 0 {
            let has_same_window = N::window(&before).is_none_or(|window| window == i128::from(options.length));
            is_exact &= moved.is_unused() || has_same_window;
            history.push(Event::Changed { options, now: then, amount: change, id, before, after: after.clone() });
        }
        if N::is_saturated(&after) {
            saturated_ids = costs.len();
        }
        is_exact &= !after.contains(&MAX) && (!N::HAS_PLACES || after.iter().sum::<i128>() < MAX);

        let naive: N = replay(&history, &costs);
        for (naive, real) in naive.counts(&after) {
            assert!(naive <= real, "usage too low: {real} instead of {naive}");
            // A bucket may be off by less than a millionth.
            assert!(!is_exact || &real - &naive < exact(1), "usage too high: {real} instead of {naive}");
        }
        key.remove_unused();
        for mut copy in [decoded, std::mem::take(&mut replica)] {
            copy.apply_effect(&effect);
            assert_eq!(copy.encoded(), key.encoded());
            replica = copy;
        }
        if key.component != component {
            // The charges of a removed component cannot be settled.
            (history, is_exact) = (Vec::new(), true);
        }
    }
}

/// Compares each kind with its replay, with and without refunds, under one limit or several.
macro_rules! compare_with_replays {
    ($($name:ident: $naive:ty,)+) => {
        proptest! {
            // Each case has three histories.
            #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 3, ..ProptestConfig::default() })]
            $(
                #[test]
                fn $name(
                    one_limit in histories(false, 1), several_limits in histories(false, 3),
                    with_refunds in histories(true, 3),
                ) {
                    compare_with_replay::<$naive>(one_limit);
                    compare_with_replay::<$naive>(several_limits);
                    compare_with_replay::<$naive>(with_refunds);
                }
            )+
        }
    };
}

compare_with_replays! {
    settled_bucket_equals_its_replay: NaiveBucket,
    settled_fixed_window_equals_its_replay: NaiveFixed,
    settled_sliding_window_equals_its_replay: NaiveSliding,
    settled_strict_window_equals_its_replay: NaiveStrict,
    settled_log_equals_its_replay: NaiveLog,
}
