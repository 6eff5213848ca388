//! HTTP header fields of decisions.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};

use crate::decision::{Decision, Source};
use crate::limits::Limit;

/// Limit that a policy reports if all its limits are shadow limits.
const NO_LIMIT: i64 = 1_000_000_000_000;

/// Returns the header fields of a response: `X-RateLimit-*`, the IETF's `RateLimit` and `RateLimit-Policy`
/// (draft-ietf-httpapi-ratelimit-headers-10), and `Retry-After` for a denial. `limits` are those of the call; of
/// several, the fields describe the governing one. `name` is their name, such as [`Bound::name`](crate::Bound::name); a
/// limit with a name of its own keeps that.
pub fn header_fields(decision: &Decision, limits: &[Limit], name: &str) -> HeaderMap {
    let mut found = HeaderMap::new();
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            found.insert(HeaderName::from_static(name), value);
        }
    };
    let usage = (decision.limit, decision.remaining, decision.reset);
    if let (Source::Server, (Some(limit), Some(remaining), Some(reset))) = (decision.source, usage)
        && limit != NO_LIMIT
    {
        let governing = match limits {
            [limit] => Some(limit),
            _ => None,
        };
        let name = quoted(label(limits, name));
        let window = governing.and_then(|one| one.window).map_or(String::new(), |one| format!(";w={}", seconds(one)));
        let until = if decision.allowed { Some(reset) } else { decision.wait };
        let until = until.map_or(String::new(), |one| format!(";t={}", seconds(one)));
        add("ratelimit-policy", format!("{name};q={limit}{window}"));
        add("ratelimit", format!("{name};r={remaining}{until}"));
        add("x-ratelimit-limit", limit.to_string());
        add("x-ratelimit-remaining", remaining.to_string());
        add("x-ratelimit-reset", seconds(reset).to_string());
    }
    if let (false, Some(wait)) = (decision.allowed, decision.wait) {
        add("retry-after", seconds(wait).to_string());
    }
    found
}

/// Returns the name of the limits: a single limit's own name, if it has one.
pub(crate) fn label<'n>(limits: &'n [Limit], name: &'n str) -> &'n str {
    match limits {
        [limit] => limit.name.as_deref().unwrap_or(name),
        _ => name,
    }
}

/// Formats a string of a structured field (RFC 9651), which is printable ASCII.
fn quoted(text: &str) -> String {
    let shown = text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' });
    let escaped: String =
        shown.flat_map(|one| ['\\'].into_iter().filter(move |_| matches!(one, '"' | '\\')).chain([one])).collect();
    format!("\"{escaped}\"")
}

pub(crate) fn retry_after(decision: &Decision) -> Option<(HeaderName, HeaderValue)> {
    decision.wait.map(|wait| (RETRY_AFTER, HeaderValue::from(seconds(wait))))
}

/// Returns whole seconds, rounded up.
fn seconds(duration: std::time::Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
