//! Order of service: waiters are served in the order of joining.

use super::*;

#[test]
fn denied_call_waits_until_there_is_room() {
    for action in ["release alice", "del it"] {
        run_steps(&[
            (0, "acquire 1 50ms alice BLOCK 0", &["0 alice"]),
            (1, "acquire 1 50ms bob BLOCK 0", &[]),
            (9, action, &["9 bob"]),
        ]);
    }
    run_steps(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 49ms", &[]),
        (60, "go on", &["50 bob"]),
    ]);
}

#[test]
fn waiter_is_denied_at_its_deadline() {
    run_steps(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 20ms", &[]),
        (2, "acquire 1 50ms carol BLOCK 10ms", &[]),
        (11, "go on", &[]),
        (12, "go on", &["12 carol denied 38"]),
        (90, "go on", &["21 bob denied 29"]),
    ]);
}

#[test]
fn denial_of_the_head_unblocks_the_next_waiter() {
    run_steps(&[
        (0, "acquire 3 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 3 50ms big COST 3 BLOCK 20ms", &[]),
        // A waiter whose deadline equals that of the head is granted if there is room.
        (2, "acquire 3 50ms small BLOCK 19ms", &[]),
        (3, "acquire 3 50ms other BLOCK 18ms", &[]),
        (99, "go on", &["21 big denied 29", "21 small", "21 other denied 29"]),
    ]);
}

#[test]
fn equal_deadlines_are_answered_in_order() {
    run_steps(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 20ms", &[]),
        (2, "acquire 1 50ms carol BLOCK 19ms", &[]),
        (3, "acquire 1 50ms dave BLOCK 18ms", &[]),
        (21, "go on", &["21 bob denied 29", "21 carol denied 29", "21 dave denied 29"]),
    ]);
}

#[test]
fn call_that_can_never_be_granted_is_denied_at_once() {
    run_steps(&[
        (0, "acquire 2 50ms alice", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 3 BLOCK 0", &["1 bob denied for good"]),
        (2, "acquire 2 50ms bob COST 2 KEEP 1 BLOCK 0", &["2 bob denied for good"]),
    ]);
}

#[test]
fn large_claim_at_the_head_is_not_overtaken() {
    run_steps(&[
        (0, "acquire 4 100ms alice COST 2", &["0 alice"]),
        (1, "acquire 4 100ms bob", &["1 bob"]),
        (2, "acquire 4 50ms big COST 3 BLOCK 0", &[]),
        // One unit is free.
        (3, "acquire 4 50ms small BLOCK 0", &[]),
        (4, "acquire 4 50ms late", &["4 late denied 1"]),
        (5, "release bob", &[]),
        (6, "release alice", &["6 big", "6 small"]),
    ]);
}

#[test]
fn waiter_is_served_before_later_calls() {
    let mut service = Service::new(us(0));
    service.acquire("1 50ms alice");
    service.acquire("1 50ms bob BLOCK 0");
    assert_eq!(service.take_replies(), ["0 alice"]);
    // The queue has not been served since the release.
    service.release("alice");
    service.acquire("1 50ms carol");
    service.acquire("1 50ms dave BLOCK 0");
    assert_eq!(service.take_replies(), ["0 carol denied 1"]);
    service.serve();
    assert_eq!(service.take_replies(), ["0 bob"]);
    service.release("bob");
    service.serve();
    assert_eq!(service.take_replies(), ["0 dave"]);
}

#[test]
fn wait_of_a_call_denied_because_of_waiters_is_at_least_a_millisecond() {
    let limit = Concurrency::new(units(2), crate::testing::calls::period("50us")).with_waiters_ahead(true);
    let mut key = Key::default();
    assert_eq!(key.call(&limit.with_waiters_ahead(false).for_holder(b"alice"), 0, Request::Take(units(2)))[0], 1);
    let wait = |micros, cost| peek(&limit.for_holder(b"bob"), &key.0, us(micros), Request::Take(units(cost))).verdict;
    assert_eq!(wait(20, 1), Verdict::After(Span::from_micros(30)));
    assert_eq!(wait(50, 1), Verdict::After(Span::MILLISECOND));
    assert_eq!(wait(20, 3), Verdict::Never);
    assert_eq!(wait(50, 3), Verdict::Never);
}

#[test]
fn renewal_is_granted_while_others_wait() {
    run_steps(&[
        (0, "acquire 2 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob BLOCK 0", &[]),
        (30, "acquire 2 50ms alice COST 2", &["30 alice"]),
        (35, "acquire 2 50ms alice COST 2 BLOCK 0", &["35 alice"]),
        (40, "acquire 1 50ms alice", &["40 alice"]),
        (99, "go on", &["90 bob"]),
    ]);
}

#[test]
fn renewal_with_a_higher_cost_waits_in_order() {
    run_steps(&[
        (0, "acquire 3 50ms alice", &["0 alice"]),
        (0, "acquire 3 50ms bob", &["0 bob"]),
        (1, "acquire 3 50ms carol COST 2 BLOCK 0", &[]),
        (2, "acquire 3 50ms alice COST 2", &["2 alice denied 1"]),
        (3, "acquire 3 50ms alice COST 2 BLOCK 0", &[]),
        (4, "release bob", &["4 carol"]),
        (99, "go on", &["54 alice"]),
    ]);
}

#[test]
fn nx_waits_until_the_holder_has_no_lease() {
    run_steps(&[
        (0, "acquire 5 50ms alice", &["0 alice"]),
        (1, "acquire 5 50ms alice NX BLOCK 0", &[]),
        (2, "acquire 5 50ms bob BLOCK 0", &[]),
        (99, "go on", &["50 alice", "50 bob"]),
    ]);
}

#[test]
fn peek_overtakes_no_waiter_and_sets_no_limit() {
    run_steps(&[
        (0, "acquire 2 50ms alice", &["0 alice"]),
        (1, "acquire 2 50ms big COST 2 BLOCK 0", &[]),
        (2, "peek 2 50ms carol", &["2 peek denied 1"]),
        (3, "peek 9 50ms carol", &["3 peek denied 1"]),
        (4, "peek 2 50ms alice", &["4 peek"]),
        (99, "go on", &["50 big"]),
    ]);
    // A cost of zero is always allowed.
    let limit = Concurrency::new(Amount::ONE, crate::testing::calls::period("50ms"))
        .with_waiters_ahead(true)
        .for_holder(b"carol");
    let verdict = |cost| peek(&limit, &ConcurrencyUsage::default(), us(0), Request::Take(cost)).verdict;
    assert_eq!(verdict(Amount::ZERO), Verdict::Allowed(Span::ZERO));
    assert_eq!(verdict(Amount::saturating(1)), Verdict::After(Span::MILLISECOND));
}
