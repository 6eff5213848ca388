//! What the effect of a call on a key with several limits says of each component before what its usage reads.

use super::component_fields::component_kind;
use super::{ComponentIdentity, MOST_SERIALS};
use crate::kind::Kind;
use crate::number::Timestamp;
use crate::wire::codec::{Decoder, Encoder};

/// First number of the effect that tells a change of a composite key.
pub(super) const TAGGED_CHANGE: u64 = 2;

/// The first number of a component in an effect, in which most components have only their serial number and kind.
#[derive(Clone, Copy)]
pub(super) struct ComponentTag {
    /// The component's serial number.
    pub serial: u8,
    /// The kind of its usage.
    pub kind: Kind,
    /// The version of its usage's encoding.
    pub version: u32,
    /// Whether it says what the component is known by from now on.
    pub named: bool,
    /// Whether anything is used; if not, nothing of the usage follows.
    pub used: bool,
    /// Whether it says what has changed in what settling charges takes.
    pub settled: bool,
}

impl ComponentTag {
    const KINDS: u64 = 16;
    /// At least [`MOST_SERIALS`].
    const SERIALS: u64 = 32;

    /// Writes it out.
    pub fn encode(self, to: &mut impl Encoder) {
        let ComponentTag { serial, kind, version, named, used, settled } = self;
        let kind = u64::try_from(kind.index()).unwrap_or(u64::MAX);
        let versions_before = u64::from(version).saturating_sub(1);
        let of_serial = versions_before.saturating_mul(ComponentTag::SERIALS).saturating_add(u64::from(serial));
        let of_kind = of_serial.saturating_mul(ComponentTag::KINDS).saturating_add(kind);
        let flags = u64::from(named) | u64::from(!used) << 1 | u64::from(settled) << 2;
        to.integer(of_kind.saturating_mul(8) | flags);
    }

    /// Reads it.
    pub fn decode(from: &mut impl Decoder) -> Option<ComponentTag> {
        let tag = from.integer()?;
        let (of_kind, flags) = (tag >> 3, tag & 7);
        let (of_serial, kind) = (of_kind / ComponentTag::KINDS, of_kind % ComponentTag::KINDS);
        let (versions_before, serial) = (of_serial / ComponentTag::SERIALS, of_serial % ComponentTag::SERIALS);
        Some(ComponentTag {
            serial: u8::try_from(serial).ok().filter(|serial| *serial < MOST_SERIALS)?,
            kind: component_kind(kind)?,
            version: u32::try_from(versions_before).ok()?.checked_add(1)?,
            named: flags & 1 != 0,
            used: flags & 2 == 0,
            settled: flags & 4 != 0,
        })
    }
}

/// What the effect of a call on a component says before what its usage reads.
pub(super) struct ComponentHead {
    /// Which component it is, and what follows of it.
    pub tag: ComponentTag,
    /// What it is known by from now on, if that is new.
    pub identity: Option<ComponentIdentity>,
    /// When the component will have recovered.
    pub recovers_at: Timestamp,
}

impl ComponentHead {
    /// Whether the component has not recovered yet.
    pub fn stays(&self, now: Timestamp) -> bool {
        self.tag.used && now < self.recovers_at
    }

    /// Of a component that the call has left nothing of.
    pub fn encode_gone(serial: u8, kind: Kind, to: &mut impl Encoder) {
        // Known by what it was, in any version.
        ComponentTag { serial, kind, version: 1, named: false, used: false, settled: false }.encode(to);
        to.integer(Timestamp::EPOCH.micros());
    }

    /// Reads what stands before the usage.
    pub fn decode(from: &mut impl Decoder) -> Option<ComponentHead> {
        let tag = ComponentTag::decode(from)?;
        let identity = if tag.named { Some(ComponentIdentity::decode(from)?) } else { None };
        let recovers_at = Timestamp::from_micros(from.integer()?)?;
        Some(ComponentHead { tag, identity, recovers_at })
    }
}
