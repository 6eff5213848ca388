//! What an operator says beside a policy that is set or scaled: on which condition, by how much, for how long.

use super::entry::Scale;
use super::ruling::PolicyFacts;
use crate::number::{Amount, Period};
use crate::syntax::name_of_policy;
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Needed, Reason, Syntax, What};

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

/// Which policies to delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionRequest<'a> {
    /// Those of these names that there are.
    OfNames(Vec<&'a [u8]>),
    /// The one of that name, if it has that version (`VERSION n`).
    OfVersion(&'a [u8], u64),
}

/// By how much to scale a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// The change of the factor.
    pub step: ScaleStep,
    /// Only if the last change by the same word was longer ago. `None`: in any case.
    pub every: Option<Period>,
    /// For how long; `None`: for good, or by MUL and ADD until the end that stands.
    pub duration: Option<Period>,
}

/// A change of the factor of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    /// It is this, from 0 to 1000.
    Set(Amount),
    /// It is multiplied, rounded down to a millionth (`MUL`).
    Multiply {
        /// From 0 to 1.
        by: Amount,
        /// Where this step stops (`MIN`): a factor that is lower stays.
        least: Amount,
    },
    /// It is raised (`ADD`).
    Add {
        /// From a millionth to 1000.
        step: Amount,
        /// Where this step stops (`MAX`): a factor that is higher stays.
        most: Amount,
    },
}

/// The outcome of setting a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The version that now stands.
    pub version: u64,
    /// Whether that is the one that was to be set.
    pub changed: bool,
}

/// The outcome of a call that scales a policy.
#[derive(Clone, Debug)]
pub struct ScaleOutcome {
    /// What there is to know of the policy now.
    pub facts: PolicyFacts,
    /// Whether the scale was set or changed.
    pub changed: bool,
}

/// The factor that MUL does not go below unless MIN says so: a hundredth.
pub const LEAST: Amount = Amount::saturating(10_000);

const FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.5");
const FACTOR_OR_WORD: MustBe = MustBe::other("a number, MUL or ADD", "0.5");
const FACTOR_OF_MUL: MustBe = MustBe::number("a number", " from 0 to 1", "0.7");
const LEAST_FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.05");
const STEP: MustBe = MustBe::number("a number", " from 0.000001 to 1000", "0.05");
const MOST: MustBe = MustBe::number("a number", " from 0 to 1000", "1");
const VERSION: MustBe = MustBe::number("a whole number", " above 0", "1700000000000000");
const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "10m");
const SECONDS: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "1s");
const BEHIND_VERSION: Syntax = Syntax { word: "VERSION", arguments: "version" };
const BEHIND_FOR: Syntax = Syntax { word: "FOR", arguments: "duration" };
const BEHIND_EVERY: Syntax = Syntax { word: "EVERY", arguments: "duration" };
const MUL: Syntax = Syntax { word: "MUL", arguments: "factor [MIN least] [EVERY duration] [FOR duration]" };
const ADD: Syntax = Syntax { word: "ADD", arguments: "step [MAX most] [EVERY duration] [FOR duration]" };

impl Condition {
    /// `[NX | VERSION n]`
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn read(args: &mut Args) -> Result<Condition, Error> {
        if args.accept("NX") {
            return Ok(Condition::IfMissing);
        }
        Ok(read_version(args)?.map_or(Condition::Always, Condition::OverVersion))
    }
}

impl<'a> DeletionRequest<'a> {
    /// `name VERSION n` or `name [name ...]`, and no more.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn read(args: &mut Args<'a>) -> Result<DeletionRequest<'a>, Error> {
        let first = name_of_policy(args)?;
        if let Some(version) = read_version(args)? {
            args.end()?;
            return Ok(DeletionRequest::OfVersion(first, version));
        }
        let mut names = vec![first];
        while let Some(word) = args.peek() {
            // Three policies, one of them named VERSION, are a slip more often than a wish.
            if word.eq_ignore_ascii_case(b"VERSION") {
                return Err(Error::unexpected(word, Reason::VersionOfOne));
            }
            names.push(name_of_policy(args)?);
        }
        Ok(DeletionRequest::OfNames(names))
    }
}

/// Checks that the policy of a name has the version that a call names.
pub(super) fn must_stand(name: &[u8], named: u64, stands: Option<u64>) -> Result<(), Error> {
    match stands {
        Some(version) if version == named => Ok(()),
        Some(version) => Err(Error::other_version(name, version, named)),
        None => Err(Error::no_policy(std::iter::once(name))),
    }
}

/// `[VERSION n]`
fn read_version(args: &mut Args) -> Result<Option<u64>, Error> {
    if !args.accept("VERSION") {
        return Ok(None);
    }
    let word = args.argument("version", &BEHIND_VERSION)?;
    let version = whole(word, u64::MAX).filter(|version| *version > 0);
    version.map(Some).ok_or_else(|| Error::out_of_range("version", &VERSION, word))
}

impl Scaling {
    /// `factor [FOR duration]`, `MUL factor [MIN least] [EVERY duration] [FOR duration]` or
    /// `ADD step [MAX most] [EVERY duration] [FOR duration]`, and no more.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn read(args: &mut Args) -> Result<Scaling, Error> {
        if args.accept("MUL") {
            let by = factor(args.argument("factor", &MUL)?, Amount::ONE, ("factor", &FACTOR_OF_MUL))?;
            return Scaling::read_options(args, ScaleStep::Multiply { by, least: LEAST }, &MUL);
        }
        if args.accept("ADD") {
            let word = args.argument("step", &ADD)?;
            let step = factor(word, Scale::MOST, ("step", &STEP))?;
            if step == Amount::ZERO {
                return Err(Error::out_of_range("step", &STEP, word));
            }
            return Scaling::read_options(args, ScaleStep::Add { step, most: Amount::ONE }, &ADD);
        }
        let word = args.word()?;
        let begins_as_one =
            word.first().is_some_and(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'+' | b'-'));
        let must_be = if begins_as_one { &FACTOR } else { &FACTOR_OR_WORD };
        let step = ScaleStep::Set(factor(word, Scale::MOST, ("factor", must_be))?);
        let duration = if args.accept("FOR") { Some(duration(args, &BEHIND_FOR, &DURATION)?) } else { None };
        if let Some(word) = args.peek() {
            let reason = match duration {
                Some(_) if word.eq_ignore_ascii_case(b"FOR") => Reason::Again,
                None if Period::parse(word).is_some() => Reason::ForIsMissing,
                _ => Reason::OnlyFor,
            };
            return Err(Error::unexpected(word, reason));
        }
        Ok(Scaling { step, every: None, duration })
    }

    /// The options behind MUL and ADD, in any order.
    fn read_options(args: &mut Args, mut step: ScaleStep, syntax: &'static Syntax) -> Result<Scaling, Error> {
        let (mut every, mut lasts, mut bound) = (None, None, None);
        let bound_word = if matches!(step, ScaleStep::Add { .. }) { "MAX" } else { "MIN" };
        while let Some(word) = args.peek() {
            let again = || Err(Error::unexpected(word, Reason::Again));
            if args.accept("EVERY") {
                if every.replace(duration(args, &BEHIND_EVERY, &SECONDS)?).is_some() {
                    return again();
                }
            } else if args.accept("FOR") {
                if lasts.replace(duration(args, &BEHIND_FOR, &DURATION)?).is_some() {
                    return again();
                }
            } else if args.accept(bound_word) {
                let (name, must_be) = if bound_word == "MAX" { ("most", &MOST) } else { ("least", &LEAST_FACTOR) };
                if bound.replace(factor(args.argument(name, syntax)?, Scale::MOST, (name, must_be))?).is_some() {
                    return again();
                }
            } else {
                let needed = Needed::instead_of(word, What::Option, vec![bound_word, "EVERY", "FOR"], Vec::new());
                return Err(Error::needed(word, needed));
            }
        }
        match &mut step {
            ScaleStep::Multiply { least: own, .. } | ScaleStep::Add { most: own, .. } => *own = bound.unwrap_or(*own),
            ScaleStep::Set(_) => {}
        }
        Ok(Scaling { step, every, duration: lasts })
    }
}

/// A factor up to `most`, rounded down.
fn factor(word: &[u8], most: Amount, (name, must_be): (&'static str, &'static MustBe)) -> Result<Amount, Error> {
    let in_range = Amount::parse_up(word).is_some_and(|factor| factor <= most);
    let factor = Amount::parse_down(word).filter(|_| in_range);
    factor.ok_or_else(|| Error::out_of_range(name, must_be, word))
}

/// The duration behind a word.
fn duration(args: &mut Args, syntax: &'static Syntax, must_be: &'static MustBe) -> Result<Period, Error> {
    let word = args.argument("duration", syntax)?;
    Period::parse(word).ok_or_else(|| Error::out_of_range("duration", must_be, word))
}
