//! Report of a replay, as text and as JSON.

use super::call_log::{Log, SkippedLines};
use super::limits::Limits;
use super::smallest::SmallestLimits;
use super::{Goal, Outcomes};
use ratelimit_core::{Span, Timestamp};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fmt;

/// Report of a replay.
#[derive(Debug)]
pub struct Report {
    limit: String,
    goal: Goal,
    admitted: u64,
    denied: u64,
    keys: usize,
    /// Most denied keys, with their number of denials.
    denied_keys: Vec<(String, u64)>,
    /// Number of all keys with a denial.
    keys_denied: usize,
    skipped: SkippedLines,
    first_not_understood: Option<(u64, String)>,
    overfull: u64,
    smallest: Option<SmallestLimits>,
    span: Option<(Timestamp, Timestamp)>,
}

impl Report {
    /// Creates a report. `top` is the maximum number of the most denied keys in it.
    #[must_use]
    pub fn new(
        limits: &Limits,
        log: &Log,
        outcomes: &Outcomes,
        smallest: Option<SmallestLimits>,
        goal: Goal,
        top: usize,
    ) -> Report {
        let denied = outcomes.denied_by_key.iter().zip(&log.names).filter(|(denied, _)| **denied > 0);
        let mut denied: Vec<_> = denied.map(|(denied, name)| (name, *denied)).collect();
        let keys_denied = denied.len();
        // Keys with equal denials are sorted by name, so that equal logs have equal reports.
        denied.sort_unstable_by_key(|(name, denied)| (Reverse(*denied), *name));
        Report {
            limit: limits.to_string(),
            goal,
            admitted: outcomes.admitted,
            denied: outcomes.denied,
            keys: log.names.len(),
            denied_keys: denied.into_iter().take(top).map(|(name, denied)| (name.to_string(), denied)).collect(),
            keys_denied,
            skipped: log.skipped,
            first_not_understood: log.first_not_understood.clone(),
            overfull: outcomes.overfull,
            smallest,
            span: log.span,
        }
    }

    fn calls(&self) -> u64 {
        self.admitted + self.denied
    }

    fn skipped(&self) -> u64 {
        let SkippedLines { not_understood, out_of_order, beyond_keys } = self.skipped;
        not_understood + out_of_order + beyond_keys + self.overfull
    }

    /// Returns the report as JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        let SkippedLines { not_understood, out_of_order, beyond_keys } = self.skipped;
        json!({
            "limit": self.limit,
            "calls": self.calls(),
            "admitted": self.admitted,
            "denied": self.denied,
            "keys": self.keys,
            "keys_denied": self.keys_denied,
            "denied_keys": self.denied_keys,
            "skipped": self.skipped(),
            "skipped_why": {
                "not_understood": not_understood,
                "out_of_order": out_of_order,
                "beyond_keys": beyond_keys,
                "overfull": self.overfull,
            },
            "first_not_understood": self.first_not_understood.as_ref().map(|(number, text)| json!([number, text])),
            "first": self.span.map(|(first, _)| instant(first)),
            "last": self.span.map(|(_, last)| instant(last)),
            "goal": self.goal.to_string(),
            "smallest": self.smallest.as_ref().map(|smallest| smallest.limits.to_string()),
            "smallest_denied": self.smallest.as_ref().map(|smallest| smallest.denied),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} of {}{}",
            count_of(self.calls(), "call"),
            count_of(self.keys as u64, "key"),
            self.time_range()
        )?;
        writeln!(
            f,
            "{}: {} admitted, {} denied ({}), of {}",
            self.limit,
            grouped(self.admitted),
            grouped(self.denied),
            share(self.denied, self.calls()),
            count_of(self.keys_denied as u64, "key"),
        )?;
        self.write_skipped(f)?;
        if !self.denied_keys.is_empty() {
            writeln!(f, "\n{:>12}  key", "denied")?;
            for (key, denied) in &self.denied_keys {
                writeln!(f, "{:>12}  {}", grouped(*denied), key.escape_debug())?;
            }
            let more = self.keys_denied.saturating_sub(self.denied_keys.len());
            if more > 0 {
                writeln!(f, "{:>12}  and {} more", "", grouped(more as u64))?;
            }
        }
        match &self.smallest {
            Some(SmallestLimits { limits, denied }) => writeln!(
                f,
                "\nThe smallest limit that denies at most {}: {limits} ({} denied, {})",
                self.goal,
                grouped(*denied),
                share(*denied, self.calls()),
            ),
            None => writeln!(f, "\nNo limit of this kind denies at most {}.", self.goal),
        }
    }
}

impl Report {
    fn time_range(&self) -> String {
        let Some((first, last)) = self.span else { return String::new() };
        let length = round_seconds(last.since(first).micros() / 1_000_000);
        format!(", {} to {} ({length})", instant(first), instant(last))
    }

    fn write_skipped(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.skipped() == 0 {
            return Ok(());
        }
        writeln!(f, "{} skipped:", count_of(self.skipped(), "line"))?;
        let SkippedLines { not_understood, out_of_order, beyond_keys } = self.skipped;
        let first = self.first_not_understood.as_ref().map(first_line_note).unwrap_or_default();
        for (lines, why) in [
            (not_understood, format!("not understood{first}").as_str()),
            (out_of_order, "behind a later line; --late 10s puts lines in order that are up to 10 seconds late"),
            (beyond_keys, "of keys beyond the first --max-keys: what would have become of them is not in this report"),
            (self.overfull, "that a server would have refused, since their keys remember too many calls"),
        ] {
            if lines > 0 {
                writeln!(f, "{:>12}  {why}", grouped(lines))?;
            }
        }
        Ok(())
    }
}

/// Returns a note about the first malformed line, to be appended to a sentence.
pub fn first_line_note((number, line): &(u64, String)) -> String {
    format!(", the first is line {}: {}", grouped(*number), line.escape_debug())
}

/// Rounds seconds to the largest unit of which there are at least ten.
fn round_seconds(seconds: u64) -> Span {
    let unit = [86_400, 3600, 60].into_iter().find(|unit| seconds >= 10 * unit).unwrap_or(1);
    Span::SECOND.times((seconds + unit / 2) / unit * unit)
}

/// Formats an instant: `2000-10-10T20:55:36Z`.
fn instant(at: Timestamp) -> String {
    let micros = i64::try_from(at.micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map(|at| at.to_string()).unwrap_or_default()
}

/// Formats a count with its noun: `1,234 calls`.
fn count_of(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats a count with separators: `1,234`.
fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a share, rounded down: `1.23 %`. A share above 0 is never shown as 0.
fn share(part: u64, whole: u64) -> String {
    let Some(hundredths) = (u128::from(part) * 10_000).checked_div(u128::from(whole)) else {
        return "0 %".to_owned();
    };
    match hundredths {
        0 if part > 0 => "less than 0.01 %".to_owned(),
        hundredths => format!("{}.{:02} %", hundredths / 100, hundredths % 100),
    }
}

#[cfg(test)]
mod tests {
    use super::round_seconds;

    #[test]
    fn durations_are_rounded_to_the_nearest_unit() {
        let rounded = [0, 1, 599, 600, 659, 35_969, 86_399, 100_000, 864_000, 31_535_999]
            .map(|seconds| round_seconds(seconds).to_string());
        assert_eq!(rounded, ["0", "1s", "599s", "10m", "11m", "599m", "1d", "28h", "10d", "365d"]);
    }
}
