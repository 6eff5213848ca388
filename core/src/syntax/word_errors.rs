//! Errors for words at positions where they are not allowed.

use super::grammar::{CONCURRENCY, LimitParser, SYNTAXES};
use super::purpose::Verb;
use super::spec::{MAX_SPECS, Spec};
use super::words::{OptionSet, Word, is_ban, is_policy, names, out_of_place};
use crate::wire::error::{Error, Expected, Needed, Reason, Suggestion};

/// Returns the error for a word where the first spec of a call on one key is needed, or one of `options`.
#[cold]
pub(super) fn unknown_first(word: &[u8], options: OptionSet, verb: Verb) -> Error {
    let mut error = expected_instead(word, Expected::FirstSpec, options);
    if let Error::Unexpected { reason, .. } = &mut error
        && let Reason::Needed(needed) = &mut **reason
    {
        needed.suggest_policy(verb.syntax_by_policy(), word);
    }
    error
}

/// Returns the error for a word that is not allowed at its position. For BLOCK and FENCE, the error names RL.ACQUIRE,
/// the only command that has them.
#[cold]
pub(super) fn unexpected(word: &[u8], reason: Reason) -> Error {
    if let Some(option) = [Word::Block, Word::Fence].into_iter().find(|option| option.is(word)) {
        out_of_place(option, Reason::OnlyAcquire)
    } else {
        Error::unexpected(word, reason)
    }
}

/// Returns the error for a word in a place where `expected` is needed: one of `options`, or mostly also an algorithm.
#[cold]
pub(super) fn expected_instead(word: &[u8], expected: Expected, options: OptionSet) -> Error {
    let is_of_sketch = options.contains(&Word::Size);
    if is_of_sketch && [Word::As, Word::Once, Word::Settle].into_iter().any(|option| option.is(word)) {
        return Error::unexpected(word, Reason::MergedInSketch);
    }
    let can_be_algorithm = !matches!(expected, Expected::Option | Expected::OrOption);
    let algorithms = if can_be_algorithm { SYNTAXES.map(|syntax| syntax.word).to_vec() } else { Vec::new() };
    let mut needed = Needed::instead_of(word, expected, names(options), algorithms);
    let belongs_to_take =
        || is_ban(word) || is_policy(word) || Word::Each.is(word) || Spec::limit_parser(word).is_some();
    if expected == Expected::Option && belongs_to_take() {
        needed.suggestion = Suggestion::Word("RL.TAKE");
    } else if can_be_algorithm && (word.eq_ignore_ascii_case(b"ACQUIRE") || word.eq_ignore_ascii_case(b"RL.ACQUIRE")) {
        needed.suggestion = Suggestion::Word(CONCURRENCY.word);
    }
    let has_cost = options.iter().any(|option| matches!(option, Word::Cost | Word::CostOfLease));
    if has_cost && matches!(expected, Expected::Option | Expected::OrOption | Expected::NextSpec) {
        needed.suggest_value_of("COST", word);
    }
    if expected == Expected::OrOption {
        needed.suggest_value_of("OR", word);
    }
    unexpected(word, Reason::Needed(needed))
}

/// Returns the parser of the spec that begins with `word`, in a call on one key or in the definition of a policy.
/// `spec_count` specs precede it, and the last one accepts the options `words`.
pub(super) fn next_limit_parser<'a>(
    word: &[u8],
    words: OptionSet,
    spec_count: usize,
    in_policy: bool,
) -> Result<LimitParser<'a>, Error> {
    let Some(parse) = Spec::limit_parser(word) else {
        if word.eq_ignore_ascii_case(b"EACH") && !in_policy {
            return Err(Error::unexpected(b"EACH", Reason::ForAllSpecs));
        }
        if is_policy(word) {
            return Err(Error::unexpected(b"POLICY", Reason::PolicyAlone));
        }
        return Err(expected_instead(
            word,
            if spec_count == 0 { Expected::Algorithm } else { Expected::NextSpec },
            words,
        ));
    };
    if spec_count == MAX_SPECS {
        return Err(Error::unexpected(word, Reason::TooManySpecs { max: MAX_SPECS, in_policy }));
    }
    Ok(parse)
}
