//! A line of a log: when, who, and at what cost. JSON is told by its first character, the columns of W3C logs by their
//! directives, and the other formats by their shape; each may stand behind what a logging system puts before it.

mod columns;
mod forwarded;
mod named;
mod plain;
mod times;
mod wrapper;

use columns::Columns;
pub use forwarded::Clients;
use ratelimit_core::{Amount, Timestamp};
use serde_json::Value;
use std::borrow::Cow;
use times::Times;

/// A call, as a line tells of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Time of the call.
    pub at: Timestamp,
    /// The key that is limited. Of an access log: the client's address, as the gateway's keys have it.
    pub key: Cow<'a, str>,
    /// What it costs; 1 if the line does not tell.
    pub cost: Amount,
}

/// Outcome of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Read<'a> {
    /// A call.
    Call(Line<'a>),
    /// A line about the log itself, such as the names of its columns.
    Directive,
    /// A line without a time, a key or a valid cost.
    Refused,
}

/// Where JSON and LTSV lines say it, if the caller knows better than the usual names: fields, those inside of others
/// with a dot.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Field of the time.
    pub time: Option<String>,
    /// Field of the key.
    pub key: Option<String>,
    /// Field of the cost.
    pub cost: Option<String>,
}

/// Number of logging systems whose words may stand before a line: Docker's JSON around a syslog line, for example.
const WRAPPERS: usize = 4;

/// Reads lines.
#[derive(Debug, Default)]
pub struct Lines {
    fields: Fields,
    clients: Clients,
    times: Times,
    columns: Option<Columns>,
}

impl Lines {
    /// Creates a reader with what the caller knows of the log.
    #[must_use]
    pub fn new(fields: Fields, clients: Clients) -> Lines {
        Lines { fields, clients, ..Lines::default() }
    }

    /// Reads a line.
    pub fn read<'a>(&mut self, line: &'a str) -> Read<'a> {
        if let Some(directive) = line.strip_prefix('#') {
            if let Some(fields) = directive.strip_prefix("Fields:") {
                self.columns = Columns::read(fields);
            }
            let name = directive.split(':').next().filter(|_| directive.contains(':'));
            let is_directive = name.is_some_and(|name| columns::DIRECTIVES.contains(&name));
            return if is_directive { Read::Directive } else { Read::Refused };
        }
        let of_columns = self.columns.as_ref().and_then(|columns| columns.line(line, &mut self.times, &self.clients));
        of_columns.or_else(|| self.wrapped(line, WRAPPERS)).map_or(Read::Refused, Read::Call)
    }

    /// Reads a line that may stand behind the words of so many logging systems.
    fn wrapped<'a>(&mut self, line: &'a str, wrappers: usize) -> Option<Line<'a>> {
        let line = line.trim();
        if line.starts_with('{') {
            let value: Value = serde_json::from_str(line).ok()?;
            let has_key = self.fields.key.as_ref().is_some_and(|key| named::field(&value, key).is_some());
            // The file of Docker's driver json-file, or of a forwarder that keeps its form.
            if let (Some(inner), false, Some(left)) = (named::logged(&value), has_key, wrappers.checked_sub(1)) {
                let Line { at, key, cost } = self.wrapped(inner, left)?;
                return Some(Line { at, key: key.into_owned().into(), cost });
            }
            return named::line(&value, &self.fields, &mut self.times, &self.clients);
        }
        let ltsv = || named::line(&named::ltsv(line)?, &self.fields, &mut self.times, &self.clients);
        if let Some(call) = line.contains('\t').then(ltsv).flatten() {
            return Some(call);
        }
        if let Some(call) = plain::words(line, &mut self.times, &self.clients) {
            return Some(call);
        }
        if let (Some(inner), Some(left)) = (wrapper::inner(line), wrappers.checked_sub(1)) {
            return self.wrapped(inner, left);
        }
        plain::alb(line, &mut self.times, &self.clients)
            .or_else(|| plain::envoy(line, &mut self.times, &self.clients))
            .or_else(|| plain::access_log(line, &mut self.times, &self.clients))
    }
}

/// Returns a cost as a command takes it: from 0.
fn cost(text: impl AsRef<str>) -> Option<Amount> {
    Amount::parse_up(text.as_ref().as_bytes())
}

#[cfg(test)]
mod tests;
