//! Everything that a call can be refused for; `Display` is the text on the wire.
//!
//! A refusal carries facts: which argument it is about, what that must be, the word that was read. What a word was
//! perhaps meant to be is found out once it is refused. Nothing here is run, or takes memory, for a call that is not.

mod read;
mod reason;

pub use read::{Hint, Position, Read};
pub use reason::{Meant, Needed, Reason, What};
use std::fmt;

/// Why a call was refused. Nothing was written.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::syntax::KeyRequest;
///
/// let words: [&[u8]; 4] = [b"RL.TAKE", b"SLIDING", b"5", b"1min"];
/// let refused = KeyRequest::take(&mut Args::new(&words)).unwrap_err();
/// let text = "ERR window must be a duration such as 60s, not '1min' (units: us ms s m h d)";
/// assert_eq!(refused.to_string(), text);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few words; the server has its own text for that.
    WrongArity,
    /// A word is missing that the server does not count: of a spec or an option.
    Missing {
        /// Its name in the syntax line.
        argument: &'static str,
        /// The words that it is one of.
        syntax: &'static Syntax,
    },
    /// An argument is not what it must be.
    OutOfRange {
        /// Its name in the syntax line.
        argument: &'static str,
        /// What it must be.
        must_be: &'static MustBe,
        /// What it is.
        read: Box<Read>,
    },
    /// A word that the grammar has no place for.
    Unexpected {
        /// In quotes, cut and escaped.
        shown: String,
        /// Why there is no place for it.
        reason: Box<Reason>,
    },
    /// Two limits of one kind on a key cannot be told apart: as they display.
    SameWindow(Box<[String; 2]>),
    /// A call on several keys has specs for some of them only.
    TooFewSpecs {
        /// How many keys it has, by its numkeys.
        keys: usize,
        /// How many specs.
        specs: usize,
    },
    /// The key holds something else.
    WrongType {
        /// What it holds.
        holds: &'static str,
        /// The kind of limiter that the call is for.
        needs: &'static str,
    },
    /// The call would make a key, and the server is out of memory.
    OutOfMemory,
    /// The call would add an entry to a key that has as many as it may have.
    TooManyEntries {
        /// How many it may have.
        most: usize,
        /// The setting that says so, without `ratelimit.`.
        setting: &'static str,
    },
    /// The call would add a component to a key that has as many as it may have.
    TooManyComponents {
        /// How many it may have.
        most: usize,
    },
    /// None of the policies that the call asks for is there: their names, as they are shown.
    NoPolicy(String),
    /// The caller waited for a lease, and may not have it any more when its turn has come.
    NoPermission,
    /// The client is to ask elsewhere, or again: a server's own words, with their code.
    Redirected(String),
    /// A policy has leases, and the call that asks for one has no id.
    NoHolder,
    /// A policy has a sketch, and the call that asks for it names no item.
    NoItem,
    /// RL.DELAY has one integer, and an admitted call would have more to tell: because of this.
    MoreToTell(&'static str),
    /// This server would lose policies, and was not told to keep them.
    PoliciesOff,
    /// A policy was set by a later version of the module, whose words this one does not know.
    UnreadablePolicy,
    /// A policy is to be set over another version than the one that stands.
    OtherVersion {
        /// Its name, as it is shown.
        name: String,
        /// The version that stands.
        stands: u64,
        /// The one that was named.
        named: u64,
    },
    /// There would be one policy more than there may be.
    TooManyPolicies {
        /// How many there may be.
        most: usize,
    },
    /// A policy's stamp is the last one that there is, so that it cannot be changed.
    NoLaterStamp,
    /// A record of a policy has a stamp that is further ahead of this server's clock than a day.
    StampAhead,
    /// An effect that no command can have caused.
    InvalidEffect,
    /// A panic of ours.
    Internal,
}

/// What an argument must be, and an example of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MustBe {
    /// Reads on from "must be".
    pub what: &'static str,
    /// Reads on from that: which of them. Said of what is one, but none of these.
    pub range: &'static str,
    /// A value that would have passed.
    pub example: &'static str,
    /// How it is written.
    pub form: Form,
}

/// How an argument is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A number and a unit of time.
    Duration,
    /// In another way.
    Other,
}

impl MustBe {
    /// A number in a range.
    #[must_use]
    pub const fn number(what: &'static str, range: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range, example, form: Form::Number }
    }

    /// A duration in a range.
    #[must_use]
    pub const fn duration(what: &'static str, range: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range, example, form: Form::Duration }
    }

    /// Something else.
    #[must_use]
    pub const fn other(what: &'static str, example: &'static str) -> MustBe {
        MustBe { what, range: "", example, form: Form::Other }
    }
}

/// A word and what stands behind it, as a syntax line has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syntax {
    /// An option, an algorithm or a command.
    pub word: &'static str,
    /// What stands behind it.
    pub arguments: &'static str,
}

impl fmt::Display for Syntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.word, self.arguments)
    }
}

/// What numkeys must be.
pub const NUMKEYS: MustBe = MustBe::other("the number of keys and of specs", "2 for two of each");

/// How much of a word is shown, in characters: what is no printable byte takes up to four.
const SHOWN: usize = 32;
/// How much is shown of a policy's name, which a client may want to set.
const SHOWN_OF_NAME: usize = 256;

impl Error {
    /// The refusal of an argument by the name that it has in the syntax line, and the word that it was.
    #[cold]
    #[must_use]
    pub fn out_of_range(argument: &'static str, must_be: &'static MustBe, word: &[u8]) -> Error {
        Error::OutOfRange { argument, must_be, read: Box::new(Read::of(word, must_be, None)) }
    }

    /// The refusal of an argument where it is known what stands around it.
    #[cold]
    #[must_use]
    pub fn out_of_place(argument: &'static str, must_be: &'static MustBe, word: &[u8], position: Position) -> Error {
        Error::OutOfRange { argument, must_be, read: Box::new(Read::of(word, must_be, Some(position))) }
    }

    /// The refusal of an argument of which it is known what is wrong.
    #[cold]
    #[must_use]
    pub fn hinted(argument: &'static str, must_be: &'static MustBe, word: &[u8], hint: Hint) -> Error {
        Error::OutOfRange { argument, must_be, read: Box::new(Read::hinted(word, true, hint)) }
    }

    /// The refusal of `word`, whatever bytes it is made of.
    #[cold]
    #[must_use]
    pub fn unexpected(word: &[u8], reason: Reason) -> Error {
        Error::Unexpected { shown: quoted(word, SHOWN), reason: Box::new(reason) }
    }

    /// The refusal of a word in whose place something else is needed.
    #[cold]
    #[must_use]
    pub fn needed(word: &[u8], needed: Needed) -> Error {
        Error::unexpected(word, Reason::Needed(needed))
    }

    /// The refusal of a call that lacks a word of an option or a spec.
    #[cold]
    #[must_use]
    pub fn missing(argument: &'static str, syntax: &'static Syntax) -> Error {
        Error::Missing { argument, syntax }
    }

    /// The refusal of a call that asks for these policies.
    #[cold]
    #[must_use]
    pub fn no_policy<'a>(names: impl Iterator<Item = &'a [u8]>) -> Error {
        let names: Vec<String> = names.map(|name| quoted(name, SHOWN_OF_NAME)).collect();
        Error::NoPolicy(one_of(&names))
    }

    /// The refusal to set a policy over a version that does not stand.
    #[cold]
    #[must_use]
    pub fn other_version(name: &[u8], stands: u64, named: u64) -> Error {
        Error::OtherVersion { name: quoted(name, SHOWN_OF_NAME), stands, named }
    }
}

/// Bytes in quotes, escaped, and cut to that number of characters.
fn quoted(word: &[u8], most: usize) -> String {
    let mut shown = String::new();
    for byte in word {
        let escaped = byte.escape_ascii();
        if shown.len().saturating_add(escaped.len()) > most {
            return format!("'{shown}...'");
        }
        shown.extend(escaped.map(char::from));
    }
    format!("'{shown}'")
}

/// Names to choose from: `A, B or C`.
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
            Error::OutOfRange { argument, must_be: MustBe { what, range, example, .. }, read } => {
                let (range, comma) = if read.in_form { (*range, ",") } else { ("", "") };
                write!(f, "ERR {argument} must be {what}{range}{comma} such as {example}{read}")
            }
            Error::Unexpected { shown, reason } => write!(f, "ERR syntax error, unexpected {shown}{reason}"),
            Error::SameWindow(limits) => {
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
            Error::TooManyEntries { most, setting } => {
                write!(f, "ERR the key has {most} entries, as many as ratelimit.{setting} allows")
            }
            Error::NoPermission => f.write_str(
                "NOPERM this user has lost the permission to run RL.ACQUIRE on this key while the call waited",
            ),
            Error::Redirected(text) => f.write_str(text),
            Error::TooManyComponents { most } => {
                write!(f, "ERR the key has {most} limits, as many as one key may have")
            }
            Error::NoPolicy(names) => write!(f, "NOPOLICY no policy {names}"),
            Error::NoHolder => f.write_str(
                "ERR the policy has a CONCURRENCY limit: the call needs ONCE id ttl, and the id is the holder",
            ),
            Error::NoItem => f.write_str("ERR the policy has a SKETCH: the call needs ITEM item"),
            Error::MoreToTell(why) => {
                write!(f, "ERR RL.DELAY replies one integer, which is not enough for {why}: use RL.LIMIT")
            }
            Error::PoliciesOff => f.write_str(
                "ERR this server keeps policies only if the module is loaded with 'policies yes' (Redis 7.2 and \
                 later and Valkey need no setting)",
            ),
            Error::UnreadablePolicy => f.write_str("ERR the policy was set by a later version of module ratelimit"),
            Error::OtherVersion { name, stands, named } => {
                write!(f, "ERR policy {name} has version {stands}, not {named}")
            }
            Error::TooManyPolicies { most } => {
                write!(f, "ERR there are {most} policies, as many as ratelimit.max-policies allows")
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
