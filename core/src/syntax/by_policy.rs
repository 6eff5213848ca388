//! A call that asks for a policy by its name.

use super::common_options::CommonOptions;
use super::options::Options;
use super::purpose::Verb;
use super::refusal;
use super::words::{OF_POLICY_NAME, OF_POLICY_NAME_OF_KEYS};
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Reason, Syntax, What};
use crate::wire::name::MAX_NAME;

const POLICY: MustBe = MustBe::other("a name of 1 to 256 bytes", "plan:pro");
const BEHIND_POLICY: Syntax = Syntax { word: "POLICY", arguments: "name [OR name ...]" };

/// A call, on one key, that asks for a policy.
#[derive(Clone, Debug)]
pub struct ByPolicy<'a> {
    /// The name that it asks for first.
    first: &'a [u8],
    /// Those that it asks for if there is no such policy (OR).
    others: Vec<&'a [u8]>,
    /// What it says beside the names.
    pub(super) common: CommonOptions<'a>,
    /// Whether it charges.
    pub(super) verb: Verb,
}

impl<'a> ByPolicy<'a> {
    /// `[OR name ...] [options]`, and no more: what stands behind the first name of RL.LIMIT.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn after_first_name(first: &'a [u8], args: &mut Args<'a>) -> Result<ByPolicy<'a>, Error> {
        let by = ByPolicy::after_name(first, args, Verb::Take, &CommonOptions::NONE, false)?;
        if let Some(word) = args.peek() {
            return Err(refusal::needed(word, What::OrOption, OF_POLICY_NAME, false));
        }
        Ok(by)
    }

    /// The words after POLICY, in a call on one key.
    pub(super) fn of_key(args: &mut Args<'a>, verb: Verb, common: &CommonOptions<'a>) -> Result<ByPolicy<'a>, Error> {
        let first = next_name(args)?;
        let by = ByPolicy::after_name(first, args, verb, common, false)?;
        match args.peek() {
            Some(word) => Err(refusal::refused(word, Reason::PolicyStandsAlone)),
            None => Ok(by),
        }
    }

    /// The words after POLICY, for one key of a call on many keys.
    pub(super) fn of_keys(args: &mut Args<'a>, verb: Verb, common: &CommonOptions<'a>) -> Result<ByPolicy<'a>, Error> {
        let first = next_name(args)?;
        ByPolicy::after_name(first, args, verb, common, true)
    }

    #[inline(never)]
    fn after_name(
        first: &'a [u8],
        args: &mut Args<'a>,
        verb: Verb,
        common: &CommonOptions<'a>,
        one_of_several: bool,
    ) -> Result<ByPolicy<'a>, Error> {
        let words = if one_of_several { OF_POLICY_NAME_OF_KEYS } else { OF_POLICY_NAME };
        let mut others = Vec::new();
        while args.accept("OR") {
            others.push(next_name(args)?);
        }
        let own = Options::read(args, words)?;
        if one_of_several {
            own.refuse_among_several()?;
        }
        Ok(ByPolicy { first, others, common: common.with(&own)?, verb })
    }

    /// The names that it asks for: the first that is a policy's rules.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }

    /// The refusal of a call that asks for no policy there is.
    #[cold]
    #[must_use]
    pub fn missing(&self) -> Error {
        Error::no_policy(self.names())
    }

    /// Whether each limit's decision is to be told.
    #[must_use]
    pub fn each(&self) -> bool {
        self.common.each()
    }
}

/// `name`: of a policy, where the server counts the words.
///
/// # Errors
/// The word, if it is missing, or no such name.
#[inline(always)]
pub fn name_of_policy<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    valid(args.word()?)
}

/// `name`: behind POLICY or OR.
fn next_name<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    valid(args.argument("name", &BEHIND_POLICY)?)
}

#[inline(always)]
fn valid(name: &[u8]) -> Result<&[u8], Error> {
    let valid = (1..=MAX_NAME).contains(&name.len());
    valid.then_some(name).ok_or_else(|| Error::out_of_range("name", &POLICY, name))
}
