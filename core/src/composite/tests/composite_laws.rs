//! What must hold of a key with several limits wherever calls have led it.

mod refused_payloads;

use super::script::{ALL, Command, PLAIN, Said, Step, histories, words};
use super::server::{Refused, Server, Told};
use crate::algorithm::any::{AnyUsage, Single, with_limit};
use crate::composite::idempotency::{Charge, IdempotencyTable};
use crate::composite::{Component, ComponentIdentity, CompositeEvaluation, CompositeUsage, Held};
use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest};
use crate::testing::calls::us;
use crate::testing::effort;
use crate::testing::encoded_fields::encoded;
use crate::wire::args::{Args, Words};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};

/// Makes a call, or only looks.
pub fn tell(server: &mut Server, text: &str, now: Timestamp, peeks: bool) -> Result<Told, Refused> {
    let words = words(text);
    server.call(&KeyRequest::take(&mut Args::new(&words)).unwrap(), now, peeks)
}

/// Makes a call, by a policy or not, or only looks.
pub fn tell_said(server: &mut Server, said: &Said, now: Timestamp, peeks: bool) -> Result<Told, Refused> {
    said.asks(peeks, |asked| server.call(asked, now, peeks)).unwrap_or(Err(Refused::NoHolder))
}

fn decide(server: &mut Server, text: &str, now: Timestamp) -> Decision {
    tell(server, text, now, false).unwrap().answer.decision
}

fn at(seconds: u64) -> Timestamp {
    us(1_700_000_000_000_000 + seconds * 1_000_000)
}

/// Says a law of each call of a history, before it is made. `clock` is given where the history wants to go and where it
/// was.
pub fn of_each_call(
    (begin, steps): (Timestamp, Vec<Step>),
    clock: fn(Timestamp, Timestamp) -> Timestamp,
    law: impl Fn(&mut Server, &Said, Timestamp),
) {
    let (mut server, mut now, mut last) = (Server::default(), begin, None);
    for step in steps {
        now = clock(step.when.after(now, last.as_ref()), now);
        if let Command::Take(said) = &step.command {
            law(&mut server, said, now);
            last = tell_said(&mut server, said, now, false).ok().map(|told| told.answer.decision);
        }
    }
}

proptest! {
    #[test]
    fn a_wait_is_exact(history in histories(PLAIN)) {
        of_each_call(history, Timestamp::max, |server, said, now| {
            let forces = said.has("FORCE");
            // A renewal ignores KEEP, until the lease has lapsed.
            if said.has("CONCURRENCY") && said.has("KEEP") {
                return;
            }
            let Ok(told) = tell_said(server, said, now, true) else { return };
            let passes = |server: &mut Server, then: Timestamp| {
                tell_said(server, said, then, true).unwrap().answer.decision.verdict.allowed()
            };
            match told.answer.decision.verdict {
                Verdict::After(wait) if !forces && now.plus(wait) < Timestamp::MAX => {
                    assert!(!passes(server, now.plus(wait.minus(Span::from_micros(1)))), "{said:?}");
                    assert!(passes(server, now.plus(wait)), "{said:?}");
                }
                Verdict::Never => assert!(!passes(&mut Server::default(), now) || said.has("SETTLE"), "{said:?}"),
                Verdict::After(_) | Verdict::Allowed(_) => {}
            }
        });
    }

    #[test]
    fn an_id_is_charged_once_and_settled_once(
        history in histories(ALL),
    ) {
        of_each_call(history, |now, _| now, |server, said, now| {
            let Ok(first) = tell_said(server, said, now, false) else { return };
            // What stands before the repetition: of a plain key there is none.
            let once = said.has("ONCE") && first.writes && server.components().is_some();
            let before = server.stored();
            let admitted = first.answer.decision.verdict.allowed();
            if !admitted || !(once || said.has("SETTLE")) {
                return;
            }
            let again = tell_said(server, said, now, false).unwrap();
            let ids = server.components().and_then(CompositeUsage::extras).map_or(0, |extras| extras.records.len());
            if ids > 0 {
                assert!(again.answer.decision.verdict.allowed(), "{said:?}");
                assert_eq!(again.answer.decision.granted, first.answer.decision.granted, "{said:?}");
                assert_eq!(server.stored(), before, "{said:?}");
            }
        });
    }

}

// What takes its time.
proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    #[test]
    fn calling_in_another_way_and_back_forgives_nothing(
        history in histories(PLAIN), others in others(),
    ) {
        of_each_call(history, Timestamp::max, |server, said, now| {
            // What a plain key remembered is for whoever comes first.
            let claimed = |component: &Component| !component.is_unclaimed();
            if !server.components().is_some_and(|components| components.components.iter().all(claimed)) {
                return;
            }
            // They may be refused: so be it.
            let call_others = |server: &mut Server| others.iter().for_each(|other| drop(tell(server, other, now, false)));
            // What has recovered has gone by then.
            call_others(server);
            let Ok(told) = tell_said(server, said, now, true) else { return };
            call_others(server);
            let Ok(after) = tell_said(server, said, now, true) else { return };
            for (before, after) in told.answer.each.iter().zip(&after.answer.each) {
                assert!(after.remaining <= before.remaining, "{said:?}");
            }
        });
    }
}

/// Calls that look and charge, by other names and windows than any in the scripts, or by none of these.
fn others() -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(
        vec![
            "FIXED 1 2s",
            "TOKENBUCKET 9 9 2s",
            "COST 0 SLIDING 3 2s FIXED 1 3s AS c",
            "COST 2 SLIDING 3 2s STRICT SLIDINGLOG 3 2s AS c",
            "COST 2 FIXED 1000 2s AS d SLIDINGLOG 1000 2s AS d TOKENBUCKET 9 9 2s AS d",
            "CONCURRENCY 5 1m other",
        ],
        1..=6,
    )
}

#[test]
fn an_effect_that_is_forgotten_leaves_what_one_that_is_written_out_leaves() {
    let take = |usage: &mut CompositeUsage, text: &str, now: Timestamp| {
        let words = words(text);
        let call = call_of_text(&words);
        let seen = CompositeEvaluation::at(&call, Held::Composite(usage), now);
        usage.charge(&call, &seen, now);
    };
    let rates = "TOKENBUCKET 9 1 1s FIXED 9 1h SLIDING 9 1h SLIDING 9 2h STRICT SLIDINGLOG 9 1h";
    for first in [rates.to_owned(), format!("ONCE id 1h {rates}"), format!("{rates} AS name")] {
        let (mut written, mut forgotten) = (CompositeUsage::default(), CompositeUsage::default());
        for (second, text) in (1..).zip([&*first, rates, "FIXED 9 1h", "SLIDINGLOG 9 1h", &first]) {
            take(&mut written, text, at(second));
            take(&mut forgotten, text, at(second));
            written.encode_effect(&mut crate::wire::codec::Discard);
            forgotten.forget_effect();
            assert_eq!(format!("{written:?}"), format!("{forgotten:?}"), "{first}, then {text}");
        }
    }
}

#[test]
fn effort_of_a_call_does_not_grow_with_the_ids_and_components_beside_it() {
    // Sixteen components, of which the call charges four.
    let components = |kinds: &str, from: u32| -> String {
        let named = (from..from + 4).map(|n| kinds.replace('#', &format!("n{n}")));
        named.collect::<Vec<_>>().join(" ")
    };
    let kinds = ["TOKENBUCKET 9999 1 1s AS #", "FIXED 9999 1h AS #", "SLIDING 9999 1h AS #", "SLIDINGLOG 9999 1h AS #"];
    let take = |usage: &mut CompositeUsage, text: &str, now: Timestamp| {
        let words = words(text);
        let call = call_of_text(&words);
        let seen = CompositeEvaluation::at(&call, Held::Composite(usage), now);
        if seen.changes() {
            usage.charge(&call, &seen, now);
            usage.encode_effect(&mut crate::wire::codec::Discard);
        }
        seen.answer(&call, Held::Composite(usage), now, true)
    };
    let efforts = [1, 1000].map(|ids| {
        let mut usage = CompositeUsage::default();
        for id in 0..ids {
            for (n, kinds) in kinds.iter().enumerate() {
                let text = format!("ONCE {n}-{id} 1h {}", components(kinds, 0));
                assert!(take(&mut usage, &text, at(0)).decision.verdict.allowed());
            }
        }
        assert_eq!(usage.components.len(), 16);
        [
            "ONCE 0-0 1h FIXED 1 1s".to_owned(),
            format!("COST 0 {}", components(kinds[0], 0)),
            format!("ONCE new 1h {}", components(kinds[0], 0)),
            format!("COST 2 {}", components(kinds[1], 0)),
            format!("COST 2 {}", components(kinds[3], 0)),
            format!("SETTLE 1-0 0 {}", components(kinds[1], 0)),
            format!("SETTLE 2-0 3 {}", components(kinds[2], 0)),
            format!("COST -1 {}", components(kinds[2], 0)),
        ]
        .map(|text| effort::of(|| take(&mut usage, &text, at(1))))
    });
    // A tree of a thousand charges has ten levels more, for each of four components.
    for (few, many) in efforts[0].iter().zip(&efforts[1]) {
        assert!(*many <= few + 4 * 32, "{efforts:?}");
    }
}

/// A call of a history whose costs are known later.
#[derive(Clone, Debug)]
enum Event {
    Charge(u64),
    /// Which call, and what it turned out to cost.
    Settle(Index, u64),
}

/// Limits that settle, of different windows: each with as much room as any history uses.
const SETTLED: [&str; 9] = [
    "TOKENBUCKET 1000 7 1s",
    "LEAKYBUCKET 1000 3 2s",
    "FIXED 1000 10s",
    "FIXED 1000 7s ALIGNED",
    "FIXED 1000 1w ALIGNED",
    "SLIDING 1000 10s",
    "SLIDING 1000 7s",
    "SLIDING 1000 9s STRICT",
    "SLIDINGLOG 1000 8s",
];

proptest! {
    /// "Usage becomes what it would be had the call cost that from the start." More is charged when it is known.
    #[test]
    fn usage_after_a_settlement_is_that_of_the_history_with_the_other_cost(
        specs in subsequence(SETTLED.to_vec(), 1..=4),
        events in vec((0..4_000_000u64, event()), 1..=30),
        later in vec(0..12_000_000u64, 1..=3),
    ) {
        let specs = specs.join(" ");
        let mut server = Server::default();
        // What each call has turned out to cost, and what was charged beyond.
        let mut history: Vec<(Timestamp, u64)> = Vec::new();
        let mut calls = Vec::new();
        let mut now = at(0);
        for (number, (later, event)) in events.iter().enumerate() {
            now = now.plus(Span::from_micros(*later));
            match event {
                Event::Charge(cost) => {
                    let text = format!("COST {cost} ONCE c{number} 1d {specs}");
                    prop_assert!(decide(&mut server, &text, now).verdict.allowed());
                    calls.push((number, *cost, history.len()));
                    history.push((now, *cost));
                }
                Event::Settle(which, amount) if !calls.is_empty() => {
                    let (number, cost, place) = calls.remove(which.index(calls.len()));
                    let text = format!("SETTLE c{number} {amount} {specs}");
                    prop_assert!(decide(&mut server, &text, now).verdict.allowed());
                    history[place].1 = cost.min(*amount);
                    if *amount > cost {
                        history.push((now, amount - cost));
                    }
                }
                Event::Settle(..) => {}
            }
        }
        if history.is_empty() {
            return Ok(());
        }
        let words = words(&specs);
        let call = super::server::call_of(&KeyRequest::take(&mut Args::new(&words)).unwrap());
        for later in std::iter::once(0).chain(later) {
            let then = now.plus(Span::from_micros(later));
            let real = tell(&mut server, &format!("EACH COST 0 {specs}"), then, true).unwrap().answer.each;
            for (spec, real) in call.specs.iter().zip(real) {
                let replayed = with_limit!(spec, limit => replay(limit, &history, then));
                prop_assert!(real.remaining <= replayed, "{} forgave {:?} {replayed:?}", spec.limit, real.remaining);
                let rounded = matches!(spec.limit, crate::algorithm::any::AnyLimit::Bucket(_));
                let most = real.remaining.plus(if rounded { Amount::saturating(2) } else { Amount::ZERO });
                prop_assert!(replayed <= most, "{} is at {:?}, not {replayed:?}", spec.limit, real.remaining);
            }
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        3 => (1..=9u64).prop_map(Event::Charge),
        // One that cost nothing has opened its window all the same: here nothing else does.
        2 => (any::<Index>(), 1..=12u64).prop_map(|(call, amount)| Event::Settle(call, amount)),
    ]
}

/// What remains of a limit after these charges.
fn replay<L: Limit>(limit: &L, history: &[(Timestamp, u64)], then: Timestamp) -> Amount {
    let mut usage = L::Usage::default();
    for (now, cost) in history {
        limit.charge(&mut usage, *now, Amount::saturating(cost * 1_000_000));
    }
    limit.remaining(&usage, then)
}

/// A call of one limit, on a plain key or one with components, as `KeyRequest` reads it.
pub fn call_of_text(words: &dyn Words) -> CompositeRequest<'_> {
    super::server::call_of(&KeyRequest::take(&mut Args::new(words)).unwrap())
}
