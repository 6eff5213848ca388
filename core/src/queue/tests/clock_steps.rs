//! A clock that is set back or on while callers wait.

use super::*;

// The clock

#[test]
fn a_clock_gone_back_moves_deadlines_back() {
    story(&[
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
fn the_oldest_call_is_the_one_that_joined_first_wherever_it_stands() {
    // The holder of the first has asked again, and keeps its place.
    let (mut queue, places) = queue_of(&["alice", "bob", "alice", "carol"]);
    for (place, joined) in [(places[0], 500_000), (places[1], 500_001), (places[2], 500_002), (places[3], 500_003)] {
        assert_eq!(queue.oldest(), Some(steady(joined)));
        assert!(queue.leave(place).is_some() && queue.leave(place).is_none());
    }
    assert_eq!(queue.oldest(), None);
    assert!(queue.by_call.is_empty());
}

/// It is there again, and what waits would be a renewal: it is answered as a call would be that comes then.
#[test]
fn a_lease_that_a_clock_gone_back_brings_back_is_renewed_at_the_deadline() {
    story(&[
        (100, "acquire 2 20ms alice", &["100 alice"]),
        (100, "acquire 2 90ms bob", &["100 bob"]),
        (130, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        (131, "acquire 2 20ms alice BLOCK 8ms", &[]),
        (110, "clock back by 21ms", &[]),
        (190, "go on", &["118 alice", "190 carol"]),
    ]);
}

#[test]
fn a_clock_set_on_answers_what_is_due() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 20ms", &[]),
        (900, "clock on", &["900 bob", "900 carol denied 50"]),
    ]);
}

/// A clock gone back moves leases back by a call. A look only sees what a call would do now: to one who only looks, the
/// leases stay as far away.
#[test]
fn a_head_that_is_only_looked_at_after_a_clock_gone_back_would_wait_for_the_clock_to_come_back() {
    let mut key = ConcurrencyUsage::default();
    asked("1 50ms alice", |spec, _| take(&mut key, spec, us(900_000)));
    let bob = claim("1 50ms bob");
    let looked = |key: &ConcurrencyUsage, at| look(key, &spec(&bob.request(Amount::ONE, false)), us(at));
    for at in [100_000, 150_000, 200_000] {
        assert_eq!(looked(&key, at), Answer::After(50_000));
    }
    assert_eq!(take(&mut key, &spec(&bob.request(Amount::ONE, false)), us(100_000)), Answer::After(50_000));
    assert_eq!([149_999, 150_000].map(|at| looked(&key, at)), [Answer::After(1), Answer::Served]);
}
