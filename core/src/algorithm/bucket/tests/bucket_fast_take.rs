//! Takes in one step, compared with takes that are evaluated, charged and decided separately.

use super::*;

/// Returns the outcome of taking `cost` by evaluation, charge and decision.
fn outcome_of_separate_steps(limit: &Bucket, usage: &BucketUsage, now: Timestamp, cost: Amount) -> Taken<BucketUsage> {
    let mut usage_after = *usage;
    let evaluation = evaluate(limit, usage, now, Take(cost));
    evaluation.change.apply(limit, &mut usage_after, now);
    let charged = !evaluation.denies();
    let decision = evaluation.decision(limit, &usage_after, now, charged);
    if charged { Taken::Charged(decision, usage_after) } else { Taken::Denied(decision) }
}

#[test]
fn take_in_one_step_equals_evaluation() {
    let limit = bucket(3, 2, "7s");
    for limit in [limit, limit.prepared()] {
        let mut usage = BucketUsage { used: units(1), drained_to: Timestamp::from_micros(5_000_000).unwrap() };
        for millis in [5_000, 5_001, 6_000, 6_000, 9_500, 20_000, 20_000, 90_000] {
            let now = Timestamp::from_micros(millis * 1000).unwrap();
            let taken = limit.take(&usage, now, units(1)).unwrap();
            assert_eq!(taken, outcome_of_separate_steps(&limit, &usage, now, units(1)), "{millis}");
            if let Taken::Charged(_, usage_after) = taken {
                usage = usage_after;
            }
        }
    }
    let usage = BucketUsage { used: units(1), drained_to: Timestamp::from_micros(1).unwrap() };
    for (reason, limit, usage, now, cost) in [
        ("a queue", queue(3, 2, "7s"), usage, 5, units(1)),
        ("the clock has gone back", limit, usage, 0, units(1)),
        ("a peek", limit, usage, 5, Amount::ZERO),
        ("it never fits", limit, usage, 5, units(4)),
    ] {
        let now = Timestamp::from_micros(now).unwrap();
        assert_eq!(limit.take(&usage, now, cost), None, "{reason}");
    }
}

#[test]
fn first_take_in_one_step_equals_evaluation() {
    let (limit, now, unused) = (bucket(3, 2, "7s"), Timestamp::from_micros(5_000_000).unwrap(), BucketUsage::default());
    assert_eq!(limit.take(&unused, now, units(2)), Some(outcome_of_separate_steps(&limit, &unused, now, units(2))));
    for (reason, limit, cost) in
        [("a queue", queue(3, 2, "7s"), units(1)), ("a peek", limit, Amount::ZERO), ("it never fits", limit, units(4))]
    {
        assert_eq!(limit.take(&unused, now, cost), None, "{reason}");
    }
}

proptest! {
    #[test]
    fn any_take_in_one_step_equals_evaluation(
        (capacity, refill, cost, used) in (amounts(), amounts(), amounts(), amounts()),
        period in lengths(),
        (drained_to, elapsed) in (lengths(), lengths()),
        prepared in any::<bool>(),
    ) {
        let [capacity, refill, cost, used] = [capacity, refill, cost, used].map(millionths);
        let [period, drained_to, elapsed] = [period, drained_to, elapsed].map(Span::from_micros);
        let limit = Bucket::new(capacity, refill, Period::new(period).unwrap(), Discipline::Burst);
        prop_assume!(limit.is_ok());
        let limit = if prepared { limit.unwrap().prepared() } else { limit.unwrap() };
        let drained_to = Timestamp::EPOCH.plus(drained_to);
        let (usage, now) = (BucketUsage { used, drained_to }, drained_to.plus(elapsed));
        for usage in [usage, BucketUsage::default()] {
            if let Some(taken) = limit.take(&usage, now, cost) {
                prop_assert_eq!(taken, outcome_of_separate_steps(&limit, &usage, now, cost));
            }
        }
    }
}
