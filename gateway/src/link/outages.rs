//! Servers that are away: the metric, and at most one log line a second about all of them.

use crate::seen;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two log lines.
const PAUSE: Duration = Duration::from_secs(1);

/// Servers that are away now, and what the log says of them.
#[derive(Default)]
pub struct Outages(Mutex<State>);

#[derive(Default)]
struct State {
    /// Reasons by server.
    away: BTreeMap<String, String>,
    /// Servers that the last log line named.
    logged: Vec<String>,
    logged_at: Option<Instant>,
}

/// Log line about servers.
#[derive(Debug, PartialEq, Eq)]
enum Line {
    /// All servers answer again.
    Back,
    /// Servers that are away, and the reason of one.
    Away { servers: String, why: String },
}

impl Outages {
    /// Adds a server that is away.
    pub fn begin(&self, server: &str, why: &str) {
        self.change(|away| drop(away.insert(server.to_owned(), why.to_owned())));
    }

    /// Removes a server that answers again, or is not asked any more.
    pub fn end(&self, server: &str) {
        self.change(|away| drop(away.remove(server)));
    }

    /// Logs what has changed, unless the last line is younger than a second and `now` is `false`.
    pub fn log(&self, now: bool) {
        log(self.state().line(now));
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, String>)) {
        let mut state = self.state();
        change(&mut state.away);
        seen::outage(state.away.len());
        log(state.line(false));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&mut self, now: bool) -> Option<Line> {
        let is_due = now || self.logged_at.is_none_or(|at| at.elapsed() >= PAUSE);
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
    use super::{Line, Outages, PAUSE, State};
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
    async fn line_names_all_servers_that_are_away() {
        let mut state = State::default();
        state.away.insert("a".to_owned(), "refused".to_owned());
        assert_eq!(state.line(false), Some(away("a", "refused")));
        state.away.insert("b".to_owned(), "no reply".to_owned());
        assert_eq!(state.line(false), None, "too early");
        advance(PAUSE).await;
        assert_eq!([state.line(false), state.line(false)], [Some(away("a, b", "no reply")), None]);
        state.away.clear();
        assert_eq!([state.line(true), state.line(true)], [Some(Line::Back), None]);
    }

    #[test]
    fn server_that_is_away_twice_ends_once() {
        let outages = Outages::default();
        outages.begin("a", "x");
        outages.begin("a", "y");
        outages.end("a");
        assert!(outages.state().away.is_empty());
    }
}
