//! Parsing of a line of a log into time, key and cost. JSON is recognized by its first character, W3C logs by their
//! directives, and other formats by their structure. Each may follow the prefix of a logging system.

mod columns;
mod forwarded;
mod named;
mod plain;
mod times;
mod wrapper;

use columns::Columns;
pub use forwarded::ClientRules;
use ratelimit_core::{Amount, Timestamp};
use serde_json::Value;
use std::borrow::Cow;
use times::Times;

/// Call that a line of a log describes.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// Time of the call.
    pub at: Timestamp,
    /// Key of the call. In an access log, the name of the client as in the gateway's keys.
    pub key: Cow<'a, str>,
    /// Cost of the call, or 1 if the line has none.
    pub cost: Amount,
}

/// Result of parsing a line.
#[derive(Debug, PartialEq, Eq)]
pub enum ParsedLine<'a> {
    /// Call.
    Call(Line<'a>),
    /// Line about the log itself, such as the names of its columns.
    Directive,
    /// Line without a time, a key or a valid cost.
    Malformed,
}

/// Names of fields in JSON and LTSV lines that replace the usual names. Names of nested fields are separated by dots.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// Field of the time.
    pub time: Option<String>,
    /// Field of the key.
    pub key: Option<String>,
    /// Field of the cost.
    pub cost: Option<String>,
}

/// Maximum number of nested prefixes of logging systems, such as Docker's JSON around a syslog line.
const MAX_WRAPPERS: usize = 4;

/// Parser of lines.
#[derive(Debug, Default)]
pub struct LineParser {
    fields: Fields,
    clients: ClientRules,
    times: Times,
    columns: Option<Columns>,
}

impl LineParser {
    /// Creates a parser for a log with these fields and trusted proxies.
    #[must_use]
    pub fn new(fields: Fields, clients: ClientRules) -> LineParser {
        LineParser { fields, clients, ..LineParser::default() }
    }

    /// Parses a line.
    pub fn parse<'a>(&mut self, line: &'a str) -> ParsedLine<'a> {
        if let Some(directive) = line.strip_prefix('#') {
            if let Some(fields) = directive.strip_prefix("Fields:") {
                self.columns = Columns::parse(fields);
            }
            let name = directive.split(':').next().filter(|_| directive.contains(':'));
            let is_directive = name.is_some_and(|name| columns::DIRECTIVES.contains(&name));
            return if is_directive { ParsedLine::Directive } else { ParsedLine::Malformed };
        }
        let from_columns = self.columns.as_ref().and_then(|columns| columns.line(line, &mut self.times, &self.clients));
        from_columns.or_else(|| self.parse_wrapped(line, MAX_WRAPPERS)).map_or(ParsedLine::Malformed, ParsedLine::Call)
    }

    /// Parses a line with up to `wrappers` nested prefixes of logging systems.
    fn parse_wrapped<'a>(&mut self, line: &'a str, wrappers: usize) -> Option<Line<'a>> {
        let line = line.trim();
        if line.starts_with('{') {
            let value: Value = serde_json::from_str(line).ok()?;
            let has_key = self.fields.key.as_ref().is_some_and(|key| named::field(&value, key).is_some());
            // Format of Docker's driver json-file, which forwarders may keep.
            if let (Some(inner), false, Some(wrappers_left)) =
                (named::docker_line(&value), has_key, wrappers.checked_sub(1))
            {
                let Line { at, key, cost } = self.parse_wrapped(inner, wrappers_left)?;
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
        if let (Some(inner), Some(wrappers_left)) = (wrapper::inner(line), wrappers.checked_sub(1)) {
            return self.parse_wrapped(inner, wrappers_left);
        }
        plain::alb(line, &mut self.times, &self.clients)
            .or_else(|| plain::envoy(line, &mut self.times, &self.clients))
            .or_else(|| plain::access_log(line, &mut self.times, &self.clients))
    }
}

/// Parses a cost of at least 0.
fn parse_cost(text: impl AsRef<str>) -> Option<Amount> {
    Amount::parse_up(text.as_ref().as_bytes())
}

#[cfg(test)]
mod tests;
