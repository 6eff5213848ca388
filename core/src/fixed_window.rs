//! Fixed window: `limit` per `window`.
//!
//! The window opens with the first admitted call, or, aligned, at multiples of its length since the Unix epoch.
//! When to use it: quotas that people read off a clock ("1000 a day"). Its known flaw: twice the limit can pass
//! around a boundary (all of it just before, all of it just after). Cost: 16 bytes, no division unless aligned.
//!
//! What is stored is the usage and one instant: where the window opened, or, aligned, when it was last charged,
//! which counts while it lies in the window of now. The mode is stored with it, so that state written in the other
//! mode is read for what it is: it counts until its instant plus the call's window.

use super::codec::{Decoder, Encoder};
use super::{Amount, Fact, Kind, Limit, Period, Recovery, Span, Timestamp, Usage, Verdict};

/// A fixed window's numbers.
#[derive(Clone, Copy, Debug)]
pub struct FixedWindow {
    limit: Amount,
    window: Period,
    aligned: bool,
}

impl FixedWindow {
    /// A window that opens with the first admitted call, or, `aligned`, at multiples of its length since the epoch.
    #[must_use]
    pub fn new(limit: Amount, window: Period, aligned: bool) -> FixedWindow {
        FixedWindow { limit, window, aligned }
    }

    /// When the usage stops counting, as told now.
    fn end(&self, usage: &WindowUsage, now: Timestamp) -> Timestamp {
        let instant = usage.stamp.instant().min(now);
        let start = if self.aligned && usage.stamp.aligned() { instant.aligned(self.window) } else { instant };
        start.plus(self.window.span())
    }

    /// What still counts now.
    fn present(&self, usage: &WindowUsage, now: Timestamp) -> Amount {
        if now < self.end(usage, now) { usage.used } else { Amount::ZERO }
    }

    /// Drops what no longer counts, and opens a window if none is open.
    fn settle(&self, usage: &mut WindowUsage, now: Timestamp) {
        let used = self.present(usage, now);
        let opened = if self.aligned || used == Amount::ZERO { now } else { usage.stamp.instant() };
        *usage = WindowUsage { used, stamp: Stamp::new(opened, self.aligned) };
    }
}

impl Limit for FixedWindow {
    type Usage = WindowUsage;

    fn limit(&self) -> Amount {
        self.limit
    }

    fn verdict(&self, usage: &WindowUsage, now: Timestamp, cost: Amount) -> Verdict {
        if self.present(usage, now).excess(cost, self.limit) == Amount::ZERO {
            Verdict::Allowed(Span::ZERO)
        } else if cost <= self.limit {
            Verdict::After(self.end(usage, now).since(now))
        } else {
            Verdict::Never
        }
    }

    fn remaining(&self, usage: &WindowUsage, now: Timestamp) -> Amount {
        self.limit.minus(self.present(usage, now))
    }

    fn reset(&self, usage: &WindowUsage, now: Timestamp) -> Span {
        if usage.is_unused() { Span::ZERO } else { self.end(usage, now).since(now) }
    }

    fn charge(&self, usage: &mut WindowUsage, now: Timestamp, cost: Amount) {
        self.settle(usage, now);
        usage.used = usage.used.plus(cost);
    }

    fn give_back(&self, usage: &mut WindowUsage, now: Timestamp, amount: Amount) {
        self.settle(usage, now);
        usage.used = usage.used.minus(amount);
    }
}

/// What a fixed window's key remembers: 16 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowUsage {
    used: Amount,
    stamp: Stamp,
}

/// An instant and a mode in one word: instants end far below 2^63, so the lowest bit is free for the mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Stamp(u64);

impl Stamp {
    fn new(instant: Timestamp, aligned: bool) -> Stamp {
        Stamp((instant.micros() << 1) | u64::from(aligned))
    }

    fn instant(self) -> Timestamp {
        // Within range: only `new` makes a stamp.
        Timestamp::from_micros(self.0 >> 1).unwrap_or(Timestamp::MAX)
    }

    fn aligned(self) -> bool {
        self.0 & 1 == 1
    }
}

impl Usage for WindowUsage {
    const KIND: Kind = Kind::Window;

    fn is_unused(&self) -> bool {
        self.used == Amount::ZERO
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.stamp.instant().since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.stamp = Stamp::new(self.stamp.instant().min(now), self.stamp.aligned());
    }

    fn recovery(&self) -> Recovery {
        // Aligned windows end where they do, whenever in them was charged, and how long they are is not stored.
        if self.stamp.aligned() { Recovery::IsHidden } else { Recovery::MovesAlong }
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.used.millionths());
        to.integer(self.stamp.instant().micros());
        to.integer(u64::from(self.stamp.aligned()));
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<WindowUsage> {
        let used = Amount::from_millionths(from.integer()?)?;
        let instant = Timestamp::from_micros(from.integer()?)?;
        let aligned = match from.integer()? {
            0 => false,
            1 => true,
            _ => return None,
        };
        (used != Amount::ZERO).then_some(WindowUsage { used, stamp: Stamp::new(instant, aligned) })
    }

    fn describe(&self) -> Vec<(&'static str, Fact)> {
        let (mode, instant) = if self.stamp.aligned() { ("aligned", "charged") } else { ("plain", "start") };
        vec![
            ("used", Fact::Amount(self.used)),
            ("mode", Fact::Word(mode)),
            (instant, Fact::Instant(self.stamp.instant())),
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

    fn plain(limit: u64, window: &str) -> FixedWindow {
        FixedWindow::new(units(limit), period(window), false)
    }

    fn aligned(limit: u64, window: &str) -> FixedWindow {
        FixedWindow::new(units(limit), period(window), true)
    }

    fn one() -> Ask {
        Take(units(1))
    }

    #[test]
    fn aligned_ten_at_59_and_ten_at_00_both_pass() {
        let (limit, mut key) = (aligned(10, "1m"), Key::default());
        assert_eq!(key.admitted(&limit, 59_000, 11), 10);
        assert_eq!(key.call(&limit, 59_999, one()), [0, 10, 0, 1, 1]);
        assert_eq!(key.admitted(&limit, 60_000, 11), 10);
        assert_eq!(key.call(&limit, 60_000, one()), [0, 10, 0, 60_000, 60_000]);
    }

    #[test]
    fn a_window_opens_with_the_first_admitted_call() {
        let (limit, mut key) = (plain(10, "1m"), Key::default());
        for (at, ask, reply) in [
            (1000, Take(units(11)), [0, 10, 10, -1, 0]),
            (2000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
            (59_000, Take(units(4)), [1, 10, 6, 0, 60_000]),
            (60_000, Take(units(6)), [1, 10, 0, 0, 59_000]),
            (118_999, one(), [0, 10, 0, 1, 1]),
            (119_000, Take(Amount::ZERO), [1, 10, 10, 0, 0]),
            (130_000, one(), [1, 10, 9, 0, 60_000]),
        ] {
            assert_eq!(key.call(&limit, at, ask), reply, "{ask:?} at {at}");
        }
    }

    #[test]
    fn a_window_ends_with_its_last_microsecond() {
        for (limit, start, end) in [(plain(1, "1s"), 1_500_000, 2_500_000), (aligned(1, "1s"), 1_500_000, 2_000_000)] {
            let (mut usage, at) = (WindowUsage::default(), |micros| Timestamp::from_micros(micros).unwrap());
            assert!(call(&limit, &mut usage, at(start), one()).verdict.allowed());
            let denied = call(&limit, &mut usage, at(end - 1), one());
            assert_eq!(denied.verdict, Verdict::After(Span::from_micros(1)));
            assert!(call(&limit, &mut usage, at(end), one()).verdict.allowed());
        }
    }

    #[test]
    fn usage_counts_for_as_long_as_the_calls_window() {
        let mut key = Key::default();
        key.call(&plain(10, "1m"), 0, Take(units(10)));
        for (at, window, reply) in [
            (29_999, "30s", [0, 10, 0, 1, 1]),
            (30_000, "30s", [1, 10, 10, 0, 0]),
            (30_000, "1m", [0, 10, 0, 30_000, 30_000]),
            (60_000, "1h", [0, 10, 0, 3_540_000, 3_540_000]),
        ] {
            assert_eq!(key.peek(&plain(10, window), at, one()), reply, "{window} at {at}");
        }
    }

    #[test]
    fn aligned_usage_counts_while_its_last_charge_lies_in_the_window_of_now() {
        let mut key = Key::default();
        key.call(&aligned(10, "1m"), 50_000, Take(units(2)));
        key.call(&aligned(10, "1m"), 55_000, Take(units(2)));
        for (at, window, reply) in [
            (55_000, "10s", [1, 10, 6, 0, 5000]),
            (60_000, "10s", [1, 10, 10, 0, 0]),
            (60_000, "1m", [1, 10, 10, 0, 0]),
            (60_000, "1h", [1, 10, 6, 0, 3_540_000]),
        ] {
            assert_eq!(key.peek(&aligned(10, window), at, Take(Amount::ZERO)), reply, "{window} at {at}");
        }
    }

    #[test]
    fn state_of_the_other_mode_counts_until_its_instant_and_a_window() {
        let (plain, aligned) = (plain(10, "1m"), aligned(10, "1m"));
        let mut key = Key::default();
        key.call(&plain, 50_000, Take(units(4)));
        assert_eq!(key.peek(&aligned, 60_000, one()), [1, 10, 6, 0, 50_000]);
        // Charged in its own mode, it is of that mode: from here on it ends with the minute.
        assert_eq!(key.call(&aligned, 60_000, one()), [1, 10, 5, 0, 60_000]);
        assert_eq!(key.peek(&aligned, 119_999, one()), [1, 10, 5, 0, 1]);
        assert_eq!(key.peek(&plain, 119_999, one()), [1, 10, 5, 0, 1]);

        let mut key = Key::default();
        key.call(&aligned, 50_000, Take(units(4)));
        assert_eq!(key.peek(&plain, 109_999, one()), [1, 10, 6, 0, 1]);
        assert_eq!(key.peek(&aligned, 60_000, one()), [1, 10, 10, 0, 0]);
        assert_eq!(key.call(&plain, 70_000, one()), [1, 10, 5, 0, 40_000]);
        assert_eq!(key.peek(&aligned, 109_999, one()), [1, 10, 5, 0, 1]);
    }

    #[test]
    fn a_forced_debt_is_forgotten_with_the_window() {
        let (limit, mut key) = (plain(10, "1m"), Key::default());
        assert_eq!(key.peek(&limit, 0, Force(units(25))), [0, 10, 10, 60_000, 0], "as if charged");
        for (at, ask, reply) in [
            (0, Force(units(25)), [0, 10, 0, 60_000, 60_000]),
            (1000, Take(Amount::ZERO), [0, 10, 0, 59_000, 59_000]),
            (1000, Force(units(1)), [0, 10, 0, 59_000, 59_000]),
            (60_000, Force(units(10)), [1, 10, 0, 0, 60_000]),
        ] {
            assert_eq!(key.call(&limit, at, ask), reply, "{ask:?} at {at}");
        }
    }

    #[test]
    fn upto_grants_the_whole_units_that_there_are() {
        let (limit, mut key) = (FixedWindow::new(millionths(10_500_000), period("1m"), false), Key::default());
        for (most, granted) in [(4, 4), (9, 6), (1, 0)] {
            assert_eq!(key.granted(&limit, 0, most), granted);
        }
        assert_eq!(key.call(&limit, 1000, Ask::UpTo(units(99))), [0, 10, 0, 59_000, 59_000]);
        assert_eq!(key.call(&limit, 1000, Take(millionths(500_000))), [1, 10, 0, 0, 59_000]);
    }

    #[test]
    fn giving_back_lowers_the_open_windows_usage() {
        let mut key = Key::default();
        let (limit, longer) = (plain(10, "1m"), plain(10, "2m"));
        for (limit, at, ask, reply, gone) in [
            (&limit, 0, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
            (&limit, 0, Take(units(8)), [1, 10, 2, 0, 60_000], false),
            (&limit, 20_000, GiveBack(units(3)), [1, 10, 5, 0, 40_000], false),
            (&longer, 70_000, GiveBack(units(3)), [1, 10, 8, 0, 50_000], false),
            (&limit, 70_000, GiveBack(units(1)), [1, 10, 10, 0, 0], true),
            (&limit, 70_000, one(), [1, 10, 9, 0, 60_000], false),
            (&limit, 70_000, GiveBack(units(9)), [1, 10, 10, 0, 0], true),
        ] {
            assert_eq!(key.call(limit, at, ask), reply, "{ask:?} at {at}");
            assert_eq!(key.is_gone(), gone, "{ask:?} at {at}");
        }
        // It moves an aligned window's instant like any charge.
        let mut key = Key::default();
        key.call(&aligned(10, "1m"), 10_000, Take(units(8)));
        key.call(&aligned(10, "1m"), 30_000, GiveBack(units(1)));
        assert_eq!(key.peek(&plain(10, "1m"), 30_000, one()), [1, 10, 3, 0, 60_000]);
    }

    #[test]
    fn a_limit_of_nothing_admits_nothing_but_looks() {
        let (limit, mut key) = (plain(0, "1m"), Key::default());
        assert_eq!(key.call(&limit, 0, Take(millionths(1))), [0, 0, 0, -1, 0]);
        assert_eq!(key.call(&limit, 0, Take(Amount::ZERO)), [1, 0, 0, 0, 0]);
        assert_eq!(key.call(&limit, 0, Ask::UpTo(units(1))), [0, 0, 0, -1, 0]);
    }

    #[test]
    fn a_clock_gone_back_opens_the_window_anew_with_what_was_used() {
        for (limit, reset) in [(plain(10, "1m"), 60_000), (aligned(10, "1m"), 20_000)] {
            let mut key = Key::default();
            key.call(&limit, 1_000_000, Take(units(10)));
            assert_eq!(key.peek(&limit, 40_000, one()), [0, 10, 0, reset, reset]);
            assert_eq!(key.peek(&limit, 1_100_000, one()), [1, 10, 10, 0, 0], "a peek has written nothing");
            assert_eq!(key.call(&limit, 40_000, one()), [0, 10, 0, reset, reset]);
            assert_eq!(key.call(&limit, 100_000, one()), [1, 10, 9, 0, reset], "a denied call has written that");
        }
    }

    #[test]
    fn what_is_used_saturates() {
        let (limit, mut key) = (plain(1_000_000_000_000, "3650d"), Key::default());
        let end = 3650 * 86_400_000;
        for _ in 0..20 {
            assert_eq!(key.call(&limit, 0, Force(Amount::MAX_ARGUMENT))[4], end);
        }
        assert_eq!(key.peek(&limit, 0, Take(Amount::ZERO)), [0, 1_000_000_000_000, 0, end, end]);
    }

    #[test]
    fn a_key_is_16_bytes_and_takes_nothing_for_one_that_is_none() {
        assert_eq!(size_of::<WindowUsage>(), 16);
        let last = Timestamp::MAX.micros();
        for fields in [[1, 0, 0], [1, last, 1], [Amount::MAX.millionths(), last, 0]] {
            assert_eq!(
                decoded::<WindowUsage>(&Fields::integers(fields)).map(|usage| encoded(&usage)),
                Some(Fields::integers(fields))
            );
        }
        for fields in [&[][..], &[1], &[1, 5], &[0, 5, 0], &[1 << 63, 5, 0], &[1, last + 1, 0], &[1, 5, 2]] {
            assert_eq!(decoded::<WindowUsage>(&Fields::integers(fields.iter().copied())), None, "{fields:?}");
        }
    }

    impl Lawful for FixedWindow {
        // Of an aligned window no other limit knows when it ends; two that end together cannot be told apart.
        const LIMITS_OF_AN_EXPIRY: usize = 1;

        fn limits() -> impl Strategy<Value = FixedWindow> {
            (amounts(), lengths(), any::<bool>()).prop_map(|(limit, window, aligned)| {
                let window = Period::new(Span::from_micros(window)).unwrap();
                FixedWindow::new(Amount::saturating(limit), window, aligned)
            })
        }

        /// In each window, the limit.
        fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
            let (mut start, mut sum) = (None, 0);
            for (at, cost) in admitted {
                if start.is_none_or(|start: Timestamp| *at >= start.plus(self.window.span())) {
                    start = Some(if self.aligned { at.aligned(self.window) } else { *at });
                    sum = 0;
                }
                sum += cost;
                assert!(sum <= u128::from(self.limit.millionths()));
            }
        }
    }

    laws!(FixedWindow);
}
