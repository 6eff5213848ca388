//! The limit that a later call brings, and the place that a holder keeps.

use super::*;

// The limit

#[test]
fn a_raised_limit_lets_those_who_wait_in_in_order() {
    story(&[
        (0, "acquire 2 90ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol BLOCK 0", &[]),
        (3, "acquire 2 50ms dave BLOCK 0", &[]),
        (4, "acquire 5 50ms eve", &["4 eve denied 1", "4 bob", "4 carol"]),
        (54, "go on", &["54 dave"]),
    ]);
}

#[test]
fn a_lowered_limit_holds_for_those_who_wait() {
    story(&[
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
fn what_is_kept_stays_as_the_call_said_it() {
    // Half of the limit that the call brought.
    for keep in ["2", "50%"] {
        story(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 5 50ms carol", &["2 carol denied 1", "2 bob"]),
        ]);
        story(&[
            (0, "acquire 4 50ms alice", &["0 alice"]),
            (1, &format!("acquire 4 50ms bob COST 2 KEEP {keep} BLOCK 0"), &[]),
            (2, "acquire 3 50ms carol COST 3", &["2 carol denied 48", "2 bob denied for good"]),
        ]);
    }
}

#[test]
fn a_limit_that_stays_changes_nothing() {
    let mut queue: Queue<()> = Queue::new(units(2));
    assert_eq!(queue.limit(), units(2));
    assert!(!queue.limit_to(units(2)));
    assert!(queue.limit_to(units(3)));
    assert_eq!(queue.limit(), units(3));
    assert!(!queue.limit_to(units(3)));
}

// Callers that come again, and callers that go

#[test]
fn a_holder_that_asks_again_keeps_its_place() {
    story(&[
        (0, "acquire 2 50ms alice COST 2", &["0 alice"]),
        (1, "acquire 2 50ms bob COST 2 BLOCK 0", &[]),
        (2, "acquire 2 50ms carol COST 2 BLOCK 0", &[]),
        // The call that waited is denied; the call that waits has its own time and cost.
        (3, "acquire 2 50ms bob BLOCK 20ms", &["3 bob denied 47"]),
        (4, "acquire 2 50ms bob BLOCK 60ms", &["4 bob denied 46"]),
        (5, "acquire 2 50ms bob", &["5 bob denied 45"]),
        (50, "go on", &["50 bob"]),
        (100, "go on", &["100 carol"]),
    ]);
}

#[test]
fn a_place_is_one_calls_whoever_comes_again() {
    let (queue, places) = queue_of(&["alice", "bob", "alice", "alice", "bob"]);
    assert_eq!(clients(&queue), [3, 4, 0, 2, 1], "who waits, then who is to be denied");
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
        // Only before the first in turn does nobody wait, of those who wait and those who are to be denied.
        assert_eq!(queue.others_wait_before(places[3]), client == 3);
        assert_eq!(queue.others_wait_before(places[4]), client != 3);
        assert!([0, 1, 2].into_iter().all(|client| queue.others_wait_before(places[client])));
    }
    let in_turn = [0, 2, 3, 1, 4].map(|client: usize| places[client]);
    assert!(in_turn.is_sorted_by(|one, other| one < other && *other > *one));
}

#[test]
fn who_was_replaced_is_denied_even_when_all_others_have_gone() {
    let mut service = Service::new(us(0));
    for words in ["1 50ms alice", "1 50ms bob BLOCK 0", "1 50ms bob BLOCK 0"] {
        service.ask(words);
    }
    service.leave(2);
    service.release("alice");
    assert_eq!(service.told(), ["0 alice"]);
    service.ask("1 50ms bob BLOCK 0");
    service.serve();
    assert_eq!(service.told(), ["0 bob denied 1", "0 bob"]);
    assert_eq!(service.answers, []);
    assert!(service.queue.is_empty());
}

#[test]
fn who_gives_up_is_denied_and_holds_nobody_up() {
    story(&[
        (0, "acquire 4 50ms alice COST 3", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (2, "acquire 4 50ms carol COST 3 BLOCK 20ms", &[]),
        (3, "acquire 4 50ms dan BLOCK 0", &[]),
        // Behind the head; then the head, behind which there is room for another.
        (4, "release carol", &["4 carol denied 46"]),
        (5, "release bob", &["5 bob denied 45", "5 dan"]),
        // Whoever asks again comes behind all others.
        (6, "acquire 4 50ms erin COST 3 BLOCK 0", &[]),
        (7, "acquire 4 50ms bob COST 3 BLOCK 0", &[]),
        (8, "release nobody", &[]),
        (9, "release alice", &["9 erin"]),
        (10, "release bob", &["10 bob denied 49"]),
    ]);
}

#[test]
fn who_gives_a_lease_back_waits_on_for_the_next() {
    story(&[
        (0, "acquire 4 50ms alice", &["0 alice"]),
        (1, "acquire 4 50ms bob COST 2", &["1 bob"]),
        (2, "acquire 4 50ms alice COST 3 BLOCK 0", &[]),
        (3, "acquire 4 50ms carol COST 2 BLOCK 0", &[]),
        // First what it has, then what it waits for.
        (4, "release bob", &["4 alice"]),
        (5, "acquire 4 50ms alice COST 4 BLOCK 0", &[]),
        (6, "release alice", &["6 carol"]),
        (7, "release alice", &["7 alice denied 49"]),
    ]);
}

#[test]
fn leaving_frees_the_holders_place() {
    story(&[
        (0, "acquire 1 50ms alice", &["0 alice"]),
        (1, "acquire 1 50ms bob BLOCK 0", &[]),
        (2, "acquire 1 50ms carol BLOCK 0", &[]),
        (3, "leave bob", &[]),
        (4, "acquire 1 50ms bob BLOCK 0", &[]),
        (5, "release alice", &["5 carol"]),
        (55, "go on", &["55 bob"]),
    ]);
    let (mut queue, places) = queue_of(&["alice", "alice"]);
    // The call that was replaced leaves: the other stays where its holder waits.
    queue.leave(places[0]);
    let again = queue.join(Waiter { claim: claim("1 30s alice"), since: steady(0), until: None, client: 2 });
    assert_eq!((queue.head().unwrap().0, queue.replaced().unwrap().0), (again, places[1]));
}

#[test]
fn who_has_left_is_not_overdue() {
    let (mut queue, places) = queue_of(&["alice", "bob", "carol"]);
    assert_eq!(queue.deadline(), Some(steady(1_000_000)));
    assert!(queue.overdue(steady(999_999)).is_none());
    assert_eq!(queue.overdue(steady(1_000_000)).unwrap().1.client, 0);
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().0, places[0]);
    queue.leave(places[0]);
    assert_eq!(queue.deadline(), Some(steady(1_000_001)));
    assert_eq!(queue.overdue(steady(2_000_000)).unwrap().1.client, 1);
    // Nor who was replaced: it is to be denied as it is.
    queue.join(Waiter { claim: claim("1 30s bob"), since: steady(0), until: None, client: 3 });
    assert_eq!(queue.deadline(), Some(steady(1_000_002)));
    queue.leave(places[2]);
    assert_eq!((queue.deadline(), queue.len(), queue.is_empty()), (None, 2, false));
    queue.leave(queue.head().unwrap().0);
    assert!(!queue.is_empty() && queue.head().is_none());
    queue.leave(places[1]);
    assert!(queue.is_empty());
}
