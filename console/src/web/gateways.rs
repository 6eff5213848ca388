//! Gateways of `--gateway`. The console reads the metrics of each once a second, for all clients of the page together.

mod condition;
mod latency;
mod metrics_text;
mod sample;

use super::Console;
use super::clock::now_ms;
use super::http_client::{HttpLimits, HttpTarget, NamedTarget};
use super::problem::Problem;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use condition::Condition;
use futures_util::future::join_all;
use sample::{Counters, GatewaySample};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

/// Interval between two reads of the metrics. A gateway renders them at most once a second.
const READ_INTERVAL: Duration = Duration::from_secs(1);
/// Bounds of a read. The number of series of a gateway is bounded, but their labels may be long.
const LIMITS: HttpLimits = HttpLimits { timeout: Duration::from_secs(2), body_bytes: 16 << 20 };
/// Path of the metrics if the URL has none.
const METRICS_PATH: &str = "/metrics";
/// Number of samples from which the rates and latencies are computed: those of a minute.
const MAX_SAMPLES: usize = 61;
/// Number of the latest samples that tell whether requests are decided at present.
const RECENT_SAMPLES: usize = 6;

/// Returns the routes of the API.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/gateways", get(list))
}

async fn list(State(console): State<Arc<Console>>) -> Json<Value> {
    Json(console.gateways.json().await)
}

/// Gateways in the order of the command line.
#[derive(Default)]
pub struct Gateways {
    list: Vec<Gateway>,
}

/// Gateway whose metrics are read.
struct Gateway {
    /// Host and port, and the path of the metrics unless it is [`METRICS_PATH`].
    name: String,
    target: HttpTarget,
    /// Path that is appended to the URL: empty if the URL has a path.
    path: &'static str,
    history: Mutex<GatewayHistory>,
    /// Number of reads since the start.
    reads: watch::Sender<u64>,
}

/// Samples of a gateway.
#[derive(Default)]
struct GatewayHistory {
    /// Samples of the last minute, without those before the last failure or restart of the gateway.
    samples: VecDeque<(Instant, GatewaySample)>,
    /// Time since which each read has failed, in milliseconds since the Unix epoch, and the reason of the last failure.
    failure: Option<(u64, String)>,
}

impl Gateways {
    /// Creates the gateways of `--gateway` and `--gateway-ca`. [`Gateways::run`] reads their metrics.
    ///
    /// # Errors
    /// If a URL or the file is malformed, or if a gateway is named twice.
    pub fn new(urls: &[String], authority: Option<&Path>) -> Result<Gateways, String> {
        let mut list: Vec<Gateway> = vec![];
        for url in urls {
            let gateway = Gateway::new(url, authority)?;
            if list.iter().any(|known| known.name == gateway.name) {
                return Err(format!("--gateway names {} twice", gateway.name));
            }
            list.push(gateway);
        }
        Ok(Gateways { list })
    }

    /// Reads the metrics of all gateways. Never completes if there are any.
    pub async fn run(&self) {
        join_all(self.list.iter().map(Gateway::run)).await;
    }

    /// Returns the problems of the gateways.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        let histories: Vec<_> = self.list.iter().map(Gateway::history).collect();
        let conditions: Vec<_> =
            self.list.iter().zip(&histories).map(|(gateway, history)| history.condition(&gateway.name)).collect();
        condition::problems(&conditions)
    }

    /// Returns the gateways as JSON, once each was read.
    async fn json(&self) -> Value {
        let are_read = join_all(self.list.iter().map(Gateway::first_read));
        // Each read ends within its own timeout.
        let _ = timeout(2 * LIMITS.timeout, are_read).await;
        json!({ "at": now_ms(), "gateways": self.list.iter().map(Gateway::json).collect::<Vec<_>>() })
    }
}

impl Gateway {
    fn new(url: &str, authority: Option<&Path>) -> Result<Gateway, String> {
        let (option, prefix) = ("--gateway", "RATELIMIT_CONSOLE_GATEWAY");
        let target = HttpTarget::new(NamedTarget { option, url, prefix, authority }, LIMITS)?;
        let url = target.url();
        let name = url.split_once("://").map_or(url.as_str(), |(_, name)| name);
        let path = if name.contains('/') { "" } else { METRICS_PATH };
        let name = name.strip_suffix(METRICS_PATH).unwrap_or(name).to_owned();
        Ok(Gateway { name, target, path, history: Mutex::default(), reads: watch::Sender::new(0) })
    }

    fn history(&self) -> std::sync::MutexGuard<'_, GatewayHistory> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self) {
        let mut clock = interval(READ_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            let sample = self.read().await;
            self.history().add(sample, now_ms());
            self.reads.send_modify(|reads| *reads = reads.saturating_add(1));
        }
    }

    async fn read(&self) -> Result<GatewaySample, String> {
        let response = self.target.get(self.path).await?;
        if response.status != StatusCode::OK {
            return Err(format!("its metrics are answered with {}", response.status));
        }
        let sample = std::str::from_utf8(&response.body).ok().and_then(GatewaySample::parse);
        sample.ok_or_else(|| "its metrics are not those of ratelimit-gateway".to_owned())
    }

    async fn first_read(&self) {
        let _ = self.reads.subscribe().wait_for(|reads| *reads > 0).await;
    }

    fn json(&self) -> Value {
        let history = self.history();
        let problems = history.condition(&self.name).problems();
        let seconds = history.seconds();
        let mut json = json!({
            "name": self.name,
            "url": self.target.url(),
            "reads": *self.reads.borrow(),
            "away": history.failure.as_ref().map(|(_, why)| why),
            "away_since": history.failure.as_ref().map(|(since, _)| since),
            "seconds": seconds,
            "problems": problems.iter().map(Problem::json).collect::<Vec<_>>(),
        });
        let sample = history.samples.back().map(|(_, sample)| {
            json!({
                "servers_away": sample.servers_away,
                "outage_start": sample.outage_start,
                "outage_mode": sample.outage_mode,
                "shadow": sample.shadow,
                "refused": sample.refused,
                "refused_reloads": sample.refused_reloads,
                "control_plane": sample.control_plane,
                "counts": history.difference(MAX_SAMPLES).json(seconds),
            })
        });
        if let (Some(Value::Object(sample)), Some(json)) = (sample, json.as_object_mut()) {
            json.extend(sample);
        }
        json
    }
}

impl GatewayHistory {
    /// Adds a sample, or a failure at `now`, in milliseconds since the Unix epoch.
    fn add(&mut self, sample: Result<GatewaySample, String>, now: u64) {
        let sample = match sample {
            Ok(sample) => sample,
            Err(why) => {
                let since = self.failure.as_ref().map_or(now, |(since, _)| *since);
                self.failure = Some((since, why));
                return;
            }
        };
        let has_restarted = |(_, last): &(_, GatewaySample)| sample.counters.are_behind(&last.counters);
        if self.failure.take().is_some() || self.samples.back().is_some_and(has_restarted) {
            self.samples.clear();
        }
        self.samples.push_back((Instant::now(), sample));
        if self.samples.len() > MAX_SAMPLES {
            self.samples.pop_front();
        }
    }

    /// Returns the time between the first sample and the last, in seconds.
    fn seconds(&self) -> f64 {
        match (self.samples.front(), self.samples.back()) {
            (Some((first, _)), Some((last, _))) => last.duration_since(*first).as_secs_f64(),
            _ => 0.0,
        }
    }

    /// Returns the counts between the first and the last of the latest `count` samples.
    fn difference(&self, count: usize) -> Counters {
        let first = self.samples.iter().rev().take(count).next_back();
        match (first, self.samples.back()) {
            (Some((_, first)), Some((_, last))) => last.counters.since(&first.counters),
            _ => Counters::default(),
        }
    }

    fn condition<'a>(&'a self, name: &'a str) -> Condition<'a> {
        let minute = self.difference(MAX_SAMPLES);
        Condition {
            name,
            away: self.failure.as_ref().map(|(since, why)| (*since, why.as_str())),
            sample: self.samples.back().map(|(_, sample)| sample),
            recent: self.difference(RECENT_SAMPLES).undecided(),
            minute: minute.undecided(),
            unsettled: minute.unsettled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Gateway, GatewayHistory, GatewaySample, Gateways, MAX_SAMPLES};
    use std::time::Duration;
    use tokio::time::advance;

    fn sample(late: u64, denied: u64) -> GatewaySample {
        let page = format!(
            "ratelimit_gateway_outage 0\nratelimit_gateway_outage_mode{{mode=\"open\"}} 1\n\
             ratelimit_gateway_late_total {late}\nratelimit_gateway_decisions_total{{outcome=\"denied\"}} {denied}\n"
        );
        GatewaySample::parse(&page).expect("a gateway")
    }

    #[test]
    fn gateway_is_named_by_its_host_and_an_unusual_path() {
        let name_and_path = |url| Gateway::new(url, None).map(|gateway| (gateway.name, gateway.path));
        let expected = |name: &str, path| Ok((name.to_owned(), path));
        assert_eq!(name_and_path("http://10.0.0.1:8080"), expected("10.0.0.1:8080", "/metrics"));
        assert_eq!(name_and_path("http://gateway:9090/metrics/"), expected("gateway:9090", ""));
        assert_eq!(name_and_path("http://gateway:9090/numbers"), expected("gateway:9090/numbers", ""));
        assert!(name_and_path("gateway:9090").is_err());
        let twice = ["http://a:1".to_owned(), "http://a:1/metrics".to_owned()];
        assert_eq!(Gateways::new(&twice, None).err().as_deref(), Some("--gateway names a:1 twice"));
    }

    #[tokio::test(start_paused = true)]
    async fn counts_are_those_of_the_last_minute() {
        let mut history = GatewayHistory::default();
        for second in 0..200 {
            history.add(Ok(sample(second, 10 * second)), 1000 * second);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!((history.samples.len(), history.seconds()), (MAX_SAMPLES, 60.0));
        let minute = history.difference(MAX_SAMPLES);
        assert_eq!((minute.late, minute.decisions["denied"]), (60, 600));
        assert_eq!(history.difference(6).late, 5);
    }

    #[test]
    fn counts_begin_anew_after_a_failure_and_a_restart() {
        let mut history = GatewayHistory::default();
        history.add(Ok(sample(1, 10)), 0);
        history.add(Ok(sample(3, 20)), 1000);
        history.add(Err("refused".to_owned()), 2000);
        history.add(Err("no response in time".to_owned()), 3000);
        let condition = history.condition("a");
        assert_eq!((condition.away, history.difference(MAX_SAMPLES).late), (Some((2000, "no response in time")), 2));
        history.add(Ok(sample(9, 90)), 4000);
        assert_eq!((history.condition("a").away, history.difference(MAX_SAMPLES).late), (None, 0));
        history.add(Ok(sample(11, 91)), 5000);
        assert_eq!(history.difference(MAX_SAMPLES).late, 2);
        history.add(Ok(sample(1, 2)), 6000);
        assert_eq!(history.difference(MAX_SAMPLES).late, 0, "fewer decisions than before: the gateway has restarted");
    }
}
