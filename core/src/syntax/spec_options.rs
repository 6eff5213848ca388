//! What stands behind the numbers of a spec.

use super::bucket_memo::BucketMemo;
use super::options::{Options, excluded, next};
use super::purpose::{Acquiring, Block};
use super::words::{OF_ACQUIRE, OptionSet, SpecOptionSets, Word};
use crate::number::Span;
use crate::wire::args::Args;
use crate::wire::error::{Error, MustBe, Syntax};

/// What BLOCK says.
const BLOCK: MustBe = MustBe::duration("0 (no end) or a duration", " from 1us to 3650d", "5s");
const OF_BLOCK: Syntax = Syntax { word: "BLOCK", arguments: "duration" };

/// What stands behind the numbers of a spec.
#[derive(Clone, Copy, Debug, Default)]
pub struct SpecOptions<'a> {
    options: Option<Options<'a>>,
    /// Those that there could be.
    pub(super) words: OptionSet,
    /// Whether the spec is a policy's.
    pub(super) of_policy: bool,
    /// Where the buckets are that were read last.
    pub(super) memo: Option<&'a BucketMemo>,
}

impl<'a> SpecOptions<'a> {
    /// Of a spec of a policy.
    pub(super) fn of_policy() -> SpecOptions<'a> {
        SpecOptions { of_policy: true, ..SpecOptions::default() }
    }

    /// Of a spec whose bucket may have been read before.
    #[must_use]
    pub fn remembering(memo: &'a BucketMemo) -> SpecOptions<'a> {
        SpecOptions { memo: Some(memo), ..SpecOptions::default() }
    }

    /// Reads options up to a word that is none of `words`; whether the algorithm's own flag was among them.
    #[inline(always)]
    pub(super) fn read(&mut self, args: &mut Args<'a>, words: &SpecOptionSets) -> Result<bool, Error> {
        // Most calls have none.
        if args.is_empty() { Ok(false) } else { self.read_any(args, words) }
    }

    #[inline(never)]
    fn read_any(&mut self, args: &mut Args<'a>, words: &SpecOptionSets) -> Result<bool, Error> {
        let words = if self.of_policy { words.of_policy } else { words.of_call };
        self.words = words;
        let Some(first) = next(args, words) else { return Ok(false) };
        // A limit with its flag is as plain as one without.
        let mut after_flag = *args;
        after_flag.skip();
        if matches!(first, Word::Aligned | Word::Strict) && after_flag.is_empty() {
            *args = after_flag;
            return Ok(true);
        }
        let options = self.options.insert(Options::NONE);
        options.read_from(first, args, words)?;
        Ok(options.flagged)
    }

    /// Reads the options of RL.ACQUIRE; what BLOCK and FENCE say.
    #[inline(never)]
    pub(super) fn read_acquiring(&mut self, args: &mut Args<'a>) -> Result<Acquiring, Error> {
        self.words = OF_ACQUIRE;
        let (mut block, mut fence) = (None, false);
        while let Some(option) = next(args, OF_ACQUIRE) {
            let before = *args;
            args.skip();
            let there = if option == Word::Block {
                block.replace(blocking(args.argument("block", &OF_BLOCK)?)?).map(|_| Word::Block)
            } else if option == Word::Fence {
                std::mem::replace(&mut fence, true).then_some(Word::Fence)
            } else {
                self.options.get_or_insert(Options::NONE).take(option, args)?
            };
            if let Some(there) = there {
                return Err(excluded(&before, option, there));
            }
        }
        Ok(Acquiring { block: block.unwrap_or_default(), fence })
    }

    /// Whether nothing stands there but perhaps the algorithm's own flag, and no word is left.
    #[must_use]
    #[inline(always)]
    pub fn is_nothing(&self, args: &Args) -> bool {
        args.is_empty() && self.has_no_options()
    }

    /// Whether no option was read but perhaps the algorithm's own flag; words may be left.
    #[inline(always)]
    pub(super) fn has_no_options(&self) -> bool {
        self.options.is_none()
    }

    /// The options, or none.
    pub(super) fn options(&self) -> &Options<'a> {
        self.options.as_ref().unwrap_or(&Options::NONE)
    }
}

/// Only the bare `0` has no end. A program that works out what is left of a time-out gets `0ms` at its end, and means
/// the opposite.
fn blocking(text: &[u8]) -> Result<Block, Error> {
    if text == b"0" {
        return Ok(Block::Forever);
    }
    let span = Span::parse(text).filter(|span| *span != Span::ZERO);
    span.map(Block::For).ok_or_else(|| Error::out_of_range("block", &BLOCK, text))
}
