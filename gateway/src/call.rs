//! Calls to the server: their commands and the parsing of replies.

use crate::charge::ChargingMode;
use crate::limit::Limit;
use ratelimit_core::Amount;
use ratelimit_link::server_error::{explain, is_error_reply};
use redis::{Cmd, RedisError, Value};
use std::time::Duration;

/// Limits that apply to a key, named or spelled out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Names of policies, of which the first that exists on the server applies.
    Policies(Vec<String>),
    /// Limits that the call itself contains: the arguments of `RL.TAKE` after the key.
    Limits(Vec<String>),
}

/// Operation that a call performs on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Charges a cost if the limits allow it. A cost of 0 charges nothing and reports the state.
    Take(Amount),
    /// Returns units that were charged but not used.
    GiveBack(Amount),
    /// Corrects the cost of the earlier call with the same idempotency key.
    Settle(Amount),
    /// Charges a cost even beyond the limit, and is never denied. A cost of 0 only reports the state.
    Force(Amount),
    /// Ends the leases whose holder is the idempotency key.
    Release,
}

/// Call on one key.
#[derive(Clone, Debug)]
pub struct Call {
    pub key: Vec<u8>,
    /// Limits of the key.
    pub rule: Rule,
    pub operation: Operation,
    /// Idempotency key: calls with the same key are charged once.
    pub id: Option<Vec<u8>>,
    /// Lifetime of the idempotency key, in the server's syntax of durations.
    pub id_lifetime: String,
    /// Charging mode of the rule.
    pub charge: ChargingMode,
}

/// Decision of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitDecision {
    pub allowed: bool,
    /// Units that may be used at once, rounded down.
    pub limit: i64,
    /// Units that are left, rounded down.
    pub remaining: i64,
    /// Milliseconds until the call would be granted, or hold of a call that a leaky bucket granted. -1 if the call
    /// never passes.
    pub wait_ms: i64,
    /// Milliseconds until the usage under the limit is zero.
    pub reset_ms: i64,
}

/// Decision of the server on a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallDecision {
    pub allowed: bool,
    /// Longest wait of the limits that deny, in milliseconds. -1 if the call never passes.
    pub wait_ms: i64,
    /// Decision of each limit, in the order of the rule.
    pub limit_decisions: Vec<LimitDecision>,
    /// Name of the policy that applied.
    pub policy: Option<String>,
    /// Version of the policy that applied.
    pub version: Option<i64>,
}

impl CallDecision {
    /// Returns the decision that the server would report for an unchanged key after the time `elapsed`: its waits and
    /// resets are shorter.
    #[must_use]
    pub fn after(&self, elapsed: Duration) -> CallDecision {
        let elapsed = i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX);
        // At least 1, because 0 means that the call passes. -1 stays: the call never passes.
        let shorten = |ms: i64| if ms > 0 { ms.saturating_sub(elapsed).max(1) } else { ms };
        let shorten_limit = |limit: &LimitDecision| LimitDecision {
            wait_ms: shorten(limit.wait_ms),
            reset_ms: shorten(limit.reset_ms),
            ..*limit
        };
        CallDecision {
            wait_ms: shorten(self.wait_ms),
            limit_decisions: self.limit_decisions.iter().map(shorten_limit).collect(),
            ..self.clone()
        }
    }

    /// Returns the index and the decision of the governing limit, which a response describes. Returns `None` if all
    /// limits are in shadow mode.
    ///
    /// The governing limit of a denied call is the first limit that denies it for the wait of the whole call. Otherwise
    /// it is the limit that the fewest further calls would exhaust. `limits` describes the limits in the order of their
    /// decisions: limits in shadow mode are skipped, and the cost of a limit takes precedence over `cost`.
    #[must_use]
    pub fn governing(&self, limits: &[Limit], cost: Amount) -> Option<(usize, LimitDecision)> {
        let enforced = || {
            let decisions = self.limit_decisions.iter().copied().enumerate();
            decisions.filter(|(index, _)| limits.get(*index).is_none_or(|limit| !limit.shadow))
        };
        let denies = |decision: &LimitDecision| !decision.allowed && decision.wait_ms == self.wait_ms;
        if !self.allowed
            && let Some(governing) = enforced().find(|(_, decision)| denies(decision))
        {
            return Some(governing);
        }
        let cost_of = |index: usize| {
            let cost = limits.get(index).and_then(|limit| limit.cost).unwrap_or(cost);
            if cost == Amount::ZERO { 1 } else { i128::from(cost.millionths()) }
        };
        enforced().min_by(|(i, a), (j, b)| {
            // remaining / cost, compared without division.
            let (a, b) = (i128::from(a.remaining) * cost_of(*j), i128::from(b.remaining) * cost_of(*i));
            a.cmp(&b)
        })
    }
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The server decided.
    Decided(CallDecision),
    /// No policy of the rule exists.
    Unmatched,
    /// The leases of the idempotency key have ended.
    Released,
    /// The gateway remembered that the server denies the call.
    Remembered(CallDecision),
    /// The server replied with this error.
    Refused(String),
    /// The server replied that the gateway's user lacks a permission, with this error.
    Forbidden(String),
    /// The server did not reply, for this reason.
    Lost(String),
    /// The gateway decided by its local limits, because the server did not. If the server replied with an error, the
    /// second field is that reply.
    Local(CallDecision, Option<Box<Reply>>),
}

impl Reply {
    /// Returns `true` if neither the server nor the gateway decided.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        matches!(self, Reply::Lost(_) | Reply::Refused(_) | Reply::Forbidden(_))
    }

    /// Returns `true` if the key has no room for another idempotency key.
    #[must_use]
    pub fn lacks_room_for_id(&self) -> bool {
        matches!(self, Reply::Refused(error) if error.contains("ratelimit.max-ids"))
    }
}

impl Call {
    /// Returns `true` if the server may charge the call, so that it must be rolled back if the request is denied.
    #[must_use]
    pub fn may_charge(&self) -> bool {
        matches!(self.operation, Operation::Take(cost) if cost != Amount::ZERO)
    }

    /// Returns the charging mode of the call under these limits: `Always` if all enforced limits have FORCE, otherwise
    /// the mode of the rule.
    #[must_use]
    pub fn charging_mode_under(&self, limits: &[Limit]) -> ChargingMode {
        let mut enforced = limits.iter().filter(|limit| !limit.shadow).peekable();
        let is_forced = enforced.peek().is_some() && enforced.all(|limit| limit.is_forced);
        if is_forced { ChargingMode::Always } else { self.charge }
    }

    /// Returns the call that rolls back this call after a charge: by its idempotency key, if it has one.
    #[must_use]
    pub fn rollback(&self) -> Call {
        let operation = match (&self.operation, &self.id) {
            (Operation::Take(cost), None) => Operation::GiveBack(*cost),
            _ => Operation::Settle(Amount::ZERO),
        };
        Call { operation, ..self.clone() }
    }

    /// Returns the name of the command that carries out the call.
    #[must_use]
    pub fn command_name(&self) -> &'static str {
        match (&self.operation, &self.rule) {
            (Operation::Release, _) => "RL.RELEASE",
            (_, Rule::Policies(_)) => "RL.LIMIT",
            (_, Rule::Limits(_)) => "RL.TAKE",
        }
    }

    /// Returns the command that carries out the call.
    #[must_use]
    pub fn command(&self) -> Cmd {
        if self.operation == Operation::Release {
            let mut command = redis::cmd(self.command_name());
            command.arg(&self.key).arg(self.id.as_deref().unwrap_or_default());
            return command;
        }
        let mut command = match &self.rule {
            Rule::Policies(names) => {
                let name_bytes: usize = names.iter().map(|name| "OR".len() + name.len()).sum();
                // Enough for all arguments, so that the buffer does not grow.
                let mut command = Cmd::with_capacity(2 * names.len() + 8, self.key.len() + name_bytes + 64);
                command.arg(self.command_name()).arg(&self.key);
                add_policies(&mut command, names);
                command
            }
            Rule::Limits(_) => {
                let mut command = redis::cmd(self.command_name());
                command.arg(&self.key);
                command
            }
        };
        command.arg("EACH");
        match (&self.operation, &self.id) {
            (Operation::Settle(amount), id) => {
                command.arg("SETTLE").arg(id.as_deref().unwrap_or_default()).arg(amount.to_string());
            }
            (Operation::GiveBack(amount), _) => {
                command.arg("COST").arg(format!("-{amount}"));
            }
            (Operation::Take(cost), id) => {
                if *cost != Amount::ONE {
                    command.arg("COST").arg(cost.to_string());
                }
                if self.charge == ChargingMode::Always && *cost != Amount::ZERO {
                    command.arg("FORCE");
                }
                if let Some(id) = id {
                    command.arg("ONCE").arg(id).arg(&self.id_lifetime);
                }
            }
            (Operation::Force(cost), _) => {
                command.arg("COST").arg(cost.to_string());
                if *cost != Amount::ZERO {
                    command.arg("FORCE");
                }
            }
            (Operation::Release, _) => {}
        }
        if let Rule::Limits(words) = &self.rule {
            command.arg(words);
        }
        command
    }

    /// Returns a command that reports the decision on the call at `cost`, and charges nothing.
    #[must_use]
    pub fn peek_command(&self, cost: Amount) -> Cmd {
        let mut command = redis::cmd("RL.PEEK");
        command.arg(&self.key).arg("COST").arg(cost.to_string()).arg("EACH");
        match &self.rule {
            Rule::Policies(names) => add_policies(command.arg("POLICY"), names),
            Rule::Limits(words) => {
                command.arg(words);
            }
        }
        command
    }

    /// Parses the reply to the command of this call.
    #[must_use]
    pub fn parse_reply(&self, reply: Result<Value, RedisError>) -> Reply {
        match reply {
            Ok(_) if self.operation == Operation::Release => Reply::Released,
            Ok(value) => match parse_decision(&value) {
                Some(decision) => Reply::Decided(decision),
                None => Reply::Refused(format!("not a decision: {value:?}")),
            },
            Err(error) if error.code() == Some("NOPOLICY") => Reply::Unmatched,
            // The key stores no leases, so there is none to release.
            Err(error) if self.operation == Operation::Release && error.code() == Some("WRONGTYPE") => Reply::Released,
            Err(error) if error.code() == Some("NOPERM") => {
                Reply::Forbidden(error.detail().unwrap_or_default().to_owned())
            }
            Err(error) if is_error_reply(&error) => Reply::Refused(explain(&error)),
            Err(error) => Reply::Lost(explain(&error)),
        }
    }
}

/// Adds the names of policies, of which the first that exists applies.
fn add_policies(command: &mut Cmd, names: &[String]) {
    for (index, name) in names.iter().enumerate() {
        if index > 0 {
            command.arg("OR");
        }
        command.arg(name);
    }
}

/// Parses `[allowed, wait, [decision, ...], policy, version]`. Calls without a policy have neither policy nor version.
fn parse_decision(value: &Value) -> Option<CallDecision> {
    let Value::Array(parts) = value else { return None };
    let [allowed, wait, limits, policy_and_version @ ..] = parts.as_slice() else { return None };
    let Value::Array(limits) = limits else { return None };
    let limit_decisions = limits.iter().map(parse_limit_decision).collect::<Option<Vec<_>>>()?;
    let policy = policy_and_version.first().and_then(|name| redis::from_redis_value_ref::<Vec<u8>>(name).ok());
    Some(CallDecision {
        allowed: integer(allowed)? == 1,
        wait_ms: integer(wait)?,
        limit_decisions,
        policy: policy.map(|name| String::from_utf8_lossy(&name).into_owned()),
        version: policy_and_version.get(1).and_then(integer),
    })
}

/// Parses the decision of a limit: five integers, followed by the limit's name if it has one.
fn parse_limit_decision(value: &Value) -> Option<LimitDecision> {
    let Value::Array(fields) = value else { return None };
    let [allowed, limit, remaining, wait, reset, ..] = fields.as_slice() else { return None };
    Some(LimitDecision {
        allowed: integer(allowed)? == 1,
        limit: integer(limit)?,
        remaining: integer(remaining)?,
        wait_ms: integer(wait)?,
        reset_ms: integer(reset)?,
    })
}

fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
