//! Random histories of a key with settled charges. Each is compared with a replay in which the calls have the settled
//! costs from the start, in plain arithmetic, and with replicas.

mod replays;
mod settlement_examples;
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

/// Amount at which usages saturate.
const MAX: i128 = (1 << 63) - 1;

/// Key with one component.
#[derive(Clone, Debug, Default)]
struct Key<U> {
    usage: U,
    settlement: Settlement,
    ids: IdempotencyTable,
    /// Serial number of the component.
    component: u8,
    written: Timestamp,
}

impl<U: Usage> Key<U> {
    /// Runs a call and returns its effect.
    fn call<L: Limit<Usage = U>>(&mut self, limit: &L, now: Timestamp, call: Call) -> CallEffect {
        self.advance(now);
        if self.usage.is_after(now) {
            self.usage.move_back(now);
        }
        let new_id = if let Call::Charge(_, Some((id, _))) = call { Some(id) } else { None };
        self.sweep(new_id);
        match call {
            Call::Charge(cost, id) => {
                self.change(limit, Change::Charge(cost));
                if let Some((id, ttl)) = id {
                    let charges = Box::new([self.settlement.charge(&self.usage, self.component, cost).unwrap()]);
                    self.ids.record_call(id, &recorded_call(now, ttl, charges));
                }
            }
            Call::Refund(amount) => {
                let change = if self.usage.is_unused() { Change::Nothing } else { Change::Refund(amount) };
                self.change(limit, change);
            }
            Call::Settle(id, reduction) => {
                for charge in self.ids.settle(id, now).into_iter().flatten() {
                    if charge.component == self.component {
                        self.settlement.settle(&mut self.usage, &charge, reduction);
                    }
                }
            }
        }
        let mut effect = CallEffect {
            now,
            ids: EncodedFields::default(),
            settlement: EncodedFields::default(),
            usage: EncodedFields::default(),
            is_unused: self.usage.is_unused(),
        };
        self.ids.encode_effect(&mut effect.ids);
        self.settlement.encode_effect(&mut effect.settlement);
        self.usage.encode_effect(&mut effect.usage);
        effect
    }

    /// Moves everything but the usage back with the clock.
    fn advance(&mut self, now: Timestamp) {
        self.ids.move_charges_back(self.component, &self.usage, now);
        self.ids.move_back(self.written.since(now));
        self.written = now;
    }

    fn sweep(&mut self, new_id: Option<&[u8]>) {
        let Key { ids, settlement, component, .. } = self;
        ids.sweep(self.written, new_id, |charge| {
            if charge.component == *component {
                settlement.forget(charge);
            }
        });
    }

    fn change<L: Limit<Usage = U>>(&mut self, limit: &L, change: Change) {
        self.settlement.before_change(limit, &self.usage, self.written, change);
        change.apply(limit, &mut self.usage, self.written);
    }

    /// Removes the component if its usage is 0.
    fn remove_unused(&mut self) {
        if self.usage.is_unused() {
            (self.usage, self.settlement) = (U::default(), Settlement::default());
            self.component += 1;
        }
    }

    /// Applies the effect of a call as a replica does, without a limit.
    fn apply_effect(&mut self, effect: &CallEffect) {
        let change = IdempotencyChange::decode(&mut effect.ids.clone(), effect.now).unwrap();
        let before = effect.now.plus(self.written.since(effect.now));
        assert!(change.is_possible(effect.now, |id| self.ids.find(id, before)));
        self.advance(effect.now);
        self.sweep(if let IdempotencyChange::RecordedCall(id, _) = &change { Some(id) } else { None });
        let settled = match &change {
            IdempotencyChange::Settled(id) => self.ids.settle(id, effect.now).unwrap().first().copied(),
            _ => None,
        };
        let settled = settled.filter(|charge| charge.component == self.component);
        assert!(self.settlement.accepts_effect(&mut effect.settlement.clone(), settled.as_ref()));
        let accepts = |mut fields: EncodedFields| self.settlement.accepts_effect(&mut fields, settled.as_ref());
        assert!(!effect.settlement.proper_prefixes().any(accepts));
        self.settlement.apply_effect(&mut effect.settlement.clone(), settled.as_ref());
        if effect.is_unused {
            self.usage = U::default();
        } else {
            assert!(self.usage.accepts_effect(&mut effect.usage.clone(), U::VERSION));
            self.usage.apply_effect(&mut effect.usage.clone(), U::VERSION);
        }
        if let IdempotencyChange::RecordedCall(id, call) = change {
            let charges = call
                .charges
                .iter()
                .map(|(component, cost)| self.settlement.charge(&self.usage, *component, *cost).unwrap());
            let charges: Vec<_> = charges.collect();
            self.ids.record_call(&id, &call.with(charges));
        }
        self.remove_unused();
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
        assert!(settlement.proper_prefixes().all(|mut fields| Settlement::decode(&mut fields).is_none()));
        assert!(
            ids.proper_prefixes().all(|mut fields| IdempotencyTable::decode_any(&mut fields, self.written).is_none())
        );
        let ids = IdempotencyTable::decode_any(&mut ids, self.written).unwrap();
        let mut settlement = Settlement::decode(&mut settlement).unwrap();
        assert_eq!(settlement.is_sound(), self.settlement.is_idle(), "charges of a valid settlement must be counted");
        let charges = ids.charges();
        let mut charges = charges.iter().filter(|charge| charge.component == self.component);
        assert!(charges.all(|charge| settlement.count_charge(charge)));
        assert!(settlement.is_sound());
        let usage = U::decode(&mut usage, U::VERSION).unwrap_or_default();
        Key { usage, settlement, ids, component: self.component, written: self.written }
    }

    /// Returns the encoded usage.
    fn fields(&self) -> Vec<i128> {
        integers(&self.usage)
    }
}

#[derive(Clone, Copy, Debug)]
enum Call<'a> {
    /// Charge of a cost, with the id of the call and the id's lifetime, if it has one.
    Charge(Amount, Option<(&'a [u8], Span)>),
    Refund(Amount),
    /// Settlement of an id that takes this amount back.
    Settle(&'a [u8], Amount),
}

/// Effect of a call that replicas receive.
#[derive(Clone, Debug)]
struct CallEffect {
    now: Timestamp,
    ids: EncodedFields,
    settlement: EncodedFields,
    usage: EncodedFields,
    /// `true`: the usage is unused after the call.
    is_unused: bool,
}

fn recorded_call(now: Timestamp, ttl: Span, charges: Box<[Charge]>) -> RecordedCall {
    let expires_at = now.plus(ttl).min(Timestamp::MAX);
    RecordedCall { expires_at, hold_until: now, settled: false, forced: false, granted: None, charges }
}

fn integers<U: Usage>(usage: &U) -> Vec<i128> {
    let mut fields = EncodedFields::default();
    usage.encode(&mut fields);
    std::iter::from_fn(|| Decoder::integer(&mut fields)).map(i128::from).collect()
}

/// Arguments of a limit: its amount in millionths, its window or period in microseconds, and ALIGNED for a fixed
/// window.
#[derive(Clone, Copy, Debug)]
struct LimitOptions {
    amount: u64,
    length: u64,
    aligned: bool,
}

fn limit_options() -> impl Strategy<Value = LimitOptions> {
    let amount = prop_oneof![
        3 => Just(10_000_000),
        2 => 1..=20u64,
        2 => 1..=20_000_000u64,
        1 => Just(Amount::MAX_ARGUMENT.millionths()),
    ];
    let length = prop_oneof![2 => Just(60_000_000), 2 => 1..=200u64, 2 => lengths()];
    (amount, length, any::<bool>()).prop_map(|(amount, length, aligned)| LimitOptions { amount, length, aligned })
}

/// Step of a history.
#[derive(Clone, Debug)]
struct Step {
    /// Selects one of the limits.
    limit: Index,
    /// Time since the previous step: hundredths of the limit's length, and microseconds.
    passed: (i64, i64),
    action: Action,
}

#[derive(Clone, Debug)]
enum Action {
    /// Cost in hundredths of the limit's amount, and the lifetime of the id, if the call has one, in hundredths of the
    /// limit's length.
    Charge(u64, Option<u64>),
    /// Amount in hundredths of the limit's amount.
    Refund(u64),
    /// Index of an id, and the actual cost in hundredths of the charged cost.
    Settle(Index, u64),
}

/// Generates a start time in microseconds, up to `max_limits` limits, and steps.
fn histories(refunds: bool, max_limits: usize) -> impl Strategy<Value = (u64, Vec<LimitOptions>, Vec<Step>)> {
    let ttl = prop_oneof![1 => Just(None), 4 => (1..=400u64).prop_map(Some)];
    let action = prop_oneof![
        5 => (prop_oneof![3 => 0..=120u64, 1 => Just(100)], ttl).prop_map(|(cost, ttl)| Action::Charge(cost, ttl)),
        u32::from(refunds) => (0..=150u64).prop_map(Action::Refund),
        4 => (any::<Index>(), prop_oneof![Just(0), Just(100), 0..=100u64])
            .prop_map(|(which, cost)| Action::Settle(which, cost)),
    ];
    let percent = prop_oneof![
        4 => Just(0), 4 => 0..=40i64, 2 => select(vec![50, 59, 60, 61, 99, 100, 101, 200]), 1 => -150..=0i64
    ];
    let step = (any::<Index>(), (percent, -1..=1i64), action).prop_map(|(limit, passed, action)| Step {
        limit,
        passed,
        action,
    });
    let begin = prop_oneof![6 => 1_700_000_000_000_000..1_700_000_100_000_000u64, 1 => 0..=200u64];
    (begin, vec(limit_options(), 1..=max_limits), vec(step, 1..=40))
}

fn minute() -> Period {
    period("1m")
}

fn seconds(seconds: u64) -> Timestamp {
    us(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Returns a key after calls. Each has a second, an id that lives for an hour (none if it is empty), and a cost.
fn key_after_calls<L: Limit>(limit: &L, calls: &[(u64, &str, u64)]) -> Key<L::Usage> {
    let mut key = Key::default();
    for (at, id, cost) in calls {
        let id = (!id.is_empty()).then(|| (id.as_bytes(), period("1h").span()));
        key.call(limit, seconds(*at), Call::Charge(units(*cost), id));
    }
    key
}

/// Settles the call of an id at `reduction` units less, also on a replica. Returns the units that were taken back.
fn settle<L: Limit>(key: &mut Key<L::Usage>, limit: &L, at: u64, id: &str, reduction: u64) -> u64 {
    let before = key.clone();
    let effect = key.call(limit, seconds(at), Call::Settle(id.as_bytes(), units(reduction)));
    let now = seconds(at);
    let taken = limit.remaining(&key.usage, now).minus(limit.remaining(&before.usage, now));
    let mut replica = before;
    replica.apply_effect(&effect);
    key.remove_unused();
    assert_eq!(replica.encoded(), key.encoded());
    taken.whole_units()
}

/// Charged amount at each place: a slot or a timestamp.
type Places = BTreeMap<i128, i128>;

fn refund_oldest_first(places: &mut Places, mut amount: i128) {
    for count in places.values_mut() {
        let taken = amount.min(*count);
        *count -= taken;
        amount -= taken;
    }
}
