//! Policies with FORCE, which charge calls that they deny.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;

/// Error text for waits and units under a policy with FORCE, which would charge each attempt.
pub(crate) const FORCED: &str =
    "the policy has a limit with FORCE, which charges denied calls: it is not for waits and units";

/// Lifetime of a cached answer.
const LIFETIME: Duration = Duration::from_secs(1);

/// Maximum number of cached answers.
const MAX_POLICIES: usize = 10_000;

/// Cache of the answers of the server: for the names of a policy, `true` if it has FORCE, and the time of the question.
#[derive(Default)]
pub(crate) struct ForcedPolicies(Mutex<HashMap<Vec<String>, (bool, Instant)>>);

impl ForcedPolicies {
    /// Returns `true` if the policy has FORCE, or `None` if the server must be asked.
    pub(crate) fn find(&self, policy: &[String], now: Instant) -> Option<bool> {
        let (forces, asked_at) = *self.entries().get(policy)?;
        (now.saturating_duration_since(asked_at) < LIFETIME).then_some(forces)
    }

    /// Remembers the answer of the server to a call that was sent at `asked_at`.
    pub(crate) fn remember(&self, policy: &[String], forces: bool, asked_at: Instant) {
        let mut entries = self.entries();
        if entries.len() >= MAX_POLICIES {
            entries.clear();
        }
        entries.insert(policy.to_vec(), (forces, asked_at));
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<Vec<String>, (bool, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if a reply to RL.LIMIT with EACH says that the policy has FORCE.
pub(crate) fn has_force(reply: &Value) -> bool {
    // The first five parts are: allowed, wait, decisions, name of the policy, version.
    let Value::Array(parts) = reply else { return false };
    parts.iter().skip(5).any(|part| match part {
        Value::BulkString(word) => word == b"FORCE",
        Value::SimpleString(word) => word == "FORCE",
        _ => false,
    })
}
