use super::*;
use crate::limit::Verdict;
use crate::number::Span;
use crate::testing::calls::{millionths, units};

const ADMITTED: CountedOutcome =
    CountedOutcome { charges: true, admitted: true, near: false, shadow_denied: false, banned: false, repeated: false };
const DENIED: CountedOutcome = CountedOutcome { admitted: false, ..ADMITTED };

/// Counts one call, and returns the names of the incremented counters, without `calls`.
fn incremented_counters(outcome: CountedOutcome) -> Vec<&'static str> {
    let counts = Counts::default();
    counts.count(&outcome);
    let [calls, others @ ..] = counts.all();
    assert_eq!(calls, ("calls", 1));
    assert!(others.iter().all(|(_, count)| *count <= 1));
    others.into_iter().filter(|(_, count)| *count == 1).map(|(name, _)| name).collect()
}

#[test]
fn call_increments_the_counters_of_its_outcome() {
    for (outcome, counters) in [
        (ADMITTED, &["admitted"][..]),
        (CountedOutcome { near: true, ..ADMITTED }, &["admitted", "near"]),
        (CountedOutcome { shadow_denied: true, ..ADMITTED }, &["admitted", "shadow_denied"]),
        (DENIED, &["denied"]),
        // A denied call is not near the limit, but beyond it.
        (CountedOutcome { near: true, ..DENIED }, &["denied"]),
        (CountedOutcome { shadow_denied: true, ..DENIED }, &["denied", "shadow_denied"]),
        (CountedOutcome { banned: true, ..DENIED }, &["denied", "banned"]),
        // A repeated call was counted when it was charged.
        (CountedOutcome { repeated: true, near: true, ..ADMITTED }, &["repeated"]),
        (CountedOutcome { charges: false, near: true, ..ADMITTED }, &[]),
        (CountedOutcome { charges: false, banned: true, shadow_denied: true, ..DENIED }, &[]),
    ] {
        assert_eq!(incremented_counters(outcome), counters, "{outcome:?}");
    }
}

#[test]
fn counters_accumulate() {
    let counts = Counts::default();
    for outcome in [ADMITTED, DENIED, ADMITTED, CountedOutcome { near: true, ..ADMITTED }] {
        counts.count(&outcome);
    }
    let all = counts.all().map(|(_, count)| count);
    assert_eq!(all, [4, 3, 1, 1, 0, 0, 0]);
    let names = counts.all().map(|(name, _)| name);
    assert_eq!(names, ["calls", "admitted", "denied", "near", "shadow_denied", "banned", "repeated"]);
}

#[test]
fn call_with_at_most_a_fifth_left_is_near() {
    let outcome = |verdict, remaining, limit, purpose| {
        CountedOutcome::of(&Decision { verdict, limit, remaining, reset: Span::ZERO, granted: None }, purpose)
    };
    let allowed = Verdict::Allowed(Span::ZERO);
    for (remaining, limit, near) in [
        (units(100), units(100), false),
        (millionths(20_000_001), units(100), false),
        (units(20), units(100), true),
        (units(0), units(100), true),
        (units(0), units(0), true),
        (Amount::MAX_ARGUMENT, Amount::MAX_ARGUMENT, false),
        (Amount::MAX, Amount::MAX, false),
        (units(0), Amount::MAX_ARGUMENT, true),
    ] {
        assert_eq!(
            outcome(allowed, remaining, limit, Purpose::Charge),
            CountedOutcome { near, ..ADMITTED },
            "{remaining}"
        );
    }
    assert_eq!(outcome(Verdict::Never, units(9), units(10), Purpose::Charge), DENIED);
    assert_eq!(outcome(Verdict::After(Span::SECOND), units(9), units(10), Purpose::Charge), DENIED);
    for purpose in [Purpose::Peek, Purpose::Refund, Purpose::Settle] {
        assert_eq!(outcome(allowed, units(9), units(10), purpose), CountedOutcome { charges: false, ..ADMITTED });
    }
}
