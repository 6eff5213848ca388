//! A left-to-right reader of a command's words. Words are bytes: nothing is taken to be UTF-8.

use crate::error::Error;

/// The words of a call that have not been read yet.
#[derive(Clone, Debug)]
pub struct Args<'a> {
    words: &'a [&'a [u8]],
    next: usize,
}

/// The place of a key among the words of a call: how the server is asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyName(pub usize);

/// A whole number in plain digits, up to `most`.
pub fn whole(text: &[u8], most: u64) -> Option<u64> {
    let digits = text.iter().all(u8::is_ascii_digit);
    let value = std::str::from_utf8(text).ok().filter(|_| digits)?.parse().ok()?;
    (value <= most).then_some(value)
}

/// Up to so many names are compared each with each, which needs no memory.
const FEW: usize = 16;

/// Whether a name comes twice.
#[must_use]
pub fn has_twins(names: &[&[u8]]) -> bool {
    if names.len() <= FEW {
        return names.iter().enumerate().any(|(place, name)| names.iter().take(place).any(|other| other == name));
    }
    let mut sorted = names.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| matches!(pair, [one, other] if one == other))
}

impl<'a> Args<'a> {
    /// All words of a call, its command's name first; reading begins after that.
    #[must_use]
    pub fn new(words: &'a [&'a [u8]]) -> Args<'a> {
        Args { words, next: 1 }
    }

    /// The next word.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is none.
    pub fn word(&mut self) -> Result<&'a [u8], Error> {
        let word = self.peek().ok_or(Error::WrongArity)?;
        self.next = self.next.saturating_add(1);
        Ok(word)
    }

    /// The next word, as a key: its place and its bytes.
    ///
    /// # Errors
    /// [`Error::WrongArity`] if there is none.
    pub fn key(&mut self) -> Result<(KeyName, &'a [u8]), Error> {
        let place = KeyName(self.next);
        self.word().map(|name| (place, name))
    }

    /// `numkeys key [key ...]`: the places of the keys and their bytes. `None` unless there are as many, and any.
    pub fn numbered_keys(&mut self) -> Option<(impl Iterator<Item = KeyName> + use<>, &'a [&'a [u8]])> {
        let count = usize::try_from(whole(self.word().ok()?, u64::MAX)?).ok().filter(|count| *count > 0)?;
        let end = self.next.checked_add(count)?;
        let names = self.words.get(self.next..end)?;
        let places = (self.next..end).map(KeyName);
        self.next = end;
        Some((places, names))
    }

    /// Whether the next word is `expected`, in any case; if so it is read.
    pub fn accept(&mut self, expected: &str) -> bool {
        let found = self.peek().is_some_and(|word| word.eq_ignore_ascii_case(expected.as_bytes()));
        self.next = self.next.saturating_add(usize::from(found));
        found
    }

    /// Refuses whatever is left.
    ///
    /// # Errors
    /// [`Error::Unexpected`] names the first word of it.
    pub fn end(&self) -> Result<(), Error> {
        self.peek().map_or(Ok(()), |word| Err(Error::unexpected(word)))
    }

    /// Whether all words have been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.peek().is_none()
    }

    fn peek(&self) -> Option<&'a [u8]> {
        self.words.get(self.next).copied()
    }
}
