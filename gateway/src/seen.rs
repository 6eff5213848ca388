//! What is counted, for Prometheus.

use metrics::{counter, gauge, histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::collections::HashSet;
use std::sync::{OnceLock, RwLock};
use std::time::Duration;

/// Buckets of the times, in seconds: from a round trip on one machine to a timeout.
const SECONDS: [f64; 13] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0];
/// The most values of labels that come with requests.
const MOST: usize = 1000;

/// What became of what one descriptor asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    outage(false);
    for result in ["applied", "refused"] {
        counter!("ratelimit_gateway_reloads_total", "result" => result).absolute(0);
    }
    counter!("ratelimit_gateway_late_total").absolute(0);
    counter!("ratelimit_gateway_unsettled_total").absolute(0);
    Ok(handle)
}

/// The labels that came with requests, bounded: those that come later are `other`.
fn bounded(known: &'static OnceLock<RwLock<HashSet<String>>>, value: &str) -> String {
    let known = known.get_or_init(RwLock::default);
    if known.read().is_ok_and(|known| known.contains(value)) {
        return value.to_owned();
    }
    if let Ok(mut known) = known.write()
        && known.len() < MOST
    {
        known.insert(value.to_owned());
        return value.to_owned();
    }
    "other".to_owned()
}

/// A decision. `policy` is what ruled, if anything did: a domain has a label of its own only then, so that nothing that
/// callers send makes one. `values` is what a rule of a file asks to be told apart.
pub fn decision(domain: &str, policy: Option<&str>, values: Option<&str>, outcome: Outcome) {
    static DOMAINS: OnceLock<RwLock<HashSet<String>>> = OnceLock::new();
    static VALUES: OnceLock<RwLock<HashSet<String>>> = OnceLock::new();
    let domain = policy.map_or_else(|| "other".to_owned(), |_| bounded(&DOMAINS, domain));
    let policy = policy.unwrap_or_default().to_owned();
    let outcome = outcome.label();
    let name = "ratelimit_gateway_decisions_total";
    if let Some(values) = values {
        let values = bounded(&VALUES, values);
        counter!(name, "domain" => domain, "policy" => policy, "outcome" => outcome, "values" => values).increment(1);
    } else {
        counter!(name, "domain" => domain, "policy" => policy, "outcome" => outcome).increment(1);
    }
}

/// A decision that passed with at most a fifth of its limit left.
pub fn near(policy: &str) {
    counter!("ratelimit_gateway_near_total", "policy" => policy.to_owned()).increment(1);
}

/// How long a request took.
pub fn request_seconds(took: Duration) {
    histogram!("ratelimit_gateway_request_seconds").record(took.as_secs_f64());
}

/// How long the server took for what a request asked at once.
pub fn server_seconds(took: Duration) {
    histogram!("ratelimit_gateway_server_seconds").record(took.as_secs_f64());
}

/// Whether the server is away.
pub fn outage(is: bool) {
    gauge!("ratelimit_gateway_outage").set(if is { 1.0 } else { 0.0 });
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
