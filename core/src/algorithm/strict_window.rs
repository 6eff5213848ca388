//! The strict sliding window: constant memory, with a guarantee.
//!
//! Time is cut into slots of `ceil(window / 60)`, at multiples of their width since the Unix epoch. A trailing window
//! touches up to 61 of them, so 61 are kept, and all that it touches are counted whole: whatever the traffic, no more
//! than `limit` is admitted in *any* trailing window.
//!
//! When to use it: where the limit is a promise to somebody else (an upstream's quota). Its price: usage counts up to
//! one slot longer than it must, so a client that always pushes gets 60/61 of the limit. Cost: 504 bytes, a pass over
//! 61 counts.

use crate::kind::Kind;
use crate::limit::{Identity, InfoField, Limit, Recovery, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use std::borrow::Cow;
use std::fmt;

/// A strict window's numbers.
///
/// ```
/// use ratelimit_core::algorithm::strict_window::{StrictWindow, StrictWindowUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp};
///
/// let limit = StrictWindow::new(Amount::ONE, Period::parse(b"60s").unwrap());
/// let mut usage = StrictWindowUsage::default();
/// limit.charge(&mut usage, Timestamp::EPOCH, Amount::ONE);
/// // All of the slot of a second that it came in counts until its end is a minute old.
/// assert_eq!(limit.reset(&usage, Timestamp::EPOCH), Span::SECOND.times(61).minus(Span::MICROSECOND));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StrictWindow {
    limit: Amount,
    window: Period,
}

/// How many slots a window is cut into.
const SLOTS_A_WINDOW: u64 = 60;

/// How many slots a trailing window can touch.
const SLOTS: usize = 61;

impl StrictWindow {
    /// At most `limit` in any trailing `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> StrictWindow {
        StrictWindow { limit, window }
    }

    /// This window with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> StrictWindow {
        StrictWindow { limit, ..self }
    }

    /// Whether what is used recovers by a rate, which a scale changes.
    pub const RECOVERS_BY_RATE: bool = false;

    /// This window with its limit times `factor`, rounded down.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> StrictWindow {
        self.limited_to(self.limit.times(factor))
    }

    /// What it is known by without a name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.window)
    }

    /// Drops what no longer counts and makes the slot of `now` the newest; usage counted under another window length
    /// becomes that slot's.
    fn advance(&self, usage: &mut StrictWindowUsage, now: Timestamp) {
        if usage.window == self.window.span() && usage.stays(now) {
            usage.written = now;
            return;
        }
        let kept = if usage.window == self.window.span() {
            *usage
        } else {
            let mut opened =
                StrictWindowUsage { window: self.window.span(), written: now, ..StrictWindowUsage::default() };
            opened.counts[0] = usage.present(now);
            opened
        };
        *usage = kept.moved(now, |slot| slot);
    }
}

impl fmt::Display for StrictWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SLIDING {} {} STRICT", self.limit, self.window)
    }
}

impl Limit for StrictWindow {
    type Usage = StrictWindowUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    // Until a charge re-opens it, usage counted under another window length decays under that length: so looking
    // goes by the stored window throughout.

    fn verdict(&self, usage: &StrictWindowUsage, now: Timestamp, cost: Amount) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let usage = usage.seen_at(now);
        // From the newest slot back, for as long as what they hold fits beside the cost: the slot that does not fit,
        // and with it every older one, has to leave.
        let mut held = Amount::ZERO;
        for (age, count) in (0..).zip(usage.counting(now)) {
            held = held.plus(*count);
            if held.excess(cost, self.limit) != Amount::ZERO {
                return Verdict::After(usage.leaves(usage.slot_of_age(age)).since(now));
            }
        }
        Verdict::Allowed(Span::ZERO)
    }

    fn remaining(&self, usage: &StrictWindowUsage, now: Timestamp) -> Amount {
        self.limit.minus(usage.seen_at(now).present(now))
    }

    fn reset(&self, usage: &StrictWindowUsage, now: Timestamp) -> Span {
        usage.time_to_recovery(now)
    }

    fn charge(&self, usage: &mut StrictWindowUsage, now: Timestamp, cost: Amount) {
        self.advance(usage, now);
        usage.counts[0] = usage.counts[0].plus(cost);
    }

    fn give_back(&self, usage: &mut StrictWindowUsage, now: Timestamp, amount: Amount) {
        self.advance(usage, now);
        // The oldest first: taken off newer slots it would let a trailing window hold more than the limit, net.
        let mut rest = amount;
        for count in usage.counts.iter_mut().rev() {
            let taken = rest.min(*count);
            *count = count.minus(taken);
            rest = rest.minus(taken);
        }
    }

    fn low(&self, usage: &StrictWindowUsage, _now: Timestamp) -> Option<Amount> {
        let opens_anew = usage.window != self.window.span();
        (opens_anew || usage.is_saturated()).then_some(Amount::ZERO)
    }
}

/// What a strict window's key remembers: 504 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictWindowUsage {
    /// The length of the window that its slots were cut for; 0 if never seen.
    window: Span,
    /// When it was last charged: the newest slot is the one that this lies in.
    written: Timestamp,
    /// The counts of the slots by age, the newest first.
    counts: [Amount; SLOTS],
}

impl Default for StrictWindowUsage {
    fn default() -> StrictWindowUsage {
        StrictWindowUsage { window: Span::ZERO, written: Timestamp::EPOCH, counts: [Amount::ZERO; SLOTS] }
    }
}

impl StrictWindowUsage {
    /// How long a slot is, in microseconds.
    fn width(&self) -> u64 {
        self.window.micros().div_ceil(SLOTS_A_WINDOW).max(1)
    }

    /// The number of the slot that an instant lies in.
    fn slot_of(&self, instant: Timestamp) -> u64 {
        instant.micros().checked_div(self.width()).unwrap_or(0)
    }

    /// The first microsecond of a slot.
    fn start_of(&self, slot: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::from_micros(slot.saturating_mul(self.width())))
    }

    /// The last microsecond of a slot.
    fn end(&self, slot: u64) -> Timestamp {
        let micros = slot.saturating_add(1).saturating_mul(self.width()).saturating_sub(1);
        Timestamp::EPOCH.plus(Span::from_micros(micros))
    }

    /// When a slot stops counting: once its last microsecond is a window old.
    fn leaves(&self, slot: u64) -> Timestamp {
        self.end(slot).plus(self.window)
    }

    /// This usage as if last charged at `now`, with each slot that still counts then moved to `place` of it.
    fn moved(&self, now: Timestamp, place: impl Fn(u64) -> u64) -> StrictWindowUsage {
        let newest = self.slot_of(now);
        let mut moved = StrictWindowUsage { window: self.window, written: now, ..StrictWindowUsage::default() };
        for (age, count) in self.ages() {
            let slot = place(self.slot_of_age(age));
            let age = usize::try_from(newest.saturating_sub(slot)).unwrap_or(SLOTS);
            if let Some(kept) = moved.counts.get_mut(age).filter(|_| now < self.leaves(slot)) {
                *kept = kept.plus(count);
            }
        }
        moved
    }

    /// This usage as a look at `now` sees it: a copy, moved back, if `now` lies before its last change.
    fn seen_at(&self, now: Timestamp) -> Cow<'_, StrictWindowUsage> {
        if !self.is_after(now) {
            return Cow::Borrowed(self);
        }
        let mut moved = *self;
        moved.move_back(now);
        Cow::Owned(moved)
    }

    /// Whether a charge at `now` finds every slot in its place, and none gone: most do, being in the same slot as the
    /// one before.
    fn stays(&self, now: Timestamp) -> bool {
        let newest = self.slot_of(self.written);
        self.slot_of(now) == newest && self.oldest_counting(now) <= newest.saturating_sub(SLOTS_A_WINDOW)
    }

    /// The number of the oldest slot that counts at `now`: the first that has not left, in use or not.
    fn oldest_counting(&self, now: Timestamp) -> u64 {
        // now < leaves(slot), solved for the slot.
        let since = now.plus(Span::MICROSECOND).minus(self.window);
        self.slot_of(since)
    }

    /// The number of the slot whose count is that of this age.
    fn slot_of_age(&self, age: u64) -> u64 {
        self.slot_of(self.written).saturating_sub(age)
    }

    /// The counts of the slots that count now, the newest first.
    fn counting(&self, now: Timestamp) -> &[Amount] {
        let beyond = self.slot_of(self.written).saturating_add(1);
        let counting = usize::try_from(beyond.saturating_sub(self.oldest_counting(now))).unwrap_or(SLOTS);
        self.counts.get(..counting).unwrap_or(&self.counts)
    }

    /// The counts in use with their ages in slots, the newest first.
    fn ages(&self) -> impl Iterator<Item = (u64, Amount)> + '_ {
        (0..).zip(self.counts.iter().copied()).filter(|(_, count)| *count != Amount::ZERO)
    }

    /// Whether what was charged may not all be in it.
    fn is_saturated(&self) -> bool {
        self.counts.contains(&Amount::MAX)
    }

    /// Where a slot will be, by its number, once the usage is moved back to `now`.
    ///
    /// It moves by the difference to where its last microsecond then lies, so that none stops counting sooner; but none
    /// into the future, so that nobody is locked out for longer than by a charge made now.
    fn slot_after_move_back(&self, slot: u64, now: Timestamp) -> u64 {
        self.slot_of(self.end(slot).minus(self.ahead(now))).min(self.slot_of(now))
    }

    /// What counts now.
    fn present(&self, now: Timestamp) -> Amount {
        self.counting(now).iter().fold(Amount::ZERO, |sum, count| sum.plus(*count))
    }
}

impl Usage for StrictWindowUsage {
    const KIND: Kind = Kind::StrictWindow;

    fn is_unused(&self) -> bool {
        self.counts.iter().all(|count| *count == Amount::ZERO)
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        *self = self.moved(now, |slot| self.slot_after_move_back(slot, now));
    }

    /// When the slot begins.
    fn place(&self) -> Option<Timestamp> {
        Some(self.start_of(self.slot_of(self.written)))
    }

    fn place_after_move_back(&self, place: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let slot = self.slot_of(place);
        let stays = self.end(slot).since(Timestamp::EPOCH) >= self.ahead(now);
        stays.then(|| self.start_of(self.slot_after_move_back(slot, now)))
    }

    fn take_back(&mut self, place: Option<Timestamp>, amount: Amount) -> Amount {
        let Some(place) = place.filter(|_| !self.is_saturated()) else { return Amount::ZERO };
        let age = self.slot_of(self.written).checked_sub(self.slot_of(place));
        let count = age.and_then(|age| self.counts.get_mut(usize::try_from(age).ok()?));
        let Some(count) = count else { return Amount::ZERO };
        let taken = amount.min(*count);
        *count = count.minus(taken);
        taken
    }

    fn recovery(&self) -> Recovery {
        // Slots are whole, so one may stop counting sooner or later than the difference says; the window is stored.
        Recovery::IsTold
    }

    /// As its slots were cut.
    fn time_to_recovery(&self, now: Timestamp) -> Span {
        let usage = self.seen_at(now);
        let newest = (0..).zip(usage.counting(now)).find(|(_, count)| **count != Amount::ZERO);
        newest.map_or(Span::ZERO, |(age, _)| usage.leaves(usage.slot_of_age(age)).since(now))
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.window.micros());
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.ages().count()).unwrap_or(0));
        for (age, count) in self.ages() {
            to.integer(age);
            to.integer(count.millionths());
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<StrictWindowUsage> {
        let window = Period::new(Span::from_micros(from.integer()?))?.span();
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = StrictWindowUsage { window, written, ..StrictWindowUsage::default() };
        let in_use = usize::try_from(from.integer()?).ok().filter(|in_use| (1..=SLOTS).contains(in_use))?;
        let mut next_age = 0;
        for _ in 0..in_use {
            let age = from.integer()?;
            let count = Amount::from_millionths(from.integer()?)?;
            let slot = usage.slot_of(written).checked_sub(age)?;
            // A charge drops what has left.
            if age < next_age || usage.leaves(slot) <= written || count == Amount::ZERO {
                return None;
            }
            *usage.counts.get_mut(usize::try_from(age).ok()?)? = count;
            next_age = age.saturating_add(1);
        }
        Some(usage)
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        vec![
            ("used", InfoField::Amount(self.seen_at(now).present(now))),
            ("written", InfoField::Instant(self.written)),
            ("window", InfoField::Span(self.window)),
        ]
    }
}

#[cfg(test)]
mod tests;
