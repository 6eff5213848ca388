//! The limit of a later call, and the place that a holder keeps.

use super::*;

#[test]
fn raised_limit_grants_waiters_in_order() {
    run_steps(&[
        (0, "acquire 2 90ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol BLOCK 0", &[]),
        (3, "acquire 2 50ms dave BLOCK 0", &[]),
        (4, "acquire 5 50ms eve", &["4 eve denied 1", "4 bob", "4 carol"]),
        (54, "go on", &["54 dave"]),
    ]);
}

#[test]
fn lowered_limit_applies_to_waiters() {
    run_steps(&[
        (0, "acquire 4 50ms alice COST 3", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 4 50ms carol COST 3 BLOCK 0", &[]),
        (3, "acquire 4 50ms dave BLOCK 0", &[]),
        (4, "acquire 2 50ms eve", &["4 eve denied 46"]),
        (50, "go on", &["50 bob", "50 carol denied for good"]),
        (100, "go on", &["100 dave"]),
    ]);
}

#[test]
fn amount_to_keep_is_that_of_the_call() {
    // 50% of the limit in the call is 2.
    for keep in ["2", "50%"] {
        run_steps(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 5 50ms carol", &["2 carol denied 1", "2 bob"]),
        ]);
        run_steps(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 3 50ms carol COST 3", &["2 carol denied 48", "2 bob denied for good"]),
        ]);
    }
}

#[test]
fn set_limit_returns_true_only_if_the_limit_changed() {
    let mut queue: Queue<()> = Queue::new(units(2));
    assert_eq!(queue.limit(), units(2));
    assert!(!queue.set_limit(units(2)));
    assert!(queue.set_limit(units(3)));
    assert_eq!(queue.limit(), units(3));
    assert!(!queue.set_limit(units(3)));
}

#[test]
fn repeated_call_of_a_holder_keeps_its_position() {
    run_steps(&[
        (0, "acquire 2 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        // The earlier call is denied. The new call has its own timeout and cost.
        (3, "acquire 2 50ms bob BLOCK 20ms", &["3 bob denied 47"]),
        (4, "acquire 2 50ms bob BLOCK 60ms", &["4 bob denied 46"]),
        (5, "acquire 2 50ms bob", &["5 bob denied 45"]),
        (50, "go on", &["50 bob"]),
        (100, "go on", &["100 carol"]),
    ]);
}

#[test]
fn places_of_repeated_calls_are_distinct() {
    let (queue, places) = queue_of(&["alice", "bob", "alice", "alice", "bob"]);
    assert_eq!(clients(&queue), [3, 4, 0, 2, 1], "waiters in order, then replaced calls");
    assert_eq!(queue.len(), 5);
    assert_eq!(queue.head().map(|(place, waiter)| (place, waiter.client)), Some((places[3], 3)));
    assert_eq!(queue.replaced().map(|(place, waiter)| (place, waiter.client)), Some((places[0], 0)));
    assert_eq!(
        ["alice", "bob", "carol"].map(|holder| queue.place_of(holder.as_bytes())),
        [Some(places[3]), Some(places[4]), None]
    );
    for (client, place) in places.iter().enumerate() {
        let mut queue = queue.clone();
        assert_eq!(queue.at(*place).map(|waiter| waiter.client), Some(client));
        assert_eq!(queue.leave(*place).map(|waiter| waiter.client), Some(client));
        assert!(queue.leave(*place).is_none() && queue.at(*place).is_none());
        assert!(!clients(&queue).contains(&client));
        assert_eq!(queue.len(), 4);
        // Only the head has no waiters ahead.
        assert_eq!(queue.has_waiters_ahead(places[3]), client == 3);
        assert_eq!(queue.has_waiters_ahead(places[4]), client != 3);
        assert!([0, 1, 2].into_iter().all(|client| queue.has_waiters_ahead(places[client])));
    }
    let in_order = [0, 2, 3, 1, 4].map(|client: usize| places[client]);
    assert!(in_order.is_sorted_by(|one, other| one < other && *other > *one));
}

#[test]
fn replaced_call_is_denied_after_all_others_have_left() {
    let mut service = Service::new(us(0));
    for words in ["1 50ms alice", "1 50ms bob BLOCK 0", "1 50ms bob BLOCK 0"] {
        service.acquire(words);
    }
    service.leave(2);
    service.release("alice");
    assert_eq!(service.take_replies(), ["0 alice"]);
    service.acquire("1 50ms bob BLOCK 0");
    service.serve();
    assert_eq!(service.take_replies(), ["0 bob denied 1", "0 bob"]);
    assert_eq!(service.answers, []);
    assert!(service.queue.is_empty());
}

#[test]
fn waiter_that_releases_is_denied_and_leaves_the_queue() {
    run_steps(&[
        (0, "acquire 4 50ms alice COST 3", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (2, "acquire 4 50ms carol COST 3 BLOCK 20ms", &[]),
        (3, "acquire 4 50ms dan BLOCK 0", &[]),
        // A waiter after the head, and then the head, after which there is room for another.
        (4, "release carol", &["4 carol denied 46"]),
        (5, "release bob", &["5 bob denied 45", "5 dan"]),
        // A holder that calls again joins at the end.
        (6, "acquire 4 50ms erin COST 3 BLOCK 0", &[]),
        (7, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (8, "release nobody", &[]),
        (9, "release alice", &["9 erin"]),
        (10, "release bob", &["10 bob denied 49"]),
    ]);
}

#[test]
fn holder_that_releases_its_lease_keeps_waiting() {
    run_steps(&[
        (0, "acquire 4 50ms alice", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 2", &["1 bob"]),
        (2, "acquire 4 50ms alice COST 3 BLOCK 0", &[]),
        (3, "acquire 4 50ms carol COST 2 BLOCK 0", &[]),
        // A release gives up the lease first, and the waiting call only if there is no lease.
        (4, "release bob", &["4 alice"]),
        (5, "acquire 4 50ms alice COST 4 BLOCK 0", &[]),
        (6, "release alice", &["6 carol"]),
        (7, "release alice", &["7 alice denied 49"]),
    ]);
}

#[test]
fn leaving_frees_the_position_of_the_holder() {
    run_steps(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 0", &[]),
        (3, "leave bob", &[]),
        (4, "acquire 1 50ms bob BLOCK 0", &[]),
        (5, "release alice", &["5 carol"]),
        (55, "go on", &["55 bob"]),
    ]);
    let (mut queue, places) = queue_of(&["alice", "alice"]);
    // The replaced call leaves, and the later call keeps its position.
    queue.leave(places[0]);
    let third = queue.join(Waiter { claim: claim("1 30s alice"), joined_at: steady(0), deadline: None, client: 2 });
    assert_eq!((queue.head().unwrap().0, queue.replaced().unwrap().0), (third, places[1]));
}

#[test]
fn call_that_has_left_is_not_overdue() {
    let (mut queue, places) = queue_of(&["alice", "bob", "carol"]);
    assert_eq!(queue.earliest_deadline(), Some(steady(1_000_000)));
    assert!(queue.overdue(steady(999_999)).is_none());
    assert_eq!(queue.overdue(steady(1_000_000)).unwrap().1.client, 0);
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().0, places[0]);
    queue.leave(places[0]);
    assert_eq!(queue.earliest_deadline(), Some(steady(1_000_001)));
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().1.client, 1);
    // A replaced call is not overdue either, because it must be denied anyway.
    queue.join(Waiter { claim: claim("1 30s bob"), joined_at: steady(0), deadline: None, client: 3 });
    assert_eq!(queue.earliest_deadline(), Some(steady(1_000_002)));
    queue.leave(places[2]);
    assert_eq!((queue.earliest_deadline(), queue.len(), queue.is_empty()), (None, 2, false));
    queue.leave(queue.head().unwrap().0);
    assert!(!queue.is_empty() && queue.head().is_none());
    queue.leave(places[1]);
    assert!(queue.is_empty());
}
