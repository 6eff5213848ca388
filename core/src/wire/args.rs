//! Left-to-right parser of a command's words. Words are bytes and need not be UTF-8.

use crate::number::decimal::MAX_NUMBER;
use crate::wire::error::{Error, MustBe, Position, Reason, Syntax};
use crate::wire::short_bytes::are_equal;
use smallvec::SmallVec;

/// Words of a call, starting with the name of its command.
pub trait Words {
    /// Returns the number of words.
    fn count(&self) -> usize;

    /// Returns the bytes of a word, or `None` after the last one.
    fn word(&self, index: usize) -> Option<&[u8]>;
}

/// Implements [`Words`] for sequences of byte slices in memory.
macro_rules! words_in_memory {
    ($(($($generics:tt)*) $type:ty),*) => {$(
        impl $($generics)* Words for $type {
            fn count(&self) -> usize {
                self.len()
            }

            fn word(&self, index: usize) -> Option<&[u8]> {
                self.get(index).copied()
            }
        }
    )*};
}
words_in_memory!((<const COUNT: usize>) [&[u8]; COUNT], () &[&[u8]], () Vec<&[u8]>);

/// Remaining words of a call. The bytes of a word are fetched only when they are read. Most calls never fetch the name
/// of their key, which only the server needs.
///
/// ```
/// use ratelimit_core::wire::args::{Args, KeyIndex};
/// use ratelimit_core::wire::error::{Error, Reason};
///
/// let words: [&[u8]; 4] = [b"RL.DEMO", b"user:7", b"force", b"more"];
/// let mut args = Args::new(&words);
/// assert_eq!(args.key(), Ok(KeyIndex(1)));
/// assert!(!args.accept("COST") && args.accept("FORCE"));
/// assert_eq!(args.end(), Err(Error::unexpected(b"more", Reason::AtEnd)));
/// ```
#[derive(Clone, Copy)]
pub struct Args<'a> {
    words: &'a dyn Words,
    count: usize,
    next: usize,
}

/// Index of a key among the words of a call. The server is asked for the key by this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyIndex(pub usize);

/// Parses a whole number of plain digits, up to `max`.
pub fn whole(text: &[u8], max: u64) -> Option<u64> {
    let digits = text.len() <= MAX_NUMBER && text.iter().all(u8::is_ascii_digit);
    let value = std::str::from_utf8(digits.then_some(text)?).ok()?.parse().ok()?;
    (value <= max).then_some(value)
}

/// Maximum number of names that are compared pairwise, which allocates nothing.
const MAX_PAIRWISE: usize = 16;

/// Returns a name that occurs twice, if there is one.
#[must_use]
pub fn duplicate<'a>(names: impl ExactSizeIterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let mut names: SmallVec<[&[u8]; MAX_PAIRWISE]> = names.collect();
    if names.len() <= MAX_PAIRWISE {
        let is_repeated =
            |(index, name): &(usize, &&[u8])| names.iter().take(*index).any(|other| are_equal(other, name));
        return names.iter().enumerate().find(is_repeated).map(|(_, name)| *name);
    }
    names.sort_unstable();
    names.windows(2).find_map(|pair| matches!(pair, [one, other] if one == other).then(|| pair.first().copied())?)
}

impl<'a> Args<'a> {
    /// Creates a parser for the words of a call. The first word, the name of the command, is skipped.
    #[must_use]
    pub fn new(words: &'a dyn Words) -> Args<'a> {
        Args { words, count: words.count(), next: 1 }
    }

    /// Reads the next word as a required argument of the command. If it is missing, the reply is the server's text for a
    /// wrong number of arguments.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is no next word.
    #[inline]
    pub fn word(&mut self) -> Result<&'a [u8], Error> {
        let Some(word) = self.peek() else { return Err(Error::WrongArity) };
        self.skip();
        Ok(word)
    }

    /// Reads the next word as an argument of `syntax`.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is no next word.
    #[inline]
    pub fn argument(&mut self, argument: &'static str, syntax: &'static Syntax) -> Result<&'a [u8], Error> {
        let Some(word) = self.peek() else { return Err(Error::Missing { argument, syntax }) };
        self.skip();
        Ok(word)
    }

    /// Reads the next word as the value of an option of `syntax`.
    ///
    /// # Errors
    /// Returns an error if the word is missing, or if `parse` returns `None` for it.
    #[inline]
    pub fn option_value<T>(
        &mut self,
        argument: &'static str,
        syntax: &'static Syntax,
        must_be: &'static MustBe,
        parse: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Result<T, Error> {
        let word = self.argument(argument, syntax)?;
        parse(word).ok_or_else(|| Error::out_of_range(argument, must_be, word))
    }

    /// Reads the next word as one of several arguments of `syntax`. The error says if their order is wrong.
    ///
    /// # Errors
    /// Returns an error if the word is missing, or if `parse` returns `None` for it.
    #[inline(always)]
    pub fn positional<T>(
        &mut self,
        argument: &'static str,
        syntax: &'static Syntax,
        must_be: &'static MustBe,
        parse: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Result<T, Error> {
        parse(self.argument(argument, syntax)?).ok_or_else(|| self.invalid(argument, must_be, syntax))
    }

    /// Returns the word that was read `ago` words before the most recent one.
    #[must_use]
    pub fn recent_word(&self, ago: usize) -> &'a [u8] {
        let index = self.next.checked_sub(1).and_then(|last| last.checked_sub(ago));
        index.and_then(|index| self.words.word(index)).unwrap_or_default()
    }

    /// Returns the error for the most recent word as an invalid argument of `syntax`.
    #[cold]
    #[must_use]
    pub fn invalid(&self, argument: &'static str, must_be: &'static MustBe, syntax: &'static Syntax) -> Error {
        let is_first = self.recent_word(1).eq_ignore_ascii_case(syntax.word.as_bytes());
        Error::out_of_range_at(argument, must_be, self.recent_word(0), Position { syntax, is_first })
    }

    /// Returns the error for the next word, which is not allowed for `reason`.
    #[cold]
    #[must_use]
    pub fn unexpected(&self, reason: Reason) -> Error {
        Error::unexpected(self.peek().unwrap_or_default(), reason)
    }

    /// Reads the next word as a key, and returns its index.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is no next word.
    #[inline]
    pub fn key(&mut self) -> Result<KeyIndex, Error> {
        let index = KeyIndex(self.next);
        self.skip();
        if index.0 < self.count { Ok(index) } else { Err(Error::WrongArity) }
    }

    /// Returns the name of a key.
    #[must_use]
    pub fn name(&self, key: KeyIndex) -> &'a [u8] {
        self.words.word(key.0).unwrap_or_default()
    }

    /// Reads `numkeys key [key ...]` and returns the indexes of the keys. Returns `None` unless numkeys is at least 1
    /// and so many words follow.
    pub fn numbered_keys(&mut self) -> Option<impl ExactSizeIterator<Item = KeyIndex> + Clone + use<>> {
        let count = usize::try_from(whole(self.word().ok()?, u64::MAX)?).ok().filter(|count| *count > 0)?;
        let first = self.next;
        self.next = first.checked_add(count).filter(|end| *end <= self.count)?;
        Some((first..self.next).map(KeyIndex))
    }

    /// Reads the next word if it is `expected`, in any case. Returns `true` if it was read.
    pub fn accept(&mut self, expected: &str) -> bool {
        let found = self.peek().is_some_and(|word| word.eq_ignore_ascii_case(expected.as_bytes()));
        if found {
            self.skip();
        }
        found
    }

    /// Reads the next `COUNT` words, with `None` for each missing one.
    #[inline(always)]
    pub fn next_words<const COUNT: usize>(&mut self) -> [Option<&'a [u8]>; COUNT] {
        let first = self.next;
        self.next = first.saturating_add(COUNT);
        std::array::from_fn(|offset| self.words.word(first.saturating_add(offset)))
    }

    /// Skips the next word.
    pub fn skip(&mut self) {
        self.next = self.next.saturating_add(1);
    }

    /// Checks that all words have been read.
    ///
    /// # Errors
    /// Returns [`Error::Unexpected`] for the first remaining word.
    #[inline]
    pub fn end(&self) -> Result<(), Error> {
        if self.is_empty() { Ok(()) } else { Err(self.unexpected(Reason::AtEnd)) }
    }

    /// Returns `true` if all words have been read.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next >= self.count
    }

    /// Returns the next word without reading it.
    #[must_use]
    #[inline]
    pub fn peek(&self) -> Option<&'a [u8]> {
        self.words.word(self.next)
    }
}

#[cfg(test)]
mod tests;
