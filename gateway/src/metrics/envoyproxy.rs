//! Metrics under the names of envoyproxy/ratelimit, with the labels that its statsd mapping for Prometheus produces.

use super::{MAX_LABEL_BYTES, MAX_SERIES, NearLimitRatio, OTHER};
use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, PoisonError, RwLock};
use std::time::Duration;

const TOTAL_HITS: &str = "ratelimit_service_rate_limit_total_hits";
const OVER_LIMIT: &str = "ratelimit_service_rate_limit_over_limit";
const NEAR_LIMIT: &str = "ratelimit_service_rate_limit_near_limit";
const WITHIN_LIMIT: &str = "ratelimit_service_rate_limit_within_limit";
const SHADOW_MODE: &str = "ratelimit_service_rate_limit_shadow_mode";
const GLOBAL_SHADOW_MODE: &str = "ratelimit_service_global_shadow_mode";
const ERRORS: &str = "ratelimit_service_should_rate_limit_error";
const REQUESTS: &str = "ratelimit_service_total_requests";
const RESPONSE_TIME: &str = "ratelimit_service_response_time_seconds";
const LOADED: &str = "ratelimit_service_config_load_success";
const NOT_LOADED: &str = "ratelimit_service_config_load_error";

/// Flag that is set if the metrics of this module are counted.
static ENABLED: OnceLock<()> = OnceLock::new();

/// Enables the metrics of this module.
pub fn enable() {
    let _ = ENABLED.set(());
    for (name, help) in [
        (TOTAL_HITS, "Hits of a limit."),
        (OVER_LIMIT, "Hits above a limit."),
        (NEAR_LIMIT, "Hits above the near limit ratio of a limit, and up to the limit."),
        (WITHIN_LIMIT, "Hits within a limit."),
        (SHADOW_MODE, "Hits above a limit in shadow mode."),
        (GLOBAL_SHADOW_MODE, "Denied requests that passed because the whole service is in shadow mode."),
        (ERRORS, "Requests without a decision."),
        (REQUESTS, "Requests over gRPC."),
        (LOADED, "Configurations that were applied."),
        (NOT_LOADED, "Configurations that were refused."),
    ] {
        describe_counter!(name, help);
    }
    describe_histogram!(RESPONSE_TIME, "Seconds until a request over gRPC was answered.");
    counter!(LOADED).absolute(0);
    counter!(NOT_LOADED).absolute(0);
}

/// Returns `true` if the metrics of this module are counted.
pub fn is_enabled() -> bool {
    ENABLED.get().is_some()
}

/// Hits of a descriptor on its limit.
#[derive(Clone, Copy, Debug)]
pub struct Hits {
    /// Number of hits.
    pub count: u64,
    /// `true` if the rule is in shadow mode.
    pub is_shadow: bool,
    /// State of the limit, or `None` without a decision.
    pub state: Option<LimitState>,
}

/// State of a limit before a request.
#[derive(Clone, Copy, Debug)]
pub struct LimitState {
    pub limit: u64,
    /// Units in use before the request.
    pub used_before: u64,
    /// `true` if the request exceeds the limit.
    pub is_over: bool,
}

/// Numbers of hits above, near and within the limit, and of hits above a limit in shadow mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Classes {
    over: u64,
    near: u64,
    within: u64,
    shadow: u64,
}

impl Hits {
    /// Counts the hits in each class, as envoyproxy/ratelimit does. A hit near the limit may also be within it.
    fn classes(&self, ratio: NearLimitRatio) -> Classes {
        let Some(LimitState { limit, used_before, is_over }) = self.state else { return Classes::default() };
        let used_after = used_before.saturating_add(self.count);
        let near_from = ratio.threshold(limit).max(used_before);
        if !is_over {
            let near = used_after.saturating_sub(near_from).min(self.count);
            return Classes { near, within: self.count, ..Classes::default() };
        }
        let over = used_after.saturating_sub(limit).min(self.count);
        let near = if used_before < limit { limit.saturating_sub(near_from) } else { 0 };
        Classes { over, near, within: 0, shadow: if self.is_shadow { over } else { 0 } }
    }
}

/// Counters of a limit.
struct LimitCounters {
    total: Counter,
    over: Counter,
    near: Counter,
    within: Counter,
    shadow: Counter,
}

impl LimitCounters {
    fn new(path: &str) -> LimitCounters {
        let labels = labels(path);
        LimitCounters {
            total: counter!(TOTAL_HITS, &labels),
            over: counter!(OVER_LIMIT, &labels),
            near: counter!(NEAR_LIMIT, &labels),
            within: counter!(WITHIN_LIMIT, &labels),
            shadow: counter!(SHADOW_MODE, &labels),
        }
    }
}

/// Counts the hits on a limit. `path` is the path of the limit in its domain, such as `plan_gold.user`.
pub fn count_hits(domain: &str, path: &str, hits: Hits, ratio: NearLimitRatio) {
    static LIMITS: LazyLock<RwLock<HashMap<String, Arc<LimitCounters>>>> = LazyLock::new(RwLock::default);
    let path = format!("{domain}.{path}");
    let known = LIMITS.read().unwrap_or_else(PoisonError::into_inner).get(&path).map(Arc::clone);
    let counters = known.unwrap_or_else(|| {
        let mut limits = LIMITS.write().unwrap_or_else(PoisonError::into_inner);
        // Values of descriptors may be part of a path.
        let has_own_series = limits.len() < MAX_SERIES && path.len() <= MAX_LABEL_BYTES;
        let path = if has_own_series { path } else { format!("{OTHER}.{OTHER}") };
        let new = || Arc::new(LimitCounters::new(&path));
        Arc::clone(limits.entry(path.clone()).or_insert_with(new))
    });
    let Classes { over, near, within, shadow } = hits.classes(ratio);
    for (counter, count) in [
        (&counters.total, hits.count),
        (&counters.over, over),
        (&counters.near, near),
        (&counters.within, within),
        (&counters.shadow, shadow),
    ] {
        if count > 0 {
            counter.increment(count);
        }
    }
}

/// Returns the labels that the statsd mapping produces from a path: the first three parts between dots are the domain
/// and two keys, and further parts are dropped.
fn labels(path: &str) -> Vec<(&'static str, String)> {
    let path = sanitize(path);
    ["domain", "key1", "key2"].into_iter().zip(path.split('.')).map(|(name, part)| (name, part.to_owned())).collect()
}

/// Replaces characters that separate the parts of a statsd line, and the dots of IPv4 addresses.
fn sanitize(path: &str) -> String {
    let path = path.replace([':', '|'], "_");
    let mut sanitized = String::with_capacity(path.len());
    let mut rest = path.as_str();
    while let Some(first) = rest.chars().next() {
        let address = ipv4_length(rest.as_bytes());
        let (part, after) = rest.split_at(address.unwrap_or(first.len_utf8()));
        sanitized.extend(part.chars().map(|letter| if address.is_some() && letter == '.' { '_' } else { letter }));
        rest = after;
    }
    sanitized
}

/// Returns the length of four groups of up to three digits between dots, if the text begins with them.
fn ipv4_length(text: &[u8]) -> Option<usize> {
    let mut length = 0;
    for group in 0..4 {
        let digits = text.get(length..)?.iter().take(3).take_while(|byte| byte.is_ascii_digit()).count();
        length += digits;
        if digits == 0 || group < 3 && text.get(length) != Some(&b'.') {
            return None;
        }
        length += usize::from(group < 3);
    }
    Some(length)
}

/// Counts a request that passed because of the shadow mode of the whole service.
pub fn count_global_shadow() {
    if is_enabled() {
        counter!(GLOBAL_SHADOW_MODE).increment(1);
    }
}

/// Counts a request that the server did not decide.
pub fn count_undecided() {
    if is_enabled() {
        counter!(ERRORS, "err_type" => "redis_error").increment(1);
    }
}

/// Counts a malformed request.
pub fn count_malformed() {
    if is_enabled() {
        counter!(ERRORS, "err_type" => "service_error").increment(1);
    }
}

/// Records the duration of a request over gRPC.
pub fn record_grpc_request(duration: Duration) {
    static METRICS: LazyLock<(Counter, Histogram)> = LazyLock::new(|| {
        let method = [("grpc_method", "ShouldRateLimit")];
        (counter!(REQUESTS, &method), histogram!(RESPONSE_TIME, &method))
    });
    if is_enabled() {
        METRICS.0.increment(1);
        METRICS.1.record(duration.as_secs_f64());
    }
}

/// Counts a configuration, which was applied or refused.
pub fn count_configuration(is_applied: bool) {
    if is_enabled() {
        counter!(if is_applied { LOADED } else { NOT_LOADED }).increment(1);
    }
}

#[cfg(test)]
mod tests {
    use super::{Classes, Hits, LimitState, count_hits, labels};
    use crate::metrics::{MAX_SERIES, NearLimitRatio};
    use metrics_exporter_prometheus::PrometheusBuilder;

    /// Returns the hits over, near and within the limit.
    fn classes(limit: u64, used_before: u64, count: u64) -> [u64; 3] {
        let state = Some(LimitState { limit, used_before, is_over: used_before + count > limit });
        let Classes { over, near, within, shadow } =
            Hits { count, is_shadow: false, state }.classes(NearLimitRatio::default());
        assert_eq!(shadow, 0);
        [over, near, within]
    }

    #[test]
    fn hits_are_divided_at_the_limit_and_near_it() {
        assert_eq!(classes(10, 0, 1), [0, 0, 1]);
        assert_eq!([classes(10, 7, 1), classes(10, 8, 1), classes(10, 9, 1)], [[0, 0, 1], [0, 1, 1], [0, 1, 1]]);
        assert_eq!([classes(10, 10, 1), classes(10, 12, 3)], [[1, 0, 0], [3, 0, 0]]);
        assert_eq!(classes(10, 7, 3), [0, 2, 3], "a hit below the ratio and two above it");
        assert_eq!([classes(10, 5, 10), classes(10, 9, 10)], [[5, 2, 0], [9, 1, 0]]);
        assert_eq!([classes(0, 0, 1), classes(1, 0, 1), classes(5, 5, 0)], [[1, 0, 0], [0, 1, 1], [0, 0, 0]]);
    }

    #[test]
    fn shadow_hits_are_those_above_the_limit() {
        let state = Some(LimitState { limit: 10, used_before: 8, is_over: true });
        let hits = Hits { count: 5, is_shadow: true, state };
        let expected = Classes { over: 3, near: 2, within: 0, shadow: 3 };
        assert_eq!(hits.classes(NearLimitRatio::default()), expected);
        assert_eq!(Hits { state: None, ..hits }.classes(NearLimitRatio::default()), Classes::default());
    }

    #[test]
    fn path_becomes_a_domain_and_up_to_two_keys() {
        let label_values = |path: &str| labels(path).into_iter().map(|(_, value)| value).collect::<Vec<_>>().join(" ");
        assert_eq!(label_values("rl.foo"), "rl foo");
        assert_eq!(label_values("rl.foo.baz_shady"), "rl foo baz_shady");
        assert_eq!(label_values("rl.a_1.b_2.c_3"), "rl a_1 b_2");
        assert_eq!(label_values("rl.address_10.0.0.255.path_/a:b|c"), "rl address_10_0_0_255 path_/a_b_c");
        assert_eq!(label_values("rl.version_1.2.3"), "rl version_1 2");
    }

    #[test]
    fn number_of_series_is_bounded() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let hits = Hits { count: 1, is_shadow: false, state: None };
        metrics::with_local_recorder(&recorder, || {
            for number in 0..2 * MAX_SERIES {
                count_hits("d", &format!("user_{number}"), hits, NearLimitRatio::default());
            }
            count_hits("d", &"x".repeat(1 << 16), hits, NearLimitRatio::default());
        });
        let rendered = recorder.handle().render();
        let series = rendered.lines().filter(|line| line.starts_with("ratelimit_service_rate_limit_total_hits{"));
        // Other tests of this process may have created some of the series.
        assert!((MAX_SERIES / 2..=MAX_SERIES + 1).contains(&series.count()));
        let others = "ratelimit_service_rate_limit_total_hits{domain=\"other\",key1=\"other\"} 2001";
        assert!(rendered.contains(others), "all further hits are counted: {rendered:.300}");
        assert!(rendered.len() < 1 << 20, "no label is long");
    }
}
