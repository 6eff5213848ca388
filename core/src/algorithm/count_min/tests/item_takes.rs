//! Grants of items compared with buckets of their own, and the fast path compared with the slow one.

use super::*;

/// Exact bucket of each item, in fractions. All drain at the rate of the charging call, from the time up to which they
/// have drained before.
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

    /// Returns the usage of an item at a time.
    fn used(&self, item: &[u8], bucket: &Bucket, at: u64) -> Exact {
        let used = self.used.get(item).cloned().unwrap_or_else(Exact::zero);
        (used - Buckets::drained(bucket, self.to, at)).max(Exact::zero())
    }

    /// Charges an item at `now`, when all buckets have drained up to `to`.
    fn charge(&mut self, item: &'static [u8], bucket: &Bucket, now: u64, to: u64, cost: Amount) {
        let charged = self.used(item, bucket, now) + exact(cost.millionths()) + Buckets::drained(bucket, to, now);
        let drained = Buckets::drained(bucket, self.to, to);
        self.used.values_mut().for_each(|used| *used = (used.clone() - &drained).max(Exact::zero()));
        self.used.insert(item, charged.min(exact(Amount::MAX.millionths())));
        self.to = to;
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
        let limits = limits.into_iter().map(|limit| of(Sketch { size, ..limit.sketch }, b"")).collect();
        (limits, begin, items.into_iter().zip(calls).collect())
    })
}

proptest! {
    #[test]
    fn grants_of_an_item_fit_its_own_exact_bucket((limits, begin, calls) in traffic()) {
        let (mut usage, mut buckets, mut now, mut last) = (SketchUsage::default(), Buckets::default(), begin, None);
        for (item, step) in calls {
            now = step.when.after(now, last.as_ref());
            let limit = of(step.limit.get(&limits).sketch, item);
            let request = ItemLimit::asks(step.operation.request(&limit, &usage, now));
            let change = evaluate(&limit, &usage, now, request).change;
            buckets.to = buckets.to.min(now.micros());
            let bucket = limit.sketch.bucket;
            let before = buckets.used(item, &bucket, now.micros());
            last = Some(call(&limit, &mut usage, now, request));
            if let Change::Charge(cost) = change {
                let within = before + exact(cost.millionths()) <= exact(limit.limit().millionths());
                let waits = matches!(request, Request::Within(..));
                prop_assert!(within || matches!(request, Force(_)) || waits, "{cost} of {item:?} at {now:?}");
                let to = usage.fullest.drained_to.micros();
                buckets.charge(item, &bucket, now.micros(), to, cost);
            }
            // No cell of the item is below the usage of its bucket.
            for (item, used) in &buckets.used {
                let least = usage.bucket_of(of(limit.sketch, item).cells(&usage)).used;
                let used = (used - Buckets::drained(&bucket, buckets.to, usage.fullest.drained_to.micros())).max(Exact::zero());
                prop_assert!(exact(least.millionths()) >= used, "{least} of {item:?} is below {used}");
            }
        }
    }

    #[test]
    fn items_without_collisions_are_decided_like_buckets(calls in vec((select(ITEMS.to_vec()), 0..4_000_000_u64, 0..=4_000_000_u64), 1..40)) {
        // A millionth drains per microsecond, so that nothing is rounded.
        let (limits, mut usage, mut now) = (sketch(1 << 16, bucket(3, 1, "1s")), SketchUsage::default(), 1_700_000_000_000_000);
        let mut buckets: BTreeMap<&[u8], _> = BTreeMap::new();
        for (item, later, cost) in calls {
            now += later;
            let own = buckets.entry(item).or_default();
            let decision = call(&of(limits, item), &mut usage, us(now), Take(millionths(cost)));
            prop_assert_eq!(decision, call(&limits.bucket, own, us(now), Take(millionths(cost))));
        }
    }

    #[test]
    fn item_is_granted_at_most_as_much_as_its_own_bucket_with_equal_costs(
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
            *of_sketch += granted(evaluate(&limit, &usage, us(now), request).change);
            *of_bucket += granted(evaluate(&limits.bucket, own, us(now), request).change);
            call(&limit, &mut usage, us(now), request);
            call(&limits.bucket, own, us(now), request);
            prop_assert!(of_sketch <= of_bucket, "{of_sketch} of {of_bucket}");
        }
    }
}

#[test]
fn debt_after_charge_equals_the_debt_of_a_charged_copy() {
    let limits = sketch(4096, bucket(10, 1, "1s"));
    let (mut usage, limit) = (SketchUsage::default(), of(limits, b"a"));
    assert_eq!(limit.debt_after_charge(&usage, us(5), units(13)), Span::SECOND.times(3));
    call(&limit, &mut usage, us(1_000_000), Take(units(8)));
    call(&of(limits, b"b"), &mut usage, us(1_400_000), Take(units(10)));
    for (at, cost, seconds) in [(3, 4, 0), (3, 9, 5), (2, 3, 0), (2, 4, 1), (30, 10, 0), (30, 12, 2)] {
        let debt = limit.debt_after_charge(&usage, us(at * 1_000_000), units(cost));
        assert_eq!(debt, Span::SECOND.times(seconds), "{cost} at {at}");
        let mut charged = usage.clone();
        limit.charge(&mut charged, us(at * 1_000_000), units(cost));
        assert_eq!(limit.debt(&charged, us(at * 1_000_000)), debt);
    }
    // A clock that moved backwards is handled like one that stands still: 7.6 of 10 are used.
    assert_eq!(limit.debt_after_charge(&usage, us(0), units(4)).micros(), 1_600_000);
}
