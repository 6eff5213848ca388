//! Grants of items, compared with an exact bucket of each item.

use super::*;
use num_rational::BigRational;
use num_traits::Zero;
use std::collections::BTreeMap;

/// Exact amount in millionths.
type Exact = BigRational;

fn exact(amount: u64) -> Exact {
    Exact::from_integer(amount.into())
}

/// Exact buckets of all items. A charge drains all of them at its rate.
#[derive(Default)]
struct ExactBuckets {
    /// Usage of each item at `drained_to`.
    used: BTreeMap<&'static [u8], Exact>,
    /// Microsecond up to which all buckets have drained.
    drained_to: u64,
}

impl ExactBuckets {
    fn drained(bucket: &Bucket, from: u64, to: u64) -> Exact {
        let [_, refill, period] = bucket.fields();
        exact(to.saturating_sub(from)) * exact(refill) / exact(period)
    }

    /// Returns the usage of an item at a time.
    fn used(&self, item: &[u8], bucket: &Bucket, at: u64) -> Exact {
        let used = self.used.get(item).cloned().unwrap_or_else(Exact::zero);
        (used - ExactBuckets::drained(bucket, self.drained_to, at)).max(Exact::zero())
    }

    /// Charges an item at `now`, and stores the usage of all buckets at `drained_to`, which is at most `now`.
    fn charge(&mut self, item: &'static [u8], bucket: &Bucket, now: u64, drained_to: u64, cost: Amount) {
        let charged =
            self.used(item, bucket, now) + exact(cost.millionths()) + ExactBuckets::drained(bucket, drained_to, now);
        let drained = ExactBuckets::drained(bucket, self.drained_to, drained_to);
        self.used.values_mut().for_each(|used| *used = (used.clone() - &drained).max(Exact::zero()));
        self.used.insert(item, charged.min(exact(Amount::MAX.millionths())));
        self.drained_to = drained_to;
    }
}

/// Limits of the calls, the start time, and the calls with their items.
type Traffic = (Vec<ItemLimit<'static>>, Timestamp, Vec<(&'static [u8], Call)>);

/// Generates calls for a few items.
fn traffic() -> impl Strategy<Value = Traffic> {
    let script = (scripts(), vec(select(ITEMS.to_vec()), 20));
    let columns = select(vec![1, 2, 3, 5, 4096]);
    (vec(ItemLimit::limits(), 1..=3), columns, script).prop_map(|(limits, columns, ((begin, calls), items))| {
        let size = Some(SketchSize::of_columns(columns));
        let limits = limits.into_iter().map(|limit| item_limit(Sketch { size, ..limit.sketch }, b"")).collect();
        (limits, begin, items.into_iter().zip(calls).collect())
    })
}

proptest! {
    #[test]
    fn grants_of_an_item_fit_its_own_exact_bucket((limits, begin, calls) in traffic()) {
        let (mut usage, mut buckets, mut now, mut last) = (SketchUsage::default(), ExactBuckets::default(), begin, None);
        for (item, step) in calls {
            now = step.when.after(now, last.as_ref());
            let limit = item_limit(step.limit.get(&limits).sketch, item);
            let request = ItemLimit::supported_request(step.operation.request(&limit, &usage, now));
            let change = evaluate(&limit, &usage, now, request).change;
            buckets.drained_to = buckets.drained_to.min(now.micros());
            let bucket = limit.sketch.bucket;
            let before = buckets.used(item, &bucket, now.micros());
            last = Some(call(&limit, &mut usage, now, request));
            if let Change::Charge(cost) = change {
                let fits = before + exact(cost.millionths()) <= exact(limit.limit().millionths());
                let waits = matches!(request, Request::Within(..));
                prop_assert!(fits || matches!(request, Force(_)) || waits, "{cost} of {item:?} at {now:?}");
                let drained_to = usage.fullest.drained_to.micros();
                buckets.charge(item, &bucket, now.micros(), drained_to, cost);
            }
            // No cell of an item is below the usage of the item's bucket.
            for (item, used) in &buckets.used {
                let cell_usage = usage.usage_of_cells(item_limit(limit.sketch, item).cells(&usage)).used;
                let used = (used - ExactBuckets::drained(&bucket, buckets.drained_to, usage.fullest.drained_to.micros())).max(Exact::zero());
                prop_assert!(exact(cell_usage.millionths()) >= used, "{cell_usage} of {item:?} is below {used}");
            }
        }
    }

    #[test]
    fn items_without_collisions_are_decided_like_buckets(calls in vec((select(ITEMS.to_vec()), 0..4_000_000_u64, 0..=4_000_000_u64), 1..40)) {
        // A millionth drains per microsecond, so that nothing is rounded.
        let (limits, mut usage, mut now) = (sketch(1 << 16, bucket(3, 1, "1s")), SketchUsage::default(), 1_700_000_000_000_000);
        let mut buckets: BTreeMap<&[u8], _> = BTreeMap::new();
        for (item, elapsed, cost) in calls {
            now += elapsed;
            let bucket_usage = buckets.entry(item).or_default();
            let decision = call(&item_limit(limits, item), &mut usage, us(now), Take(millionths(cost)));
            prop_assert_eq!(decision, call(&limits.bucket, bucket_usage, us(now), Take(millionths(cost))));
        }
    }

    #[test]
    fn item_is_granted_at_most_as_much_as_its_own_bucket_with_equal_costs(
        columns in 1..6_u32,
        cost in select(vec![1_000_000, 333_333, 2_500_000]),
        is_upto in any::<bool>(),
        refill in 1..4_u64,
        calls in vec((select(ITEMS.to_vec()), 0..3_000_000_u64), 1..60),
    ) {
        let (limits, mut usage, mut now) = (sketch(columns, bucket(5, refill, "7s")), SketchUsage::default(), 1_700_000_000_000_000);
        let mut buckets: BTreeMap<&[u8], (_, u64, u64)> = BTreeMap::new();
        for (item, elapsed) in calls {
            now += elapsed;
            let request = if is_upto { UpTo(units(3)) } else { Take(millionths(cost)) };
            let (bucket_usage, sketch_granted, bucket_granted) = buckets.entry(item).or_default();
            let granted = |change| if let Change::Charge(cost) = change { cost.millionths() } else { 0 };
            let limit = item_limit(limits, item);
            *sketch_granted += granted(evaluate(&limit, &usage, us(now), request).change);
            *bucket_granted += granted(evaluate(&limits.bucket, bucket_usage, us(now), request).change);
            call(&limit, &mut usage, us(now), request);
            call(&limits.bucket, bucket_usage, us(now), request);
            prop_assert!(sketch_granted <= bucket_granted, "{sketch_granted} by the sketch, {bucket_granted} by the bucket");
        }
    }
}

#[test]
fn debt_after_charge_equals_the_debt_of_a_charged_copy() {
    let limits = sketch(4096, bucket(10, 1, "1s"));
    let (mut usage, limit) = (SketchUsage::default(), item_limit(limits, b"a"));
    assert_eq!(limit.debt_after_charge(&usage, us(5), units(13)), Span::SECOND.times(3));
    call(&limit, &mut usage, us(1_000_000), Take(units(8)));
    call(&item_limit(limits, b"b"), &mut usage, us(1_400_000), Take(units(10)));
    for (second, cost, debt_seconds) in [(3, 4, 0), (3, 9, 5), (2, 3, 0), (2, 4, 1), (30, 10, 0), (30, 12, 2)] {
        let debt = limit.debt_after_charge(&usage, us(second * 1_000_000), units(cost));
        assert_eq!(debt, Span::SECOND.times(debt_seconds), "{cost} at {second} s");
        let mut charged = usage.clone();
        limit.charge(&mut charged, us(second * 1_000_000), units(cost));
        assert_eq!(limit.debt(&charged, us(second * 1_000_000)), debt);
    }
    // A clock that moved backwards is handled like one that stands still: 7.6 of 10 are used.
    assert_eq!(limit.debt_after_charge(&usage, us(0), units(4)).micros(), 1_600_000);
}
