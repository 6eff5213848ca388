//! Problems of servers and gateways, for the banner and the status indicator of the page.

use serde_json::{Value, json};

/// Severity of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Limits are enforced, but something needs attention.
    Warn,
    /// A node is away, or limits are not enforced as they are set.
    Bad,
}

/// Problem of a server or a gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Severity.
    pub level: Level,
    /// View of the page that shows the problem.
    pub view: &'static str,
    /// Name of the server or the gateway.
    pub node: String,
    /// State in a few words, such as `away`.
    pub state: String,
    /// Sentence that describes the problem, without its time and without numbers that change while it lasts.
    pub text: String,
    /// Beginning of the problem, in milliseconds since the Unix epoch, if it is known.
    pub since: Option<u64>,
    /// `true` if a banner on each view shows the problem, because requests pass or are denied regardless of limits.
    pub banner: bool,
}

impl Problem {
    /// Creates a problem of a server, shown only by the view `now` and the indicator.
    pub fn of_server(level: Level, node: &str, state: &str, text: impl Into<String>) -> Problem {
        let (node, state, text) = (node.to_owned(), state.to_owned(), text.into());
        Problem { level, view: "now", node, state, text, since: None, banner: false }
    }

    /// Creates a problem of a gateway, shown only by the view `gateways` and the indicator.
    pub fn of_gateway(level: Level, node: &str, state: &str, text: impl Into<String>) -> Problem {
        Problem { view: "gateways", ..Problem::of_server(level, node, state, text) }
    }

    /// Returns the problem with the time of its beginning.
    #[must_use]
    pub fn since(self, since: Option<u64>) -> Problem {
        Problem { since, ..self }
    }

    /// Returns the problem with a banner on each view.
    #[must_use]
    pub fn on_each_view(self) -> Problem {
        Problem { banner: true, ..self }
    }

    /// Returns the problem as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let level = match self.level {
            Level::Warn => "warn",
            Level::Bad => "bad",
        };
        json!({
            "level": level, "view": self.view, "node": self.node, "state": self.state, "text": self.text,
            "since": self.since, "banner": self.banner,
        })
    }
}

/// Sorts problems by severity, the worst first. Within a severity, those with a banner come first.
pub fn sort(problems: &mut [Problem]) {
    problems.sort_by_key(|problem| std::cmp::Reverse((problem.level, problem.banner)));
}
