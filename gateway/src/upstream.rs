//! Connections to the server, or to the nodes of a cluster. Each node has one connection that all calls share, which is
//! replaced when it breaks, and a circuit breaker of its own, so that an outage of a node concerns only its own keys.

mod breaker;
mod node;
mod outages;
mod policies;
mod tracking;

use crate::call::{Call, Operation, Reply};
use crate::denied_keys::{DeniedKeys, Peek};
use crate::file_stamp::FileStamp;
use crate::metrics;
use crate::permission_log::PermissionLog;
use crate::policy_cache::{PolicyCache, PolicyRow};
use crate::reload::Reloadable;
use crate::traces::RequestSpan;
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use node::{Node, Shared};
pub use ratelimit_link::address::Address;
use ratelimit_link::connect::{self, ServerConnection};
use ratelimit_link::redirect::{Redirects, Target};
use ratelimit_link::slots::{HostPort, SlotRange, format_host, primary_of, probe_key, slot_of, slot_ranges};
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

/// Interval at which policies and slots are read, and servers are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a server that is away is probed.
const PROBE_INTERVAL: Duration = Duration::from_millis(250);
/// Timeout of a probe, longer than that of a call because no caller waits for it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two reads of the slots.
const SLOTS_INTERVAL: Duration = Duration::from_millis(20);
/// Time for which a node without slots is kept after a call was redirected to it, because it is importing slots.
const IMPORTING_LIFETIME: Duration = Duration::from_secs(10);

/// Key of a probe and name of its policy. No descriptor has this key. In a cluster, a hash tag follows it.
const PROBE_KEY: &str = "rl:";

/// Connections to the server, shared by all calls.
pub struct Upstream {
    shared: Arc<Shared>,
    /// Log of the permissions that the user lacks.
    pub permission_log: Arc<PermissionLog>,
    /// Remembered denials.
    pub denied_keys: Arc<DeniedKeys>,
    /// Server outside of a cluster.
    single: Arc<Node>,
    /// Nodes of a cluster.
    nodes: Mutex<HashMap<HostPort, RunningNode>>,
    route: ArcSwap<Route>,
    /// Lock that is held while a policy is read, so that concurrent requests read the policy only once.
    policy_read: tokio::sync::Mutex<()>,
}

/// Node of a cluster, and the task that maintains its connection.
struct RunningNode {
    node: Arc<Node>,
    task: AbortHandle,
    /// Time of the last call that was redirected to the node.
    redirected_at: Instant,
}

impl Drop for RunningNode {
    fn drop(&mut self) {
        self.task.abort();
        self.node.set_retired(true);
    }
}

/// Assignment of keys to servers.
enum Route {
    Single(Arc<Node>),
    Cluster { ranges: Vec<SlotRange>, nodes: HashMap<HostPort, Arc<Node>> },
}

impl Upstream {
    /// Creates the state without connections, which [`Upstream::run`] opens.
    #[must_use]
    pub fn new(address: Address) -> Upstream {
        let (permission_log, denied_keys) = (Arc::<PermissionLog>::default(), Arc::<DeniedKeys>::default());
        let hosts: Vec<String> = address.hosts.iter().map(format_host).collect();
        let name = address.primary.clone().unwrap_or_else(|| hosts.join(","));
        let shared = Arc::new(Shared {
            address,
            outages: outages::Outages::default(),
            permission_log: Arc::clone(&permission_log),
            denied_keys: Arc::clone(&denied_keys),
            has_replied: AtomicBool::new(false),
            slots_changed: Notify::new(),
            certificate_reloads: AtomicU64::new(0),
        });
        let single = Node::new(name, None, Arc::clone(&shared));
        let route = ArcSwap::from_pointee(Route::Single(Arc::clone(&single)));
        Upstream {
            shared,
            permission_log,
            denied_keys,
            single,
            nodes: Mutex::default(),
            route,
            policy_read: tokio::sync::Mutex::default(),
        }
    }

    /// Returns `true` if TLS uses certificates from files.
    pub fn has_certificates(&self) -> bool {
        !self.shared.address.tls_files().is_empty()
    }

    /// Returns `true` if a server has replied since the start.
    pub fn has_replied(&self) -> bool {
        self.shared.has_replied.load(Ordering::Relaxed)
    }

    /// Logs changes of outages at once, before the process ends.
    pub fn log_outages(&self) {
        self.shared.outages.log(true);
    }

    /// Sends calls concurrently and returns the replies in the order of the calls. A call without a reply by the
    /// deadline is lost; a later reply is counted. If the request is traced, each call has a span below the span of the
    /// request.
    pub async fn send_calls(
        &self,
        calls: Arc<[Call]>,
        deadline: Instant,
        request_span: Option<&RequestSpan>,
    ) -> Vec<Reply> {
        let started = Instant::now();
        let send = |call| async move {
            match request_span {
                None => self.send_call(call, deadline).await,
                Some(request_span) => self.send_traced_call(call, deadline, request_span).await,
            }
        };
        let replies = match &*calls {
            [call] => vec![send(call).await],
            calls => join_all(calls.iter().map(send)).await,
        };
        if replies.iter().any(|reply| !matches!(reply, Reply::Lost(_))) {
            metrics::record_server_seconds(started.elapsed());
        }
        // A call that returns or corrects units may end a denial, even if its reply is lost.
        for call in calls.iter().filter(|call| !matches!(call.operation, Operation::Take(_))) {
            self.denied_keys.forget(&call.key);
        }
        replies
    }

    /// Peeks at the key of a denied call, and remembers the denial if the peek confirms it.
    pub async fn track(&self, call: &Call, peek: Peek, max_duration: Duration) {
        if let Some(node) = self.node_for_key(&call.key) {
            node.track(call, peek, max_duration).await;
        }
    }

    /// Reads a policy into the cache, unless this version is cached. `key` is a key to which the policy was applied:
    /// its server has the policy. A policy that cannot be read is cached without limits, so that it is not read again
    /// for each call.
    pub async fn read_policy(self: Arc<Upstream>, key: Vec<u8>, name: String, version: i64, cache: Arc<PolicyCache>) {
        let _guard = self.policy_read.lock().await;
        if cache.has_version(&name, version) {
            return;
        }
        let rows = match self.node_for_key(&key) {
            Some(node) => node.send(policies::list_command(&name), false, Instant::now() + PROBE_TIMEOUT).await,
            None => Ok(Value::Nil),
        };
        let rows = rows.map(|rows| policies::parse_rows(&rows)).unwrap_or_default();
        let row = rows.into_iter().find(|row| row.name == name && row.version >= version);
        cache.insert(&row.unwrap_or_else(|| PolicyRow { name, version, specs: String::new() }));
    }

    async fn send_traced_call(&self, call: &Call, deadline: Instant, request_span: &RequestSpan) -> Reply {
        let mut span = request_span.start_call(call.command_name());
        if let Some((host, port)) = self.node_for_key(&call.key).as_ref().and_then(|node| node.address()) {
            span.set_server(host, *port);
        }
        let reply = self.send_call(call, deadline).await;
        match &reply {
            Reply::Lost(why) => span.fail("no_reply", why),
            Reply::Refused(why) | Reply::Forbidden(why) => span.fail("error_reply", why),
            _ => {}
        }
        reply
    }

    /// Sends a call and follows its redirections.
    async fn send_call(&self, call: &Call, deadline: Instant) -> Reply {
        let (mut redirects, mut target) = (Redirects::until(deadline), Target::Primary);
        loop {
            let reply = self.send_to(call, target, deadline).await;
            match redirects.next(&reply).await {
                Some(next) => target = next,
                None => return call.parse_reply(reply),
            }
        }
    }

    async fn send_to(&self, call: &Call, target: Target, deadline: Instant) -> RedisResult<Value> {
        let (node, is_asking) = match target {
            Target::Primary => (self.node_for_key(&call.key), false),
            Target::Node(host) => {
                self.shared.slots_changed.notify_one();
                (Some(self.node_for_host(host)), false)
            }
            Target::Importing(host) => (Some(self.node_for_host(host)), true),
        };
        match node {
            Some(node) => node.send(call.command(), is_asking, deadline).await,
            None => Err((ErrorKind::Client, "no node of the cluster has the slot").into()),
        }
    }

    fn node_for_key(&self, key: &[u8]) -> Option<Arc<Node>> {
        match &**self.route.load() {
            Route::Single(node) => Some(Arc::clone(node)),
            Route::Cluster { ranges, nodes } => nodes.get(primary_of(ranges, slot_of(key))?).cloned(),
        }
    }

    /// Returns the node that a redirection named, and begins to connect to the node if it is new.
    fn node_for_host(&self, host: HostPort) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let running = self.running_node(&mut nodes, host);
        running.redirected_at = Instant::now();
        Arc::clone(&running.node)
    }

    fn running_node<'a>(&self, nodes: &'a mut HashMap<HostPort, RunningNode>, host: HostPort) -> &'a mut RunningNode {
        nodes.entry(host).or_insert_with_key(|host| {
            let node = Node::new(format_host(host), Some(host.clone()), Arc::clone(&self.shared));
            let task = tokio::spawn(Arc::clone(&node).run()).abort_handle();
            RunningNode { node, task, redirected_at: Instant::now() }
        })
    }

    /// Maintains the connections and the cache of policies. Never completes.
    pub async fn run(&self, cache: &PolicyCache) {
        loop {
            let started = Instant::now();
            match connect::connect(&self.shared.address).await {
                Ok(ServerConnection { is_cluster: true, .. }) => self.follow_cluster(cache).await,
                Ok(ServerConnection { connection, .. }) => self.single.watch(connection, Some(cache)).await,
                Err(error) => self.single.record_connect_failure(&error),
            }
            sleep_until(started + PROBE_INTERVAL).await;
        }
    }

    /// Follows the slots of a cluster until the server replies that it belongs to none.
    async fn follow_cluster(&self, cache: &PolicyCache) {
        // Node from which the slots are read as long as it replies: another node may know older slots.
        let mut source = None;
        loop {
            let started = Instant::now();
            if let Err(error) = self.read_cluster(&mut source, cache).await {
                if error.to_string().contains("cluster support disabled") {
                    break;
                }
                if error.code() == Some("NOPERM") {
                    self.permission_log.log(error.detail().unwrap_or_default());
                }
                if matches!(**self.route.load(), Route::Single(_)) {
                    self.single.record_connect_failure(&error);
                }
            }
            self.shared.outages.log(false);
            tokio::select! {
                () = sleep_until(started + CHECK_INTERVAL) => {}
                () = self.shared.slots_changed.notified() => sleep_until(started + SLOTS_INTERVAL).await,
            }
        }
        self.single.set_retired(false);
        self.route.store(Arc::new(Route::Single(Arc::clone(&self.single))));
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads slots and policies from the first node that replies, beginning with `source`, which becomes that node.
    async fn read_cluster(&self, source: &mut Option<HostPort>, cache: &PolicyCache) -> RedisResult<()> {
        let mut healthy: Vec<(HostPort, Arc<MultiplexedConnection>)> = {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let healthy =
                nodes.iter().filter_map(|(host, running)| Some((host.clone(), running.node.healthy_connection()?)));
            healthy.collect()
        };
        healthy.sort_by_key(|(host, _)| source.as_ref() != Some(host));
        for (host, connection) in healthy {
            // The timeout is short, because a hanging node counts as healthy until its own probe has failed.
            if let Ok(Ok(ranges)) = timeout(PROBE_INTERVAL, read_slots(&connection, &host.0)).await {
                self.set_slots(ranges);
                *source = Some(host);
                return timeout(PROBE_TIMEOUT, policies::refresh(&connection, cache)).await.unwrap_or(Ok(()));
            }
        }
        let mut last_error = RedisError::from((ErrorKind::Client, "no node of the cluster replies"));
        for host in &self.shared.address.hosts {
            let query =
                async { read_slots(&connect::connect_to_node(&self.shared.address, host).await?, &host.0).await };
            match timeout(PROBE_TIMEOUT, query).await {
                Ok(Ok(ranges)) => {
                    self.set_slots(ranges);
                    // Causes another read, which finds a connected node and reads its policies.
                    self.shared.slots_changed.notify_one();
                    return Ok(());
                }
                Ok(Err(error)) => last_error = error,
                Err(_) => {}
            }
        }
        Err(last_error)
    }

    /// Replaces the slots, connects to new nodes and drops nodes without slots.
    fn set_slots(&self, ranges: Vec<SlotRange>) {
        let mut running = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nodes = HashMap::new();
        for range in &ranges {
            if !nodes.contains_key(&range.primary) {
                let node = Arc::clone(&self.running_node(&mut running, range.primary.clone()).node);
                let has_slot = |slot| primary_of(&ranges, slot) == Some(&range.primary);
                if !has_slot(slot_of(&node.probe_key()))
                    && let Some(key) = probe_key(PROBE_KEY, has_slot)
                {
                    node.set_probe_key(key);
                }
                nodes.insert(range.primary.clone(), node);
            }
        }
        running.retain(|host, node| nodes.contains_key(host) || node.redirected_at.elapsed() < IMPORTING_LIFETIME);
        if let Route::Cluster { ranges: previous, .. } = &**self.route.load()
            && *previous == ranges
        {
            return;
        }
        self.route.store(Arc::new(Route::Cluster { ranges, nodes }));
        self.single.set_retired(true);
    }
}

/// Reads the slots of a cluster. A node that knows no slots has left its cluster, which is an error.
async fn read_slots(connection: &MultiplexedConnection, host: &str) -> RedisResult<Vec<SlotRange>> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let ranges = slot_ranges(&connect::send(connection.clone(), &command).await?, host);
    if ranges.is_empty() { Err((ErrorKind::Client, "the node knows no slots").into()) } else { Ok(ranges) }
}

impl Reloadable for Upstream {
    fn name(&self) -> &'static str {
        "the certificates for the server"
    }

    fn stamp(&self) -> FileStamp {
        FileStamp::read(self.shared.address.tls_files())
    }

    fn read(&self) -> Result<(), String> {
        // This is only a check: each new connection reads the files.
        connect::check_certificates(&self.shared.address).map_err(|error| error.to_string())?;
        self.shared.certificate_reloads.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
pub mod tests;
