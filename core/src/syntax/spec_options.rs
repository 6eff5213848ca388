//! Options after the numbers of a spec.

use super::bucket_cache::BucketCache;
use super::options::{Options, excluded, next_option};
use super::purpose::{AcquireOptions, Block};
use super::words::{ACQUIRE_OPTIONS, OptionSet, SpecOptionSets, Word};
use crate::number::Span;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Syntax};

/// Valid values of BLOCK.
const BLOCK: MustBe = MustBe::duration("0 (no end) or a duration", " from 1us to 3650d", "5s");
const BLOCK_SYNTAX: Syntax = Syntax { word: "BLOCK", arguments: "duration" };

/// Parser state of the options after the numbers of a spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecOptions<'a> {
    options: Option<Options<'a>>,
    /// Options that the algorithm accepts, for errors about the next word.
    pub(super) words: OptionSet,
    /// `true` if the spec is part of a policy's definition.
    pub(super) in_policy: bool,
    /// Cache of parsed buckets.
    pub(super) cache: Option<&'a BucketCache>,
}

impl<'a> SpecOptions<'a> {
    /// Creates the parser state for a spec of a policy.
    pub(super) fn for_policy() -> SpecOptions<'a> {
        SpecOptions { in_policy: true, ..SpecOptions::default() }
    }

    /// Creates the parser state for a spec whose bucket may be in `cache`.
    #[must_use]
    pub fn with_cache(cache: Option<&'a BucketCache>) -> SpecOptions<'a> {
        SpecOptions { cache, ..SpecOptions::default() }
    }

    /// Parses options up to the first word that is not one of `words`. Returns `true` if the algorithm's own flag was
    /// among them.
    #[inline(always)]
    pub(super) fn parse(&mut self, args: &mut Args<'a>, words: &SpecOptionSets) -> Result<bool, Error> {
        // Most calls have no options.
        if args.is_empty() { Ok(false) } else { self.parse_any(args, words) }
    }

    #[inline(never)]
    fn parse_any(&mut self, args: &mut Args<'a>, words: &SpecOptionSets) -> Result<bool, Error> {
        let words = if self.in_policy { words.of_policy } else { words.of_call };
        self.words = words;
        let Some(first) = next_option(args, words) else { return Ok(false) };
        // A flag as the last word needs no `Options`, so that the spec stays plain.
        let mut after_flag = *args;
        after_flag.skip();
        if matches!(first, Word::Aligned | Word::Strict) && after_flag.is_empty() {
            *args = after_flag;
            return Ok(true);
        }
        let options = self.options.insert(Options::NONE);
        options.parse_from(first, args, words)?;
        Ok(options.has_flag)
    }

    /// Parses the options of RL.ACQUIRE and returns those that no other command has.
    #[inline(never)]
    pub(super) fn parse_acquire_options(&mut self, args: &mut Args<'a>) -> Result<AcquireOptions, Error> {
        self.words = ACQUIRE_OPTIONS;
        let (mut block, mut fence) = (None, false);
        while let Some(option) = next_option(args, ACQUIRE_OPTIONS) {
            let before = *args;
            args.skip();
            let other = if option == Word::Block {
                block.replace(args.option_value("block", &BLOCK_SYNTAX, &BLOCK, parse_block)?).map(|_| Word::Block)
            } else if option == Word::Fence {
                std::mem::replace(&mut fence, true).then_some(Word::Fence)
            } else {
                self.options.get_or_insert(Options::NONE).set(option, args)?
            };
            if let Some(other) = other {
                return Err(excluded(&before, option, other));
            }
        }
        Ok(AcquireOptions { block: block.unwrap_or_default(), fence })
    }

    /// Returns `true` if no word is left, and no option was parsed. ALIGNED or STRICT as the last word is no option.
    #[must_use]
    #[inline(always)]
    pub fn is_plain(&self, args: &Args) -> bool {
        args.is_empty() && !self.has_any()
    }

    /// Returns `true` if an option was parsed. ALIGNED or STRICT as the last word of the call is no option.
    #[inline(always)]
    pub(super) fn has_any(&self) -> bool {
        self.options.is_some()
    }

    /// Returns the parsed options, or empty options if there are none.
    pub(super) fn options(&self) -> &Options<'a> {
        self.options.as_ref().unwrap_or(&Options::NONE)
    }
}

/// Parses the duration of BLOCK.
///
/// Only the bare `0` waits without a timeout. `0ms` is rejected, because a program may send it when its own timeout is
/// over, and must not wait forever.
fn parse_block(text: &[u8]) -> Option<Block> {
    if text == b"0" {
        return Some(Block::Forever);
    }
    Span::parse(text).filter(|span| *span != Span::ZERO).map(Block::For)
}
