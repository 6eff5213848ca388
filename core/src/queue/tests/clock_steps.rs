//! Clock steps back and ahead while callers wait.

use super::*;

#[test]
fn clock_step_back_moves_deadlines_back() {
    run_steps(&[
        (1000, "acquire 1 900ms alice", &["1000 alice"]),
        (1100, "acquire 1 900ms bob BLOCK 200ms", &[]),
        (1100, "acquire 1 900ms carol BLOCK 900ms", &[]),
        (700, "clock back by 400ms", &[]),
        (899, "go on", &[]),
        (900, "go on", &["900 bob denied 700"]),
        (1600, "go on", &["1600 carol"]),
    ]);
}

#[test]
fn oldest_call_is_the_first_that_joined() {
    // Alice has called again, and keeps her position.
    let (mut queue, places) = queue_of(&["alice", "bob", "alice", "carol"]);
    for (place, joined_at) in [(places[0], 500_000), (places[1], 500_001), (places[2], 500_002), (places[3], 500_003)] {
        assert_eq!(queue.oldest_joined_at(), Some(steady(joined_at)));
        assert!(queue.leave(place).is_some() && queue.leave(place).is_none());
    }
    assert_eq!(queue.oldest_joined_at(), None);
    assert!(queue.by_call.is_empty());
}

/// The clock step makes the lease valid again, so that the waiting call is a renewal and is granted.
#[test]
fn lease_revived_by_a_clock_step_back_is_renewed_at_the_deadline() {
    run_steps(&[
        (100, "acquire 2 20ms alice", &["100 alice"]),
        (100, "acquire 2 90ms bob", &["100 bob"]),
        (130, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        (131, "acquire 2 20ms alice BLOCK 8ms", &[]),
        (110, "clock back by 21ms", &[]),
        (190, "go on", &["118 alice", "190 carol"]),
    ]);
}

#[test]
fn clock_step_ahead_answers_due_calls() {
    run_steps(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 20ms", &[]),
        (900, "clock on", &["900 bob", "900 carol denied 50"]),
    ]);
}

/// After the clock moved backwards, a call moves the leases back, but a peek does not. The wait of a head that is only
/// peeked at would never shorten.
#[test]
fn peek_after_clock_step_back_does_not_shorten_the_wait() {
    let mut key = ConcurrencyUsage::default();
    with_spec("1 50ms alice", |spec, _| take(&mut key, spec, us(900_000)));
    let bob = claim("1 50ms bob");
    let peek_bob = |key: &ConcurrencyUsage, at| peek_answer(key, &spec(&bob.request(Amount::ONE, false)), us(at));
    for at in [100_000, 150_000, 200_000] {
        assert_eq!(peek_bob(&key, at), Answer::After(50_000));
    }
    assert_eq!(take(&mut key, &spec(&bob.request(Amount::ONE, false)), us(100_000)), Answer::After(50_000));
    assert_eq!([149_999, 150_000].map(|at| peek_bob(&key, at)), [Answer::After(1), Answer::Served]);
}
