//! Live view: samples of each server's counters once a second, and their history.

mod problems;

use super::clock::now_ms;
use super::failure::Failure;
use super::history::{History, MAX_MINUTES, MINUTE, RecentHistory};
use super::info::{Counts, ServerState};
use super::problem::Problem;
use super::top::TopReads;
use super::upstream::{Node, Server, Upstream};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// Interval between samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
/// Time after a minute until its most denied keys are read, in milliseconds, because the servers' clocks may be late.
const MINUTE_DELAY: u64 = 5000;
/// Number of the most denied keys of a minute in the history.
const KEYS_OF_MINUTE: usize = 5;
/// Maximum number of ticks: those of five minutes.
const MAX_TICKS: usize = 300;
/// Number of recent ticks from which the shares of nodes are computed.
const SHARE_TICKS: usize = 10;
/// Maximum number of policies that INFO lists.
const LISTED_POLICIES: usize = 100;

/// Sample of one server.
struct NodeSample {
    name: String,
    /// Time until the server replied to a PING.
    latency: Duration,
    state: Result<ServerState, String>,
}

/// Calls between two samples, by policy and by node.
#[derive(Default)]
struct Tick {
    /// End of the tick, in milliseconds since the Unix epoch.
    at: u64,
    /// Length of the tick in seconds.
    seconds: f64,
    all: Counts,
    policies: BTreeMap<String, Counts>,
    nodes: BTreeMap<String, Counts>,
}

/// Samples so far.
#[derive(Default)]
struct Samples {
    history: History,
    latest: Vec<NodeSample>,
    /// Last state of each server, including those that do not reply at the moment.
    known: BTreeMap<String, ServerState>,
    /// Time of the last sample of any server.
    taken_at: Option<Instant>,
    ticks: VecDeque<Tick>,
    /// Error of the last attempt, if no server replied.
    failure: Option<Failure>,
}

/// Sampler of the servers, shared by all clients.
pub struct Sampler {
    upstream: Arc<Upstream>,
    top: Arc<TopReads>,
    samples: Mutex<Samples>,
    /// Wakes requests after a sample.
    sampled: Notify,
}

impl Sampler {
    /// Creates a sampler without samples. [`Sampler::run`] takes them.
    #[must_use]
    pub fn new(upstream: Arc<Upstream>, top: Arc<TopReads>) -> Sampler {
        Sampler { upstream, top, samples: Mutex::default(), sampled: Notify::new() }
    }

    fn with_samples<T>(&self, with: impl FnOnce(&mut Samples) -> T) -> T {
        with(&mut self.samples.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes samples. Never completes.
    pub async fn run(&self) {
        let mut clock = interval(SAMPLE_INTERVAL);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let last_minute = || now_ms().saturating_sub(MINUTE_DELAY) / MINUTE;
        let mut minute = last_minute();
        loop {
            clock.tick().await;
            let sample = self.sample().await;
            self.with_samples(|samples| samples.add(sample));
            self.sampled.notify_waiters();
            let next = last_minute();
            if next != minute {
                minute = next;
                self.read_keys(next.saturating_sub(1).saturating_mul(MINUTE)).await;
            }
        }
    }

    /// Adds the most denied keys of the last complete minute, which began at `start`, to the history.
    async fn read_keys(&self, start: u64) {
        let Ok(server) = self.upstream.server().await else { return };
        // Without the permission for RL.TOP, the history has no keys.
        if let Ok(keys) = self.top.of_last_minute(&server, KEYS_OF_MINUTE).await {
            self.with_samples(|samples| samples.history.set_keys(start, keys));
        }
    }

    async fn sample(&self) -> Result<Vec<NodeSample>, Failure> {
        let server = self.upstream.server().await?;
        let mut samples = sample_nodes(&server).await;
        if samples.iter().all(|sample| sample.state.is_err())
            && let Some(why) = samples.iter().find_map(|sample| sample.state.as_ref().err())
        {
            return Err(Failure::Away(why.clone()));
        }
        let away = server.away.iter().map(|(name, why)| NodeSample {
            name: name.clone(),
            latency: Duration::ZERO,
            state: Err(why.clone()),
        });
        samples.extend(away);
        samples.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(samples)
    }

    /// Waits for the first sample or failure, for at most five seconds.
    async fn first_sample(&self) {
        let sampled = self.sampled.notified();
        tokio::pin!(sampled);
        sampled.as_mut().enable();
        if !self.with_samples(|samples| samples.taken_at.is_some() || samples.failure.is_some()) {
            let _ = tokio::time::timeout(Duration::from_secs(5), sampled).await;
        }
    }

    /// Checks that the servers can be reached.
    ///
    /// # Errors
    /// If no server can be reached.
    pub async fn check_reachable(&self) -> Result<(), Failure> {
        self.first_sample().await;
        self.with_samples(|samples| samples.failure.clone().map_or(Ok(()), Err))
    }

    /// Returns the digest of all policies at the last sample.
    #[must_use]
    pub fn digest(&self) -> Option<String> {
        self.with_samples(|samples| {
            Some(samples.latest.iter().find_map(|sample| sample.state.as_ref().ok())?.digest.clone())
        })
    }

    /// Returns the problems of the servers.
    #[must_use]
    pub fn problems(&self) -> Vec<Problem> {
        self.with_samples(|samples| samples.problems(&self.upstream.address_text()))
    }

    /// Returns the history of the last minutes.
    #[must_use]
    pub fn history(&self, minutes: u64) -> RecentHistory {
        self.with_samples(|samples| samples.history.recent(now_ms(), minutes.clamp(1, MAX_MINUTES)))
    }

    /// Returns the seconds of the last five minutes for which there are counts, and the counts of a policy in them.
    #[must_use]
    pub fn recent_counts(&self, policy: &str) -> (f64, Counts) {
        self.with_samples(|samples| {
            let seconds = samples.ticks.iter().map(|tick| tick.seconds).sum();
            let counts = samples.ticks.iter().filter_map(|tick| tick.policies.get(policy));
            (seconds, counts.fold(Counts::default(), |sum, counts| sum.plus(*counts)))
        })
    }

    /// Returns the current state as JSON, with the ticks after `since`.
    ///
    /// # Errors
    /// If no server can be reached.
    pub async fn now(&self, since: u64) -> Result<Value, Failure> {
        self.first_sample().await;
        self.with_samples(|samples| match &samples.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(samples.json(since)),
        })
    }
}

impl Samples {
    fn add(&mut self, sample: Result<Vec<NodeSample>, Failure>) {
        let samples = match sample {
            Ok(samples) => samples,
            Err(failure) => {
                self.failure = Some(failure);
                return;
            }
        };
        self.failure = None;
        let now = Instant::now();
        if let Some(taken_at) = self.taken_at {
            let tick = tick(&self.known, &samples, now - taken_at);
            self.history.add(tick.at, tick.seconds, tick.all, &tick.policies);
            self.ticks.push_back(tick);
            if self.ticks.len() > MAX_TICKS {
                self.ticks.pop_front();
            }
        }
        self.taken_at = Some(now);
        self.known.retain(|name, _| samples.iter().any(|sample| sample.name == *name));
        let states = samples.iter().filter_map(|sample| Some((sample.name.clone(), sample.state.clone().ok()?)));
        self.known.extend(states);
        self.latest = samples;
    }

    fn json(&self, since: u64) -> Value {
        let states: Vec<&ServerState> = self.latest.iter().filter_map(|sample| sample.state.as_ref().ok()).collect();
        let mut policies: BTreeMap<&str, Counts> = BTreeMap::new();
        for (name, counts) in states.iter().flat_map(|state| &state.policy_counts) {
            let sum = policies.entry(name).or_default();
            *sum = sum.plus(*counts);
        }
        let digests = self.digests();
        let recent: Vec<&Tick> = self.ticks.iter().rev().take(SHARE_TICKS).collect();
        let waiting: Vec<Value> = self
            .latest
            .iter()
            .filter_map(|sample| Some((sample, sample.state.as_ref().ok()?)))
            .flat_map(|(sample, state)| state.waiting.iter().map(|waiting| (sample.name.as_str(), waiting)))
            .map(|(node, waiting)| {
                json!({
                    "key": waiting.key, "db": waiting.db, "waiting": waiting.calls,
                    "longest_ms": waiting.longest_ms, "node": node,
                })
            })
            .collect();
        json!({
            "at": now_ms(),
            "ticks": self.ticks.iter().filter(|tick| tick.at > since).map(Tick::json).collect::<Vec<_>>(),
            "nodes": self.latest.iter().map(|sample| sample.json(&recent, &digests)).collect::<Vec<_>>(),
            "policies": policies.into_iter().map(|(name, counts)| (name.to_owned(), counts.json())).collect::<Map<_, _>>(),
            "count": states.iter().map(|state| state.policies).max(),
            "digest": digests.first(),
            "waiting": {
                "calls": states.iter().map(|state| state.waiting_calls).sum::<u64>(),
                "keys": states.iter().map(|state| state.waiting_keys).sum::<u64>(),
                "longest": waiting,
            },
        })
    }

    /// Returns the digests of the policies on the servers that reply.
    fn digests(&self) -> Vec<&str> {
        self.latest.iter().filter_map(|sample| Some(sample.state.as_ref().ok()?.digest.as_str())).collect()
    }
}

impl Tick {
    fn json(&self) -> Value {
        let busy = self.policies.iter().filter(|(_, counts)| counts.calls > 0);
        json!({
            "at": self.at,
            "all": self.all.rates(self.seconds),
            "policies": busy.map(|(name, counts)| (name.clone(), counts.rates(self.seconds))).collect::<BTreeMap<_, _>>(),
        })
    }
}

impl NodeSample {
    fn json(&self, recent: &[&Tick], digests: &[&str]) -> Value {
        let state = match &self.state {
            Ok(state) => state,
            Err(why) => return json!({ "name": self.name, "away": why }),
        };
        let decided = |counts: &Counts| counts.admitted.saturating_add(counts.denied);
        let decided_here: u64 = recent.iter().filter_map(|tick| tick.nodes.get(&self.name)).map(decided).sum();
        let decided_by_all: u64 = recent.iter().map(|tick| decided(&tick.all)).sum();
        let seconds: f64 = recent.iter().map(|tick| tick.seconds).sum();
        #[allow(clippy::cast_precision_loss)]
        let (own, all) = (decided_here as f64, decided_by_all as f64);
        let replicas = state.replicas.iter().map(|replica| {
            json!({ "name": replica.name, "state": replica.state, "lag_s": replica.lag, "behind": replica.behind })
        });
        json!({
            "name": self.name,
            "version": state.version,
            "module": state.module,
            "rate": if seconds > 0.0 { own / seconds } else { 0.0 },
            "share": (all > 0.0).then(|| own / all),
            "reply_ms": self.latency.as_secs_f64() * 1000.0,
            "errors": state.errors,
            "policies": state.policies,
            "digest": state.digest,
            "agrees": problems::agrees(state, digests),
            "replicas": replicas.collect::<Vec<_>>(),
        })
    }
}

/// Returns the calls between two samples.
fn tick(before: &BTreeMap<String, ServerState>, after: &[NodeSample], length: Duration) -> Tick {
    let mut tick = Tick { at: now_ms(), seconds: length.as_secs_f64().max(0.001), ..Tick::default() };
    for (name, state) in after.iter().filter_map(|sample| Some((&sample.name, sample.state.as_ref().ok()?))) {
        // A node without an earlier sample has no difference.
        let Some(known) = before.get(name) else { continue };
        let node_counts = state.all.since(known.all);
        tick.all = tick.all.plus(node_counts);
        tick.nodes.insert(name.clone(), node_counts);
        for (policy, counts) in &state.policy_counts {
            // A policy that was not listed had no calls, unless the list was full.
            let is_list_complete = known.policy_counts.len() < LISTED_POLICIES;
            let Some(known) = known.policy_counts.get(policy).copied().or(is_list_complete.then(Counts::default))
            else {
                continue;
            };
            let sum = tick.policies.entry(policy.clone()).or_default();
            *sum = sum.plus(counts.since(known));
        }
    }
    for counts in tick.policies.values() {
        tick.all.shadow_denied = tick.all.shadow_denied.saturating_add(counts.shadow_denied);
        tick.all.banned = tick.all.banned.saturating_add(counts.banned);
    }
    tick
}

/// Samples all primaries concurrently.
async fn sample_nodes(server: &Server) -> Vec<NodeSample> {
    let sample = |node: Arc<Node>| async move {
        let sent = Instant::now();
        let reply = node.send(&redis::cmd("PING")).await;
        let latency = sent.elapsed();
        let state = match reply {
            Ok(_) => read_state(&node).await,
            Err(failure) => Err(failure),
        };
        NodeSample { name: node.name.clone(), latency, state: state.map_err(|failure| failure.message().to_owned()) }
    };
    futures_util::future::join_all(server.nodes().iter().cloned().map(sample)).await
}

async fn read_state(node: &Node) -> Result<ServerState, Failure> {
    let mut sections = redis::pipe();
    // Redis 6.2 accepts only one section in a call.
    for section in ["ratelimit", "replication", "server"] {
        sections.cmd("INFO").arg(section);
    }
    let replies = node.send_all(&sections).await?;
    let mut info = String::new();
    for section in replies {
        info.push_str(&redis::from_redis_value::<String>(section).map_err(|error| Failure::Server(error.to_string()))?);
    }
    let state = ServerState::parse(&info);
    match (&state.module, state.is_replica) {
        (None, _) => Err(Failure::Server("the server does not have the module".to_owned())),
        (_, true) => {
            // After a failover, another server is the primary.
            node.mark_broken();
            Err(Failure::Away("the server is a replica".to_owned()))
        }
        _ => Ok(state),
    }
}
