//! Fields that payloads and effects of a key with several limits have in common.

use super::MAX_SERIALS;
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};

/// Encodes a kind by its index, which never changes.
pub(super) fn encode_kind(kind: UsageKind, to: &mut impl Encoder) {
    to.integer(u64::try_from(kind.index()).unwrap_or(u64::MAX));
}

/// Decodes the kind of the usage of a component.
pub(super) fn decode_kind(from: &mut impl Decoder) -> Option<UsageKind> {
    component_kind(from.integer()?)
}

/// Returns the kind of the usage of a component by its index.
pub(super) fn component_kind(index: u64) -> Option<UsageKind> {
    let kind = UsageKind::ALL.get(usize::try_from(index).ok()?).copied();
    kind.filter(|kind| *kind != UsageKind::Limits && !kind.stands_alone())
}

/// Decodes a flag.
pub(super) fn decode_flag(from: &mut impl Decoder) -> Option<bool> {
    match from.integer()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Decodes a valid serial number of a component.
pub(super) fn decode_serial(from: &mut impl Decoder) -> Option<u8> {
    u8::try_from(from.integer()?).ok().filter(|serial| *serial < MAX_SERIALS)
}
