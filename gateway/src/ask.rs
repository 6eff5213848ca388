//! One call to the server: what is asked of one key, as the words of a command, and what the reply says.

use crate::charge::Charge;
use crate::windows::Window;
use ratelimit_core::Amount;
use ratelimit_link::server_error::{explain, is_error_reply};
use redis::{Cmd, RedisError, Value};

/// By what a key is limited.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The first of these policies that there is on the server.
    Policies(Vec<String>),
    /// Limits that go with the call: the words of RL.TAKE.
    Limits(Vec<String>),
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// May this much be used? 0 looks.
    Take(Amount),
    /// This much was not used after all.
    GiveBack(Amount),
    /// The call of the same id turned out to cost this much.
    Settle(Amount),
    /// This much was used: it is charged even past the limit, and denies nothing. 0 looks.
    Charge(Amount),
    /// What the id holds is free again.
    Release,
}

/// A call on one key.
#[derive(Clone, Debug)]
pub struct Call {
    /// The key that is counted by.
    pub key: Vec<u8>,
    /// What limits it.
    pub rule: Rule,
    /// What is asked of it.
    pub verb: Verb,
    /// What the caller names the call by, so that it counts once.
    pub id: Option<Vec<u8>>,
    /// How long the key remembers the id, as the server takes durations.
    pub remembered: String,
    /// Charging mode.
    pub charge: Charge,
}

/// What one limit says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it lets the call pass.
    pub allowed: bool,
    /// How much may be used at once, in whole units.
    pub limit: i64,
    /// What is left of it.
    pub remaining: i64,
    /// Milliseconds until the call may pass, or for which it is to be held; -1: never.
    pub wait_ms: i64,
    /// Milliseconds until the limit is as good as never used.
    pub reset_ms: i64,
}

/// What the server decided of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the call passes.
    pub allowed: bool,
    /// The longest wait of those that deny; -1: never.
    pub wait_ms: i64,
    /// What each limit says, in the order of the rule.
    pub each: Vec<Decision>,
    /// The policy that ruled.
    pub policy: Option<String>,
    /// Version of that policy.
    pub version: Option<i64>,
}

impl Verdict {
    /// The limit that the answer is about: of those that deny one with the call's wait; else the one that would run
    /// out first under calls like this one. With it goes its place among all. `windows` says which limits are in the
    /// shadow and which have a cost of their own; `cost` is the call's.
    #[must_use]
    pub fn governing(&self, windows: &[Window], cost: Amount) -> Option<(usize, Decision)> {
        let ruling = || {
            let all = self.each.iter().copied().enumerate();
            all.filter(|(place, _)| windows.get(*place).is_none_or(|window| !window.shadow))
        };
        let denies = |decision: &Decision| !decision.allowed && decision.wait_ms == self.wait_ms;
        if !self.allowed
            && let Some(found) = ruling().find(|(_, decision)| denies(decision))
        {
            return Some(found);
        }
        let price = |place: usize| {
            let own = windows.get(place).and_then(|window| window.cost).unwrap_or(cost);
            if own == Amount::ZERO { 1 } else { i128::from(own.millionths()) }
        };
        ruling().min_by(|(one, a), (other, b)| {
            let (a, b) = (i128::from(a.remaining) * price(*other), i128::from(b.remaining) * price(*one));
            a.cmp(&b)
        })
    }
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It was decided.
    Decided(Verdict),
    /// None of its policies is there.
    Unmatched,
    /// Its id holds nothing any more.
    Released,
    /// The server refused to decide: its words.
    Refused(String),
    /// The server's user may not ask that: the server's words.
    Forbidden(String),
    /// No reply was received.
    Lost(String),
    /// The server did not decide, and this gateway did, by a share of each limit; the reply of a server that refused.
    Local(Verdict, Option<Box<Reply>>),
}

impl Reply {
    /// Whether the server has not decided, whatever the reason.
    #[must_use]
    pub fn is_undecided(&self) -> bool {
        matches!(self, Reply::Lost(_) | Reply::Refused(_) | Reply::Forbidden(_))
    }

    /// Whether the server refused a call for its id alone: the key remembers as many as it may.
    #[must_use]
    pub fn is_full_of_ids(&self) -> bool {
        matches!(self, Reply::Refused(why) if why.contains("ratelimit.max-ids"))
    }
}

impl Call {
    /// Whether it may use something up, so that it has to be undone if the request does not pass.
    #[must_use]
    pub fn charges(&self) -> bool {
        matches!(self.verb, Verb::Take(cost) if cost != Amount::ZERO)
    }

    /// Returns the charging mode under these limits of its policy: FORCE of the policy wins.
    #[must_use]
    pub fn charge_under(&self, windows: &[Window]) -> Charge {
        let mut enforced = windows.iter().filter(|window| !window.shadow).peekable();
        let is_forced = enforced.peek().is_some() && enforced.all(|window| window.forced);
        if is_forced { Charge::Always } else { self.charge }
    }

    /// The call that undoes this one, which was charged: by its id, if it has one.
    #[must_use]
    pub fn undone(&self) -> Call {
        let verb = match (&self.verb, &self.id) {
            (Verb::Take(cost), None) => Verb::GiveBack(*cost),
            _ => Verb::Settle(Amount::ZERO),
        };
        Call { verb, ..self.clone() }
    }

    /// As a command of the server.
    #[must_use]
    pub fn command(&self) -> Cmd {
        if self.verb == Verb::Release {
            let mut command = redis::cmd("RL.RELEASE");
            command.arg(&self.key).arg(self.id.as_deref().unwrap_or_default());
            return command;
        }
        let mut command = match &self.rule {
            Rule::Policies(names) => {
                let lengths: usize = names.iter().map(|name| "OR".len() + name.len()).sum();
                // Room for all that follows, so that no allocation is made twice.
                let mut command = Cmd::with_capacity(2 * names.len() + 8, self.key.len() + lengths + 64);
                command.arg("RL.LIMIT").arg(&self.key);
                for (place, name) in names.iter().enumerate() {
                    if place > 0 {
                        command.arg("OR");
                    }
                    command.arg(name);
                }
                command
            }
            Rule::Limits(_) => {
                let mut command = redis::cmd("RL.TAKE");
                command.arg(&self.key);
                command
            }
        };
        command.arg("EACH");
        match (&self.verb, &self.id) {
            (Verb::Settle(amount), id) => {
                command.arg("SETTLE").arg(id.as_deref().unwrap_or_default()).arg(amount.to_string());
            }
            (Verb::GiveBack(amount), _) => {
                command.arg("COST").arg(format!("-{amount}"));
            }
            (Verb::Take(cost), id) => {
                if *cost != Amount::ONE {
                    command.arg("COST").arg(cost.to_string());
                }
                if self.charge == Charge::Always && *cost != Amount::ZERO {
                    command.arg("FORCE");
                }
                if let Some(id) = id {
                    command.arg("ONCE").arg(id).arg(&self.remembered);
                }
            }
            (Verb::Charge(cost), _) => {
                command.arg("COST").arg(cost.to_string());
                if *cost != Amount::ZERO {
                    command.arg("FORCE");
                }
            }
            (Verb::Release, _) => {}
        }
        if let Rule::Limits(words) = &self.rule {
            command.arg(words);
        }
        command
    }

    /// What a reply to its command says.
    #[must_use]
    pub fn reply(&self, reply: Result<Value, RedisError>) -> Reply {
        match reply {
            Ok(_) if self.verb == Verb::Release => Reply::Released,
            Ok(value) => match verdict(&value) {
                Some(verdict) => Reply::Decided(verdict),
                None => Reply::Refused(format!("not a decision: {value:?}")),
            },
            Err(error) if error.code() == Some("NOPOLICY") => Reply::Unmatched,
            // A key that holds no leases, so none of this id either.
            Err(error) if self.verb == Verb::Release && error.code() == Some("WRONGTYPE") => Reply::Released,
            Err(error) if error.code() == Some("NOPERM") => {
                Reply::Forbidden(error.detail().unwrap_or_default().to_owned())
            }
            Err(error) if is_error_reply(&error) => Reply::Refused(explain(&error)),
            Err(error) => Reply::Lost(explain(&error)),
        }
    }
}

/// Reads `[allowed, wait, [decision, ...], name, version]`: name and version of calls by policy alone.
fn verdict(value: &Value) -> Option<Verdict> {
    let Value::Array(parts) = value else { return None };
    let [allowed, wait, each, rest @ ..] = parts.as_slice() else { return None };
    let Value::Array(each) = each else { return None };
    let each = each.iter().map(decision).collect::<Option<Vec<_>>>()?;
    let policy = rest.first().and_then(|name| redis::from_redis_value_ref::<Vec<u8>>(name).ok());
    Some(Verdict {
        allowed: integer(allowed)? == 1,
        wait_ms: integer(wait)?,
        each,
        policy: policy.map(|name| String::from_utf8_lossy(&name).into_owned()),
        version: rest.get(1).and_then(integer),
    })
}

/// Five integers, and perhaps a name behind them.
fn decision(value: &Value) -> Option<Decision> {
    let Value::Array(fields) = value else { return None };
    let [allowed, limit, remaining, wait, reset, ..] = fields.as_slice() else { return None };
    Some(Decision {
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
