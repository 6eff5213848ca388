//! Words that were found where something else was expected, with hints for the client.

use super::{Form, MAX_SHOWN, MustBe, Syntax, quoted};
use crate::number::decimal::{self, MAX_NUMBER, begins_as_number};
use crate::number::time;
use std::fmt;

/// Word as an error prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundWord {
    /// Word in quotes, truncated and escaped.
    pub shown: String,
    /// `true` if the word has the expected form and is only out of range.
    pub has_form: bool,
    /// Hint for the client.
    pub hint: Hint,
}

/// Hint about an invalid word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// No hint: the error is sufficient.
    Nothing,
    /// List of the units of durations.
    Units,
    /// List of the units of durations, for a word with a unit in upper case.
    LowerCase,
    /// The number has no unit, and therefore counts seconds.
    Seconds,
    /// The word is a calendar window, and ALIGNED is missing.
    NotAligned,
    /// Examples of valid numbers.
    Digits,
    /// The word looks like another argument, so the order may be wrong.
    Order(&'static Syntax),
    /// The word follows the name of an algorithm, and is probably meant as a key.
    NoKey(&'static Syntax),
    /// The word occurs twice.
    Twice,
    /// The number has too many characters.
    TooLong,
}

/// Position of a word in the syntax.
#[derive(Clone, Copy, Debug)]
pub struct Position {
    /// Syntax that contains the word as an argument.
    pub syntax: &'static Syntax,
    /// `true` if the word is the first after the name of an algorithm.
    pub is_first: bool,
}

impl FoundWord {
    /// Describes a word that does not match `must_be`, at a position that may be unknown.
    pub(super) fn describe(word: &[u8], must_be: &MustBe, position: Option<Position>) -> FoundWord {
        let (has_form, hint) = match must_be.form {
            Form::Duration => describe_duration(word, position),
            Form::Number => describe_number(word, position),
            Form::Other => (true, Hint::Nothing),
        };
        FoundWord { shown: quoted(word, MAX_SHOWN), has_form, hint }
    }
}

/// Returns [`FoundWord::has_form`] and the hint for a word that is not a valid duration.
fn describe_duration(word: &[u8], position: Option<Position>) -> (bool, Hint) {
    if word.len() > MAX_NUMBER {
        return describe_long_word(word);
    }
    if time::is_duration(word.strip_prefix(b"-").unwrap_or(word)) {
        // A single digit is mostly 0, which needs no unit.
        let lacks_unit = word.len() > 1 && word.iter().all(u8::is_ascii_digit);
        return (true, if lacks_unit { Hint::Seconds } else { Hint::Nothing });
    }
    let is_keyword = !word.is_empty() && word.iter().all(u8::is_ascii_uppercase);
    let hint = match position {
        Some(Position { syntax, .. }) if is_keyword => Hint::Order(syntax),
        _ if time::is_duration(&word.to_ascii_lowercase()) => Hint::LowerCase,
        _ => Hint::Units,
    };
    (false, hint)
}

/// Returns [`FoundWord::has_form`] and the hint for a word that is not a valid number.
fn describe_number(word: &[u8], position: Option<Position>) -> (bool, Hint) {
    if word.len() > MAX_NUMBER {
        return describe_long_word(word);
    }
    if decimal::after_number(word.strip_prefix(b"-").unwrap_or(word)) == Some(b"") {
        return (true, Hint::Nothing);
    }
    let hint = match position {
        Some(Position { syntax, .. }) if time::is_duration(word) => Hint::Order(syntax),
        _ if begins_as_number(word) => Hint::Digits,
        Some(Position { syntax, is_first: true }) => Hint::NoKey(syntax),
        Some(Position { syntax, .. }) => Hint::Order(syntax),
        None => Hint::Nothing,
    };
    (false, hint)
}

/// Returns [`FoundWord::has_form`] and the hint for a word that is too long to be a number, without scanning the word.
fn describe_long_word(word: &[u8]) -> (bool, Hint) {
    (false, if begins_as_number(word) { Hint::TooLong } else { Hint::Nothing })
}

impl fmt::Display for FoundWord {
    /// Continues the text of the error after the valid values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, ", not {}", self.shown)?;
        match self.hint {
            Hint::Nothing => Ok(()),
            Hint::Units => f.write_str(" (units: us ms s m h d)"),
            Hint::LowerCase => f.write_str(" (units, in lower case: us ms s m h d)"),
            Hint::Seconds => f.write_str(" (seconds, since it has no unit)"),
            Hint::NotAligned => f.write_str(" (ALIGNED is missing)"),
            Hint::Digits => f.write_str(" (numbers are written as 1000, 0.5 or 1e6)"),
            Hint::Order(Syntax { arguments, .. }) => write!(f, " (the order is {arguments})"),
            Hint::NoKey(syntax) => write!(f, " ({syntax}, with no key between)"),
            Hint::Twice => f.write_str(" twice"),
            Hint::TooLong => write!(f, " (at most {MAX_NUMBER} characters)"),
        }
    }
}
