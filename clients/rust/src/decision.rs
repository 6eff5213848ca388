//! Decisions: what the server answers.

use std::sync::Arc;
use std::time::Duration;

use crate::error::Error;

/// Who decided.
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
    /// Who decided.
    pub source: Source,
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

    /// Of the five integers of a reply.
    pub(crate) fn read(reply: &redis::Value, id: Option<String>) -> Option<Self> {
        let redis::Value::Array(parts) = reply else { return None };
        let mut numbers = parts.iter().map_while(|part| match part {
            redis::Value::Int(number) => Some(*number),
            _ => None,
        });
        let mut next = || numbers.next();
        let (allowed, limit, remaining, wait, reset) = (next()?, next()?, next()?, next()?, next()?);
        Some(Self {
            allowed: allowed == 1,
            limit: Some(limit),
            remaining: Some(remaining),
            wait: u64::try_from(wait).ok().map(Duration::from_millis),
            reset: u64::try_from(reset).ok().map(Duration::from_millis),
            source: Source::Server,
            id,
            error: None,
        })
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
            id: None,
            error: Some(Arc::new(error)),
        }
    }
}
