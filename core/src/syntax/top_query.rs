//! Parser of RL.TOP.

use crate::number::Period;
use crate::space_saving::MAX_ENTRIES;
use crate::space_saving::minutes::whole_minutes;
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, Expected, MustBe, Needed, Reason, Syntax};

/// Parsed arguments of RL.TOP.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// Maximum number of keys to return.
    pub count: usize,
    /// Number of recent minutes whose denials count; `None` for all.
    pub minutes: Option<u64>,
    /// `true` if all denials are cleared after the reply (RESET).
    pub reset: bool,
}

const COUNT: MustBe = MustBe::number("a whole number", " from 1 to 65536", "10");
const SINCE: MustBe = MustBe::duration("a duration", " from 1m to 1h", "5m");
const SINCE_SYNTAX: Syntax = Syntax { word: "SINCE", arguments: "duration" };
const COUNT_SYNTAX: Syntax = Syntax { word: "COUNT", arguments: "count" };

impl Query {
    /// Parses `[COUNT count] [SINCE duration] [RESET]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn read(args: &mut Args) -> Result<Query, Error> {
        let (mut count, mut minutes, mut reset) = (None, None, false);
        loop {
            let before = *args;
            let twice = if args.accept("COUNT") {
                let word = args.argument("count", &COUNT_SYNTAX)?;
                let number = whole(word, u64::MAX).and_then(|number| usize::try_from(number).ok());
                let number = number.filter(|number| (1..=MAX_ENTRIES).contains(number));
                count.replace(number.ok_or_else(|| Error::out_of_range("count", &COUNT, word))?).is_some()
            } else if args.accept("SINCE") {
                let word = args.argument("since", &SINCE_SYNTAX)?;
                let time = Period::parse(word).and_then(whole_minutes);
                minutes.replace(time.ok_or_else(|| Error::out_of_range("since", &SINCE, word))?).is_some()
            } else if args.accept("RESET") {
                std::mem::replace(&mut reset, true)
            } else {
                break;
            };
            if twice {
                return Err(before.unexpected(Reason::Duplicate));
            }
        }
        if let Some(word) = args.peek() {
            let needed = Needed::instead_of(word, Expected::Word, vec!["COUNT", "SINCE", "RESET"], Vec::new());
            return Err(Error::needed(word, needed));
        }
        Ok(Query { count: count.unwrap_or(10), minutes, reset })
    }
}

#[cfg(test)]
mod tests;
