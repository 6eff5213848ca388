//! Parsing of the times of log lines. A time without a zone is in UTC.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use ratelimit_core::Timestamp;

/// Format of times in access logs.
const ACCESS_LOG_FORMAT: &str = "%d/%b/%Y:%H:%M:%S %z";
/// Format of `HAProxy`'s times, which have no zone.
const HAPROXY_FORMAT: &str = "%d/%b/%Y:%H:%M:%S%.f";

/// Parser of times, which caches the last time, because consecutive lines often have the same time.
#[derive(Debug, Default)]
pub struct Times {
    last: Option<(Box<str>, Timestamp)>,
}

impl Times {
    /// Parses a time in any supported format.
    pub fn parse(&mut self, text: &str) -> Option<Timestamp> {
        if let Some((_, at)) = self.last.as_ref().filter(|(last, _)| **last == *text) {
            return Some(*at);
        }
        let at = parse_epoch(text).or_else(|| parse_calendar(text))?;
        self.last = Some((text.into(), at));
        Some(at)
    }
}

/// Returns `true` if the text is a date and a time of day in the notation of RFC 3339.
pub fn is_rfc3339(text: &str) -> bool {
    text.as_bytes().get(4) == Some(&b'-') && text.contains('T') && text.parse::<jiff::Timestamp>().is_ok()
}

/// Parses seconds, milliseconds, microseconds or nanoseconds since the Unix epoch, distinguished by their magnitude.
fn parse_epoch(text: &str) -> Option<Timestamp> {
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
    // Digits below a microsecond are dropped.
    let fraction = fraction.get(..fraction.len().min(decimals as usize))?;
    let missing = 10_u64.pow(decimals - u32::try_from(fraction.len()).ok()?);
    let micros = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()?.checked_mul(missing)? };
    Timestamp::from_micros(number.checked_mul(10_u64.pow(decimals))?.checked_add(micros)?)
}

/// Parses `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123-07:00`, `2000-10-10 20:55:36` and similar texts.
fn parse_calendar(text: &str) -> Option<Timestamp> {
    let access_log = || strtime::parse(ACCESS_LOG_FORMAT, text).ok()?.to_timestamp().ok();
    let with_zone = || text.parse::<jiff::Timestamp>().ok();
    let in_utc = |civil: DateTime| civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let without_zone = || text.parse::<DateTime>().ok().and_then(in_utc);
    let haproxy = || strtime::parse(HAPROXY_FORMAT, text).ok()?.to_datetime().ok().and_then(in_utc);
    let at = access_log().or_else(with_zone).or_else(without_zone).or_else(haproxy)?;
    Timestamp::from_micros(u64::try_from(at.as_microsecond()).ok()?)
}
