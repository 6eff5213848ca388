//! Random histories of a key whose charges are settled, beside a replay of each history with the costs that the calls
//! turned out to have, in plain arithmetic; and beside replicas.

mod replays;
mod settled_facts;
mod stored_settlements;

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
use crate::testing::encoded_fields::EncodedFields;
use crate::testing::step_counter;
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

impl<U: Usage> Key<U> {
    fn make<L: Limit<Usage = U>>(&mut self, limit: &L, now: Timestamp, call: Call) -> SentEffects {
        self.advance(now);
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
                    self.ids.record_call(id, &remembered(now, ttl, charges));
                }
            }
            Call::Refund(amount) => {
                let change = if self.usage.is_unused() { Change::Nothing } else { Change::Refund(amount) };
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
        let mut sent = SentEffects {
            now,
            ids: EncodedFields::default(),
            settlement: EncodedFields::default(),
            usage: EncodedFields::default(),
            gone,
        };
        self.ids.encode_effect(&mut sent.ids);
        self.settlement.encode_effect(&mut sent.settlement);
        self.usage.encode_effect(&mut sent.usage);
        sent
    }

    /// Moves everything but the usage back with the clock.
    fn advance(&mut self, now: Timestamp) {
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
        self.settlement.before_change(limit, &self.usage, self.written, change);
        change.apply(limit, &mut self.usage, self.written);
    }

    /// Deletes the component if its usage is 0.
    fn tidy(&mut self) {
        if self.usage.is_unused() {
            (self.usage, self.settlement) = (U::default(), Settlement::default());
            self.component += 1;
        }
    }

    /// Applies the effect of a call, as a replica does, which has no limits.
    fn follow(&mut self, sent: &SentEffects) {
        let change = IdempotencyChange::decode(&mut sent.ids.clone(), sent.now).unwrap();
        let before = sent.now.plus(self.written.since(sent.now));
        assert!(change.is_possible(sent.now, |id| self.ids.find(id, before)));
        self.advance(sent.now);
        self.sweep(if let IdempotencyChange::RecordedCall(id, _) = &change { Some(id) } else { None });
        let settled = match &change {
            IdempotencyChange::Settled(id) => self.ids.settle(id, sent.now).unwrap().first().copied(),
            _ => None,
        };
        let settled = settled.filter(|charge| charge.component == self.component);
        assert!(self.settlement.accepts_effect(&mut sent.settlement.clone(), settled.as_ref()));
        assert!(
            sent.settlement
                .proper_prefixes()
                .all(|mut sent| !self.settlement.accepts_effect(&mut sent, settled.as_ref()))
        );
        self.settlement.apply_effect(&mut sent.settlement.clone(), settled.as_ref());
        if sent.gone {
            self.usage = U::default();
        } else {
            assert!(self.usage.accepts_effect(&mut sent.usage.clone(), U::VERSION));
            self.usage.apply_effect(&mut sent.usage.clone(), U::VERSION);
        }
        if let IdempotencyChange::RecordedCall(id, call) = change {
            let charges = call
                .charges
                .iter()
                .map(|(component, cost)| self.settlement.charge(&self.usage, *component, *cost).unwrap());
            let charges: Vec<_> = charges.collect();
            self.ids.record_call(&id, &call.with(charges));
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

    /// Returns the key decoded from its encoding.
    fn decoded(&self) -> Key<U> {
        let [mut usage, mut settlement, mut ids] = self.encoded();
        assert!(settlement.proper_prefixes().all(|mut cut| Settlement::decode(&mut cut).is_none()));
        assert!(ids.proper_prefixes().all(|mut cut| IdempotencyTable::read(&mut cut, self.written).is_none()));
        let ids = IdempotencyTable::read(&mut ids, self.written).unwrap();
        let mut settlement = Settlement::decode(&mut settlement).unwrap();
        assert_eq!(settlement.is_sound(), self.settlement.is_idle(), "who remembers its charges?");
        let charges = ids.charges();
        let mut own = charges.iter().filter(|charge| charge.component == self.component);
        assert!(own.all(|charge| settlement.count(charge)));
        assert!(settlement.is_sound());
        let usage = U::decode(&mut usage, U::VERSION).unwrap_or_default();
        Key { usage, settlement, ids, component: self.component, written: self.written }
    }

    fn fields(&self) -> Vec<i128> {
        integers(&self.usage)
    }
}

/// Change that a call makes.
#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    Charge(Amount, Option<(&'a [u8], Span)>),
    Refund(Amount),
    Settle(&'a [u8], Amount),
}

/// Effect of a call, as replicas receive it.
#[derive(Clone, Debug)]
struct SentEffects {
    now: Timestamp,
    ids: EncodedFields,
    settlement: EncodedFields,
    usage: EncodedFields,
    gone: bool,
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

/// Options of a limit: amount, length of time, and a flag that selects one of two variants.
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

/// Step of a history.
#[derive(Clone, Debug)]
struct Step {
    terms: Index,
    /// Time since the previous step: hundredths of the limit's length, and microseconds.
    later: (i64, i64),
    what: What,
}

#[derive(Clone, Debug)]
enum What {
    /// Cost in hundredths of the limit's amount, and, for a call with an id, its lifetime in hundredths of the length.
    Charge(u64, Option<u64>),
    Refund(u64),
    /// Index of an id, and the actual cost in hundredths of the charged cost.
    Settle(Index, u64),
}

fn histories(refunds: bool, terms: usize) -> impl Strategy<Value = (u64, Vec<CommonOptions>, Vec<Step>)> {
    let ttl = prop_oneof![1 => Just(None), 4 => (1..=400u64).prop_map(Some)];
    let what = prop_oneof![
        5 => (prop_oneof![3 => 0..=120u64, 1 => Just(100)], ttl).prop_map(|(cost, ttl)| What::Charge(cost, ttl)),
        u32::from(refunds) => (0..=150u64).prop_map(What::Refund),
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

fn minute() -> Period {
    period("1m")
}

fn seconds(seconds: u64) -> Timestamp {
    us(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Returns a key after calls at these seconds, by ids that live for an hour, with these costs.
fn charged<L: Limit>(limit: &L, calls: &[(u64, &str, u64)]) -> Key<L::Usage> {
    let mut key = Key::default();
    for (at, id, cost) in calls {
        let id = (!id.is_empty()).then(|| (id.as_bytes(), period("1h").span()));
        key.make(limit, seconds(*at), Call::Charge(units(*cost), id));
    }
    key
}

/// Settles the call of an id, checks that a replica follows, and returns the units that were taken back.
fn settled<L: Limit>(key: &mut Key<L::Usage>, limit: &L, at: u64, id: &str, less: u64) -> u64 {
    let before = key.clone();
    let sent = key.make(limit, seconds(at), Call::Settle(id.as_bytes(), units(less)));
    let now = seconds(at);
    let taken = limit.remaining(&key.usage, now).minus(limit.remaining(&before.usage, now));
    let mut elsewhere = before;
    elsewhere.follow(&sent);
    key.tidy();
    assert_eq!(elsewhere.encoded(), key.encoded());
    taken.whole_units()
}

/// Charged amounts by slot or instant.
type Places = BTreeMap<i128, i128>;

fn give_back_oldest_first(places: &mut Places, mut amount: i128) {
    for count in places.values_mut() {
        let taken = amount.min(*count);
        *count -= taken;
        amount -= taken;
    }
}
