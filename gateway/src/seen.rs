//! What is counted, for Prometheus.

use crate::ask::Verb;
use metrics::{Counter, Histogram, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use ratelimit_core::Amount;
use std::collections::{HashMap, HashSet};
use std::sync::{LazyLock, PoisonError, RwLock};
use std::time::Duration;

/// Buckets of the times, in seconds: from a round trip on one machine to a timeout.
const SECONDS: [f64; 13] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0];
/// Maximum number of values of a label.
const MOST: usize = 1000;
/// Maximum number of combinations of a domain, a policy and values.
const MOST_SERIES: usize = 2000;

/// What became of what one descriptor asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It passes.
    Allowed,
    /// It does not.
    Denied,
    /// It would not, but nobody is held to it.
    Shadow,
    /// Nothing limits it.
    Unmatched,
    /// The server was away.
    Outage,
    /// The server refused to decide.
    Error,
}

impl Outcome {
    fn label(self) -> &'static str {
        match self {
            Outcome::Allowed => "allowed",
            Outcome::Denied => "denied",
            Outcome::Shadow => "shadow",
            Outcome::Unmatched => "unmatched",
            Outcome::Outage => "outage",
            Outcome::Error => "error",
        }
    }
}

/// Units of a decision, and the outcome that they are counted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units {
    /// Outcome label.
    pub outcome: &'static str,
    /// Number of units.
    pub count: u64,
}

impl Units {
    /// Returns the units that a verb asks for; `outcome` is that of its decision. Parts of a unit are rounded up.
    #[must_use]
    pub fn of(verb: &Verb, outcome: Outcome) -> Units {
        let (outcome, amount) = match verb {
            Verb::Take(amount) => (outcome.label(), *amount),
            Verb::Charge(amount) | Verb::Settle(amount) => ("settled", *amount),
            Verb::GiveBack(amount) => ("returned", *amount),
            Verb::Release => ("returned", Amount::ZERO),
        };
        Units { outcome, count: amount.millionths().div_ceil(1_000_000) }
    }
}

/// Outcome of a request, for the time that it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RequestOutcome {
    /// The request passes.
    Allowed,
    /// The request is denied.
    Denied,
    /// The server was away.
    Outage,
    /// The server refused to decide.
    Error,
}

impl RequestOutcome {
    const ALL: [RequestOutcome; 4] =
        [RequestOutcome::Allowed, RequestOutcome::Denied, RequestOutcome::Outage, RequestOutcome::Error];

    fn label(self) -> &'static str {
        match self {
            RequestOutcome::Allowed => "allowed",
            RequestOutcome::Denied => "denied",
            RequestOutcome::Outage => "outage",
            RequestOutcome::Error => "error",
        }
    }
}

/// Begins to count.
///
/// # Errors
/// If something counts already.
pub fn install() -> Result<PrometheusHandle, String> {
    let of_seconds = Matcher::Suffix("_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(of_seconds, &SECONDS);
    let handle = builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| error.to_string())?;
    describe();
    outage(0);
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
        ("ratelimit_gateway_near_total", "Allowed decisions with at most a fifth of their limit left."),
        ("ratelimit_gateway_late_total", "Replies of the server behind the answer to the request."),
        ("ratelimit_gateway_unsettled_total", "Charges of denied requests that could not be undone."),
        ("ratelimit_gateway_reloads_total", "Changed files, by their result."),
    ];
    for (name, help) in counters {
        describe_counter!(name, help);
    }
    describe_gauge!("ratelimit_gateway_outage", "Servers that are away.");
    describe_histogram!(REQUEST_SECONDS, "Seconds until a request was answered, by its outcome.");
    describe_histogram!(
        "ratelimit_gateway_server_seconds",
        "Seconds until the server replied to the calls of a request."
    );
}

/// Value of labels that stands for all values above the bound.
const OTHER: &str = "other";

/// Values of a label, up to a bound: later ones are [`OTHER`].
struct Labels {
    known: RwLock<HashSet<String>>,
    most: usize,
}

impl Labels {
    fn new(most: usize) -> Labels {
        Labels { known: RwLock::default(), most }
    }

    /// Returns the label of a value; `new` says whether an unknown one may become a label.
    fn of<'a>(&self, value: &'a str, new: bool) -> &'a str {
        if self.known.read().is_ok_and(|known| known.contains(value)) {
            return value;
        }
        if new
            && let Ok(mut known) = self.known.write()
            && known.len() < self.most
        {
            known.insert(value.to_owned());
            return value;
        }
        OTHER
    }
}

const DECISIONS_TOTAL: &str = "ratelimit_gateway_decisions_total";
const UNITS_TOTAL: &str = "ratelimit_gateway_units_total";
const REQUEST_SECONDS: &str = "ratelimit_gateway_request_seconds";

/// Counters of a policy in a domain, by outcome.
#[derive(Default)]
struct PolicyCounters {
    decisions: HashMap<Outcome, Counter>,
    units: HashMap<&'static str, Counter>,
}

/// Counters by domain and policy: a look-up among all of the exporter costs more.
type Decisions = HashMap<String, HashMap<String, PolicyCounters>>;

/// Labels of the policies, by what they are called.
static POLICIES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));

/// Counts a decision. `policy` is what ruled, if anything did. A domain has a label of its own once a policy or a file has
/// ruled in it, which `ruled` says: nothing that callers send makes one. `values` is what a rule of a file asks to be
/// told apart. Each label is bounded, and so are their combinations.
pub fn decision(
    domain: &str,
    ruled: bool,
    policy: Option<&str>,
    values: Option<&str>,
    outcome: Outcome,
    units: Option<Units>,
) {
    static DOMAINS: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));
    static VALUES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));
    static SERIES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST_SERIES));
    static DECISIONS: LazyLock<RwLock<Decisions>> = LazyLock::new(RwLock::default);
    let (domain, policy) = (DOMAINS.of(domain, ruled), policy.map_or("", |policy| POLICIES.of(policy, true)));
    let units = units.filter(|units| units.count > 0);
    if let Some(values) = values {
        let values = VALUES.of(values, true);
        let is_known = SERIES.of(&format!("{domain}\0{policy}\0{values}"), true) != OTHER;
        let labels = [domain, policy, values].map(|one| if is_known { one } else { OTHER });
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
    let known = DECISIONS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(counters) = known.get(domain).and_then(|of| of.get(policy))
        && let Some(decisions) = counters.decisions.get(&outcome)
        && let Ok(of_units) = units.map(|units| counters.units.get(units.outcome).ok_or(())).transpose()
    {
        decisions.increment(1);
        if let (Some(counter), Some(units)) = (of_units, units) {
            counter.increment(units.count);
        }
        return;
    }
    drop(known);
    let is_known = SERIES.of(&format!("{domain}\0{policy}"), true) != OTHER;
    let [domain, policy] = [domain, policy].map(|one| if is_known { one } else { OTHER });
    let mut known = DECISIONS.write().unwrap_or_else(PoisonError::into_inner);
    let counters = known.entry(domain.to_owned()).or_default().entry(policy.to_owned()).or_default();
    let counter = |name, outcome: &'static str| counter!(name, "domain" => domain.to_owned(), "policy" => policy.to_owned(), "outcome" => outcome);
    counters.decisions.entry(outcome).or_insert_with(|| counter(DECISIONS_TOTAL, outcome.label())).increment(1);
    if let Some(units) = units {
        let of_units = counters.units.entry(units.outcome).or_insert_with(|| counter(UNITS_TOTAL, units.outcome));
        of_units.increment(units.count);
    }
}

/// Counts a decision that passed with at most a fifth of its limit left.
pub fn near(policy: &str) {
    counter!("ratelimit_gateway_near_total", "policy" => POLICIES.of(policy, true).to_owned()).increment(1);
}

/// Records the time that a request took.
pub fn request_seconds(took: Duration, outcome: RequestOutcome) {
    static SEEN: LazyLock<HashMap<RequestOutcome, Histogram>> = LazyLock::new(|| {
        let histogram = |outcome: RequestOutcome| histogram!(REQUEST_SECONDS, "outcome" => outcome.label());
        RequestOutcome::ALL.into_iter().map(|outcome| (outcome, histogram(outcome))).collect()
    });
    if let Some(histogram) = SEEN.get(&outcome) {
        histogram.record(took.as_secs_f64());
    }
}

/// How long the server took for what a request asked at once.
pub fn server_seconds(took: Duration) {
    static SEEN: LazyLock<Histogram> = LazyLock::new(|| histogram!("ratelimit_gateway_server_seconds"));
    SEEN.record(took.as_secs_f64());
}

/// Sets the number of servers that are away.
pub fn outage(servers: usize) {
    gauge!("ratelimit_gateway_outage").set(u32::try_from(servers).map_or(f64::from(u32::MAX), f64::from));
}

/// Replies that came when nobody waited for them any more.
pub fn late(count: usize) {
    counter!("ratelimit_gateway_late_total").increment(u64::try_from(count).unwrap_or_default());
}

/// A charge of a denied request that could not be undone.
pub fn unsettled() {
    counter!("ratelimit_gateway_unsettled_total").increment(1);
}

/// A file that changed.
pub fn reload(applied: bool) {
    let result = if applied { "applied" } else { "refused" };
    counter!("ratelimit_gateway_reloads_total", "result" => result).increment(1);
}

#[cfg(test)]
mod tests {
    use super::{Labels, MOST, MOST_SERIES, Outcome, Units, decision, near};
    use crate::ask::Verb;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use ratelimit_core::Amount;

    #[test]
    fn a_domain_is_a_label_once_something_has_ruled_in_it() {
        let labels = Labels::new(MOST);
        assert_eq!([labels.of("a", false), labels.of("a", true), labels.of("a", false)], ["other", "a", "a"]);
        (0..2 * MOST).for_each(|number| drop(labels.of(&number.to_string(), true).to_owned()));
        assert_eq!([labels.of("a", true), labels.of("0", false), labels.of("new", true)], ["a", "0", "other"]);
    }

    #[test]
    fn policies_and_combinations_of_labels_are_bounded() {
        let recorder = PrometheusBuilder::new().build_recorder();
        let units = Some(Units::of(&Verb::Take(Amount::ONE), Outcome::Allowed));
        metrics::with_local_recorder(&recorder, || {
            for number in 0..5 * MOST {
                let policy = format!("p{number}");
                near(&policy);
                for domain in ["a", "b", "c"] {
                    decision(domain, true, Some(&policy), None, Outcome::Allowed, units);
                    decision(domain, true, Some(&policy), Some("v"), Outcome::Allowed, units);
                }
            }
        });
        let rendered = recorder.handle().render();
        let count = |name: &str| rendered.lines().filter(|line| line.starts_with(name)).count();
        // Other tests of this process may have made labels, too.
        let (near, decisions) = (count("ratelimit_gateway_near_total{"), count("ratelimit_gateway_decisions_total{"));
        assert!((MOST / 2..=MOST + 1).contains(&near), "{near}");
        assert!((MOST_SERIES / 2..=MOST_SERIES + 2).contains(&decisions), "{decisions}");
        assert_eq!(count("ratelimit_gateway_units_total{"), decisions);
        assert!(rendered.contains(r#"policy="other""#));
    }
}
