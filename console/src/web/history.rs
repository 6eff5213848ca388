//! History of the counts of all servers since the console started, for up to a day. Its memory is bounded: the number
//! of intervals, and the number of policies and keys of each.

use super::info::{Counts, Rates};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, VecDeque};

/// Length of a minute in milliseconds.
pub const MINUTE: u64 = 60_000;
/// Length of the history in minutes: a day.
pub const MAX_MINUTES: u64 = 1440;
/// Number of the last minutes that also have intervals of [`FINE_STEP`].
pub const FINE_MINUTES: u64 = 60;
/// Length of a fine interval in milliseconds.
pub const FINE_STEP: u64 = 10_000;
/// Maximum number of policies of an interval: those that were denied most, and then those that were called most.
pub const MAX_POLICIES: usize = 10;

/// History of the last minutes, as the page gets it.
#[derive(Serialize)]
pub struct RecentHistory {
    /// Time of the request, in milliseconds since the Unix epoch.
    pub at: u64,
    /// Length of the intervals in milliseconds.
    pub step_ms: u64,
    pub points: Vec<Point>,
    /// Most denied keys of minutes, by the beginnings of the minutes.
    pub keys: Vec<(u64, Vec<Value>)>,
    pub source: Source,
    /// URL of Prometheus, if `--prometheus` names one.
    pub prometheus: Option<String>,
    /// Error of Prometheus.
    pub why: Option<String>,
}

/// Source of the points of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Samples of the console.
    Samples,
    Prometheus,
    /// Prometheus, and samples of the console for times that it lacks.
    Both,
}

/// Rates of an interval.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Point {
    /// Beginning of the interval, in milliseconds since the Unix epoch.
    pub at: u64,
    pub all: Rates,
    pub policies: BTreeMap<String, Rates>,
}

/// Calls of an interval.
#[derive(Default)]
struct Interval {
    /// Beginning of the interval, in milliseconds since the Unix epoch.
    start: u64,
    /// Time in which calls were counted, in seconds. In the first interval after an outage, it includes the outage.
    seconds: f64,
    all: Counts,
    policies: BTreeMap<String, Counts>,
    /// Most denied keys, only in intervals of a minute.
    keys: Vec<Value>,
}

/// Intervals of the same length, oldest first.
struct Intervals {
    /// Length of an interval in milliseconds.
    step: u64,
    capacity: usize,
    list: VecDeque<Interval>,
}

/// Intervals of two lengths.
pub struct History {
    fine: Intervals,
    minutes: Intervals,
}

impl Default for History {
    fn default() -> History {
        let intervals = |step, length: u64| Intervals {
            step,
            capacity: usize::try_from(length / step).unwrap_or_default(),
            list: VecDeque::new(),
        };
        History { fine: intervals(FINE_STEP, FINE_MINUTES * MINUTE), minutes: intervals(MINUTE, MAX_MINUTES * MINUTE) }
    }
}

impl History {
    /// Adds the calls of a tick with the end `at`, in milliseconds, and the length `seconds`.
    pub fn add(&mut self, at: u64, seconds: f64, all: Counts, policies: &BTreeMap<String, Counts>) {
        for intervals in [&mut self.fine, &mut self.minutes] {
            intervals.add(at, seconds, all, policies);
        }
    }

    /// Sets the most denied keys of the minute that begins at `start`. Without a sample in that minute, they are
    /// dropped.
    pub fn set_keys(&mut self, start: u64, keys: Vec<Value>) {
        if let Some(interval) = self.minutes.list.iter_mut().rev().find(|interval| interval.start == start) {
            interval.keys = keys;
        }
    }

    /// Returns the intervals of the last minutes before `now`, and the most denied keys of each minute.
    #[must_use]
    pub fn recent(&self, now: u64, minutes: u64) -> RecentHistory {
        let from = now.saturating_sub(minutes.saturating_mul(MINUTE));
        let intervals = if minutes <= FINE_MINUTES { &self.fine } else { &self.minutes };
        let within = |interval: &&Interval| interval.start >= from;
        let keys = self.minutes.list.iter().filter(within).filter(|interval| !interval.keys.is_empty());
        RecentHistory {
            at: now,
            step_ms: intervals.step,
            points: intervals.list.iter().filter(within).map(Interval::point).collect(),
            keys: keys.map(|interval| (interval.start, interval.keys.clone())).collect(),
            source: Source::Samples,
            prometheus: None,
            why: None,
        }
    }
}

impl Intervals {
    fn add(&mut self, at: u64, seconds: f64, all: Counts, policies: &BTreeMap<String, Counts>) {
        let start = at.saturating_sub(at.checked_rem(self.step).unwrap_or_default());
        // The clock moved backwards.
        while self.list.back().is_some_and(|last| last.start > start) {
            self.list.pop_back();
        }
        if self.list.back().is_none_or(|last| last.start < start) {
            if let Some(last) = self.list.back_mut() {
                last.drop_policies();
            }
            self.list.push_back(Interval { start, ..Interval::default() });
        }
        if self.list.len() > self.capacity {
            self.list.pop_front();
        }
        let Some(last) = self.list.back_mut() else { return };
        last.seconds += seconds;
        last.all = last.all.plus(all);
        for (name, counts) in policies.iter().filter(|(_, counts)| counts.calls > 0) {
            let sum = last.policies.entry(name.clone()).or_default();
            *sum = sum.plus(*counts);
        }
    }
}

impl Interval {
    /// Drops the policies beyond the maximum.
    fn drop_policies(&mut self) {
        let mut policies: Vec<(String, Counts)> = std::mem::take(&mut self.policies).into_iter().collect();
        policies.sort_by_key(|(_, counts)| std::cmp::Reverse((counts.denied, counts.calls)));
        policies.truncate(MAX_POLICIES);
        self.policies = policies.into_iter().collect();
    }

    fn point(&self) -> Point {
        let policies = self.policies.iter().map(|(name, counts)| (name.clone(), counts.rates(self.seconds)));
        Point { at: self.start, all: self.all.rates(self.seconds), policies: policies.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::{Counts, FINE_STEP, History, MAX_MINUTES, MAX_POLICIES, MINUTE};
    use serde_json::{Value, json};
    use std::collections::BTreeMap;

    const NOON: u64 = 1_700_000_040_000;

    fn counts(admitted: u64, denied: u64) -> Counts {
        Counts { calls: admitted + denied, admitted, denied, ..Counts::default() }
    }

    fn json(history: &History, now: u64, minutes: u64) -> Value {
        serde_json::to_value(history.recent(now, minutes)).expect("JSON")
    }

    fn points(history: &History, now: u64, minutes: u64) -> Vec<Value> {
        json(history, now, minutes)["points"].as_array().expect("a list").clone()
    }

    #[test]
    fn interval_has_rates_of_the_counted_seconds() {
        let mut history = History::default();
        let policies = BTreeMap::from([("login".to_owned(), counts(0, 6)), ("idle".to_owned(), counts(0, 0))]);
        history.add(NOON, 1.0, counts(4, 6), &policies);
        history.add(NOON + 9_999, 1.0, counts(4, 0), &BTreeMap::new());
        history.add(NOON + 10_000, 2.0, counts(2, 0), &BTreeMap::new());
        let found = points(&history, NOON + 10_000, 5);
        let first = json!({ "at": NOON, "all": [4.0, 3.0, 0.0, 0.0], "policies": { "login": [0.0, 3.0, 0.0, 0.0] } });
        assert_eq!(found, [first, json!({ "at": NOON + 10_000, "all": [1.0, 0.0, 0.0, 0.0], "policies": {} })]);
        assert_eq!(points(&history, NOON + 10_000, 61).len(), 1, "minutes");
    }

    #[test]
    fn day_is_kept_in_bounded_memory() {
        let mut history = History::default();
        let policies: BTreeMap<String, Counts> = (0..100).map(|n| (format!("{n:02}"), counts(1, n))).collect();
        for step in 0..=MAX_MINUTES * 7 {
            history.add(NOON + step * FINE_STEP, 10.0, counts(10, 0), &policies);
        }
        let end = NOON + MAX_MINUTES * 7 * FINE_STEP;
        assert_eq!((history.fine.list.len(), history.minutes.list.len()), (360, 1440));
        assert_eq!((points(&history, end, 60).len(), points(&history, end, MAX_MINUTES).len()), (360, 1440));
        assert_eq!(points(&history, end, 5).len(), 31);
        let kept = |interval: &super::Interval| interval.policies.len();
        assert_eq!(history.minutes.list.iter().rev().skip(1).map(kept).max(), Some(MAX_POLICIES));
        assert!(history.minutes.list[0].policies.contains_key("99"), "the most denied ones stay");
    }

    #[test]
    fn clock_that_moved_backwards_drops_later_intervals() {
        let mut history = History::default();
        for at in [NOON, NOON + 5 * MINUTE, NOON + MINUTE] {
            history.add(at, 1.0, counts(1, 0), &BTreeMap::new());
        }
        let found: Vec<_> = points(&history, NOON + MINUTE, 61).iter().map(|point| point["at"].clone()).collect();
        assert_eq!(found, [json!(NOON), json!(NOON + MINUTE)]);
    }

    #[test]
    fn keys_belong_to_their_minute() {
        let mut history = History::default();
        history.add(NOON + 1, 1.0, counts(1, 0), &BTreeMap::new());
        history.set_keys(NOON, vec![json!({ "key": "a" })]);
        history.set_keys(NOON + MINUTE, vec![json!({ "key": "b" })]);
        assert_eq!(json(&history, NOON + 2, 5)["keys"], json!([[NOON, [{ "key": "a" }]]]));
        assert_eq!(json(&history, NOON + 6 * MINUTE, 5)["keys"], json!([]));
    }
}
