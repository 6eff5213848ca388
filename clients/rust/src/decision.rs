//! Decisions: what the server answers.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use crate::error::Error;

/// Where a decision was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The server.
    Server,
    /// Nobody: the server is away and [`OnOutage`](crate::OnOutage) decides, or the key has no room.
    Nobody,
}

/// Whether a call passes, and what is left.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Whether the call passes.
    pub allowed: bool,
    /// Whole units: of several limits, of the one that denies longest or would run out first. None: nobody decided.
    pub limit: Option<i64>,
    /// Whole units that are left.
    pub remaining: Option<i64>,
    /// Allowed: hold the call for so long, usually 0. Denied: the same call passes after so long; None: never.
    pub wait: Option<Duration>,
    /// Until the limit has fully recovered.
    pub reset: Option<Duration>,
    /// Where a decision was made.
    pub source: Source,
    /// How many units were charged, by a call with [`Take::up_to`](crate::Take::up_to).
    pub granted: Option<i64>,
    /// What each key's limit says for itself, of a call over several keys.
    pub each: Vec<Decision>,
    /// Whether this is a denial of the server's that this process remembered: it was not asked again.
    pub is_remembered: bool,
    /// The idempotency key by which the charge can be settled.
    pub id: Option<String>,
    /// Why the server did not decide.
    pub error: Option<Arc<Error>>,
}

impl Decision {
    /// Whether the server did not decide.
    pub fn is_degraded(&self) -> bool {
        self.source != Source::Server
    }

    /// Of the integers of a reply; of several keys, those of each.
    pub(crate) fn read(reply: &Value, id: Option<String>) -> Option<Self> {
        let Value::Array(parts) = reply else { return None };
        if let [Value::Int(allowed), wait, Value::Array(each)] = parts.as_slice() {
            let each: Vec<_> = each.iter().map(|one| Self::read(one, None)).collect::<Option<_>>()?;
            let wait = millis(wait)?;
            // The numbers are of one of them: `governed`.
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

    /// With the numbers of the one that decided, as the server chooses it: of those that deny, the one with the longest
    /// wait; else the one that would run out first under calls of these costs.
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

    /// While nobody can decide. Denied: for how long nobody asks.
    pub(crate) fn nobody(allowed: bool, wait: Duration, error: Error) -> Self {
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

/// None: a number is missing. A wait of -1 is for ever.
#[allow(clippy::option_option)]
fn millis(value: &Value) -> Option<Option<Duration>> {
    if let Value::Int(millis) = value { Some(u64::try_from(*millis).ok().map(Duration::from_millis)) } else { None }
}
