//! Errors of calls. [`Display`](fmt::Display) prints the text on the wire.
//!
//! An error carries facts: the argument, its valid range and the word that was found. Suggestions for a misspelled word
//! are computed only when the error is created. Successful calls run none of this code and allocate no memory for it.

mod found_word;
mod reason;

pub use found_word::{FoundWord, Hint, Position};
pub use reason::{Expected, Needed, Reason, Suggestion};
use std::fmt;

/// Error of a call. A call that fails writes nothing, except RL.EFFECT if another module changes a key meanwhile.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::KeyRequest;
///
/// let words: [&[u8]; 4] = [b"RL.TAKE", b"SLIDING", b"5", b"1min"];
/// let refused = KeyRequest::take(&mut Args::new(&words), None).unwrap_err();
/// let text = "ERR window must be a duration such as 60s, not '1min' (units: us ms s m h d)";
/// assert_eq!(refused.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Wrong number of words. The reply is the server's own text (`RedisModule_WrongArity`).
    WrongArity,
    /// A word of a spec or an option is missing.
    Missing {
        /// Name of the argument in the syntax.
        argument: &'static str,
        /// Syntax that contains the argument.
        syntax: &'static Syntax,
    },
    /// An argument is malformed or out of range.
    OutOfRange {
        /// Name of the argument in the syntax.
        argument: &'static str,
        /// Valid values.
        must_be: &'static MustBe,
        /// Word that was found.
        found: Box<FoundWord>,
    },
    /// A word is not allowed at its position.
    Unexpected {
        /// Word in quotes, truncated and escaped.
        shown: String,
        /// Reason why it is not allowed.
        reason: Box<Reason>,
    },
    /// Two limits of a key have the same identity. Contains both as text.
    SameIdentity(Box<[String; 2]>),
    /// A call on several keys has fewer specs than keys.
    TooFewSpecs {
        /// Number of keys, according to numkeys.
        keys: usize,
        /// Number of specs.
        specs: usize,
    },
    /// The key holds another type.
    WrongType {
        /// Type of the key.
        holds: &'static str,
        /// Type that the call needs.
        needs: &'static str,
    },
    /// The call would create a key, and the server is out of memory.
    OutOfMemory,
    /// The call would add an entry to a key that has the maximum number of entries.
    TooManyEntries {
        /// Maximum number of entries.
        max: usize,
        /// Name of the setting for the maximum, without `ratelimit.`.
        setting: &'static str,
    },
    /// The call would add a component to a key that has the maximum number of components.
    TooManyComponents {
        /// Maximum number of components.
        max: usize,
    },
    /// The policies of the call do not exist. Contains their names as text.
    NoPolicy(String),
    /// The caller lost the permission to take the lease while it waited.
    NoPermission,
    /// The server redirects the client or asks it to retry. Contains the text of the server with its error code.
    Redirected(String),
    /// The policy has a CONCURRENCY limit, and the call has no id.
    NoHolder,
    /// The policy has a SKETCH limit, and the call names no item.
    NoItem,
    /// RL.DELAY replies one integer, which is not enough for this option or algorithm.
    LongerReply(&'static str),
    /// The server is not configured to keep policies.
    PoliciesOff,
    /// The policy was set by a later version of the module, and this version cannot parse it.
    UnreadablePolicy,
    /// The policy has another version than the call names.
    OtherVersion {
        /// Name of the policy as text.
        name: String,
        /// Current version.
        current: u64,
        /// Version that the call names.
        expected: u64,
    },
    /// The call would exceed the maximum number of policies.
    TooManyPolicies {
        /// Maximum number of policies.
        max: usize,
    },
    /// The policy has the latest possible stamp, so that it cannot be changed.
    NoLaterStamp,
    /// The stamp in a record is more than a day ahead of this server's clock.
    StampAhead,
    /// Effect that no command can have caused.
    InvalidEffect,
    /// Panic in the module.
    Internal,
}

/// Valid values of an argument, with an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MustBe {
    /// Text after "must be".
    pub what: &'static str,
    /// Range of valid values, appended to `what`. Printed if the word has the right form but is out of range.
    pub range: &'static str,
    /// Valid value.
    pub example: &'static str,
    /// Form in which the value is written.
    pub form: Form,
}

/// Form of an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Number.
    Number,
    /// Number with a unit of time.
    Duration,
    /// Neither a number nor a duration.
    Other,
}

impl MustBe {
    /// Creates a description of a number in a range.
    #[must_use]
    pub const fn number(what: &'static str, range: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range, example, form: Form::Number }
    }

    /// Creates a description of a duration in a range.
    #[must_use]
    pub const fn duration(what: &'static str, range: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range, example, form: Form::Duration }
    }

    /// Creates a description of an argument that is neither a number nor a duration.
    #[must_use]
    pub const fn other(what: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range: "", example, form: Form::Other }
    }
}

/// Word with its arguments, as in the documented syntax.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// Option, algorithm or command.
    pub word: &'static str,
    /// Arguments that follow it.
    pub arguments: &'static str,
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word, self.arguments)
    }
}

/// Valid values of numkeys.
pub const NUMKEYS: MustBe = MustBe::other("the number of keys and of specs", "2 for two of each");

/// Maximum length of a quoted word, in characters. An unprintable byte takes up to four.
const MAX_SHOWN: usize = 32;
/// Maximum length of a policy's name in an error, which the client may need in full.
const MAX_SHOWN_NAME: usize = 256;

impl Error {
    /// Creates the error for an invalid argument, by its name in the syntax and the word that was found.
    #[cold]
    #[must_use]
    pub fn out_of_range(argument: &'static str, must_be: &'static MustBe, word: &[u8]) -> Error {
        Error::OutOfRange { argument, must_be, found: Box::new(FoundWord::describe(word, must_be, None)) }
    }

    /// Creates the error for an invalid argument whose position is known.
    #[cold]
    #[must_use]
    pub fn out_of_range_at(argument: &'static str, must_be: &'static MustBe, word: &[u8], position: Position) -> Error {
        Error::OutOfRange { argument, must_be, found: Box::new(FoundWord::describe(word, must_be, Some(position))) }
    }

    /// Creates the error for an invalid argument with a known hint.
    #[cold]
    #[must_use]
    pub fn hinted(argument: &'static str, must_be: &'static MustBe, word: &[u8], hint: Hint) -> Error {
        Error::OutOfRange {
            argument,
            must_be,
            found: Box::new(FoundWord { shown: quoted(word, MAX_SHOWN), has_form: true, hint }),
        }
    }

    /// Creates the error for an unexpected word, which may contain any bytes.
    #[cold]
    #[must_use]
    pub fn unexpected(word: &[u8], reason: Reason) -> Error {
        Error::Unexpected { shown: quoted(word, MAX_SHOWN), reason: Box::new(reason) }
    }

    /// Creates the error for policies that do not exist.
    #[cold]
    #[must_use]
    pub fn no_policy<'a>(names: impl Iterator<Item = &'a [u8]>) -> Error {
        let names: Vec<String> = names.map(|name| quoted(name, MAX_SHOWN_NAME)).collect();
        Error::NoPolicy(one_of(&names))
    }

    /// Creates the error for a policy that has another version than expected.
    #[cold]
    #[must_use]
    pub fn other_version(name: &[u8], current: u64, expected: u64) -> Error {
        Error::OtherVersion { name: quoted(name, MAX_SHOWN_NAME), current, expected }
    }
}

/// Quotes and escapes bytes, truncated to `max` characters.
fn quoted(word: &[u8], max: usize) -> String {
    let mut shown = String::new();
    for byte in word {
        let escaped = byte.escape_ascii();
        if shown.len().saturating_add(escaped.len()) > max {
            return format!("'{shown}...'");
        }
        shown.extend(escaped.map(char::from));
    }
    format!("'{shown}'")
}

/// Joins names to a list of choices: `A, B or C`.
#[must_use]
pub fn one_of<N: AsRef<str>>(names: &[N]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::WrongArity => f.write_str("ERR wrong number of arguments"),
            Error::Missing { argument, syntax } => write!(f, "ERR {argument} is missing: {syntax}"),
            Error::OutOfRange { argument, must_be: MustBe { what, range, example, .. }, found } => {
                let (range, comma) = if found.has_form { (*range, ",") } else { ("", "") };
                write!(f, "ERR {argument} must be {what}{range}{comma} such as {example}{found}")
            }
            Error::Unexpected { shown, reason } => write!(f, "ERR syntax error, unexpected {shown}{reason}"),
            Error::SameIdentity(limits) => {
                let [one, other] = &**limits;
                write!(
                    f,
                    "ERR specs of one kind must have different windows or different names, such as \
                     FIXED 10 1m AS burst, not {one} and {other}"
                )
            }
            Error::TooFewSpecs { keys, specs } => {
                let MustBe { what, example, .. } = NUMKEYS;
                write!(f, "ERR numkeys must be {what}, such as {example} (there are specs for {specs} of {keys} keys)")
            }
            Error::WrongType { holds, needs } => {
                write!(f, "WRONGTYPE Operation against a key holding {holds}, where {needs} is needed")
            }
            Error::OutOfMemory => f.write_str("OOM command not allowed when used memory > 'maxmemory'."),
            Error::TooManyEntries { max, setting } => {
                write!(f, "ERR the key has {max} entries, as many as ratelimit.{setting} allows")
            }
            Error::NoPermission => f.write_str(
                "NOPERM this user has lost the permission to run RL.ACQUIRE on this key while the call waited",
            ),
            Error::Redirected(text) => f.write_str(text),
            Error::TooManyComponents { max } => {
                write!(f, "ERR the key has {max} limits, as many as one key may have")
            }
            Error::NoPolicy(names) => write!(f, "NOPOLICY no policy {names}"),
            Error::NoHolder => f.write_str(
                "ERR the policy has a CONCURRENCY limit: the call needs ONCE id ttl, and the id is the holder",
            ),
            Error::NoItem => f.write_str("ERR the policy has a SKETCH: the call needs ITEM item"),
            Error::LongerReply(why) => {
                write!(f, "ERR RL.DELAY replies one integer, which is not enough for {why}: use RL.LIMIT")
            }
            Error::PoliciesOff => f.write_str(
                "ERR this server keeps policies only if the module is loaded with 'policies yes' (Redis 7.2 and \
                 later and Valkey need no setting)",
            ),
            Error::UnreadablePolicy => f.write_str("ERR the policy was set by a later version of module ratelimit"),
            Error::OtherVersion { name, current, expected } => {
                write!(f, "ERR policy {name} has version {current}, not {expected}")
            }
            Error::TooManyPolicies { max } => {
                write!(f, "ERR there are {max} policies, as many as ratelimit.max-policies allows")
            }
            Error::NoLaterStamp => f.write_str("ERR the policy already has the highest possible version"),
            Error::StampAhead => {
                f.write_str("ERR the version of the policy is more than a day ahead of this server's clock")
            }
            Error::InvalidEffect => f.write_str("ERR invalid effect"),
            Error::Internal => f.write_str("ERR internal error in module ratelimit"),
        }
    }
}

#[cfg(test)]
mod tests;
