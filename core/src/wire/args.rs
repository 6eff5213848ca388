//! A left-to-right reader of a command's words. Words are bytes: nothing is taken to be UTF-8.

use crate::number::decimal::MAX_NUMBER;
use crate::wire::error::{Error, MustBe, Position, Reason, Syntax};

/// The words of a call, its command's name first, as whoever was sent them holds them.
pub trait Words {
    /// How many there are.
    fn count(&self) -> usize;

    /// The bytes of one of them; `None` past the last.
    fn word(&self, place: usize) -> Option<&[u8]>;
}

/// Words that stand in memory one after another: an array, a slice, a list.
macro_rules! words_in_memory {
    ($(($($generics:tt)*) $type:ty),*) => {$(
        impl $($generics)* Words for $type {
            fn count(&self) -> usize {
                self.len()
            }

            fn word(&self, place: usize) -> Option<&[u8]> {
                self.get(place).copied()
            }
        }
    )*};
}
words_in_memory!((<const COUNT: usize>) [&[u8]; COUNT], () &[&[u8]], () Vec<&[u8]>);

/// The words of a call that have not been read yet. A word is asked for when it is read: what nobody needs, the bytes
/// of a key's name, is not.
///
/// ```
/// use ratelimit_core::wire::args::{Args, KeyName};
/// use ratelimit_core::wire::error::{Error, Reason};
///
/// let words: [&[u8]; 4] = [b"RL.DEMO", b"user:7", b"force", b"more"];
/// let mut args = Args::new(&words);
/// assert_eq!(args.key(), Ok(KeyName(1)));
/// assert!(!args.accept("COST") && args.accept("FORCE"));
/// assert_eq!(args.end(), Err(Error::unexpected(b"more", Reason::AtEnd)));
/// ```
#[derive(Clone, Copy)]
pub struct Args<'a> {
    words: &'a dyn Words,
    count: usize,
    next: usize,
}

/// The place of a key among the words of a call: how the server is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName(pub usize);

/// A whole number in plain digits, up to `most`.
pub fn whole(text: &[u8], most: u64) -> Option<u64> {
    let digits = text.len() <= MAX_NUMBER && text.iter().all(u8::is_ascii_digit);
    let value = std::str::from_utf8(digits.then_some(text)?).ok()?.parse().ok()?;
    (value <= most).then_some(value)
}

/// How many names are compared each with each, which needs no memory.
const FEW: usize = 16;

/// A name that comes twice.
#[must_use]
pub fn twin<'a>(names: impl ExactSizeIterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    if names.len() <= FEW {
        let mut few: [&[u8]; FEW] = [&[]; FEW];
        let count = names.len();
        few.iter_mut().zip(names).for_each(|(room, name)| *room = name);
        let names = few.get(..count).unwrap_or(&few);
        let mut twins =
            names.iter().enumerate().filter(|(place, name)| names.iter().take(*place).any(|other| other == *name));
        return twins.next().map(|(_, name)| *name);
    }
    let mut sorted: Vec<_> = names.collect();
    sorted.sort_unstable();
    sorted.windows(2).find_map(|pair| matches!(pair, [one, other] if one == other).then(|| pair.first().copied())?)
}

impl<'a> Args<'a> {
    /// All words of a call, its command's name first; reading begins after that.
    #[must_use]
    pub fn new(words: &'a dyn Words) -> Args<'a> {
        Args { words, count: words.count(), next: 1 }
    }

    /// The next word, which the server counts.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is none.
    #[inline]
    pub fn word(&mut self) -> Result<&'a [u8], Error> {
        let Some(word) = self.peek() else { return Err(Error::WrongArity) };
        self.skip();
        Ok(word)
    }

    /// The next word, an argument of what `syntax` says.
    ///
    /// # Errors
    /// [`Error::Missing`] if there is none.
    #[inline]
    pub fn argument(&mut self, argument: &'static str, syntax: &'static Syntax) -> Result<&'a [u8], Error> {
        let Some(word) = self.peek() else { return Err(Error::missing(argument, syntax)) };
        self.skip();
        Ok(word)
    }

    /// The word that was read that many words ago: 0 is the last.
    #[must_use]
    pub fn before(&self, ago: usize) -> &'a [u8] {
        let place = self.next.checked_sub(1).and_then(|last| last.checked_sub(ago));
        place.and_then(|place| self.words.word(place)).unwrap_or_default()
    }

    /// The refusal of the word that was read last, as an argument of what `syntax` says.
    #[cold]
    #[must_use]
    pub fn refused(&self, argument: &'static str, must_be: &'static MustBe, syntax: &'static Syntax) -> Error {
        let is_first = self.before(1).eq_ignore_ascii_case(syntax.word.as_bytes());
        Error::out_of_place(argument, must_be, self.before(0), Position { syntax, is_first })
    }

    /// The refusal of the next word.
    #[cold]
    #[must_use]
    pub fn unexpected(&self, reason: Reason) -> Error {
        Error::unexpected(self.peek().unwrap_or_default(), reason)
    }

    /// The next word, as a key: its place.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is none.
    #[inline]
    pub fn key(&mut self) -> Result<KeyName, Error> {
        let place = KeyName(self.next);
        if self.is_empty() {
            return Err(Error::WrongArity);
        }
        self.skip();
        Ok(place)
    }

    /// The bytes of a key's name.
    #[must_use]
    pub fn name(&self, key: KeyName) -> &'a [u8] {
        self.words.word(key.0).unwrap_or_default()
    }

    /// `numkeys key [key ...]`: the places of the keys. `None` unless there are as many, and any.
    pub fn numbered_keys(&mut self) -> Option<impl ExactSizeIterator<Item = KeyName> + Clone + use<>> {
        let count = usize::try_from(whole(self.word().ok()?, u64::MAX)?).ok().filter(|count| *count > 0)?;
        let first = self.next;
        self.next = first.checked_add(count).filter(|end| *end <= self.count)?;
        Some((first..self.next).map(KeyName))
    }

    /// Whether the next word is `expected`, in any case; if so it is read.
    pub fn accept(&mut self, expected: &str) -> bool {
        let found = self.peek().is_some_and(|word| word.eq_ignore_ascii_case(expected.as_bytes()));
        if found {
            self.skip();
        }
        found
    }

    /// The next words, as many as are asked for, and goes on behind them. `None` for each that is not there.
    #[inline(always)]
    pub fn next_words<const COUNT: usize>(&mut self) -> [Option<&'a [u8]>; COUNT] {
        let first = self.next;
        self.next = first.saturating_add(COUNT);
        std::array::from_fn(|place| self.words.word(first.saturating_add(place)))
    }

    /// Goes on behind the next word.
    pub fn skip(&mut self) {
        self.next = self.next.saturating_add(1);
    }

    /// Refuses whatever is left.
    ///
    /// # Errors
    /// [`Error::Unexpected`] names the first word of it.
    #[inline]
    pub fn end(&self) -> Result<(), Error> {
        if self.is_empty() { Ok(()) } else { Err(self.unexpected(Reason::AtEnd)) }
    }

    /// Whether all words have been read.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.next >= self.count
    }

    /// The next word, which stays to be read.
    #[must_use]
    #[inline]
    pub fn peek(&self) -> Option<&'a [u8]> {
        self.words.word(self.next)
    }
}

#[cfg(test)]
mod tests;
