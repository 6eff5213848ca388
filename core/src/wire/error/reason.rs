//! Why a word is unexpected where it stands.

use super::{SHOWN, Syntax, one_of, quoted};
use crate::number::{decimal, time};
use std::cmp::Reverse;
use std::fmt;

/// Why a word is unexpected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Nothing more can follow.
    AtEnd,
    /// The option is given twice.
    Again,
    /// An option that excludes it was given before.
    NotWith(&'static str),
    /// Something else is needed there.
    Needed(Needed),
    /// BLOCK anywhere else.
    OnlyAcquireBlocks,
    /// OFFSET or ANCHOR without ALIGNED.
    NotAligned,
    /// ANCHOR of a window that has no days of the month.
    NoDayOfMonth,
    /// What SETTLE takes the place of.
    SettleSaysTheCost,
    /// A second id.
    HasId,
    /// SETTLE of a peek.
    LookSettlesNothing,
    /// KEEP of a call that takes nothing.
    KeepsNothing,
    /// UPTO where several limits are to pass.
    UpToAmongSeveral,
    /// An option of the whole call behind one of several specs.
    ForAllSpecs,
    /// BAN before any spec.
    BanBehindSpecs,
    /// Anything behind BAN.
    BanStandsLast,
    /// A duration behind a ban that has no MAX.
    MaxIsMissing,
    /// POLICY beside other specs.
    PolicyAlone,
    /// A spec beside POLICY.
    PolicyStandsAlone,
    /// A second CONCURRENCY.
    OneOfLeases,
    /// Another spec beside a SKETCH.
    SketchStandsAlone,
    /// What would have to know which of a sketch's usage is whose.
    MergedInSketch,
    /// A ninth spec.
    TooManySpecs {
        /// How many there may be.
        most: usize,
        /// Whether they are a policy's.
        of_policy: bool,
    },
    /// More than numkeys says.
    BehindLastSpec,
    /// A duration that FOR should stand before.
    ForIsMissing,
    /// Anything else behind a factor.
    OnlyFor,
    /// VERSION behind several names.
    VersionOfOne,
}

/// What is needed in the place of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Needed {
    /// What, in general.
    pub what: What,
    /// The words that it may be.
    pub words: Vec<&'static str>,
    /// The names of algorithms, if it may be one.
    pub algorithms: Vec<&'static str>,
    /// What was perhaps meant.
    pub meant: Meant,
}

/// What is needed, in general.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A word of which there are few.
    Word,
    /// An option of an algorithm's own command.
    Option,
    /// OR or an option, behind a policy's name.
    OrOption,
    /// What a call on one key begins with.
    FirstSpec,
    /// What a call on several keys begins with.
    FirstSpecOfKeys,
    /// What a policy begins with.
    Algorithm,
    /// What follows a spec.
    NextSpec,
    /// What follows the spec of a key.
    NextSpecOfKeys,
    /// A setting, at load.
    Setting,
}

/// What a word was perhaps meant to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meant {
    /// Nobody knows.
    Unknown,
    /// Another word.
    Word(&'static str),
    /// The value of an option, which is missing before it: that, and the value as it is shown.
    Value(&'static str, String),
    /// The name of a policy, by a command that says so.
    Policy(&'static Syntax),
}

impl Needed {
    /// What is needed in the place of `word`, with a guess at what was meant.
    #[must_use]
    pub fn instead_of(word: &[u8], what: What, words: Vec<&'static str>, algorithms: Vec<&'static str>) -> Needed {
        let meant = nearest(word, words.iter().chain(&algorithms)).map_or(Meant::Unknown, Meant::Word);
        Needed { what, words, algorithms, meant }
    }

    /// That word was meant.
    pub fn is_meant(&mut self, word: &'static str) {
        self.meant = Meant::Word(word);
    }

    /// A policy's name behind what `syntax` says was meant, if nothing is known better.
    pub fn or_policy(&mut self, syntax: &'static Syntax, word: &[u8]) {
        if self.meant == Meant::Unknown && !time::is_duration(word) {
            self.meant = Meant::Policy(syntax);
        }
    }

    /// The value of an option was meant, if nothing is known better: of COST a bare number, of OR what is not in
    /// capitals, as our own words are written.
    pub fn or_value(&mut self, option: &'static str, word: &[u8]) {
        let is_short = word.len() <= SHORT && word.iter().all(u8::is_ascii_graphic);
        let may_be = match option {
            _ if !is_short => false,
            "OR" => !word.is_empty() && !word.iter().all(u8::is_ascii_uppercase),
            _ => decimal::after_number(word) == Some(b""),
        };
        if self.meant == Meant::Unknown && may_be {
            self.meant = Meant::Value(option, quoted(word, SHOWN));
        }
    }
}

/// The longest value that is told twice.
const SHORT: usize = 16;

/// No word of ours is as long, with what may be typed too much.
const LONGEST: usize = 24;

/// The one of `names` that a word is nearest to, if it is near.
fn nearest<'n>(word: &[u8], names: impl Iterator<Item = &'n &'static str>) -> Option<&'static str> {
    let of_command = word.split_at_checked(3).filter(|(head, _)| head.eq_ignore_ascii_case(b"RL."));
    let word = of_command.map_or(word, |(_, rest)| rest);
    if word.len() < 2 || word.len() > LONGEST {
        return None;
    }
    let bare = |name: &[u8]| -> Vec<u8> {
        name.iter().filter(|byte| !matches!(byte, b'_' | b'-')).map(u8::to_ascii_uppercase).collect()
    };
    let word = bare(word);
    let near = names.map(|name| (typos(&word, &bare(name.as_bytes())), *name));
    // A slip a word, and another where it is long. Of two letters, one is nothing.
    let near = near.filter(|(typos, name)| match name.len() {
        ..=2 => *typos == 0,
        3..=5 => *typos <= 1,
        _ => *typos <= 2,
    });
    near.min_by_key(|(typos, name)| (*typos, Reverse(name.len()))).map(|(_, name)| name)
}

/// How many letters are wrong, missing, too many or in each other's place: 1 if `word` is `name` and goes on.
fn typos(word: &[u8], name: &[u8]) -> usize {
    if name.len() > 4 && word.len() > name.len() && word.starts_with(name) {
        return 1;
    }
    // Each row is about one letter more of the word: how far that beginning is from each beginning of the name.
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=name.len()).collect();
    let mut letter_before = None;
    for letter in word {
        let mut next = Vec::with_capacity(row.len());
        let mut left = row.first().copied().unwrap_or_default().saturating_add(1);
        next.push(left);
        for (place, of_name) in name.iter().enumerate() {
            let at = |row: &[usize], place: usize| row.get(place).copied().unwrap_or(usize::MAX);
            let replaced = at(&row, place).saturating_add(usize::from(letter != of_name));
            let added = at(&row, place.saturating_add(1)).saturating_add(1);
            let mut least = replaced.min(added).min(left.saturating_add(1));
            let swapped =
                place.checked_sub(1).filter(|place| letter_before == Some(of_name) && name.get(*place) == Some(letter));
            if let Some(place) = swapped {
                least = least.min(at(&before, place).saturating_add(1));
            }
            next.push(least);
            left = least;
        }
        before = std::mem::replace(&mut row, next);
        letter_before = Some(letter);
    }
    row.last().copied().unwrap_or_default()
}

impl fmt::Display for Reason {
    /// Reads on from the word.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::AtEnd => f.write_str(", where no more words can follow"),
            Reason::Again => f.write_str(", which is given twice"),
            Reason::NotWith(word) => write!(f, ", which cannot be combined with {word}"),
            Reason::Needed(needed) => needed.fmt(f),
            Reason::OnlyAcquireBlocks => f.write_str(", which only RL.ACQUIRE has"),
            Reason::NotAligned => f.write_str(", which needs ALIGNED before it"),
            Reason::NoDayOfMonth => f.write_str(", since only windows of 1mo and 3mo begin on a day of the month"),
            Reason::SettleSaysTheCost => f.write_str(", since SETTLE sets the cost"),
            Reason::HasId => f.write_str(", since the call has an id already"),
            Reason::LookSettlesNothing => f.write_str(", since a peek cannot settle a charge"),
            Reason::KeepsNothing => f.write_str(", which cannot be combined with FORCE, SETTLE or a negative cost"),
            Reason::UpToAmongSeveral => f.write_str(", since RL.MTAKE and RL.MPEEK take all or nothing"),
            Reason::ForAllSpecs => f.write_str(", which is for all specs and must come before the first"),
            Reason::BanBehindSpecs => f.write_str(", which must come after the last spec"),
            Reason::BanStandsLast => f.write_str(", since nothing can come after BAN"),
            Reason::MaxIsMissing => {
                f.write_str(", before which MAX is missing: BAN strikes window block [MAX longest]")
            }
            Reason::PolicyAlone => f.write_str(", which must be the only spec of its key and cannot be in a policy"),
            Reason::PolicyStandsAlone => f.write_str(", since POLICY must be the only spec of its key"),
            Reason::OneOfLeases => f.write_str(", since a key can have only one"),
            Reason::SketchStandsAlone => f.write_str(", which must be the only spec of its key"),
            Reason::MergedInSketch => f.write_str(", since a SKETCH cannot tell apart again what it has merged"),
            Reason::TooManySpecs { most, of_policy } => {
                write!(f, ", since a {} has {most} specs at most", if *of_policy { "policy" } else { "call" })
            }
            Reason::BehindLastSpec => {
                f.write_str(" after the last spec; numkeys must be the number of keys and of specs")
            }
            Reason::ForIsMissing => {
                f.write_str(", before which FOR is missing: RL.POLICYSCALE name factor [FOR duration]")
            }
            Reason::OnlyFor => f.write_str(", where only FOR duration can follow"),
            Reason::VersionOfOne => f.write_str(", which must come right after a single name"),
        }
    }
}

impl fmt::Display for Needed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.what {
            What::Word => "",
            What::Option => "an option",
            What::OrOption => "OR or an option",
            What::FirstSpec | What::FirstSpecOfKeys => "an option, POLICY or an algorithm",
            What::Algorithm => "an algorithm",
            What::NextSpec => "an option of the spec before, BAN or an algorithm",
            What::NextSpecOfKeys => "an option of the spec before, POLICY or an algorithm",
            What::Setting => "a setting",
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
        if self.what == What::FirstSpecOfKeys {
            f.write_str("; numkeys must be the number of keys")?;
        }
        match &self.meant {
            Meant::Unknown => Ok(()),
            Meant::Word(name) => write!(f, "; did you mean {name}?"),
            Meant::Value(option, value) => write!(f, "; did you mean {option} {value}?"),
            Meant::Policy(syntax) => write!(f, "; for a policy: {syntax}"),
        }
    }
}
