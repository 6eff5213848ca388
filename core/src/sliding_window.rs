//! The sliding-window counter: two counts in place of a log.
//!
//! Windows follow one another from the first admitted call after a full recovery. The usage is estimated as
//! `previous * (window - elapsed) / window + current`: the previous window's count, weighted by how much of it a
//! trailing window still overlaps, plus the current one's. (Described by Cloudflare in 2017 for its rate limiting.)
//!
//! When to use it: the default choice for "so many per window" on an API. Its known flaw: it takes the previous
//! window's calls to have come evenly; in the worst case a trailing window holds nearly twice the limit. Cost: 32
//! bytes, one division.
//!
//! Exactness: a weighted count is compared rounded up to a millionth; as limits and costs are whole millionths that
//! is the comparison of the exact values. The estimate never rises by itself (at a window's end the current count
//! becomes the previous one with full weight), so the first moment at which a cost fits is found by one division.

use super::codec::{Decoder, Encoder};
use super::ratio;
use super::{Amount, Fact, Kind, Limit, Period, Span, Timestamp, Usage, Verdict};
use std::num::NonZeroU64;

/// A sliding window's numbers.
#[derive(Clone, Copy, Debug)]
pub struct SlidingWindow {
    limit: Amount,
    window: Period,
}

impl SlidingWindow {
    /// At most about `limit` in any `window`.
    #[must_use]
    pub fn new(limit: Amount, window: Period) -> SlidingWindow {
        SlidingWindow { limit, window }
    }

    /// The usage as of now, ready to be charged under this limit's window.
    fn settle(&self, usage: &mut SliderUsage, now: Timestamp) {
        let rolled = usage.rolled(now);
        *usage = if rolled.window == self.window.span() && !rolled.is_unused() {
            rolled
        } else {
            // Nothing counts any more, or it was counted in windows of another length: what still counts becomes
            // the current count of a window that opens now.
            let present = rolled.present(now);
            SliderUsage { start: now, window: self.window.span(), previous: Amount::ZERO, current: present }
        };
    }
}

impl Limit for SlidingWindow {
    type Usage = SliderUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    // Until a charge re-opens it, usage counted in windows of another length decays under that length: so looking
    // goes by the stored window throughout. A time before `start` is looked at as that: no time has passed since, as if
    // it had been moved back.

    fn verdict(&self, usage: &SliderUsage, now: Timestamp, cost: Amount) -> Verdict {
        let rolled = usage.rolled(now);
        if rolled.present(now).excess(cost, self.limit) == Amount::ZERO {
            return Verdict::Allowed(Span::ZERO);
        }
        let (Some(window), Some(room)) = (Period::new(rolled.window), self.limit.checked_minus(cost)) else {
            return Verdict::Never;
        };
        // In this window the previous count fades beside the current one; if the current one alone is too much, it
        // is that one which has to fade in the next window.
        let wait = match room.checked_minus(rolled.current) {
            Some(room) => fades(rolled.previous, room, window),
            None => window.span().plus(fades(rolled.current, room, window)),
        };
        Verdict::After(wait.minus(now.since(rolled.start)))
    }

    fn remaining(&self, usage: &SliderUsage, now: Timestamp) -> Amount {
        self.limit.minus(usage.rolled(now).present(now))
    }

    fn reset(&self, usage: &SliderUsage, now: Timestamp) -> Span {
        let rolled = usage.rolled(now);
        let forgotten = if rolled.current != Amount::ZERO {
            rolled.window.plus(rolled.window)
        } else if rolled.previous != Amount::ZERO {
            rolled.window
        } else {
            return Span::ZERO;
        };
        forgotten.minus(now.since(rolled.start))
    }

    fn charge(&self, usage: &mut SliderUsage, now: Timestamp, cost: Amount) {
        self.settle(usage, now);
        usage.current = usage.current.plus(cost);
    }

    fn give_back(&self, usage: &mut SliderUsage, now: Timestamp, amount: Amount) {
        self.settle(usage, now);
        // The current count covers it, or else the previous one is lowered so that the estimate falls by the rest.
        let rest = amount.minus(usage.current);
        usage.current = usage.current.minus(amount);
        let overlap = usage.window.minus(now.since(usage.start));
        if let Some(overlap) = Period::new(overlap) {
            usage.previous = usage.previous.minus(rest.share_down(usage.window, overlap));
        }
    }
}

/// What a sliding window's key remembers: 32 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SliderUsage {
    /// When the current window opened.
    start: Timestamp,
    /// The length of the windows that it was counted in; 0 if never seen.
    window: Span,
    /// The count of the window before the current one.
    previous: Amount,
    /// The count of the current window.
    current: Amount,
}

impl SliderUsage {
    /// The same usage with the window that `now` lies in as the current one; unused if two have passed.
    fn rolled(&self, now: Timestamp) -> SliderUsage {
        let Some(window) = Period::new(self.window) else { return SliderUsage::default() };
        match now.since(self.start).whole(window) {
            0 => *self,
            1 => SliderUsage {
                start: self.start.plus(self.window),
                window: self.window,
                previous: self.current,
                current: Amount::ZERO,
            },
            _ => SliderUsage::default(),
        }
    }

    /// The estimate, rounded up to a millionth; for a usage that is rolled to `now`.
    fn present(&self, now: Timestamp) -> Amount {
        let Some(window) = Period::new(self.window) else { return Amount::ZERO };
        let overlap = self.window.minus(now.since(self.start));
        self.previous.share_up(overlap, window).plus(self.current)
    }
}

/// How far into a window the count of the one before has faded to `room`: the first microsecond at which
/// `count * (window - elapsed) / window <= room`, for a `room` below `count`.
fn fades(count: Amount, room: Amount, window: Period) -> Span {
    let Some(count) = NonZeroU64::new(count.millionths()) else { return Span::ZERO };
    let overlap = ratio::floor(room.millionths(), window.micros().get(), count);
    window.span().minus(Span::from_micros(overlap))
}

impl Usage for SliderUsage {
    const KIND: Kind = Kind::Slider;

    fn is_unused(&self) -> bool {
        self.previous == Amount::ZERO && self.current == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.start.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.start = self.start.min(now);
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.start.micros());
        to.integer(self.window.micros());
        to.integer(self.previous.millionths());
        to.integer(self.current.millionths());
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SliderUsage> {
        let usage = SliderUsage {
            start: Timestamp::from_micros(from.integer()?)?,
            window: Period::new(Span::from_micros(from.integer()?))?.span(),
            previous: Amount::from_millionths(from.integer()?)?,
            current: Amount::from_millionths(from.integer()?)?,
        };
        (!usage.is_unused()).then_some(usage)
    }

    fn describe(&self) -> Vec<(&'static str, Fact)> {
        vec![
            ("used", Fact::Amount(self.previous.plus(self.current))),
            ("previous", Fact::Amount(self.previous)),
            ("current", Fact::Amount(self.current)),
            ("start", Fact::Instant(self.start)),
            ("window", Fact::Span(self.window)),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ask::{self, Force, GiveBack, Take};
    use crate::calls::{Fields, Key, amounts, call, lengths, millionths, period, units};
    use crate::laws::{Lawful, decoded, encoded, laws};
    use proptest::prelude::*;

    fn sliding(limit: u64, window: &str) -> SlidingWindow {
        SlidingWindow::new(units(limit), period(window))
    }

    fn one() -> Ask {
        Take(units(1))
    }

    fn look() -> Ask {
        Take(Amount::ZERO)
    }

    /// Runs calls on a new key, each with its time in milliseconds, and compares the replies.
    fn check(limit: &SlidingWindow, calls: &[(u64, Ask, [i64; 5])]) -> Key<SliderUsage> {
        let mut key = Key::default();
        for (at, ask, reply) in calls {
            assert_eq!(key.call(limit, *at, *ask), *reply, "{ask:?} at {at}");
        }
        key
    }

    #[test]
    fn the_previous_window_weighs_as_much_as_of_it_overlaps() {
        check(
            &sliding(10, "60s"),
            &[
                (0, Take(units(10)), [1, 10, 0, 0, 120_000]),
                (60_000, look(), [1, 10, 0, 0, 60_000]),
                (65_999, one(), [0, 10, 0, 1, 54_001]),
                (66_000, one(), [1, 10, 0, 0, 114_000]),
                // 5 of the 10, and 1.
                (90_000, look(), [1, 10, 4, 0, 90_000]),
                (90_001, Take(units(4)), [1, 10, 0, 0, 89_999]),
                (119_999, look(), [1, 10, 4, 0, 60_001]),
                (120_000, look(), [1, 10, 5, 0, 60_000]),
                (180_000, look(), [1, 10, 10, 0, 0]),
            ],
        );
    }

    #[test]
    fn a_wait_ends_in_this_window_or_in_the_next() {
        check(
            &sliding(10, "60s"),
            &[
                (0, Take(units(4)), [1, 10, 6, 0, 120_000]),
                // 4 have to fade to 1 after the window's end.
                (30_000, Take(units(9)), [0, 10, 6, 75_000, 90_000]),
                (30_000, Take(units(10)), [0, 10, 6, 90_000, 90_000]),
                // 4 to 2 beside 3, in the window that is open; 3 to 1 in the next.
                (60_000, Take(units(3)), [1, 10, 3, 0, 120_000]),
                (60_000, Take(units(5)), [0, 10, 3, 30_000, 120_000]),
                (60_000, Take(units(7)), [0, 10, 3, 60_000, 120_000]),
                (60_000, Take(units(9)), [0, 10, 3, 100_000, 120_000]),
                (60_000, Take(units(11)), [0, 10, 3, -1, 120_000]),
            ],
        );
    }

    #[test]
    fn the_estimate_is_compared_without_dividing() {
        // A third of 1 fits beside two thirds, rounded down, and not rounded up.
        let limit = SlidingWindow::new(units(1), period("3us"));
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        for (cost, allowed) in [(666_666, true), (666_667, false)] {
            let mut usage = SliderUsage::default();
            call(&limit, &mut usage, at(0), one());
            assert_eq!(call(&limit, &mut usage, at(5), Take(millionths(cost))).verdict.allowed(), allowed);
        }
    }

    #[test]
    fn windows_follow_one_another_until_recovered() {
        check(
            &sliding(10, "60s"),
            &[
                (50_000, Take(units(11)), [0, 10, 10, -1, 0]),
                (50_000, look(), [1, 10, 10, 0, 0]),
                (100_000, one(), [1, 10, 9, 0, 120_000]),
                // In the second window, which opened at 160 s.
                (219_000, one(), [1, 10, 8, 0, 61_000]),
                (279_999, look(), [1, 10, 9, 0, 1]),
                // Recovered, if only just: a window opens now.
                (280_000, one(), [1, 10, 9, 0, 120_000]),
            ],
        );
    }

    #[test]
    fn nearly_twice_the_limit_can_pass_in_a_trailing_window() {
        let (limit, mut key) = (sliding(10, "60s"), Key::default());
        assert_eq!(key.admitted(&limit, 0, 1), 1);
        let last = key.admitted(&limit, 59_999, 20);
        let faded: usize = (60_000..119_999).step_by(100).map(|at| key.admitted(&limit, at, 20)).sum();
        assert_eq!((last, faded), (9, 9));
    }

    #[test]
    fn another_window_length_takes_over_what_still_counts() {
        for (window, reset) in [("10s", 20_000), ("1h", 7_200_000)] {
            let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
            let limit = sliding(10, window);
            // Until a charge, it decays under the stored length, and wait and reset go by that.
            assert_eq!(key.call(&limit, 90_000, Take(units(7))), [0, 10, 6, 7500, 30_000]);
            assert_eq!(key.peek(&limit, 97_500, Take(units(7))), [1, 10, 7, 0, 22_500]);
            // 4 still count.
            assert_eq!(key.call(&limit, 90_000, one()), [1, 10, 5, 0, reset]);
            assert_eq!(key.peek(&limit, 90_000, Take(units(6)))[3], reset / 10 * 6);
        }
        // What no longer counts leaves nothing of its window behind.
        let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
        assert_eq!(key.call(&sliding(10, "1h"), 120_000, one()), [1, 10, 9, 0, 7_200_000]);
    }

    #[test]
    fn what_another_length_takes_over_is_rounded_up() {
        let mut key = Key::default();
        key.call(&sliding(1, "60s"), 0, Take(millionths(1)));
        key.call(&sliding(1, "10s"), 90_000, Take(millionths(1)));
        assert_eq!(key.peek(&sliding(1, "10s"), 90_000, Take(millionths(999_998))), [1, 1, 0, 0, 20_000]);
        assert_eq!(key.peek(&sliding(1, "10s"), 90_000, Take(millionths(999_999)))[0], 0);
    }

    #[test]
    fn giving_back_lowers_the_current_count_and_then_the_estimate() {
        let key = check(
            &sliding(10, "60s"),
            &[
                (0, GiveBack(units(1)), [1, 10, 10, 0, 0]),
                (0, Take(units(8)), [1, 10, 2, 0, 120_000]),
                (30_000, GiveBack(units(2)), [1, 10, 4, 0, 90_000]),
                (90_000, Take(units(2)), [1, 10, 5, 0, 90_000]),
                // 2 of the current count, and 1 of the 3 that the previous 6 weigh: 4 of them are left.
                (90_000, GiveBack(units(3)), [1, 10, 8, 0, 30_000]),
                (105_000, look(), [1, 10, 9, 0, 15_000]),
                (105_000, GiveBack(units(1)), [1, 10, 10, 0, 0]),
                // A window opens now, not where one would have followed.
                (106_000, one(), [1, 10, 9, 0, 120_000]),
            ],
        );
        assert!(!key.is_gone());
        let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
        assert_eq!(key.call(&sliding(10, "60s"), 90_000, GiveBack(units(99))), [1, 10, 10, 0, 0]);
        assert!(key.is_gone());
    }

    #[test]
    fn giving_back_is_rounded_against_the_caller() {
        // Two thirds of the previous count weigh. A millionth less of them is one and a half less of the count, and
        // the half is not given: three millionths back are two.
        let (limit, mut key) = (SlidingWindow::new(units(1), period("3s")), Key::default());
        key.call(&limit, 0, Take(millionths(900_000)));
        for _ in 0..3 {
            key.call(&limit, 4000, GiveBack(millionths(1)));
        }
        assert_eq!(key.peek(&limit, 4000, Take(millionths(400_002)))[0], 1);
        assert_eq!(key.peek(&limit, 4000, Take(millionths(400_003)))[0], 0);
    }

    #[test]
    fn giving_back_opens_a_window_of_another_length() {
        let mut key = check(&sliding(10, "60s"), &[(0, Take(units(8)), [1, 10, 2, 0, 120_000])]);
        assert_eq!(key.call(&sliding(10, "10s"), 90_000, GiveBack(units(1))), [1, 10, 7, 0, 20_000]);
        assert_eq!(key.call(&sliding(10, "10s"), 90_000, GiveBack(units(3))), [1, 10, 10, 0, 0]);
        assert!(key.is_gone());
    }

    #[test]
    fn a_forced_debt_is_forgotten_as_it_leaves() {
        let limit = sliding(10, "60s");
        assert_eq!(Key::default().peek(&limit, 0, Force(units(40))), [0, 10, 10, 105_000, 0], "as if charged");
        check(
            &limit,
            &[
                (0, Force(units(40)), [0, 10, 0, 105_000, 120_000]),
                (60_000, look(), [0, 10, 0, 45_000, 60_000]),
                (104_999, look(), [0, 10, 0, 1, 15_001]),
                (105_000, look(), [1, 10, 0, 0, 15_000]),
                (105_000, one(), [0, 10, 0, 1500, 15_000]),
                (105_000, Force(units(1)), [0, 10, 0, 1500, 75_000]),
                (119_000, Force(units(1)), [1, 10, 7, 0, 61_000]),
            ],
        );
    }

    #[test]
    fn upto_grants_the_whole_units_that_there_are() {
        let (limit, mut key) = (sliding(10, "60s"), Key::default());
        for (at, most, granted) in [(0, 8, 8), (0, 8, 2), (0, 1, 0), (65_999, 9, 0), (66_000, 9, 1), (78_001, 9, 2)] {
            assert_eq!(key.granted(&limit, at, most), granted, "{at}");
        }
        assert_eq!(key.call(&limit, 78_001, Ask::UpTo(units(9))), [0, 10, 0, 5999, 101_999]);
        assert_eq!(key.call(&sliding(0, "60s"), 78_001, Ask::UpTo(units(9)))[3], -1);
    }

    #[test]
    fn a_limit_of_nothing_admits_nothing_but_looks() {
        let limit = sliding(0, "60s");
        check(&limit, &[(0, Take(millionths(1)), [0, 0, 0, -1, 0]), (0, look(), [1, 0, 0, 0, 0])]);
    }

    #[test]
    fn a_clock_gone_back_opens_the_window_anew_with_what_was_counted() {
        let limit = sliding(10, "60s");
        let mut key = check(
            &limit,
            &[(1_000_000, Take(units(8)), [1, 10, 2, 0, 120_000]), (1_090_000, one(), [1, 10, 5, 0, 90_000])],
        );
        // The window opened at 1060 s: before that, both counts weigh in full.
        assert_eq!(key.peek(&limit, 1_060_000, look()), [1, 10, 1, 0, 120_000]);
        assert_eq!(key.peek(&limit, 500_000, Take(units(2))), [0, 10, 1, 7500, 120_000]);
        assert_eq!(key.peek(&limit, 1_120_000, look()), [1, 10, 9, 0, 60_000], "a peek has written nothing");
        assert_eq!(key.call(&limit, 500_000, Take(units(2))), [0, 10, 1, 7500, 120_000]);
        assert_eq!(key.peek(&limit, 620_000, look()), [1, 10, 10, 0, 0], "a denied call has written that");
    }

    #[test]
    fn what_is_counted_saturates() {
        let (limit, mut key) = (sliding(1_000_000_000_000, "60s"), Key::default());
        for at in [0, 60_000] {
            for _ in 0..20 {
                key.call(&limit, at, Force(Amount::MAX_ARGUMENT));
            }
        }
        // 9.22 of the previous and of the current count: the latter has to fade to 1.
        assert_eq!(key.peek(&limit, 60_000, look()), [0, 1_000_000_000_000, 0, 113_495, 120_000]);
    }

    #[test]
    fn a_key_is_32_bytes_and_takes_nothing_for_one_that_is_none() {
        assert_eq!(size_of::<SliderUsage>(), 32);
        let (last, longest, most) = (Timestamp::MAX.micros(), 3650 * 86_400_000_000, Amount::MAX.millionths());
        for fields in [[0, 1, 1, 0], [0, 1, 0, 1], [last, longest, most, most]] {
            assert_eq!(
                decoded::<SliderUsage>(&Fields::integers(fields)).map(|usage| encoded(&usage)),
                Some(Fields::integers(fields))
            );
        }
        for fields in [
            &[][..],
            &[5, 1, 1],
            &[5, 1, 0, 0],
            &[5, 0, 1, 1],
            &[5, longest + 1, 1, 1],
            &[last + 1, 1, 1, 1],
            &[5, 1, 1 << 63, 1],
            &[5, 1, 1, 1 << 63],
        ] {
            assert_eq!(decoded::<SliderUsage>(&Fields::integers(fields.iter().copied())), None, "{fields:?}");
        }
    }

    impl Lawful for SlidingWindow {
        fn limits() -> impl Strategy<Value = SlidingWindow> {
            (amounts(), lengths()).prop_map(|(limit, window)| {
                SlidingWindow::new(Amount::saturating(limit), Period::new(Span::from_micros(window)).unwrap())
            })
        }

        /// In any trailing window, less than twice the limit.
        fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
            for (now, _) in admitted {
                let trailing = admitted.iter().filter(|(at, _)| at <= now && at.plus(self.window.span()) > *now);
                let sum: u128 = trailing.map(|(_, cost)| cost).sum();
                assert!(sum < 2 * u128::from(self.limit.millionths()));
            }
        }
    }

    laws!(SlidingWindow);
}
