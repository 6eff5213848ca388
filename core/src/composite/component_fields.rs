//! The fields that a key with several limits has in payloads and in effects alike.

use super::MOST_SERIALS;
use crate::kind::Kind;
use crate::wire::codec::{Decoder, Encoder};

/// The number of a kind in what is stored: its place among the kinds, which never changes.
pub(super) fn encode_kind(kind: Kind, to: &mut impl Encoder) {
    to.integer(u64::try_from(kind.index()).unwrap_or(u64::MAX));
}

/// Reads the kind of a component's usage.
pub(super) fn decode_kind(from: &mut impl Decoder) -> Option<Kind> {
    component_kind(from.integer()?)
}

/// The kind of a component's usage by its number.
pub(super) fn component_kind(index: u64) -> Option<Kind> {
    let kind = Kind::ALL.get(usize::try_from(index).ok()?).copied();
    kind.filter(|kind| *kind != Kind::Limits && !kind.stands_alone())
}

/// Reads whether something is so.
pub(super) fn decode_flag(from: &mut impl Decoder) -> Option<bool> {
    match from.integer()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Reads the serial number of a component, one that it can have got.
pub(super) fn decode_serial(from: &mut impl Decoder) -> Option<u8> {
    u8::try_from(from.integer()?).ok().filter(|serial| *serial < MOST_SERIALS)
}
