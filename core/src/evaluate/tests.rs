use super::*;
use crate::algorithm::bucket::{Bucket, BucketUsage, Discipline};
use crate::testing::calls::{period, units, us};

/// A bucket of 10 of which 8 are used, at the epoch.
fn used() -> (Bucket, BucketUsage) {
    let limit = Bucket::new(units(10), units(1), period("1s"), Discipline::Burst).unwrap();
    let mut usage = BucketUsage::default();
    limit.charge(&mut usage, us(0), units(8));
    (limit, usage)
}

#[test]
fn what_is_denied_stands_in_the_way_of_others_and_what_is_forced_or_given_back_never_does() {
    let (limit, usage) = used();
    let within = |cost, seconds| Ask::Within(units(cost), Span::SECOND.times(seconds));
    for (ask, denies) in [
        (Ask::Take(units(2)), false),
        (Ask::Take(units(3)), true),
        (Ask::Take(units(11)), true),
        (Ask::UpTo(units(9)), false),
        (within(3, 1), false),
        (within(4, 1), true),
        (within(11, 1_000_000), true),
        (Ask::Force(units(2)), false),
        (Ask::Force(units(3)), false),
        (Ask::Force(units(11)), false),
        (Ask::GiveBack(units(11)), false),
    ] {
        assert_eq!(look(&limit, &usage, us(0), ask).denies(), denies, "{ask:?}");
    }
    let full = Bucket::new(units(8), units(1), period("1s"), Discipline::Burst).unwrap();
    assert!(look(&full, &usage, us(0), Ask::UpTo(units(1))).denies());
}

#[test]
fn a_look_announces_the_change_that_taking_makes() {
    let (limit, usage) = used();
    for (ask, change, granted, left) in [
        (Ask::Take(units(2)), Change::Charge(units(2)), None, 0),
        (Ask::Take(units(3)), Change::Nothing, None, 2),
        (Ask::Take(Amount::ZERO), Change::Nothing, None, 2),
        (Ask::UpTo(units(9)), Change::Charge(units(2)), Some(units(2)), 0),
        (Ask::UpTo(units(1)), Change::Charge(units(1)), Some(units(1)), 1),
        (Ask::Within(units(3), Span::SECOND), Change::Charge(units(3)), None, 0),
        (Ask::Within(units(4), Span::SECOND), Change::Nothing, None, 2),
        (Ask::Force(units(3)), Change::Charge(units(3)), None, 0),
        (Ask::Force(Amount::ZERO), Change::Nothing, None, 2),
        (Ask::GiveBack(units(3)), Change::GiveBack(units(3)), None, 5),
        (Ask::GiveBack(Amount::ZERO), Change::Nothing, None, 2),
    ] {
        let (look, mut after) = (look(&limit, &usage, us(0), ask), usage);
        assert_eq!(look.change(), change, "{ask:?}");
        look.change().apply(&limit, &mut after, us(0));
        let decision = look.decision(&limit, &after, us(0), true);
        assert_eq!((decision.granted, decision.remaining), (granted, units(left)), "{ask:?}");
        assert_eq!(decision.verdict.allowed(), look.verdict().allowed(), "{ask:?}");
    }
    let nothing = look(&limit, &BucketUsage::default(), us(0), Ask::GiveBack(units(3)));
    assert_eq!((nothing.change(), nothing.denies()), (Change::Nothing, false));
}

#[test]
fn a_peek_at_a_forced_cost_tells_the_debt_as_if_it_had_been_charged() {
    let (limit, mut usage) = used();
    let look = look(&limit, &usage, us(0), Ask::Force(units(5)));
    let told = |usage: &BucketUsage, taken| look.decision(&limit, usage, us(0), taken).verdict;
    let debt = Verdict::After(Span::SECOND.times(3));
    assert_eq!(told(&usage, false), debt);
    look.change().apply(&limit, &mut usage, us(0));
    assert_eq!(told(&usage, true), debt);
}
