//! Replies to calls. A reply is complete before any of it is sent. Only maps differ between RESP2 and RESP3. All
//! negative values in replies are created here.

use ratelimit_core::algorithm::leases::Token;
use ratelimit_core::policy::{EffectivePolicy, PolicyFacts};
use ratelimit_core::space_saving::HeavyHitter;
use ratelimit_core::{Amount, Decision, InfoField, Span, Timestamp, UsageKind, Verdict};

/// Reply to a call, other than an error.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Row of integers, such as a decision.
    Row(Row),
    /// 1 if all keys grant the call (else 0), the wait in milliseconds, then the decisions.
    Rows([i64; 2], Vec<Row>),
    /// Integer.
    Integer(i64),
    /// String of bytes.
    Bytes(Box<[u8]>),
    /// Array of replies.
    Array(Vec<Reply>),
    /// Rows of RL.TOP.
    Heaviest(Vec<HeavyRow>),
    /// Pairs of name and reply, in this order; a flat array in RESP2. The SDK would sort a map by name.
    Map(Vec<(&'static str, Reply)>),
    /// Null.
    Null,
    /// `OK`.
    Ok,
    /// No reply yet: the client waits.
    Later,
}

/// Row of RL.TOP.
#[derive(Clone, Debug)]
pub struct HeavyRow {
    /// Name of the key.
    pub key: Vec<u8>,
    /// Number of denials, and the maximum by which it is too large.
    pub counts: [i64; 2],
    /// Name of the policy, and item; `None` without one.
    pub names: [Option<Vec<u8>>; 2],
}

/// Row of up to six integers.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    integers: [i64; 6],
    length: usize,
}

impl Row {
    /// Returns the integers, in order.
    pub fn integers(&self) -> &[i64] {
        self.integers.get(..self.length).unwrap_or(&self.integers)
    }

    /// Creates `[allowed, limit, remaining, wait_ms, reset_ms]`, and with UPTO the units granted.
    pub fn decision(decision: &Decision) -> Row {
        let [allowed, limit, remaining, wait_ms, reset_ms] = Row::decision_integers(decision);
        let granted = integer(decision.granted.unwrap_or_default().whole_units());
        Row {
            integers: [allowed, limit, remaining, wait_ms, reset_ms, granted],
            length: if decision.granted.is_some() { 6 } else { 5 },
        }
    }

    /// Returns `[allowed, limit, remaining, wait_ms, reset_ms]`.
    #[inline(always)]
    pub fn decision_integers(decision: &Decision) -> [i64; 5] {
        [
            i64::from(decision.verdict.allowed()),
            integer(decision.limit.whole_units()),
            integer(decision.remaining.whole_units()),
            wait_ms(decision.verdict),
            millis(decision.reset),
        ]
    }
}

impl Reply {
    /// Creates `[allowed, limit, remaining, wait_ms, reset_ms]`, and with UPTO the units granted.
    pub fn decision(decision: &Decision) -> Reply {
        Reply::Row(Row::decision(decision))
    }

    /// Creates `[allowed, limit, remaining, wait_ms, reset_ms, token]`.
    pub fn fenced(decision: &Decision, token: u64) -> Reply {
        let [allowed, limit, remaining, wait_ms, reset_ms] = Row::decision_integers(decision);
        Reply::Row(Row { integers: [allowed, limit, remaining, wait_ms, reset_ms, integer(token)], length: 6 })
    }

    /// Creates `[allowed, wait_ms, [decision, ...]]`.
    pub fn decisions(allowed: bool, wait: Option<Verdict>, decisions: Vec<Row>) -> Reply {
        Reply::Rows([i64::from(allowed), wait.map_or(0, wait_ms)], decisions)
    }

    /// Creates `[allowed, wait_ms, [decision, ...]]` of limits that may have names, and the name and version of their
    /// policy. If a limit of the policy has FORCE, that word is last, because a denial may have been charged.
    pub fn each(verdict: Verdict, decisions: Vec<Reply>, policy: Option<&EffectivePolicy>) -> Reply {
        let allowed = Reply::Integer(i64::from(verdict.allowed()));
        let mut replies = vec![allowed, Reply::Integer(wait_ms(verdict)), Reply::Array(decisions)];
        if let Some(policy) = policy {
            replies.extend([Reply::Bytes((&*policy.name).into()), Reply::version(policy.version)]);
            replies.extend(policy.limits.has_force().then(|| Reply::text("FORCE")));
        }
        Reply::Array(replies)
    }

    /// Creates a decision, followed by the name of its limit.
    pub fn named(decision: Row, name: Option<&[u8]>) -> Reply {
        let Some(name) = name else { return Reply::Row(decision) };
        let integers = decision.integers().iter().copied().map(Reply::Integer);
        Reply::Array(integers.chain([Reply::Bytes(name.into())]).collect())
    }

    /// Creates the version of a policy.
    pub fn version(version: u64) -> Reply {
        Reply::Integer(integer(version))
    }

    /// Creates `[version, factor, milliseconds left or -1]`.
    pub fn scale(facts: &PolicyFacts) -> Reply {
        let factor = Reply::text(&facts.scale.to_string());
        Reply::Array(vec![Reply::version(facts.version), factor, Reply::Integer(scale_ms(facts))])
    }

    /// Creates `[name, version, specs, factor, milliseconds left or -1]`.
    pub fn listed_policy(facts: PolicyFacts) -> Reply {
        let (version, factor) = (Reply::version(facts.version), Reply::text(&facts.scale.to_string()));
        let scale_ms = Reply::Integer(scale_ms(&facts));
        Reply::Array(vec![Reply::Bytes(facts.name), version, Reply::Bytes(facts.specs), factor, scale_ms])
    }

    /// Creates the description of a policy.
    pub fn policy(facts: &PolicyFacts) -> Reply {
        let counts = facts.counts.all().map(|(name, count)| (name, Reply::Integer(integer(count))));
        Reply::Map(vec![
            ("version", Reply::version(facts.version)),
            ("set_at", Reply::Integer(integer(facts.set_at))),
            ("scale", Reply::text(&facts.scale.to_string())),
            ("scale_ms", Reply::Integer(scale_ms(facts))),
            ("specs", Reply::Bytes(facts.specs.clone())),
            ("counts", Reply::Map(counts.into())),
        ])
    }

    /// Creates 0 if the call is granted, else the milliseconds until it would be, or -1 if it never can be. Leaves out
    /// the hold of a granted call, because clients interpret a positive number as a denial.
    #[inline(always)]
    pub fn delay(verdict: Verdict) -> Reply {
        Reply::Integer(if verdict.allowed() { 0 } else { wait_ms(verdict) })
    }

    /// Creates the reply of redis-cell: `[limited, limit, remaining, retry_after_s, reset_after_s]`.
    pub fn throttled(decision: &Decision) -> Reply {
        let retry_after = match decision.verdict {
            Verdict::Allowed(_) | Verdict::Never => -1,
            Verdict::After(wait) => seconds(wait),
        };
        let integers = [
            i64::from(!decision.verdict.allowed()),
            integer(decision.limit.whole_units()),
            integer(decision.remaining.whole_units()),
            retry_after,
            seconds(decision.reset),
            0,
        ];
        Reply::Row(Row { integers, length: 5 })
    }

    /// Creates a duration in milliseconds, rounded up.
    pub fn millis(span: Span) -> Reply {
        Reply::Integer(millis(span))
    }

    /// Creates a count.
    pub fn count(count: usize) -> Reply {
        Reply::Integer(i64::try_from(count).unwrap_or(i64::MAX))
    }

    /// Creates `[[key, denied, error, policy, item], ...]`; `denied` is too large by at most `error`.
    pub fn heaviest(keys: &[HeavyHitter]) -> Reply {
        let row = |key: &HeavyHitter| HeavyRow {
            key: key.name.into(),
            counts: [key.denied, key.error].map(integer),
            names: [key.policy, key.item].map(|name| name.map(Into::into)),
        };
        Reply::Heaviest(keys.iter().map(row).collect())
    }

    /// Creates `[holder, cost, waited_ms, left_ms]` of a call that waits for a lease; `left_ms` is -1 if it waits
    /// without a timeout.
    pub fn waiter(holder: Box<[u8]>, cost: Amount, waited: Span, time_left: Option<Span>) -> Reply {
        Reply::Array(vec![
            Reply::Bytes(holder),
            Reply::text(&cost.to_string()),
            Reply::millis(waited),
            Reply::Integer(time_left.map_or(-1, millis)),
        ])
    }

    /// Creates the description of a key.
    pub fn facts(kind: UsageKind, facts: Vec<(&'static str, InfoField)>) -> Reply {
        let kind = ("kind", InfoField::Word(kind.name()));
        Reply::map_of(std::iter::once(kind).chain(facts).collect())
    }

    fn map_of(facts: Vec<(&'static str, InfoField)>) -> Reply {
        Reply::Map(facts.into_iter().map(|(name, fact)| (name, Reply::fact(fact))).collect())
    }

    fn fact(fact: InfoField) -> Reply {
        match fact {
            InfoField::Amount(amount) => Reply::text(&amount.to_string()),
            InfoField::Instant(instant) => Reply::instant(instant),
            InfoField::Span(span) => Reply::text(&duration(span)),
            InfoField::Count(count) => Reply::Integer(integer(count)),
            InfoField::Word(word) => Reply::text(word),
            InfoField::Leases(leases) => {
                let lease = |(holder, units, expires_at, token): (_, Amount, _, Option<Token>)| {
                    let mut lease =
                        vec![Reply::Bytes(holder), Reply::text(&units.to_string()), Reply::instant(expires_at)];
                    lease.extend(token.map(|token| Reply::Integer(integer(token.get()))));
                    Reply::Array(lease)
                };
                Reply::Array(leases.into_iter().map(lease).collect())
            }
            InfoField::Components(components) => Reply::Array(components.into_iter().map(Reply::map_of).collect()),
            InfoField::Name(name) => Reply::Bytes(name),
            InfoField::Text(text) => Reply::text(&text),
        }
    }

    /// Creates an instant in milliseconds since the epoch, like PEXPIRETIME.
    fn instant(instant: Timestamp) -> Reply {
        Reply::Integer(integer(instant.floor_millis()))
    }

    fn text(text: &str) -> Reply {
        Reply::Bytes(text.as_bytes().into())
    }
}

/// Returns the hold of a granted call or the wait of a denied one, in milliseconds; -1 for a call that never fits.
fn wait_ms(verdict: Verdict) -> i64 {
    match verdict {
        Verdict::Allowed(wait) | Verdict::After(wait) => millis(wait),
        Verdict::Never => -1,
    }
}

/// Returns the remaining milliseconds of the scale of a policy, or -1 if it does not end.
pub fn scale_ms(facts: &PolicyFacts) -> i64 {
    facts.scale_left.map_or(-1, millis)
}

fn seconds(span: Span) -> i64 {
    integer(span.micros().div_ceil(1_000_000))
}

fn millis(span: Span) -> i64 {
    integer(span.ceil_millis())
}

/// Converts an amount or a time. Both are at most 2^63-1, so no value is truncated.
fn integer(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Formats a duration as an argument, in seconds or, if necessary, a smaller unit: `60s`, `1500ms`. `Display` would use
/// units up to days, but RL.INFO has always used seconds.
fn duration(span: Span) -> String {
    const UNITS: [(u64, &str); 2] = [(1_000_000, "s"), (1_000, "ms")];
    let micros = span.micros();
    let whole = UNITS.into_iter().find(|(unit, _)| micros.is_multiple_of(*unit));
    let (count, unit) = whole.map_or((micros, "us"), |(unit, name)| (micros.checked_div(unit).unwrap_or(micros), name));
    format!("{count}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_arguments() {
        for (micros, text) in [(60_000_000, "60s"), (1_500_000, "1500ms"), (1_500_001, "1500001us"), (1_000, "1ms")] {
            assert_eq!(duration(Span::from_micros(micros)), text);
        }
    }
}
