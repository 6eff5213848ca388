//! HTTP header fields of decisions.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue, RETRY_AFTER};

use crate::decision::{Decision, Source};
use crate::limits::Limit;

/// Value of the limit in the reply for a policy whose limits are all in shadow mode, so that none is enforced.
const NO_LIMIT: i64 = 1_000_000_000_000;

/// Returns the header fields of a response: `X-RateLimit-*`, the IETF's `RateLimit` and `RateLimit-Policy`
/// (draft-ietf-httpapi-ratelimit-headers-10), and `Retry-After` for a denial. `limits` are the limits of the call; the
/// fields describe the governing limit. They have the name of the limit if the call has a single limit with a name, and
/// otherwise `name`, such as [`Bound::name`](crate::Bound::name).
pub fn header_fields(decision: &Decision, limits: &[Limit], name: &str) -> HeaderMap {
    let mut fields = HeaderMap::new();
    let mut add = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            fields.insert(HeaderName::from_static(name), value);
        }
    };
    let state = (decision.limit, decision.remaining, decision.reset);
    if let (Source::Server, (Some(limit), Some(remaining), Some(reset))) = (decision.source, state)
        && limit != NO_LIMIT
    {
        // Among several limits, the governing limit is unknown here.
        let only_limit = match limits {
            [limit] => Some(limit),
            _ => None,
        };
        let name = quoted(name_in_fields(limits, name));
        let window = only_limit.and_then(|limit| limit.window);
        let window = window.map_or(String::new(), |window| format!(";w={}", seconds(window)));
        let time_field = if decision.allowed { Some(reset) } else { decision.wait };
        let time_field = time_field.map_or(String::new(), |time| format!(";t={}", seconds(time)));
        add("ratelimit-policy", format!("{name};q={limit}{window}"));
        add("ratelimit", format!("{name};r={remaining}{time_field}"));
        add("x-ratelimit-limit", limit.to_string());
        add("x-ratelimit-remaining", remaining.to_string());
        add("x-ratelimit-reset", seconds(reset).to_string());
    }
    if let (false, Some(wait)) = (decision.allowed, decision.wait) {
        add("retry-after", seconds(wait).to_string());
    }
    fields
}

/// Returns the name of a single limit, if it has one, or otherwise `name`.
pub(crate) fn name_in_fields<'n>(limits: &'n [Limit], name: &'n str) -> &'n str {
    match limits {
        [limit] => limit.name.as_deref().unwrap_or(name),
        _ => name,
    }
}

/// Formats a string of a structured field (RFC 9651). Characters other than printable ASCII become `?`.
fn quoted(text: &str) -> String {
    let printable = text.chars().map(|character| if matches!(character, ' '..='~') { character } else { '?' });
    let escaped: String = printable
        .flat_map(|letter| ['\\'].into_iter().filter(move |_| matches!(letter, '"' | '\\')).chain([letter]))
        .collect();
    format!("\"{escaped}\"")
}

pub(crate) fn retry_after(decision: &Decision) -> Option<(HeaderName, HeaderValue)> {
    decision.wait.map(|wait| (RETRY_AFTER, HeaderValue::from(seconds(wait))))
}

/// Returns whole seconds, rounded up.
fn seconds(duration: std::time::Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}
