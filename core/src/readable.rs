//! Whether what a call has made can be read: by a replica, by an AOF, by a snapshot.
//!
//! What is written of a key is read back by another piece of code, perhaps years later, and that refuses what no call
//! can have made. So whoever makes a change can be held to this: a debug build of the module holds every change of a
//! key to it, and so do the fuzz targets.

use crate::effect::{Effect, Fields, Text};
use crate::limit::Usage;
use std::fmt;

/// What could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// What is wrong with it.
    what: &'static str,
    /// As it was written.
    text: String,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.text)
    }
}

impl Unreadable {
    /// The reason, and the text that would not be read.
    pub(crate) fn because(what: &'static str, text: &Text) -> Unreadable {
        Unreadable { what, text: String::from_utf8_lossy(text.as_bytes()).escape_debug().collect() }
    }
}

/// Whether a usage that is stored will be read back as what it is: from a snapshot, and as a whole effect.
///
/// # Errors
/// What would not be read.
pub fn stored<U: Usage>(usage: &U) -> Result<(), Unreadable> {
    // The key of one is deleted.
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

/// Whether the effect of a call, which has made `after` of `before`, does the same where it is applied.
///
/// # Errors
/// The effect.
pub fn propagated<U: Usage>(before: &U, effect: &Text, after: &U) -> Result<(), Unreadable> {
    let refused = || Unreadable::because("an effect is refused", effect);
    let Some(Effect::Change { version, fields, .. }) = Effect::read::<U>(effect.as_bytes()) else {
        return Err(refused());
    };
    let (mut checked, mut applied, mut elsewhere) = (fields, fields, before.clone());
    if !before.accepts_effect(&mut checked, version) || !checked.end() {
        return Err(refused());
    }
    elsewhere.apply_effect(&mut applied, version);
    alike(&elsewhere, after, effect)
}

/// Whether an effect has made elsewhere what the call has made here.
pub(crate) fn alike<U: Usage>(elsewhere: &U, here: &U, effect: &Text) -> Result<(), Unreadable> {
    if written(elsewhere).as_bytes() == written(here).as_bytes() {
        Ok(())
    } else {
        Err(Unreadable::because("an effect makes something else", effect))
    }
}

/// The usage that is read from what is stored of one: it shares no block with that. `None` if it cannot be read.
#[must_use]
pub fn read_back<U: Usage>(text: &Text) -> Option<U> {
    let mut fields = Fields::of(text);
    U::decode(&mut fields, U::VERSION).filter(|_| fields.end())
}

/// A usage as it is stored, in words.
pub fn written<U: Usage>(usage: &U) -> Text {
    let mut text = Text::beginning_with(b"");
    usage.encode(&mut text);
    text
}

#[cfg(test)]
mod tests;
