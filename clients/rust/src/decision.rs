//! Decisions of a limiter, and the decoding of the server's replies.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::Error;

/// Origin of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server.
    Server,
    /// No decision was made: [`OnOutage`](crate::OnOutage) applies in an outage, and a call whose key has no room is
    /// denied.
    Nobody,
}

/// Decision on a call.
#[derive(Clone, Debug)]
pub struct Decision {
    /// `true` if the call passes.
    pub allowed: bool,
    /// Limit in whole units. Among several limits, that of the governing limit, which denies for the longest time or
    /// would run out first. `None` without a decision.
    pub limit: Option<i64>,
    /// Whole units that remain of the governing limit.
    pub remaining: Option<i64>,
    /// If the call is allowed, the time for which to hold it, usually 0. If it is denied, the time after which the same
    /// call passes, or `None` if it never passes.
    pub wait: Option<Duration>,
    /// Time until the governing limit has fully recovered.
    pub reset: Option<Duration>,
    /// Origin of the decision.
    pub source: Source,
    /// Units charged by a call with [`Take::up_to`](crate::Take::up_to).
    pub granted: Option<i64>,
    /// Decision on each key, in a call over several keys.
    pub each: Vec<Decision>,
    /// `true` for a denial that this process repeated from memory without asking the server.
    pub is_remembered: bool,
    /// Idempotency key by which the charge can be settled.
    pub id: Option<String>,
    /// Reason why the server did not decide.
    pub error: Option<Arc<Error>>,
}

impl Decision {
    /// Returns `true` if the server did not decide.
    pub fn is_degraded(&self) -> bool {
        self.source != Source::Server
    }

    /// Decodes the integers of a reply, or for a call over several keys, those of each key.
    pub(crate) fn decode(reply: &Value, id: Option<String>) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        if let [Value::Int(allowed), wait, Value::Array(each)] = parts.as_slice() {
            let each: Vec<_> = each.iter().map(|reply| Self::decode(reply, None)).collect::<Option<_>>()?;
            let wait = millis(wait)?;
            // The numbers are those of the first key until `with_governing_limit` replaces them.
            return each.first().cloned().map(|first| Self { allowed: *allowed == 1, wait, each, id, ..first });
        }
        let [Value::Int(allowed), Value::Int(limit), Value::Int(remaining), wait, reset, extra @ ..] = parts.as_slice()
        else {
            return None;
        };
        let granted = extra.first().and_then(|value| if let Value::Int(units) = value { Some(*units) } else { None });
        Some(Self {
            allowed: *allowed == 1,
            limit: Some(*limit),
            remaining: Some(*remaining),
            wait: millis(wait)?,
            reset: millis(reset)?,
            source: Source::Server,
            granted,
            each: Vec::new(),
            is_remembered: false,
            id,
            error: None,
        })
    }

    /// Sets the numbers to those of the governing limit, as the server chooses it: the denial with the longest wait, or
    /// else the limit that would run out first under calls of these costs.
    pub(crate) fn with_governing_limit(self, costs: &[f64]) -> Self {
        let rank = |(decision, cost): &(&Self, &f64)| -> f64 {
            if self.allowed {
                let remaining = i32::try_from(decision.remaining.unwrap_or(0)).unwrap_or(i32::MAX);
                f64::from(remaining) / if **cost > 0.0 { **cost } else { 1.0 }
            } else {
                decision.wait.map_or(f64::NEG_INFINITY, |wait| -wait.as_secs_f64())
            }
        };
        let agreeing = self.each.iter().zip(costs).filter(|(decision, _)| decision.allowed == self.allowed);
        let Some((governing, _)) = agreeing.min_by(|a, b| rank(a).total_cmp(&rank(b))) else { return self };
        let (limit, remaining, reset) = (governing.limit, governing.remaining, governing.reset);
        Self { limit, remaining, reset, ..self }
    }

    /// Creates a decision without the server. `wait` is the time until the server is tried again, for a denial.
    pub(crate) fn undecided(allowed: bool, wait: Duration, error: Error) -> Self {
        Self {
            allowed,
            limit: None,
            remaining: None,
            wait: Some(if allowed { Duration::ZERO } else { wait }),
            reset: None,
            source: Source::Nobody,
            granted: None,
            each: Vec::new(),
            is_remembered: false,
            id: None,
            error: Some(Arc::new(error)),
        }
    }
}

/// Decodes milliseconds. Returns `None` if the number is missing, and `Some(None)` for -1, which means never.
#[allow(clippy::option_option)]
fn millis(value: &Value) -> Option<Option<Duration>> {
    if let Value::Int(millis) = value { Some(u64::try_from(*millis).ok().map(Duration::from_millis)) } else { None }
}
