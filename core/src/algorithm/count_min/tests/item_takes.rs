//! What items are granted beside buckets of their own, and takes in one go.

use super::*;

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
            let request = ItemLimit::asks(step.operation.request(&limit, &usage, now));
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
    fn a_take_in_one_go_comes_to_what_the_slow_path_comes_to((limits, begin, calls) in traffic()) {
        let (mut usage, mut now, mut last) = (SketchUsage::default(), begin, None);
        for (item, step) in calls {
            now = step.when.after(now, last.as_ref());
            let limit = of(step.limit.get(&limits).sketch.prepared(), item);
            let request = ItemLimit::asks(step.operation.request(&limit, &usage, now));
            let mut at_once = usage.clone();
            let told = call(&limit, &mut usage, now, request);
            if let Take(cost) = request
                && let Some(taken) = limit.sketch.item_taken_fast(&at_once, item, now, cost)
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
    let taken = |usage: &SketchUsage, at| limits.item_taken_fast(usage, b"a", us(at), units(1));
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
    assert!(limits.item_taken_fast(&usage, b"a", us(60_000_000), units(0)).is_none());
    // The whole capacity is an everyday cost, and more than that is none.
    let whole = limits.item_taken_fast(&usage, b"c", us(60_000_000), limits.limit());
    assert!(matches!(whole, Some(ItemTaken::Charged(..))), "{whole:?}");
    assert!(limits.item_taken_fast(&usage, b"c", us(60_000_000), limits.limit().plus(millionths(1))).is_none());
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
