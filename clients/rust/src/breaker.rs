//! Circuit breaker for a server that does not answer.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Circuit breaker: after `max_failures` consecutive failures, no call is sent for a pause. Then one call is sent as a
/// probe, and if it fails, no call is sent for another pause. Calls in flight that fail together count once.
pub(crate) struct Breaker {
    max_failures: u32,
    pause: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    consecutive_failures: u32,
    last_failure_at: Option<Instant>,
    open_until: Option<Instant>,
    /// `true` once the outage was logged.
    is_reported: bool,
}

impl Breaker {
    pub(crate) fn new(max_failures: u32, pause: Duration) -> Self {
        Self { max_failures, pause, state: Mutex::default() }
    }

    pub(crate) fn allows(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.consecutive_failures < self.max_failures {
            return true;
        }
        if state.open_until.is_some_and(|until| now < until) {
            return false;
        }
        // This call is the probe; the next one must wait for another pause.
        state.open_until = Some(now + self.pause);
        true
    }

    pub(crate) fn record_success(&self) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.is_reported {
            log::warn!("Redis is back");
        }
        *state = State::default();
    }

    /// Counts the failure of a call, unless another call has failed since `sent_at`.
    pub(crate) fn record_failure(&self, sent_at: Instant, now: Instant, why: &str) {
        let mut state = self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if state.last_failure_at.is_none_or(|last_failure_at| sent_at >= last_failure_at) {
            state.consecutive_failures += 1;
            state.last_failure_at = Some(now);
        }
        state.open_until = Some(now + self.pause);
        if !state.is_reported {
            log::warn!("Redis is away: {why}");
            state.is_reported = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_consecutive_failures_open_the_breaker_for_a_pause() {
        let breaker = Breaker::new(3, Duration::from_secs(1));
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        for turn in 0..3 {
            assert!(breaker.allows(at(turn)));
            breaker.record_failure(at(turn), at(turn), "gone");
        }
        assert!(!breaker.allows(at(500)));
        // A single call is the probe.
        assert!(breaker.allows(at(1100)));
        assert!(!breaker.allows(at(1101)));
        breaker.record_success();
        assert!(breaker.allows(at(1102)));
    }

    #[test]
    fn failures_at_one_time_count_once() {
        let breaker = Breaker::new(3, Duration::from_secs(1));
        let start = Instant::now();
        for _ in 0..50 {
            breaker.record_failure(start, start + Duration::from_millis(10), "gone");
        }
        assert!(breaker.allows(start + Duration::from_millis(11)));
    }
}
