//! Errors for words at positions where they are not allowed.

use super::grammar::{CONCURRENCY, Reader, SYNTAXES};
use super::purpose::Verb;
use super::spec::{MAX_SPECS, Spec};
use super::words::{self, OptionSet, Word, is_ban, is_policy, names, out_of_place};
use crate::wire::error::{Error, Expected, Needed, Reason};

/// Position of a word that does not begin a spec. The error lists the words that are allowed there.
#[derive(Clone, Copy)]
pub(super) enum WordPlace {
    /// Before the first spec of a call.
    First,
    /// Before the first spec of a policy.
    FirstOfPolicy,
    /// After a spec of a call.
    Next,
    /// After a spec of a policy.
    NextOfPolicy,
    /// Before the first spec of a call on several keys.
    FirstOfKeys,
    /// After a spec of a call on several keys, where the spec of the next key is needed.
    NextOfKeys,
}

impl WordPlace {
    /// Returns `true` if the position is in the definition of a policy.
    pub(super) fn is_in_policy(self) -> bool {
        matches!(self, WordPlace::FirstOfPolicy | WordPlace::NextOfPolicy)
    }
}

/// Returns the error for a word where the name of an algorithm or one of `options` is needed.
#[cold]
pub(super) fn unknown(word: &[u8], place: WordPlace, options: OptionSet, verb: Verb) -> Error {
    let (what, options) = match place {
        WordPlace::First => (Expected::FirstSpec, options),
        WordPlace::FirstOfPolicy => (Expected::Algorithm, words::NONE),
        WordPlace::FirstOfKeys => (Expected::FirstSpecOfKeys, options),
        WordPlace::Next | WordPlace::NextOfPolicy => (Expected::NextSpec, options),
        WordPlace::NextOfKeys => (Expected::NextSpecOfKeys, options),
    };
    let mut error = missing(word, what, options, true);
    if let (WordPlace::First, Error::Unexpected { reason, .. }) = (place, &mut error)
        && let Reason::Needed(needed) = &mut **reason
    {
        needed.suggest_policy(verb.syntax_by_policy(), word);
    }
    error
}

/// Returns the error for a word that is not allowed at its position. For BLOCK and FENCE it names the only command that
/// has them.
#[cold]
pub(super) fn unexpected(word: &[u8], reason: Reason) -> Error {
    if let Some(option) = [Word::Block, Word::Fence].into_iter().find(|option| option.is(word)) {
        out_of_place(option, Reason::OnlyAcquire)
    } else {
        Error::unexpected(word, reason)
    }
}

/// Returns `true` if the word is an option that a sketch, whose options are `options`, cannot support.
fn is_unsupported_by_sketch(word: &[u8], options: OptionSet) -> bool {
    options.contains(&Word::Size) && [Word::As, Word::Once, Word::Settle].into_iter().any(|option| option.is(word))
}

/// Returns the error for a word in a place where `what` is needed: one of `options`, or also the name of an algorithm
/// if `or_algorithm` is `true`.
#[cold]
pub(super) fn missing(word: &[u8], what: Expected, options: OptionSet, or_algorithm: bool) -> Error {
    if is_unsupported_by_sketch(word, options) {
        return Error::unexpected(word, Reason::MergedInSketch);
    }
    let algorithms = if or_algorithm { SYNTAXES.map(|syntax| syntax.word).to_vec() } else { Vec::new() };
    let mut needed = Needed::instead_of(word, what, names(options), algorithms);
    let of_take = || is_ban(word) || is_policy(word) || Word::Each.is(word) || Spec::reader(word).is_some();
    if what == Expected::Option && of_take() {
        needed.suggest("RL.TAKE");
    } else if or_algorithm && (word.eq_ignore_ascii_case(b"ACQUIRE") || word.eq_ignore_ascii_case(b"RL.ACQUIRE")) {
        needed.suggest(CONCURRENCY.word);
    }
    let has_cost = options.iter().any(|option| matches!(option, Word::Cost | Word::CostOfLease));
    if has_cost && matches!(what, Expected::Option | Expected::OrOption | Expected::NextSpec) {
        needed.suggest_value_of("COST", word);
    }
    if what == Expected::OrOption {
        needed.suggest_value_of("OR", word);
    }
    unexpected(word, Reason::Needed(needed))
}

/// Returns the parser of the spec that `word` begins. `before` specs precede it, and the last of them has the options
/// `words`.
pub(super) fn next_reader<'a>(
    word: &[u8],
    words: OptionSet,
    place: WordPlace,
    before: usize,
    verb: Verb,
) -> Result<Reader<'a>, Error> {
    let Some(read) = Spec::reader(word) else {
        if word.eq_ignore_ascii_case(b"EACH") && !place.is_in_policy() {
            return Err(Error::unexpected(b"EACH", Reason::ForAllSpecs));
        }
        if is_policy(word) {
            return Err(Error::unexpected(b"POLICY", Reason::PolicyAlone));
        }
        return Err(unknown(word, place, words, verb));
    };
    if before == MAX_SPECS {
        return Err(Error::unexpected(word, Reason::TooManySpecs { max: MAX_SPECS, of_policy: place.is_in_policy() }));
    }
    Ok(read)
}
