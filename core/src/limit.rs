//! Limits and usages: a [`Limit`] is part of a call, a [`Usage`] is the state stored at its key, and a [`Decision`] is
//! the reply.

use crate::number::{Amount, Period, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Discard, Encoder, WHOLE};

/// Limit of a call: an algorithm with its arguments.
///
/// The methods that take `&Usage` accept a usage that is later than `now`, after the clock moved backwards. They return
/// the same as after [`Usage::move_back`], and copy nothing that grows with the calls. `charge` and `refund` require
/// that the caller has called `move_back` if the usage is later than `now`.
pub trait Limit {
    /// State stored at the key.
    type Usage: Usage;

    /// Returns the maximum usage.
    fn limit(&self) -> Amount;

    /// Decides whether `cost` fits now; if not, returns the wait.
    fn verdict(&self, usage: &Self::Usage, now: Timestamp, cost: Amount) -> Verdict;

    /// Returns the largest cost that fits now, or zero.
    fn remaining(&self, usage: &Self::Usage, now: Timestamp) -> Amount;

    /// Returns the time until the usage has fully recovered.
    fn reset(&self, usage: &Self::Usage, now: Timestamp) -> Span;

    /// `true`: the limit reads only a part of the state, and the rest may recover later.
    const IS_READ_PARTIALLY: bool = false;

    /// Returns the time until the whole state has recovered.
    fn recovery(&self, usage: &Self::Usage, now: Timestamp) -> Span {
        self.reset(usage, now)
    }

    /// Returns the time until the usage is within the limit, or zero.
    fn debt(&self, usage: &Self::Usage, now: Timestamp) -> Span {
        match self.verdict(usage, now, Amount::ZERO) {
            Verdict::After(wait) => wait,
            Verdict::Allowed(_) | Verdict::Never => Span::ZERO,
        }
    }

    /// Returns the time until the usage is within the limit after a charge of `cost`. The default charges a copy. A
    /// limit whose usage grows with the calls computes it without a copy.
    fn debt_after_charge(&self, usage: &Self::Usage, now: Timestamp, cost: Amount) -> Span {
        let mut charged = usage.clone();
        if charged.is_after(now) {
            charged.move_back(now);
        }
        self.charge(&mut charged, now, cost);
        self.debt(&charged, now)
    }

    /// Returns the decision on a take of `cost`, with the usage after it: the fast path of
    /// [`evaluate`](crate::evaluate()) and `charge`. `None` if the algorithm has no fast path for these numbers.
    #[inline(always)]
    fn take(&self, _usage: &Self::Usage, _now: Timestamp, _cost: Amount) -> Option<Taken<Self::Usage>> {
        None
    }

    /// Adds `cost` to the usage, even past the limit.
    fn charge(&self, usage: &mut Self::Usage, now: Timestamp, cost: Amount);

    /// Subtracts `amount` from the usage, down to zero.
    fn refund(&self, usage: &mut Self::Usage, now: Timestamp, amount: Amount);

    /// Returns the usage at `now`, rounded down: the upper bound of the amount that a settlement (SETTLE) can take back
    /// from an earlier charge. `Some(0)`: no earlier charge can be settled, because the limit does not support
    /// settlements, the usage has saturated, or the next charge starts a new count. `None`: each charge has a place of
    /// its own ([`Usage::place`]) that the next charge leaves unchanged. See
    /// [`idempotency`](crate::composite::idempotency).
    fn low_water_mark(&self, _usage: &Self::Usage, _now: Timestamp) -> Option<Amount> {
        Some(Amount::ZERO)
    }

    /// Returns the number of entries, or of pieces of a sketch, after a charge; `None` if the charge adds none.
    fn entries_after_charge(&self, _usage: &Self::Usage, _now: Timestamp) -> Option<usize> {
        None
    }
}

/// Seal of [`Usage`]: other crates cannot implement it.
pub(crate) mod sealed {
    /// Usage of an algorithm in the list, or of composite keys.
    pub trait Sealed {}
}

/// State stored at a key. The default is an unused state. It may be freed on another thread than the one that created
/// it.
///
/// It is implemented for the list of [`algorithms`](crate::algorithms!) and for composite keys alone, so that a kind
/// has one usage.
pub trait Usage: Clone + Default + Send + sealed::Sealed + 'static {
    /// Kind of the usage: one native type of the server.
    const KIND: UsageKind;

    /// Version of the encoding. Raised only if an older reader would misread it.
    const VERSION: u32 = 1;

    /// `true`: the usage grows with the calls: it holds [entries](Usage::entries).
    const GROWS: bool = false;

    /// `true`: the usage holds pieces that can be reallocated one by one ([`renew_pieces`](Usage::renew_pieces)).
    const HAS_PIECES: bool = false;

    /// Returns `true` if nothing is used, so that the key can be removed.
    fn is_unused(&self) -> bool;

    /// Returns how far the stored time is ahead of `now`, or zero. Positive only after the clock moved backwards.
    fn ahead(&self, now: Timestamp) -> Span;

    /// Returns `true` if the stored time is later than `now`.
    fn is_after(&self, now: Timestamp) -> bool {
        self.ahead(now) != Span::ZERO
    }

    /// Shifts timestamps later than `now` back to `now`, so that a clock that moved backwards neither resets usage nor
    /// extends a denial beyond one full recovery. The cost does not depend on the number of entries.
    fn move_back(&mut self, now: Timestamp);

    /// Returns the place of the newest charge, if each charge has a place of its own: a window, a slot or an entry.
    fn place(&self) -> Option<Timestamp> {
        None
    }

    /// Returns the place after a move back of this usage to `now`; `None` if that would be before the epoch.
    fn place_after_move_back(&self, place: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let span = self.ahead(now);
        (place.since(Timestamp::EPOCH) >= span).then(|| place.minus(span))
    }

    /// Takes back up to `amount` of a charge, from `place` or, without a place, from the whole usage. Returns the
    /// reduction. Timestamps stay the same, because a settlement does not change the time of the charge.
    fn take_back(&mut self, _place: Option<Timestamp>, _amount: Amount) -> Amount {
        Amount::ZERO
    }

    /// Returns the source of the time of full recovery after a move back, under the limit that charged the usage last.
    fn recovery_source(&self) -> RecoverySource {
        RecoverySource::MovesBack
    }

    /// Returns the time until the usage has fully recovered, if it does not depend on the limit; otherwise zero.
    fn time_to_recovery(&self, _now: Timestamp) -> Span {
        Span::ZERO
    }

    /// Encodes the usage.
    fn encode(&self, to: &mut impl Encoder);

    /// Decodes a usage in format `version`; `None` if no call can lead to it.
    fn decode(from: &mut impl Decoder, version: u32) -> Option<Self>;

    /// `true`: the effect of a call is the change that the call made, after a tag other than [`WHOLE`]. Such a kind
    /// overrides `encode_effect`, `accepts_change` and `apply_change`. `false`: the effect is the whole usage.
    const PROPAGATES_CHANGES: bool = false;

    /// Encodes the change since the last call of this method. Must be called after every change, even if nothing is
    /// propagated: a pending change would be propagated with the next one.
    fn encode_effect(&mut self, to: &mut impl Encoder) {
        self.encode(to);
    }

    /// Drops the pending change without encoding it.
    #[inline]
    fn discard_effect(&mut self) {
        self.encode_effect(&mut Discard);
    }

    /// Encodes the whole usage as an effect.
    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        if Self::PROPAGATES_CHANGES {
            to.integer(WHOLE);
        }
        self.encode(to);
    }

    /// Encodes a part of the whole usage as an effect. The first part is at the position 0. Returns the position of the
    /// next part, if there is one.
    fn encode_part_of_whole(&self, _position: usize, to: &mut impl Encoder) -> Option<usize> {
        self.encode_whole_effect(to);
        None
    }

    /// Returns `true` if a call on this usage can have had the effect.
    fn accepts_effect(&self, from: &mut impl Decoder, version: u32) -> bool {
        self.accepts_effect_until(from, version, Timestamp::MAX)
    }

    /// Returns `true` if a call on this usage can have had the effect at `latest` or before. The usage after the effect
    /// is not [later](Usage::is_after) than `latest`.
    fn accepts_effect_until(&self, from: &mut impl Decoder, version: u32, latest: Timestamp) -> bool {
        match effect_tag::<Self>(from) {
            Some(WHOLE) => Self::decode(from, version).is_some_and(|usage| !usage.is_after(latest)),
            Some(tag) => self.accepts_change(tag, from, latest),
            None => false,
        }
    }

    /// Applies an accepted effect.
    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match effect_tag::<Self>(from) {
            Some(WHOLE) | None => *self = Self::decode(from, version).unwrap_or_default(),
            Some(tag) => self.apply_change(tag, from),
        }
    }

    /// Returns `true` if a call on this usage can have made the encoded change with this tag at `latest` or before.
    fn accepts_change(&self, _tag: u64, _from: &mut impl Decoder, _latest: Timestamp) -> bool {
        false
    }

    /// Applies an accepted change with this tag.
    fn apply_change(&mut self, _tag: u64, _from: &mut impl Decoder) {}

    /// Returns the number of entries of a kind that grows with the calls; for a sketch, the number of pieces.
    fn entries(&self) -> usize {
        0
    }

    /// Returns the heap memory in bytes.
    fn heap_size(&self) -> usize {
        0
    }

    /// Returns the latest known fencing token of all leases; 0 if there was none.
    fn latest_token(&self) -> u64 {
        0
    }

    /// Returns the approximate number of allocations to free.
    fn free_effort(&self) -> usize {
        1
    }

    /// Copies pieces into new blocks, so that the allocator can reduce fragmentation. Starts at the piece with the
    /// number `first` and goes on while `has_time` returns `true`. Returns the number of the next piece, if there is
    /// one. The encoding stays the same.
    fn renew_pieces(&mut self, _first: usize, _has_time: &mut impl FnMut() -> bool) -> Option<usize> {
        None
    }

    /// Returns the facts for RL.INFO: the current usage at `now`, without recovered or expired parts, and the stored
    /// timestamps. `recovers_at` is the time of full recovery or an upper bound of it. A kind that does not store the
    /// numbers of its limit derives the current usage from `recovers_at`; if that is `None`, the stored usage is
    /// returned.
    fn describe(&self, now: Timestamp, recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)>;
}

/// Decodes the tag of an effect; [`WHOLE`] for a kind whose effects have no tag.
fn effect_tag<U: Usage>(from: &mut impl Decoder) -> Option<u64> {
    if U::PROPAGATES_CHANGES { from.integer() } else { Some(WHOLE) }
}

/// Source of the time of full recovery after a move back, under the limit that charged the usage last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoverySource {
    /// The previous time, moved back by the same span.
    MovesBack,
    /// [`Usage::time_to_recovery`].
    Usage,
    /// The limit of the last charge. Without it, the previous time is an upper bound.
    Limit,
}

/// Fencing token: larger than the tokens of all previous leases of the key.
pub type Token = std::num::NonZeroU64;

/// Holder, units, expiry and fencing token of a lease.
pub type LeaseInfo = (Box<[u8]>, Amount, Timestamp, Option<Token>);

/// Value of a fact for RL.INFO.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InfoField {
    /// Amount.
    Amount(Amount),
    /// Timestamp.
    Instant(Timestamp),
    /// Span.
    Span(Span),
    /// Count.
    Count(u64),
    /// Keyword.
    Word(&'static str),
    /// Leases.
    Leases(Vec<LeaseInfo>),
    /// Facts of each component.
    Components(Vec<Vec<(&'static str, InfoField)>>),
    /// Name given by a caller.
    Name(Box<[u8]>),
    /// Arguments of a limit.
    Text(String),
}

/// Numbers that tell a limit without a name apart from other limits of its [`UsageKind`]. They may be stored, so they
/// never change for the same parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Period or window in microseconds; 0 for a calendar window, a concurrency limit or a sketch.
    pub micros: u64,
    /// Options of the window (ALIGNED, OFFSET, ANCHOR) and the unit of a calendar window, as a number; 0 without any.
    pub options: u32,
}

impl Identity {
    /// Creates the identity of a limit with this period and without options.
    #[must_use]
    pub fn by(period: Period) -> Identity {
        Identity { micros: period.micros().get(), options: 0 }
    }
}

/// Verdict on one cost. Ordered by the wait: the maximum of two verdicts is the one with the longer wait.
///
/// ```
/// use ratelimit_core::{Span, Verdict};
///
/// let verdicts = [Verdict::Allowed(Span::ZERO), Verdict::Never, Verdict::After(Span::SECOND)];
/// assert_eq!(verdicts.into_iter().max(), Some(Verdict::Never));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Granted; the caller acts after this span, the hold (zero except under a leaky bucket or with MAXWAIT).
    Allowed(Span),
    /// Denied now; the same call is granted after this span, unless another call comes first.
    After(Span),
    /// Denied permanently: the cost is above the limit.
    Never,
}

impl Verdict {
    /// Returns `true` if the cost is granted.
    #[must_use]
    pub fn allowed(self) -> bool {
        matches!(self, Verdict::Allowed(_))
    }
}

/// Decision on a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Verdict on the cost of the call.
    pub verdict: Verdict,
    /// Maximum usage.
    pub limit: Amount,
    /// Remaining amount: after the call if it charged, otherwise at present.
    pub remaining: Amount,
    /// Time until full recovery: after the call if it charged, otherwise at present.
    pub reset: Span,
    /// Amount granted to an UPTO, in whole units.
    pub granted: Option<Amount>,
}

/// Outcome of [`Limit::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<U> {
    /// The cost fits: the decision, and the state after the charge.
    Charged(Decision, U),
    /// The cost does not fit.
    Denied(Decision),
}

impl Decision {
    /// Raises the limit by the amount of KEEP: the decision was made under the lowered limit, but the reply reports the
    /// full limit.
    #[must_use]
    #[inline(always)]
    pub fn with_keep(self, keep: Amount) -> Decision {
        Decision { limit: self.limit.plus(keep), ..self }
    }
}

#[cfg(test)]
mod tests;
