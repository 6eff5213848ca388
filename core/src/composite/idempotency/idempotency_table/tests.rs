use super::super::idempotency_change::{IdempotencyChange, NOTHING, RECORDS, SETTLES};
use super::super::recorded_call::{FORCED, GRANTED, SETTLED};
use super::*;
use crate::algorithm::sliding_window::{SlidingWindow, SlidingWindowUsage};
use crate::composite::idempotency::Settlement;
use crate::limit::Limit;
use crate::number::{Amount, Period};
use crate::testing::calls::{units, us};
use crate::testing::encoded_fields::EncodedFields;
use crate::testing::step_counter;
use proptest::collection::vec;
use proptest::prelude::*;

impl IdempotencyTable {
    pub(crate) fn has_changed(&self) -> bool {
        !matches!(self.delta, IdempotencyDelta::Nothing)
    }

    /// Decodes a table, and accepts any charges.
    pub(crate) fn decode_any(from: &mut impl Decoder, written: Timestamp) -> Option<IdempotencyTable> {
        IdempotencyTable::decode(from, written, |_| true)
    }

    /// Returns the charges that can be settled.
    pub(crate) fn charges(&self) -> Vec<Charge> {
        self.calls().into_iter().flat_map(|(_, call)| call.charges).collect()
    }

    /// Returns the ids and their calls, in the order in which they expire.
    pub(crate) fn calls(&self) -> Vec<(Box<[u8]>, RecordedCall)> {
        let call = |record: Record| (record.name.into(), RecordedCall::read(&record, self.shift).unwrap().boxed());
        self.calls.iter().map(call).collect()
    }

    /// Makes an index, as for a large table.
    pub(crate) fn make_index(&mut self) {
        self.calls.make_index();
    }
}

fn call(expires_at: u64, charges: &[Charge]) -> RecordedCall {
    let (expires_at, hold_until) = (us(expires_at), us(7));
    RecordedCall { expires_at, hold_until, settled: false, forced: false, granted: None, charges: charges.into() }
}

/// Returns the first charge of a component.
fn charge(component: u8) -> Charge {
    Settlement::default().charge(&SlidingWindowUsage::default(), component, units(2)).unwrap()
}

fn ids(calls: &[(&str, u64)]) -> IdempotencyTable {
    let mut ids = IdempotencyTable::default();
    for (id, expires_at) in calls {
        ids.record_call(id.as_bytes(), &call(*expires_at, &[charge(1)]));
    }
    ids
}

fn encoded(ids: &IdempotencyTable) -> EncodedFields {
    let mut fields = EncodedFields::default();
    ids.encode(&mut fields);
    fields
}

fn encoded_effect(ids: &mut IdempotencyTable) -> EncodedFields {
    let mut fields = EncodedFields::default();
    ids.encode_effect(&mut fields);
    fields
}

fn names(ids: &IdempotencyTable) -> Vec<Box<[u8]>> {
    ids.calls().into_iter().map(|(id, _)| id).collect()
}

fn boxed_names<const COUNT: usize>(names: [&str; COUNT]) -> Vec<Box<[u8]>> {
    names.map(|name| name.as_bytes().into()).into()
}

#[test]
fn id_is_found_until_it_expires() {
    let ids = ids(&[("a", 100)]);
    assert_eq!(ids.find(b"a", us(99)), Some(call(100, &[charge(1)])));
    assert_eq!((ids.find(b"a", us(100)), ids.find(b"b", us(0))), (None, None));
    assert_eq!((ids.len(), ids.is_empty(), ids.last_expiry()), (1, false, Some(us(100))));
    assert_eq!((IdempotencyTable::default().is_empty(), IdempotencyTable::default().last_expiry()), (true, None));
    assert_eq!((ids.first_expiry(), IdempotencyTable::default().first_expiry()), (Some(us(100)), None));
}

#[test]
fn change_sweeps_the_first_expired_ids() {
    let calls: Vec<(String, u64)> = (0..40).map(|id| (format!("{id:02}"), 100 + id / 20)).collect();
    let calls: Vec<_> = calls.iter().rev().map(|(id, expires_at)| (&**id, *expires_at)).collect();
    let mut ids = ids(&calls);
    let mut swept = 0;
    ids.sweep(us(99), None, |_| swept += 1);
    assert_eq!((swept, ids.len()), (0, 40));
    for (now, remaining) in [(100, 24), (100, 20), (100, 20), (101, 4), (101, 0)] {
        ids.sweep(us(now), None, |swept_charge| {
            assert_eq!(*swept_charge, charge(1));
            swept += 1;
        });
        assert_eq!((ids.len(), swept), (remaining, 40 - remaining));
        let first = 40 - remaining;
        assert!(names(&ids).first().is_none_or(|id| **id == *format!("{first:02}").as_bytes()));
    }
}

#[test]
fn new_id_is_swept_if_it_has_expired() {
    let calls: Vec<(String, u64)> = (0..20).map(|id| (format!("{id:02}"), 100)).collect();
    let calls: Vec<_> = calls.iter().map(|(id, expires_at)| (&**id, *expires_at)).collect();
    let mut ids = ids(&calls);
    let mut swept = 0;
    ids.sweep(us(100), Some(b"19"), |_| swept += 1);
    assert_eq!((swept, names(&ids)), (17, boxed_names(["16", "17", "18"])));
    ids.record_call(b"19", &call(200, &[]));
    ids.sweep(us(150), Some(b"19"), |_| {});
    assert_eq!(names(&ids), boxed_names(["19"]));
}

#[test]
fn call_is_settled_once() {
    let mut ids = ids(&[("a", 100)]);
    assert_eq!((ids.settle(b"a", us(100)), ids.settle(b"b", us(0))), (None, None));
    assert_eq!(ids.settle(b"a", us(99)), Some([charge(1)].into()));
    assert_eq!(ids.settle(b"a", us(99)), None);
    assert_eq!(ids.find(b"a", us(99)), Some(RecordedCall { settled: true, ..call(100, &[]) }));
    assert_eq!(ids.charges(), []);
}

#[test]
fn clock_step_back_shifts_all_timestamps() {
    let mut moved = ids(&[("b", 100), ("a", 102), ("c", 200)]);
    moved.move_back(Span::from_micros(10));
    let found = moved.find(b"b", us(0)).unwrap();
    assert_eq!((found.expires_at, found.hold_until), (us(90), us(0)));
    // Calls that are moved to the epoch are ordered by their ids.
    moved.move_back(Span::from_micros(95));
    assert_eq!(names(&moved), boxed_names(["a", "b", "c"]));
    let decoded = IdempotencyTable::decode_any(&mut encoded(&moved), us(0)).unwrap();
    assert_eq!(encoded(&decoded), encoded(&moved));
    assert_eq!(names(&decoded), names(&moved));
    assert_eq!(moved.last_expiry(), Some(us(95)));
    moved.sweep(us(0), None, |_| {});
    assert_eq!(names(&moved), boxed_names(["c"]));
}

#[test]
fn clock_may_cross_its_whole_range_repeatedly() {
    let mut ids = IdempotencyTable::default();
    for _ in 0..100 {
        ids.record_call(b"a", &call(Timestamp::MAX.micros(), &[]));
        ids.move_back(Span::MAX.minus(Span::SECOND));
        let found = ids.find(b"a", us(0)).unwrap();
        assert_eq!((found.expires_at, found.hold_until), (us(1_000_000), us(0)));
        ids.sweep(us(1_000_000), None, |_| {});
        assert!(ids.is_empty());
    }
}

#[test]
fn clock_step_back_rewrites_no_records() {
    let mut ids = IdempotencyTable::default();
    for id in 0..1000_u64 {
        ids.record_call(&id.to_be_bytes(), &call(1_000_000, &[]));
    }
    assert_eq!(step_counter::count_without_copies(|| ids.move_back(Span::SECOND.times(1).minus(Span::MICROSECOND))), 0);
    assert_eq!(step_counter::count(|| ids.sweep(us(1), None, |_| {})), 16);
}

#[test]
fn memory_of_expired_ids_is_freed() {
    let mut ids = IdempotencyTable::default();
    for id in 0..1000_u64 {
        ids.record_call(&id.to_be_bytes(), &call(100, &[]));
    }
    let full_size = ids.heap_size();
    while !ids.is_empty() {
        ids.sweep(us(100), None, |_| {});
    }
    assert!(ids.heap_size() < full_size / 50, "{} of {full_size} bytes", ids.heap_size());
}

#[test]
fn memory_of_an_id_is_bounded() {
    for count in [1000, 10_000, 100_000_u64] {
        let mut ids = IdempotencyTable::default();
        for id in 0..count {
            let id_text = format!("{id:036}");
            ids.record_call(id_text.as_bytes(), &call(1_700_086_400_000_000 + id, &[charge(1)]));
        }
        let bytes = u64::try_from(ids.heap_size()).unwrap() / count;
        assert!((60..110).contains(&bytes), "{bytes} bytes per id, for {count} ids");
    }
}

#[test]
fn charges_of_a_component_move_back_with_its_usage() {
    let limit = SlidingWindow::new(units(9), Period::new(Span::SECOND).unwrap());
    let mut usage = SlidingWindowUsage::default();
    limit.charge(&mut usage, us(500), units(2));
    let mut ids = IdempotencyTable::default();
    for (id, component) in [(b"a", 1), (b"b", 2)] {
        ids.record_call(id, &call(1000, &[Settlement::default().charge(&usage, component, units(2)).unwrap()]));
    }
    let places = |ids: &IdempotencyTable| [b"a", b"b"].map(|id| ids.find(id, us(0)).unwrap().charges[0].place);
    ids.move_charges_back(1, &usage, us(500));
    assert_eq!(places(&ids), [Some(us(500)); 2]);
    ids.move_charges_back(1, &usage, us(100));
    assert_eq!(places(&ids), [Some(us(100)), Some(us(500))]);
    // A place that would be before the epoch is lost.
    ids.move_charges_back(1, &usage, us(399));
    ids.move_charges_back(2, &usage, us(0));
    assert_eq!(places(&ids), [None, Some(us(0))]);
}

#[test]
fn effect_contains_the_change_of_a_call() {
    let mut ids = ids(&[]);
    assert_eq!(encoded_effect(&mut ids), EncodedFields::integers([NOTHING]));
    let upto = RecordedCall { granted: Some(units(2)), ..call(100, &[charge(3)]) };
    ids.record_call(b"a", &upto.clone());
    let sent = encoded_effect(&mut ids);
    let two = units(2).millionths();
    assert_eq!(sent, EncodedFields::integers([RECORDS]).then(b"a", [100, 7, GRANTED, two, 1, 3, two]));
    let change = IdempotencyChange::decode(&mut sent.clone(), us(0)).unwrap();
    assert_eq!(change, IdempotencyChange::RecordedCall(b"a"[..].into(), upto.with([(3, units(2))].into())));
    assert!(sent.proper_prefixes().all(|mut sent| IdempotencyChange::decode(&mut sent, us(0)).is_none()));
    assert_eq!(encoded_effect(&mut ids), EncodedFields::integers([NOTHING]));

    ids.settle(b"a", us(1));
    let sent = encoded_effect(&mut ids);
    assert_eq!(sent, EncodedFields::integers([SETTLES]).then(b"a", []));
    assert_eq!(IdempotencyChange::decode(&mut sent.clone(), us(0)), Some(IdempotencyChange::Settled(b"a"[..].into())));
    assert!(sent.proper_prefixes().all(|mut sent| IdempotencyChange::decode(&mut sent, us(0)).is_none()));

    // A change whose effect was not encoded is not part of the next effect.
    ids.record_call(b"b", &call(100, &[]));
    ids.sweep(us(1), None, |_| {});
    assert_eq!(encoded_effect(&mut ids), EncodedFields::integers([NOTHING]));
}

#[test]
fn impossible_change_is_rejected() {
    let mut recorded = ids(&[("a", 100), ("s", 100)]);
    recorded.settle(b"s", us(1));
    let settles = |id: &str| IdempotencyChange::Settled(id.as_bytes().into());
    let records =
        |id: &str, call: RecordedCall| IdempotencyChange::RecordedCall(id.as_bytes().into(), call.with(Box::default()));
    let back = Span::from_micros(50);
    for (change, now, back, accepted) in [
        (IdempotencyChange::Nothing, 1, Span::ZERO, true),
        (settles("a"), 99, Span::ZERO, true),
        (settles("a"), 49, back, true),
        (settles("a"), 50, back, false),
        (settles("a"), 100, Span::ZERO, false),
        (settles("s"), 1, Span::ZERO, false),
        (settles("b"), 1, Span::ZERO, false),
        (records("b", call(100, &[])), 99, Span::ZERO, true),
        (records("b", call(100, &[])), 100, Span::ZERO, false),
        (records("a", call(200, &[])), 99, Span::ZERO, false),
        (records("a", call(200, &[])), 100, Span::ZERO, true),
        (records("a", call(200, &[])), 50, back, true),
        (records("b", RecordedCall { settled: true, ..call(100, &[]) }), 1, Span::ZERO, false),
    ] {
        let is_possible = change.is_possible(us(now), |id| recorded.find(id, us(now).plus(back)));
        assert_eq!(is_possible, accepted, "{change:?} at {now}");
    }
    let last = Timestamp::MAX.micros();
    assert!(records("b", call(last, &[])).is_possible(Timestamp::MAX, |_| None::<RecordedCall>));

    let (two, max) = (units(2).millionths(), Amount::MAX_ARGUMENT.millionths());
    let records = |rest: &[u64]| EncodedFields::integers([RECORDS]).then(b"a", rest.iter().copied());
    for (effect, accepted) in [
        (records(&[100, 7, 0, 0]), true),
        (records(&[100, 7, FORCED, 2, 1, two, 2, two]), true),
        (records(&[100, 7, 0, 1, 1, max]), true),
        (records(&[100, 7, GRANTED, max, 0]), true),
        (records(&[100, 7, SETTLED | FORCED, 0]), true),
        (records(&[100, 7, 0, 2, 1, two, 1, two]), false),
        (records(&[100, 7, 0, 1, 1, 0]), false),
        (records(&[100, 7, 0, 1, 1, max + 1]), false),
        (records(&[100, 7, 0, 1, u64::from(u32::MAX) + 1, two]), false),
        (records(&[100, 7, 0, 9, 1, two, 2, two, 3, two, 4, two, 5, two, 6, two, 7, two, 8, two, 9, two]), false),
        (records(&[100, 7, 0, 8, 1, two, 2, two, 3, two, 4, two, 5, two, 6, two, 7, two, 8, two]), true),
        (records(&[100, 7, FORCED | GRANTED, two, 0]), true),
        (records(&[100, 7, GRANTED, 0, 0]), false),
        (records(&[100, 7, GRANTED, two + 1, 0]), false),
        (records(&[100, 7, GRANTED, max + two, 0]), false),
        (records(&[100, 7, 8, 0]), false),
        (records(&[last + 1, 7, 0, 0]), false),
        (records(&[100, last + 1, 0, 0]), false),
        (records(&[Span::MAX_ARGUMENT.micros() + 5, 7, 0, 0]), true),
        (records(&[Span::MAX_ARGUMENT.micros() + 6, 7, 0, 0]), false),
        (EncodedFields::integers([RECORDS]).then(b"", [100, 7, 0, 0]), false),
        (EncodedFields::integers([RECORDS]).then(&[b'a'; 256], [100, 7, 0, 0]), true),
        (EncodedFields::integers([RECORDS]).then(&[b'a'; 257], [100, 7, 0, 0]), false),
        (EncodedFields::integers([SETTLES]).then(b"", []), false),
        (EncodedFields::integers([3]).then(b"a", []), false),
    ] {
        assert_eq!(IdempotencyChange::decode(&mut effect.clone(), us(5)).is_some(), accepted, "{effect:?}");
    }
}

#[test]
fn impossible_table_is_rejected() {
    let two = units(2).millionths();
    let begin = |count: u64| EncodedFields::integers([count]);
    for (fields, accepted) in [
        (begin(0), true),
        (begin(1).then(b"a", [3, 7, 0, 0]), true),
        (begin(1).then(b"a", [3, 7, SETTLED, 0]), true),
        (begin(1).then(b"a", [3, 7, 0, 2, 1, two, 0, 0, 0, 2, two, 5, 1, 9, 3]), true),
        (begin(2).then(b"b", [3, 7, 0, 0]).then(b"a", [4, 7, 0, 0]), true),
        (begin(2).then(b"a", [3, 7, 0, 0]).then(b"b", [3, 7, 0, 0]), true),
        (begin(2).then(b"b", [3, 7, 0, 0]).then(b"a", [3, 7, 0, 0]), false),
        (begin(2).then(b"a", [4, 7, 0, 0]).then(b"b", [3, 7, 0, 0]), false),
        (begin(2).then(b"a", [3, 7, 0, 0]).then(b"a", [3, 7, 0, 0]), false),
        (begin(2).then(b"a", [3, 7, 0, 0]).then(b"a", [4, 7, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, SETTLED, 1, 1, two, 0, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 2, 1, two, 0, 0, 0, 1, two, 0, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 1, 1, 0, 0, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 1, 1, Amount::MAX_ARGUMENT.millionths() + 1, 0, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 1, 1, two, 0, 2, 0, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 1, 1, two, 0, 1, Timestamp::MAX.micros() + 1, 0]), false),
        (begin(1).then(b"a", [3, 7, 0, 1, 1, two, 0, 0, Amount::MAX.millionths() + 1]), false),
    ] {
        let decoded = IdempotencyTable::decode_any(&mut fields.clone(), us(5));
        assert_eq!(decoded.as_ref().map(encoded), accepted.then_some(fields.clone()), "{fields:?}");
        if accepted {
            assert!(
                fields
                    .proper_prefixes()
                    .all(|mut truncated| IdempotencyTable::decode_any(&mut truncated, us(5)).is_none())
            );
        }
    }
}

proptest! {
    /// A decoded table changes like the original. In each step, action 0 also moves the clock back, and action 1
    /// settles the id; all others record it.
    #[test]
    fn table_equals_its_decoded_copy(steps in vec((0..30u8, 0..60u64, 0..40u64, 0..4u8), 1..80), begin in 0..100u64) {
        let (mut ids, mut now) = (IdempotencyTable::default(), begin);
        for (id, ttl, span, action) in steps {
            let mut decoded = IdempotencyTable::decode_any(&mut encoded(&ids), us(now)).unwrap();
            let back = if action == 0 { span.min(now) } else { 0 };
            now = if action == 0 { now - back } else { now + span / 8 };
            let mut swept = [Vec::new(), Vec::new()];
            for (ids, swept) in [&mut ids, &mut decoded].into_iter().zip(&mut swept) {
                ids.move_back(Span::from_micros(back));
                let name = [id];
                let new_id = (action != 1).then_some(&name[..]);
                ids.sweep(us(now), new_id, |charge| swept.push(*charge));
                if action == 1 {
                    ids.settle(&[id], us(now));
                } else if ids.find(&[id], us(now)).is_none() {
                    let call = RecordedCall { granted: Some(units(1)), ..call(now + ttl + 1, &[charge(id)]) };
                    ids.record_call(&[id], &call);
                }
            }
            prop_assert_eq!(encoded(&ids), encoded(&decoded));
            prop_assert_eq!(&swept[0], &swept[1]);
            prop_assert_eq!(ids.calls().len(), ids.len());
        }
    }
}
