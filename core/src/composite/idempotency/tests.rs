//! Random histories of a key whose charges are settled, beside a replay of each history with the costs that the calls
//! turned out to have, in plain arithmetic; and beside replicas.

use super::*;
use crate::algorithm::bucket::{Bucket, Discipline};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::strict_window::StrictWindow;
use crate::evaluate::Change;
use crate::limit::{Limit, Usage};
use crate::number::{Amount, Timestamp};
use crate::number::{Period, Span};
use crate::testing::calls::{lengths, millionths, period, units, us};
use crate::testing::effort;
use crate::testing::encoded_fields::EncodedFields;
use crate::wire::codec::Decoder;
use num_rational::BigRational;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use std::collections::BTreeMap;
use std::fmt::Debug;

const MAX: i128 = (1 << 63) - 1;

/// A key with one component, as the server keeps it.
#[derive(Clone, Debug, Default)]
struct Key<U> {
    usage: U,
    settlement: Settlement,
    ids: IdempotencyTable,
    /// The serial number of the component.
    component: u8,
    written: Timestamp,
}

/// What a call changes.
#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    Charge(Amount, Option<(&'a [u8], Span)>),
    GiveBack(Amount),
    Settle(&'a [u8], Amount),
}

/// What replicas are told of it.
#[derive(Clone, Debug)]
struct Told {
    now: Timestamp,
    ids: EncodedFields,
    settlement: EncodedFields,
    usage: EncodedFields,
    gone: bool,
}

impl<U: Usage> Key<U> {
    fn make<L: Limit<Usage = U>>(&mut self, limit: &L, now: Timestamp, call: Call) -> Told {
        self.go_on(now);
        if self.usage.is_after(now) {
            self.usage.move_back(now);
        }
        let coming = if let Call::Charge(_, Some((id, _))) = call { Some(id) } else { None };
        self.sweep(coming);
        match call {
            Call::Charge(cost, id) => {
                self.change(limit, Change::Charge(cost));
                if let Some((id, ttl)) = id {
                    let charges = Box::new([self.settlement.charge(&self.usage, self.component, cost).unwrap()]);
                    self.ids.remember(id, remembered(now, ttl, charges));
                }
            }
            Call::GiveBack(amount) => {
                let change = if self.usage.is_unused() { Change::Nothing } else { Change::GiveBack(amount) };
                self.change(limit, change);
            }
            Call::Settle(id, less) => {
                for charge in self.ids.settle(id, now).into_iter().flatten() {
                    if charge.component == self.component {
                        self.settlement.settle(&mut self.usage, &charge, less);
                    }
                }
            }
        }
        let gone = self.usage.is_unused();
        let mut told = Told {
            now,
            ids: EncodedFields::default(),
            settlement: EncodedFields::default(),
            usage: EncodedFields::default(),
            gone,
        };
        self.ids.encode_effect(&mut told.ids);
        self.settlement.encode_effect(&mut told.settlement);
        self.usage.encode_effect(&mut told.usage);
        told
    }

    /// Moves everything but the usage back with the clock.
    fn go_on(&mut self, now: Timestamp) {
        self.ids.move_charges_back(self.component, &self.usage, now);
        self.ids.move_back(self.written.since(now));
        self.written = now;
    }

    fn sweep(&mut self, coming: Option<&[u8]>) {
        let Key { ids, settlement, component, .. } = self;
        ids.sweep(self.written, coming, |charge| {
            if charge.component == *component {
                settlement.forget(charge);
            }
        });
    }

    fn change<L: Limit<Usage = U>>(&mut self, limit: &L, change: Change) {
        self.settlement.before(limit, &self.usage, self.written, change);
        change.apply(limit, &mut self.usage, self.written);
    }

    /// A component at 0 is deleted.
    fn tidy(&mut self) {
        if self.usage.is_unused() {
            (self.usage, self.settlement) = (U::default(), Settlement::default());
            self.component += 1;
        }
    }

    /// Does what was done elsewhere. It knows no limits.
    fn follow(&mut self, told: &Told) {
        let change = IdempotencyChange::decode(&mut told.ids.clone(), told.now).unwrap();
        let before = told.now.plus(self.written.since(told.now));
        assert!(change.is_possible(told.now, |id| self.ids.find(id, before)));
        self.go_on(told.now);
        self.sweep(if let IdempotencyChange::RecordedCall(id, _) = &change { Some(id) } else { None });
        let settled = match &change {
            IdempotencyChange::Settled(id) => self.ids.settle(id, told.now).unwrap().first().copied(),
            _ => None,
        };
        let settled = settled.filter(|charge| charge.component == self.component);
        assert!(self.settlement.accepts_effect(&mut told.settlement.clone(), settled.as_ref()));
        assert!(
            told.settlement.cut_short().all(|mut told| !self.settlement.accepts_effect(&mut told, settled.as_ref()))
        );
        self.settlement.apply_effect(&mut told.settlement.clone(), settled.as_ref());
        if told.gone {
            self.usage = U::default();
        } else {
            assert!(self.usage.accepts_effect(&mut told.usage.clone(), U::VERSION));
            self.usage.apply_effect(&mut told.usage.clone(), U::VERSION);
        }
        if let IdempotencyChange::RecordedCall(id, call) = change {
            let charges = call
                .charges
                .iter()
                .map(|(component, cost)| self.settlement.charge(&self.usage, *component, *cost).unwrap());
            let charges = charges.collect();
            self.ids.remember(&id, call.with(charges));
        }
        self.tidy();
    }

    fn encoded(&self) -> [EncodedFields; 3] {
        let mut fields = [(); 3].map(|()| EncodedFields::default());
        self.usage.encode(&mut fields[0]);
        self.settlement.encode(&mut fields[1]);
        self.ids.encode(&mut fields[2]);
        fields
    }

    /// As it is read back from what it was written to.
    fn decoded(&self) -> Key<U> {
        let [mut usage, mut settlement, mut ids] = self.encoded();
        assert!(settlement.cut_short().all(|mut cut| Settlement::decode(&mut cut).is_none()));
        assert!(ids.cut_short().all(|mut cut| IdempotencyTable::decode(&mut cut, self.written).is_none()));
        let ids = IdempotencyTable::decode(&mut ids, self.written).unwrap();
        let mut settlement = Settlement::decode(&mut settlement).unwrap();
        assert_eq!(settlement.is_sound(), self.settlement.is_idle(), "who remembers its charges?");
        assert!(
            ids.charges().filter(|charge| charge.component == self.component).all(|charge| settlement.count(charge))
        );
        assert!(settlement.is_sound());
        let usage = U::decode(&mut usage, U::VERSION).unwrap_or_default();
        Key { usage, settlement, ids, component: self.component, written: self.written }
    }

    fn fields(&self) -> Vec<i128> {
        integers(&self.usage)
    }
}

fn remembered(now: Timestamp, ttl: Span, charges: Box<[Charge]>) -> RecordedCall {
    let expires_at = now.plus(ttl).min(Timestamp::MAX);
    RecordedCall { expires_at, hold_until: now, settled: false, forced: false, granted: None, charges }
}

fn integers<U: Usage>(usage: &U) -> Vec<i128> {
    let mut fields = EncodedFields::default();
    usage.encode(&mut fields);
    std::iter::from_fn(|| Decoder::integer(&mut fields)).map(i128::from).collect()
}

/// The numbers of a limit: an amount and a length of time, and whether it is the one sort or the other.
#[derive(Clone, Copy, Debug)]
struct CommonOptions {
    amount: u64,
    length: u64,
    aligned: bool,
}

fn terms() -> impl Strategy<Value = CommonOptions> {
    let amount = prop_oneof![
        3 => Just(10_000_000),
        2 => 1..=20u64,
        2 => 1..=20_000_000u64,
        1 => Just(Amount::MAX_ARGUMENT.millionths()),
    ];
    let length = prop_oneof![2 => Just(60_000_000), 2 => 1..=200u64, 2 => lengths()];
    (amount, length, any::<bool>()).prop_map(|(amount, length, aligned)| CommonOptions { amount, length, aligned })
}

/// What a usage is by the definition, told what has happened to it and how the real one looked before and after:
/// windows are what they were.
trait Naive: Debug + Default {
    type Limit: Limit;
    /// Whether a charge has a place of its own.
    const PLACES: bool;

    /// The length of the windows that it was counted in, if another makes it count anew.
    fn window(_before: &[i128]) -> Option<i128> {
        None
    }

    fn limit(terms: CommonOptions) -> Self::Limit;
    fn move_back(&mut self, now: i128, before: &[i128], after: &[i128]);
    fn change(&mut self, terms: CommonOptions, now: i128, by: i128, before: &[i128], after: &[i128]);
    /// Whether the real one may not hold all that was charged.
    fn is_saturated(real: &[i128]) -> bool {
        real.contains(&MAX)
    }

    /// What each count of it is and what the real one has there.
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
        FixedWindow::new(millionths(amount), Period::new(Span::from_micros(length)).unwrap(), aligned)
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

/// By slot or instant.
type Places = BTreeMap<i128, i128>;

fn give_back_oldest_first(places: &mut Places, mut amount: i128) {
    for count in places.values_mut() {
        let taken = amount.min(*count);
        *count -= taken;
        amount -= taken;
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
            // What a charge finds no room for is dropped for good. In fact there was less room than here if a
            // settlement of before could not be told in full.
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

/// One step of a history.
#[derive(Clone, Debug)]
struct Step {
    terms: Index,
    /// How much later: hundredths of the limit's length, and microseconds.
    later: (i64, i64),
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Hundredths of the limit's amount, and whether by an id that lives for hundredths of its length.
    Charge(u64, Option<u64>),
    GiveBack(u64),
    /// Which of the ids, and so many hundredths of its cost that it turned out to cost.
    Settle(Index, u64),
}

fn histories(gives_back: bool, terms: usize) -> impl Strategy<Value = (u64, Vec<CommonOptions>, Vec<Step>)> {
    let ttl = prop_oneof![1 => Just(None), 4 => (1..=400u64).prop_map(Some)];
    let what = prop_oneof![
        5 => (prop_oneof![3 => 0..=120u64, 1 => Just(100)], ttl).prop_map(|(cost, ttl)| What::Charge(cost, ttl)),
        u32::from(gives_back) => (0..=150u64).prop_map(What::GiveBack),
        4 => (any::<Index>(), prop_oneof![Just(0), Just(100), 0..=100u64])
            .prop_map(|(which, cost)| What::Settle(which, cost)),
    ];
    let component = prop_oneof![
        4 => Just(0), 4 => 0..=40i64, 2 => select(vec![50, 59, 60, 61, 99, 100, 101, 200]), 1 => -150..=0i64
    ];
    let step =
        (any::<Index>(), (component, -1..=1i64), what).prop_map(|(terms, later, what)| Step { terms, later, what });
    let begin = prop_oneof![6 => 1_700_000_000_000_000..1_700_000_100_000_000u64, 1 => 0..=200u64];
    (begin, vec(self::terms(), 1..=terms), vec(step, 1..=40))
}

/// One thing that has happened to a usage, and how that looked before and after.
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

/// Panics unless usage is never less than in the replay, and equal to it where that is promised.
fn settles_as_a_replay_does<N: Naive>((begin, terms, steps): (u64, Vec<CommonOptions>, Vec<Step>)) {
    let mut key = Key::<<N::Limit as Limit>::Usage>::default();
    let mut replica = key.clone();
    let (mut now, mut history) = (begin, Vec::new());
    // Of each id: what it turned out to cost, and what it was charged.
    let (mut costs, mut charged): (Vec<i128>, Vec<u64>) = Default::default();
    let mut equal = true;
    // Of how many ids it is not known any more what they would have cost: "what saturates cannot be settled".
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
        let (told, by, id) = match step.what {
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
                let told = key.make(&limit, at, Call::Charge(cost, ttl.map(|ttl| (&name[..], ttl))));
                (told, by, ttl.map(|_| id))
            }
            What::GiveBack(component) => {
                let amount = amount(component);
                equal &= !N::PLACES || seen.is_unused();
                let by = if seen.is_unused() { 0 } else { -i128::from(amount.millionths()) };
                (key.make(&limit, at, Call::GiveBack(amount)), by, None)
            }
            What::Settle(which, component) => {
                let id = if costs.is_empty() { 0 } else { which.index(costs.len()) };
                let cost = charged.get(id).copied().unwrap_or(0);
                let settled = u64::try_from(u128::from(cost) * u128::from(component) / 100).unwrap();
                // By the clock as it was before it went back.
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
            assert!(naive <= real, "forgives: {naive} by the definition, {real} in fact");
            // Of a bucket, a millionth is not divided.
            assert!(!equal || &real - &naive < exact(1), "{naive} by the definition, {real} in fact");
        }
        key.tidy();
        for mut elsewhere in [elsewhere, std::mem::take(&mut replica)] {
            elsewhere.follow(&told);
            assert_eq!(elsewhere.encoded(), key.encoded());
            replica = elsewhere;
        }
        if key.component != kept {
            // Whoever charged the component that is gone has nothing to settle.
            (history, equal) = (Vec::new(), true);
        }
    }
}

/// Each kind beside its replay; with and without give-backs by hand, under one limit or several.
macro_rules! settles {
    ($($name:ident: $naive:ty,)+) => {
        proptest! {
            // Each case is three histories.
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

fn minute() -> Period {
    period("1m")
}

fn seconds(seconds: u64) -> Timestamp {
    us(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// A key to which calls are made by ids that live for an hour.
fn charged<L: Limit>(limit: &L, calls: &[(u64, &str, u64)]) -> Key<L::Usage> {
    let mut key = Key::default();
    for (at, id, cost) in calls {
        let id = (!id.is_empty()).then(|| (id.as_bytes(), period("1h").span()));
        key.make(limit, seconds(*at), Call::Charge(units(*cost), id));
    }
    key
}

/// How much is settled, in millionths, in an hour's time or so.
fn settled<L: Limit>(key: &mut Key<L::Usage>, limit: &L, at: u64, id: &str, less: u64) -> u64 {
    let before = key.clone();
    let told = key.make(limit, seconds(at), Call::Settle(id.as_bytes(), units(less)));
    let now = seconds(at);
    let taken = limit.remaining(&key.usage, now).minus(limit.remaining(&before.usage, now));
    let mut elsewhere = before;
    elsewhere.follow(&told);
    key.tidy();
    assert_eq!(elsewhere.encoded(), key.encoded());
    taken.whole_units()
}

#[test]
fn nobody_gets_back_what_has_drained() {
    let limit = Bucket::new(units(10), units(60), minute(), Discipline::Burst).unwrap();
    // 9 in use at 0, 4 at 5, when 3 more come: of the first 9, 4 are left.
    let mut key = charged(&limit, &[(0, "a", 9), (5, "", 3)]);
    assert_eq!(settled(&mut key, &limit, 5, "a", 6), 4);
    assert!(key.settlement.is_idle());
    // A settlement changes what others can settle: of 9 there were 4 left at 5, which a then gets back.
    let mut key = charged(&limit, &[(0, "a", 4), (0, "b", 5), (5, "c", 3)]);
    assert_eq!(settled(&mut key, &limit, 5, "a", 3), 3);
    assert_eq!(settled(&mut key, &limit, 5, "b", 5), 1);
    assert_eq!(settled(&mut key, &limit, 5, "c", 2), 2);
    // And once only.
    assert_eq!(settled(&mut key, &limit, 5, "c", 1), 0);
}

#[test]
fn a_give_back_is_of_what_there_was() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let mut key = charged(&limit, &[(0, "a", 9)]);
    key.make(&limit, seconds(0), Call::GiveBack(units(7)));
    key.make(&limit, seconds(0), Call::Charge(units(50), None));
    assert_eq!(settled(&mut key, &limit, 0, "a", 9), 2);
}

#[test]
fn a_fixed_window_that_is_over_holds_nothing_to_settle() {
    let limit = FixedWindow::new(units(10), minute(), false);
    let mut key = charged(&limit, &[(0, "a", 9), (60, "b", 5)]);
    assert_eq!(settled(&mut key, &limit, 60, "a", 9), 0);
    assert_eq!(settled(&mut key, &limit, 60, "b", 4), 4);
}

#[test]
fn a_call_settled_to_nothing_has_still_opened_its_window() {
    let limit = FixedWindow::new(units(10), minute(), false);
    let mut key = charged(&limit, &[(0, "a", 9), (30, "", 1)]);
    assert_eq!(settled(&mut key, &limit, 40, "a", 9), 9);
    assert_eq!(limit.reset(&key.usage, seconds(40)), Span::SECOND.times(20));
}

#[test]
fn a_sliding_window_settles_in_the_count_that_it_is_in() {
    let limit = SlidingWindow::new(units(10), minute());
    let calls = [(0, "a", 8), (60, "b", 2)];
    // Of the count before, three quarters are counted yet.
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 75, "a", 4), 3);
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 75, "b", 2), 2);
    let mut key = charged(&limit, &[(0, "a", 8), (60, "b", 2), (120, "c", 1)]);
    assert_eq!(settled(&mut key, &limit, 120, "a", 8), 0);
    assert_eq!(settled(&mut key, &limit, 120, "b", 1), 1);
}

#[test]
fn what_was_given_back_by_hand_is_not_settled_again() {
    let limit = StrictWindow::new(units(100), minute());
    for (given_back, less, settles) in [(0, 9, 9), (4, 9, 5), (4, 5, 5), (8, 5, 1), (9, 5, 0)] {
        let mut key = charged(&limit, &[(0, "a", 9)]);
        key.make(&limit, seconds(0), Call::Charge(units(20), None));
        key.make(&limit, seconds(0), Call::GiveBack(units(given_back)));
        assert_eq!(settled(&mut key, &limit, 1, "a", less), settles, "{less} less after {given_back}");
    }
    // What was given back before it was charged is no matter.
    let mut key = charged(&limit, &[(0, "a", 9)]);
    key.make(&limit, seconds(0), Call::GiveBack(units(5)));
    key.make(&limit, seconds(0), Call::Charge(units(9), Some((b"b", Span::SECOND))));
    assert_eq!(settled(&mut key, &limit, 0, "b", 9), 9);
}

#[test]
fn another_window_ends_what_can_be_settled() {
    let (limit, other) = (SlidingWindow::new(units(10), minute()), SlidingWindow::new(units(10), period("1h")));
    let mut key = charged(&limit, &[(0, "a", 5)]);
    key.make(&other, seconds(1), Call::Charge(units(1), Some((b"b", period("1h").span()))));
    assert_eq!(settled(&mut key, &other, 1, "a", 5), 0);
    assert_eq!(settled(&mut key, &other, 1, "b", 1), 1);
}

#[test]
fn once_a_log_has_saturated_nothing_of_before_is_settled() {
    let most = 1_000_000_000_000;
    let limit = SlidingLog::new(units(most), minute());
    let mut calls = vec![(0, "", most); 8];
    calls.extend([(0, "a", most), (10, "b", most), (60, "c", 1)]);
    // Of what b asked for a fifth was counted: there would have been room for more if a had cost less.
    for id in ["a", "b"] {
        assert_eq!(settled(&mut charged(&limit, &calls[..10]), &limit, 10, id, most), 0, "{id}");
        assert_eq!(settled(&mut charged(&limit, &calls), &limit, 69, id, most), 0, "{id}");
    }
    assert_eq!(settled(&mut charged(&limit, &calls), &limit, 70, "c", 1), 1);
}

#[test]
fn where_the_sum_of_give_backs_saturates_nothing_is_settled() {
    let limit = SlidingLog::new(units(10), minute());
    let mut key = charged(&limit, &[(0, "", 1), (1, "a", 5)]);
    for _ in 0..10 {
        key.make(&limit, seconds(1), Call::Charge(Amount::MAX_ARGUMENT, None));
        key.make(&limit, seconds(1), Call::GiveBack(Amount::MAX_ARGUMENT));
    }
    key.make(&limit, seconds(2), Call::Charge(units(5), Some((b"b", Span::SECOND))));
    assert_eq!(settled(&mut key, &limit, 2, "b", 5), 0);
}

#[test]
fn a_track_without_charges_is_as_good_as_never_seen() {
    let limit = StrictWindow::new(units(100), minute());
    let mut key = charged(&limit, &[(0, "a", 9), (0, "b", 9)]);
    key.make(&limit, seconds(0), Call::GiveBack(units(1)));
    let mut never = EncodedFields::default();
    Settlement::default().encode(&mut never);
    for (id, idle) in [("a", false), ("b", true)] {
        settled(&mut key, &limit, 0, id, 1);
        assert_eq!((key.settlement.is_idle(), key.encoded()[1] == never), (idle, idle));
    }
    // Nothing is kept of calls while there are none.
    key.make(&limit, seconds(0), Call::GiveBack(units(1)));
    assert_eq!(key.encoded()[1], never);
}

#[test]
fn takes_nothing_for_a_track_that_is_none() {
    let most = Amount::MAX.millionths();
    // What is given back, the next number, the first without a low; then the first of each group and its difference.
    for (settlement, numbers, sound) in [
        (&[0, 0, 0, 0][..], &[][..], true),
        (&[0, 1, 0, 0], &[0], true),
        (&[7, 3, 2, 2, 0, 0, 1, 5], &[0, 1, 2], true),
        (&[0, 3, 3, 1, 1, most], &[1, 2], true),
        (&[1, 0, 0, 0], &[], false),
        (&[0, 1, 0, 0], &[], false),
        (&[0, 1, 0, 0], &[1], false),
        (&[0, 1, 0, 0], &[0, 0], false),
        (&[0, 1, 2, 0], &[0], false),
        (&[0, u64::MAX, 0, 0], &[0], false),
        (&[0, 2, 1, 0], &[0], false),
        (&[0, 2, 2, 2, 0, 1, 1, 0], &[0, 1], false),
        (&[0, 2, 2, 2, 1, 1, 0, 1], &[0, 1], false),
        (&[0, 2, 2, 2, 0, 1, 1, 1], &[0], false),
        (&[0, 2, 2, 2, 0, 1, 1, 1], &[0, 0, 1], false),
        (&[0, 2, 2, 1, 2, 1], &[0], false),
        (&[0, 2, 2, 2, 0, most, 1, 1], &[0, 1], false),
        (&[most + 1, 1, 0, 0], &[0], false),
    ] {
        let decoded = Settlement::decode(&mut EncodedFields::integers(settlement.iter().copied()));
        let counted = decoded.and_then(|mut settlement| {
            let charge = |number: &u64| Charge {
                component: 0,
                cost: units(1),
                number: *number,
                place: None,
                given_back: Amount::ZERO,
            };
            let counted = numbers.iter().all(|number| settlement.count(&charge(number)));
            (counted && settlement.is_sound()).then_some(settlement)
        });
        assert_eq!(counted.is_some(), sound, "{settlement:?} of {numbers:?}");
        let mut back = EncodedFields::default();
        if let Some(counted) = counted {
            counted.encode(&mut back);
            assert_eq!(back, EncodedFields::integers(settlement.iter().copied()));
        }
    }
}

#[test]
fn takes_nothing_for_an_effect_that_no_call_can_have_had() {
    let limit = Bucket::new(units(100), units(60), minute(), Discipline::Burst).unwrap();
    let key = charged(&limit, &[(0, "a", 4), (0, "b", 5)]);
    let charge = key.ids.find(b"a", seconds(0)).unwrap().charges[0];
    let four = units(4).millionths();
    for (effect, with, without) in [
        (&[0][..], true, true),
        (&[1, four], true, false),
        (&[1, four + 1], false, false),
        (&[1, 0], false, false),
        (&[2, 0], true, true),
        (&[2, u64::MAX], false, false),
        (&[3, four, 0], true, false),
        (&[4, 1], true, true),
        (&[4, 0], false, false),
        (&[6, 1, 1], false, false),
        (&[8], false, false),
        (&[], false, false),
    ] {
        let accepts =
            |charge| key.settlement.accepts_effect(&mut EncodedFields::integers(effect.iter().copied()), charge);
        assert_eq!((accepts(Some(&charge)), accepts(None)), (with, without), "{effect:?}");
    }
    // Nobody needs to be told how much is used where there are no charges.
    let never = Settlement::default();
    assert!(never.accepts_effect(&mut EncodedFields::integers([0]), None));
    assert!(!never.accepts_effect(&mut EncodedFields::integers([2, 1]), None));
    assert!(!never.accepts_effect(&mut EncodedFields::integers([4, 1]), None));
}

#[test]
fn among_many_ids_a_call_costs_no_more() {
    let limit = Bucket::new(units(1_000_000), units(1), minute(), Discipline::Burst).unwrap();
    let mut key = Key::default();
    let ttl = period("1h").span();
    for id in 0..1000_u64 {
        // Each charge makes a low of its own.
        let told = effort::of(|| {
            key.make(&limit, seconds(id / 100), Call::Charge(units(3), Some((&id.to_be_bytes(), ttl))));
        });
        assert!(told <= 40, "{told} to remember");
    }
    // In no order, for some and for all of what it cost: amortized, as lows that are met are merged.
    let mut sum = 0;
    for step in 0..1000_u64 {
        let id = step * 387 % 1000;
        sum += effort::of(|| {
            key.make(&limit, seconds(10), Call::Settle(&id.to_be_bytes(), units(step % 4)));
        });
    }
    assert!(sum <= 60_000, "{sum} to settle 1000");
    assert!(key.settlement.is_idle());
}
