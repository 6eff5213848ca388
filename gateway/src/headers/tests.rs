use super::{fields, older_fields, violated};
use crate::ask::{Decision, Verdict};
use crate::judge::{Judged, Judgement};
use crate::seen::Outcome;
use crate::windows::windows;
use ratelimit_core::Amount;

/// A part that was decided under a limit of 100, of which this much remains; a wait denies.
fn part(words: &str, remaining: i64, wait_ms: i64) -> Judged {
    let over = wait_ms != 0;
    let decision = Decision { allowed: !over, limit: 100, remaining, wait_ms, reset_ms: 5000 };
    let verdict = Verdict { allowed: !over, wait_ms, each: vec![decision], policy: None, version: None };
    Judged {
        outcome: if over { Outcome::Denied } else { Outcome::Allowed },
        over,
        shadow: false,
        denies: over,
        verdict: Some(verdict),
        windows: windows(words).into(),
        cost: Amount::ONE,
    }
}

/// A part of which no server decided.
fn untold(outcome: Outcome, denies: bool) -> Judged {
    Judged { outcome, verdict: None, over: denies, denies, ..part("", 0, 0) }
}

fn judgement(parts: Vec<Judged>) -> Judgement {
    Judgement { allowed: !parts.iter().any(|part| part.denies), unknown: false, parts }
}

fn field(parts: Vec<Judged>, name: &str) -> Option<String> {
    fields(&judgement(parts)).into_iter().find(|(one, _)| *one == name).map(|(_, value)| value)
}

const LIMIT: &str = "FIXED 100 1m";

#[test]
fn a_denial_tells_of_the_parts_that_deny_alone() {
    let shadow = || Judged { shadow: true, denies: false, ..part("FIXED 100 1h", 0, 3_600_000) };
    let quota = || Judged { denies: false, ..part("FIXED 100 1d", 0, 86_400_000) };
    let parts = || vec![shadow(), part(LIMIT, 0, 1500), part(LIMIT, 50, 0), part(LIMIT, 0, 60_000), quota()];
    assert_eq!(field(parts(), "Retry-After").as_deref(), Some("60"));
    assert_eq!(field(parts(), "RateLimit").as_deref(), Some("\"default\";r=0;t=60"));
    assert_eq!(violated(&judgement(parts())), ["default"]);
    // Too much at once never passes, and no limit was asked about it.
    let never = || vec![part(LIMIT, 1, 0), untold(Outcome::Denied, true)];
    assert_eq!((field(never(), "Retry-After"), field(never(), "RateLimit")), (None, None));
    assert_eq!(older_fields(&judgement(never())), []);
}

#[test]
fn a_part_without_a_decision_is_tried_again_in_a_second() {
    let parts = |more| vec![untold(Outcome::Outage, true), more];
    assert_eq!(field(parts(part(LIMIT, 50, 0)), "Retry-After").as_deref(), Some("1"));
    assert_eq!(field(parts(part(LIMIT, 0, 2000)), "Retry-After").as_deref(), Some("2"));
    assert_eq!(field(parts(untold(Outcome::Denied, true)), "Retry-After"), None, "the other part never passes");
}

#[test]
fn what_passes_is_told_of_the_part_that_is_nearest_to_its_end() {
    let cost = |part: Judged, cost: &str| Judged { cost: Amount::parse_up(cost.as_bytes()).unwrap(), ..part };
    let remaining =
        |parts| field(parts, "RateLimit").and_then(|text: String| text.split(';').nth(1).map(str::to_owned));
    assert_eq!(remaining(vec![part(LIMIT, 7, 0), part(LIMIT, 5, 0), part(LIMIT, 6, 0)]).as_deref(), Some("r=5"));
    // Nine are one more call of this cost.
    assert_eq!(remaining(vec![part(LIMIT, 5, 0), cost(part(LIMIT, 9, 0), "8")]).as_deref(), Some("r=9"));
    assert_eq!(remaining(vec![part(LIMIT, 5, 0), part("FIXED 100 1m COST 8", 9, 0)]).as_deref(), Some("r=9"));
    assert_eq!(remaining(vec![cost(part(LIMIT, 5, 0), "0"), part(LIMIT, 6, 0)]).as_deref(), Some("r=5"));
    let shadow = Judged { shadow: true, ..part(LIMIT, 0, 0) };
    assert_eq!(remaining(vec![shadow, part(LIMIT, 6, 0)]).as_deref(), Some("r=6"));
}
