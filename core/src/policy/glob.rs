//! Patterns of names, as KEYS has them: `*`, `?`, `[abc]`, `[^a-z]`, and `\` before what is meant as it stands.
//!
//! A pattern becomes a row of elements, each of which stands for one byte, with `*` between some of them. How many
//! elements may have been met when a byte of a name has been read is a set of bits, and the next byte moves it by one:
//! so each byte of a name costs a few words, whatever the pattern. (This is the Shift-And algorithm: Baeza-Yates and
//! Gonnet, 1992.)

use crate::wire::error::{Error, MustBe};
use crate::wire::name::MAX_NAME;

/// The most bytes of a pattern: enough for every name, with each byte of it escaped.
const MAX_PATTERN: usize = 1024;

const PATTERN: MustBe = MustBe::other("a pattern of at most 1024 bytes", "plan:*");

/// How many words have a bit for each element, and one more.
const WORDS: usize = 5;

type Bits = [u64; WORDS];

/// A pattern of names.
pub struct Pattern {
    /// Of each byte the elements that stand for it.
    stands_for: Vec<Bits>,
    /// The elements that have a `*` before them.
    stars: Bits,
    /// How many elements there are; `None`: more than a name has bytes.
    elements: Option<usize>,
}

impl Pattern {
    /// Reads a pattern.
    ///
    /// # Errors
    /// It is too long.
    pub fn read(mut text: &[u8]) -> Result<Pattern, Error> {
        if text.len() > MAX_PATTERN {
            return Err(Error::out_of_range("pattern", &PATTERN, text));
        }
        let mut pattern = Pattern { stands_for: vec![[0; WORDS]; 256], stars: [0; WORDS], elements: Some(0) };
        let mut place = 0_usize;
        while !text.is_empty() {
            if let Some(behind) = text.strip_prefix(b"*") {
                set(&mut pattern.stars, place);
                text = behind;
                continue;
            }
            if place == MAX_NAME {
                pattern.elements = None;
                return Ok(pattern);
            }
            for (byte, stands_for) in (0..=u8::MAX).zip(&mut pattern.stands_for) {
                if element(text, byte).0 {
                    set(stands_for, place);
                }
            }
            text = element(text, 0).1;
            place = place.saturating_add(1);
        }
        pattern.elements = Some(place);
        Ok(pattern)
    }

    /// Whether the whole of a name is what the pattern says.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let Some(elements) = self.elements else { return false };
        // The elements that may come next.
        let mut state = [0; WORDS];
        set(&mut state, 0);
        for byte in name {
            let Some(stands_for) = self.stands_for.get(usize::from(*byte)) else { return false };
            let (mut carry, mut any) = (0, 0);
            for ((state, stands_for), stars) in state.iter_mut().zip(stands_for).zip(&self.stars) {
                let met = *state & stands_for;
                *state = (met << 1) | carry | (*state & stars);
                carry = met >> 63;
                any |= *state;
            }
            if any == 0 {
                return false;
            }
        }
        is_set(&state, elements)
    }
}

fn set(bits: &mut Bits, place: usize) {
    if let Some(word) = bits.get_mut(place / 64) {
        *word |= 1 << (place % 64);
    }
}

fn is_set(bits: &Bits, place: usize) -> bool {
    bits.get(place / 64).is_some_and(|word| word >> (place % 64) & 1 != 0)
}

/// Whether the first element of a pattern, which is no `*`, stands for `byte`, and what follows it.
fn element(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', behind @ ..] => (true, behind),
        [b'[', b'^', set @ ..] => {
            let (stands, behind) = in_set(set, byte);
            (!stands, behind)
        }
        [b'[', set @ ..] => in_set(set, byte),
        [b'\\', literal, behind @ ..] | [literal, behind @ ..] => (*literal == byte, behind),
        [] => (false, pattern),
    }
}

/// Whether `byte` is in the set, and what follows its end. One that is not closed ends with the pattern.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut stands = false;
    loop {
        set = match set {
            [] => return (stands, set),
            [b'\\', literal, rest @ ..] => {
                stands |= *literal == byte;
                rest
            }
            [b']', behind @ ..] => return (stands, behind),
            [first, b'-', last, rest @ ..] => {
                stands |= (first.min(last)..=first.max(last)).contains(&&byte);
                rest
            }
            [literal, rest @ ..] => {
                stands |= *literal == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests;
