//! Header of each component in the effect of a call on a composite key. The effect on the component's usage follows it.

use super::{ComponentIdentity, MAX_SERIALS};
use crate::number::Timestamp;
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};

/// Returns the kind with this index; `None` if a component cannot be of that kind.
pub(super) fn component_kind(index: u64) -> Option<UsageKind> {
    let kind = UsageKind::ALL.get(usize::try_from(index).ok()?).copied();
    kind.filter(|kind| *kind != UsageKind::Limits && !kind.stands_alone())
}

/// Returns the index of a kind, which never changes.
pub(super) fn kind_index(kind: UsageKind) -> u64 {
    u64::try_from(kind.index()).unwrap_or(u64::MAX)
}

/// Returns `number` as the serial number of a component; `None` if it is out of range.
pub(super) fn component_serial(number: u64) -> Option<u8> {
    u8::try_from(number).ok().filter(|serial| *serial < MAX_SERIALS)
}

/// First number of an effect that changes a composite key.
pub(super) const TAGGED_CHANGE: u64 = 2;

/// First number of a component in an effect. For most components it holds only the serial number and the kind.
#[derive(Clone, Copy)]
pub(super) struct ComponentTag {
    /// Serial number of the component.
    pub serial: u8,
    /// Kind of the usage.
    pub kind: UsageKind,
    /// Version of the usage's encoding.
    pub version: u32,
    /// `true`: the new identity of the component follows.
    pub has_identity: bool,
    /// `true`: the component is used, and the effect on its usage follows.
    pub is_used: bool,
    /// `true`: the change of the component's settlement follows.
    pub changes_settlement: bool,
}

impl ComponentTag {
    /// Number of encodable kinds.
    const KINDS: u64 = 16;
    /// Number of encodable serial numbers, at least [`MAX_SERIALS`].
    const SERIALS: u64 = 32;

    /// Encodes the tag.
    pub fn encode(self, to: &mut impl Encoder) {
        let ComponentTag { serial, kind, version, has_identity, is_used, changes_settlement } = self;
        let versions_before = u64::from(version).saturating_sub(1);
        let with_serial = versions_before.saturating_mul(ComponentTag::SERIALS).saturating_add(u64::from(serial));
        let with_kind = with_serial.saturating_mul(ComponentTag::KINDS).saturating_add(kind_index(kind));
        let flags = u64::from(has_identity) | u64::from(!is_used) << 1 | u64::from(changes_settlement) << 2;
        to.integer(with_kind.saturating_mul(8) | flags);
    }

    /// Decodes a tag.
    pub fn decode(from: &mut impl Decoder) -> Option<ComponentTag> {
        let tag = from.integer()?;
        let (with_kind, flags) = (tag >> 3, tag & 7);
        let (with_serial, kind) = (with_kind / ComponentTag::KINDS, with_kind % ComponentTag::KINDS);
        let (versions_before, serial) = (with_serial / ComponentTag::SERIALS, with_serial % ComponentTag::SERIALS);
        Some(ComponentTag {
            serial: component_serial(serial)?,
            kind: component_kind(kind)?,
            version: u32::try_from(versions_before).ok()?.checked_add(1)?,
            has_identity: flags & 1 != 0,
            is_used: flags & 2 == 0,
            changes_settlement: flags & 4 != 0,
        })
    }
}

/// Header of a component in an effect: everything before the effect on its usage.
pub(super) struct ComponentHead {
    /// Tag, which tells the component and the parts that follow.
    pub tag: ComponentTag,
    /// New identity of the component; `None` if it has not changed.
    pub identity: Option<ComponentIdentity>,
    /// Time of the full recovery of the component.
    pub recovers_at: Timestamp,
}

impl ComponentHead {
    /// Returns `true` if the component is used and has not recovered at `now`.
    pub fn is_in_use(&self, now: Timestamp) -> bool {
        self.tag.is_used && now < self.recovers_at
    }

    /// Encodes the header of a component that the call has removed.
    pub fn encode_removed(serial: u8, kind: UsageKind, to: &mut impl Encoder) {
        // The identity is unchanged, and version 1 is accepted for every kind.
        let (has_identity, is_used, changes_settlement) = (false, false, false);
        ComponentTag { serial, kind, version: 1, has_identity, is_used, changes_settlement }.encode(to);
        to.integer(Timestamp::EPOCH.micros());
    }

    /// Decodes a header.
    pub fn decode(from: &mut impl Decoder) -> Option<ComponentHead> {
        let tag = ComponentTag::decode(from)?;
        let identity = if tag.has_identity { Some(ComponentIdentity::decode(from)?) } else { None };
        let recovers_at = Timestamp::from_micros(from.integer()?)?;
        Some(ComponentHead { tag, identity, recovers_at })
    }
}
