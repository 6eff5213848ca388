//! What a claim remembers of its call, and what a long queue costs.

use super::*;
use crate::limit::Token;

// Claims

#[test]
fn a_claim_asks_what_its_call_asked() {
    for words in [
        "4 30s alice",
        "4 30s alice COST 2.5",
        "4 30s alice KEEP 1",
        "4 30s alice COST 0.5 KEEP 30% NX",
        "4 30s alice KEEP 100%",
        "4 30s alice KEEP 7",
        "0 30s alice",
    ] {
        for words in [words.to_owned(), format!("{words} AS workers")] {
            let args: Vec<&[u8]> = std::iter::once("RL.ACQUIRE").chain(words.split(' ')).map(str::as_bytes).collect();
            let call = KeyRequest::one(&mut Args::new(&args), Spec::concurrency).unwrap();
            let claim = Claim::of(&spec(&call)).unwrap();
            let limit = if words.starts_with('0') { Amount::ZERO } else { units(4) };
            // Whose cost it was says nothing but to a settlement.
            let said = |asked: &KeyRequest| format!("{asked:?}").replace("own_cost: true", "own_cost: false");
            assert_eq!(said(&claim.request(limit, false)), said(&call), "{words}");
            assert_eq!(claim.holder(), b"alice");
            assert_eq!(Request::Take(claim.cost()), spec(&call).request);
            assert_eq!(claim.expires_at(us(5)), us(30_000_005));
            assert_eq!(claim.expires_at(Timestamp::MAX), Timestamp::MAX);
        }
    }
}

#[test]
fn only_a_take_of_a_lease_is_a_claim() {
    let read = |words: &str| {
        let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(words.split(' ')).map(str::as_bytes).collect();
        Claim::of(&spec(&KeyRequest::take(&mut Args::new(&words)).unwrap())).is_some()
    };
    assert!(read("CONCURRENCY 4 30s alice"));
    assert!(!read("FIXED 4 30s"));
    let numbers = Concurrency::new(units(4), crate::testing::calls::period("30s"));
    let of_leases = |ask| Claim::of(&Spec::of(AnyLimit::Concurrency(numbers), ask)).is_some();
    assert!(of_leases(Request::Take(Amount::ONE)) && !of_leases(Request::Force(Amount::ONE)));
}

// What it costs

/// Comparisons of places: each of the maps is a tree of nodes of 5 to 11 entries, and at most all entries of a node on
/// each level are compared. One call changes five of them at most.
fn assert_logarithmic(steps: usize, waiting: usize) {
    let levels = 1 + waiting.ilog2() / 6_u32.ilog2();
    assert!(steps <= 5 * 11 * usize::try_from(levels).unwrap(), "{steps} of {waiting}");
}

#[test]
fn ten_thousand_who_wait_are_passed_by_nobody() {
    let waiter = |client: usize| {
        let claim = claim(&format!("1 30s {:05}", client * 7919 % 10_000));
        // Together, in order, backwards, or never.
        let until = [Some(5), Some(client), Some(10_000 - client), None][client % 4];
        Waiter { claim, since: steady(0), until: until.map(|until| steady(until.try_into().unwrap())), client }
    };
    let (mut queue, mut most) = (Queue::new(Amount::ONE), 0);
    let count = |queue: &mut Queue<usize>, most: &mut usize, run: &mut dyn FnMut(&mut Queue<usize>)| {
        let steps = effort::of(|| run(queue));
        assert_logarithmic(steps, queue.len().max(1));
        *most = steps.max(*most);
    };
    for client in 0..10_000 {
        count(&mut queue, &mut most, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.calls - 1));
    }
    // Half of them ask again, whom nobody has denied yet.
    for client in (0..10_000).step_by(2) {
        count(&mut queue, &mut most, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.calls - 1));
    }
    assert_eq!(queue.len(), 15_000);
    let mut answered = Vec::new();
    while !queue.is_empty() {
        count(&mut queue, &mut most, &mut |queue| {
            let next =
                queue.replaced().or_else(|| if answered.len() % 3 == 0 { queue.overdue(steady(10_000)) } else { None });
            let (place, waiter) = next.or_else(|| queue.head()).unwrap();
            answered.push(waiter.client);
            assert!(queue.deadline().is_some() || answered.len() > 10_000);
            assert!(queue.leave(place).is_some());
        });
    }
    assert_eq!(answered.len(), 15_000);
    assert!(most > 13, "it is counted");
}

#[test]
fn a_claim_is_fenced_if_its_call_asks_for_a_token() {
    for fence in [None, Token::new(1)] {
        let is_fenced = asked("9 1m me", |spec, _| Claim::of(&Spec { fence, ..*spec }).unwrap().is_fenced());
        assert_eq!(is_fenced, fence.is_some());
    }
}
