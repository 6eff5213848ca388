//! Reasons why a word is not allowed at its position.

use super::{MAX_SHOWN, Syntax, one_of, quoted};
use crate::number::{decimal, time};
use std::cmp::Reverse;
use std::fmt;

/// Reason why a word is not allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// No more words are allowed.
    AtEnd,
    /// The option is a duplicate.
    Duplicate,
    /// The option is excluded by an earlier one.
    ExcludedBy(&'static str),
    /// Another word is needed.
    Needed(Needed),
    /// BLOCK or FENCE outside RL.ACQUIRE.
    OnlyAcquire,
    /// OFFSET or ANCHOR without ALIGNED.
    NotAligned,
    /// ANCHOR for a window that does not begin on a day of the month.
    NoDayOfMonth,
    /// COST, mode or KEEP beside SETTLE.
    SettleSetsCost,
    /// Second id of a call.
    HasId,
    /// SETTLE in a peek.
    PeekCannotSettle,
    /// KEEP beside FORCE, SETTLE or a negative cost.
    KeepConflict,
    /// UPTO for one of several limits.
    UpToAmongSeveral,
    /// Option of the whole call after one of several specs.
    ForAllSpecs,
    /// BAN before the first spec.
    BanBeforeSpecs,
    /// Word after BAN.
    AfterBan,
    /// Duration after a ban without MAX.
    MaxIsMissing,
    /// POLICY beside other specs.
    PolicyAlone,
    /// Spec beside POLICY.
    BesidePolicy,
    /// Second CONCURRENCY.
    SecondConcurrency,
    /// Spec beside a SKETCH.
    BesideSketch,
    /// Operation that would need the usage of one item, which a sketch has merged with others.
    MergedInSketch,
    /// Spec beyond the maximum number.
    TooManySpecs {
        /// Maximum number of specs.
        max: usize,
        /// `true` if the specs are those of a policy.
        in_policy: bool,
    },
    /// Word after as many specs as numkeys.
    AfterLastSpec,
    /// Duration after the factor of RL.POLICYSCALE, without FOR before it.
    ForIsMissing,
    /// Word other than FOR after the factor of RL.POLICYSCALE.
    OnlyFor,
    /// VERSION after several names of policies.
    VersionAfterNames,
}

/// Description of the words that are allowed in place of an unexpected word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// General description.
    pub what: Expected,
    /// Allowed words.
    pub words: Vec<&'static str>,
    /// Names of algorithms, if an algorithm is allowed.
    pub algorithms: Vec<&'static str>,
    /// Suggestion for a misspelled word.
    pub suggestion: Suggestion,
}

/// General description of the allowed words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Keyword from a short list.
    Word,
    /// Option of an algorithm's own command.
    Option,
    /// OR or an option, after the name of a policy.
    OrOption,
    /// First word of a call on one key.
    FirstSpec,
    /// First word of a call on several keys.
    FirstSpecOfKeys,
    /// First word of a policy.
    Algorithm,
    /// Word after a spec.
    NextSpec,
    /// Word after the spec of a key.
    NextSpecOfKeys,
    /// Setting at load time.
    Setting,
}

/// Suggestion for a misspelled word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suggestion {
    /// No suggestion.
    Unknown,
    /// Another word.
    Word(&'static str),
    /// Option that is missing before its value, with the value as text.
    Value(&'static str, String),
    /// Command that takes the word as the name of a policy.
    Policy(&'static Syntax),
}

impl Needed {
    /// Creates the description for an unexpected word, with a suggestion if a name is similar.
    #[must_use]
    pub fn instead_of(word: &[u8], what: Expected, words: Vec<&'static str>, algorithms: Vec<&'static str>) -> Needed {
        let suggestion = nearest(word, words.iter().chain(&algorithms)).map_or(Suggestion::Unknown, Suggestion::Word);
        Needed { what, words, algorithms, suggestion }
    }

    /// Suggests the command of `syntax`, which takes the word as the name of a policy, unless there is another
    /// suggestion or the word is a duration.
    pub fn suggest_policy(&mut self, syntax: &'static Syntax, word: &[u8]) {
        if self.suggestion == Suggestion::Unknown && !time::is_duration(word) {
            self.suggestion = Suggestion::Policy(syntax);
        }
    }

    /// Suggests that the word is the value of an option, unless there is another suggestion. For OR, the word must not
    /// be in upper case, like option words. For any other option, the word must be a number.
    pub fn suggest_value_of(&mut self, option: &'static str, word: &[u8]) {
        let is_short = word.len() <= MAX_SUGGESTED_VALUE && word.iter().all(u8::is_ascii_graphic);
        let may_be = match option {
            _ if !is_short => false,
            "OR" => !word.is_empty() && !word.iter().all(u8::is_ascii_uppercase),
            _ => decimal::after_number(word) == Some(b""),
        };
        if self.suggestion == Suggestion::Unknown && may_be {
            self.suggestion = Suggestion::Value(option, quoted(word, MAX_SHOWN));
        }
    }
}

/// Maximum length of a value that is repeated in a suggestion.
const MAX_SUGGESTED_VALUE: usize = 16;

/// Maximum length of a word that can be similar to a known one.
const MAX_COMPARED_LENGTH: usize = 24;

/// Returns the most similar of `names`, if one is similar enough.
fn nearest<'n>(word: &[u8], names: impl Iterator<Item = &'n &'static str>) -> Option<&'static str> {
    let word = match word.split_at_checked(3) {
        Some((prefix, rest)) if prefix.eq_ignore_ascii_case(b"RL.") => rest,
        _ => word,
    };
    if word.len() < 2 || word.len() > MAX_COMPARED_LENGTH {
        return None;
    }
    let normalized = |name: &[u8]| -> Vec<u8> {
        name.iter().filter(|byte| !matches!(byte, b'_' | b'-')).map(u8::to_ascii_uppercase).collect()
    };
    let word = normalized(word);
    let candidates = names.map(|name| (typos(&word, &normalized(name.as_bytes())), *name));
    // Tolerance: one typo, or two in a long name. A name of two letters must match.
    let similar = candidates.filter(|(typos, name)| match name.len() {
        ..=2 => *typos == 0,
        3..=5 => *typos <= 1,
        _ => *typos <= 2,
    });
    similar.min_by_key(|(typos, name)| (*typos, Reverse(name.len()))).map(|(_, name)| name)
}

/// Returns the edit distance with transpositions. A long name followed by more letters counts as one typo.
fn typos(word: &[u8], name: &[u8]) -> usize {
    if name.len() > 4 && word.len() > name.len() && word.starts_with(name) {
        return 1;
    }
    // Each row belongs to a prefix of the word, and contains its distances from all prefixes of the name.
    let mut previous_row: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    let mut previous_letter = None;
    for letter in word {
        let mut next_row = Vec::with_capacity(row.len());
        let mut left = row.first().copied().unwrap_or_default().saturating_add(1);
        next_row.push(left);
        for (column, name_letter) in name.iter().enumerate() {
            let distance = |row: &[usize], column: usize| row.get(column).copied().unwrap_or(usize::MAX);
            let replaced = distance(&row, column).saturating_add(usize::from(letter != name_letter));
            let added = distance(&row, column.saturating_add(1)).saturating_add(1);
            let mut least = replaced.min(added).min(left.saturating_add(1));
            let swapped = column
                .checked_sub(1)
                .filter(|column| previous_letter == Some(name_letter) && name.get(*column) == Some(letter));
            if let Some(column) = swapped {
                least = least.min(distance(&previous_row, column).saturating_add(1));
            }
            next_row.push(least);
            left = least;
        }
        previous_row = std::mem::replace(&mut row, next_row);
        previous_letter = Some(letter);
    }
    row.last().copied().unwrap_or_default()
}

impl fmt::Display for Reason {
    /// Continues the text of the error after the word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::AtEnd => f.write_str(", where no more words can follow"),
            Reason::Duplicate => f.write_str(", which is given twice"),
            Reason::ExcludedBy(word) => write!(f, ", which cannot be combined with {word}"),
            Reason::Needed(needed) => needed.fmt(f),
            Reason::OnlyAcquire => f.write_str(", which only RL.ACQUIRE has"),
            Reason::NotAligned => f.write_str(", which needs ALIGNED before it"),
            Reason::NoDayOfMonth => f.write_str(", since only windows of 1mo and 3mo begin on a day of the month"),
            Reason::SettleSetsCost => f.write_str(", since SETTLE sets the cost"),
            Reason::HasId => f.write_str(", since the call has an id already"),
            Reason::PeekCannotSettle => f.write_str(", since a peek cannot settle a charge"),
            Reason::KeepConflict => f.write_str(", which cannot be combined with FORCE, SETTLE or a negative cost"),
            Reason::UpToAmongSeveral => f.write_str(", since RL.MTAKE and RL.MPEEK take all or nothing"),
            Reason::ForAllSpecs => f.write_str(", which is for all specs and must come before the first"),
            Reason::BanBeforeSpecs => f.write_str(", which must come after the last spec"),
            Reason::AfterBan => f.write_str(", since nothing can come after BAN"),
            Reason::MaxIsMissing => {
                f.write_str(", before which MAX is missing: BAN strikes window block [MAX longest]")
            }
            Reason::PolicyAlone => f.write_str(", which must be the only spec of its key and cannot be in a policy"),
            Reason::BesidePolicy => f.write_str(", since POLICY must be the only spec of its key"),
            Reason::SecondConcurrency => f.write_str(", since a key can have only one"),
            Reason::BesideSketch => f.write_str(", which must be the only spec of its key"),
            Reason::MergedInSketch => f.write_str(", since a SKETCH cannot tell apart again what it has merged"),
            Reason::TooManySpecs { max, in_policy } => {
                write!(f, ", since a {} has {max} specs at most", if *in_policy { "policy" } else { "call" })
            }
            Reason::AfterLastSpec => {
                f.write_str(" after the last spec; numkeys must be the number of keys and of specs")
            }
            Reason::ForIsMissing => {
                f.write_str(", before which FOR is missing: RL.POLICYSCALE name factor [FOR duration]")
            }
            Reason::OnlyFor => f.write_str(", where only FOR duration can follow"),
            Reason::VersionAfterNames => f.write_str(", which must come right after a single name"),
        }
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            Expected::Word => "",
            Expected::Option => "an option",
            Expected::OrOption => "OR or an option",
            Expected::FirstSpec | Expected::FirstSpecOfKeys => "an option, POLICY or an algorithm",
            Expected::Algorithm => "an algorithm",
            Expected::NextSpec => "an option of the spec before, BAN or an algorithm",
            Expected::NextSpecOfKeys => "an option of the spec before, POLICY or an algorithm",
            Expected::Setting => "a setting",
        };
        let words = one_of(&self.words);
        let lists = [words, one_of(&self.algorithms)];
        let lists: Vec<&str> = lists.iter().map(String::as_str).filter(|list| !list.is_empty()).collect();
        let lists = lists.join("; ");
        if what.is_empty() {
            write!(f, ", where {lists} is needed")?;
        } else {
            write!(f, ", where {what} is needed: {lists}")?;
        }
        if self.what == Expected::FirstSpecOfKeys {
            f.write_str("; numkeys must be the number of keys")?;
        }
        match &self.suggestion {
            Suggestion::Unknown => Ok(()),
            Suggestion::Word(name) => write!(f, "; did you mean {name}?"),
            Suggestion::Value(option, value) => write!(f, "; did you mean {option} {value}?"),
            Suggestion::Policy(syntax) => write!(f, "; for a policy: {syntax}"),
        }
    }
}
