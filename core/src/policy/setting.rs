//! What an operator says beside a policy that is set or scaled: on which condition, by how much, for how long.

use super::entry::Scale;
use crate::number::{Amount, Period};
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Reason, Syntax};

/// What has to be so for a policy to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// There is none of that name (`NX`): else it stays as it is.
    IfMissing,
    /// It has that version (`VERSION n`).
    OverVersion(u64),
}

/// By how much to scale a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// From 0 to 1000.
    pub factor: Amount,
    /// For how long; `None`: for good.
    pub duration: Option<Period>,
}

/// What has become of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The version that now stands.
    pub version: u64,
    /// Whether that is the one that was to be set.
    pub changed: bool,
}

const FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.5");
const VERSION: MustBe = MustBe::number("a whole number", " above 0", "1700000000000000");
const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "10m");
const BEHIND_VERSION: Syntax = Syntax { word: "VERSION", arguments: "version" };
const BEHIND_FOR: Syntax = Syntax { word: "FOR", arguments: "duration" };

impl Condition {
    /// `[NX | VERSION n]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args) -> Result<Condition, Error> {
        if args.accept("NX") {
            return Ok(Condition::IfMissing);
        }
        if args.accept("VERSION") {
            let word = args.argument("version", &BEHIND_VERSION)?;
            let version = whole(word, u64::MAX).filter(|version| *version > 0);
            return version.map(Condition::OverVersion).ok_or_else(|| Error::out_of_range("version", &VERSION, word));
        }
        Ok(Condition::Always)
    }
}

impl Scaling {
    /// `factor [FOR duration]`, and no more.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args) -> Result<Scaling, Error> {
        let word = args.word()?;
        let in_range = Amount::parse_up(word).is_some_and(|factor| factor <= Scale::MOST);
        let factor = Amount::parse_down(word).filter(|_| in_range);
        let factor = factor.ok_or_else(|| Error::out_of_range("factor", &FACTOR, word))?;
        let duration = if args.accept("FOR") {
            let word = args.argument("duration", &BEHIND_FOR)?;
            Some(Period::parse(word).ok_or_else(|| Error::out_of_range("duration", &DURATION, word))?)
        } else {
            None
        };
        if let Some(word) = args.peek() {
            let reason = match duration {
                Some(_) if word.eq_ignore_ascii_case(b"FOR") => Reason::Again,
                None if Period::parse(word).is_some() => Reason::ForIsMissing,
                _ => Reason::OnlyFor,
            };
            return Err(Error::unexpected(word, reason));
        }
        Ok(Scaling { factor, duration })
    }
}
