//! A decision as what goes on the wire: integers, the same in RESP2 and RESP3. -1 is born here and nowhere else.

use crate::limiter::{Decision, Span, Verdict};
use crate::redis::Redis;

/// `[allowed, limit, remaining, wait_ms, reset_ms]`, and with UPTO the units granted.
pub fn decision(redis: &Redis, decision: &Decision) {
    redis.reply_array(if decision.granted.is_some() { 6 } else { 5 });
    redis.reply_integer(i64::from(decision.verdict.allowed()));
    redis.reply_integer(integer(decision.limit.whole_units()));
    redis.reply_integer(integer(decision.remaining.whole_units()));
    redis.reply_integer(wait_ms(decision.verdict));
    redis.reply_integer(millis(decision.reset));
    if let Some(granted) = decision.granted {
        redis.reply_integer(integer(granted.whole_units()));
    }
}

/// `[allowed, wait_ms, [decision, ...]]`
pub fn decisions(redis: &Redis, allowed: bool, wait: Option<Verdict>, decisions: &[Decision]) {
    redis.reply_array(3);
    redis.reply_integer(i64::from(allowed));
    redis.reply_integer(wait.map_or(0, wait_ms));
    redis.reply_array(decisions.len());
    for each in decisions {
        decision(redis, each);
    }
}

/// What redis-cell answers: `[limited, limit, remaining, retry_after_s, reset_after_s]`.
pub fn throttled(redis: &Redis, decision: &Decision) {
    let retry_after = match decision.verdict {
        Verdict::Allowed(_) | Verdict::Never => -1,
        Verdict::After(wait) => seconds(wait),
    };
    redis.reply_array(5);
    redis.reply_integer(i64::from(!decision.verdict.allowed()));
    redis.reply_integer(integer(decision.limit.whole_units()));
    redis.reply_integer(integer(decision.remaining.whole_units()));
    redis.reply_integer(retry_after);
    redis.reply_integer(seconds(decision.reset));
}

/// How long to wait before acting on the answer; -1 if it never can be acted on.
fn wait_ms(verdict: Verdict) -> i64 {
    match verdict {
        Verdict::Allowed(wait) | Verdict::After(wait) => millis(wait),
        Verdict::Never => -1,
    }
}

fn seconds(span: Span) -> i64 {
    integer(span.micros().div_ceil(1_000_000))
}

fn millis(span: Span) -> i64 {
    integer(span.ceil_millis())
}

/// Amounts end at 2^63-1 and times far below: nothing is cut off.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
