//! Checks that a change can be decoded by replicas, from an AOF, and from a snapshot.
//!
//! A decoder rejects states that no call can create. An error would be noticed late: when a replica or a restarted
//! server decodes the key. So a debug build of the module and the fuzz targets decode each change at once.

use crate::effect::{Effect, EncodedText, TextDecoder};
use crate::limit::Usage;
use std::fmt;

/// Error of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoundTripError {
    /// Description of the error.
    description: &'static str,
    /// Encoded text that failed the check.
    text: String,
}

impl fmt::Display for RoundTripError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.description, self.text)
    }
}

impl RoundTripError {
    /// Creates an error with its description and the encoded text.
    pub(crate) fn new(description: &'static str, text: &EncodedText) -> RoundTripError {
        RoundTripError { description, text: String::from_utf8_lossy(text.as_bytes()).escape_debug().collect() }
    }
}

/// Checks that a stored usage is decoded to the same state, from a snapshot and as a whole effect.
///
/// # Errors
/// Returns an error if it is rejected or decoded to another state.
pub fn check_stored<U: Usage>(usage: &U) -> Result<(), RoundTripError> {
    // The key of an unused usage is deleted.
    if usage.is_unused() {
        return Ok(());
    }
    let text = encode(usage);
    let decoded = decode(&text);
    let decoded: U = decoded.ok_or_else(|| RoundTripError::new("the stored usage is rejected", &text))?;
    if encode(&decoded).as_bytes() != text.as_bytes() {
        return Err(RoundTripError::new("the stored usage is decoded to another state", &text));
    }
    check_effect(&U::default(), &EncodedText::of_whole(usage, 1), usage)
}

/// Checks that the effect of a call that changed `before` to `after` changes a copy of `before` to the same state.
///
/// # Errors
/// Returns an error if the effect is rejected or has another result.
pub fn check_effect<U: Usage>(before: &U, effect: &EncodedText, after: &U) -> Result<(), RoundTripError> {
    let rejected = || RoundTripError::new("the effect is rejected", effect);
    let Some(Effect::Change { version, fields, .. }) = Effect::decode::<U>(effect.as_bytes()) else {
        return Err(rejected());
    };
    let (mut checked, mut applied, mut replica) = (fields, fields, before.clone());
    if !before.accepts_effect(&mut checked, version) || !checked.is_at_end() {
        return Err(rejected());
    }
    replica.apply_effect(&mut applied, version);
    check_equal(&replica, after, effect)
}

/// Checks that the effect led to the same state on a replica as the call did on the original.
pub(crate) fn check_equal<U: Usage>(replica: &U, original: &U, effect: &EncodedText) -> Result<(), RoundTripError> {
    if encode(replica).as_bytes() == encode(original).as_bytes() {
        Ok(())
    } else {
        Err(RoundTripError::new("the effect gives another state", effect))
    }
}

/// Decodes an encoded usage. Returns `None` if it is rejected.
#[must_use]
pub fn decode<U: Usage>(text: &EncodedText) -> Option<U> {
    let mut fields = TextDecoder::of(text.as_bytes());
    U::decode(&mut fields, U::VERSION).filter(|_| fields.is_at_end())
}

/// Encodes a usage as text.
pub fn encode<U: Usage>(usage: &U) -> EncodedText {
    let mut text = EncodedText::beginning_with(b"");
    usage.encode(&mut text);
    text
}

#[cfg(test)]
mod tests;
