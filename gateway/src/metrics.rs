//! Metrics for Prometheus.

pub mod control_plane;
pub mod enforcement;
pub mod envoyproxy;
pub mod process;

use crate::call::Operation;
use crate::outage_mode::OutageMode;
use clap::ValueEnum;
use metrics::{Counter, Histogram, counter, describe_counter, describe_histogram, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use ratelimit_core::Amount;
use std::collections::{HashMap, HashSet};
use std::str::FromStr;
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::Duration;

/// Buckets of the histograms in seconds, from a round trip on one machine to a timeout.
const BUCKETS: [f64; 13] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Maximum number of values of a label.
const MAX_LABELS: usize = 1000;
/// Maximum number of combinations of a domain, a policy and values.
const MAX_SERIES: usize = 2000;
/// Maximum length of a label in bytes. Values of descriptors may be part of a label.
const MAX_LABEL_BYTES: usize = 512;

/// Names of the metrics of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MetricsFormat {
    /// The gateway's own names.
    Gateway,
    /// Names of envoyproxy/ratelimit, in addition to the gateway's own names.
    Envoyproxy,
}

/// Share of a limit, in millionths, above which hits count as near the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NearLimitRatio(u64);

impl Default for NearLimitRatio {
    fn default() -> NearLimitRatio {
        NearLimitRatio(800_000)
    }
}

impl FromStr for NearLimitRatio {
    type Err = String;

    fn from_str(text: &str) -> Result<NearLimitRatio, String> {
        let ratio = Amount::parse_down(text.as_bytes()).filter(|ratio| *ratio <= Amount::ONE);
        ratio.map(|ratio| NearLimitRatio(ratio.millionths())).ok_or_else(|| "must be a number from 0 to 1".to_owned())
    }
}

impl NearLimitRatio {
    /// Returns the highest usage in units that does not count as near the limit.
    fn threshold(self, limit: u64) -> u64 {
        u64::try_from(u128::from(limit) * u128::from(self.0) / 1_000_000).unwrap_or(limit)
    }

    /// Returns `true` if the usage has reached the ratio: at most the share of the limit above the ratio remains.
    #[must_use]
    pub fn is_near(self, limit: i64, remaining: i64) -> bool {
        let share_above = 1_000_000_u64.saturating_sub(self.0);
        i128::from(remaining) * 1_000_000 <= i128::from(limit) * i128::from(share_above)
    }
}

/// Outcome of a part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The part passes.
    Allowed,
    /// The part is denied.
    Denied,
    /// The part is denied by a remembered denial.
    DeniedLocal,
    /// The part would be denied without shadow mode.
    Shadow,
    /// No limit applies.
    Unmatched,
    /// The server did not reply.
    Outage,
    /// The server replied with an error.
    Error,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::DeniedLocal => "denied_local",
            Outcome::Shadow => "shadow",
            Outcome::Unmatched => "unmatched",
            Outcome::Outage => "outage",
            Outcome::Error => "error",
        }
    }
}

/// Number of units of a decision, and their outcome label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    pub outcome: &'static str,
    pub count: u64,
}

impl Units {
    /// Returns the units of an operation, rounded up, with the label for the `outcome` of its decision.
    #[must_use]
    pub fn new(operation: &Operation, outcome: Outcome) -> Units {
        let (outcome, amount) = match operation {
            Operation::Take(amount) => (outcome.label(), *amount),
            Operation::Force(amount) | Operation::Settle(amount) => ("settled", *amount),
            Operation::GiveBack(amount) => ("returned", *amount),
            Operation::Release => ("returned", Amount::ZERO),
        };
        Units { outcome, count: amount.millionths().div_ceil(1_000_000) }
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    Allowed,
    Denied,
    /// The server did not reply to a call.
    Outage,
    /// The server replied to a call with an error.
    Error,
}

impl RequestOutcome {
    const ALL: [RequestOutcome; 4] =
        [RequestOutcome::Allowed, RequestOutcome::Denied, RequestOutcome::Outage, RequestOutcome::Error];

    /// Returns the outcome as a label.
    pub fn label(self) -> &'static str {
        match self {
            RequestOutcome::Allowed => "allowed",
            RequestOutcome::Denied => "denied",
            RequestOutcome::Outage => "outage",
            RequestOutcome::Error => "error",
        }
    }
}

/// Installs the recorder of the process, with metrics for its outage mode and its shadow mode.
///
/// # Errors
/// If a recorder is already installed.
pub fn install(format: MetricsFormat, outage_mode: OutageMode, shadow: bool) -> Result<PrometheusHandle, String> {
    let histograms = Matcher::Suffix("_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(histograms, &BUCKETS);
    let handle = builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| error.to_string())?;
    describe();
    process::describe();
    if format == MetricsFormat::Envoyproxy {
        envoyproxy::enable();
    }
    enforcement::register(outage_mode, shadow);
    for result in ["applied", "refused"] {
        counter!("ratelimit_gateway_reloads_total", "result" => result).absolute(0);
    }
    counter!("ratelimit_gateway_late_total").absolute(0);
    counter!("ratelimit_gateway_unsettled_total").absolute(0);
    Ok(handle)
}

/// Sets the HELP line of each metric.
fn describe() {
    let counters = [
        (DECISIONS_TOTAL, "Decisions, one for each descriptor of a request."),
        (
            UNITS_TOTAL,
            "Units that requests asked for, by the outcome of their decision; settled: what calls turned out to cost; returned: given back.",
        ),
        ("ratelimit_gateway_near_total", "Allowed decisions near their limit."),
        ("ratelimit_gateway_late_total", "Replies of the server behind the answer to the request."),
        ("ratelimit_gateway_unsettled_total", "Charges of denied requests that could not be undone."),
        ("ratelimit_gateway_reloads_total", "Changed files, by their result."),
    ];
    for (name, help) in counters {
        describe_counter!(name, help);
    }
    describe_histogram!(REQUEST_SECONDS, "Seconds until a request was answered, by its outcome.");
    describe_histogram!(
        "ratelimit_gateway_server_seconds",
        "Seconds until the server replied to the calls of a request."
    );
}

/// Label of all values beyond the maximum number or length.
const OTHER: &str = "other";

/// Bounded set of the values of a label. Further values are labelled [`OTHER`].
struct Labels {
    values: RwLock<HashSet<String>>,
    max_values: usize,
    max_bytes: usize,
}

impl Labels {
    fn new(max_values: usize) -> Labels {
        Labels { values: RwLock::default(), max_values, max_bytes: MAX_LABEL_BYTES }
    }

    /// Returns the label of a value: the value itself if it is in the set, otherwise [`OTHER`]. If `may_add` is `true`,
    /// a new value is added to the set.
    fn label<'a>(&self, value: &'a str, may_add: bool) -> &'a str {
        if self.values.read().is_ok_and(|values| values.contains(value)) {
            return value;
        }
        if may_add
            && value.len() <= self.max_bytes
            && let Ok(mut values) = self.values.write()
            && values.len() < self.max_values
        {
            values.insert(value.to_owned());
            return value;
        }
        OTHER
    }
}

const DECISIONS_TOTAL: &str = "ratelimit_gateway_decisions_total";
const UNITS_TOTAL: &str = "ratelimit_gateway_units_total";
const REQUEST_SECONDS: &str = "ratelimit_gateway_request_seconds";

/// Counters of a policy in a domain, by outcome label.
#[derive(Default)]
struct PolicyCounters {
    decisions: HashMap<Outcome, Counter>,
    units: HashMap<&'static str, Counter>,
}

/// Counters by domain and policy, which are found faster here than in the exporter's registry.
type Decisions = HashMap<String, HashMap<String, PolicyCounters>>;

/// Labels of domains.
static DOMAINS: LazyLock<Labels> = LazyLock::new(|| Labels::new(MAX_LABELS));
/// Labels of policies and rules.
static POLICIES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MAX_LABELS));

/// Returns the label of a domain. Its name becomes a label if `is_known`: a policy or a file applied in it.
#[must_use]
pub fn domain_label(domain: &str, is_known: bool) -> &str {
    DOMAINS.label(domain, is_known)
}

/// Counts a decision and its units.
///
/// `policy` is the name of the policy or rule that applied. A domain becomes a label only if `is_known_domain`: a
/// policy or a file applied in it, so that callers cannot add labels. `values` are the values of a descriptor that its
/// rule reports in metrics. The number of labels and of their combinations is bounded.
pub fn count_decision(
    domain: &str,
    is_known_domain: bool,
    policy: Option<&str>,
    values: Option<&str>,
    outcome: Outcome,
    units: Option<Units>,
) {
    static VALUES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MAX_LABELS));
    static SERIES: LazyLock<Labels> = LazyLock::new(|| Labels { max_bytes: usize::MAX, ..Labels::new(MAX_SERIES) });
    static DECISIONS: LazyLock<RwLock<Decisions>> = LazyLock::new(RwLock::default);
    let domain = domain_label(domain, is_known_domain);
    let policy = policy.map_or("", |policy| POLICIES.label(policy, true));
    let units = units.filter(|units| units.count > 0);
    if let Some(values) = values {
        let values = VALUES.label(values, true);
        let is_known = SERIES.label(&format!("{domain}\0{policy}\0{values}"), true) != OTHER;
        let labels = [domain, policy, values].map(|label| if is_known { label } else { OTHER });
        let count = |name, outcome: &'static str, count| {
            let [domain, policy, values] = labels.map(str::to_owned);
            counter!(name, "domain" => domain, "policy" => policy, "outcome" => outcome, "values" => values)
                .increment(count);
        };
        count(DECISIONS_TOTAL, outcome.label(), 1);
        if let Some(units) = units {
            count(UNITS_TOTAL, units.outcome, units.count);
        }
        return;
    }
    let counters_by_domain = DECISIONS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(counters) = counters_by_domain.get(domain).and_then(|policies| policies.get(policy))
        && let Some(decisions) = counters.decisions.get(&outcome)
        && let Ok(unit_counter) = units.map(|units| counters.units.get(units.outcome).ok_or(())).transpose()
    {
        decisions.increment(1);
        if let (Some(counter), Some(units)) = (unit_counter, units) {
            counter.increment(units.count);
        }
        return;
    }
    drop(counters_by_domain);
    let is_known = SERIES.label(&format!("{domain}\0{policy}"), true) != OTHER;
    let [domain, policy] = [domain, policy].map(|label| if is_known { label } else { OTHER });
    let mut counters_by_domain = DECISIONS.write().unwrap_or_else(PoisonError::into_inner);
    let counters = counters_by_domain.entry(domain.to_owned()).or_default().entry(policy.to_owned()).or_default();
    let counter = |name, outcome: &'static str| counter!(name, "domain" => domain.to_owned(), "policy" => policy.to_owned(), "outcome" => outcome);
    counters.decisions.entry(outcome).or_insert_with(|| counter(DECISIONS_TOTAL, outcome.label())).increment(1);
    if let Some(units) = units {
        let unit_counter = counters.units.entry(units.outcome).or_insert_with(|| counter(UNITS_TOTAL, units.outcome));
        unit_counter.increment(units.count);
    }
}

/// Counts an allowed decision near its limit.
pub fn count_near_limit(policy: &str) {
    counter!("ratelimit_gateway_near_total", "policy" => POLICIES.label(policy, true).to_owned()).increment(1);
}

/// Records the duration of a request.
pub fn record_request_seconds(duration: Duration, outcome: RequestOutcome) {
    static HISTOGRAMS: LazyLock<HashMap<RequestOutcome, Histogram>> = LazyLock::new(|| {
        let histogram = |outcome: RequestOutcome| histogram!(REQUEST_SECONDS, "outcome" => outcome.label());
        RequestOutcome::ALL.into_iter().map(|outcome| (outcome, histogram(outcome))).collect()
    });
    if let Some(histogram) = HISTOGRAMS.get(&outcome) {
        histogram.record(duration.as_secs_f64());
    }
}

/// Records the time until the server replied to the concurrent calls of a request.
pub fn record_server_seconds(duration: Duration) {
    static HISTOGRAM: LazyLock<Histogram> = LazyLock::new(|| histogram!("ratelimit_gateway_server_seconds"));
    HISTOGRAM.record(duration.as_secs_f64());
}

/// Counts replies that arrived after the answer to the request.
pub fn count_late_replies(count: usize) {
    counter!("ratelimit_gateway_late_total").increment(u64::try_from(count).unwrap_or_default());
}

/// Counts charges of denied requests that could not be rolled back.
pub fn count_unsettled(count: usize) {
    counter!("ratelimit_gateway_unsettled_total").increment(u64::try_from(count).unwrap_or_default());
}

/// Counts a reload of the configuration, which was applied or rejected.
pub fn count_configuration_reload(is_applied: bool) {
    count_reload(is_applied);
    enforcement::set_refused(!is_applied);
    envoyproxy::count_configuration(is_applied);
}

/// Counts a reload of files, which were applied or rejected.
pub fn count_reload(is_applied: bool) {
    let result = if is_applied { "applied" } else { "refused" };
    counter!("ratelimit_gateway_reloads_total", "result" => result).increment(1);
}

#[cfg(test)]
mod tests {
    use super::{Labels, MAX_LABEL_BYTES, MAX_LABELS, MAX_SERIES, Outcome, Units, count_decision, count_near_limit};
    use crate::call::Operation;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use ratelimit_core::Amount;

    #[test]
    fn value_becomes_a_label_only_if_it_may_be_added() {
        let labels = Labels::new(MAX_LABELS);
        assert_eq!([labels.label("a", false), labels.label("a", true), labels.label("a", false)], ["other", "a", "a"]);
        let long = "x".repeat(MAX_LABEL_BYTES + 1);
        assert_eq!([labels.label(&long, true), labels.label(&long[1..], true)], ["other", &long[1..]]);
        (0..2 * MAX_LABELS).for_each(|number| drop(labels.label(&number.to_string(), true).to_owned()));
        assert_eq!([labels.label("a", true), labels.label("0", false), labels.label("new", true)], ["a", "0", "other"]);
    }

    #[test]
    fn number_of_labels_and_combinations_is_bounded() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let units = Some(Units::new(&Operation::Take(Amount::ONE), Outcome::Allowed));
        metrics::with_local_recorder(&recorder, || {
            for number in 0..5 * MAX_LABELS {
                let policy = format!("p{number}");
                count_near_limit(&policy);
                for domain in ["a", "b", "c"] {
                    count_decision(domain, true, Some(&policy), None, Outcome::Allowed, units);
                    count_decision(domain, true, Some(&policy), Some("v"), Outcome::Allowed, units);
                }
            }
        });
        let rendered = recorder.handle().render();
        let count_series = |name: &str| rendered.lines().filter(|line| line.starts_with(name)).count();
        // Other tests in this process may have added labels.
        let near_series = count_series("ratelimit_gateway_near_total{");
        assert!((MAX_LABELS / 2..=MAX_LABELS + 1).contains(&near_series), "{near_series}");
        let decision_series = count_series("ratelimit_gateway_decisions_total{");
        assert!((MAX_SERIES / 2..=MAX_SERIES + 2).contains(&decision_series), "{decision_series}");
        assert_eq!(count_series("ratelimit_gateway_units_total{"), decision_series);
        assert!(rendered.contains(r#"policy="other""#));
    }
}
