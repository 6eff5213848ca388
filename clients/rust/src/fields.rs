//! What a decision looks like in HTTP.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};

use crate::decision::{Decision, Source};
use crate::limits::Limit;

/// A policy whose limits are all in the shadow limits nobody, and says so by this number.
const NO_LIMIT: i64 = 1_000_000_000_000;

/// The header fields of a response: `X-RateLimit-*`, the IETF's `RateLimit` and `RateLimit-Policy`
/// (draft-ietf-httpapi-ratelimit-headers-10), and `Retry-After` of a denial. `limits` are those of the call; of several,
/// the fields tell of the one that governs. `name` is what they are called, such as
/// [`Bound::name`](crate::Bound::name); a limit with a name of its own has that.
pub fn fields(decision: &Decision, limits: &[Limit], name: &str) -> HeaderMap {
    let mut found = HeaderMap::new();
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            found.insert(HeaderName::from_static(name), value);
        }
    };
    let told = (decision.limit, decision.remaining, decision.reset);
    if let (Source::Server, (Some(limit), Some(remaining), Some(reset))) = (decision.source, told)
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

/// The name of the limits: that of a single limit is its own, if it has one.
pub(crate) fn label<'n>(limits: &'n [Limit], name: &'n str) -> &'n str {
    match limits {
        [limit] => limit.name.as_deref().unwrap_or(name),
        _ => name,
    }
}

/// A string of a structured field (RFC 9651), which is of printable ASCII.
fn quoted(text: &str) -> String {
    let shown = text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' });
    let escaped: String =
        shown.flat_map(|one| ['\\'].into_iter().filter(move |_| matches!(one, '"' | '\\')).chain([one])).collect();
    format!("\"{escaped}\"")
}

pub(crate) fn retry_after(decision: &Decision) -> Option<(HeaderName, HeaderValue)> {
    decision.wait.map(|wait| (RETRY_AFTER, HeaderValue::from(seconds(wait))))
}

/// Rounded up.
fn seconds(duration: std::time::Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
