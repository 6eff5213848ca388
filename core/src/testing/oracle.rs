//! Oracle: the contract of every algorithm in exact rational numbers, written as simply as possible. Random calls run
//! on the oracle and the limiter side by side, and every decision must be the same.
//!
//! An algorithm defines only the usage at any time, and the effect of a charge on it. Everything else follows: a cost
//! is granted if it fits, and a wait is right if the cost fits after the wait but not a microsecond earlier (without a
//! call, usage only decreases). So no formula is inverted, and amounts are rounded only if the contract says so.

pub mod almanac;
mod contract;
mod exact_bucket;
mod exact_fixed_window;
mod exact_leases;
mod exact_log;
pub mod exact_queue;
mod exact_sliding_window;
mod exact_strict_window;

use crate::algorithm::bucket::BucketUsage;
use crate::evaluate::Request;
use crate::limit::Limit;
use crate::number::Timestamp;
use crate::testing::calls::{Operation, Script, call, lengths, peek, scripts, units};
use crate::testing::encoded_fields::encoded;
use crate::testing::laws::Lawful;
use contract::{Charges, Contract, Exact, Key, exact, subtract_oldest_first};
use exact_bucket::BucketTerms;
use exact_fixed_window::FixedTerms;
use exact_leases::LeaseTerms;
use exact_log::LogTerms;
use exact_sliding_window::SlidingTerms;
use exact_strict_window::StrictTerms;
use num_traits::{Signed, Zero};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// Returns the request of an operation on the current usage. MAXWAIT is omitted if the algorithm does not support it.
fn request<C: Contract>(
    terms: &C,
    operation: Operation,
    usage: &<C::Limit as Limit>::Usage,
    now: Timestamp,
) -> Request {
    let operation = match operation {
        Operation::Within(choice, _) if !terms.supports_maxwait() => Operation::Take(choice),
        other => other,
    };
    C::Limit::supported_request(operation.request(&terms.implementation(), usage, now))
}

/// Runs a script on the limiter and the oracle. Each call uses one of `terms`, and an expired key may be removed.
/// `clock` maps the script's time and the previous time to the time of the call.
fn side_by_side<C: Contract>(terms: &[C], (begin, calls): Script, clock: fn(Timestamp, Timestamp) -> Timestamp) {
    let mut key = Key::<C>(None);
    let mut usage = <C::Limit as Limit>::Usage::default();
    let (mut now, mut last) = (begin, None);
    let mut expiry: Option<(Timestamp, &C)> = None;
    for step in calls {
        now = clock(step.when.after(now, last.as_ref()), now);
        let micros = i128::from(now.micros());
        if let Some((_, charged_by)) = expiry.filter(|(expires, _)| step.key_may_expire && *expires <= now) {
            assert!(key.used(charged_by, micros).is_zero(), "the key expired early");
            (key, usage, expiry) = (Key(None), Default::default(), None);
        }
        let terms = step.limit.get(terms);
        let limit = terms.implementation();
        let before = encoded(&usage);
        if matches!(step.operation, Operation::Refund(_)) && !step.peeks {
            terms.release(&mut key.0, &mut usage, now);
        }
        let request = request(terms, step.operation, &usage, now);
        let decision = if step.peeks {
            let decision = peek(&limit, &usage, now, request);
            key.clone().answer(terms, micros, request, true, &decision);
            decision
        } else {
            let decision = call(&limit, &mut usage, now, request);
            key.answer(terms, micros, request, false, &decision);
            decision
        };
        if encoded(&usage) != before {
            expiry = Some((now.plus(decision.reset), terms));
        }
        last = Some(decision);
    }
}

/// Generates traffic at the boundaries of slots and windows: each call some sixtieths of a window after the previous
/// one, plus an offset in microseconds.
fn traffic() -> impl Strategy<Value = Vec<(u64, i64, Request)>> {
    let sixtieths = select(vec![0, 0, 0, 1, 1, 2, 7, 30, 58, 59, 60, 61]);
    let request = prop_oneof![
        3 => (1..=20u64).prop_map(|max| Request::UpTo(units(max))),
        2 => (1..=5u64).prop_map(|cost| Request::Take(units(cost))),
        2 => (1..=8u64).prop_map(|amount| Request::Refund(units(amount))),
    ];
    vec((sixtieths, -1..=1i64, request), 1..=60)
}

/// Asserts that no trailing window of a new key ever holds more than the limit, after refunds. A window is fullest just
/// after a charge. A refund is subtracted from the oldest charges that count, which lowers later windows least.
fn assert_trailing_windows_hold_at_most_the_limit<C: Contract>(
    terms: &C,
    window: u64,
    begin: u64,
    traffic: Vec<(u64, i64, Request)>,
) {
    let limit = terms.implementation();
    let (mut usage, mut now, mut charges) = (<C::Limit as Limit>::Usage::default(), begin, Charges::new());
    for (sixtieths, offset, request) in traffic {
        now = (now + window * sixtieths / 60).saturating_add_signed(offset).max(now);
        let decision = call(&limit, &mut usage, Timestamp::from_micros(now).unwrap(), request);
        let at = i128::from(now);
        charges.retain(|(charged, _)| !terms.used(&terms.opened(*charged, exact(1)), at).is_zero());
        match (request, decision.granted) {
            (Request::Refund(amount), _) => subtract_oldest_first(&mut charges, exact(amount.millionths())),
            (_, Some(granted)) => charges.push((at, exact(granted.millionths()))),
            (Request::Take(cost), _) if decision.verdict.allowed() => charges.push((at, exact(cost.millionths()))),
            _ => {}
        }
        let trailing: Exact =
            charges.iter().filter(|(charged, _)| *charged > at - i128::from(window)).map(|(_, cost)| cost).sum();
        assert!(trailing <= exact(terms.limit()), "{trailing} at {at}");
    }
}

proptest! {
    #[test]
    fn bucket_equals_its_contract(terms in vec(BucketTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn bucket_drains_continuously(terms in BucketTerms::any_ideal(), script in scripts()) {
        side_by_side(&[terms], script, Timestamp::max);
    }

    #[test]
    fn fixed_window_equals_its_contract(terms in vec(FixedTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn sliding_window_equals_its_contract(terms in vec(SlidingTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn strict_window_equals_its_contract(terms in vec(StrictTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn log_equals_its_contract(terms in vec(LogTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn leases_equal_their_contract(terms in LeaseTerms::several(), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }
}

// Slow tests, or tests of simple properties.
proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn changed_rate_changes_the_usage_by_at_most_one_step(
        old in BucketTerms::any(), new in BucketTerms::any(), (begin, calls) in scripts(),
    ) {
        let (ideal, limit) = (BucketTerms { is_ideal: true, ..old.clone() }, old.implementation());
        let (mut contract_key, mut ideal_key) = (Key(None), Key(None));
        let (mut usage, mut now, mut last) = (BucketUsage::default(), begin, None);
        for step in calls {
            now = step.when.after(now, last.as_ref()).max(now);
            let request = request(&old, step.operation, &usage, now);
            let decision = call(&limit, &mut usage, now, request);
            let micros = i128::from(now.micros());
            contract_key.answer(&old, micros, request, false, &decision);
            ideal_key.answer(&ideal, micros, request, false, &decision);
            last = Some(decision);

            let step = Exact::from_integer(old.step().into());
            let later = i128::from(decision.reset.micros() / 3);
            for at in [micros, micros + later] {
                let difference = contract_key.used(&new, at) - ideal_key.used(&new, at);
                prop_assert!(difference.abs() <= &step * (old.rate() - new.rate()).abs());
            }
        }
    }

    #[test]
    fn strict_window_never_holds_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = StrictTerms { limit: units(limit).millionths(), window };
        assert_trailing_windows_hold_at_most_the_limit(&terms, window, begin, traffic);
    }

    #[test]
    fn log_never_holds_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = LogTerms { limit: units(limit).millionths(), window };
        assert_trailing_windows_hold_at_most_the_limit(&terms, window, begin, traffic);
    }
}
