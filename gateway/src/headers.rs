//! What an answer looks like in HTTP: the fields of draft-ietf-httpapi-ratelimit-headers-10, as the packages have them.

use crate::ask::Decision;
use crate::judge::{Judged, Judgement};
use crate::seen::Outcome;
use crate::windows::Window;
use std::fmt::{Display, Write as _};

/// How long a client is told to wait while nobody can decide, in seconds.
const WITHOUT: u64 = 1;

/// The fields of an answer: `RateLimit`, `RateLimit-Policy`, and `Retry-After` where it does not pass. Of a denial they
/// tell of the parts that deny alone, else of the part that is nearest to its end.
#[must_use]
pub fn fields(judgement: &Judgement) -> Vec<(&'static str, String)> {
    let mut fields = vec![];
    if let Some(part) = nearest(judgement) {
        let limits = labelled(part);
        let denied = !judgement.allowed;
        let mut quotas = String::with_capacity(64 * limits.len());
        let mut states = String::with_capacity(64 * limits.len());
        for (label, decision, window) in &limits {
            quoted(&mut quotas, label);
            member(&mut quotas, "q", decision.limit);
            if let Some(window) = window {
                member(&mut quotas, "w", window);
            }
            quoted(&mut states, label);
            member(&mut states, "r", decision.remaining);
            match (denied, decision.allowed) {
                (false, _) => member(&mut states, "t", seconds(decision.reset_ms)),
                // Retry-After must not be before any of these, so those that did not deny say nothing.
                (true, false) if decision.wait_ms >= 0 => member(&mut states, "t", seconds(decision.wait_ms)),
                (true, _) => {}
            }
        }
        fields.push(("RateLimit-Policy", quotas));
        fields.push(("RateLimit", states));
    }
    if !judgement.allowed {
        let waits = judgement.parts.iter().filter(|part| part.denies).map(|part| match (&part.verdict, part.outcome) {
            (Some(verdict), _) => u64::try_from(verdict.wait_ms).ok().map(|wait| wait.div_ceil(1000)),
            (None, Outcome::Outage | Outcome::Error) => Some(WITHOUT),
            (None, _) => None,
        });
        // What never passes is told no time.
        if let Some(Some(longest)) = waits.reduce(|one, other| Some(one?.max(other?))) {
            fields.push(("Retry-After", longest.to_string()));
        }
    }
    fields
}

/// The older fields, of the limit that the answer is about.
#[must_use]
pub fn older_fields(judgement: &Judgement) -> Vec<(&'static str, String)> {
    let Some(governing) = nearest(judgement).and_then(Judged::governing) else { return vec![] };
    vec![
        ("X-RateLimit-Limit", governing.limit.to_string()),
        ("X-RateLimit-Remaining", governing.remaining.to_string()),
        ("X-RateLimit-Reset", seconds(governing.reset_ms).to_string()),
    ]
}

/// What a limit is called that is over, for the body of a denial.
#[must_use]
pub fn violated(judgement: &Judgement) -> Vec<String> {
    let Some(part) = nearest(judgement) else { return vec![] };
    let limits = labelled(part);
    let over = limits.iter().filter(|(_, decision, _)| !decision.allowed).map(|(label, ..)| (*label).to_owned());
    let over: Vec<String> = over.collect();
    if over.is_empty() { limits.into_iter().map(|(label, ..)| label.to_owned()).collect() } else { over }
}

/// Of a denial the part that denies for longest; else the one that would be the first to deny calls like this one.
fn nearest(judgement: &Judgement) -> Option<&Judged> {
    let decided = || judgement.parts.iter().filter(|part| part.governing().is_some());
    if !judgement.allowed {
        return decided().filter(|part| part.denies).max_by_key(|part| {
            let wait = part.verdict.as_ref().map_or(0, |verdict| verdict.wait_ms);
            if wait < 0 { i64::MAX } else { wait }
        });
    }
    decided().filter(|part| !part.shadow).min_by_key(|part| {
        let (remaining, cost) = part.left().unwrap_or_default();
        // In millionths of a call.
        i128::from(remaining) * 1_000_000_000_000 / i128::from(cost.max(1))
    })
}

/// The limits of a part that are not in the shadow: their names, what they say, and their windows in seconds.
fn labelled(part: &Judged) -> Vec<(&str, Decision, Option<u64>)> {
    let all = part.verdict.as_ref().map(|verdict| verdict.each.as_slice()).unwrap_or_default();
    if part.windows.len() == all.len() {
        let seen: Vec<(&Window, &Decision)> =
            part.windows.iter().zip(all).filter(|(window, _)| !window.shadow).collect();
        let alone = seen.len() == 1;
        let label = |label| if alone { "default" } else { label };
        return seen.into_iter().map(|(window, one)| (label(&window.label), *one, Some(window.seconds))).collect();
    }
    part.governing().map(|decision| ("default", decision, None)).into_iter().collect()
}

/// Adds a string of a structured field (RFC 9651) to a list. Names of limits are letters, digits, `_` and `-`.
fn quoted(list: &mut String, label: &str) {
    list.push_str(if list.is_empty() { "\"" } else { ", \"" });
    list.extend(label.chars().filter(|one| one.is_ascii_graphic() && *one != '"' && *one != '\\'));
    list.push('"');
}

/// Adds a parameter to the last string of a list.
fn member(list: &mut String, name: &str, value: impl Display) {
    // A string takes whatever is written to it.
    let _ = write!(list, ";{name}={value}");
}

fn seconds(milliseconds: i64) -> i64 {
    milliseconds.saturating_add(999) / 1000
}

#[cfg(test)]
mod tests;
