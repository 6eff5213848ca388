//! Glob patterns of names, with the syntax of KEYS: `*`, `?`, `[abc]`, `[^a-z]`, and `\` to escape a character.
//!
//! A pattern is compiled to a sequence of elements, each of which matches one byte, and the positions of `*` between
//! them. A bit set represents the elements that may match next, and each byte of a name advances it. So a byte costs a
//! few machine words for any pattern. This is the Shift-And algorithm (Baeza-Yates and Gonnet, 1992).

use crate::wire::error::{Error, MustBe};
use crate::wire::name::MAX_NAME;

/// Maximum length of a pattern, in bytes: enough for the longest name with every byte escaped.
const MAX_PATTERN: usize = 1024;

const PATTERN: MustBe = MustBe::other("a pattern of at most 1024 bytes", "plan:*");

/// Number of words in a bit set: one bit for each element, and one more for the end.
const WORDS: usize = 5;

type Bits = [u64; WORDS];

/// Compiled glob pattern.
pub struct Pattern {
    /// Elements that match a byte, indexed by the byte.
    elements_of_byte: Vec<Bits>,
    /// Elements that follow a `*`.
    after_star: Bits,
    /// Number of elements; `None` if it exceeds the maximum length of a name.
    element_count: Option<usize>,
}

impl Pattern {
    /// Compiles a pattern.
    ///
    /// # Errors
    /// Returns an error if the pattern is too long.
    pub fn compile(mut text: &[u8]) -> Result<Pattern, Error> {
        if text.len() > MAX_PATTERN {
            return Err(Error::out_of_range("pattern", &PATTERN, text));
        }
        let mut pattern =
            Pattern { elements_of_byte: vec![[0; WORDS]; 256], after_star: [0; WORDS], element_count: Some(0) };
        let mut index = 0_usize;
        while !text.is_empty() {
            if let Some(rest) = text.strip_prefix(b"*") {
                set(&mut pattern.after_star, index);
                text = rest;
                continue;
            }
            if index == MAX_NAME {
                pattern.element_count = None;
                return Ok(pattern);
            }
            for (byte, elements) in (0..=u8::MAX).zip(&mut pattern.elements_of_byte) {
                if element(text, byte).0 {
                    set(elements, index);
                }
            }
            text = element(text, 0).1;
            index = index.saturating_add(1);
        }
        pattern.element_count = Some(index);
        Ok(pattern)
    }

    /// Returns `true` if the pattern matches the whole name.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        let Some(element_count) = self.element_count else { return false };
        // Elements that may match the next byte.
        let mut state = [0; WORDS];
        set(&mut state, 0);
        for byte in name {
            let Some(matching) = self.elements_of_byte.get(usize::from(*byte)) else { return false };
            let (mut carry, mut union) = (0, 0);
            for ((state, matching), stars) in state.iter_mut().zip(matching).zip(&self.after_star) {
                let hit = *state & matching;
                *state = (hit << 1) | carry | (*state & stars);
                carry = hit >> 63;
                union |= *state;
            }
            if union == 0 {
                return false;
            }
        }
        is_set(&state, element_count)
    }
}

fn set(bits: &mut Bits, index: usize) {
    if let Some(word) = bits.get_mut(index / 64) {
        *word |= 1 << (index % 64);
    }
}

fn is_set(bits: &Bits, index: usize) -> bool {
    bits.get(index / 64).is_some_and(|word| word >> (index % 64) & 1 != 0)
}

/// Returns `true` if the first element of the pattern, which is not a `*`, matches `byte`, and the rest of the pattern.
fn element(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', rest @ ..] => (true, rest),
        [b'[', b'^', set @ ..] => {
            let (is_member, rest) = in_set(set, byte);
            (!is_member, rest)
        }
        [b'[', set @ ..] => in_set(set, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte, rest),
        [] => (false, pattern),
    }
}

/// Returns `true` if `byte` is in the set, and the rest of the pattern after the set. An unclosed set ends with the
/// pattern.
fn in_set(mut set: &[u8], byte: u8) -> (bool, &[u8]) {
    let mut is_member = false;
    loop {
        set = match set {
            [] => return (is_member, set),
            [b'\\', literal, rest @ ..] => {
                is_member |= *literal == byte;
                rest
            }
            [b']', after @ ..] => return (is_member, after),
            [first, b'-', last, rest @ ..] => {
                is_member |= (first.min(last)..=first.max(last)).contains(&&byte);
                rest
            }
            [literal, rest @ ..] => {
                is_member |= *literal == byte;
                rest
            }
        };
    }
}

#[cfg(test)]
mod tests;
