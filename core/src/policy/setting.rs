//! Parsers for the arguments of RL.POLICYSET, RL.POLICYSCALE and RL.POLICYDEL besides the specs.

use super::effective_policy::PolicyFacts;
use super::entry::Scale;
use crate::number::decimal::begins_as_number;
use crate::number::{Amount, Period};
use crate::syntax::name_of_policy;
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, Expected, MustBe, Needed, Reason, Syntax};

/// Condition for setting a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// The policy is set unconditionally.
    Always,
    /// The policy is set only if there is none with that name (`NX`).
    IfMissing,
    /// The policy is set only if it has this version (`VERSION n`).
    OverVersion(u64),
}

/// Parsed arguments of RL.POLICYDEL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeletionRequest<'a> {
    /// All existing policies with these names.
    OfNames(Vec<&'a [u8]>),
    /// Policy with this name, if it has this version (`VERSION n`).
    OfVersion(&'a [u8], u64),
}

/// Parsed arguments of RL.POLICYSCALE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// Change of the factor.
    pub step: ScaleStep,
    /// Minimum time since the last change by the same word (`EVERY`); `None` for no minimum.
    pub every: Option<Period>,
    /// Duration of the scale (`FOR`). Without it, a new factor has no end, and MUL and ADD keep the current end.
    pub duration: Option<Period>,
}

/// Change of a policy's factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleStep {
    /// New factor, from 0 to 1000.
    Set(Amount),
    /// Multiplication of the factor, rounded down to a millionth (`MUL`).
    Multiply {
        /// Multiplier, from 0 to 1.
        multiplier: Amount,
        /// Lower bound of this step (`MIN`). A factor below it is left unchanged.
        min: Amount,
    },
    /// Increase of the factor (`ADD`).
    Add {
        /// Increment, from a millionth to 1000.
        step: Amount,
        /// Upper bound of this step (`MAX`). A factor above it is left unchanged.
        max: Amount,
    },
}

/// Result of setting a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetOutcome {
    /// Version after the call.
    pub version: u64,
    /// `true` if the call set the policy.
    pub changed: bool,
}

/// Result of scaling a policy.
#[derive(Clone, Debug)]
pub struct ScaleOutcome {
    /// Description of the policy after the call.
    pub facts: PolicyFacts,
    /// `true` if the call changed the scale.
    pub changed: bool,
}

/// Default lower bound of MUL: a hundredth.
pub const DEFAULT_MIN_FACTOR: Amount = Amount::saturating(10_000);

const FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.5");
const FACTOR_OR_WORD: MustBe = MustBe::other("a number, MUL or ADD", "0.5");
const FACTOR_OF_MUL: MustBe = MustBe::number("a number", " from 0 to 1", "0.7");
const MIN_FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.05");
const STEP: MustBe = MustBe::number("a number", " from 0.000001 to 1000", "0.05");
const MAX_FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "1");
const VERSION: MustBe = MustBe::number("a whole number", " above 0", "1700000000000000");
const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "10m");
const SECONDS: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "1s");
const VERSION_SYNTAX: Syntax = Syntax { word: "VERSION", arguments: "version" };
const FOR_SYNTAX: Syntax = Syntax { word: "FOR", arguments: "duration" };
const EVERY_SYNTAX: Syntax = Syntax { word: "EVERY", arguments: "duration" };
const MUL: Syntax = Syntax { word: "MUL", arguments: "factor [MIN least] [EVERY duration] [FOR duration]" };
const ADD: Syntax = Syntax { word: "ADD", arguments: "step [MAX most] [EVERY duration] [FOR duration]" };

impl Condition {
    /// Parses `[NX | VERSION n]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn parse(args: &mut Args) -> Result<Condition, Error> {
        if args.accept("NX") {
            return Ok(Condition::IfMissing);
        }
        Ok(parse_version(args)?.map_or(Condition::Always, Condition::OverVersion))
    }
}

impl<'a> DeletionRequest<'a> {
    /// Parses `name VERSION n` or `name [name ...]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn parse(args: &mut Args<'a>) -> Result<DeletionRequest<'a>, Error> {
        let first = name_of_policy(args)?;
        if let Some(version) = parse_version(args)? {
            args.end()?;
            return Ok(DeletionRequest::OfVersion(first, version));
        }
        let mut names = vec![first];
        while let Some(word) = args.peek() {
            // A list of names with a policy named VERSION in it is more likely a mistake than intended.
            if word.eq_ignore_ascii_case(b"VERSION") {
                return Err(Error::unexpected(word, Reason::VersionAfterNames));
            }
            names.push(name_of_policy(args)?);
        }
        Ok(DeletionRequest::OfNames(names))
    }
}

/// Checks that the current version of a policy is the expected one.
pub(super) fn check_version(name: &[u8], expected: u64, current: Option<u64>) -> Result<(), Error> {
    match current {
        Some(version) if version == expected => Ok(()),
        Some(version) => Err(Error::other_version(name, version, expected)),
        None => Err(Error::no_policy(std::iter::once(name))),
    }
}

/// Parses `[VERSION n]`.
fn parse_version(args: &mut Args) -> Result<Option<u64>, Error> {
    if !args.accept("VERSION") {
        return Ok(None);
    }
    let parse = |word| whole(word, u64::MAX).filter(|version| *version > 0);
    args.option_value("version", &VERSION_SYNTAX, &VERSION, parse).map(Some)
}

impl Scaling {
    /// Parses `factor [FOR duration]`, `MUL factor [MIN least] [EVERY duration] [FOR duration]` or `ADD step [MAX most]
    /// [EVERY duration] [FOR duration]`.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn parse(args: &mut Args) -> Result<Scaling, Error> {
        if args.accept("MUL") {
            let multiplier = args.option_value("factor", &MUL, &FACTOR_OF_MUL, |word| factor(word, Amount::ONE))?;
            return Scaling::parse_options(args, ScaleStep::Multiply { multiplier, min: DEFAULT_MIN_FACTOR }, &MUL);
        }
        if args.accept("ADD") {
            let parse = |word| factor(word, Scale::MAX_FACTOR).filter(|step| *step != Amount::ZERO);
            let step = args.option_value("step", &ADD, &STEP, parse)?;
            return Scaling::parse_options(args, ScaleStep::Add { step, max: Amount::ONE }, &ADD);
        }
        let word = args.word()?;
        let must_be = if begins_as_number(word) { &FACTOR } else { &FACTOR_OR_WORD };
        let factor = factor(word, Scale::MAX_FACTOR).ok_or_else(|| Error::out_of_range("factor", must_be, word))?;
        let duration = if args.accept("FOR") { Some(duration(args, &FOR_SYNTAX, &DURATION)?) } else { None };
        if let Some(word) = args.peek() {
            let reason = match duration {
                Some(_) if word.eq_ignore_ascii_case(b"FOR") => Reason::Duplicate,
                None if Period::parse(word).is_some() => Reason::ForIsMissing,
                _ => Reason::OnlyFor,
            };
            return Err(Error::unexpected(word, reason));
        }
        Ok(Scaling { step: ScaleStep::Set(factor), every: None, duration })
    }

    /// Parses the options after MUL and ADD, in any order.
    fn parse_options(args: &mut Args, mut step: ScaleStep, syntax: &'static Syntax) -> Result<Scaling, Error> {
        let (mut every, mut scale_duration, mut bound) = (None, None, None);
        let (bound_word, argument, must_be) = match step {
            ScaleStep::Add { .. } => ("MAX", "most", &MAX_FACTOR),
            _ => ("MIN", "least", &MIN_FACTOR),
        };
        while let Some(word) = args.peek() {
            let is_duplicate = if args.accept("EVERY") {
                every.replace(duration(args, &EVERY_SYNTAX, &SECONDS)?).is_some()
            } else if args.accept("FOR") {
                scale_duration.replace(duration(args, &FOR_SYNTAX, &DURATION)?).is_some()
            } else if args.accept(bound_word) {
                let parse = |word| factor(word, Scale::MAX_FACTOR);
                bound.replace(args.option_value(argument, syntax, must_be, parse)?).is_some()
            } else {
                let needed = Needed::instead_of(word, Expected::Option, vec![bound_word, "EVERY", "FOR"], Vec::new());
                return Err(Error::unexpected(word, Reason::Needed(needed)));
            };
            if is_duplicate {
                return Err(Error::unexpected(word, Reason::Duplicate));
            }
        }
        match &mut step {
            ScaleStep::Multiply { min: step_bound, .. } | ScaleStep::Add { max: step_bound, .. } => {
                *step_bound = bound.unwrap_or(*step_bound);
            }
            ScaleStep::Set(_) => {}
        }
        Ok(Scaling { step, every, duration: scale_duration })
    }
}

/// Parses a factor of at most `max`, rounded down.
fn factor(word: &[u8], max: Amount) -> Option<Amount> {
    Amount::parse_up(word).filter(|rounded_up| *rounded_up <= max).and_then(|_| Amount::parse_down(word))
}

/// Parses the duration after an option.
fn duration(args: &mut Args, syntax: &'static Syntax, must_be: &'static MustBe) -> Result<Period, Error> {
    args.option_value("duration", syntax, must_be, Period::parse)
}
