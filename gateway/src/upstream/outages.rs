//! Outages of servers: a metric, and at most one log line a second about all of them.

use crate::metrics::enforcement;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// Minimum time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// Servers that are away, and servers that the log names as away.
#[derive(Default)]
pub struct Outages(Mutex<State>);

#[derive(Default)]
struct State {
    /// Reasons by server.
    away: BTreeMap<String, String>,
    /// Time since which at least one server has been away.
    start: Option<SystemTime>,
    /// Servers in the last log line.
    logged: Vec<String>,
    logged_at: Option<Instant>,
}

/// Log line about outages.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// No server is away any more.
    Back,
    /// Servers that are away, and the reason for one of them.
    Away { servers: String, why: String },
}

impl Outages {
    /// Adds a server that is away.
    pub fn begin(&self, server: &str, why: &str) {
        self.change(|away| drop(away.insert(server.to_owned(), why.to_owned())));
    }

    /// Removes a server that replies again, or is not used any more.
    pub fn end(&self, server: &str) {
        self.change(|away| drop(away.remove(server)));
    }

    /// Logs changes since the last line. Unless `is_last_line` is `true`, at most one line a second is written.
    pub fn log(&self, is_last_line: bool) {
        log(self.state().line(is_last_line));
    }

    /// Returns the reason of an outage.
    #[cfg(test)]
    pub fn reason(&self, server: &str) -> Option<String> {
        self.state().away.get(server).cloned()
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let mut state = self.state();
        change(&mut state.away);
        state.start = if state.away.is_empty() { None } else { state.start.or_else(|| Some(SystemTime::now())) };
        enforcement::set_outage(state.away.len(), state.start);
        log(state.line(false));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, is_last_line: bool) -> Option<Line> {
        let is_due = is_last_line || self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL);
        if !is_due || self.away.keys().eq(&self.logged) {
            return None;
        }
        let why = self.away.iter().find(|(server, _)| !self.logged.contains(server)).or(self.away.iter().next());
        let why = why.map(|(_, why)| why.clone());
        self.logged = self.away.keys().cloned().collect();
        self.logged_at = Some(Instant::now());
        Some(why.map_or(Line::Back, |why| Line::Away { servers: self.logged.join(", "), why }))
    }
}

fn log(line: Option<Line>) {
    match line {
        None => {}
        Some(Line::Back) => tracing::info!("the server is back"),
        Some(Line::Away { servers, why }) => {
            tracing::warn!(servers, why, "the server is away: requests are answered without it");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LOG_INTERVAL, Line, Outages, State};
    use std::time::Duration;
    use tokio::time::advance;

    fn away(servers: &str, why: &str) -> Line {
        Line::Away { servers: servers.to_owned(), why: why.to_owned() }
    }

    #[tokio::test(start_paused = true)]
    async fn log_has_at_most_one_line_a_second() {
        let mut state = State::default();
        let mut lines = vec![];
        for step in 0..3000 {
            match step % 3 {
                0 => drop(state.away.insert(format!("{}", step % 30), "x".to_owned())),
                1 => drop(state.away.pop_first()),
                _ => {}
            }
            lines.extend(state.line(false));
            advance(Duration::from_millis(1)).await;
        }
        assert!(lines.len() <= 3, "{lines:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn log_line_names_all_servers_that_are_away() {
        let mut state = State::default();
        state.away.insert("a".to_owned(), "refused".to_owned());
        assert_eq!(state.line(false), Some(away("a", "refused")));
        state.away.insert("b".to_owned(), "no reply".to_owned());
        assert_eq!(state.line(false), None, "too early");
        advance(LOG_INTERVAL).await;
        assert_eq!([state.line(false), state.line(false)], [Some(away("a, b", "no reply")), None]);
        state.away.clear();
        assert_eq!([state.line(true), state.line(true)], [Some(Line::Back), None]);
    }

    #[test]
    fn repeated_outage_of_a_server_ends_once() {
        let outages = Outages::default();
        outages.begin("a", "x");
        outages.begin("a", "y");
        outages.end("a");
        assert!(outages.state().away.is_empty());
    }

    #[test]
    fn outage_lasts_from_the_first_server_that_is_away_to_the_last() {
        let outages = Outages::default();
        outages.begin("a", "x");
        let start = outages.state().start;
        assert!(start.is_some());
        outages.begin("b", "x");
        outages.end("a");
        assert_eq!(outages.state().start, start);
        outages.end("b");
        assert_eq!(outages.state().start, None);
    }
}
