//! Calls that name a policy instead of their limits.

use super::common_options::CommonOptions;
use super::options::Options;
use super::purpose::Verb;
use super::word_errors;
use super::words::{MULTI_KEY_POLICY_NAME_OPTIONS, POLICY_NAME_OPTIONS};
use crate::wire::args::Args;
use crate::wire::error::{Error, Expected, MustBe, Reason, Syntax};
use crate::wire::name;

const POLICY: MustBe = MustBe::other("a name of 1 to 256 bytes", "plan:pro");
const POLICY_SYNTAX: Syntax = Syntax { word: "POLICY", arguments: "name [OR name ...]" };
const OR_SYNTAX: Syntax = Syntax { word: "OR", arguments: "name" };

/// Parsed call on one key that names a policy.
#[derive(Clone, Debug)]
pub struct PolicyRequest<'a> {
    /// Name of the preferred policy.
    preferred: &'a [u8],
    /// Names of fallback policies, in order (OR).
    fallbacks: Vec<&'a [u8]>,
    /// Options of the call.
    pub(super) common: CommonOptions<'a>,
    /// Command family: the call charges or only evaluates.
    pub(super) verb: Verb,
}

impl<'a> PolicyRequest<'a> {
    /// Parses `[OR name ...] [options]`, the words after the first name in RL.LIMIT.
    ///
    /// # Errors
    /// Returns an error that names the first word that is missing or malformed.
    pub fn after_first_name(preferred: &'a [u8], args: &mut Args<'a>) -> Result<PolicyRequest<'a>, Error> {
        let request = PolicyRequest::after_name(preferred, args, Verb::Take, &CommonOptions::NONE, false)?;
        if let Some(word) = args.peek() {
            return Err(word_errors::expected_instead(word, Expected::OrOption, POLICY_NAME_OPTIONS));
        }
        Ok(request)
    }

    /// Parses the words after POLICY in a call on one key.
    pub(super) fn of_only_key(
        args: &mut Args<'a>,
        verb: Verb,
        common: &CommonOptions<'a>,
    ) -> Result<PolicyRequest<'a>, Error> {
        let request = PolicyRequest::after_name(next_name(args, &POLICY_SYNTAX)?, args, verb, common, false)?;
        match args.peek() {
            Some(word) => Err(word_errors::unexpected(word, Reason::BesidePolicy)),
            None => Ok(request),
        }
    }

    /// Parses the words after POLICY for one key of a call on many keys.
    pub(super) fn of_one_of_several_keys(
        args: &mut Args<'a>,
        verb: Verb,
        common: &CommonOptions<'a>,
    ) -> Result<PolicyRequest<'a>, Error> {
        PolicyRequest::after_name(next_name(args, &POLICY_SYNTAX)?, args, verb, common, true)
    }

    /// Parses `[OR name ...] [options]`. `is_one_of_several_keys` is `true` in a call on many keys.
    #[inline(never)]
    fn after_name(
        preferred: &'a [u8],
        args: &mut Args<'a>,
        verb: Verb,
        common: &CommonOptions<'a>,
        is_one_of_several_keys: bool,
    ) -> Result<PolicyRequest<'a>, Error> {
        let words = if is_one_of_several_keys { MULTI_KEY_POLICY_NAME_OPTIONS } else { POLICY_NAME_OPTIONS };
        let mut fallbacks = Vec::new();
        while args.accept("OR") {
            fallbacks.push(next_name(args, &OR_SYNTAX)?);
        }
        let own = Options::parse(args, words)?;
        if is_one_of_several_keys {
            own.reject_single_spec_options()?;
        }
        Ok(PolicyRequest { preferred, fallbacks, common: common.merged_with(&own)?, verb })
    }

    /// Returns the names of the policies in order. The first policy that exists applies.
    pub fn names(&self) -> impl Iterator<Item = &'a [u8]> {
        std::iter::once(self.preferred).chain(self.fallbacks.iter().copied())
    }

    /// Returns the error of a call whose policies do not exist.
    #[cold]
    #[must_use]
    pub fn no_such_policy(&self) -> Error {
        Error::no_policy(self.names())
    }

    /// Returns `true` if the reply lists the decision of each limit (EACH).
    #[must_use]
    pub fn each(&self) -> bool {
        self.common.options.each
    }
}

/// Parses the name of a policy that is a required argument. If the name is missing, the error is a wrong number of
/// arguments.
///
/// # Errors
/// Returns an error if the word is missing or is not a valid name.
#[inline(always)]
pub fn name_of_policy<'a>(args: &mut Args<'a>) -> Result<&'a [u8], Error> {
    let word = args.word()?;
    name::valid(word).ok_or_else(|| Error::out_of_range("name", &POLICY, word))
}

/// Parses the name of a policy after POLICY or OR, the word of `syntax`.
fn next_name<'a>(args: &mut Args<'a>, syntax: &'static Syntax) -> Result<&'a [u8], Error> {
    args.option_value("name", syntax, &POLICY, name::valid)
}
