//! Sample of a gateway's metrics, and the difference between two samples.

use super::latency::Latency;
use super::metrics_text;
use crate::web::info::per_second;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Prefix of the metrics of a gateway. With `--metrics-format envoyproxy`, there are also those of
/// envoyproxy/ratelimit.
const PREFIX: &str = "ratelimit_gateway_";
/// Outcomes of decisions.
const DECISIONS: [&str; 7] = ["allowed", "denied", "denied_local", "shadow", "unmatched", "outage", "error"];
/// Outcomes of requests.
const REQUESTS: [&str; 4] = ["allowed", "denied", "outage", "error"];
/// Maximum number of domains of a sample.
const MAX_DOMAINS: usize = 100;
/// Number of domains with decisions without a limit that the page shows.
const MAX_SHOWN_DOMAINS: usize = 5;

/// Metrics of a gateway at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewaySample {
    /// Number of servers that do not reply to the gateway.
    pub servers_away: u64,
    /// Start of the outage, in milliseconds since the Unix epoch.
    pub outage_start: Option<u64>,
    /// Value of `--on-outage`.
    pub outage_mode: String,
    /// `true` if the gateway denies no request.
    pub shadow: bool,
    /// `true` if the last limits of its files or its control plane were refused.
    pub refused: bool,
    /// `true` while the control plane is connected, or `None` without one.
    pub control_plane: Option<bool>,
    /// Reloads and pushes of limits that were refused since the gateway started.
    pub refused_reloads: u64,
    /// Counters since the gateway started.
    pub counters: Counters,
}

/// Counters of a gateway since its start, or between two samples.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Decisions by their outcome.
    pub decisions: BTreeMap<&'static str, u64>,
    /// All decisions of a domain, and those to which no limit applied.
    domains: BTreeMap<String, (u64, u64)>,
    /// Requests by their outcome, and their latencies.
    pub requests: BTreeMap<&'static str, Latency>,
    /// Latency of the server.
    server: Latency,
    /// Replies of the server that came after the gateway had answered the request.
    pub late: u64,
    /// Charges of denied requests that could not be undone.
    pub unsettled: u64,
}

impl GatewaySample {
    /// Parses the page of a gateway's metrics. Returns `None` if it is that of another program.
    #[must_use]
    pub fn parse(page: &str) -> Option<GatewaySample> {
        let (mut sample, mut has_outage) = (GatewaySample::default(), false);
        for series in metrics_text::series(page, PREFIX) {
            let is_on = || series.number() == Some(1.0);
            let count = || series.count().unwrap_or_default();
            let is_refused = || series.label("result").as_deref() == Some("refused");
            match series.name.strip_prefix(PREFIX).unwrap_or_default() {
                "outage" => (sample.servers_away, has_outage) = (count(), true),
                "outage_start_time_seconds" => sample.outage_start = series.number().and_then(milliseconds),
                "outage_mode" => sample.outage_mode = series.label("mode").unwrap_or_default().into_owned(),
                "shadow" => sample.shadow = is_on(),
                "configuration_refused" => sample.refused = is_on(),
                "xds_connected" => sample.control_plane = Some(is_on()),
                "reloads_total" | "xds_pushes_total" if is_refused() => {
                    sample.refused_reloads = sample.refused_reloads.saturating_add(count());
                }
                name => sample.counters.read(name, &series),
            }
        }
        (has_outage && !sample.outage_mode.is_empty()).then_some(sample)
    }
}

/// Returns seconds since the Unix epoch in milliseconds, or `None` for 0.
fn milliseconds(seconds: f64) -> Option<u64> {
    let since = Duration::try_from_secs_f64(seconds).ok().filter(|since| !since.is_zero())?;
    u64::try_from(since.as_millis()).ok()
}

impl Counters {
    fn read(&mut self, name: &str, series: &metrics_text::Series) {
        let count = series.count().unwrap_or_default();
        let one_of = |known: &[&'static str]| {
            let outcome = series.label("outcome")?;
            known.iter().copied().find(|known| *known == outcome)
        };
        match name {
            "late_total" => self.late = count,
            "unsettled_total" => self.unsettled = count,
            "decisions_total" => {
                let Some(outcome) = one_of(&DECISIONS) else { return };
                let sum = self.decisions.entry(outcome).or_default();
                *sum = sum.saturating_add(count);
                let domain = series.label("domain").unwrap_or_default();
                if self.domains.len() < MAX_DOMAINS || self.domains.contains_key(&*domain) {
                    let (all, unmatched) = self.domains.entry(domain.into_owned()).or_default();
                    *all = all.saturating_add(count);
                    *unmatched = unmatched.saturating_add(if outcome == "unmatched" { count } else { 0 });
                }
            }
            _ => {
                if let Some(kind) = name.strip_prefix("server_seconds") {
                    self.server.read(kind, series);
                } else if let Some(kind) = name.strip_prefix("request_seconds")
                    && let Some(outcome) = one_of(&REQUESTS)
                {
                    self.requests.entry(outcome).or_default().read(kind, series);
                }
            }
        }
    }

    /// Returns the number of all decisions and requests.
    fn total(&self) -> u64 {
        let requests = self.requests.values().map(|latency| latency.count);
        self.decisions.values().copied().chain(requests).fold(0, u64::saturating_add)
    }

    /// Returns `true` if these counters cannot follow earlier ones: the gateway has restarted.
    #[must_use]
    pub fn are_behind(&self, before: &Counters) -> bool {
        self.total() < before.total()
    }

    /// Returns the difference from earlier counters.
    #[must_use]
    pub fn since(&self, before: &Counters) -> Counters {
        let before_of = |outcome: &str| before.decisions.get(outcome).copied().unwrap_or_default();
        let decisions =
            self.decisions.iter().map(|(outcome, count)| (*outcome, count.saturating_sub(before_of(outcome))));
        let domains = self.domains.iter().map(|(domain, (all, unmatched))| {
            let (all_before, unmatched_before) = before.domains.get(domain).copied().unwrap_or_default();
            (domain.clone(), (all.saturating_sub(all_before), unmatched.saturating_sub(unmatched_before)))
        });
        let none = Latency::default();
        let requests = self.requests.iter();
        let requests =
            requests.map(|(outcome, latency)| (*outcome, latency.since(before.requests.get(outcome).unwrap_or(&none))));
        Counters {
            decisions: decisions.collect(),
            domains: domains.collect(),
            requests: requests.collect(),
            server: self.server.since(&before.server),
            late: self.late.saturating_sub(before.late),
            unsettled: self.unsettled.saturating_sub(before.unsettled),
        }
    }

    /// Returns the number of all requests, and of those that the server did not decide.
    #[must_use]
    pub fn undecided(&self) -> (u64, u64) {
        let count = |outcome: &&str| self.requests.get(outcome).map_or(0, |latency| latency.count);
        let all = REQUESTS.iter().map(count).fold(0, u64::saturating_add);
        (all, ["outage", "error"].iter().map(count).fold(0, u64::saturating_add))
    }

    /// Returns counters of some seconds as JSON: rates, and the domains with the most decisions without a limit.
    #[must_use]
    pub fn json(&self, seconds: f64) -> Value {
        let rate = |count: u64| per_second(count, seconds);
        let count_of = |outcome: &str| self.decisions.get(outcome).copied().unwrap_or_default();
        let decisions: Map<_, _> =
            DECISIONS.iter().map(|name| ((*name).to_owned(), json!(rate(count_of(name))))).collect();
        let requests: Map<_, _> =
            self.requests.iter().map(|(name, latency)| ((*name).to_owned(), latency.json(seconds))).collect();
        let mut domains: Vec<_> = self.domains.iter().filter(|(_, (_, unmatched))| *unmatched > 0).collect();
        domains.sort_by_key(|(_, (_, unmatched))| std::cmp::Reverse(*unmatched));
        let domains = domains.into_iter().take(MAX_SHOWN_DOMAINS).map(
            |(domain, (all, unmatched))| json!({ "domain": domain, "unmatched": rate(*unmatched), "all": rate(*all) }),
        );
        json!({
            "decisions": decisions, "requests": requests, "server": self.server.json(seconds),
            "unmatched": domains.collect::<Vec<_>>(), "late": self.late, "unsettled": self.unsettled,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{GatewaySample, MAX_DOMAINS};
    use serde_json::json;

    const PAGE: &str = r#"ratelimit_service_rate_limit_total_hits{domain="api"} 9
ratelimit_gateway_outage 1
ratelimit_gateway_outage_start_time_seconds 1700000000.25
ratelimit_gateway_outage_mode{mode="local=0.25"} 1
ratelimit_gateway_shadow 1
ratelimit_gateway_configuration_refused 1
ratelimit_gateway_xds_connected 0
ratelimit_gateway_reloads_total{result="applied"} 7
ratelimit_gateway_reloads_total{result="refused"} 2
ratelimit_gateway_xds_pushes_total{result="refused"} 3
ratelimit_gateway_late_total 4
ratelimit_gateway_unsettled_total 5
ratelimit_gateway_decisions_total{domain="api",policy="a",outcome="denied"} 10
ratelimit_gateway_decisions_total{domain="api",policy="b",outcome="denied"} 20
ratelimit_gateway_decisions_total{domain="api",policy="",outcome="unmatched"} 10
ratelimit_gateway_decisions_total{domain="api",policy="",outcome="new"} 10
ratelimit_gateway_request_seconds_bucket{outcome="denied",le="0.001"} 30
ratelimit_gateway_request_seconds_bucket{outcome="denied",le="+Inf"} 30
ratelimit_gateway_request_seconds_count{outcome="denied"} 30
ratelimit_gateway_request_seconds_count{outcome="error"} 10
"#;

    #[test]
    fn page_of_a_gateway_is_parsed() {
        let sample = GatewaySample::parse(PAGE).expect("a gateway");
        assert_eq!((sample.servers_away, sample.outage_start), (1, Some(1_700_000_000_250)));
        assert_eq!((sample.outage_mode.as_str(), sample.shadow, sample.refused), ("local=0.25", true, true));
        assert_eq!((sample.control_plane, sample.refused_reloads), (Some(false), 5));
        assert_eq!((sample.counters.late, sample.counters.unsettled), (4, 5));
        assert_eq!(sample.counters.undecided(), (40, 10));
        let found = sample.counters.json(10.0);
        assert_eq!((&found["decisions"]["denied"], &found["decisions"]["allowed"]), (&json!(3.0), &json!(0.0)));
        assert_eq!(found["unmatched"], json!([{ "domain": "api", "unmatched": 1.0, "all": 4.0 }]));
        let denied = json!({ "rate": 3.0, "p50_ms": 0.5, "p99_ms": 0.99, "max_ms": 1.0 });
        assert_eq!(found["requests"]["denied"], denied);
    }

    #[test]
    fn page_of_another_program_is_rejected() {
        for page in ["", "ratelimit_gateway_outage 0\n", "go_goroutines 7\n", "<html></html>"] {
            assert_eq!(GatewaySample::parse(page), None, "{page}");
        }
    }

    #[test]
    fn difference_of_samples_has_only_later_counts() {
        let parse = |page: &str| GatewaySample::parse(page).expect("a gateway").counters;
        let (before, after) =
            (parse(PAGE), parse(&PAGE.replace("} 10", "} 25").replace("late_total 4", "late_total 6")));
        let later = after.since(&before);
        assert_eq!((later.decisions["denied"], later.decisions["unmatched"], later.late), (15, 15, 2));
        assert_eq!(later.undecided(), (15, 15));
        assert!(before.are_behind(&after) && !after.are_behind(&before) && !before.are_behind(&before));
    }

    #[test]
    fn number_of_domains_is_bounded() {
        let lines = (0..2 * MAX_DOMAINS)
            .map(|domain| format!("ratelimit_gateway_decisions_total{{domain=\"{domain}\",outcome=\"allowed\"}} 1\n"));
        let page: String = [PAGE.to_owned()].into_iter().chain(lines).collect();
        let counters = GatewaySample::parse(&page).expect("a gateway").counters;
        assert_eq!((counters.domains.len(), counters.decisions["allowed"]), (MAX_DOMAINS, 200));
    }
}
