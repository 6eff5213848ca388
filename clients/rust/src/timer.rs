//! Timer of waiting calls, which uses the real time or a clock that a test moves.

use std::time::{Duration, Instant};

#[cfg(feature = "memory")]
use crate::memory::ManualClock;

/// Timer of waiting calls.
#[derive(Clone, Default)]
pub(crate) struct Timer {
    #[cfg(feature = "memory")]
    pub(crate) clock: Option<ManualClock>,
}

impl Timer {
    #[cfg_attr(not(feature = "memory"), allow(clippy::unused_self, reason = "there is one clock"))]
    pub(crate) fn now(&self) -> Instant {
        #[cfg(feature = "memory")]
        if let Some(clock) = &self.clock {
            return clock.instant();
        }
        Instant::now()
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        #[cfg(feature = "memory")]
        if let Some(clock) = &self.clock {
            return clock.advance(time);
        }
        tokio::time::sleep(time).await;
    }
}
