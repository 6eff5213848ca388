//! Laws that every limiter satisfies. The test file of an algorithm implements [`Lawful`] and contains one line, such
//! as `laws!(Bucket);`.

use crate::evaluate::{Change, Request, evaluate};
use crate::expiry::{Expiry, StepBack};
use crate::limit::{Limit, RecoverySource, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::testing::calls::{
    Operation, Script, amount_of, call, call_and_encode_effect, millionths, moved_back_to, peek, scripts,
};
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use std::fmt::Debug;
use std::ops::RangeInclusive;

/// Description of an algorithm for its laws.
pub trait Lawful: Limit<Usage: Debug> + Debug {
    /// Generates limits of every size.
    fn limits() -> impl Strategy<Value = Self>;

    /// Asserts the guarantee of the algorithm. `admitted` lists all calls admitted to a new key under a monotonic
    /// clock, in order, each with its cost in millionths.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]);

    /// Converts a request to one that the algorithm's command supports.
    fn supported_request(request: Request) -> Request {
        request
    }

    /// Maximum number of limits that may charge a key so that its expiry is exact after the clock moved backwards.
    const LIMITS_OF_AN_EXPIRY: usize = 3;

    /// Returns the time beyond one full recovery for which a clock that moved backwards may deny calls.
    fn lockout_beyond_recovery(&self) -> Span {
        Span::ZERO
    }
}

/// Declares a test of each law for a type of limit, or of the named laws.
macro_rules! laws {
    ($limit:ty) => {
        mod laws {
            use super::*;
            use crate::testing::laws;

            #[test]
            fn never_more_than_the_limit() {
                laws::never_more_than_the_limit::<$limit>();
            }

            #[test]
            fn clock_step_back_frees_nothing_and_bounds_denials() {
                let law = laws::clock_step_back_frees_nothing_and_bounds_denials;
                laws::in_every_state::<$limit>(1..=1, laws::without_debts, law);
            }

            #[test]
            fn move_back_moves_the_recovery_by_the_step() {
                laws::in_every_state::<$limit>(1..=1, |operation| operation, laws::move_back_moves_the_recovery_by_the_step);
            }

            #[test]
            fn key_expires_soon_after_its_recovery() {
                laws::key_expires_soon_after_its_recovery::<$limit>();
            }

            $crate::testing::laws::laws!($limit:
                denied_call_changes_nothing,
                peek_changes_nothing,
                peek_after_clock_step_back_equals_peek_after_a_call,
                wait_is_exact,
                remaining_is_the_largest_cost_that_passes,
                recovered_key_equals_a_new_one,
                refund_never_exceeds_the_limit,
                encoding_round_trips,
                effect_applied_to_a_copy_gives_the_same_state,
            );
        }
    };
    ($limit:ty: $($law:ident,)*) => {
        $(
            #[test]
            fn $law() {
                laws::in_every_state::<$limit>(1..=3, |operation| operation, laws::$law);
            }
        )*
    };
}
pub(crate) use laws;

/// Law of a limit: its arguments are the limit, a usage that is not later than now, the time, and a request.
type Law<L> = fn(&L, &<L as Limit>::Usage, Timestamp, Request);

/// Checks a law in every state that random calls reach. Each call is under one of `limits` limits, and has an operation
/// that `edit` returns.
pub fn in_every_state<L: Lawful>(limits: RangeInclusive<usize>, edit: fn(Operation) -> Operation, law: Law<L>) {
    let check = |(limits, (begin, calls)): (Vec<L>, Script)| {
        let (mut now, mut usage, mut decision) = (begin, L::Usage::default(), None);
        for step in calls {
            now = step.when.after(now, decision.as_ref());
            let limit = step.limit.get(&limits);
            let request = L::supported_request(edit(step.operation).request(limit, &usage, now));
            law(limit, &moved_back_to(&usage, now), now, request);
            decision = Some(call(limit, &mut usage, now, request));
        }
    };
    run(&(vec(L::limits(), limits), scripts()), check);
}

fn run<S: Strategy>(input: &S, check: impl Fn(S::Value)) {
    // A script reaches about ten states, so a third of the usual number of scripts is enough.
    let ProptestConfig { cases, .. } = ProptestConfig::default();
    let config = ProptestConfig { cases: cases / 3, failure_persistence: None, ..ProptestConfig::default() };
    let result = TestRunner::new(config).run(input, |input| {
        check(input);
        Ok(())
    });
    result.unwrap();
}

/// Replaces operations with FORCE or MAXWAIT, so that the usage never exceeds the limit.
pub fn without_debts(operation: Operation) -> Operation {
    match operation {
        Operation::Force(choice) | Operation::Within(choice, _) => Operation::Take(choice),
        other => other,
    }
}

pub fn denied_call_changes_nothing<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    if !evaluate(limit, usage, now, request).denies() {
        return;
    }
    let mut after = usage.clone();
    let decision = call(limit, &mut after, now, request);
    assert_eq!(evaluate(limit, usage, now, request).change, Change::Nothing);
    assert_eq!(encoded(&after), encoded(usage));
    assert_eq!(call(limit, &mut after, now, request), decision);
    assert_eq!(decision.granted.unwrap_or_default(), Amount::ZERO);
}

pub fn peek_changes_nothing<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    let cost_of_zero = Request::Take(Amount::ZERO);
    assert_eq!(evaluate(limit, usage, now, cost_of_zero).change, Change::Nothing);
    let peeked = peek(limit, usage, now, request);
    let current = peek(limit, usage, now, cost_of_zero);
    assert_eq!((peeked.remaining, peeked.reset), (current.remaining, current.reset));
    let called = call(limit, &mut usage.clone(), now, request);
    assert_eq!((peeked.verdict, peeked.granted), (called.verdict, called.granted));
}

pub fn peek_after_clock_step_back_equals_peek_after_a_call<L: Lawful>(
    limit: &L,
    usage: &L::Usage,
    now: Timestamp,
    request: Request,
) {
    for earlier in earlier(now, peek(limit, usage, now, request).reset) {
        let moved = moved_back_to(usage, earlier);
        let (evaluation, expected) =
            (evaluate(limit, usage, earlier, request), evaluate(limit, &moved, earlier, request));
        assert_eq!(evaluation.change, expected.change);
        assert_eq!(peek(limit, usage, earlier, request), peek(limit, &moved, earlier, request), "at {earlier:?}");
        let entries = |usage| limit.entries_after_charge(usage, earlier);
        assert_eq!(entries(usage), entries(&moved));
    }
}

/// Holds for a key that one limit has charged.
pub fn move_back_moves_the_recovery_by_the_step<L: Lawful>(
    limit: &L,
    usage: &L::Usage,
    now: Timestamp,
    request: Request,
) {
    for earlier in earlier(now, peek(limit, usage, now, request).reset) {
        let stored_time = earlier.plus(usage.ahead(earlier));
        let reset = |usage, now| peek(limit, usage, now, Request::Take(Amount::ZERO)).reset;
        if usage.recovery_source() == RecoverySource::MovesBack {
            assert_eq!(reset(&moved_back_to(usage, earlier), earlier), reset(usage, stored_time), "at {earlier:?}");
        }
    }
}

pub fn wait_is_exact<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    let mut usage = usage.clone();
    let verdict = call(limit, &mut usage, now, request).verdict;
    // The wait of a forced call ends when the usage is within the limit, not when the same cost fits again.
    let request = if request.is_forced() { Request::Take(Amount::ZERO) } else { request };
    let passes_at = |micros: u64| later(now, micros).map(|then| peek(limit, &usage, then, request).verdict.allowed());
    match verdict {
        Verdict::Allowed(_) => {}
        Verdict::After(wait) => {
            for (denied, admitted) in [
                (wait.micros().checked_sub(1).unwrap(), wait.micros()),
                ((wait.ceil_millis() - 1) * 1000, wait.ceil_millis() * 1000),
            ] {
                assert_ne!(passes_at(denied), Some(true));
                assert_ne!(passes_at(admitted), Some(false));
            }
        }
        Verdict::Never => {
            assert!(!peek(limit, &L::Usage::default(), now, request).verdict.allowed());
        }
    }
}

pub fn remaining_is_the_largest_cost_that_passes<L: Lawful>(
    limit: &L,
    usage: &L::Usage,
    now: Timestamp,
    request: Request,
) {
    let passes = |cost| peek(limit, usage, now, Request::Take(cost)).verdict.allowed();
    let remaining = peek(limit, usage, now, request).remaining;
    assert!(remaining <= limit.limit());
    // If usage exceeds the limit, nothing remains, and even a cost of zero is denied.
    assert!(passes(remaining) || remaining == Amount::ZERO);
    assert!(!passes(remaining.plus(millionths(1))));
    assert!(!passes(remaining.floor().plus(Amount::ONE)));
    let granted = peek(limit, usage, now, Request::UpTo(Amount::MAX_ARGUMENT)).granted;
    assert_eq!(granted, Some(remaining.floor()));
}

pub fn recovered_key_equals_a_new_one<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    let reset = peek(limit, usage, now, request).reset;
    for recovered in [later(now, reset.micros()), later(now, reset.ceil_millis() * 1000)].into_iter().flatten() {
        let (mut used, mut new) = (usage.clone(), L::Usage::default());
        let charges = matches!(evaluate(limit, usage, recovered, request).change, Change::Charge(_));
        assert_eq!(call(limit, &mut used, recovered, request), call(limit, &mut new, recovered, request));
        assert!(encoded(&used) == encoded(&new) || !charges, "{used:?} is not {new:?}");
    }
    // The whole limit fits only when the key has recovered.
    let early = [reset.micros().checked_sub(1), reset.ceil_millis().checked_sub(1).map(|millis| millis * 1000)];
    for early in early.into_iter().flatten().filter_map(|micros| later(now, micros)) {
        assert!(!peek(limit, usage, early, Request::Take(limit.limit())).verdict.allowed());
    }
}

pub fn refund_never_exceeds_the_limit<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    let mut usage = usage.clone();
    let before = peek(limit, &usage, now, request).remaining;
    let amount = amount_of(request);
    let decision = call(limit, &mut usage, now, Request::Refund(amount));
    assert_eq!(decision.verdict, Verdict::Allowed(Span::ZERO));
    assert!(before <= decision.remaining);
    assert!(decision.remaining <= before.plus(amount).min(limit.limit()));
    assert!(decision.reset != Span::ZERO || usage.is_unused() || amount == Amount::ZERO, "a key at 0 is deleted");
    let missing = evaluate(limit, &L::Usage::default(), now, Request::Refund(amount));
    assert_eq!(missing.change, Change::Nothing);
    // Ten times the largest argument exceeds any usage.
    let more_than_all = (0..10).map(|_| call(limit, &mut usage, now, Request::Refund(Amount::MAX_ARGUMENT)));
    let decision = more_than_all.last().unwrap();
    assert_eq!((decision.remaining, decision.reset), (limit.limit(), Span::ZERO));
    assert!(usage.is_unused());
}

pub fn encoding_round_trips<L: Lawful>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) {
    if usage.is_unused() {
        return;
    }
    let fields = encoded(usage);
    let decoded_usage = decoded::<L::Usage>(&fields).unwrap();
    assert_eq!(encoded(&decoded_usage), fields);
    // The decoded usage behaves like the encoded one.
    for now in earlier(now, peek(limit, usage, now, request).reset).into_iter().chain([now]) {
        let (mut usage, mut decoded_usage) = (usage.clone(), decoded_usage.clone());
        usage.encode_effect(&mut EncodedFields::default()); // earlier changes have been propagated
        assert_eq!(
            call_and_encode_effect(limit, &mut usage, now, request),
            call_and_encode_effect(limit, &mut decoded_usage, now, request)
        );
        assert_eq!(encoded(&usage), encoded(&decoded_usage));
    }
}

pub fn effect_applied_to_a_copy_gives_the_same_state<L: Lawful>(
    limit: &L,
    usage: &L::Usage,
    now: Timestamp,
    request: Request,
) {
    let back = peek(limit, usage, now, request).reset.micros() / 2;
    for now in [now.micros(), now.micros().saturating_sub(back)] {
        let (mut original, mut replica) = (usage.clone(), usage.clone());
        original.encode_effect(&mut EncodedFields::default()); // earlier changes have been propagated
        let now = Timestamp::from_micros(now).unwrap();
        // A call that changes nothing propagates nothing.
        let changes = usage.is_after(now) || evaluate(limit, usage, now, request).change != Change::Nothing;
        let (_, mut effect) = call_and_encode_effect(limit, &mut original, now, request);
        if changes && !original.is_unused() {
            assert!(replica.accepts_effect(&mut effect.clone(), L::Usage::VERSION));
            replica.apply_effect(&mut effect, L::Usage::VERSION);
            assert_eq!(encoded(&replica), encoded(&original));
        }
    }
}

/// Holds for a key that one limit has charged, and whose usage is within the limit.
pub fn clock_step_back_frees_nothing_and_bounds_denials<L: Lawful>(
    limit: &L,
    usage: &L::Usage,
    now: Timestamp,
    request: Request,
) {
    let decision = peek(limit, usage, now, request);
    for earlier in earlier(now, decision.reset) {
        let earlier_decision = peek(limit, usage, earlier, request);
        let remaining = earlier_decision.remaining;
        assert!(remaining <= decision.remaining, "{remaining:?} remaining at {earlier:?}");
        let full_recovery = call(limit, &mut L::Usage::default(), earlier, Request::Force(limit.limit())).reset;
        let bound = full_recovery.plus(limit.lockout_beyond_recovery());
        let reset = earlier_decision.reset;
        assert!(reset <= bound, "at {earlier:?}, the reset {reset:?} exceeds {bound:?}");
        // A call writes the state that the peek has evaluated.
        let mut written = usage.clone();
        call(limit, &mut written, earlier, Request::Take(Amount::ZERO));
        assert!(!written.is_after(earlier));
        assert_eq!(peek(limit, &written, earlier, request), earlier_decision);
    }
}

pub fn never_more_than_the_limit<L: Lawful>() {
    let check = |(limit, (begin, calls)): (L, Script)| {
        let (mut now, mut usage, mut decision, mut admitted) = (begin, L::Usage::default(), None, Vec::new());
        for step in calls {
            now = step.when.after(now, decision.as_ref()).max(now);
            let request = L::supported_request(match without_debts(step.operation).request(&limit, &usage, now) {
                Request::Refund(amount) => Request::Take(amount),
                request => request,
            });
            if let Change::Charge(cost) = evaluate(&limit, &usage, now, request).change {
                admitted.push((now, u128::from(cost.millionths())));
            }
            decision = Some(call(&limit, &mut usage, now, request));
        }
        limit.check_guarantee(&admitted);
    };
    run(&(L::limits(), scripts()), check);
}

/// Checks that a key never expires before its recovery under the limit that charged it last, and at most an eighth of
/// the reset and a second later. After the clock moved backwards, the expiry may also be later by the step.
pub fn key_expires_soon_after_its_recovery<L: Lawful>() {
    let check = |(limits, (begin, calls)): (Vec<L>, Script)| {
        let (mut now, mut usage, mut decision) = (begin, L::Usage::default(), None);
        // The limit of the last charge, the expiry, and its maximum delay after the recovery.
        let mut charged: Option<(&L, u64, Span)> = None;
        for step in calls {
            now = step.when.after(now, decision.as_ref());
            if charged.is_some_and(|(_, at, _)| at <= now.floor_millis()) {
                (usage, charged) = (L::Usage::default(), None);
            }
            let limit = step.limit.get(&limits);
            let request = L::supported_request(step.operation.request(limit, &usage, now));
            let (change, moved_back) = (evaluate(limit, &usage, now, request).change, usage.ahead(now));
            let range = |usage: &L::Usage, now| Expiry::of(now, limit.recovery(usage, now));
            let range_before = range(&usage, now.plus(moved_back));
            decision = Some(call(limit, &mut usage, now, request));
            let range_after = range(&usage, now);
            charged = match charged {
                _ if usage.is_unused() => None,
                _ if change != Change::Nothing => {
                    let at = range_after.after_charge(charged.map(|(_, at, _)| at), moved_back != Span::ZERO);
                    Some((limit, at, limit.recovery(&usage, now).eighth().plus(Span::SECOND)))
                }
                Some((charged_by, at, max_delay)) if moved_back != Span::ZERO => {
                    let recovery = usage.recovery_source();
                    let step = StepBack { now, moved_back, recovery, range_before, range_after };
                    let max_delay = max_delay.max(limit.recovery(&usage, now).eighth().plus(Span::SECOND));
                    Some((charged_by, step.expiry(Some(at)), max_delay.plus(moved_back)))
                }
                unchanged => unchanged,
            };
            if let Some((charged_by, at, max_delay)) = charged {
                let recovered = now.plus(charged_by.recovery(&usage, now));
                assert!(at >= recovered.ceil_millis(), "{at} ms is too early for {recovered:?}");
                let latest = recovered.plus(max_delay).ceil_millis();
                // Under several limits, the expiry may be that of another limit.
                assert!(at <= latest || limits.len() > 1, "{at} ms is too late for {recovered:?}");
            }
        }
    };
    run(&(vec(L::limits(), 1..=L::LIMITS_OF_AN_EXPIRY), scripts()), check);
}

/// Returns times to which the clock may move back from `now`, from a microsecond to more than the whole `reset`.
fn earlier(now: Timestamp, reset: Span) -> [Timestamp; 6] {
    let reset = reset.micros();
    let back = [1, reset / 9, reset / 2, reset, reset.saturating_mul(3), u64::MAX];
    back.map(|micros| now.minus(Span::from_micros(micros)))
}

/// Returns the time `micros` microseconds after `now`; `None` from the last timestamp on, where times saturate.
fn later(now: Timestamp, micros: u64) -> Option<Timestamp> {
    Some(now.plus(Span::from_micros(micros))).filter(|then| *then < Timestamp::MAX)
}
