//! Timer that serves waiting calls, and its runs.
//!
//! The timer is armed for the next expiry of a lease or timeout of a call, or to run at once after an event that may
//! make room. The server measures timers by the wall clock but sleeps by another clock, so a change of the wall clock
//! is detected by the cron event.
//!
//! **A run is bounded,** independent of the number of keys: it does a limited amount of work ([`MAX_WORK`]), and the
//! rest is done in the next run. In between the server reads calls. No call overtakes meanwhile: a new call goes to
//! the end of the queue (`queue_order.rs`).
//!
//! **While the server does not accept writes,** no lease is granted ([`TimerRun::may_grant`]). Keys with waiters are
//! not polled meanwhile: the cron event checks if the server accepts writes again, and then all keys are evaluated.

use crate::redis::server_entry::ServerEntry;
use crate::redis::{now, permissions, waiting_callbacks};
use crate::server::ModuleState;
use ratelimit_core::Timestamp;
use std::time::Duration;

/// Maximum delay of the timer.
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Returns the instant of the next work; `None` if none is scheduled.
fn due(state: &ModuleState) -> Option<Timestamp> {
    if state.outbox.is_empty() { state.queues.due() } else { Some(Timestamp::EPOCH) }
}

/// Arms the timer for the next work, or disarms it if there is none.
pub fn arm(entry: ServerEntry) {
    match due(entry.state) {
        Some(due) => arm_for(entry, due, delay_until(due, now())),
        None => disarm(entry),
    }
}

/// Arms the timer again if there is work at `now`: an armed timer does not notice that the clock was set.
pub fn rearm(entry: ServerEntry, now: Timestamp) {
    if due(entry.state).is_some_and(|due| due <= now) {
        disarm(entry);
        arm_for(entry, Timestamp::EPOCH, Duration::ZERO);
    }
}

/// Records that the timer has fired and is no longer armed.
pub fn mark_fired(entry: ServerEntry) {
    entry.state.schedule.armed.set(None);
}

/// Returns the delay for which to arm the timer, in whole milliseconds and at most a minute. A timer for a later
/// instant is armed again when it fires, because Redis 6.2 and 7.0 compute microseconds in 32 bits: a timer whose delay
/// exceeds them fires without pause.
fn delay_until(due: Timestamp, now: Timestamp) -> Duration {
    Duration::from_millis(due.since(now).ceil_millis()).min(MAX_DELAY)
}

fn arm_for(entry: ServerEntry, due: Timestamp, delay: Duration) {
    let armed = &entry.state.schedule.armed;
    if armed.get().is_some_and(|(_, armed)| armed == due) {
        return;
    }
    disarm(entry);
    if let Some(timer) = waiting_callbacks::set_timer(entry, delay) {
        armed.set(Some((timer, due)));
    }
}

fn disarm(entry: ServerEntry) {
    if let Some((timer, _)) = entry.state.schedule.armed.take() {
        waiting_callbacks::stop_timer(entry, timer);
    }
}

/// Maximum work of one run of the timer: evaluations of queues, and answers. Granting a lease takes about 25
/// microseconds, including the server's reply.
pub const MAX_WORK: usize = 100;

/// Run of the timer.
pub struct TimerRun<'a> {
    /// Entry of the timer.
    pub entry: ServerEntry<'a>,
    /// Start of the run, which is the time of all its work.
    pub now: Timestamp,
    work: usize,
    /// `true` if the server accepts writes; `None` before it has been queried.
    accepts_writes: Option<bool>,
}

impl<'a> TimerRun<'a> {
    /// Begins a run now.
    pub fn new(entry: ServerEntry<'a>) -> TimerRun<'a> {
        TimerRun { entry, now: now(), work: 0, accepts_writes: None }
    }

    /// Returns `true` if the run may do more work.
    pub fn has_budget(&self) -> bool {
        self.work < MAX_WORK
    }

    /// Adds to the work done so far.
    pub fn add_work(&mut self, work: usize) {
        self.work = self.work.saturating_add(work);
    }

    /// Raises the work done so far to at least `work`.
    pub fn raise_work_to(&mut self, work: usize) {
        self.work = self.work.max(work);
    }

    /// Returns the work done so far.
    pub fn work_done(&self) -> usize {
        self.work
    }

    /// Returns `true` if a lease can be granted now: the server would also accept a call that takes one. The server is
    /// queried at most once a run, and only if a lease could be granted.
    pub fn may_grant(&mut self) -> bool {
        let entry = self.entry;
        permissions::may_propagate_now()
            && *self.accepts_writes.get_or_insert_with(|| permissions::accepts_writes(entry))
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
        assert_eq!(delay_until(Timestamp::MAX, now), Duration::from_secs(60));
        assert_eq!(delay_until(Timestamp::EPOCH, now), Duration::ZERO);
    }
}
