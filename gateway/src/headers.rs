//! Response headers of draft-ietf-httpapi-ratelimit-headers-10, in the form that the client packages use as well.

use crate::call::LimitDecision;
use crate::evaluation::{PartDecision, RequestDecision};
use crate::limit::Limit;
use crate::metrics::Outcome;
use std::fmt::{Display, Write as _};

/// `Retry-After` of a request that is denied because the server is away, in seconds.
const OUTAGE_RETRY_SECONDS: u64 = 1;

/// Returns the headers `RateLimit`, `RateLimit-Policy`, and for a denied request `Retry-After`.
///
/// They describe one part of the request: for a denial the one that denies for the longest time, else the one that the
/// fewest further requests would exhaust.
#[must_use]
pub fn fields(decision: &RequestDecision) -> Vec<(&'static str, String)> {
    let mut fields = vec![];
    if let Some(part) = described_part(decision) {
        let limits = labelled_limits(part);
        let denied = !decision.allowed;
        let mut quotas = String::with_capacity(64 * limits.len());
        let mut states = String::with_capacity(64 * limits.len());
        for (label, limit, window) in &limits {
            push_string(&mut quotas, label);
            push_parameter(&mut quotas, "q", limit.limit);
            if let Some(window) = window {
                push_parameter(&mut quotas, "w", window);
            }
            push_string(&mut states, label);
            push_parameter(&mut states, "r", limit.remaining);
            match (denied, limit.allowed) {
                (false, _) => push_parameter(&mut states, "t", seconds(limit.reset_ms)),
                // Retry-After must not be less than any `t`, so limits that did not deny have none.
                (true, false) if limit.wait_ms >= 0 => push_parameter(&mut states, "t", seconds(limit.wait_ms)),
                (true, _) => {}
            }
        }
        fields.push(("RateLimit-Policy", quotas));
        fields.push(("RateLimit", states));
    }
    if !decision.allowed {
        let waits = decision.parts.iter().filter(|part| part.denies).map(|part| match (&part.decision, part.outcome) {
            (Some(decision), _) => u64::try_from(decision.wait_ms).ok().map(|wait| wait.div_ceil(1000)),
            (None, Outcome::Outage | Outcome::Error) => Some(OUTAGE_RETRY_SECONDS),
            (None, _) => None,
        });
        // A request that never passes gets no Retry-After.
        if let Some(Some(longest)) = waits.reduce(|one, other| Some(one?.max(other?))) {
            fields.push(("Retry-After", longest.to_string()));
        }
    }
    fields
}

/// Returns the older `X-RateLimit-*` headers, which describe the governing limit of the same part.
#[must_use]
pub fn legacy_fields(decision: &RequestDecision) -> Vec<(&'static str, String)> {
    let Some(governing) = described_part(decision).and_then(PartDecision::governing) else { return vec![] };
    vec![
        ("X-RateLimit-Limit", governing.limit.to_string()),
        ("X-RateLimit-Remaining", governing.remaining.to_string()),
        ("X-RateLimit-Reset", seconds(governing.reset_ms).to_string()),
    ]
}

/// Returns the names of the exceeded limits, for the body of a denial.
#[must_use]
pub fn violated_limits(decision: &RequestDecision) -> Vec<String> {
    let Some(part) = described_part(decision) else { return vec![] };
    let limits = labelled_limits(part);
    let over = limits.iter().filter(|(_, decision, _)| !decision.allowed).map(|(label, ..)| (*label).to_owned());
    let over: Vec<String> = over.collect();
    if over.is_empty() { limits.into_iter().map(|(label, ..)| label.to_owned()).collect() } else { over }
}

/// Returns the part that the headers describe: for a denial the part that denies for the longest time, else the part
/// that the fewest further requests would exhaust.
fn described_part(decision: &RequestDecision) -> Option<&PartDecision> {
    let decided = || decision.parts.iter().filter(|part| part.governing().is_some());
    if !decision.allowed {
        return decided().filter(|part| part.denies).max_by_key(|part| {
            let wait = part.decision.as_ref().map_or(0, |decision| decision.wait_ms);
            if wait < 0 { i64::MAX } else { wait }
        });
    }
    decided().filter(|part| !part.shadow).min_by_key(|part| {
        let (remaining, cost) = part.remaining_and_cost().unwrap_or_default();
        // Remaining requests, in millionths.
        i128::from(remaining) * 1_000_000_000_000 / i128::from(cost.max(1))
    })
}

/// Returns name, decision and window in seconds of each limit of a part that is not in shadow mode.
fn labelled_limits(part: &PartDecision) -> Vec<(&str, LimitDecision, Option<u64>)> {
    let all = part.decision.as_ref().map(|decision| decision.each.as_slice()).unwrap_or_default();
    if part.limits.len() == all.len() {
        let enforced: Vec<(&Limit, &LimitDecision)> =
            part.limits.iter().zip(all).filter(|(limit, _)| !limit.shadow).collect();
        let is_single = enforced.len() == 1;
        let label = |name| if is_single { "default" } else { name };
        return enforced
            .into_iter()
            .map(|(limit, decision)| (label(&limit.name), *decision, Some(limit.seconds)))
            .collect();
    }
    part.governing().map(|decision| ("default", decision, None)).into_iter().collect()
}

/// Appends a string of a structured field (RFC 9651) to a list. Characters that would need an escape are dropped; names
/// of limits have none.
fn push_string(list: &mut String, label: &str) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.extend(label.chars().filter(|letter| letter.is_ascii_graphic() && *letter != '"' && *letter != '\\'));
    list.push('"');
}

/// Appends a parameter to the last string of a list.
fn push_parameter(list: &mut String, name: &str, value: impl Display) {
    // Writing to a string never fails.
    let _ = write!(list, ";{name}={value}");
}

fn seconds(milliseconds: i64) -> i64 {
    milliseconds.saturating_add(999) / 1000
}

#[cfg(test)]
mod tests;
