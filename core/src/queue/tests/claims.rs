//! Claims of waiting calls, and the cost of long queues.

use super::*;
use crate::limit::Token;
use crate::testing::calls::parse_one_algorithm;

#[test]
fn request_of_a_claim_equals_that_of_its_call() {
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
            let call = parse_one_algorithm(&mut Args::new(&args), Spec::concurrency).unwrap();
            let claim = Claim::of(&spec(&call)).unwrap();
            let limit = if words.starts_with('0') { Amount::ZERO } else { units(4) };
            // Only settlements distinguish a cost of the spec itself.
            let shown =
                |request: &KeyRequest| format!("{request:?}").replace("has_own_cost: true", "has_own_cost: false");
            assert_eq!(shown(&claim.request(limit, false)), shown(&call), "{words}");
            assert_eq!(claim.holder(), b"alice");
            assert_eq!(Request::Take(claim.cost), spec(&call).request);
            assert_eq!(claim.expires_at(us(5)), us(30_000_005));
            assert_eq!(claim.expires_at(Timestamp::MAX), Timestamp::MAX);
        }
    }
}

#[test]
fn claim_exists_only_for_taking_a_lease() {
    let has_claim = |words: &str| {
        let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(words.split(' ')).map(str::as_bytes).collect();
        Claim::of(&spec(&KeyRequest::take(&mut Args::new(&words), None).unwrap())).is_some()
    };
    assert!(has_claim("CONCURRENCY 4 30s alice"));
    assert!(!has_claim("FIXED 4 30s"));
    let limit = Concurrency::new(units(4), crate::testing::calls::period("30s"));
    let has_claim = |request| Claim::of(&Spec::of(AnyLimit::Concurrency(limit), request)).is_some();
    assert!(has_claim(Request::Take(Amount::ONE)) && !has_claim(Request::Force(Amount::ONE)));
}

/// Asserts a bound on the number of comparisons of places. Each map is a tree with 5 to 11 entries per node. At most
/// all entries of one node per level are compared, and a call changes at most five maps.
fn assert_logarithmic(comparisons: usize, calls: usize) {
    let levels = 1 + calls.ilog2() / 6_u32.ilog2();
    let bound = 5 * 11 * usize::try_from(levels).unwrap();
    assert!(comparisons <= bound, "{comparisons} comparisons in a queue of {calls}");
}

#[test]
fn operations_on_a_long_queue_are_logarithmic() {
    let waiter = |client: usize| {
        let claim = claim(&format!("1 30s {:05}", client * 7919 % 10_000));
        // Equal, ascending and descending deadlines, and calls without one.
        let deadline = [Some(5), Some(client), Some(10_000 - client), None][client % 4];
        Waiter { claim, joined_at: steady(0), deadline: deadline.map(|at| steady(at.try_into().unwrap())), client }
    };
    let (mut queue, mut max) = (Queue::new(Amount::ONE), 0);
    let count = |queue: &mut Queue<usize>, max: &mut usize, run: &mut dyn FnMut(&mut Queue<usize>)| {
        let comparisons = step_counter::count(|| run(queue));
        assert_logarithmic(comparisons, queue.len().max(1));
        *max = comparisons.max(*max);
    };
    for client in 0..10_000 {
        count(&mut queue, &mut max, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.call_count - 1));
    }
    // Half of the holders call again, and the replaced calls have not been denied yet.
    for client in (0..10_000).step_by(2) {
        count(&mut queue, &mut max, &mut |queue| assert_eq!(queue.join(waiter(client)).call, queue.call_count - 1));
    }
    assert_eq!(queue.len(), 15_000);
    let mut answered = Vec::new();
    while !queue.is_empty() {
        count(&mut queue, &mut max, &mut |queue| {
            let next =
                queue.replaced().or_else(|| if answered.len() % 3 == 0 { queue.overdue(steady(10_000)) } else { None });
            let (place, waiter) = next.or_else(|| queue.head()).unwrap();
            answered.push(waiter.client);
            assert!(queue.earliest_deadline().is_some() || answered.len() > 10_000);
            assert!(queue.leave(place).is_some());
        });
    }
    assert_eq!(answered.len(), 15_000);
    assert!(max > 13, "comparisons are counted");
}

#[test]
fn claim_is_fenced_if_its_call_requests_a_token() {
    for fence in [None, Token::new(1)] {
        let is_fenced = with_spec("9 1m me", |spec, _| Claim::of(&Spec { fence, ..*spec }).unwrap().is_fenced);
        assert_eq!(is_fenced, fence.is_some());
    }
}
