//! Checks that a change can be decoded by replicas, from an AOF and from a snapshot.
//!
//! The encoding of a key is decoded by other code, perhaps years later, which rejects states that no call can create.
//! These checks apply that code to each change: in a debug build of the module, and in the fuzz targets.

use crate::effect::{Effect, Fields, Text};
use crate::limit::Usage;
use std::fmt;

/// Error of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Description of the error.
    what: &'static str,
    /// Encoded text that failed the check.
    text: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.text)
    }
}

impl Unreadable {
    /// Creates an error with its description and the encoded text.
    pub(crate) fn because(what: &'static str, text: &Text) -> Unreadable {
        Unreadable { what, text: String::from_utf8_lossy(text.as_bytes()).escape_debug().collect() }
    }
}

/// Checks that a stored usage is decoded to the same state, from a snapshot and as a whole effect.
///
/// # Errors
/// Returns an error if it is rejected or decoded to another state.
pub fn stored<U: Usage>(usage: &U) -> Result<(), Unreadable> {
    // The key of an unused usage is deleted.
    if usage.is_unused() {
        return Ok(());
    }
    let text = written(usage);
    let read = read_back(&text);
    let read: U = read.ok_or_else(|| Unreadable::because("what is stored cannot be read", &text))?;
    if written(&read).as_bytes() != text.as_bytes() {
        return Err(Unreadable::because("what is stored is read as something else", &text));
    }
    propagated(&U::default(), &Text::of_whole(usage, 1), usage)
}

/// Checks that the effect of a call, which changed `before` to `after`, has the same result on a copy.
///
/// # Errors
/// Returns an error if the effect is rejected or has another result.
pub fn propagated<U: Usage>(before: &U, effect: &Text, after: &U) -> Result<(), Unreadable> {
    let rejected = || Unreadable::because("an effect is refused", effect);
    let Some(Effect::Change { version, fields, .. }) = Effect::read::<U>(effect.as_bytes()) else {
        return Err(rejected());
    };
    let (mut checked, mut applied, mut elsewhere) = (fields, fields, before.clone());
    if !before.accepts_effect(&mut checked, version) || !checked.end() {
        return Err(rejected());
    }
    elsewhere.apply_effect(&mut applied, version);
    alike(&elsewhere, after, effect)
}

/// Checks that applying an effect to a copy gave the same state as the call.
pub(crate) fn alike<U: Usage>(elsewhere: &U, here: &U, effect: &Text) -> Result<(), Unreadable> {
    if written(elsewhere).as_bytes() == written(here).as_bytes() {
        Ok(())
    } else {
        Err(Unreadable::because("an effect makes something else", effect))
    }
}

/// Decodes an encoded usage to a copy that shares no memory with the original. Returns `None` if it is rejected.
#[must_use]
pub fn read_back<U: Usage>(text: &Text) -> Option<U> {
    let mut fields = Fields::of(text);
    U::decode(&mut fields, U::VERSION).filter(|_| fields.end())
}

/// Encodes a usage as text.
pub fn written<U: Usage>(usage: &U) -> Text {
    let mut text = Text::beginning_with(b"");
    usage.encode(&mut text);
    text
}

#[cfg(test)]
mod tests;
