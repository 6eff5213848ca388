//! Oracle of sliding-window counters.

use super::contract::{Contract, Exact, exact, period, saturated};
use crate::algorithm::sliding_window::SlidingWindow;
use crate::number::Amount;
use crate::testing::calls::{amounts, lengths};
use num_traits::Zero;
use proptest::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct SlidingTerms {
    limit: u64,
    window: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Windows {
    start: i128,
    window: u64,
    previous: Exact,
    current: Exact,
}

impl SlidingTerms {
    pub(super) fn any() -> impl Strategy<Value = SlidingTerms> {
        (amounts(), lengths()).prop_map(|(limit, window)| SlidingTerms { limit, window })
    }
}

impl Windows {
    /// Returns these windows, advanced so that `at` is in the current window.
    fn at(&self, at: i128) -> Windows {
        let mut windows = self.clone();
        while windows.start + i128::from(self.window) <= at
            && !(windows.previous.is_zero() && windows.current.is_zero())
        {
            windows.start += i128::from(self.window);
            windows.previous = std::mem::replace(&mut windows.current, exact(0));
        }
        windows
    }

    /// Returns the share of the previous window that is in the trailing window.
    fn overlap(&self, at: i128) -> Exact {
        let window = i128::from(self.window);
        Exact::new((window - (at - self.start)).into(), window.into())
    }
}

impl Contract for SlidingTerms {
    type Limit = SlidingWindow;
    type Memory = Windows;

    fn implementation(&self) -> SlidingWindow {
        SlidingWindow::new(Amount::saturating(self.limit), period(self.window))
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn used(&self, memory: &Windows, at: i128) -> Exact {
        let windows = memory.at(at);
        if windows.previous.is_zero() {
            windows.current
        } else {
            &windows.previous * windows.overlap(at) + &windows.current
        }
    }

    fn opened(&self, now: i128, cost: Exact) -> Windows {
        Windows { start: now, window: self.window, previous: exact(0), current: cost }
    }

    fn changed(&self, memory: Windows, now: i128, amount: Exact) -> Windows {
        let mut windows = memory.at(now);
        if windows.window != self.window {
            // The estimate is stored in whole millionths, rounded up.
            windows = self.opened(now, saturated(self.used(&memory, now).ceil()));
        }
        let rest = (-&windows.current - &amount).max(exact(0));
        windows.current = saturated(windows.current + amount);
        windows.previous = saturated(&windows.previous - (rest / windows.overlap(now)).floor());
        windows
    }

    fn move_back(memory: &mut Windows, now: i128) {
        memory.start = memory.start.min(now);
    }
}
