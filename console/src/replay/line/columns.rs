//! W3C extended log format, with columns that a directive names, as written by `CloudFront` and IIS.

use super::forwarded::ClientRules;
use super::times::Times;
use super::{Amount, Line};

/// Names of the directives.
pub const DIRECTIVES: [&str; 7] = ["Version", "Fields", "Software", "Start-Date", "End-Date", "Date", "Remark"];

/// Indexes of the columns with the time and the client.
#[derive(Debug)]
pub struct Columns {
    date: usize,
    time: usize,
    client: usize,
    forwarded: Option<usize>,
}

impl Columns {
    /// Parses the directive `Fields`. Returns `None` if it lacks the time or the client.
    pub fn parse(fields: &str) -> Option<Columns> {
        let names: Vec<&str> = fields.split_ascii_whitespace().collect();
        let index_of = |wanted: &str| names.iter().position(|name| name.eq_ignore_ascii_case(wanted));
        let forwarded = index_of("x-forwarded-for").or_else(|| index_of("cs(X-Forwarded-For)"));
        Some(Columns { date: index_of("date")?, time: index_of("time")?, client: index_of("c-ip")?, forwarded })
    }

    /// Parses a line. `CloudFront` separates values by tabs, IIS by spaces.
    pub fn line(&self, line: &str, times: &mut Times, clients: &ClientRules) -> Option<Line<'static>> {
        let separator = if line.contains('\t') { '\t' } else { ' ' };
        let values: Vec<&str> = line.trim().split(separator).collect();
        let value = |index: usize| values.get(index).copied();
        // Both CloudFront and IIS write a space within a value as `+` or `%20`.
        let forwarded = self.forwarded.and_then(value).map(|chain| chain.replace("%20", " ").replace('+', " "));
        let key = clients.resolve_peer(value(self.client)?, forwarded.as_deref())?;
        let at = times.parse(&format!("{} {}", value(self.date)?, value(self.time)?))?;
        Some(Line { at, key: key.into(), cost: Amount::ONE })
    }
}
