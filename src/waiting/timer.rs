//! Timer that serves waiting calls.
//!
//! It is armed for the next expiry of a lease or timeout of a call, and for now after an event that may make room. The
//! server measures timers by the wall clock but sleeps by another clock, so a change of the wall clock is detected by
//! the cron event.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, waiting_callbacks};
use crate::server::Global;
use ratelimit_core::Timestamp;

/// Returns the instant of the next work; `None` if none is scheduled.
fn due(global: &Global) -> Option<Timestamp> {
    if global.outbox.is_empty() { global.queues.due() } else { Some(Timestamp::EPOCH) }
}

/// Arms the timer for the next work, or disarms it if there is none.
pub fn arm(entry: ServerEntry) {
    match due(entry.global) {
        Some(due) => arm_for(entry, due, wait_for(due, now())),
        None => disarm(entry),
    }
}

/// Arms the timer again if there is work at `now`, as an armed timer still waits by the clock before it was set.
pub fn rearm(entry: ServerEntry, now: Timestamp) {
    if due(entry.global).is_some_and(|due| due <= now) {
        disarm(entry);
        arm_for(entry, Timestamp::EPOCH, 0);
    }
}

/// Records that the timer has fired and is no longer armed.
pub fn fired(entry: ServerEntry) {
    entry.global.schedule.armed.set(None);
}

/// Returns the milliseconds for which to arm the timer, at most a minute. A timer for a later instant is
/// armed again when it fires, because Redis 6.2 and 7.0 compute microseconds in 32 bits: a timer beyond them fires
/// without pause.
fn wait_for(due: Timestamp, now: Timestamp) -> i64 {
    const MAX_MILLISECONDS: i64 = 60_000;
    i64::try_from(due.since(now).ceil_millis()).unwrap_or(MAX_MILLISECONDS).min(MAX_MILLISECONDS)
}

fn arm_for(entry: ServerEntry, due: Timestamp, wait: i64) {
    let armed = &entry.global.schedule.armed;
    if armed.get().is_some_and(|(_, armed)| armed == due) {
        return;
    }
    disarm(entry);
    if let Some(timer) = waiting_callbacks::set_timer(entry, wait) {
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
        for (micros, wait) in [(0, 0), (1, 1), (1_000, 1), (1_001, 2), (60_000_000, 60_000), (60_001_000, 60_000)] {
            assert_eq!(wait_for(now.plus(Span::from_micros(micros)), now), wait);
        }
        assert_eq!(wait_for(Timestamp::MAX, now), 60_000);
        assert_eq!(wait_for(Timestamp::EPOCH, now), 0);
    }
}
