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
    /// No decision: in an outage [`OnOutage`](crate::OnOutage) applies, or the key has no room.
    Nobody,
}

/// Decision on a call.
#[derive(Clone, Debug)]
pub struct Decision {
    /// `true` if the call passes.
    pub allowed: bool,
    /// Limit in whole units: of several limits, that of the one that denies longest or would run out first. `None`
    /// without a decision.
    pub limit: Option<i64>,
    /// Whole units that remain.
    pub remaining: Option<i64>,
    /// Allowed: time to hold the call, usually 0. Denied: time after which the same call passes; `None` if it never
    /// does.
    pub wait: Option<Duration>,
    /// Time until the limit has fully recovered.
    pub reset: Option<Duration>,
    /// Origin of the decision.
    pub source: Source,
    /// Units charged to a call with [`Take::up_to`](crate::Take::up_to).
    pub granted: Option<i64>,
    /// Decisions of the limits of the single keys, for a call over several keys.
    pub each: Vec<Decision>,
    /// `true` for a denial that this process remembered without asking the server.
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

    /// Decodes the integers of a reply, or of each key for a call over several keys.
    pub(crate) fn read(reply: &Value, id: Option<String>) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        if let [Value::Int(allowed), wait, Value::Array(each)] = parts.as_slice() {
            let each: Vec<_> = each.iter().map(|one| Self::read(one, None)).collect::<Option<_>>()?;
            let wait = millis(wait)?;
            // The numbers are those of any key: `governed` chooses the right ones.
            return each.first().cloned().map(|one| Self { allowed: *allowed == 1, wait, each, id, ..one });
        }
        let [Value::Int(allowed), Value::Int(limit), Value::Int(remaining), wait, reset, more @ ..] = parts.as_slice()
        else {
            return None;
        };
        let granted = more.first().and_then(|one| if let Value::Int(units) = one { Some(*units) } else { None });
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
    pub(crate) fn governed(self, costs: &[f64]) -> Self {
        let rank = |(one, cost): &(&Self, &f64)| -> f64 {
            if self.allowed {
                let left = i32::try_from(one.remaining.unwrap_or(0)).unwrap_or(i32::MAX);
                f64::from(left) / if **cost > 0.0 { **cost } else { 1.0 }
            } else {
                one.wait.map_or(f64::NEG_INFINITY, |wait| -wait.as_secs_f64())
            }
        };
        let agreeing = self.each.iter().zip(costs).filter(|(one, _)| one.allowed == self.allowed);
        let Some((one, _)) = agreeing.min_by(|a, b| rank(a).total_cmp(&rank(b))) else { return self };
        let (limit, remaining, reset) = (one.limit, one.remaining, one.reset);
        Self { limit, remaining, reset, ..self }
    }

    /// Returns a decision without the server. The wait of a denial is the time until the server is tried again.
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
