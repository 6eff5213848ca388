//! Timer that serves waiting calls.
//!
//! It is armed for the next expiry of a lease or timeout of a call, and for now after an event that may make room. The
//! server measures timers by the wall clock but sleeps by another clock, so a change of the wall clock is detected by
//! the cron event.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, waiting_callbacks};
use crate::server::Global;
use ratelimit_core::Timestamp;
use std::time::Duration;

/// Maximum delay of the timer.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Returns the instant of the next work; `None` if none is scheduled.
fn due(global: &Global) -> Option<Timestamp> {
    if global.outbox.is_empty() { global.queues.due() } else { Some(Timestamp::EPOCH) }
}

/// Arms the timer for the next work, or disarms it if there is none.
pub fn arm(entry: ServerEntry) {
    match due(entry.global) {
        Some(due) => arm_for(entry, due, delay_until(due, now())),
        None => disarm(entry),
    }
}

/// Arms the timer again if there is work at `now`, as an armed timer still waits by the clock before it was set.
pub fn rearm(entry: ServerEntry, now: Timestamp) {
    if due(entry.global).is_some_and(|due| due <= now) {
        disarm(entry);
        arm_for(entry, Timestamp::EPOCH, Duration::ZERO);
    }
}

/// Records that the timer has fired and is no longer armed.
pub fn fired(entry: ServerEntry) {
    entry.global.schedule.armed.set(None);
}

/// Returns the delay for which to arm the timer, in whole milliseconds and at most a minute. A timer for a later instant
/// is armed again when it fires, because Redis 6.2 and 7.0 compute microseconds in 32 bits: a timer beyond them fires
/// without pause.
fn delay_until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(due.since(now).ceil_millis()).min(MAX_DELAY)
}

fn arm_for(entry: ServerEntry, due: Timestamp, delay: Duration) {
    let armed = &entry.global.schedule.armed;
    if armed.get().is_some_and(|(_, armed)| armed == due) {
        return;
    }
    disarm(entry);
    if let Some(timer) = waiting_callbacks::set_timer(entry, delay) {
        armed.set(Some((timer, due)));
    }
}

fn disarm(entry: ServerEntry) {
    if let Some((timer, _)) = entry.global.schedule.armed.take() {
        waiting_callbacks::stop_timer(entry, timer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratelimit_core::Span;

    #[test]
    fn timer_delay_is_bounded() {
        let now = Timestamp::from_micros(1_700_000_000_000_000).unwrap();
        for (micros, millis) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (60_000_000, 60_000), (60_001_000, 60_000)] {
            assert_eq!(delay_until(now.plus(Span::from_micros(micros)), now), Duration::from_millis(millis));
        }
        assert_eq!(delay_until(Timestamp::MAX, now), Duration::from_millis(60_000));
        assert_eq!(delay_until(Timestamp::EPOCH, now), Duration::ZERO);
    }
}
