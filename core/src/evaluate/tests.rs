use super::*;
use crate::algorithm::bucket::{Bucket, BucketUsage, Discipline};
use crate::testing::calls::{period, units, us};

/// Returns a bucket with a capacity of 10 and a usage of 8, at the epoch.
fn bucket_with_usage_of_8() -> (Bucket, BucketUsage) {
    let limit = Bucket::new(units(10), units(1), period("1s"), Discipline::Burst).unwrap();
    let mut usage = BucketUsage::default();
    limit.charge(&mut usage, us(0), units(8));
    (limit, usage)
}

#[test]
fn only_a_request_that_does_not_fit_is_denied() {
    let (limit, usage) = bucket_with_usage_of_8();
    let within = |cost, seconds| Request::Within(units(cost), Span::SECOND.times(seconds));
    for (request, denies) in [
        (Request::Take(units(2)), false),
        (Request::Take(units(3)), true),
        (Request::Take(units(11)), true),
        (Request::UpTo(units(9)), false),
        (within(3, 1), false),
        (within(4, 1), true),
        (within(11, 1_000_000), true),
        (Request::Force(units(2)), false),
        (Request::Force(units(3)), false),
        (Request::Force(units(11)), false),
        (Request::Refund(units(11)), false),
    ] {
        assert_eq!(evaluate(&limit, &usage, us(0), request).denies(), denies, "{request:?}");
    }
    let full = Bucket::new(units(8), units(1), period("1s"), Discipline::Burst).unwrap();
    assert!(evaluate(&full, &usage, us(0), Request::UpTo(units(1))).denies());
}

#[test]
fn requests_change_the_usage_and_report_the_grant() {
    let (limit, usage) = bucket_with_usage_of_8();
    for (request, change, granted, remaining) in [
        (Request::Take(units(2)), Change::Charge(units(2)), None, 0),
        (Request::Take(units(3)), Change::Nothing, None, 2),
        (Request::Take(Amount::ZERO), Change::Nothing, None, 2),
        (Request::UpTo(units(9)), Change::Charge(units(2)), Some(units(2)), 0),
        (Request::UpTo(units(1)), Change::Charge(units(1)), Some(units(1)), 1),
        (Request::Within(units(3), Span::SECOND), Change::Charge(units(3)), None, 0),
        (Request::Within(units(4), Span::SECOND), Change::Nothing, None, 2),
        (Request::Force(units(3)), Change::Charge(units(3)), None, 0),
        (Request::Force(Amount::ZERO), Change::Nothing, None, 2),
        (Request::Refund(units(3)), Change::Refund(units(3)), None, 5),
        (Request::Refund(Amount::ZERO), Change::Nothing, None, 2),
    ] {
        let (evaluation, mut after) = (evaluate(&limit, &usage, us(0), request), usage);
        assert_eq!(evaluation.change, change, "{request:?}");
        evaluation.change.apply(&limit, &mut after, us(0));
        let decision = evaluation.decision(&limit, &after, us(0), true);
        assert_eq!((decision.granted, decision.remaining), (granted, units(remaining)), "{request:?}");
        assert_eq!(decision.verdict.allowed(), evaluation.verdict.allowed(), "{request:?}");
    }
    let unused = evaluate(&limit, &BucketUsage::default(), us(0), Request::Refund(units(3)));
    assert_eq!((unused.change, unused.denies()), (Change::Nothing, false));
}

#[test]
fn forced_request_reports_the_debt_after_the_charge() {
    let (limit, mut usage) = bucket_with_usage_of_8();
    let evaluation = evaluate(&limit, &usage, us(0), Request::Force(units(5)));
    let verdict = |usage: &BucketUsage, is_applied| evaluation.decision(&limit, usage, us(0), is_applied).verdict;
    let debt = Verdict::After(Span::SECOND.times(3));
    assert_eq!(verdict(&usage, false), debt);
    evaluation.change.apply(&limit, &mut usage, us(0));
    assert_eq!(verdict(&usage, true), debt);
}
