//! What is remembered of a call by its id, and how that is written and read.

use super::settlement::Charge;
use crate::number::{Amount, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};

/// How many components a call charges at most.
pub const MAX_CHARGES: usize = 8;

/// What is remembered of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedCall<Charges = Box<[Charge]>> {
    /// Until when.
    pub expires_at: Timestamp,
    /// Until when its caller was to wait before acting, or a FORCE was in debt.
    pub hold_until: Timestamp,
    /// Whether it was settled.
    pub settled: bool,
    /// Whether it was a FORCE.
    pub forced: bool,
    /// What an UPTO was granted, in whole units.
    pub granted: Option<Amount>,
    /// What can be settled of it: nothing once it was.
    pub charges: Charges,
}

impl<Charges> RecordedCall<Charges> {
    /// What is remembered of the call, with other charges.
    pub fn with<Others>(self, charges: Others) -> RecordedCall<Others> {
        let RecordedCall { expires_at, hold_until, settled, forced, granted, .. } = self;
        RecordedCall { expires_at, hold_until, settled, forced, granted, charges }
    }

    /// All but the charges.
    pub(super) fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.expires_at.micros());
        self.encode_behind_expiry(to);
    }

    /// All but when it expires and the charges.
    pub(super) fn encode_behind_expiry(&self, to: &mut impl Encoder) {
        to.integer(self.hold_until.micros());
        let tags = [(SETTLED, self.settled), (FORCED, self.forced), (GRANTED, self.granted.is_some())];
        to.integer(tags.iter().filter(|(_, holds)| *holds).map(|(tag, _)| tag).sum());
        if let Some(granted) = self.granted {
            to.integer(granted.millionths());
        }
    }

    /// Reads what some call, made at `written` or before, can have been.
    pub(super) fn decode(
        from: &mut impl Decoder,
        written: Timestamp,
        charges: Charges,
    ) -> Option<RecordedCall<Charges>> {
        let expires_at = Timestamp::from_micros(from.integer()?)?;
        RecordedCall::decode_behind_expiry(expires_at, from, charges).filter(|call| call.is_sound(written))
    }

    /// Reads what [`encode_behind_expiry`](RecordedCall::encode_behind_expiry) wrote of a call that expires at
    /// `expires_at`.
    pub(super) fn decode_behind_expiry(
        expires_at: Timestamp,
        from: &mut impl Decoder,
        charges: Charges,
    ) -> Option<RecordedCall<Charges>> {
        let hold_until = Timestamp::from_micros(from.integer()?)?;
        let tags = from.integer().filter(|tags| *tags <= TAGS)?;
        let granted = if tags & GRANTED == 0 { None } else { Some(Amount::from_millionths(from.integer()?)?) };
        let (settled, forced) = (tags & SETTLED != 0, tags & FORCED != 0);
        Some(RecordedCall { expires_at, hold_until, settled, forced, granted, charges })
    }

    /// Whether some call can have been remembered so by a key that was last changed at `written`: what is remembered is
    /// held to this as it is made and as it is read, so that nothing is made that cannot be read. It may be a FORCE and
    /// granted units at once: a limit's own FORCE stands beside the call's UPTO.
    pub(crate) fn is_sound(&self, written: Timestamp) -> bool {
        let units = Amount::ONE..=Amount::MAX_ARGUMENT;
        self.expires_at.since(written) <= Span::MAX_ARGUMENT
            && self.granted.is_none_or(|granted| units.contains(&granted) && granted == granted.floor())
    }
}

/// The bits of the flags: the call was settled,
pub(super) const SETTLED: u64 = 1;
/// it was a FORCE,
pub(super) const FORCED: u64 = 2;
/// and an UPTO was granted units, whose number follows.
pub(super) const GRANTED: u64 = 4;
const TAGS: u64 = 7;

/// Charges, each of another component.
pub(super) fn decode_charges<T, D: Decoder>(
    from: &mut D,
    decode: fn(&mut D) -> Option<T>,
    component: fn(&T) -> u8,
) -> Option<Box<[T]>> {
    let count = usize::try_from(from.integer()?).ok().filter(|count| *count <= MAX_CHARGES)?;
    let mut charges: Vec<T> = Vec::with_capacity(count);
    for _ in 0..count {
        let charge = decode(from)?;
        if charges.iter().any(|other| component(other) == component(&charge)) {
            return None;
        }
        charges.push(charge);
    }
    Some(charges.into())
}
