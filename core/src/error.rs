//! Everything that a call can be refused for; `Display` is the text on the wire.

use std::fmt;

/// Why a call was refused. Nothing was written.
///
/// ```
/// use ratelimit_core::args::Args;
/// use ratelimit_core::spec::Asked;
///
/// let words: [&[u8]; 4] = [b"RL.TAKE", b"SLIDING", b"5", b"1min"];
/// let refused = Asked::take(&mut Args::new(&words)).unwrap_err();
/// assert_eq!(refused.to_string(), "ERR window must be a duration from 1us to 3650d, such as 60s");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// Too few words; the server has its own text for that.
    WrongArity,
    /// An argument is not what it must be.
    OutOfRange {
        /// Its name in the syntax line.
        argument: &'static str,
        /// What it must be.
        must_be: MustBe,
    },
    /// A word that the grammar has no place for, cut and escaped in quotes; what is needed there may follow.
    Unexpected(String),
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
    /// The call would add a part to a key that has as many as it may have.
    TooManyParts {
        /// How many it may have.
        most: usize,
    },
    /// None of the policies that the call asks for is there: their names, as they are shown.
    NoPolicy(String),
    /// The client is to ask elsewhere, or again: a server's own words, with their code.
    Redirected(String),
    /// A policy has leases, and the call that asks for one has no id.
    NoHolder,
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
    /// A value that would have passed.
    pub example: &'static str,
}

/// What numkeys must be.
pub const NUMKEYS: MustBe = MustBe { what: "the number of keys and of specs", example: "2 for two of each" };

/// How much of an unexpected word is shown, in characters: what is no printable byte takes up to four.
const SHOWN: usize = 32;
/// Likewise of a policy's name, which a client may want to set.
const SHOWN_OF_NAME: usize = 256;

impl Error {
    /// The refusal of an argument by the name that it has in the syntax line.
    #[must_use]
    pub fn out_of_range(argument: &'static str, must_be: MustBe) -> Error {
        Error::OutOfRange { argument, must_be }
    }

    /// The refusal of `word`, whatever bytes it is made of.
    #[must_use]
    pub fn unexpected(word: &[u8]) -> Error {
        Error::unexpected_where(word, "")
    }

    /// The same; `place`, which reads on from the word, says what the grammar has there.
    #[cold]
    #[must_use]
    pub fn unexpected_where(word: &[u8], place: &str) -> Error {
        Error::Unexpected(format!("{}{place}", quoted(word, SHOWN)))
    }

    /// The refusal of a call that asks for these policies.
    #[cold]
    #[must_use]
    pub fn no_policy<'a>(names: impl Iterator<Item = &'a [u8]>) -> Error {
        let names: Vec<String> = names.map(|name| quoted(name, SHOWN_OF_NAME)).collect();
        Error::NoPolicy(one_of(&names.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// The refusal to set a policy over a version that does not stand.
    #[cold]
    #[must_use]
    pub fn other_version(name: &[u8], stands: u64, named: u64) -> Error {
        Error::OtherVersion { name: quoted(name, SHOWN_OF_NAME), stands, named }
    }
}

/// Bytes in quotes, escaped, and cut to so many characters.
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
pub fn one_of(names: &[&str]) -> String {
    match names {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::WrongArity => f.write_str("ERR wrong number of arguments"),
            Error::OutOfRange { argument, must_be: MustBe { what, example } } => {
                write!(f, "ERR {argument} must be {what}, such as {example}")
            }
            Error::Unexpected(word) => write!(f, "ERR syntax error, unexpected {word}"),
            Error::TooFewSpecs { keys, specs } => {
                let numkeys = Error::out_of_range("numkeys", NUMKEYS);
                write!(f, "{numkeys} (there are specs for {specs} of {keys} keys)")
            }
            Error::WrongType { holds, needs } => {
                write!(f, "WRONGTYPE Operation against a key holding {holds}, where {needs} is needed")
            }
            Error::OutOfMemory => f.write_str("OOM command not allowed when used memory > 'maxmemory'."),
            Error::TooManyEntries { most, setting } => {
                write!(f, "ERR the key has {most} entries, as many as ratelimit.{setting} allows")
            }
            Error::Redirected(text) => f.write_str(text),
            Error::TooManyParts { most } => {
                write!(f, "ERR the key has {most} limits, as many as one key may have")
            }
            Error::NoPolicy(names) => write!(f, "NOPOLICY no policy {names}"),
            Error::NoHolder => f.write_str(
                "ERR the policy has a CONCURRENCY limit, whose holder is the call's id: the call needs ONCE id ttl",
            ),
            Error::MoreToTell(why) => write!(f, "ERR RL.DELAY tells only when to go, and {why} more: use RL.LIMIT"),
            Error::PoliciesOff => f.write_str(
                "ERR this server keeps policies only if the module is loaded with 'policies yes' (Redis 7.2 and \
                 later and Valkey need no setting)",
            ),
            Error::UnreadablePolicy => f.write_str("ERR the policy was set by a later version of module ratelimit"),
            Error::OtherVersion { name, stands, named } => {
                write!(f, "ERR policy {name} stands at version {stands}, not {named}")
            }
            Error::TooManyPolicies { most } => {
                write!(f, "ERR there are {most} policies, as many as ratelimit.max-policies allows")
            }
            Error::NoLaterStamp => f.write_str("ERR there is no time stamp later than the last one seen"),
            Error::InvalidEffect => f.write_str("ERR invalid effect"),
            Error::Internal => f.write_str("ERR internal error in module ratelimit"),
        }
    }
}

#[cfg(test)]
mod tests;
