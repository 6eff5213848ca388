use super::*;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::log::{SlidingLog, SlidingLogUsage};
use crate::composite::idempotency::MAX_CHARGES;
use crate::testing::calls::{millionths, period, units, us};
use crate::testing::encoded_fields::{EncodedFields, encoded};
use crate::wire::codec::Discard;
use proptest::collection::vec;
use proptest::prelude::*;

impl IdempotencyRecords {
    /// Unpacks the records, and makes an index, as for many calls, so that they stay unpacked.
    pub(crate) fn unpack_permanently(&mut self) -> Option<&mut OpenRecords> {
        let open = self.open()?;
        open.calls.make_index();
        Some(open)
    }

    pub(crate) fn has_changed(&self) -> bool {
        match &self.0 {
            Form::Packed(_) => false,
            Form::Open(open) => {
                let has_changed = open.settlements.iter().any(|(_, settlement)| settlement.has_changed());
                !open.calls.has_been_large() || open.calls.has_changed() || has_changed
            }
        }
    }
}

impl OpenRecords {
    pub(crate) fn drop_settlement(&mut self, serial: u8) {
        self.settlements.retain(|(stored, _)| *stored != serial);
    }
}

/// Key with a fixed window and a log that each call charges. Its records are always unpacked if `UNPACKED` is `true`.
#[derive(Clone, Debug, Default)]
struct Key<const UNPACKED: bool> {
    records: IdempotencyRecords,
    usages: (<FixedWindow as Limit>::Usage, <SlidingLog as Limit>::Usage),
    effect: EncodedFields,
}

#[derive(Clone, Debug)]
enum Step {
    /// Moves the clock forward by this many microseconds.
    Forward(u64),
    /// Moves the clock back by this many microseconds.
    Back(u64),
    Charge {
        cost: u64,
        id: Option<u8>,
        ttl: u64,
    },
    Refund(u64),
    Settle(u8, u64),
}

const WINDOW: u8 = 0;
const LOG: u8 = 1;

impl<const UNPACKED: bool> Key<UNPACKED> {
    fn records(&mut self) -> &mut IdempotencyRecords {
        if UNPACKED {
            self.records.unpack_permanently().unwrap();
        }
        &mut self.records
    }

    fn step(&mut self, step: &Step, before: Timestamp, now: Timestamp) {
        let (window, log) = (FixedWindow::new(units(9), period("1ms")), SlidingLog::new(units(9), period("1ms")));
        let usages = self.usages.clone();
        match step {
            Step::Forward(_) => {}
            Step::Back(_) => {
                if now < before {
                    let back = before.since(now);
                    let records = self.records();
                    records.move_charges_back(WINDOW, &usages.0, now);
                    records.move_charges_back(LOG, &usages.1, now);
                    records.move_back(back);
                    self.usages.0.move_back(now);
                    self.usages.1.move_back(now);
                }
            }
            Step::Charge { cost, id, ttl } => {
                let (id, cost) = (id.map(|id| format!("id-{id}")), millionths(*cost));
                let id = id.as_ref().map(String::as_bytes);
                self.records().sweep(now, id);
                if id.is_some_and(|id| self.records.find(id, now).is_some()) {
                    return self.record_effect();
                }
                self.change(&window, &log, Change::Charge(cost), now);
                let Some(id) = id else { return self.record_effect() };
                let usages = self.usages.clone();
                let records = self.records();
                let charges = [records.charge(WINDOW, &usages.0, cost), records.charge(LOG, &usages.1, cost)];
                let call = RecordedCall {
                    expires_at: now.plus(Span::from_micros(*ttl)),
                    hold_until: now,
                    settled: false,
                    forced: *ttl % 2 == 0,
                    granted: (*ttl % 3 == 0).then(|| units(1)),
                    charges: charges.into_iter().flatten().collect::<Vec<_>>(),
                };
                records.record_call(id, &call);
                self.record_effect();
            }
            Step::Refund(amount) => {
                self.records().sweep(now, None);
                self.change(&window, &log, Change::Refund(millionths(*amount)), now);
                self.record_effect();
            }
            Step::Settle(id, amount) => {
                let id = format!("id-{id}");
                self.records().sweep(now, None);
                let charges = self.records().settle(id.as_bytes(), now).unwrap_or_default();
                for charge in &charges {
                    let reduction = charge.cost.minus(millionths(*amount));
                    match charge.component {
                        WINDOW => self.records.settle_charge(&mut self.usages.0, charge, reduction),
                        _ if reduction == Amount::ZERO => self.records.forget(charge),
                        _ => self.records.settle_charge(&mut self.usages.1, charge, reduction),
                    }
                }
                self.record_effect();
            }
        }
    }

    fn change(&mut self, window: &FixedWindow, log: &SlidingLog, change: Change, now: Timestamp) {
        let (mut window_usage, mut log_usage) = self.usages.clone();
        let records = self.records();
        records.before_change(WINDOW, window, &window_usage, now, change);
        records.before_change(LOG, log, &log_usage, now, change);
        change.apply(window, &mut window_usage, now);
        change.apply(log, &mut log_usage, now);
        log_usage.encode_effect(&mut Discard);
        self.usages = (window_usage, log_usage);
    }

    /// Records the effect of a step. A settlement that is not in the effect is treated like an unchanged one.
    fn record_effect(&mut self) {
        let mut effect = EncodedFields::default();
        self.records.encode_effect(&mut effect);
        for serial in [WINDOW, LOG] {
            let mut sent = EncodedFields::default();
            self.records.encode_settlement_effect(serial, &mut sent);
            if sent != EncodedFields::integers([1, 0]) && sent != EncodedFields::integers([0]) {
                sent.clone().numbers().into_iter().for_each(|number| Encoder::integer(&mut effect, number));
            }
        }
        self.effect = effect;
        self.records.close();
    }

    fn stored(&self) -> (EncodedFields, Vec<EncodedFields>) {
        let mut calls = EncodedFields::default();
        self.records.encode(&mut calls);
        let settlement = |serial| {
            let mut settlement = EncodedFields::default();
            self.records.encode_settlement(serial, &mut settlement);
            settlement
        };
        (calls, vec![settlement(WINDOW), settlement(LOG), encoded(&self.usages.0), encoded(&self.usages.1)])
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => (0..300u64).prop_map(Step::Forward),
        1 => (0..100u64).prop_map(Step::Back),
        8 => (1..900_000u64, proptest::option::weighted(0.8, 0..40u8), prop_oneof![3 => 1000..9000u64, 1 => 1..400u64])
            .prop_map(|(cost, id, ttl)| Step::Charge { cost, id, ttl }),
        1 => (1..900_000u64).prop_map(Step::Refund),
        2 => (0..40u8, prop_oneof![Just(0), 0..900_000u64]).prop_map(|(id, amount)| Step::Settle(id, amount)),
    ];
    vec(step, 1..=80)
}

proptest! {
    #[test]
    fn packed_and_unpacked_records_are_equivalent(steps in steps()) {
        let (mut packed, mut unpacked) = (Key::<false>::default(), Key::<true>::default());
        let mut now = us(1000);
        for step in &steps {
            let before = now;
            now = match step {
                Step::Forward(micros) => now.plus(Span::from_micros(*micros)),
                Step::Back(micros) => now.minus(Span::from_micros(*micros)),
                _ => now,
            };
            packed.step(step, before, now);
            unpacked.step(step, before, now);
            prop_assert_eq!(packed.stored(), unpacked.stored(), "after {:?}", step);
            prop_assert_eq!(&packed.effect, &unpacked.effect, "after {:?}", step);
            let (packed, unpacked) = (&packed.records, &unpacked.records);
            prop_assert_eq!((packed.len(), packed.last_expiry()), (unpacked.len(), unpacked.last_expiry()));
            for id in 0..40u8 {
                let id = format!("id-{id}");
                prop_assert_eq!(packed.find(id.as_bytes(), now), unpacked.find(id.as_bytes(), now));
                prop_assert_eq!(packed.charges_of(id.as_bytes(), now), unpacked.charges_of(id.as_bytes(), now));
            }
            prop_assert_eq!(packed.len_with_another(now), unpacked.len_with_another(now));
        }
    }
}

#[test]
fn records_are_packed_up_to_the_maximum_and_again_below_a_quarter() {
    let mut records = IdempotencyRecords::default();
    let call = |expires_at| RecordedCall {
        expires_at: us(expires_at),
        hold_until: us(0),
        settled: false,
        forced: false,
        granted: None,
        charges: Box::default(),
    };
    let is_packed = |records: &IdempotencyRecords| matches!(records.0, Form::Packed(_));
    for n in 0..40 {
        records.record_call(format!("id-{n}").as_bytes(), &call(100 + n));
        records.close();
        assert_eq!(is_packed(&records), n < 16, "{n}");
        let count = usize::try_from(n).unwrap() + 1;
        assert_eq!(records.free_effort(), 1, "the records are in one block");
        let lens = [99, 100].map(|now| records.len_with_another(us(now)));
        assert_eq!(lens, [count + 1, count], "the first id expires at 100");
    }
    assert!(records.heap_size() > 40 * "id-10".len());
    let mut sweeps = vec![];
    while !records.is_empty() {
        records.sweep(us(140 - u64::try_from(records.len()).unwrap()), None);
        records.close();
        sweeps.push((records.len(), is_packed(&records)));
    }
    assert!(sweeps.iter().all(|(remaining, is_packed)| *is_packed == (*remaining <= 4)), "{sweeps:?}");
    assert_eq!(records.heap_size(), 0);
}

#[test]
fn longest_record_fits_into_a_block() {
    let mut records = IdempotencyRecords::default();
    let (id, max) = ([b'x'; 256], Amount::MAX_ARGUMENT);
    let usage = {
        let (log, mut usage) = (SlidingLog::new(max, period("3650d")), SlidingLogUsage::default());
        log.charge(&mut usage, Timestamp::MAX, max);
        usage
    };
    for serial in 0..8 {
        let log = SlidingLog::new(max, period("3650d"));
        records.charge(serial, &usage, max).unwrap();
        records.before_change(serial, &log, &usage, Timestamp::MAX, Change::Refund(max));
    }
    let charges: Box<[Charge]> = (0..8).filter_map(|serial| records.charge(serial, &usage, max)).collect();
    assert_eq!(charges.len(), MAX_CHARGES);
    let (at, granted) = (Timestamp::MAX, Some(max));
    let call = RecordedCall { expires_at: at, hold_until: at, settled: false, forced: true, granted, charges };
    records.record_call(&id, &call);
    records.close();
    assert_eq!(records.charges_of(&id, us(0)), call.charges);
}

#[test]
fn few_decoded_records_are_packed() {
    let mut key = Key::<false>::default();
    for id in 0..17 {
        key.step(&Step::Charge { cost: 1, id: Some(id), ttl: 1000 }, us(1000), us(1000));
        let (mut calls, settlements) = key.stored();
        let settlements = [WINDOW, LOG].map(|serial| {
            let mut fields = settlements[usize::from(serial)].clone();
            assert_eq!(Decoder::integer(&mut fields), Some(1), "charges may be settled");
            (serial, Settlement::decode(&mut fields).unwrap())
        });
        let decoded = IdempotencyRecords::decode(&mut calls, us(1000), settlements.into()).unwrap();
        assert_eq!(matches!(decoded.0, Form::Packed(_)), id < 16, "{id}");
    }
    let unpacked = key.records.unpack_permanently().unwrap();
    let marks = unpacked.settlement(WINDOW).unwrap().heap_size();
    let calls = unpacked.calls.heap_size();
    assert!(marks > 17 * 16 && key.records.heap_size() > size_of::<OpenRecords>() + marks + calls);
}

#[test]
fn charges_of_a_log_move_back_with_the_clock() {
    let (mut packed, mut unpacked) = (Key::<false>::default(), Key::<true>::default());
    let charge = Step::Charge { cost: 1, id: Some(0), ttl: 5000 };
    packed.step(&charge, us(1000), us(1000));
    unpacked.step(&charge, us(1000), us(1000));
    packed.step(&Step::Back(600), us(1000), us(400));
    unpacked.step(&Step::Back(600), us(1000), us(400));
    for records in [packed.records, unpacked.records] {
        let charges = records.charges_of(b"id-0", us(400));
        assert_eq!(charges.iter().find(|charge| charge.component == LOG).unwrap().place, Some(us(400)));
    }
}

#[test]
fn decoded_settlement_has_a_charge_for_each_mark() {
    let decode = |settlement: &[u64]| {
        let mut calls = EncodedFields::integers([1]).then(b"a", [2000, 0, 0, 1, 0, 1, 0, 0, 0]);
        let settlement = Settlement::decode(&mut EncodedFields::integers(settlement.iter().copied())).unwrap();
        IdempotencyRecords::decode(&mut calls, us(1000), vec![(0, settlement)])
    };
    assert!(decode(&[0, 2, 2, 1, 0, 1]).is_some());
    assert!(decode(&[0, 2, 2, 2, 0, 1, 1, 1]).is_none());
}
