//! The two families, and what they say to each other: a [`Limit`] is what a call brings, a [`Usage`] is what its key
//! remembers, and a [`Decision`] is what the call is told.

use crate::kind::Kind;
use crate::number::{Amount, Period, Span, Timestamp};
use crate::wire::codec::Discard;
use crate::wire::codec::{Decoder, Encoder};

/// What a call brings: an algorithm with its numbers.
///
/// A look may be told a time before the usage's, by a clock that has gone back. It answers exactly as if
/// [`Usage::move_back`] had been called first, writes nothing, and copies nothing that grows with the calls. A change
/// (`charge`, `give_back`) is told no such time: whoever calls has seen to that with `move_back`.
pub trait Limit {
    /// What a key under this limit remembers.
    type Usage: Usage;

    /// How much may be used at once.
    fn limit(&self) -> Amount;

    /// Whether `cost` more may be used now, and if not, when.
    fn verdict(&self, usage: &Self::Usage, now: Timestamp, cost: Amount) -> Verdict;

    /// How much more may be used now: the largest cost that passes, 0 if the limit is reached or passed.
    fn remaining(&self, usage: &Self::Usage, now: Timestamp) -> Amount;

    /// How long until the usage is as good as never seen.
    fn reset(&self, usage: &Self::Usage, now: Timestamp) -> Span;

    /// Whether it looks at a part of what the key remembers: the whole may recover later than that.
    const LOOKS_AT_A_PART: bool = false;

    /// How long until all that the key remembers has recovered.
    fn recovery(&self, usage: &Self::Usage, now: Timestamp) -> Span {
        self.reset(usage, now)
    }

    /// How long until the usage is within the limit; 0 if it is.
    fn debt(&self, usage: &Self::Usage, now: Timestamp) -> Span {
        match self.verdict(usage, now, Amount::ZERO) {
            Verdict::After(wait) => wait,
            Verdict::Allowed(_) | Verdict::Never => Span::ZERO,
        }
    }

    /// How long until the usage is within the limit once `cost` more is charged now, whether it fits or not. This
    /// default charges a copy; a limit whose usage grows with the calls computes it without one.
    fn debt_after_charge(&self, usage: &Self::Usage, now: Timestamp, cost: Amount) -> Span {
        let mut charged = usage.clone();
        if charged.is_after(now) {
            charged.move_back(now);
        }
        self.charge(&mut charged, now, cost);
        self.debt(&charged, now)
    }

    /// What becomes of a take of `cost`, where that is quicker to tell in one go than by a verdict, a charge and a
    /// decision; `None` where it is not.
    #[inline(always)]
    fn taken_fast(&self, _usage: &Self::Usage, _now: Timestamp, _cost: Amount) -> Option<Taken<Self::Usage>> {
        None
    }

    /// Uses `cost` more, whether it fits or not.
    fn charge(&self, usage: &mut Self::Usage, now: Timestamp, cost: Amount);

    /// Uses `amount` less, never below nothing.
    fn give_back(&self, usage: &mut Self::Usage, now: Timestamp, amount: Amount);

    /// The usage from which an earlier charge can still be taken back (SETTLE), rounded down. `Some` of 0: nothing that
    /// was charged so far can be settled any more. So it is where a limit cannot settle, where the usage has saturated,
    /// and where the next charge counts all anew. `None`: each charge lies in a place of its own ([`Usage::place`]),
    /// and the next charge leaves those where they are. See [`idempotency`](crate::composite::idempotency).
    fn low(&self, _usage: &Self::Usage, _now: Timestamp) -> Option<Amount> {
        Some(Amount::ZERO)
    }

    /// Returns how many entries, or pieces of a sketch, the key will hold if a charge adds one; `None` if it adds none.
    fn entries_after_charge(&self, _usage: &Self::Usage, _now: Timestamp) -> Option<usize> {
        None
    }
}

/// Seal of [`Usage`].
pub(crate) mod listed {
    /// Usage in the list of algorithms, or that of composite keys.
    pub trait Listed {}
}

/// What a key remembers. `Default` is "never seen". It may be freed on another thread than it was made on.
///
/// It is implemented for the list of [`algorithms`](crate::algorithms!) and for composite keys alone, so that a kind has
/// one usage.
pub trait Usage: Clone + Default + Send + listed::Listed + 'static {
    /// Kind of the usage: one native type of the server.
    const KIND: Kind;

    /// The version of its encoding that is written. Raised only if an older reader would misread it.
    const VERSION: u32 = 1;

    /// Whether it grows with the calls: it holds [entries](Usage::entries).
    const GROWS: bool = false;

    /// Whether it holds pieces that can be renewed one by one ([`renew_pieces`](Usage::renew_pieces)).
    const HAS_PIECES: bool = false;

    /// Whether nothing is used, so that the key may go.
    fn is_unused(&self) -> bool;

    /// How much later than `now` it was written: the clock has gone back by so much. 0 if it has not.
    fn ahead(&self, now: Timestamp) -> Span;

    /// Whether it was written later than `now`.
    fn is_after(&self, now: Timestamp) -> bool {
        self.ahead(now) != Span::ZERO
    }

    /// Moves what was written later than `now` back to `now`: nothing is forgiven, and nobody is locked out for
    /// longer than one full recovery from now. Takes no longer for a usage that has grown.
    fn move_back(&mut self, now: Timestamp);

    /// Where the newest charge was counted, where each charge lies in a place of its own: a window, a slot, an entry.
    fn place(&self) -> Option<Timestamp> {
        None
    }

    /// Where a place will be once this usage is moved back to `now`; `None` if that would be before the epoch.
    fn place_after_move_back(&self, place: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let span = self.ahead(now);
        (place.since(Timestamp::EPOCH) >= span).then(|| place.minus(span))
    }

    /// Takes back up to so much of what was charged: from the place where it was counted, or from all where all lies
    /// together; by how much the usage is lower. The instants in it stay: what is settled was charged when it was.
    fn take_back(&mut self, _place: Option<Timestamp>, _amount: Amount) -> Amount {
        Amount::ZERO
    }

    /// What a clock gone back does to the instant at which it will have recovered under the limit that charged it last.
    fn recovery(&self) -> Recovery {
        Recovery::MovesAlong
    }

    /// How long until it will have recovered, of a usage that knows by itself; 0 where only its limit knows.
    fn time_to_recovery(&self, _now: Timestamp) -> Span {
        Span::ZERO
    }

    /// Writes it out, field by field.
    fn encode(&self, to: &mut impl Encoder);

    /// Reads what `encode` wrote in format `version`. `None` unless it is a state that some call could have made.
    fn decode(from: &mut impl Decoder, version: u32) -> Option<Self>;

    // What is propagated of a call is the whole usage; of a kind that may be large, only what the call changed: it
    // overrides `encode_effect`, `encode_whole_effect`, `accepts_effect_until` and `apply_effect` together.

    /// Writes out what has changed since the last time that this was asked. To be asked after every change, even if
    /// nothing is propagated: what was not asked for would be propagated with the next change.
    fn encode_effect(&mut self, to: &mut impl Encoder) {
        self.encode(to);
    }

    /// Forgets what the last call has changed, as writing its effect out does: nobody is to be told.
    #[inline]
    fn forget_effect(&mut self) {
        self.encode_effect(&mut Discard);
    }

    /// Writes the whole usage out as an effect.
    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        self.encode(to);
    }

    /// Writes a part of the whole usage out as an effect, behind which the others do the rest: that `from` which it
    /// goes on, 0 of the first. Where the next goes on, if there is one.
    fn encode_part_of_whole(&self, _from: usize, to: &mut impl Encoder) -> Option<usize> {
        self.encode_whole_effect(to);
        None
    }

    /// Whether an effect is one that some call on this usage could have had.
    fn accepts_effect(&self, from: &mut impl Decoder, version: u32) -> bool {
        self.accepts_effect_until(from, version, Timestamp::MAX)
    }

    /// Whether an effect is one that some call on this usage could have had, at `latest` or before: what it makes is
    /// not later ([`Usage::is_after`]).
    fn accepts_effect_until(&self, from: &mut impl Decoder, version: u32, latest: Timestamp) -> bool {
        Self::decode(from, version).is_some_and(|usage| !usage.is_after(latest))
    }

    /// Applies an effect that was accepted.
    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        *self = Self::decode(from, version).unwrap_or_default();
    }

    /// Returns how many entries it holds, for a kind that grows with the calls; for a sketch, how many pieces.
    fn entries(&self) -> usize {
        0
    }

    /// How many bytes it holds beside itself.
    fn heap_size(&self) -> usize {
        0
    }

    /// The latest fencing token that any lease in it has had, as far as is known; 0 if none had one.
    fn latest_token(&self) -> u64 {
        0
    }

    /// How many allocations it takes to free it, about.
    fn effort(&self) -> usize {
        1
    }

    /// Copies its pieces into new blocks, for an allocator that has better places than those where they lie: from the
    /// one with the number `from` on, as long as `may_go_on` says so. The number of the next, if there is one. What is
    /// written of it stays as it is.
    fn renew_pieces(&mut self, _from: usize, _may_go_on: &mut impl FnMut() -> bool) -> Option<usize> {
        None
    }

    /// Returns what it says to people: what is used at `now`, without what has recovered or expired by then, and the
    /// instants that are stored. `recovers_at` is the instant at which it will have recovered, or a later one; a usage
    /// that does not store its limit's numbers goes by that, and without it by what was used when it was written.
    fn describe(&self, now: Timestamp, recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)>;
}

/// What is known of the instant at which a usage will have recovered, under the limit that charged it last, after it
/// was moved back with the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// It has moved back by exactly as much.
    MovesAlong,
    /// It is told by [`Usage::time_to_recovery`].
    IsTold,
    /// It comes no later than before, and perhaps no sooner; only the limit that charged it last knows.
    IsHidden,
}

/// A fencing token: larger than those of all leases of its key before.
pub type Token = std::num::NonZeroU64;

/// A lease: its holder, its units, when it expires, and its fencing token.
pub type LeaseInfo = (Box<[u8]>, Amount, Timestamp, Option<Token>);

/// One thing that a usage says to people (RL.INFO).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InfoField {
    /// How much.
    Amount(Amount),
    /// When.
    Instant(Timestamp),
    /// How long.
    Span(Span),
    /// How many.
    Count(u64),
    /// A word.
    Word(&'static str),
    /// Holders, their units, and when they expire.
    Leases(Vec<LeaseInfo>),
    /// What each component of several says.
    Components(Vec<Vec<(&'static str, InfoField)>>),
    /// A word of a caller's.
    Name(Box<[u8]>),
    /// A limit's words.
    Text(String),
}

/// What a limit without a name is known by among others of its [`Kind`]: another window is another limit. It may be
/// stored: what it says never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The microseconds of its period or window; 0 if that is no length of time, or tells nobody apart.
    pub micros: u64,
    /// The words that go with it (ALIGNED's), as a number; 0 if there are none.
    pub words: u32,
}

impl Identity {
    /// By its period alone.
    #[must_use]
    pub fn by(period: Period) -> Identity {
        Identity { micros: period.micros().get(), words: 0 }
    }
}

/// The answer to one cost. Of two, the greater is the one that says to wait longer.
///
/// ```
/// use ratelimit_core::{Span, Verdict};
///
/// let verdicts = [Verdict::Allowed(Span::ZERO), Verdict::Never, Verdict::After(Span::SECOND)];
/// assert_eq!(verdicts.into_iter().max(), Some(Verdict::Never));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It passes; its caller acts on it after this long (0 but for a queue or a wait that the caller offered).
    Allowed(Span),
    /// Denied now; the same call passes after this long, if no other comes before.
    After(Span),
    /// Denied for good: the cost is more than the limit.
    Never,
}

impl Verdict {
    /// Whether it passes.
    #[must_use]
    pub fn allowed(self) -> bool {
        matches!(self, Verdict::Allowed(_))
    }
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether it passes, and when.
    pub verdict: Verdict,
    /// How much may be used at once.
    pub limit: Amount,
    /// How much more may be used: after the call if it charged, as it stands if it did not.
    pub remaining: Amount,
    /// How long until the key is as good as never seen: after the call if it charged, as it stands if it did not.
    pub reset: Span,
    /// What an UPTO was granted, in whole units.
    pub granted: Option<Amount>,
}

/// The outcome of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken<U> {
    /// It is charged: the answer, and what the key remembers then.
    Charged(Decision, U),
    /// It is denied: the answer.
    Denied(Decision),
}

impl Decision {
    /// Raises the limit of a decision by what the call keeps (KEEP): the decision was made under the lowered limit,
    /// and the reply names the whole one.
    #[must_use]
    #[inline(always)]
    pub fn keeping(self, kept: Amount) -> Decision {
        Decision { limit: self.limit.plus(kept), ..self }
    }
}

#[cfg(test)]
mod tests;
