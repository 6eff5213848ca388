//! Times of log lines, in all their forms. A time without a zone is in UTC.

use jiff::civil::DateTime;
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use ratelimit_core::Timestamp;

/// Time of an access log.
const OF_ACCESS_LOG: &str = "%d/%b/%Y:%H:%M:%S %z";
/// Time of `HAProxy`, which has no zone.
const OF_HAPROXY: &str = "%d/%b/%Y:%H:%M:%S%.f";

/// Parser of times, which remembers the last one: lines that follow each other mostly have the same.
#[derive(Debug, Default)]
pub struct Times {
    last: Option<(Box<str>, Timestamp)>,
}

impl Times {
    /// Parses a time of any form.
    pub fn read(&mut self, text: &str) -> Option<Timestamp> {
        if let Some((_, at)) = self.last.as_ref().filter(|(last, _)| **last == *text) {
            return Some(*at);
        }
        let at = since_epoch(text).or_else(|| of_calendar(text))?;
        self.last = Some((text.into(), at));
        Some(at)
    }
}

/// Returns `true` if the text is a date and a time of day in the notation of RFC 3339.
pub fn is_rfc3339(text: &str) -> bool {
    text.as_bytes().get(4) == Some(&b'-') && text.contains('T') && text.parse::<jiff::Timestamp>().is_ok()
}

/// Parses seconds since the Unix epoch, or milliseconds, microseconds, nanoseconds: which, their number tells.
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

/// Parses `10/Oct/2000:13:55:36 -0700`, `2000-10-10T13:55:36.123-07:00`, `2000-10-10 20:55:36` and the like.
fn of_calendar(text: &str) -> Option<Timestamp> {
    let of_access_log = || strtime::parse(OF_ACCESS_LOG, text).ok()?.to_timestamp().ok();
    let with_zone = || text.parse::<jiff::Timestamp>().ok();
    let in_utc = |civil: DateTime| civil.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp());
    let without = || text.parse::<DateTime>().ok().and_then(in_utc);
    let of_haproxy = || strtime::parse(OF_HAPROXY, text).ok()?.to_datetime().ok().and_then(in_utc);
    let at = of_access_log().or_else(with_zone).or_else(without).or_else(of_haproxy)?;
    Timestamp::from_micros(u64::try_from(at.as_microsecond()).ok()?)
}
