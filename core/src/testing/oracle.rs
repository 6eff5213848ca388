//! The contract of every algorithm once more, in exact rational numbers and as plainly as it can be said; random
//! calls run on it and on the limiters side by side, and every decision must be the same.
//!
//! An algorithm here is only how much is used at any time, and what a charge does to it. All the rest follows: what
//! passes is what fits, and a wait is right if what it waits for holds after it and not a microsecond sooner (usage
//! by itself only falls). So nothing here inverts a formula, and nothing is rounded but where the contract says so.

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
use crate::testing::calls::{Script, What, call, lengths, peek, scripts, units};
use crate::testing::encoded_fields::encoded;
use crate::testing::laws::Lawful;
use contract::{Charges, Contract, Exact, Key, exact, take_off};
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

/// What a call asks of a key that exists; MAXWAIT only where there is such an option.
fn request<C: Contract>(terms: &C, what: What, usage: &<C::Limit as Limit>::Usage, now: Timestamp) -> Request {
    let what = match what {
        What::Within(much, _) if !terms.takes_maxwait() => What::Take(much),
        what => what,
    };
    C::Limit::asks(what.request(&terms.implementation(), usage, now))
}

/// Runs calls on both. Each brings one of the `terms`; a key may vanish as soon as it may expire. `clock` is given
/// where a script wants to go and where it was.
fn side_by_side<C: Contract>(terms: &[C], (begin, calls): Script, clock: fn(Timestamp, Timestamp) -> Timestamp) {
    let mut key = Key::<C>(None);
    let mut usage = <C::Limit as Limit>::Usage::default();
    let (mut now, mut last) = (begin, None);
    let mut expiry: Option<(Timestamp, &C)> = None;
    for step in calls {
        now = clock(step.when.after(now, last.as_ref()), now);
        let micros = i128::from(now.micros());
        if let Some((_, charged_under)) = expiry.filter(|(expires, _)| step.key_may_expire && *expires <= now) {
            assert!(key.used(charged_under, micros).is_zero(), "expired early");
            (key, usage, expiry) = (Key(None), Default::default(), None);
        }
        let terms = step.limit.get(terms);
        let limit = terms.implementation();
        let before = encoded(&usage);
        if matches!(step.what, What::GiveBack(_)) && !step.peeks {
            terms.release(&mut key.0, &mut usage, now);
        }
        let request = request(terms, step.what, &usage, now);
        let told = if step.peeks {
            let told = peek(&limit, &usage, now, request);
            key.clone().answer(terms, micros, request, true, &told);
            told
        } else {
            let told = call(&limit, &mut usage, now, request);
            key.answer(terms, micros, request, false, &told);
            told
        };
        if encoded(&usage) != before {
            expiry = Some((now.plus(told.reset), terms));
        }
        last = Some(told);
    }
}

/// Traffic at the edges of slots and windows: each call so many sixtieths of a window after the last, and microseconds.
fn traffic() -> impl Strategy<Value = Vec<(u64, i64, Request)>> {
    let later = select(vec![0, 0, 0, 1, 1, 2, 7, 30, 58, 59, 60, 61]);
    let request = prop_oneof![
        3 => (1..=20u64).prop_map(|most| Request::UpTo(units(most))),
        2 => (1..=5u64).prop_map(|cost| Request::Take(units(cost))),
        2 => (1..=8u64).prop_map(|amount| Request::GiveBack(units(amount))),
    ];
    vec((later, -1..=1i64, request), 1..=60)
}

/// Panics if ever a trailing window of a new key holds more than the limit, net of what is given back. It is fullest
/// when something has just come; and of the usage that counts, what is given back is taken to be the oldest, as else
/// it would lower a later window more.
fn never_more_in_any_trailing_window<C: Contract>(
    terms: &C,
    window: u64,
    begin: u64,
    traffic: Vec<(u64, i64, Request)>,
) {
    let limit = terms.implementation();
    let (mut usage, mut now, mut net) = (<C::Limit as Limit>::Usage::default(), begin, Charges::new());
    for (sixtieths, extras, request) in traffic {
        now = (now + window * sixtieths / 60).saturating_add_signed(extras).max(now);
        let told = call(&limit, &mut usage, Timestamp::from_micros(now).unwrap(), request);
        let at = i128::from(now);
        net.retain(|(charged, _)| !terms.used(&terms.opened(*charged, exact(1)), at).is_zero());
        match (request, told.granted) {
            (Request::GiveBack(amount), _) => take_off(&mut net, exact(amount.millionths())),
            (_, Some(granted)) => net.push((at, exact(granted.millionths()))),
            (Request::Take(cost), _) if told.verdict.allowed() => net.push((at, exact(cost.millionths()))),
            _ => {}
        }
        let trailing: Exact =
            net.iter().filter(|(charged, _)| *charged > at - i128::from(window)).map(|(_, cost)| cost).sum();
        assert!(trailing <= exact(terms.limit()), "{trailing} at {at}");
    }
}

proptest! {
    #[test]
    fn buckets_keep_their_contract(terms in vec(BucketTerms::any(false), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn buckets_drain_continuously(terms in BucketTerms::any(true), script in scripts()) {
        side_by_side(&[terms], script, Timestamp::max);
    }

    #[test]
    fn fixed_windows_keep_their_contract(terms in vec(FixedTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn sliding_windows_keep_their_contract(terms in vec(SlidingTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn strict_windows_keep_their_contract(terms in vec(StrictTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn logs_keep_their_contract(terms in vec(LogTerms::any(), 1..=3), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }

    #[test]
    fn leases_keep_their_contract(terms in LeaseTerms::several(), script in scripts()) {
        side_by_side(&terms, script, |now, _| now);
    }
}

// What takes its time, or has fewer ways to go wrong.
proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_rate_prices_at_most_one_step_anew(
        old in BucketTerms::any(false), new in BucketTerms::any(false), (begin, calls) in scripts(),
    ) {
        let (ideal, limit) = (BucketTerms { ideal: true, ..old.clone() }, old.implementation());
        let (mut contract, mut ideally) = (Key(None), Key(None));
        let (mut usage, mut now, mut last) = (BucketUsage::default(), begin, None);
        for step in calls {
            now = step.when.after(now, last.as_ref()).max(now);
            let request = request(&old, step.what, &usage, now);
            let told = call(&limit, &mut usage, now, request);
            let micros = i128::from(now.micros());
            contract.answer(&old, micros, request, false, &told);
            ideally.answer(&ideal, micros, request, false, &told);
            last = Some(told);

            let step = Exact::from_integer(old.step().into());
            let later = i128::from(told.reset.micros() / 3);
            for at in [micros, micros + later] {
                let difference = contract.used(&new, at) - ideally.used(&new, at);
                prop_assert!(difference.abs() <= &step * (old.rate() - new.rate()).abs());
            }
        }
    }

    #[test]
    fn strict_windows_never_hold_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = StrictTerms { limit: units(limit).millionths(), window };
        never_more_in_any_trailing_window(&terms, window, begin, traffic);
    }

    #[test]
    fn logs_never_hold_more_than_the_limit(
        limit in 1..=20u64, window in lengths(), begin in 0..1_800_000_000_000_000u64, traffic in traffic(),
    ) {
        let terms = LogTerms { limit: units(limit).millionths(), window };
        never_more_in_any_trailing_window(&terms, window, begin, traffic);
    }
}
