//! What happens now: samples of each server's counts, a second apart, for as long as somebody looks.

use super::failure::Failure;
use super::info::{Counts, ServerState};
use super::upstream::{Node, Server, Upstream};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How far samples lie apart.
const EVERY: Duration = Duration::from_secs(1);
/// How long they go on once nobody looks any more: whoever comes back finds what happened meanwhile.
const LINGER: Duration = Duration::from_mins(5);
/// How many are kept: five minutes.
const KEPT: usize = 300;
/// Of so many the shares of the nodes are told.
const SHARED: usize = 10;
/// How many policies have a line in INFO.
const SHOWN: usize = 100;

/// What one server said.
struct NodeSample {
    name: String,
    reply: Duration,
    state: Result<ServerState, String>,
}

/// What happened in about a second, by policy and by node.
#[derive(Default)]
struct Tick {
    /// When it ended, in milliseconds since 1970.
    at: u64,
    /// Its length in seconds.
    seconds: f64,
    all: Counts,
    policies: BTreeMap<String, Counts>,
    nodes: BTreeMap<String, Counts>,
}

#[derive(Default)]
struct Seen {
    asked: Option<Instant>,
    latest: Vec<NodeSample>,
    /// The last counts of each server, also of one that is away for a moment.
    known: BTreeMap<String, ServerState>,
    taken: Option<Instant>,
    ticks: VecDeque<Tick>,
    failure: Option<Failure>,
}

/// The samples, shared by all who look.
pub struct Live {
    upstream: Arc<Upstream>,
    seen: Mutex<Seen>,
    wanted: Notify,
    sampled: Notify,
}

impl Live {
    /// Without samples, until [`Live::keep`] runs and somebody looks.
    #[must_use]
    pub fn new(upstream: Arc<Upstream>) -> Live {
        Live { upstream, seen: Mutex::default(), wanted: Notify::new(), sampled: Notify::new() }
    }

    fn seen<T>(&self, with: impl FnOnce(&mut Seen) -> T) -> T {
        with(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes samples while somebody looks.
    pub async fn keep(&self) {
        let mut clock = interval(EVERY);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.seen(|seen| seen.asked.is_some_and(|asked| asked.elapsed() < LINGER)) {
                self.wanted.notified().await;
                clock.reset_immediately();
            }
            clock.tick().await;
            let sample = self.sample().await;
            self.seen(|seen| seen.take(sample));
            self.sampled.notify_waiters();
        }
    }

    async fn sample(&self) -> Result<Vec<NodeSample>, Failure> {
        let server = self.upstream.server().await?;
        let mut samples = asked(&server).await;
        if samples.iter().all(|sample| sample.state.is_err())
            && let Some(why) = samples.iter().find_map(|sample| sample.state.as_ref().err())
        {
            return Err(Failure::Away(why.clone()));
        }
        let away = server.away.iter().map(|(name, why)| NodeSample {
            name: name.clone(),
            reply: Duration::ZERO,
            state: Err(why.clone()),
        });
        samples.extend(away);
        samples.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(samples)
    }

    /// Takes note that somebody looks, and waits for the first sample.
    async fn look(&self) {
        let sampled = self.sampled.notified();
        tokio::pin!(sampled);
        sampled.as_mut().enable();
        let fresh = self.seen(|seen| {
            let fresh = seen.asked.is_some_and(|asked| asked.elapsed() < LINGER)
                && (seen.taken.is_some() || seen.failure.is_some());
            seen.asked = Some(Instant::now());
            fresh
        });
        if !fresh {
            self.wanted.notify_one();
            let _ = tokio::time::timeout(Duration::from_secs(5), sampled).await;
        }
    }

    /// Whether the server is there.
    pub async fn reachable(&self) -> Result<(), Failure> {
        self.look().await;
        self.seen(|seen| seen.failure.clone().map_or(Ok(()), Err))
    }

    /// What is to be seen now, with the seconds after `since`.
    ///
    /// # Errors
    /// If the server is away.
    pub async fn now(&self, since: u64) -> Result<Value, Failure> {
        self.look().await;
        self.seen(|seen| match &seen.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(seen.told(since)),
        })
    }
}

impl Seen {
    fn take(&mut self, sample: Result<Vec<NodeSample>, Failure>) {
        let samples = match sample {
            Ok(samples) => samples,
            Err(failure) => {
                self.failure = Some(failure);
                return;
            }
        };
        self.failure = None;
        let now = Instant::now();
        if let Some(taken) = self.taken {
            self.ticks.push_back(tick(&self.known, &samples, now - taken));
            if self.ticks.len() > KEPT {
                self.ticks.pop_front();
            }
        }
        self.taken = Some(now);
        self.known.retain(|name, _| samples.iter().any(|sample| sample.name == *name));
        let states = samples.iter().filter_map(|sample| Some((sample.name.clone(), sample.state.clone().ok()?)));
        self.known.extend(states);
        self.latest = samples;
    }

    fn told(&self, since: u64) -> Value {
        let states: Vec<&ServerState> = self.latest.iter().filter_map(|sample| sample.state.as_ref().ok()).collect();
        let mut policies: BTreeMap<&str, Counts> = BTreeMap::new();
        for (name, counts) in states.iter().flat_map(|state| &state.shown) {
            let sum = policies.entry(name).or_default();
            *sum = sum.plus(*counts);
        }
        let digests: Vec<&str> = states.iter().map(|state| state.digest.as_str()).collect();
        let recent: Vec<&Tick> = self.ticks.iter().rev().take(SHARED).collect();
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
            "ticks": self.ticks.iter().filter(|tick| tick.at > since).map(Tick::told).collect::<Vec<_>>(),
            "nodes": self.latest.iter().map(|sample| sample.told(&recent, &digests)).collect::<Vec<_>>(),
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
}

impl Tick {
    fn told(&self) -> Value {
        let rates = |counts: &Counts| {
            let rate = |count: u64| {
                // Counts of a second are far below what a float holds exactly.
                #[allow(clippy::cast_precision_loss)]
                let rate = count as f64 / self.seconds;
                (rate * 100.0).round() / 100.0
            };
            json!([rate(counts.admitted), rate(counts.denied), rate(counts.shadow_denied), rate(counts.banned)])
        };
        let busy = self.policies.iter().filter(|(_, counts)| counts.calls > 0);
        json!({
            "at": self.at,
            "all": rates(&self.all),
            "policies": busy.map(|(name, counts)| (name.clone(), rates(counts))).collect::<Map<_, _>>(),
        })
    }
}

impl NodeSample {
    fn told(&self, recent: &[&Tick], digests: &[&str]) -> Value {
        let state = match &self.state {
            Ok(state) => state,
            Err(why) => return json!({ "name": self.name, "away": why }),
        };
        let decided = |counts: &Counts| counts.admitted.saturating_add(counts.denied);
        let own: u64 = recent.iter().filter_map(|tick| tick.nodes.get(&self.name)).map(decided).sum();
        let all: u64 = recent.iter().map(|tick| decided(&tick.all)).sum();
        let seconds: f64 = recent.iter().map(|tick| tick.seconds).sum();
        #[allow(clippy::cast_precision_loss)]
        let (own, all) = (own as f64, all as f64);
        let replicas = state.replicas.iter().map(|replica| {
            json!({ "name": replica.name, "state": replica.state, "lag_s": replica.lag, "behind": replica.behind })
        });
        json!({
            "name": self.name,
            "version": state.version,
            "module": state.module,
            "rate": if seconds > 0.0 { own / seconds } else { 0.0 },
            "share": (all > 0.0).then(|| own / all),
            "reply_ms": self.reply.as_secs_f64() * 1000.0,
            "errors": state.errors,
            "policies": state.policies,
            "digest": state.digest,
            "agrees": state.differ == 0 && digests.iter().all(|digest| *digest == state.digest),
            "replicas": replicas.collect::<Vec<_>>(),
        })
    }
}

/// What happened between two samples.
fn tick(before: &BTreeMap<String, ServerState>, after: &[NodeSample], length: Duration) -> Tick {
    let mut tick = Tick { at: now_ms(), seconds: length.as_secs_f64().max(0.001), ..Tick::default() };
    for (name, state) in after.iter().filter_map(|sample| Some((&sample.name, sample.state.as_ref().ok()?))) {
        // Of a node that is seen for the first time nobody knows since when it counts.
        let Some(known) = before.get(name) else { continue };
        let own = state.all.since(known.all);
        tick.all = tick.all.plus(own);
        tick.nodes.insert(name.clone(), own);
        for (policy, counts) in &state.shown {
            // One that was not shown was not called, unless there were more than are shown.
            let all_shown = known.shown.len() < SHOWN;
            let Some(known) = known.shown.get(policy).copied().or(all_shown.then(Counts::default)) else { continue };
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

async fn asked(server: &Server) -> Vec<NodeSample> {
    let one = |node: Arc<Node>| async move {
        let sent = Instant::now();
        let answered = node.ask(&redis::cmd("PING")).await;
        let reply = sent.elapsed();
        let state = match answered {
            Ok(_) => state(&node).await,
            Err(failure) => Err(failure),
        };
        NodeSample { name: node.name.clone(), reply, state: state.map_err(|failure| failure.told().to_owned()) }
    };
    futures_util::future::join_all(server.nodes().iter().cloned().map(one)).await
}

async fn state(node: &Node) -> Result<ServerState, Failure> {
    let mut sections = redis::pipe();
    // Redis 6.2 takes one section at a time.
    for section in ["ratelimit", "replication", "server"] {
        sections.cmd("INFO").arg(section);
    }
    let told = node.ask_all(&sections).await?;
    let mut info = String::new();
    for section in told {
        info.push_str(&redis::from_redis_value::<String>(section).map_err(|error| Failure::Server(error.to_string()))?);
    }
    let state = ServerState::read(&info);
    match (&state.module, state.is_replica) {
        (None, _) => Err(Failure::Server("the server does not have the module".to_owned())),
        (_, true) => {
            // The primary is elsewhere by now.
            node.give_up();
            Err(Failure::Away("the server is a replica".to_owned()))
        }
        _ => Ok(state),
    }
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
