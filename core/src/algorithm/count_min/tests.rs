use super::*;
use crate::algorithm::bucket::Discipline;
use crate::evaluate::Request::{Force, Take, UpTo};
use crate::evaluate::{Change, Request, evaluate};
use crate::limit::{InfoField, Usage};
use crate::number::Period;
use crate::readable;
use crate::testing::calls::{
    Call, Key, amount_of, amounts, call, call_and_tell, lengths, millionths, peek, period, scripts, seen_at, units, us,
};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::Lawful;
use crate::wire::codec::WHOLE;
use num_rational::BigRational;
use num_traits::Zero;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeMap;

/// The secret of sketches whose effects and encodings are compared.
const SECRET: Secret = Secret { halves: [7, 11] };
const ITEMS: [&[u8]; 6] = [b"", b"a", b"b", b"203.0.113.7", b"\0\xff", b"2001:db8::/64"];

fn bucket(capacity: u64, refill: u64, every: &str) -> Bucket {
    Bucket::new(units(capacity), units(refill), period(every), Discipline::Burst).unwrap()
}

/// A sketch of so few columns that items collide, or so many that they do not.
fn sketch(columns: u32, bucket: Bucket) -> Sketch {
    Sketch::new(bucket, Some(SketchSize::of_columns(columns)))
}

impl ItemLimit<'_> {
    fn made_with(self, secret: Secret) -> Self {
        ItemLimit { secret: Some(secret), ..self }
    }
}

fn of(sketch: Sketch, item: &[u8]) -> ItemLimit<'_> {
    sketch.of_item(item).made_with(SECRET)
}

fn one() -> Request {
    Take(units(1))
}

#[test]
fn each_item_has_a_bucket_of_its_own() {
    let (limits, mut key) = (sketch(4096, bucket(3, 1, "1s")), Key::default());
    let of = |item| of(limits, item);
    for (item, at, asked, reply) in [
        (b"a", 0, one(), [1, 3, 2, 0, 1000]),
        (b"a", 0, Take(units(2)), [1, 3, 0, 0, 3000]),
        (b"a", 0, one(), [0, 3, 0, 1000, 3000]),
        (b"b", 0, one(), [1, 3, 2, 0, 1000]),
        (b"a", 1000, one(), [1, 3, 0, 0, 3000]),
        (b"b", 1000, UpTo(units(9)), [1, 3, 0, 0, 3000]),
        (b"a", 1000, Take(units(4)), [0, 3, 0, -1, 3000]),
        (b"c", 1000, Force(units(5)), [0, 3, 0, 2000, 5000]),
        (b"c", 2500, Take(millionths(0)), [0, 3, 0, 500, 3500]),
        (b"c", 5999, one(), [1, 3, 1, 0, 1001]),
    ] {
        assert_eq!(key.call(&of(item), at, asked), reply, "{asked:?} of {item:?} at {at}");
    }
    assert!(!key.is_gone());
}

#[test]
fn an_item_that_shares_its_cells_is_denied_too_early_and_never_too_late() {
    // With one column all items are one.
    let (limits, mut key) = (sketch(1, bucket(3, 1, "1s")), Key::default());
    assert_eq!(key.call(&of(limits, b"a"), 0, Take(units(2))), [1, 3, 1, 0, 2000]);
    assert_eq!(key.call(&of(limits, b"b"), 0, one()), [1, 3, 0, 0, 3000]);
    assert_eq!(key.call(&of(limits, b"c"), 0, one()), [0, 3, 0, 1000, 3000]);
    assert_eq!(key.call(&of(limits, b"c"), 1000, one()), [1, 3, 0, 0, 3000]);
}

#[test]
fn only_cells_below_what_is_used_are_raised() {
    // Two items that share some cells, and not all.
    let size = SketchSize::of_columns(4);
    let cells = |item: u32| SECRET.cells(size, &item.to_be_bytes());
    let shared = |item: u32| cells(0).iter().zip(cells(item)).filter(|(one, other)| *one == other).count();
    let other = (1..10_000).find(|item| shared(*item) == 3).unwrap();
    let limits = Sketch::new(bucket(10, 1, "1s"), Some(size));
    let (mut usage, now) = (SketchUsage::default(), us(1));
    for item in [0, other, other, 0] {
        assert!(call(&of(limits, &item.to_be_bytes()), &mut usage, now, one()).verdict.allowed());
    }
    // Each has used two, and that is what the three cells that they share say, not four.
    for item in [0, other] {
        assert_eq!(peek(&of(limits, &item.to_be_bytes()), &usage, now, one()).remaining, units(8));
    }
}

#[test]
fn an_effect_tells_the_cells_that_the_call_has_raised_and_no_others() {
    // Two items that share all cells but that of the last row.
    let size = SketchSize::of_columns(4);
    let cells = |item: u32| SECRET.cells(size, &item.to_be_bytes());
    let other = (1..10_000).find(|item| cells(0)[..3] == cells(*item)[..3] && cells(0)[3] != cells(*item)[3]).unwrap();
    let limits = Sketch::new(bucket(10, 1, "1s"), Some(size));
    let told = |item: u32, usage: &mut SketchUsage| {
        let (_, effect) = call_and_tell(&of(limits, &item.to_be_bytes()), usage, us(1), one());
        let told = effect.numbers().split_off(10);
        assert_eq!(told.first().copied(), u64::try_from(told.len() / 2).ok());
        told.into_iter().skip(1).step_by(2).map(|cell| u32::try_from(cell).unwrap()).collect::<Vec<_>>()
    };
    let mut usage = SketchUsage::default();
    assert_eq!(told(0, &mut usage), cells(0));
    // The three others hold one unit already: in a piece that a copy has a share in, and in one that none has.
    let mut copy = usage.clone();
    assert_eq!(told(other, &mut copy), [cells(other)[3]]);
    drop(copy);
    assert_eq!(told(other, &mut usage), [cells(other)[3]]);
    assert_eq!(told(other, &mut usage), cells(other));
    assert_eq!(told(0, &mut usage), [cells(0)[3]]);
}

#[test]
fn new_numbers_hold_at_once_for_all_items_and_forgive_nobody() {
    let (slow, fast) = (sketch(4096, bucket(10, 1, "1s")), sketch(4096, bucket(20, 5, "1s")));
    let mut key = Key::default();
    assert_eq!(key.call(&of(slow, b"a"), 0, Take(units(10))), [1, 10, 0, 0, 10_000]);
    assert_eq!(key.call(&of(slow, b"b"), 0, Take(units(10))), [1, 10, 0, 0, 10_000]);
    // What was used stays, and drains at the new rate from the last charge on.
    assert_eq!(key.call(&of(fast, b"a"), 1000, one()), [1, 20, 14, 0, 1200]);
    assert_eq!(key.peek(&of(slow, b"b"), 1000, one()), [1, 10, 5, 0, 5000]);
}

#[test]
fn a_sketch_is_made_in_the_size_that_is_asked_and_keeps_it() {
    let facts = |usage: &SketchUsage| usage.describe(us(0));
    let size_of = |usage: &SketchUsage| match facts(usage).first() {
        Some(("size", InfoField::Count(size))) => *size,
        other => unreachable!("{other:?}"),
    };
    let limits = |size| Sketch::new(bucket(5, 5, "1m"), size);
    let mut usage = SketchUsage::default();
    call(&limits(None).of_item(b"a"), &mut usage, us(0), one());
    assert_eq!(size_of(&usage), 1_048_576);
    // No other test makes a sketch without a size.
    let (usual, large) = (SketchSize::of_setting(), SketchSize::parse(b"2mb").unwrap());
    large.set_as_default();
    let mut larger = SketchUsage::default();
    call(&limits(None).of_item(b"a"), &mut larger, us(0), one());
    usual.set_as_default();
    assert_eq!(size_of(&larger), 2_097_152);
    call(&limits(SketchSize::new(65_536)).of_item(b"a"), &mut usage, us(0), one());
    assert_eq!(size_of(&usage), 1_048_576);
    let mut small = SketchUsage::default();
    call(&limits(SketchSize::new(65_536)).of_item(b"a"), &mut small, us(0), one());
    assert_eq!(size_of(&small), 65_536);
    assert!(facts(&SketchUsage::default()).is_empty());
}

#[test]
fn keys_have_different_secrets() {
    let made = || {
        let mut usage = SketchUsage::default();
        call(&sketch(4096, bucket(5, 5, "1m")).of_item(b"a"), &mut usage, us(0), one());
        usage.hashing().unwrap().1
    };
    assert_ne!(made(), made());
}

#[test]
fn people_are_told_its_numbers_and_how_well_it_serves() {
    let kept = Sketch::new(bucket(5, 5, "1m"), Some(SketchSize::of_columns(2))).limited_to(units(3));
    let mut usage = SketchUsage::default();
    // The whole limit, whatever a call keeps of it.
    assert_eq!(call(&of(kept, b"a"), &mut usage, us(0), Take(units(3))).remaining, units(0));
    let told = |usage: &SketchUsage, at| usage.describe(us(at));
    let text = |text: &str| InfoField::Text(text.to_owned());
    assert_eq!(
        told(&usage, 0),
        [
            ("size", InfoField::Count(64)),
            ("numbers", text("5 5 1m")),
            ("filled", text("0.5000")),
            ("unseen_denied", text("0.0000")),
        ]
    );
    call(&of(kept, b"a"), &mut usage, us(0), Force(units(2)));
    assert_eq!(told(&usage, 0)[3].1, text("0.0625"));
    // As of now.
    assert_eq!(told(&usage, 12_000_000)[3].1, text("0.0000"));
    assert_eq!(told(&usage, 60_000_000)[2].1, text("0.0000"));
}

#[test]
fn a_scaled_sketch_has_scaled_buckets_and_shows_their_numbers() {
    let size = SketchSize::of_columns(64);
    let scaled = Sketch::new(bucket(9, 3, "1m"), Some(size)).limited_to(units(6)).scaled(millionths(500_000));
    assert_eq!(scaled.limit(), units(3));
    let mut usage = SketchUsage::default();
    // The buckets refill by 1.5 units a minute.
    assert_eq!(call(&of(scaled, b"a"), &mut usage, us(0), Take(units(3))).reset, Span::SECOND.times(120));
    assert_eq!(
        usage.describe(us(0))[..2],
        [("size", InfoField::Count(size.bytes())), ("numbers", InfoField::Text("3 1.5 1m".to_owned()))]
    );
}

#[test]
fn a_failed_test_shows_which_cells_are_used() {
    let mut usage = SketchUsage::default();
    call(&of(sketch(1, bucket(5, 5, "1m")), b"a"), &mut usage, us(0), Take(units(2)));
    let shown = format!("{usage:?}");
    let used = "used: [(0, 2000000), (1, 2000000), (2, 2000000), (3, 2000000)]";
    assert!(shown.starts_with("SketchUsage { fullest: ") && shown.contains(used), "{shown}");
    let mut sparse = SketchUsage::default();
    call(&of(sketch(4096, bucket(5, 5, "1m")), b"a"), &mut sparse, us(0), one());
    assert_eq!(format!("{sparse:?}").matches(", 1000000)").count(), 4, "{sparse:?}");
}

#[test]
fn what_is_told_of_unseen_items_is_what_becomes_of_them() {
    for (items, calls) in [(1000_u32, 5), (3000, 5), (6000, 5), (20_000, 3)] {
        let limits = sketch(4096, bucket(5, 5, "1m"));
        let (mut usage, now) = (SketchUsage::default(), us(0));
        for item in 0..items {
            for _ in 0..calls {
                call(&of(limits, &item.to_be_bytes()), &mut usage, now, one());
            }
        }
        let facts = usage.describe(now);
        let Some(("unseen_denied", InfoField::Text(told))) = facts.last() else { unreachable!("{facts:?}") };
        let told: u32 = told.replace('.', "").parse().unwrap();
        let unseen = (items..items + 10_000).map(u32::to_be_bytes);
        let denied = unseen.filter(|item| !peek(&of(limits, item), &usage, now, one()).verdict.allowed()).count();
        let denied = u32::try_from(denied).unwrap();
        assert!(told.abs_diff(denied) <= 150, "{items} items: told {told}, and {denied} of 10000 were denied");
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
                Some(of(sketch(columns, bucket), item))
            },
        )
    }

    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        self.sketch.bucket.check_guarantee(admitted);
    }

    /// There is nothing that could be given back.
    fn asks(request: Request) -> Request {
        if matches!(request, Request::GiveBack(_)) { Take(amount_of(request)) } else { request }
    }

    /// That of a bucket, and the millionth by which an empty cell is charged too much.
    fn lockout_beyond_recovery(&self) -> Span {
        let [_, refill, period] = self.sketch.bucket.fields();
        self.sketch.bucket.lockout_beyond_recovery().plus(Span::from_micros(period / refill + 1))
    }
}

/// All but that giving back never makes more than the limit, which it cannot; and that a recovered key is as good as a
/// new one, which has another secret.
mod laws {
    use super::*;
    use crate::testing::laws;

    #[test]
    fn never_more_than_the_limit() {
        laws::never_more_than_the_limit::<ItemLimit>();
    }

    #[test]
    fn a_clock_gone_back_frees_nothing_and_locks_nobody_out() {
        let law = laws::a_clock_gone_back_frees_nothing_and_locks_nobody_out;
        laws::in_every_state::<ItemLimit>(1..=1, laws::without_debts, law);
    }

    #[test]
    fn what_moves_along_recovers_as_much_sooner() {
        laws::in_every_state::<ItemLimit>(1..=1, |what| what, laws::what_moves_along_recovers_as_much_sooner);
    }

    #[test]
    fn a_key_expires_when_it_has_recovered_and_not_much_later() {
        laws::a_key_expires_when_it_has_recovered_and_not_much_later::<ItemLimit>();
    }

    laws::laws!(ItemLimit:
        a_denied_call_changes_nothing,
        a_look_changes_nothing,
        a_look_back_sees_what_a_call_would_write,
        wait_is_exact,
        remaining_is_what_passes_next,
        encoding_round_trips,
        an_effect_does_elsewhere_what_the_call_did,
    );

    #[test]
    fn a_recovered_item_is_as_good_as_never_seen() {
        laws::in_every_state::<ItemLimit>(
            1..=3,
            |what| what,
            |limit, usage, now, request| {
                let reset = peek(limit, usage, now, request).reset;
                let recovered = now.plus(reset);
                // From the last instant on times saturate, and nothing is told any more.
                if recovered < Timestamp::MAX {
                    let (new, at) = (SketchUsage::default(), recovered);
                    let (used, new) = (peek(limit, usage, at, request), peek(limit, &new, at, request));
                    // A debt may be told by a millionth's time more.
                    assert!(used == new || matches!(request, Force(_)), "{used:?} is not {new:?}");
                    assert_eq!(used.remaining, new.remaining);
                }
            },
        );
    }
}

// The law: what is granted an item, an exact bucket of its own, charged with just that, would have granted.

/// An exact amount, in millionths.
type Exact = BigRational;

fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// A bucket of each item's own, in exact fractions; all drain at the rate that a charge brings, from the instant on up
/// to which they have drained before.
#[derive(Default)]
struct Buckets {
    used: BTreeMap<&'static [u8], Exact>,
    to: u64,
}

impl Buckets {
    fn drained(bucket: &Bucket, from: u64, to: u64) -> Exact {
        let [_, refill, period] = bucket.fields();
        exact(to.saturating_sub(from)) * exact(refill) / exact(period)
    }

    /// What is used of an item at an instant.
    fn used(&self, item: &[u8], bucket: &Bucket, at: u64) -> Exact {
        let used = self.used.get(item).cloned().unwrap_or_else(Exact::zero);
        (used - Buckets::drained(bucket, self.to, at)).max(Exact::zero())
    }

    /// A charge at `now` of an item, by which all have drained up to `to`.
    fn charge(&mut self, item: &'static [u8], bucket: &Bucket, now: u64, to: u64, cost: Amount) {
        let charged = self.used(item, bucket, now) + exact(cost.millionths()) + Buckets::drained(bucket, to, now);
        let drained = Buckets::drained(bucket, self.to, to);
        self.used.values_mut().for_each(|used| *used = (used.clone() - &drained).max(Exact::zero()));
        self.used.insert(item, charged.min(exact(Amount::MAX.millionths())));
        self.to = to;
    }
}

/// The numbers that calls bring, when they begin, and each with its item.
type Traffic = (Vec<ItemLimit<'static>>, Timestamp, Vec<(&'static [u8], Call)>);

/// Calls of few items.
fn traffic() -> impl Strategy<Value = Traffic> {
    let script = (scripts(), vec(select(ITEMS.to_vec()), 20));
    let columns = select(vec![1, 2, 3, 5, 4096]);
    (vec(ItemLimit::limits(), 1..=3), columns, script).prop_map(|(limits, columns, ((begin, calls), items))| {
        let size = Some(SketchSize::of_columns(columns));
        let limits = limits.into_iter().map(|limit| of(Sketch { size, ..limit.sketch }, b"")).collect();
        (limits, begin, items.into_iter().zip(calls).collect())
    })
}

proptest! {
    #[test]
    fn what_an_item_is_granted_its_own_bucket_would_have_granted((limits, begin, calls) in traffic()) {
        let (mut usage, mut buckets, mut now, mut last) = (SketchUsage::default(), Buckets::default(), begin, None);
        for (item, step) in calls {
            now = step.when.after(now, last.as_ref());
            let limit = of(step.limit.get(&limits).sketch, item);
            let request = ItemLimit::asks(step.what.request(&limit, &usage, now));
            let change = evaluate(&limit, &usage, now, request).change();
            buckets.to = buckets.to.min(now.micros());
            let bucket = limit.sketch.bucket;
            let before = buckets.used(item, &bucket, now.micros());
            last = Some(call(&limit, &mut usage, now, request));
            if let Change::Charge(cost) = change {
                let within = before + exact(cost.millionths()) <= exact(limit.limit().millionths());
                let waits = matches!(request, Request::Within(..));
                prop_assert!(within || matches!(request, Force(_)) || waits, "{cost} of {item:?} at {now:?}");
                let to = usage.fullest().drained_to().micros();
                buckets.charge(item, &bucket, now.micros(), to, cost);
            }
            // And no cell of it is below.
            for (item, used) in &buckets.used {
                let least = usage.bucket_of(of(limit.sketch, item).cells(&usage)).used();
                let used = (used - Buckets::drained(&bucket, buckets.to, usage.fullest().drained_to().micros())).max(Exact::zero());
                prop_assert!(exact(least.millionths()) >= used, "{least} of {item:?} is below {used}");
            }
        }
    }

    #[test]
    fn items_that_share_no_cells_are_decided_as_by_buckets(calls in vec((select(ITEMS.to_vec()), 0..4_000_000_u64, 0..=4_000_000_u64), 1..40)) {
        // A millionth drains in a microsecond, so that nothing is rounded.
        let (limits, mut usage, mut now) = (sketch(1 << 16, bucket(3, 1, "1s")), SketchUsage::default(), 1_700_000_000_000_000);
        let mut buckets: BTreeMap<&[u8], _> = BTreeMap::new();
        for (item, later, cost) in calls {
            now += later;
            let own = buckets.entry(item).or_default();
            let told = call(&of(limits, item), &mut usage, us(now), Take(millionths(cost)));
            prop_assert_eq!(told, call(&limits.bucket, own, us(now), Take(millionths(cost))));
        }
    }

    #[test]
    fn with_equal_costs_no_item_is_granted_more_than_a_bucket_that_decides_for_itself(
        columns in 1..6_u32,
        cost in select(vec![1_000_000, 333_333, 2_500_000]),
        upto in any::<bool>(),
        refill in 1..4_u64,
        calls in vec((select(ITEMS.to_vec()), 0..3_000_000_u64), 1..60),
    ) {
        let (limits, mut usage, mut now) = (sketch(columns, bucket(5, refill, "7s")), SketchUsage::default(), 1_700_000_000_000_000);
        let mut buckets: BTreeMap<&[u8], (_, u64, u64)> = BTreeMap::new();
        for (item, later) in calls {
            now += later;
            let request = if upto { UpTo(units(3)) } else { Take(millionths(cost)) };
            let (own, of_sketch, of_bucket) = buckets.entry(item).or_default();
            let granted = |change| if let Change::Charge(cost) = change { cost.millionths() } else { 0 };
            let limit = of(limits, item);
            *of_sketch += granted(evaluate(&limit, &usage, us(now), request).change());
            *of_bucket += granted(evaluate(&limits.bucket, own, us(now), request).change());
            call(&limit, &mut usage, us(now), request);
            call(&limits.bucket, own, us(now), request);
            prop_assert!(of_sketch <= of_bucket, "{of_sketch} of {of_bucket}");
        }
    }
}

proptest! {
    #[test]
    fn a_take_in_one_go_comes_to_what_the_long_way_comes_to((limits, begin, calls) in traffic()) {
        let (mut usage, mut now, mut last) = (SketchUsage::default(), begin, None);
        for (item, step) in calls {
            now = step.when.after(now, last.as_ref());
            let limit = of(step.limit.get(&limits).sketch.prepared(), item);
            let request = ItemLimit::asks(step.what.request(&limit, &usage, now));
            let mut at_once = usage.clone();
            let told = call(&limit, &mut usage, now, request);
            if let Take(cost) = request
                && let Some(taken) = limit.sketch.item_taken_at_once(&at_once, item, now, cost)
            {
                let decision = match taken {
                    ItemTaken::Charged(decision, charge) => {
                        at_once.apply_charge(&charge, &limit.sketch, true);
                        at_once.encode_effect(&mut EncodedFields::default());
                        prop_assert_eq!(charge.recovery, limit.recovery(&usage, now));
                        decision
                    }
                    ItemTaken::Denied(decision) => decision,
                };
                prop_assert_eq!(decision, told);
                prop_assert_eq!(encoded(&at_once), encoded(&usage));
                prop_assert_eq!(at_once.fullest(), usage.fullest());
            }
            last = Some(told);
        }
    }
}

#[test]
fn everyday_takes_go_in_one_go() {
    let (limits, mut usage) = (sketch(4096, bucket(2, 2, "1m")), SketchUsage::default());
    let taken = |usage: &SketchUsage, at| limits.item_taken_at_once(usage, b"a", us(at), units(1));
    assert!(taken(&usage, 5).is_none(), "a key is made on the slow path");
    call(&of(limits, b"b"), &mut usage, us(5), one());
    for (at, charged) in [(5, true), (7, true), (9, false), (30_000_008, true)] {
        match taken(&usage, at).unwrap() {
            ItemTaken::Charged(_, charge) if charged => usage.apply_charge(&charge, &limits, true),
            ItemTaken::Denied(_) if !charged => {}
            other => unreachable!("{other:?} at {at}"),
        }
    }
    assert!(taken(&usage, 0).is_none(), "so is a clock gone back seen to");
    assert!(limits.item_taken_at_once(&usage, b"a", us(60_000_000), units(0)).is_none());
    // The whole capacity is an everyday cost, and more than that is none.
    let whole = limits.item_taken_at_once(&usage, b"c", us(60_000_000), limits.limit());
    assert!(matches!(whole, Some(ItemTaken::Charged(..))), "{whole:?}");
    assert!(limits.item_taken_at_once(&usage, b"c", us(60_000_000), limits.limit().plus(millionths(1))).is_none());
}

#[test]
fn an_item_has_what_its_emptiest_cell_leaves() {
    let (limits, mut usage) = (sketch(8, bucket(9, 1, "1s")), SketchUsage::default());
    assert_eq!(of(limits, b"a").remaining_by_cell(&usage, us(0)), [units(9); 4]);
    for item in 0..12_u8 {
        of(limits, &[item]).charge(&mut usage, us(0), units(u64::from(item % 4)));
    }
    let mut differ = 0;
    for item in 0..200_u8 {
        let item = [item];
        let limit = of(limits, &item);
        let cells = limit.remaining_by_cell(&usage, us(1_500_000));
        assert_eq!(cells.into_iter().max(), Some(limit.remaining(&usage, us(1_500_000))));
        differ += usize::from(cells.iter().any(|left| *left != cells[0]));
    }
    assert!(differ > 0, "no item has cells that differ");
    // Alone in its cells, each says the same.
    let alone = of(sketch(4096, bucket(9, 1, "1s")), b"a");
    let mut usage = SketchUsage::default();
    alone.charge(&mut usage, us(0), units(4));
    assert_eq!(alone.remaining_by_cell(&usage, us(1_000_000)), [units(6); 4]);
}

// What is stored.

/// A sketch that so many items were charged in.
fn filled(columns: u32, items: u32) -> SketchUsage {
    let limits = sketch(columns, bucket(50, 50, "1m"));
    let mut usage = SketchUsage::default();
    for item in 0..items {
        call_and_tell(&of(limits, &item.to_be_bytes()), &mut usage, us(1_000_000 + u64::from(item)), one());
    }
    usage
}

#[test]
fn a_copy_shares_what_neither_has_written_since() {
    let usage = filled(1 << 16, 20_000);
    let (mut copy, before) = (usage.clone(), encoded(&usage));
    assert_eq!(encoded(&copy), before);
    let limits = sketch(1 << 16, bucket(50, 50, "1m"));
    let (_, effect) = call_and_tell(&of(limits, b"another"), &mut copy, us(2_000_000), one());
    assert_ne!(encoded(&copy), before);
    assert_eq!(encoded(&usage), before, "the original has changed");
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&copy));
    assert_eq!(copy.heap_size(), usage.heap_size());
}

#[test]
fn memory_comes_as_it_is_touched_and_ends_at_the_size() {
    let empty = filled(1 << 16, 0);
    assert_eq!((empty.heap_size(), empty.effort()), (0, 1));
    let one_item = filled(1 << 16, 1);
    assert!((4 * 4096..4 * 6144 + 100).contains(&one_item.heap_size()), "{}", one_item.heap_size());
    let full = filled(1 << 16, 20_000);
    let size = 32 << 16;
    assert!((size..size + size / 50).contains(&full.heap_size()), "{}", full.heap_size());
    assert_eq!(full.effort(), 1 + 516 + 3);
}

#[test]
fn an_aof_is_rewritten_in_parts_that_come_to_the_whole() {
    for items in [1, 3, 20_000] {
        let usage = filled(1 << 16, items);
        let (mut from, mut parts, mut after) = (Some(0), 0, SketchUsage::default());
        while let Some(next) = from {
            let mut part = EncodedFields::default();
            from = usage.encode_part_of_whole(next, &mut part);
            after = applied(&after, &part).unwrap();
            // Once more changes nothing.
            if parts > 0 {
                assert_eq!(encoded(&applied(&after, &part).unwrap()), encoded(&after));
            }
            parts += 1;
        }
        assert_eq!(encoded(&after), encoded(&usage));
        assert_eq!(after.fullest(), usage.fullest());
        assert_eq!(parts, if items == 20_000 { 9 } else { 1 });
    }
}

#[test]
fn what_is_stored_can_be_read_and_only_that() {
    let usage = filled(64, 40);
    readable::stored(&usage).unwrap();
    let fields = encoded(&usage);
    assert_eq!(encoded(&decoded::<SketchUsage>(&fields).unwrap()), fields);
    assert_eq!(
        applied(&SketchUsage::default(), &whole_effect(&usage)).map(|read| encoded(&read)),
        Some(fields.clone())
    );
    assert!(fields.cut_short().all(|short| decoded::<SketchUsage>(&short).is_none()));
    // Size, era, mark, instant, capacity, refill, period, and how many pieces.
    for (place, wrong) in [(0, 31), (0, 1 << 40), (0, 33), (4, 1 << 62), (5, u64::MAX), (6, u64::MAX)]
        .into_iter()
        .chain([(7, 0), (8, 0), (9, 0), (9, 2), (10, 9)])
    {
        assert!(decoded_of(&fields.with(place, wrong)).is_none(), "{wrong} in {place}");
    }
    // Pieces: none at all, one of zeros, one that is cut, one behind the end.
    let head = EncodedFields::integers(fields.clone().numbers().into_iter().take(9));
    let piece = |used: &[u8]| head.clone().and([1, 0]).then(used, []);
    assert!(decoded_of(&piece(&1_u64.to_le_bytes())).is_some());
    assert!(decoded_of(&piece(&[1; 256 * 8])).is_some(), "up to the last cell");
    for wrong in [
        head.clone().and([0]),
        piece(&[]),
        piece(&[0; 8]),
        piece(&[1; 7]),
        piece(&[1; 9]),
        piece(&[0xff; 8]),
        piece(&[1; 257 * 8]),
        head.clone().and([1, 1]).then(&[1; 8], []),
        head.clone().and([2, 0]).then(&[1; 8], [0]).then(&[1; 8], []),
    ] {
        assert!(decoded_of(&wrong).is_none(), "{wrong:?}");
    }
}

#[test]
fn what_is_charged_to_a_sketch_that_was_read_in_the_last_era_can_be_read_too() {
    let most = Amount::MAX_ARGUMENT;
    let fastest = Bucket::new(most, most, period("1us"), Discipline::Burst).unwrap();
    let mut first = SketchUsage::default();
    call(&of(sketch(64, fastest), b"a"), &mut first, us(0), Force(most));
    for era in [1 << 48, u64::MAX] {
        let mut usage = decoded::<SketchUsage>(&encoded(&first).with(3, era)).unwrap();
        for micros in 1..20 {
            let before = usage.clone();
            let (_, effect) = call_and_tell(&of(sketch(64, fastest), b"b"), &mut usage, us(micros), Force(most));
            readable::stored(&usage).unwrap();
            assert_eq!(applied(&before, &effect).map(|after| encoded(&after)), Some(encoded(&usage)));
        }
        assert_ne!(encoded(&usage).numbers()[3], era, "it has gone through the era's end");
    }
}

fn decoded_of(fields: &EncodedFields) -> Option<SketchUsage> {
    let mut fields = fields.clone();
    SketchUsage::decode(&mut fields, SketchUsage::VERSION).filter(|_| fields == EncodedFields::default())
}

#[test]
fn an_effect_that_no_call_can_have_had_is_refused() {
    let limits = sketch(64, bucket(50, 50, "1m"));
    let mut usage = filled(64, 40);
    let before = usage.clone();
    let (_, effect) = call_and_tell(&of(limits, b"another"), &mut usage, us(9_000_000), one());
    assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    // Twice, and on a key that is not there: it is absolute.
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&usage));
    assert!(applied(&SketchUsage::default(), &effect).is_some());
    assert!(effect.cut_short().all(|short| !before.accepts_effect(&mut short.clone(), 1)));
    // Tag, size, secret, mark gone back, numbers, how many cells, no such cell, nothing used.
    for (place, wrong) in
        [(0, 3), (0, 2), (1, 64), (2, 1), (3, 1), (5, 0), (7, u64::MAX), (8, 0), (10, 5), (11, 256), (12, 0)]
    {
        assert!(!before.accepts_effect(&mut effect.with(place, wrong), 1), "{wrong} in {place}");
    }
    assert!(!before.accepts_effect_until(&mut effect.clone(), 1, us(1)));
    assert!(!before.accepts_effect_until(&mut whole_effect(&usage), 1, us(1)));
    // A clock gone back: an instant and no cells. That makes no key.
    let mut moved = usage.clone();
    moved.move_back(us(8_000_000));
    let mut effect = EncodedFields::default();
    moved.encode_effect(&mut effect);
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&seen_at(&usage, us(8_000_000))));
    assert!(applied(&SketchUsage::default(), &effect).is_none());
    // A part is one of a whole as of the same instant.
    let mut part = EncodedFields::default();
    assert_eq!(usage.encode_part_of_whole(0, &mut part), None);
    let part = part.with(0, WHOLE + 2);
    assert!(usage.accepts_effect(&mut part.clone(), 1));
    assert!(!before.accepts_effect(&mut part.clone(), 1));
    assert!(!SketchUsage::default().accepts_effect(&mut part.clone(), 1));
    // In size, secret, mark and instant both agree.
    let [size, era, level, instant] = [1, 4, 5, 6].map(|place| part.clone().numbers()[place]);
    let others = [(1, size * 2), (2, 1), (3, 1), (4, era + 1), (5, level + 1), (6, instant - 1), (6, instant + 1)];
    for (place, other) in others {
        assert!(!usage.accepts_effect(&mut part.with(place, other), 1), "{other} in {place}");
    }
}

#[test]
fn a_whole_takes_the_place_of_what_is_there() {
    let (there, mut comes) = (filled(64, 40), SketchUsage::default());
    let limits = sketch(128, bucket(9, 1, "1s"));
    call(&limits.of_item(b"a").made_with(Secret { halves: [1, 2] }), &mut comes, us(7), Take(units(3)));
    let after = applied(&there, &whole_effect(&comes)).unwrap();
    assert_eq!((encoded(&after), after.fullest()), (encoded(&comes), comes.fullest()));
}

#[test]
fn what_is_told_of_calls_makes_a_replica_whose_key_recovers_at_the_same_time() {
    let limits = sketch(8, bucket(20, 7, "1s"));
    let (mut usage, mut replica) = (SketchUsage::default(), SketchUsage::default());
    let calls = [(0, "a", 20), (100, "b", 1), (900, "c", 17), (900, "a", 2), (4000, "b", 3), (90_000, "d", 5)];
    for (at, item, cost) in calls {
        let limit = of(limits, item.as_bytes());
        let (_, effect) = call_and_tell(&limit, &mut usage, us(at * 1000), Force(units(cost)));
        replica = applied(&replica, &effect).unwrap();
        assert_eq!(replica.fullest(), usage.fullest(), "at {at}");
        assert_eq!(limit.recovery(&replica, us(at * 1000)), limit.recovery(&usage, us(at * 1000)));
        assert_eq!(decoded::<SketchUsage>(&encoded(&usage)).unwrap().fullest(), usage.fullest());
    }
}

#[test]
fn a_call_finds_the_cells_of_each_sketch_that_it_looks_at() {
    let numbers = bucket(9, 1, "1s");
    let sketches = [(128, [1, 2]), (64, [1, 2]), (64, [1, 3]), (64, [2, 2])].map(|(columns, halves)| {
        let (limits, secret, mut usage) = (sketch(columns, numbers), Secret { halves }, SketchUsage::default());
        call(&limits.of_item(b"a").made_with(secret), &mut usage, us(1), Take(units(4)));
        usage
    });
    let one_call = sketch(64, numbers).of_item(b"a");
    for usage in sketches.iter().chain(sketches.iter().rev()) {
        assert_eq!(one_call.remaining(usage, us(1)), units(5));
        let mut charged = usage.clone();
        one_call.charge(&mut charged, us(1), units(5));
        assert_eq!(one_call.remaining(&charged, us(1)), units(0));
    }
}

#[test]
fn the_debt_after_a_charge_is_what_a_charge_leaves() {
    let limits = sketch(4096, bucket(10, 1, "1s"));
    let (mut usage, limit) = (SketchUsage::default(), of(limits, b"a"));
    assert_eq!(limit.debt_after_charge(&usage, us(5), units(13)), Span::SECOND.times(3));
    call(&limit, &mut usage, us(1_000_000), Take(units(8)));
    call(&of(limits, b"b"), &mut usage, us(1_400_000), Take(units(10)));
    for (at, cost, seconds) in [(3, 4, 0), (3, 9, 5), (2, 3, 0), (2, 4, 1), (30, 10, 0), (30, 12, 2)] {
        let told = limit.debt_after_charge(&usage, us(at * 1_000_000), units(cost));
        assert_eq!(told, Span::SECOND.times(seconds), "{cost} at {at}");
        let mut charged = usage.clone();
        limit.charge(&mut charged, us(at * 1_000_000), units(cost));
        assert_eq!(limit.debt(&charged, us(at * 1_000_000)), told);
    }
    // By a clock gone back as by one that stands still: 7.6 of 10 are used.
    assert_eq!(limit.debt_after_charge(&usage, us(0), units(4)).micros(), 1_600_000);
}

#[test]
fn a_stored_size_is_one_that_a_call_can_have_asked_for() {
    for bytes in [32, 64, SketchSize::LEAST, SketchSize::MOST - 32, SketchSize::MOST] {
        assert_eq!(SketchSize::stored(bytes).map(SketchSize::bytes), Some(bytes));
    }
    for bytes in [0, 31, 33, SketchSize::MOST + 1, SketchSize::MOST + 32, 1 << 40, u64::MAX] {
        assert_eq!(SketchSize::stored(bytes), None, "{bytes}");
    }
    for bytes in [SketchSize::LEAST - 1, SketchSize::MOST + 1] {
        assert_eq!(SketchSize::new(bytes), None, "{bytes}");
    }
}

#[test]
fn a_level_is_right_however_much_has_drained() {
    // A refill of a million million a microsecond: the mark goes through eras within a few calls.
    let most = Amount::MAX_ARGUMENT;
    let fastest = Bucket::new(most, most, period("1us"), Discipline::Burst).unwrap();
    let (limits, mut usage) = (sketch(4096, fastest), SketchUsage::default());
    let lasting = of(limits, b"lasting");
    call(&lasting, &mut usage, us(0), Force(Amount::MAX_ARGUMENT));
    for micros in 1..100 {
        let told = call(&of(limits, b"busy"), &mut usage, us(micros), Force(Amount::MAX_ARGUMENT));
        assert_eq!(told.reset, Span::MICROSECOND);
        let left = peek(&lasting, &usage, us(micros), one());
        assert_eq!((left.remaining, left.reset), (most, Span::ZERO), "at {micros}");
        readable::stored(&usage).unwrap();
    }
    for _ in 0..20 {
        call(&lasting, &mut usage, us(100), Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!(usage.fullest().used(), Amount::MAX);
    call(&of(limits, b"busy"), &mut usage, us(103), one());
    assert_eq!(peek(&lasting, &usage, us(103), one()).reset.micros(), 10 - 3);
    readable::stored(&usage).unwrap();
}

#[test]
fn pieces_are_renewed_in_steps_and_those_that_are_shared_stay() {
    // Three chunks of pieces.
    let (limits, mut usage) = (sketch(1 << 16, bucket(5, 1, "1m")), SketchUsage::default());
    for item in 0..2000_u32 {
        of(limits, &item.to_be_bytes()).charge(&mut usage, us(1), units(2));
    }
    let places = SketchUsage::places;
    let (before, first, blocks) = (encoded(&usage), places(&usage), usage.effort());
    assert!(blocks > 400, "{blocks}");
    let (mut from, mut steps) = (Some(0), 0);
    while let Some(next) = from {
        let mut left = 50;
        from = usage.renew_pieces(next, &mut || {
            left -= 1;
            left > 0
        });
        steps += 1;
        assert!(from.is_none_or(|from| from > next));
    }
    assert!((blocks / 60..blocks / 40).contains(&steps), "{steps} steps for {blocks} blocks");
    let renewed = places(&usage);
    assert!(first.iter().zip(&renewed).all(|(before, after)| before != after), "each block is another");
    assert_eq!((encoded(&usage), usage.effort()), (before.clone(), blocks));

    // A copy has a share in every piece, until the usage writes to four of them.
    let copy = usage.clone();
    of(limits, b"").charge(&mut usage, us(2), units(2));
    let (charged, before_renewal, of_copy) = (encoded(&usage), places(&usage), places(&copy));
    let own = before_renewal.iter().filter(|place| !of_copy.contains(place)).count();
    assert!((1 + 1 + 4..=1 + 3 + 4).contains(&own), "{own} blocks are not shared");
    assert_eq!(usage.renew_pieces(0, &mut || true), None);
    let renewed = places(&usage);
    let moved = before_renewal.iter().zip(&renewed).map(|(before, after)| before != after);
    let are_own = before_renewal.iter().map(|place| !of_copy.contains(place));
    assert!(moved.eq(are_own), "what is shared has moved, or what is not has stayed");
    assert_eq!((encoded(&usage), encoded(&copy), places(&copy)), (charged, before, of_copy));
    // A step that may not go on has renewed one piece.
    drop(copy);
    let pieces = usage.effort() - 1 - 3;
    let steps = std::iter::successors(Some(0), |from| usage.renew_pieces(*from, &mut || false));
    assert_eq!(steps.take(2 * pieces).count(), pieces);
    assert_eq!(SketchUsage::default().renew_pieces(0, &mut || true), None);
}

#[test]
fn a_size_is_said_as_memory_settings_are() {
    for (text, bytes) in [
        ("64KB", 65_536),
        ("64kb", 65_536),
        ("65536", 65_536),
        ("65567b", 65_536),
        ("66k", 65_984),
        ("1MB", 1_048_576),
        ("1m", 999_968 + 32),
        ("256MB", 268_435_456),
    ] {
        let size = SketchSize::parse(text.as_bytes()).unwrap();
        assert_eq!(size.bytes(), bytes / 32 * 32, "{text}");
        assert_eq!(SketchSize::parse(size.to_string().as_bytes()), Some(size), "{size}");
    }
    for text in [
        "",
        "mb",
        "63kb",
        "65535",
        "257mb",
        "1gb",
        "268435457",
        "-1mb",
        "1.5mb",
        "1 mb",
        "1tb",
        "99999999999999999999gb",
    ] {
        assert_eq!(SketchSize::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(SketchSize::parse(b"2mb").unwrap().to_string(), "2mb");
    assert_eq!(SketchSize::parse(b"96kb").unwrap().to_string(), "96kb");
    assert_eq!(SketchSize::parse(b"65568").unwrap().to_string(), "65568");
}
