//! History of the counts from Prometheus, which reads the servers by monitoring/ratelimit.lua. It lasts longer than the
//! console's samples, and survives a restart of the console.

use super::failure::Failure;
use super::history::{FINE_MINUTES, FINE_STEP, MAX_MINUTES, MAX_POLICIES, MINUTE, Point, RecentHistory, Source};
use super::http_client::{HttpLimits, HttpTarget, NamedTarget};
use super::info::{Rates, rounded};
use super::shared_reads::SharedReads;
use super::text;
use futures_util::future::try_join;
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;
use tokio::time::timeout;

/// Number of minutes of thirty days, the longest range.
pub const MAX_RANGE_MINUTES: u64 = 30 * MAX_MINUTES;
/// Maximum number of intervals of a range longer than a day.
const MAX_POINTS: u64 = 1008;
/// Bounds of a request. A response has up to 1440 intervals of [`MAX_POLICIES`] policies, with four rates of 30 bytes
/// each.
const LIMITS: HttpLimits = HttpLimits { timeout: TIMEOUT, body_bytes: 16 << 20 };
/// Time until all responses for a range have been received.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time for which viewers share a range or a failure, in milliseconds.
const LIFETIME: u64 = 10_000;
/// Maximum number of ranges that are stored for viewers.
const MAX_RANGES: usize = 8;
/// Time for which the interval of Prometheus's samples is remembered, in milliseconds.
const INTERVAL_LIFETIME: u64 = 5 * MINUTE;
/// Interval of samples in seconds if there are no recent ones, Prometheus's default.
const DEFAULT_INTERVAL: u64 = 60;
/// Number of samples that a rate needs, so that a late or missing one leaves no gap.
const SAMPLES_OF_RATE: u64 = 4;
/// Outcomes in the order of [`Rates`].
const OUTCOMES: [&str; 4] = ["admitted", "denied", "shadow_denied", "banned"];

/// Prometheus that reads the servers.
pub struct Prometheus {
    target: HttpTarget,
    /// Matchers of labels that precede the matcher of `key`, with a comma at the end, or an empty text.
    matchers: String,
    /// Interval between Prometheus's recent samples in seconds, if there are any.
    interval: SharedReads<(), Option<u64>>,
    /// Rates or errors, by the number of minutes.
    ranges: SharedReads<u64, Result<RangeRates, String>>,
}

/// Rates of the intervals of a range.
struct RangeRates {
    range: Range,
    points: Vec<Point>,
}

/// Times of a query, in seconds since the Unix epoch. The rate at a time is the rate of the interval that ends then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u64,
    last: u64,
    step: u64,
}

impl Prometheus {
    /// Creates a client of Prometheus. `matchers` select its series, such as `job="redis",cluster="eu"`.
    ///
    /// # Errors
    /// Returns the errors of [`HttpTarget::new`].
    pub fn new(named: NamedTarget, matchers: Option<&str>) -> Result<Prometheus, String> {
        let matchers = matchers.unwrap_or_default().trim().trim_start_matches('{').trim_end_matches(['}', ',', ' ']);
        let matchers = if matchers.is_empty() { String::new() } else { format!("{matchers},") };
        let (interval, ranges) = (SharedReads::default(), SharedReads::new(MAX_RANGES));
        Ok(Prometheus { target: HttpTarget::new(named, LIMITS)?, matchers, interval, ranges })
    }

    /// Replaces the console's samples of the last minutes by Prometheus's rates. Samples stay where Prometheus has
    /// none.
    pub async fn extend(&self, samples: RecentHistory, minutes: u64) -> RecentHistory {
        let minutes = minutes.clamp(1, MAX_RANGE_MINUTES);
        let range = Range::last(samples.at, minutes);
        let read = async {
            let read = timeout(TIMEOUT, self.read(range)).await;
            Ok(read.unwrap_or_else(|_| Err("no response in time".to_owned())))
        };
        let found = self.ranges.get(minutes, LIFETIME, read).await;
        let mut history = match found.as_deref() {
            Ok(Ok(found)) => merge(samples, found),
            Ok(Err(why)) => RecentHistory { why: Some(why.clone()), ..samples },
            Err(failure) => RecentHistory { why: Some(failure.message().to_owned()), ..samples },
        };
        history.prometheus = Some(self.target.url());
        history
    }

    async fn read(&self, range: Range) -> Result<RangeRates, String> {
        let interval = self.interval.get((), INTERVAL_LIFETIME, async { self.read_interval(range.last).await });
        let interval = *interval.await.map_err(|failure| failure.message().to_owned())?;
        let window = range.step.max(interval.unwrap_or(DEFAULT_INTERVAL).saturating_mul(SAMPLES_OF_RATE));
        let (all, policies) = (self.all_query(window), self.policies_query(window));
        let (all, policies) = try_join(self.query_range(&all, range), self.query_range(&policies, range)).await?;
        // With recent samples, an empty range is no error: it may lack an interval with two samples yet.
        if all.is_empty() && interval.is_none() {
            return Err("it has no counts of redis-ratelimit (--prometheus-match, monitoring/ratelimit.lua)".to_owned());
        }
        Ok(RangeRates { range, points: points(&all, &policies, range) })
    }

    /// Returns the interval of the samples in seconds, if there are recent ones.
    async fn read_interval(&self, at: u64) -> Result<Option<u64>, Failure> {
        let query = format!("redis_script_values{{{}key=\"ratelimit:calls\"}}[5m]", self.matchers);
        let path = format!("/api/v1/query?query={}&time={at}", encoded(&query));
        let found: Vec<Series> = self.get(&path).await.map_err(Failure::Away)?;
        Ok(found.iter().filter_map(Series::interval).max())
    }

    /// Returns the query for the rates of all calls, one series for each outcome, with a label `key` that ends in the
    /// outcome. Shadow-denied and banned calls are counted only by policy, and summed.
    fn all_query(&self, window: u64) -> String {
        let total = |outcome: &str| {
            let rate = self.rate(&format!("policy:.+:{outcome}"), window);
            format!("label_replace(sum({rate}), \"key\", \"{outcome}\", \"\", \"\")")
        };
        let decided = self.rate("ratelimit:(admitted|denied)", window);
        format!("sum by (key) ({decided}) or {} or {}", total("shadow_denied"), total("banned"))
    }

    /// Returns the query for the rates of policies, one series for each policy and outcome, with a label `key` that
    /// ends in the outcome. Each interval has the policies denied most. Equally denied ones are chosen by admitted
    /// calls.
    fn policies_query(&self, window: u64) -> String {
        // Servers are added up first, because replacing labels is slow.
        let rates_of = |outcomes: &str| {
            let rate = self.rate(&format!("policy:.+:{outcomes}"), window);
            format!("label_replace(sum by (key) ({rate}), \"policy\", \"$1\", \"key\", \"policy:(.+):.+\")")
        };
        let all = rates_of(&format!("({})", OUTCOMES.join("|")));
        let (denied, admitted) = (rates_of("denied"), rates_of("admitted"));
        format!(
            "({all} and on (policy) topk({MAX_POLICIES}, sum by (policy) ({denied}) + 1e-6 * sum by (policy) \
             ({admitted}))) > 0"
        )
    }

    fn rate(&self, keys: &str, window: u64) -> String {
        format!("rate(redis_script_values{{{}key=~\"{keys}\"}}[{window}s])", self.matchers)
    }

    async fn query_range(&self, query: &str, range: Range) -> Result<Vec<Series>, String> {
        let Range { first, last, step } = range;
        self.get(&format!("/api/v1/query_range?query={}&start={first}&end={last}&step={step}", encoded(query))).await
    }

    /// Requests a path of the API.
    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<Vec<T>, String> {
        let response = self.target.get(path).await?;
        let parsed = serde_json::from_slice::<Reply<T>>(&response.body);
        match parsed {
            Ok(Reply { data: Some(data), .. }) if response.status.is_success() => Ok(data.result),
            Ok(Reply { error: Some(error), .. }) => Err(error),
            _ if response.status.is_success() => Err("the response is not that of Prometheus".to_owned()),
            _ => Err(format!("status {}", response.status)),
        }
    }
}

/// Response of the API.
#[derive(Deserialize)]
struct Reply<T> {
    data: Option<Data<T>>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Data<T> {
    result: Vec<T>,
}

/// Series of a range: times in seconds, and numbers as text.
#[derive(Deserialize)]
struct Series {
    metric: HashMap<String, String>,
    values: Vec<(f64, String)>,
}

impl Series {
    /// Returns the mean time between samples in seconds, if there are at least two.
    fn interval(&self) -> Option<u64> {
        let ((first, _), (last, _)) = (self.values.first()?, self.values.last()?);
        let span = Duration::try_from_secs_f64(last - first).ok()?;
        let gaps = u32::try_from(self.values.len().checked_sub(1)?).ok()?;
        let mean = span.checked_div(gaps)?;
        Some(mean.as_secs().saturating_add(u64::from(mean.subsec_nanos() > 0)))
    }
}

impl Range {
    /// Returns the range of the last minutes before `now`, in milliseconds since the Unix epoch. The times are
    /// multiples of the step, so that later ranges have the same intervals.
    fn last(now: u64, minutes: u64) -> Range {
        let step = if minutes <= FINE_MINUTES {
            FINE_STEP
        } else if minutes <= MAX_MINUTES {
            MINUTE
        } else {
            minutes.div_ceil(MAX_POINTS).saturating_mul(MINUTE)
        };
        let floor = |time: u64| time.saturating_sub(time.checked_rem(step).unwrap_or_default());
        let first = floor(now.saturating_sub(minutes.saturating_mul(MINUTE))).saturating_add(step);
        let seconds = |ms: u64| Duration::from_millis(ms).as_secs();
        Range { first: seconds(first), last: seconds(floor(now)), step: seconds(step) }
    }

    fn step_ms(self) -> u64 {
        self.step.saturating_mul(1000)
    }
}

fn encoded(query: &str) -> String {
    utf8_percent_encode(query, NON_ALPHANUMERIC).to_string()
}

/// Converts the series of all calls and those of policies to intervals.
fn points(all: &[Series], policies: &[Series], range: Range) -> Vec<Point> {
    let mut points: BTreeMap<u64, Point> = BTreeMap::new();
    for series in all {
        for_each_rate(series, range, |at, index, rate| {
            let point = points.entry(at).or_insert_with(|| Point { at, ..Point::default() });
            set_rate(&mut point.all, index, rate);
        });
    }
    for series in policies {
        let Some(name) = series.metric.get("policy") else { continue };
        let name = text::from_bytes(&percent_decode_str(name).collect::<Vec<u8>>());
        for_each_rate(series, range, |at, index, rate| {
            if let Some(point) = points.get_mut(&at) {
                set_rate(point.policies.entry(name.clone()).or_default(), index, rate);
            }
        });
    }
    points.into_values().collect()
}

/// Calls `add` with the beginning of each interval, the index of its rate in [`Rates`], and the rate.
fn for_each_rate(series: &Series, range: Range, mut add: impl FnMut(u64, usize, f64)) {
    let outcome = series.metric.get("key").and_then(|key| key.rsplit(':').next());
    let Some(index) = OUTCOMES.iter().position(|known| outcome == Some(known)) else { return };
    for (time, rate) in &series.values {
        let end = Duration::try_from_secs_f64(*time).unwrap_or_default().as_secs().saturating_mul(1000);
        match rate.parse::<f64>() {
            Ok(rate) if rate.is_finite() => add(end.saturating_sub(range.step_ms()), index, rounded(rate)),
            _ => {}
        }
    }
}

fn set_rate(rates: &mut Rates, index: usize, rate: f64) {
    if let Some(old) = rates.get_mut(index) {
        *old = rate;
    }
}

/// Replaces the samples of the intervals for which Prometheus has rates.
fn merge(samples: RecentHistory, RangeRates { range, points }: &RangeRates) -> RecentHistory {
    let interval_number = |at: u64| at.checked_div(range.step_ms()).unwrap_or_default();
    let known: HashSet<u64> = points.iter().map(|point| interval_number(point.at)).collect();
    let kept = samples.points.into_iter().filter(|point| !known.contains(&interval_number(point.at)));
    let mut merged: Vec<Point> = points.iter().cloned().chain(kept).collect();
    merged.sort_by_key(|point| point.at);
    // The running interval is never in Prometheus yet.
    let end = range.last.saturating_mul(1000);
    let has_kept = merged.iter().any(|point| !known.contains(&interval_number(point.at)) && point.at < end);
    let source = match (points.is_empty(), has_kept) {
        (true, _) => Source::Samples,
        (false, true) => Source::Both,
        (false, false) => Source::Prometheus,
    };
    RecentHistory { step_ms: range.step_ms(), points: merged, source, ..samples }
}

#[cfg(test)]
mod tests {
    use super::{Point, Range, RangeRates, RecentHistory, Series, Source, merge, points};
    use std::collections::{BTreeMap, HashMap};

    const NOON: u64 = 1_700_000_040_000;

    fn series(labels: &[(&str, &str)], values: &[(u64, &str)]) -> Series {
        let metric = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let values =
            values.iter().map(|(ms, value)| (f64::from(u32::try_from(ms / 1000).unwrap()), (*value).to_owned()));
        Series { metric: metric.collect::<HashMap<_, _>>(), values: values.collect() }
    }

    #[test]
    fn step_grows_with_the_range() {
        let range = |minutes| Range::last(NOON + 7_000, minutes);
        assert_eq!(range(5), Range { first: (NOON - 290_000) / 1000, last: NOON / 1000, step: 10 });
        assert_eq!(range(61), Range { first: (NOON - 60 * 60_000) / 1000, last: NOON / 1000, step: 60 });
        for (minutes, step) in [(60, 10), (1440, 60), (10_080, 600), (43_200, 43 * 60)] {
            let Range { first, last, step: found } = range(minutes);
            assert_eq!((found, first % step, last % step), (step, 0, 0));
            assert!((last - first) / step < 1440, "{minutes}");
        }
    }

    #[test]
    fn interval_of_samples_is_rounded_up() {
        let interval = |values: &[(u64, &str)]| series(&[], values).interval();
        assert_eq!(interval(&[(NOON, "1"), (NOON + 15_000, "1"), (NOON + 31_000, "1")]), Some(16));
        assert_eq!(interval(&[(NOON, "1"), (NOON + 15_000, "1")]), Some(15));
        assert_eq!((interval(&[(NOON, "1")]), interval(&[])), (None, None));
    }

    #[test]
    fn series_become_intervals_of_the_time_before() {
        let range = Range::last(NOON, 5);
        let all = [
            series(&[("key", "ratelimit:admitted")], &[(NOON - 10_000, "4"), (NOON, "2.506")]),
            series(&[("key", "ratelimit:denied")], &[(NOON - 10_000, "NaN"), (NOON, "1e-3")]),
            series(&[("key", "banned")], &[(NOON, "1")]),
            series(&[("key", "ratelimit:calls")], &[(NOON, "9")]),
        ];
        let policies = [
            series(&[("policy", "a%0A%FF"), ("key", "policy:a%0A%FF:denied")], &[(NOON, "3")]),
            series(&[("policy", "late"), ("key", "policy:late:denied")], &[(NOON + 10_000, "3")]),
        ];
        let named = BTreeMap::from([("a\n\\xff".to_owned(), [0.0, 3.0, 0.0, 0.0])]);
        let expected = [
            Point { at: NOON - 20_000, all: [4.0, 0.0, 0.0, 0.0], policies: BTreeMap::new() },
            Point { at: NOON - 10_000, all: [2.51, 0.0, 0.0, 1.0], policies: named },
        ];
        assert_eq!(points(&all, &policies, range), expected);
    }

    #[test]
    fn samples_stay_where_prometheus_has_none() {
        let point = |at, rate| Point { at, all: [rate; 4], policies: BTreeMap::new() };
        let samples = |times: &[u64]| RecentHistory {
            at: NOON,
            step_ms: 60_000,
            points: times.iter().map(|at| point(*at, 1.0)).collect(),
            keys: vec![],
            source: Source::Samples,
            prometheus: None,
            why: None,
        };
        let range = Range::last(NOON, 10_080);
        let end = range.last * 1000;
        let found = RangeRates { range, points: vec![point(end - 1_200_000, 2.0), point(end - 600_000, 2.0)] };
        let merged = merge(samples(&[end - 1_860_000, end - 900_000, end - 60_000, end + 60_000]), &found);
        let times: Vec<_> = merged.points.iter().map(|point| (end.wrapping_sub(point.at), point.all[0])).collect();
        let running = end.wrapping_sub(end + 60_000);
        assert_eq!(times, [(1_860_000, 1.0), (1_200_000, 2.0), (600_000, 2.0), (running, 1.0)]);
        assert_eq!((merged.source, merged.step_ms), (Source::Both, 600_000));
        assert_eq!(merge(samples(&[end + 60_000]), &found).source, Source::Prometheus);
    }
}
