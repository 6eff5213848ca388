//! Log of denied requests: a bounded number of lines a second.

use super::{RequestDecision, RequestPart};
use crate::cut::cut;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Time in which the number of lines is bounded.
const PERIOD: Duration = Duration::from_secs(1);

/// Log of denied requests. Each line describes one request, and has the number of earlier denials without a line.
pub struct DenialLog {
    /// Maximum number of lines in a period. Zero disables the log.
    max_lines: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Beginning of the period: the time of its first line.
    began_at: Option<Instant>,
    /// Number of lines in the period.
    written: u32,
    /// Number of denials without a line.
    suppressed: u64,
}

impl DenialLog {
    /// Creates a log of up to `max_lines` lines a second.
    #[must_use]
    pub fn new(max_lines: u32) -> DenialLog {
        DenialLog { max_lines, state: Mutex::default() }
    }

    /// Logs a denied request: the key that denies it for the longest time, and the governing limit. Values that callers
    /// sent are cut; the formats of the log escape them.
    pub(super) fn log(&self, domain: &str, parts: &[RequestPart], decision: &RequestDecision) {
        if self.max_lines == 0 {
            return;
        }
        let Some((index, part)) = decision.longest_denial() else { return };
        let Some(RequestPart::Call(rule_call)) = parts.get(index) else { return };
        let Some(suppressed) = self.begin_line() else { return };
        let (key, limit) = (String::from_utf8_lossy(&rule_call.call.key), part.limit_name());
        tracing::info!(
            domain = cut(domain),
            key = cut(&key),
            policy = part.policy(rule_call).map(cut),
            limit = cut(&limit),
            wait_ms = part.decision.as_ref().map(|decision| decision.wait_ms),
            suppressed,
            "denied"
        );
    }

    /// Logs the number of denials without a line, unless it is zero. Does nothing before the end of the period, unless
    /// `is_last_line` is `true`.
    pub fn log_suppressed(&self, is_last_line: bool) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let may_log = is_last_line || state.began_at.is_none_or(|at| at.elapsed() >= PERIOD);
        if may_log && state.suppressed > 0 {
            tracing::info!(suppressed = state.suppressed, "denied, without a line for each");
            *state = State { began_at: Some(Instant::now()), written: 1, suppressed: 0 };
        }
    }

    /// Begins the line of a denial. Returns the number of earlier denials without a line, or `None` if this denial gets
    /// no line, either.
    fn begin_line(&self) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.began_at.is_none_or(|at| at.elapsed() >= PERIOD) {
            (state.began_at, state.written) = (Some(Instant::now()), 0);
        }
        if state.written >= self.max_lines {
            state.suppressed = state.suppressed.saturating_add(1);
            return None;
        }
        state.written += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::{DenialLog, PERIOD};
    use std::time::Duration;
    use tokio::time::advance;

    #[tokio::test(start_paused = true)]
    async fn lines_in_a_second_are_bounded() {
        for max_lines in [1, 3] {
            let log = DenialLog::new(max_lines);
            let mut written = 0;
            for _ in 0..1000 {
                written += u32::from(log.begin_line().is_some());
                advance(Duration::from_millis(3)).await;
            }
            assert_eq!(written, 3 * max_lines, "lines in three seconds");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn line_has_the_number_of_suppressed_denials() {
        let log = DenialLog::new(2);
        assert_eq!([(); 5].map(|()| log.begin_line()), [Some(0), Some(0), None, None, None]);
        advance(PERIOD).await;
        assert_eq!([(); 3].map(|()| log.begin_line()), [Some(3), Some(0), None]);
        log.log_suppressed(false);
        advance(PERIOD).await;
        log.log_suppressed(false);
        assert_eq!(
            [log.begin_line(), log.begin_line()],
            [Some(0), None],
            "the line about suppressed denials counts as a line"
        );
        log.log_suppressed(true);
        advance(PERIOD).await;
        assert_eq!(log.begin_line(), Some(0));
    }
}
