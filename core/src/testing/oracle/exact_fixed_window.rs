//! Oracle of fixed windows.

use super::almanac::{CalendarWindow, offset, offsets};
use super::contract::{Contract, Exact, exact, period, saturated};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::fixed_window::calendar::Offset;
use crate::number::Amount;
use crate::testing::calls::{amounts, lengths};
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct FixedTerms {
    limit: u64,
    window: Window,
}

/// Window: its length in microseconds, and its distance from UTC in minutes.
#[derive(Clone, Debug)]
enum Window {
    Plain(u64),
    Aligned(u64, i64),
    Calendar(CalendarWindow, i64),
}

#[derive(Clone, Debug)]
pub(super) struct Counted {
    used: Exact,
    /// Time of the first charge in the window; under an aligned limit, of the last one.
    instant: i128,
    is_aligned: bool,
}

impl FixedTerms {
    pub(super) fn any() -> impl Strategy<Value = FixedTerms> {
        let window = prop_oneof![
            lengths().prop_map(Window::Plain),
            lengths().prop_map(|window| Window::Aligned(window, 0)),
            (lengths(), offsets()).prop_map(|(window, minutes)| Window::Aligned(window, minutes)),
            (CalendarWindow::any(), offsets()).prop_map(|(window, minutes)| Window::Calendar(window, minutes)),
        ];
        (amounts(), window).prop_map(|(limit, window)| FixedTerms { limit, window })
    }

    fn is_aligned(&self) -> bool {
        !matches!(self.window, Window::Plain(_))
    }
}

/// Returns the local time at a distance from UTC in minutes.
fn local(at: i128, minutes: i64) -> i128 {
    at + i128::from(minutes) * 60_000_000
}

impl Contract for FixedTerms {
    type Limit = FixedWindow;
    type Memory = Counted;

    fn implementation(&self) -> FixedWindow {
        let limit = Amount::saturating(self.limit);
        let distance = |minutes| Offset::parse(offset(minutes).as_bytes()).unwrap();
        match self.window {
            Window::Plain(window) => FixedWindow::new(limit, period(window)),
            Window::Aligned(window, 0) => FixedWindow::aligned(limit, period(window), Offset::UTC),
            Window::Aligned(window, minutes) => FixedWindow::aligned(limit, period(window), distance(minutes)),
            Window::Calendar(window, minutes) => {
                FixedWindow::calendar(limit, window.implementation(), distance(minutes))
            }
        }
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Counted, at: i128) -> Exact {
        let counts = match self.window {
            Window::Calendar(window, minutes) => local(at, minutes) < window.end(local(memory.instant, minutes)),
            Window::Aligned(window, minutes) if memory.is_aligned => {
                let number = |at| local(at, minutes).div_euclid(i128::from(window));
                number(memory.instant) == number(at)
            }
            Window::Plain(window) | Window::Aligned(window, _) => at < memory.instant + i128::from(window),
        };
        if counts { memory.used.clone() } else { exact(0) }
    }

    fn opened(&self, now: i128, cost: Exact) -> Counted {
        Counted { used: cost, instant: now, is_aligned: self.is_aligned() }
    }

    fn changed(&self, memory: Counted, now: i128, amount: Exact) -> Counted {
        let instant = if self.is_aligned() { now } else { memory.instant };
        Counted { used: saturated(memory.used + amount), instant, is_aligned: self.is_aligned() }
    }

    fn move_back(memory: &mut Counted, now: i128) {
        memory.instant = memory.instant.min(now);
    }
}
