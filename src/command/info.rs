//! `RL.INFO`: what a key remembers, for people.

use crate::args::Args;
use crate::error::Error;
use crate::limiter::{Amount, Fact, Span, Timestamp};
use crate::module::KINDS;
use crate::redis::Redis;

/// `RL.INFO key`
pub fn info(redis: &Redis, mut args: Args) -> Result<(), Error> {
    let (key, _) = args.key()?;
    args.end()?;
    let mut wrong_type = Ok(());
    for row in &KINDS {
        match (row.describe)(redis, key) {
            Ok(None) => {
                redis.reply_null();
                return Ok(());
            }
            Ok(Some(facts)) => {
                redis.reply_map(facts.len().saturating_add(1));
                redis.reply_bytes(b"kind");
                redis.reply_bytes(row.kind.name().as_bytes());
                for (name, fact) in facts {
                    redis.reply_bytes(name.as_bytes());
                    reply(redis, fact);
                }
                return Ok(());
            }
            Err(Error::WrongType { holds, .. }) => wrong_type = Err(Error::WrongType { holds, needs: "a limiter" }),
            Err(other) => return Err(other),
        }
    }
    wrong_type
}

fn reply(redis: &Redis, fact: Fact) {
    match fact {
        Fact::Amount(amount) => redis.reply_bytes(decimal(amount).as_bytes()),
        Fact::Instant(instant) => reply_instant(redis, instant),
        Fact::Span(span) => redis.reply_bytes(duration(span).as_bytes()),
        Fact::Count(count) => redis.reply_integer(i64::try_from(count).unwrap_or(i64::MAX)),
        Fact::Word(word) => redis.reply_bytes(word.as_bytes()),
        Fact::Leases(leases) => {
            redis.reply_array(leases.len());
            for (holder, units, lapse) in leases {
                redis.reply_array(3);
                redis.reply_bytes(&holder);
                redis.reply_bytes(decimal(units).as_bytes());
                reply_instant(redis, lapse);
            }
        }
    }
}

/// Milliseconds since the epoch, as PEXPIRETIME has them.
fn reply_instant(redis: &Redis, instant: Timestamp) {
    redis.reply_integer(i64::try_from(instant.floor_millis()).unwrap_or(i64::MAX));
}

/// An amount as an argument would say it: `1`, `0.5`.
fn decimal(amount: Amount) -> String {
    let text = format!("{}.{:06}", amount.whole_units(), amount.minus(amount.floor()).millionths());
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A duration as an argument would say it, in the largest unit that divides it: `60s`, `1500ms`.
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
    fn says_amounts_and_durations_as_arguments() {
        for (millionths, text) in [(0, "0"), (1, "0.000001"), (500_000, "0.5"), (1_000_000, "1"), (100_000_000, "100")]
        {
            assert_eq!(decimal(Amount::saturating(millionths)), text);
        }
        for (micros, text) in [(60_000_000, "60s"), (1_500_000, "1500ms"), (1_500_001, "1500001us"), (1_000, "1ms")] {
            assert_eq!(duration(Span::from_micros(micros)), text);
        }
    }
}
