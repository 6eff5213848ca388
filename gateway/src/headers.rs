//! Response headers: the fields of draft-ietf-httpapi-ratelimit-headers-10, in the form that the client packages also
//! use, or the headers of an older draft, as in envoyproxy/ratelimit.

use crate::call::LimitDecision;
use crate::evaluation::{PartDecision, RequestDecision};
use crate::limit::Limit;
use crate::metrics::Outcome;
use clap::ValueEnum;
use std::fmt::{Display, Write as _};

/// `Retry-After` of a request that is denied because the server is away (`--on-outage closed`), in seconds.
const OUTAGE_RETRY_SECONDS: u64 = 1;

/// Names of the headers of the older draft that forward auth adds.
const LEGACY_NAMES: [&str; 3] = ["X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset"];

/// Format of the response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HeaderFormat {
    /// `RateLimit`, `RateLimit-Policy`, and for a denied request that may pass later `Retry-After`.
    Standard,
    /// A header each for the limit, the remaining units and the seconds until the reset, as in envoyproxy/ratelimit.
    Separate,
    /// No headers, except `Retry-After` in forward auth.
    Off,
}

/// Response headers: their format, and the names of separate headers.
#[derive(Clone, Debug)]
pub struct ResponseHeaders {
    pub format: HeaderFormat,
    /// Names of the headers with the limit, the remaining units and the seconds until the reset.
    pub names: [String; 3],
}

impl ResponseHeaders {
    /// Returns the headers for Envoy.
    ///
    /// They describe one part of the request: in a denial, the part that denies for the longest time, otherwise the
    /// part that the fewest further requests would exhaust.
    #[must_use]
    pub fn fields(&self, decision: &RequestDecision) -> Vec<(&str, String)> {
        match self.format {
            HeaderFormat::Standard => standard_fields(decision).into_iter().chain(retry_after(decision)).collect(),
            HeaderFormat::Separate => separate_fields(decision, self.names.each_ref().map(String::as_str)),
            HeaderFormat::Off => vec![],
        }
    }

    /// Returns the headers of forward auth. A denied request that may pass later has `Retry-After` in every format. The
    /// standard format also has the headers of the older draft.
    #[must_use]
    pub fn forward_auth_fields(&self, decision: &RequestDecision) -> Vec<(&str, String)> {
        let mut fields = self.fields(decision);
        match self.format {
            HeaderFormat::Standard => fields.extend(separate_fields(decision, LEGACY_NAMES)),
            HeaderFormat::Separate | HeaderFormat::Off => fields.extend(retry_after(decision)),
        }
        fields
    }
}

/// Returns the headers `RateLimit` and `RateLimit-Policy`.
fn standard_fields(decision: &RequestDecision) -> Vec<(&'static str, String)> {
    let mut fields = vec![];
    if let Some(part) = described_part(decision) {
        let limits = labelled_limits(part);
        let is_denied = !decision.allowed;
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
            match (is_denied, limit.allowed) {
                (false, _) => push_parameter(&mut states, "t", seconds(limit.reset_ms)),
                // Retry-After must not be less than any `t`, so limits that did not deny have none.
                (true, false) if limit.wait_ms >= 0 => push_parameter(&mut states, "t", seconds(limit.wait_ms)),
                (true, _) => {}
            }
        }
        fields.push(("RateLimit-Policy", quotas));
        fields.push(("RateLimit", states));
    }
    fields
}

/// Returns the header `Retry-After` of a denied request. Returns `None` if the request never passes, or if it is
/// answered with an error while the server is away (`--on-outage error`).
fn retry_after(decision: &RequestDecision) -> Option<(&'static str, String)> {
    let denials = decision.parts.iter().filter(|part| part.denies && !decision.allowed);
    let waits = denials.map(|part| match (&part.decision, part.outcome) {
        (Some(decision), _) => u64::try_from(decision.wait_ms).ok().map(|wait| wait.div_ceil(1000)),
        (None, Outcome::Outage | Outcome::Error) => Some(OUTAGE_RETRY_SECONDS),
        (None, _) => None,
    });
    let longest = waits.reduce(|one, other| Some(one?.max(other?))).flatten()?;
    Some(("Retry-After", longest.to_string()))
}

/// Returns three headers that describe the governing limit of the part that [`described_part`] returns: the limit, the
/// remaining units and the seconds until the reset.
fn separate_fields<'a>(decision: &RequestDecision, names: [&'a str; 3]) -> Vec<(&'a str, String)> {
    let Some(governing) = described_part(decision).and_then(PartDecision::governing) else { return vec![] };
    let values = [governing.limit, governing.remaining, seconds(governing.reset_ms)];
    names.into_iter().zip(values.map(|value| value.to_string())).collect()
}

/// Returns the names of the exceeded limits for the body of a denial, or of all limits if none is known to be exceeded.
#[must_use]
pub fn violated_limits(decision: &RequestDecision) -> Vec<String> {
    let Some(part) = described_part(decision) else { return vec![] };
    let limits = labelled_limits(part);
    let exceeded = limits.iter().filter(|(_, decision, _)| !decision.allowed).map(|(label, ..)| (*label).to_owned());
    let exceeded: Vec<String> = exceeded.collect();
    if exceeded.is_empty() { limits.into_iter().map(|(label, ..)| label.to_owned()).collect() } else { exceeded }
}

/// Returns the part that the headers describe: in a denial, the part that denies for the longest time, otherwise the
/// part that the fewest further requests would exhaust.
fn described_part(decision: &RequestDecision) -> Option<&PartDecision> {
    if !decision.allowed {
        return decision.longest_denial().map(|(_, part)| part);
    }
    let enforced = decision.parts.iter().filter(|part| !part.shadow && part.governing().is_some());
    enforced.min_by_key(|part| {
        let (remaining, cost) = part.remaining_and_cost().unwrap_or_default();
        // Remaining requests, in millionths.
        i128::from(remaining) * 1_000_000_000_000 / i128::from(cost.max(1))
    })
}

/// Returns the label, the decision and the window in seconds of each enforced limit of a part. The label is the name of
/// the limit, or `default` if there is one limit.
fn labelled_limits(part: &PartDecision) -> Vec<(&str, LimitDecision, Option<u64>)> {
    let decisions = part.decision.as_ref().map(|decision| decision.limit_decisions.as_slice()).unwrap_or_default();
    if part.limits.len() == decisions.len() {
        let enforced: Vec<(&Limit, &LimitDecision)> =
            part.limits.iter().zip(decisions).filter(|(limit, _)| !limit.shadow).collect();
        let is_single = enforced.len() == 1;
        let label = |name| if is_single { "default" } else { name };
        return enforced
            .into_iter()
            .map(|(limit, decision)| (label(&limit.name), *decision, Some(limit.recovery_seconds)))
            .collect();
    }
    // Without known limits, only the governing decision is described.
    part.governing().map(|decision| ("default", decision, None)).into_iter().collect()
}

/// Appends a string of a structured field (RFC 9651) to a list. Drops all but the graphic ASCII characters
/// that need no escape; names of limits have no others.
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
