//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

mod cells_in_memory;
mod item_takes;
mod stored_sketch;

use super::*;
use crate::algorithm::bucket::Discipline;
use crate::evaluate::Request::{Force, Take, UpTo};
use crate::evaluate::{Change, Request, evaluate};
use crate::limit::{InfoField, Usage};
use crate::number::Period;
use crate::round_trip;
use crate::testing::calls::{
    Call, Key, amount_of, amounts, call, call_and_encode_effect, lengths, millionths, moved_back_to, peek, period,
    scripts, units, us,
};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::Lawful;
use crate::wire::codec::WHOLE;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Secret of sketches whose effects and encodings are compared.
const SECRET: Secret = Secret { halves: [7, 11] };

const ITEMS: [&[u8]; 6] = [b"", b"a", b"b", b"203.0.113.7", b"\0\xff", b"2001:db8::/64"];

fn bucket(capacity: u64, refill: u64, every: &str) -> Bucket {
    Bucket::new(units(capacity), units(refill), period(every), Discipline::Burst).unwrap()
}

/// Creates a sketch with few columns, so that items collide, or with many, so that they do not.
fn sketch(columns: u32, bucket: Bucket) -> Sketch {
    Sketch::new(bucket, Some(SketchSize::of_columns(columns)))
}

impl ItemLimit<'_> {
    fn with_secret(self, secret: Secret) -> Self {
        ItemLimit { secret: Some(secret), ..self }
    }
}

fn item_limit(sketch: Sketch, item: &[u8]) -> ItemLimit<'_> {
    sketch.for_item(item).with_secret(SECRET)
}

fn take_one() -> Request {
    Take(units(1))
}

#[test]
fn each_item_has_its_own_bucket() {
    let (limits, mut key) = (sketch(4096, bucket(3, 1, "1s")), Key::default());
    let limit_of = |item| item_limit(limits, item);
    for (item, at, request, reply) in [
        (b"a", 0, take_one(), [1, 3, 2, 0, 1000]),
        (b"a", 0, Take(units(2)), [1, 3, 0, 0, 3000]),
        (b"a", 0, take_one(), [0, 3, 0, 1000, 3000]),
        (b"b", 0, take_one(), [1, 3, 2, 0, 1000]),
        (b"a", 1000, take_one(), [1, 3, 0, 0, 3000]),
        (b"b", 1000, UpTo(units(9)), [1, 3, 0, 0, 3000]),
        (b"a", 1000, Take(units(4)), [0, 3, 0, -1, 3000]),
        (b"c", 1000, Force(units(5)), [0, 3, 0, 2000, 5000]),
        (b"c", 2500, Take(millionths(0)), [0, 3, 0, 500, 3500]),
        (b"c", 5999, take_one(), [1, 3, 1, 0, 1001]),
    ] {
        assert_eq!(key.call(&limit_of(item), at, request), reply, "{request:?} of {item:?} at {at}");
    }
    assert!(!key.is_deleted());
}

#[test]
fn item_with_shared_cells_is_denied_too_early_but_never_too_late() {
    // With one column, all items share their cells.
    let (limits, mut key) = (sketch(1, bucket(3, 1, "1s")), Key::default());
    assert_eq!(key.call(&item_limit(limits, b"a"), 0, Take(units(2))), [1, 3, 1, 0, 2000]);
    assert_eq!(key.call(&item_limit(limits, b"b"), 0, take_one()), [1, 3, 0, 0, 3000]);
    assert_eq!(key.call(&item_limit(limits, b"c"), 0, take_one()), [0, 3, 0, 1000, 3000]);
    assert_eq!(key.call(&item_limit(limits, b"c"), 1000, take_one()), [1, 3, 0, 0, 3000]);
}

#[test]
fn only_cells_below_the_usage_are_raised() {
    // Two items that share three of their cells.
    let size = SketchSize::of_columns(4);
    let cells = |item: u32| SECRET.cells(size, &item.to_be_bytes());
    let shared = |item: u32| cells(0).iter().zip(cells(item)).filter(|(one, other)| *one == other).count();
    let other = (1..10_000).find(|item| shared(*item) == 3).unwrap();
    let limits = Sketch::new(bucket(10, 1, "1s"), Some(size));
    let (mut usage, now) = (SketchUsage::default(), us(1));
    for item in [0, other, other, 0] {
        assert!(call(&item_limit(limits, &item.to_be_bytes()), &mut usage, now, take_one()).verdict.allowed());
    }
    // Each item has used two units, and so do the three shared cells, not four.
    for item in [0, other] {
        assert_eq!(peek(&item_limit(limits, &item.to_be_bytes()), &usage, now, take_one()).remaining, units(8));
    }
}

#[test]
fn effect_contains_only_the_cells_that_the_call_raised() {
    // Two items that share all cells except that of the last row.
    let size = SketchSize::of_columns(4);
    let cells = |item: u32| SECRET.cells(size, &item.to_be_bytes());
    let other = (1..10_000).find(|item| cells(0)[..3] == cells(*item)[..3] && cells(0)[3] != cells(*item)[3]).unwrap();
    let limits = Sketch::new(bucket(10, 1, "1s"), Some(size));
    let raised = |item: u32, usage: &mut SketchUsage| {
        let (_, effect) = call_and_encode_effect(&item_limit(limits, &item.to_be_bytes()), usage, us(1), take_one());
        // The number of raised cells follows ten other words.
        let raised = effect.numbers().split_off(10);
        assert_eq!(raised.first().copied(), u64::try_from(raised.len() / 2).ok());
        raised.into_iter().skip(1).step_by(2).map(|cell| u32::try_from(cell).unwrap()).collect::<Vec<_>>()
    };
    let mut usage = SketchUsage::default();
    assert_eq!(raised(0, &mut usage), cells(0));
    // The three shared cells hold one unit already, in a piece that is shared with a copy and in one that is not.
    let mut copy = usage.clone();
    assert_eq!(raised(other, &mut copy), [cells(other)[3]]);
    drop(copy);
    assert_eq!(raised(other, &mut usage), [cells(other)[3]]);
    assert_eq!(raised(other, &mut usage), cells(other));
    assert_eq!(raised(0, &mut usage), [cells(0)[3]]);
}

#[test]
fn new_limit_applies_to_all_items_and_frees_no_usage() {
    let (slow, fast) = (sketch(4096, bucket(10, 1, "1s")), sketch(4096, bucket(20, 5, "1s")));
    let mut key = Key::default();
    assert_eq!(key.call(&item_limit(slow, b"a"), 0, Take(units(10))), [1, 10, 0, 0, 10_000]);
    assert_eq!(key.call(&item_limit(slow, b"b"), 0, Take(units(10))), [1, 10, 0, 0, 10_000]);
    // The usage stays. The time since the last charge drains it at the new rate.
    assert_eq!(key.call(&item_limit(fast, b"a"), 1000, take_one()), [1, 20, 14, 0, 1200]);
    assert_eq!(key.peek(&item_limit(slow, b"b"), 1000, take_one()), [1, 10, 5, 0, 5000]);
}

#[test]
fn sketch_keeps_the_size_of_its_first_charge() {
    let facts = |usage: &SketchUsage| usage.describe(us(0), None);
    let size_of = |usage: &SketchUsage| match facts(usage).first() {
        Some(("size", InfoField::Count(size))) => *size,
        other => unreachable!("{other:?}"),
    };
    let limits = |size| Sketch::new(bucket(5, 5, "1m"), size);
    let mut usage = SketchUsage::default();
    call(&limits(None).for_item(b"a"), &mut usage, us(0), take_one());
    assert_eq!(size_of(&usage), 1_048_576);
    // The default is global. No other test creates a sketch without a size.
    let (default_size, large) = (SketchSize::default_for_new_keys(), SketchSize::parse(b"2mb").unwrap());
    large.set_as_default();
    let mut larger = SketchUsage::default();
    call(&limits(None).for_item(b"a"), &mut larger, us(0), take_one());
    default_size.set_as_default();
    assert_eq!(size_of(&larger), 2_097_152);
    call(&limits(SketchSize::new(65_536)).for_item(b"a"), &mut usage, us(0), take_one());
    assert_eq!(size_of(&usage), 1_048_576);
    let mut small = SketchUsage::default();
    call(&limits(SketchSize::new(65_536)).for_item(b"a"), &mut small, us(0), take_one());
    assert_eq!(size_of(&small), 65_536);
    assert!(facts(&SketchUsage::default()).is_empty());
}

#[test]
fn secrets_of_keys_differ() {
    let new_secret = || {
        let mut usage = SketchUsage::default();
        call(&sketch(4096, bucket(5, 5, "1m")).for_item(b"a"), &mut usage, us(0), take_one());
        usage.hash_parameters().unwrap().1
    };
    assert_ne!(new_secret(), new_secret());
}

#[test]
fn description_shows_the_limit_and_the_shares() {
    let limited = Sketch::new(bucket(5, 5, "1m"), Some(SketchSize::of_columns(2))).limited_to(units(3));
    let mut usage = SketchUsage::default();
    assert_eq!(call(&item_limit(limited, b"a"), &mut usage, us(0), Take(units(3))).remaining, units(0));
    // The numbers include the amount to keep.
    let described = |usage: &SketchUsage, at| usage.describe(us(at), None);
    let text = |text: &str| InfoField::Text(text.to_owned());
    assert_eq!(
        described(&usage, 0),
        [
            ("size", InfoField::Count(64)),
            ("numbers", text("5 5 1m")),
            ("filled", text("0.5000")),
            ("unseen_denied", text("0.0000")),
        ]
    );
    call(&item_limit(limited, b"a"), &mut usage, us(0), Force(units(2)));
    assert_eq!(described(&usage, 0)[3].1, text("0.0625"));
    // The shares decrease as the cells drain.
    assert_eq!(described(&usage, 12_000_000)[3].1, text("0.0000"));
    assert_eq!(described(&usage, 60_000_000)[2].1, text("0.0000"));
}

#[test]
fn scaled_sketch_has_scaled_buckets() {
    let size = SketchSize::of_columns(64);
    let scaled = Sketch::new(bucket(9, 3, "1m"), Some(size)).limited_to(units(6)).scaled(millionths(500_000));
    assert_eq!(scaled.limit(), units(3));
    let mut usage = SketchUsage::default();
    // The buckets refill by 1.5 units per minute.
    assert_eq!(call(&item_limit(scaled, b"a"), &mut usage, us(0), Take(units(3))).reset, Span::SECOND.times(120));
    assert_eq!(
        usage.describe(us(0), None)[..2],
        [("size", InfoField::Count(size.bytes())), ("numbers", InfoField::Text("3 1.5 1m".to_owned()))]
    );
}

#[test]
fn debug_output_shows_the_used_cells() {
    let mut usage = SketchUsage::default();
    call(&item_limit(sketch(1, bucket(5, 5, "1m")), b"a"), &mut usage, us(0), Take(units(2)));
    let output = format!("{usage:?}");
    let used = "used: [(0, 2000000), (1, 2000000), (2, 2000000), (3, 2000000)]";
    assert!(output.starts_with("SketchUsage { fullest: ") && output.contains(used), "{output}");
    let mut sparse = SketchUsage::default();
    call(&item_limit(sketch(4096, bucket(5, 5, "1m")), b"a"), &mut sparse, us(0), take_one());
    assert_eq!(format!("{sparse:?}").matches(", 1000000)").count(), 4, "{sparse:?}");
}

#[test]
fn unseen_denied_is_close_to_the_measured_share() {
    for (items, calls) in [(1000_u32, 5), (3000, 5), (6000, 5), (20_000, 3)] {
        let limits = sketch(4096, bucket(5, 5, "1m"));
        let (mut usage, now) = (SketchUsage::default(), us(0));
        for item in 0..items {
            for _ in 0..calls {
                call(&item_limit(limits, &item.to_be_bytes()), &mut usage, now, take_one());
            }
        }
        let facts = usage.describe(now, None);
        let Some(("unseen_denied", InfoField::Text(estimate))) = facts.last() else { unreachable!("{facts:?}") };
        let estimate: u32 = estimate.replace('.', "").parse().unwrap();
        let unseen = (items..items + 10_000).map(u32::to_be_bytes);
        let denied =
            unseen.filter(|item| !peek(&item_limit(limits, item), &usage, now, take_one()).verdict.allowed()).count();
        let denied = u32::try_from(denied).unwrap();
        assert!(estimate.abs_diff(denied) <= 150, "{items} items: {estimate} estimated, {denied} of 10000 denied");
    }
}

impl Lawful for ItemLimit<'static> {
    fn limits() -> impl Strategy<Value = ItemLimit<'static>> {
        let item = select(ITEMS.to_vec());
        let columns = select(vec![1, 2, 3, 4096]);
        (amounts(), amounts(), lengths(), item, columns).prop_filter_map(
            "recovers too slowly",
            |(capacity, refill, period, item, columns)| {
                let period = Period::new(Span::from_micros(period)).unwrap();
                let (capacity, refill) = (Amount::saturating(capacity), Amount::saturating(refill));
                let bucket = Bucket::new(capacity, refill, period, Discipline::Burst).ok()?;
                Some(item_limit(sketch(columns, bucket), item))
            },
        )
    }

    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        self.sketch.bucket.check_guarantee(admitted);
    }

    /// Replaces refunds, which a sketch does not support.
    fn supported_request(request: Request) -> Request {
        if matches!(request, Request::Refund(_)) { Take(amount_of(request)) } else { request }
    }

    /// Lockout of a bucket, plus the time of the millionth by which an empty cell is charged too much.
    fn lockout_beyond_recovery(&self) -> Span {
        let [_, refill, period] = self.sketch.bucket.fields();
        self.sketch.bucket.lockout_beyond_recovery().plus(Span::from_micros(period / refill + 1))
    }
}

/// All laws except those about refunds, which a sketch does not support, and about recovered keys, because a new key
/// has another secret.
mod laws {
    use super::*;
    use crate::testing::laws;

    #[test]
    fn never_more_than_the_limit() {
        laws::never_more_than_the_limit::<ItemLimit>();
    }

    #[test]
    fn clock_step_back_frees_nothing_and_bounds_denials() {
        let law = laws::clock_step_back_frees_nothing_and_bounds_denials;
        laws::in_every_state::<ItemLimit>(1..=1, laws::without_debts, law);
    }

    #[test]
    fn move_back_moves_the_recovery_by_the_step() {
        laws::in_every_state::<ItemLimit>(1..=1, |operation| operation, laws::move_back_moves_the_recovery_by_the_step);
    }

    #[test]
    fn key_expires_soon_after_its_recovery() {
        laws::key_expires_soon_after_its_recovery::<ItemLimit>();
    }

    laws::laws!(ItemLimit:
        denied_call_changes_nothing,
        peek_changes_nothing,
        peek_after_clock_step_back_equals_peek_after_a_call,
        wait_is_exact,
        remaining_is_the_largest_cost_that_passes,
        encoding_round_trips,
        effect_applied_to_a_copy_gives_the_same_state,
    );

    #[test]
    fn recovered_item_equals_a_new_one() {
        laws::in_every_state::<ItemLimit>(
            1..=3,
            |operation| operation,
            |limit, usage, now, request| {
                let reset = peek(limit, usage, now, request).reset;
                let recovered = now.plus(reset);
                // Times saturate from the last timestamp on.
                if recovered < Timestamp::MAX {
                    let new_key = SketchUsage::default();
                    let (used, new) =
                        (peek(limit, usage, recovered, request), peek(limit, &new_key, recovered, request));
                    // The debt may be longer by the time of a millionth.
                    assert!(used == new || matches!(request, Force(_)), "{used:?} is not {new:?}");
                    assert_eq!(used.remaining, new.remaining);
                }
            },
        );
    }
}

#[test]
fn remaining_amount_is_that_of_the_emptiest_cell() {
    let (limits, mut usage) = (sketch(8, bucket(9, 1, "1s")), SketchUsage::default());
    assert_eq!(item_limit(limits, b"a").remaining_by_cell(&usage, us(0)), [units(9); 4]);
    for item in 0..12_u8 {
        item_limit(limits, &[item]).charge(&mut usage, us(0), units(u64::from(item % 4)));
    }
    let mut items_with_unequal_cells = 0;
    for item in 0..200_u8 {
        let item = [item];
        let limit = item_limit(limits, &item);
        let cells = limit.remaining_by_cell(&usage, us(1_500_000));
        assert_eq!(cells.into_iter().max(), Some(limit.remaining(&usage, us(1_500_000))));
        items_with_unequal_cells += usize::from(cells.iter().any(|remaining| *remaining != cells[0]));
    }
    assert!(items_with_unequal_cells > 0);
    // The cells of an item without collisions are equal.
    let alone = item_limit(sketch(4096, bucket(9, 1, "1s")), b"a");
    let mut usage = SketchUsage::default();
    alone.charge(&mut usage, us(0), units(4));
    assert_eq!(alone.remaining_by_cell(&usage, us(1_000_000)), [units(6); 4]);
}

/// Creates a sketch in which `items` items were charged.
fn filled_sketch(columns: u32, items: u32) -> SketchUsage {
    let limits = sketch(columns, bucket(50, 50, "1m"));
    let mut usage = SketchUsage::default();
    for item in 0..items {
        call_and_encode_effect(
            &item_limit(limits, &item.to_be_bytes()),
            &mut usage,
            us(1_000_000 + u64::from(item)),
            take_one(),
        );
    }
    usage
}
