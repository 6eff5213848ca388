//! Latencies from the cumulative buckets of a histogram of Prometheus.

use super::metrics_text::Series;
use crate::web::info::per_second;
use serde_json::{Value, json};

/// Maximum number of buckets.
const MAX_BUCKETS: usize = 64;

/// Histogram of latencies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Latency {
    /// Number of all latencies.
    pub count: u64,
    /// Upper bound of each finite bucket in seconds, in increasing order, and the number of latencies up to it.
    buckets: Vec<(f64, u64)>,
}

impl Latency {
    /// Adds a series of the histogram: `_bucket` or `_count`.
    pub fn read(&mut self, kind: &str, series: &Series) {
        let count = series.count().unwrap_or_default();
        match kind {
            "_count" => self.count = count,
            "_bucket" => {
                let bound = series.label("le").and_then(|bound| bound.parse().ok());
                if let Some(bound) = bound.filter(|bound: &f64| bound.is_finite())
                    && self.buckets.len() < MAX_BUCKETS
                    && self.buckets.last().is_none_or(|(last, _)| *last < bound)
                {
                    self.buckets.push((bound, count));
                }
            }
            _ => {}
        }
    }

    /// Returns the latencies after an earlier sample of the same histogram.
    #[must_use]
    pub fn since(&self, before: &Latency) -> Latency {
        let before_of = |bound: f64| {
            before.buckets.iter().find(|(known, _)| known.total_cmp(&bound).is_eq()).map_or(0, |(_, count)| *count)
        };
        let buckets = self.buckets.iter().map(|(bound, count)| (*bound, count.saturating_sub(before_of(*bound))));
        Latency { count: self.count.saturating_sub(before.count), buckets: buckets.collect() }
    }

    /// Returns the latency in seconds that a share of all does not exceed, or `None` without latencies. It is
    /// interpolated within a bucket, and at most the largest finite bound.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<f64> {
        if self.count == 0 {
            return None;
        }
        // Counts of a minute are far below 2^52.
        #[allow(clippy::cast_precision_loss)]
        let float = |count: u64| count as f64;
        let rank = share * float(self.count);
        let mut below = (0.0, 0);
        for (bound, count) in &self.buckets {
            if float(*count) >= rank {
                let (lower, earlier) = below;
                let within = float(count.saturating_sub(earlier));
                let part = if within > 0.0 { (rank - float(earlier)) / within } else { 1.0 };
                return Some(lower + (bound - lower) * part);
            }
            below = (*bound, *count);
        }
        self.buckets.last().map(|(bound, _)| *bound)
    }

    /// Returns the rate and the quantiles of the latencies of some seconds as JSON. `max_ms` is the largest finite
    /// bound: a quantile of this length may be longer in fact.
    #[must_use]
    pub fn json(&self, seconds: f64) -> Value {
        let ms = |seconds: f64| (seconds * 100_000.0).round() / 100.0;
        json!({
            "rate": per_second(self.count, seconds),
            "p50_ms": self.quantile(0.5).map(ms),
            "p99_ms": self.quantile(0.99).map(ms),
            "max_ms": self.buckets.last().map(|(bound, _)| ms(*bound)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Latency;
    use crate::web::gateways::metrics_text::series;

    fn latency(buckets: &[(&str, u64)], count: u64) -> Latency {
        let mut latency = Latency::default();
        let lines = buckets.iter().map(|(bound, count)| format!("x_bucket{{le=\"{bound}\"}} {count}\n"));
        let page: String = lines.chain([format!("x_count {count}\n")]).collect();
        for series in series(&page, "x") {
            latency.read(series.name.strip_prefix('x').unwrap_or_default(), &series);
        }
        latency
    }

    #[test]
    fn quantile_is_interpolated_within_its_bucket() {
        let latencies = latency(&[("0.001", 50), ("0.01", 90), ("0.1", 100), ("+Inf", 100)], 100);
        let ms = |share| latencies.quantile(share).map(|seconds| (seconds * 1e6).round() / 1e3);
        assert_eq!([ms(0.25), ms(0.5), ms(0.9), ms(0.95)], [Some(0.5), Some(1.0), Some(10.0), Some(55.0)]);
    }

    #[test]
    fn quantile_beyond_all_buckets_is_the_largest_bound() {
        let latencies = latency(&[("0.5", 1), ("1", 2), ("+Inf", 10)], 10);
        assert_eq!([latencies.quantile(0.99), latencies.quantile(0.2)], [Some(1.0), Some(1.0)]);
        assert_eq!(latency(&[], 3).quantile(0.5), None);
        assert_eq!(Latency::default().quantile(0.5), None);
    }

    #[test]
    fn difference_of_samples_has_only_later_latencies() {
        let before = latency(&[("0.001", 100), ("0.1", 100), ("+Inf", 100)], 100);
        let after = latency(&[("0.001", 100), ("0.1", 110), ("+Inf", 110)], 110);
        let later = after.since(&before);
        assert_eq!((later.count, later.quantile(0.5).is_some_and(|seconds| seconds > 0.001)), (10, true));
        assert_eq!(after.since(&after).quantile(0.5), None);
    }

    #[test]
    fn buckets_are_bounded_and_increase() {
        let many: Vec<(String, u64)> = (0..200).map(|bound| (bound.to_string(), 1)).collect();
        let many: Vec<(&str, u64)> = many.iter().map(|(bound, count)| (bound.as_str(), *count)).collect();
        assert_eq!(latency(&many, 1).buckets.len(), 64);
        assert_eq!(latency(&[("2", 1), ("1", 1), ("NaN", 1), ("x", 1)], 1).buckets, [(2.0, 1)]);
    }
}
