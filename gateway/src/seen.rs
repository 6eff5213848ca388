//! What is counted, for Prometheus.

use metrics::{Counter, Histogram, counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
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

/// Begins to count.
///
/// # Errors
/// If something counts already.
pub fn install() -> Result<PrometheusHandle, String> {
    let of_seconds = Matcher::Suffix("_seconds".to_owned());
    let builder = PrometheusBuilder::new().set_buckets_for_metric(of_seconds, &SECONDS);
    let handle = builder.and_then(PrometheusBuilder::install_recorder).map_err(|error| error.to_string())?;
    outage(0);
    for result in ["applied", "refused"] {
        counter!("ratelimit_gateway_reloads_total", "result" => result).absolute(0);
    }
    counter!("ratelimit_gateway_late_total").absolute(0);
    counter!("ratelimit_gateway_unsettled_total").absolute(0);
    Ok(handle)
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

/// The counters of decisions by domain and policy, one for each outcome: to look one up among all costs more.
type Decisions = HashMap<String, HashMap<String, HashMap<Outcome, Counter>>>;

/// Labels of the policies, by what they are called.
static POLICIES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));

/// Counts a decision. `policy` is what ruled, if anything did. A domain has a label of its own once a policy or a file has
/// ruled in it, which `ruled` says: nothing that callers send makes one. `values` is what a rule of a file asks to be
/// told apart. Each label is bounded, and so are their combinations.
pub fn decision(domain: &str, ruled: bool, policy: Option<&str>, values: Option<&str>, outcome: Outcome) {
    static DOMAINS: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));
    static VALUES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST));
    static SERIES: LazyLock<Labels> = LazyLock::new(|| Labels::new(MOST_SERIES));
    static DECISIONS: LazyLock<RwLock<Decisions>> = LazyLock::new(RwLock::default);
    let (domain, policy) = (DOMAINS.of(domain, ruled), policy.map_or("", |policy| POLICIES.of(policy, true)));
    let name = "ratelimit_gateway_decisions_total";
    if let Some(values) = values {
        let values = VALUES.of(values, true);
        let is_known = SERIES.of(&format!("{domain}\0{policy}\0{values}"), true) != OTHER;
        let [domain, policy, values] =
            [domain, policy, values].map(|one| if is_known { one } else { OTHER }.to_owned());
        let outcome = outcome.label();
        counter!(name, "domain" => domain, "policy" => policy, "outcome" => outcome, "values" => values).increment(1);
        return;
    }
    let known = DECISIONS.read().unwrap_or_else(PoisonError::into_inner);
    if let Some(counter) = known.get(domain).and_then(|of| of.get(policy)).and_then(|of| of.get(&outcome)) {
        counter.increment(1);
        return;
    }
    drop(known);
    let is_known = SERIES.of(&format!("{domain}\0{policy}"), true) != OTHER;
    let [domain, policy] = [domain, policy].map(|one| if is_known { one } else { OTHER });
    let mut known = DECISIONS.write().unwrap_or_else(PoisonError::into_inner);
    let of_it = known.entry(domain.to_owned()).or_default().entry(policy.to_owned()).or_default();
    let (domain, policy) = (domain.to_owned(), policy.to_owned());
    let counter = || counter!(name, "domain" => domain, "policy" => policy, "outcome" => outcome.label());
    of_it.entry(outcome).or_insert_with(counter).increment(1);
}

/// Counts a decision that passed with at most a fifth of its limit left.
pub fn near(policy: &str) {
    counter!("ratelimit_gateway_near_total", "policy" => POLICIES.of(policy, true).to_owned()).increment(1);
}

/// How long a request took.
pub fn request_seconds(took: Duration) {
    static SEEN: LazyLock<Histogram> = LazyLock::new(|| histogram!("ratelimit_gateway_request_seconds"));
    SEEN.record(took.as_secs_f64());
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
    use super::{Labels, MOST, MOST_SERIES, Outcome, decision, near};
    use metrics_exporter_prometheus::PrometheusBuilder;

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
        metrics::with_local_recorder(&recorder, || {
            for number in 0..5 * MOST {
                let policy = format!("p{number}");
                near(&policy);
                for domain in ["a", "b", "c"] {
                    decision(domain, true, Some(&policy), None, Outcome::Allowed);
                    decision(domain, true, Some(&policy), Some("v"), Outcome::Allowed);
                }
            }
        });
        let rendered = recorder.handle().render();
        let count = |name: &str| rendered.lines().filter(|line| line.starts_with(name)).count();
        // Other tests of this process may have made labels, too.
        let (near, decisions) = (count("ratelimit_gateway_near_total{"), count("ratelimit_gateway_decisions_total{"));
        assert!((MOST / 2..=MOST + 1).contains(&near), "{near}");
        assert!((MOST_SERIES / 2..=MOST_SERIES + 2).contains(&decisions), "{decisions}");
        assert!(rendered.contains(r#"policy="other""#));
    }
}
