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
    pub fn parse(args: &mut Args) -> Result<Query, Error> {
        let (mut count, mut minutes, mut reset) = (None, None, false);
        loop {
            let before = *args;
            let is_duplicate = if args.accept("COUNT") {
                let parse = |word| {
                    usize::try_from(whole(word, u64::MAX)?).ok().filter(|count| (1..=MAX_ENTRIES).contains(count))
                };
                count.replace(args.option_value("count", &COUNT_SYNTAX, &COUNT, parse)?).is_some()
            } else if args.accept("SINCE") {
                let parse = |word| Period::parse(word).and_then(whole_minutes);
                minutes.replace(args.option_value("since", &SINCE_SYNTAX, &SINCE, parse)?).is_some()
            } else if args.accept("RESET") {
                std::mem::replace(&mut reset, true)
            } else {
                break;
            };
            if is_duplicate {
                return Err(before.unexpected(Reason::Duplicate));
            }
        }
        if let Some(word) = args.peek() {
            let needed = Needed::instead_of(word, Expected::Word, vec!["COUNT", "SINCE", "RESET"], Vec::new());
            return Err(Error::unexpected(word, Reason::Needed(needed)));
        }
        Ok(Query { count: count.unwrap_or(10), minutes, reset })
    }
}

#[cfg(test)]
mod tests;
