use super::*;
use crate::limit::Verdict;
use crate::number::Span;
use crate::testing::calls::{millionths, units};

const ADMITTED: CountedOutcome =
    CountedOutcome { charges: true, admitted: true, near: false, shadow_denied: false, banned: false, repeated: false };
const DENIED: CountedOutcome = CountedOutcome { admitted: false, ..ADMITTED };

/// What is counted of one call, but that it is a call.
fn counted(outcome: CountedOutcome) -> Vec<&'static str> {
    let counts = Counts::default();
    counts.count(&outcome);
    let [calls, others @ ..] = counts.all();
    assert_eq!(calls, ("calls", 1));
    assert!(others.iter().all(|(_, count)| *count <= 1));
    others.into_iter().filter(|(_, count)| *count == 1).map(|(name, _)| name).collect()
}

#[test]
fn each_call_is_counted_by_what_has_become_of_it() {
    for (outcome, counted_as) in [
        (ADMITTED, &["admitted"][..]),
        (CountedOutcome { near: true, ..ADMITTED }, &["admitted", "near"]),
        (CountedOutcome { shadow_denied: true, ..ADMITTED }, &["admitted", "shadow_denied"]),
        (DENIED, &["denied"]),
        // What is denied is not near: it is there.
        (CountedOutcome { near: true, ..DENIED }, &["denied"]),
        (CountedOutcome { shadow_denied: true, ..DENIED }, &["denied", "shadow_denied"]),
        (CountedOutcome { banned: true, ..DENIED }, &["denied", "banned"]),
        // It was counted when it was charged.
        (CountedOutcome { repeated: true, near: true, ..ADMITTED }, &["repeated"]),
        (CountedOutcome { charges: false, near: true, ..ADMITTED }, &[]),
        (CountedOutcome { charges: false, banned: true, shadow_denied: true, ..DENIED }, &[]),
    ] {
        assert_eq!(counted(outcome), counted_as, "{outcome:?}");
    }
}

#[test]
fn counts_add_up() {
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
fn a_call_is_near_with_a_fifth_left_or_less() {
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
    for purpose in [Purpose::Check, Purpose::GiveBack, Purpose::Settle] {
        assert_eq!(outcome(allowed, units(9), units(10), purpose), CountedOutcome { charges: false, ..ADMITTED });
    }
}
