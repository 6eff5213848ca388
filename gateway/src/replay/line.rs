//! A line of a log: when, who, and at what cost. Three forms are told apart by how a line begins: JSON, the access log
//! of web servers (common and combined log format), and the words `time key [cost]`.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use ratelimit_core::{Amount, Timestamp};
use serde_json::Value;
use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

/// A call, as a line tells of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// When it was made.
    pub at: Timestamp,
    /// The key that is limited. Of an access log: the client's address.
    pub key: Cow<'a, str>,
    /// What it costs; 1 if the line does not tell.
    pub cost: Amount,
}

/// Where JSON lines say it, if the caller knows better than the usual names: fields, those inside of others with a dot.
#[derive(Clone, Debug, Default)]
pub struct Fields {
    /// When.
    pub time: Option<String>,
    /// The key: who calls.
    pub key: Option<String>,
    /// At what cost.
    pub cost: Option<String>,
}

/// The usual names: of nginx, Caddy, Traefik, Envoy, Elastic and others.
const TIMES: [&str; 11] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "time_iso8601",
    "time_local",
    "msec",
    "StartUTC",
    "start_time",
    "datetime",
    "date",
];
const KEYS: [&str; 14] = [
    "key",
    "client_ip",
    "clientip",
    "remote_addr",
    "remote_ip",
    "request.client_ip",
    "request.remote_ip",
    "ClientHost",
    "downstream_remote_address",
    "client.ip",
    "client",
    "ip",
    "host",
    "user",
];
const COST: &str = "cost";

/// The form of an access log's time.
const OF_ACCESS_LOG: &str = "%d/%b/%Y:%H:%M:%S %z";

/// Reads lines.
#[derive(Debug, Default)]
pub struct Lines {
    fields: Fields,
    /// The time that was read last: lines that follow each other mostly have the same.
    last: Option<(Box<str>, Timestamp)>,
}

impl Lines {
    /// With what the caller knows of JSON lines.
    #[must_use]
    pub fn new(fields: Fields) -> Lines {
        Lines { fields, last: None }
    }

    /// What a line tells; `None` if that is not all there.
    pub fn read<'a>(&mut self, line: &'a str) -> Option<Line<'a>> {
        let line = line.trim();
        if line.starts_with('{') {
            return self.json(line);
        }
        match line.split_once(" [") {
            Some((before, behind)) => self.access_log(before, behind),
            None => self.words(line),
        }
    }

    /// `address identity user [time] "request" status size`, and whatever follows.
    fn access_log<'a>(&mut self, before: &'a str, behind: &str) -> Option<Line<'a>> {
        let (time, _) = behind.split_once(']')?;
        let mut words = before.split_ascii_whitespace();
        let (first, second) = (words.next()?, words.next());
        // Some logs have the name of the virtual host before all else.
        let host = second.filter(|second| address(first).is_none() && address(second).is_some());
        Some(Line { at: self.time(time)?, key: without_port(host.unwrap_or(first)), cost: Amount::ONE })
    }

    fn words<'a>(&mut self, line: &'a str) -> Option<Line<'a>> {
        let mut words = line.split_ascii_whitespace();
        let (time, key) = (words.next()?, words.next()?);
        let cost = words.next().map_or(Some(Amount::ONE), cost)?;
        if words.next().is_some() {
            return None;
        }
        Some(Line { at: self.time(time)?, key: key.into(), cost })
    }

    fn json<'a>(&mut self, line: &str) -> Option<Line<'a>> {
        let value: Value = serde_json::from_str(line).ok()?;
        let time = found(&value, self.fields.time.as_deref(), &TIMES).and_then(text)?;
        let key = found(&value, self.fields.key.as_deref(), &KEYS).and_then(text)?;
        let cost = match found(&value, self.fields.cost.as_deref(), &[COST]) {
            None | Some(Value::Null) => Amount::ONE,
            Some(said) => cost(&text(said)?)?,
        };
        let key = without_port(&key).into_owned();
        (!key.is_empty()).then_some(Line { at: self.time(&time)?, key: key.into(), cost })
    }

    /// A time of any form; one without a zone is in UTC.
    fn time(&mut self, text: &str) -> Option<Timestamp> {
        if let Some((_, at)) = self.last.as_ref().filter(|(last, _)| **last == *text) {
            return Some(*at);
        }
        let at = since_epoch(text).or_else(|| of_calendar(text))?;
        self.last = Some((text.into(), at));
        Some(at)
    }
}

/// The first of these fields that is there.
fn found<'v>(value: &'v Value, told: Option<&str>, usual: &[&str]) -> Option<&'v Value> {
    let names = told.as_ref().map_or(usual, std::slice::from_ref);
    names.iter().find_map(|name| {
        // A field may itself have a dot in its name.
        value.get(name).or_else(|| name.split('.').try_fold(value, |value, part| value.get(part)))
    })
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.into()),
        Value::Number(number) => Some(number.to_string().into()),
        _ => None,
    }
}

/// A cost as a command takes it: from 0.
fn cost(text: impl AsRef<str>) -> Option<Amount> {
    Amount::parse_up(text.as_ref().as_bytes())
}

/// Seconds since the Unix epoch, or milliseconds, microseconds, nanoseconds: which, their number tells.
fn since_epoch(text: &str) -> Option<Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || ![whole, fraction].iter().all(|part| part.bytes().all(|byte| byte.is_ascii_digit())) {
        return None;
    }
    let number: u64 = whole.parse().ok()?;
    let decimals: u32 = match number {
        0..100_000_000_000 => 6,
        100_000_000_000..100_000_000_000_000 => 3,
        100_000_000_000_000..100_000_000_000_000_000 => 0,
        _ => return Timestamp::from_micros(number / 1000),
    };
    // What is left of the fraction lies below a microsecond.
    let fraction = fraction.get(..fraction.len().min(decimals as usize))?;
    let missing = 10_u64.pow(decimals - u32::try_from(fraction.len()).ok()?);
    let micros = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()?.checked_mul(missing)? };
    Timestamp::from_micros(number.checked_mul(10_u64.pow(decimals))?.checked_add(micros)?)
}

/// `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123-07:00`, `2000-10-10 20:55:36`.
fn of_calendar(text: &str) -> Option<Timestamp> {
    let of_access_log = || strtime::parse(OF_ACCESS_LOG, text).ok()?.to_timestamp().ok();
    let with_zone = || text.parse::<jiff::Timestamp>().ok();
    let without = || text.parse::<DateTime>().ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let at = of_access_log().or_else(with_zone).or_else(without)?;
    Timestamp::from_micros(u64::try_from(at.as_microsecond()).ok()?)
}

fn address(text: &str) -> Option<IpAddr> {
    let socket = || text.parse().ok().map(|socket: SocketAddr| socket.ip());
    text.parse().ok().or_else(socket)
}

/// An address without the port that some logs put behind it.
fn without_port(text: &str) -> Cow<'_, str> {
    match text.parse::<SocketAddr>() {
        Ok(socket) => socket.ip().to_string().into(),
        Err(_) => text.into(),
    }
}

#[cfg(test)]
mod tests;
