//! Strict sliding window: constant memory with a guarantee.
//!
//! Time is divided into slots of `ceil(window / 60)`, at multiples of their width since the Unix epoch. A trailing
//! window overlaps up to 61 slots, so 61 slots are stored, and each slot that overlaps the window counts as a whole.
//! Therefore, at most `limit` is admitted in *any* trailing window.
//!
//! **When to use it:** if the limit is guaranteed to a third party (an upstream's quota). **Known flaw:** usage counts
//! up to one slot longer than necessary, so a client that sends at all times gets 60/61 of the limit. **Cost:** 504
//! bytes, and a pass over 61 counts.

use crate::limit::{Identity, InfoField, Limit, RecoverySource, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{Decoder, Encoder};
use std::borrow::Cow;
use std::fmt;

/// Strict sliding-window limiter.
///
/// ```
/// use ratelimit_core::algorithm::strict_window::{StrictWindow, StrictWindowUsage};
/// use ratelimit_core::{Amount, Limit, Period, Span, Timestamp};
///
/// let limit = StrictWindow::new(Amount::ONE, Period::parse(b"60s").unwrap());
/// let mut usage = StrictWindowUsage::default();
/// limit.charge(&mut usage, Timestamp::EPOCH, Amount::ONE);
/// // The slot that contains the charge is a second long. It counts as a whole, until its end is a minute old.
/// assert_eq!(limit.reset(&usage, Timestamp::EPOCH), Span::SECOND.times(61).minus(Span::MICROSECOND));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StrictWindow {
    limit: Amount,
    window: Period,
}

/// Number of slots in a window.
const SLOTS_PER_WINDOW: u64 = 60;

/// Maximum number of slots that a trailing window overlaps.
const SLOTS: usize = 61;

impl StrictWindow {
    /// Creates a limit of `limit` in any trailing `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> StrictWindow {
        StrictWindow { limit, window }
    }

    /// Returns this window with another limit.
    #[must_use]
    pub fn limited_to(self, limit: Amount) -> StrictWindow {
        StrictWindow { limit, ..self }
    }

    /// Returns the identity that stands for the limit if it has no name.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity::by(self.window)
    }

    /// Drops usage that no longer counts, and makes the slot of `now` the newest. Usage counted under another window
    /// length becomes the count of that slot.
    fn advance(&self, usage: &mut StrictWindowUsage, now: Timestamp) {
        if usage.window == self.window.span() && usage.changes_only_newest_slot(now) {
            usage.changed_at = now;
            return;
        }
        let in_this_window = if usage.window == self.window.span() {
            *usage
        } else {
            let mut opened =
                StrictWindowUsage { window: self.window.span(), changed_at: now, ..StrictWindowUsage::default() };
            opened.counts[0] = usage.used_at(now);
            opened
        };
        *usage = in_this_window.moved(now, |slot| slot);
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

    // Until the next charge, usage counted under another window length decays under that length, so evaluations use the
    // stored window.

    fn verdict(&self, usage: &StrictWindowUsage, now: Timestamp, cost: Amount) -> Verdict {
        if cost > self.limit {
            return Verdict::Never;
        }
        let usage = usage.as_evaluated_at(now);
        // Sums up slots from the newest to the oldest, as long as they fit beside the cost. The first slot that does
        // not fit has to expire, and with it all older slots.
        let mut sum = Amount::ZERO;
        for (age, count) in (0..).zip(usage.counts_at(now)) {
            sum = sum.plus(*count);
            if sum.excess(cost, self.limit) != Amount::ZERO {
                return Verdict::After(usage.slot_expiry(usage.slot_of_age(age)).since(now));
            }
        }
        Verdict::Allowed(Span::ZERO)
    }

    fn remaining(&self, usage: &StrictWindowUsage, now: Timestamp) -> Amount {
        self.limit.minus(usage.as_evaluated_at(now).used_at(now))
    }

    fn reset(&self, usage: &StrictWindowUsage, now: Timestamp) -> Span {
        usage.time_to_recovery(now)
    }

    fn charge(&self, usage: &mut StrictWindowUsage, now: Timestamp, cost: Amount) {
        self.advance(usage, now);
        usage.counts[0] = usage.counts[0].plus(cost);
    }

    fn refund(&self, usage: &mut StrictWindowUsage, now: Timestamp, amount: Amount) {
        self.advance(usage, now);
        // From the oldest slot on: if newer slots were refunded first, more than the limit could be used in a trailing
        // window, even after subtracting refunds.
        let mut remaining_refund = amount;
        for count in usage.counts.iter_mut().rev() {
            let reduction = remaining_refund.min(*count);
            *count = count.minus(reduction);
            remaining_refund = remaining_refund.minus(reduction);
        }
    }

    fn low_water_mark(&self, usage: &StrictWindowUsage, _now: Timestamp) -> Option<Amount> {
        let reopens = usage.window != self.window.span();
        (reopens || usage.is_saturated()).then_some(Amount::ZERO)
    }
}

/// Usage of a strict window: 504 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StrictWindowUsage {
    /// Window length for which the slots were created; 0 for unused usage.
    window: Span,
    /// Time of the last change, which lies in the newest slot.
    changed_at: Timestamp,
    /// Counts of the slots by age, the newest first.
    counts: [Amount; SLOTS],
}

impl Default for StrictWindowUsage {
    fn default() -> StrictWindowUsage {
        StrictWindowUsage { window: Span::ZERO, changed_at: Timestamp::EPOCH, counts: [Amount::ZERO; SLOTS] }
    }
}

impl StrictWindowUsage {
    /// Returns the width of a slot in microseconds.
    fn width(&self) -> u64 {
        self.window.micros().div_ceil(SLOTS_PER_WINDOW).max(1)
    }

    /// Returns the number of the slot that contains `instant`.
    fn slot_at(&self, instant: Timestamp) -> u64 {
        instant.micros().checked_div(self.width()).unwrap_or(0)
    }

    /// Returns the first microsecond of a slot.
    fn slot_start(&self, slot: u64) -> Timestamp {
        Timestamp::EPOCH.plus(Span::from_micros(slot.saturating_mul(self.width())))
    }

    /// Returns the last microsecond of a slot.
    fn slot_end(&self, slot: u64) -> Timestamp {
        let micros = slot.saturating_add(1).saturating_mul(self.width()).saturating_sub(1);
        Timestamp::EPOCH.plus(Span::from_micros(micros))
    }

    /// Returns the time at which a slot stops counting: when its last microsecond is a window old.
    fn slot_expiry(&self, slot: u64) -> Timestamp {
        self.slot_end(slot).plus(self.window)
    }

    /// Returns this usage as if last changed at `now`. Moves each slot that still counts to the number that `new_slot`
    /// returns for the slot's number.
    fn moved(&self, now: Timestamp, new_slot: impl Fn(u64) -> u64) -> StrictWindowUsage {
        let newest = self.slot_at(now);
        let mut moved = StrictWindowUsage { window: self.window, changed_at: now, ..StrictWindowUsage::default() };
        for (age, count) in self.nonzero_counts() {
            let slot = new_slot(self.slot_of_age(age));
            let age = usize::try_from(newest.saturating_sub(slot)).unwrap_or(SLOTS);
            if let Some(moved_count) = moved.counts.get_mut(age).filter(|_| now < self.slot_expiry(slot)) {
                *moved_count = moved_count.plus(count);
            }
        }
        moved
    }

    /// Returns this usage as evaluated at `now`: if `now` is before the last change, a copy that is moved back.
    fn as_evaluated_at(&self, now: Timestamp) -> Cow<'_, StrictWindowUsage> {
        if !self.is_after(now) {
            return Cow::Borrowed(self);
        }
        let mut moved = *self;
        moved.move_back(now);
        Cow::Owned(moved)
    }

    /// Returns `true` if a charge at `now` changes no slot except the newest, like most charges, which are in the same
    /// slot as the previous charge.
    fn changes_only_newest_slot(&self, now: Timestamp) -> bool {
        let newest = self.slot_at(self.changed_at);
        self.slot_at(now) == newest && self.oldest_counted_slot(now) <= newest.saturating_sub(SLOTS_PER_WINDOW)
    }

    /// Returns the number of the oldest slot that counts at `now`, whether used or not.
    fn oldest_counted_slot(&self, now: Timestamp) -> u64 {
        // Solves `now < slot_expiry(slot)` for the slot.
        let since = now.plus(Span::MICROSECOND).minus(self.window);
        self.slot_at(since)
    }

    /// Returns the number of the slot with an age: the number of slots since the newest one.
    fn slot_of_age(&self, age: u64) -> u64 {
        self.slot_at(self.changed_at).saturating_sub(age)
    }

    /// Returns the counts of the slots that count at `now`, the newest first.
    fn counts_at(&self, now: Timestamp) -> &[Amount] {
        let slot_after_newest = self.slot_at(self.changed_at).saturating_add(1);
        let count = usize::try_from(slot_after_newest.saturating_sub(self.oldest_counted_slot(now))).unwrap_or(SLOTS);
        self.counts.get(..count).unwrap_or(&self.counts)
    }

    /// Iterates over the nonzero counts with their ages, the newest first.
    fn nonzero_counts(&self) -> impl Iterator<Item = (u64, Amount)> + '_ {
        (0..).zip(self.counts.iter().copied()).filter(|(_, count)| *count != Amount::ZERO)
    }

    /// Returns `true` if a count may be lower than the sum of its charges. Then no charge can be taken back, because
    /// its count may contain only a part of it.
    fn is_saturated(&self) -> bool {
        self.counts.contains(&Amount::MAX)
    }

    /// Returns the number of a slot after the usage is moved back to `now`.
    ///
    /// A slot moves by the distance of its last microsecond, so that it never stops counting sooner. It never moves
    /// into the future, so that a denial never lasts longer than after a charge made now.
    fn slot_after_move_back(&self, slot: u64, now: Timestamp) -> u64 {
        self.slot_at(self.slot_end(slot).minus(self.ahead(now))).min(self.slot_at(now))
    }

    /// Returns the usage that counts at `now`.
    fn used_at(&self, now: Timestamp) -> Amount {
        self.counts_at(now).iter().fold(Amount::ZERO, |sum, count| sum.plus(*count))
    }
}

impl Usage for StrictWindowUsage {
    const KIND: UsageKind = UsageKind::StrictWindow;

    fn is_unused(&self) -> bool {
        self.counts.iter().all(|count| *count == Amount::ZERO)
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.changed_at.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        *self = self.moved(now, |slot| self.slot_after_move_back(slot, now));
    }

    /// Returns the start of the newest slot.
    fn place(&self) -> Option<Timestamp> {
        Some(self.slot_start(self.slot_at(self.changed_at)))
    }

    fn place_after_move_back(&self, place: Timestamp, now: Timestamp) -> Option<Timestamp> {
        let slot = self.slot_at(place);
        let is_after_epoch = self.slot_end(slot).since(Timestamp::EPOCH) >= self.ahead(now);
        is_after_epoch.then(|| self.slot_start(self.slot_after_move_back(slot, now)))
    }

    fn take_back(&mut self, place: Option<Timestamp>, amount: Amount) -> Amount {
        let Some(place) = place.filter(|_| !self.is_saturated()) else { return Amount::ZERO };
        let age = self.slot_at(self.changed_at).checked_sub(self.slot_at(place));
        let count = age.and_then(|age| self.counts.get_mut(usize::try_from(age).ok()?));
        let Some(count) = count else { return Amount::ZERO };
        let reduction = amount.min(*count);
        *count = count.minus(reduction);
        reduction
    }

    fn recovery_source(&self) -> RecoverySource {
        // Slots count as a whole, so a slot may stop counting sooner or later than the distance of the move suggests.
        // The window is stored, so the recovery is known.
        RecoverySource::Usage
    }

    /// Returns the time until the last slot stops counting, under the stored window length.
    fn time_to_recovery(&self, now: Timestamp) -> Span {
        let usage = self.as_evaluated_at(now);
        let newest = (0..).zip(usage.counts_at(now)).find(|(_, count)| **count != Amount::ZERO);
        newest.map_or(Span::ZERO, |(age, _)| usage.slot_expiry(usage.slot_of_age(age)).since(now))
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.window.micros());
        to.integer(self.changed_at.micros());
        to.integer(u64::try_from(self.nonzero_counts().count()).unwrap_or(0));
        for (age, count) in self.nonzero_counts() {
            to.integer(age);
            to.integer(count.millionths());
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<StrictWindowUsage> {
        let window = Period::new(Span::from_micros(from.integer()?))?.span();
        let changed_at = Timestamp::from_micros(from.integer()?)?;
        let mut usage = StrictWindowUsage { window, changed_at, ..StrictWindowUsage::default() };
        let slot_count = usize::try_from(from.integer()?).ok().filter(|slot_count| (1..=SLOTS).contains(slot_count))?;
        let mut next_age = 0;
        for _ in 0..slot_count {
            let age = from.integer()?;
            let count = Amount::from_millionths(from.integer()?)?;
            let slot = usage.slot_at(changed_at).checked_sub(age)?;
            // A charge drops slots that have expired.
            if age < next_age || usage.slot_expiry(slot) <= changed_at || count == Amount::ZERO {
                return None;
            }
            *usage.counts.get_mut(usize::try_from(age).ok()?)? = count;
            next_age = age.saturating_add(1);
        }
        Some(usage)
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        vec![
            ("used", InfoField::Amount(self.as_evaluated_at(now).used_at(now))),
            ("written", InfoField::Instant(self.changed_at)),
            ("window", InfoField::Span(self.window)),
        ]
    }
}

#[cfg(test)]
mod tests;
