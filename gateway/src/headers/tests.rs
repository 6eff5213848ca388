use super::{HeaderFormat, ResponseHeaders, violated_limits};
use crate::call::{CallDecision, LimitDecision};
use crate::evaluation::{PartDecision, RequestDecision};
use crate::limit::parse_limits;
use crate::metrics::Outcome;
use ratelimit_core::Amount;

/// Returns a decision under a limit of 100, which is a denial if `wait_ms` is not 0.
fn part(words: &str, remaining: i64, wait_ms: i64) -> PartDecision {
    let is_over = wait_ms != 0;
    let limit = LimitDecision { allowed: !is_over, limit: 100, remaining, wait_ms, reset_ms: 5000 };
    let decision =
        CallDecision { allowed: !is_over, wait_ms, limit_decisions: vec![limit], policy: None, version: None };
    PartDecision {
        outcome: if is_over { Outcome::Denied } else { Outcome::Allowed },
        is_over,
        shadow: false,
        denies: is_over,
        decision: Some(decision),
        limits: parse_limits(words).into(),
        cost: Amount::ONE,
    }
}

/// Returns a part without a decision of the server.
fn undecided_part(outcome: Outcome, denies: bool) -> PartDecision {
    PartDecision { outcome, decision: None, is_over: denies, denies, ..part("", 0, 0) }
}

fn decision(parts: Vec<PartDecision>) -> RequestDecision {
    RequestDecision { allowed: !parts.iter().any(|part| part.denies), is_undecided: false, parts }
}

fn headers(format: HeaderFormat) -> ResponseHeaders {
    ResponseHeaders { format, names: ["X-Limit", "X-Remaining", "X-Reset"].map(str::to_owned) }
}

fn field(parts: Vec<PartDecision>, name: &str) -> Option<String> {
    let headers = headers(HeaderFormat::Standard);
    headers.fields(&decision(parts)).into_iter().find(|(field, _)| *field == name).map(|(_, value)| value)
}

const LIMIT: &str = "FIXED 100 1m";

#[test]
fn headers_of_a_denial_describe_only_parts_that_deny() {
    let shadow = || PartDecision { shadow: true, denies: false, ..part("FIXED 100 1h", 0, 3_600_000) };
    let quota = || PartDecision { denies: false, ..part("FIXED 100 1d", 0, 86_400_000) };
    let parts = || vec![shadow(), part(LIMIT, 0, 1500), part(LIMIT, 50, 0), part(LIMIT, 0, 60_000), quota()];
    assert_eq!(field(parts(), "Retry-After").as_deref(), Some("60"));
    assert_eq!(field(parts(), "RateLimit").as_deref(), Some("\"default\";r=0;t=60"));
    assert_eq!(violated_limits(&decision(parts())), ["default"]);
    // A cost that is too high never passes, and no limit decided it.
    let too_costly = || vec![part(LIMIT, 1, 0), undecided_part(Outcome::Denied, true)];
    assert_eq!((field(too_costly(), "Retry-After"), field(too_costly(), "RateLimit")), (None, None));
    assert_eq!(headers(HeaderFormat::Separate).fields(&decision(too_costly())), []);
}

#[test]
fn retry_after_of_an_undecided_part_is_one_second() {
    let parts = |second| vec![undecided_part(Outcome::Outage, true), second];
    assert_eq!(field(parts(part(LIMIT, 50, 0)), "Retry-After").as_deref(), Some("1"));
    assert_eq!(field(parts(part(LIMIT, 0, 2000)), "Retry-After").as_deref(), Some("2"));
    assert_eq!(
        field(parts(undecided_part(Outcome::Denied, true)), "Retry-After"),
        None,
        "the second part never passes"
    );
}

#[test]
fn headers_of_an_allowed_request_describe_the_part_with_the_fewest_requests_left() {
    let with_cost =
        |part: PartDecision, cost: &str| PartDecision { cost: Amount::parse_up(cost.as_bytes()).unwrap(), ..part };
    let remaining =
        |parts| field(parts, "RateLimit").and_then(|text: String| text.split(';').nth(1).map(str::to_owned));
    assert_eq!(remaining(vec![part(LIMIT, 7, 0), part(LIMIT, 5, 0), part(LIMIT, 6, 0)]).as_deref(), Some("r=5"));
    // Nine units are one more request of cost 8.
    assert_eq!(remaining(vec![part(LIMIT, 5, 0), with_cost(part(LIMIT, 9, 0), "8")]).as_deref(), Some("r=9"));
    assert_eq!(remaining(vec![part(LIMIT, 5, 0), part("FIXED 100 1m COST 8", 9, 0)]).as_deref(), Some("r=9"));
    assert_eq!(remaining(vec![with_cost(part(LIMIT, 5, 0), "0"), part(LIMIT, 6, 0)]).as_deref(), Some("r=5"));
    let shadow = PartDecision { shadow: true, ..part(LIMIT, 0, 0) };
    assert_eq!(remaining(vec![shadow, part(LIMIT, 6, 0)]).as_deref(), Some("r=6"));
}

#[test]
fn headers_can_be_separate_renamed_or_off() {
    let names = |fields: Vec<(&str, String)>| fields.into_iter().map(|(name, _)| name.to_owned()).collect::<Vec<_>>();
    let (allowed, denied) = (decision(vec![part(LIMIT, 7, 0)]), decision(vec![part(LIMIT, 0, 2000)]));
    let separate = headers(HeaderFormat::Separate);
    let fields = [("X-Limit", "100"), ("X-Remaining", "7"), ("X-Reset", "5")];
    assert_eq!(separate.fields(&allowed), fields.map(|(name, value)| (name, value.to_owned())));
    assert_eq!(names(separate.fields(&denied)), ["X-Limit", "X-Remaining", "X-Reset"]);
    assert_eq!(names(separate.forward_auth_fields(&denied)), ["X-Limit", "X-Remaining", "X-Reset", "Retry-After"]);
    let off = headers(HeaderFormat::Off);
    assert_eq!(names(off.fields(&denied)), Vec::<String>::new());
    assert_eq!(names(off.forward_auth_fields(&denied)), ["Retry-After"]);
    assert_eq!(names(off.forward_auth_fields(&allowed)), Vec::<String>::new());
    let standard = headers(HeaderFormat::Standard);
    assert_eq!(names(standard.fields(&denied)), ["RateLimit-Policy", "RateLimit", "Retry-After"]);
    assert_eq!(standard.forward_auth_fields(&denied).len(), 6);
}
