use super::*;
use crate::args::Args;

fn claim(words: &str) -> Claim {
    let words: Vec<&[u8]> = std::iter::once("RL.ACQUIRE").chain(words.split(' ')).map(str::as_bytes).collect();
    let Asked::One(spec) = Asked::one(&mut Args::new(&words), Spec::concurrency).unwrap() else { unreachable!() };
    Claim::of(&spec).unwrap()
}

#[test]
fn a_holder_that_asks_again_keeps_its_place() {
    let mut queue = Queue::new(Amount::ONE);
    let mut join = |words, client| {
        queue.join(Waiter { claim: claim(words), since: Timestamp::EPOCH, until: None, client });
    };
    join("1 30s alice", "first");
    join("1 30s bob", "second");
    join("1 60s alice", "third");
    assert_eq!(queue.head().unwrap().1.client, "third");
    let (place, replaced) = queue.replaced().unwrap();
    assert_eq!(replaced.client, "first");
    assert!(queue.others_wait_before(place));
    queue.leave(place);
    assert_eq!(queue.iter().map(|waiter| waiter.client).collect::<Vec<_>>(), ["third", "second"]);
    assert!(queue.replaced().is_none());
}
