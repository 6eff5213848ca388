//! Link to the server, or to the nodes of a cluster: each has one connection that all calls share, found anew when it
//! breaks, and a breaker, so that a node that is away concerns only its own keys.

mod breaker;
mod node;
mod outages;
mod policies;

use crate::ask::{Call, Reply};
use crate::file_stamp::FileStamp;
use crate::permission::Missing;
use crate::reload::Reloadable;
use crate::seen;
use arc_swap::ArcSwap;
use futures_util::future::join_all;
use node::{Node, Shared};
pub use policies::{Listener, PolicyRow};
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

/// Interval at which policies and slots are read, and idle servers are probed.
const LOOK: Duration = Duration::from_secs(1);
/// Interval at which a server that is away is probed.
const PROBE: Duration = Duration::from_millis(250);
/// Timeout of a probe: longer than that of a call, since no caller waits for it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum time between two reads of the slots.
const MOVED: Duration = Duration::from_millis(20);
/// Time for which a node without slots is kept after a call was sent to it: it imports some.
const KEPT: Duration = Duration::from_secs(10);

/// Key of a probe, which no descriptor has, and the name of its policy. In a cluster, a tag follows.
const PROBED: &str = "rl:";

/// Link, shared by all calls.
pub struct Link {
    shared: Arc<Shared>,
    /// Permissions that the user lacks.
    pub missing: Arc<Missing>,
    /// The server if there is no cluster.
    single: Arc<Node>,
    /// Nodes of a cluster.
    nodes: Mutex<HashMap<HostPort, Running>>,
    route: ArcSwap<Route>,
    /// Held while a policy is read: others that need it wait.
    reading: tokio::sync::Mutex<()>,
}

/// Node of a cluster, and the task that keeps its connection.
struct Running {
    node: Arc<Node>,
    task: AbortHandle,
    /// Time of the last call that a reply redirected here.
    redirected: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
        self.node.set_retired(true);
    }
}

/// Server of each key.
enum Route {
    Single(Arc<Node>),
    Cluster { ranges: Vec<SlotRange>, nodes: HashMap<HostPort, Arc<Node>> },
}

impl Link {
    /// Creates a link that connects once [`Link::keep`] runs.
    #[must_use]
    pub fn new(address: Address) -> Link {
        let missing = Arc::<Missing>::default();
        let hosts: Vec<String> = address.hosts.iter().map(format_host).collect();
        let name = address.primary.clone().unwrap_or_else(|| hosts.join(","));
        let shared = Arc::new(Shared {
            address,
            outages: outages::Outages::default(),
            missing: Arc::clone(&missing),
            answered: AtomicBool::new(false),
            moved: Notify::new(),
            renewals: AtomicU64::new(0),
        });
        let single = Node::new(name, None, Arc::clone(&shared));
        let route = ArcSwap::from_pointee(Route::Single(Arc::clone(&single)));
        Link { shared, missing, single, nodes: Mutex::default(), route, reading: tokio::sync::Mutex::default() }
    }

    /// Returns `true` if files say whom TLS trusts, or who the gateway is.
    pub fn has_certificates(&self) -> bool {
        !self.shared.address.tls_files().is_empty()
    }

    /// Returns `true` if a server has replied since the start.
    pub fn has_answered(&self) -> bool {
        self.shared.answered.load(Ordering::Relaxed)
    }

    /// Logs the outages of the last second, before the end.
    pub fn log_outages(&self) {
        self.shared.outages.log(true);
    }

    /// Sends calls at once and returns the replies, in the order of the calls. A call without a reply by the deadline is
    /// lost; a later reply is counted.
    pub async fn ask(&self, calls: Arc<[Call]>, deadline: Instant) -> Vec<Reply> {
        let sent = Instant::now();
        let replies = match &*calls {
            [call] => vec![self.reply(call, deadline).await],
            calls => join_all(calls.iter().map(|call| self.reply(call, deadline))).await,
        };
        if replies.iter().any(|reply| !matches!(reply, Reply::Lost(_))) {
            seen::server_seconds(sent.elapsed());
        }
        replies
    }

    /// Reads a policy for a listener from the server of a key, which ruled by this version of it. A policy that cannot be
    /// read is added without limits, so that it is not read again for each call.
    pub async fn read_policy(self: Arc<Link>, key: Vec<u8>, name: String, version: i64, listener: Arc<dyn Listener>) {
        let _reading = self.reading.lock().await;
        if listener.has(&name, version) {
            return;
        }
        let rows = match self.node_of(&key) {
            Some(node) => node.send(policies::one(&name), false, Instant::now() + PROBE_TIMEOUT).await,
            None => Ok(Value::Nil),
        };
        let found = rows.map(|rows| policies::rows(&rows)).unwrap_or_default();
        let found = found.into_iter().find(|row| row.name == name && row.version >= version);
        listener.add(found.unwrap_or_else(|| PolicyRow { name, version, specs: String::new() }));
    }

    async fn reply(&self, call: &Call, deadline: Instant) -> Reply {
        let (mut redirects, mut target) = (Redirects::until(deadline), Target::Primary);
        loop {
            let reply = self.send(call, target, deadline).await;
            match redirects.next(&reply).await {
                Some(next) => target = next,
                None => return call.reply(reply),
            }
        }
    }

    async fn send(&self, call: &Call, target: Target, deadline: Instant) -> RedisResult<Value> {
        let (node, asking) = match target {
            Target::Primary => (self.node_of(&call.key), false),
            Target::Node(host) => {
                self.shared.moved.notify_one();
                (Some(self.node_at(host)), false)
            }
            Target::Importing(host) => (Some(self.node_at(host)), true),
        };
        match node {
            Some(node) => node.send(call.command(), asking, deadline).await,
            None => Err((ErrorKind::Client, "no node of the cluster has the slot").into()),
        }
    }

    fn node_of(&self, key: &[u8]) -> Option<Arc<Node>> {
        match &**self.route.load() {
            Route::Single(node) => Some(Arc::clone(node)),
            Route::Cluster { ranges, nodes } => nodes.get(primary_of(ranges, slot_of(key))?).cloned(),
        }
    }

    /// Returns the node that a reply named.
    fn node_at(&self, host: HostPort) -> Arc<Node> {
        let mut nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let running = self.running(&mut nodes, host);
        running.redirected = Instant::now();
        Arc::clone(&running.node)
    }

    fn running<'a>(&self, nodes: &'a mut HashMap<HostPort, Running>, host: HostPort) -> &'a mut Running {
        nodes.entry(host).or_insert_with_key(|host| {
            let node = Node::new(format_host(host), Some(host.clone()), Arc::clone(&self.shared));
            let task = tokio::spawn(Arc::clone(&node).keep()).abort_handle();
            Running { node, task, redirected: Instant::now() }
        })
    }

    /// Connects, and connects again when the connection breaks; reads each second if the policies have changed.
    pub async fn keep(&self, listener: &dyn Listener) {
        loop {
            let began = Instant::now();
            match connect::connect(&self.shared.address).await {
                Ok(ServerConnection { is_cluster: true, .. }) => self.keep_cluster(listener).await,
                Ok(ServerConnection { connection, .. }) => self.single.watch(connection, Some(listener)).await,
                Err(error) => self.single.not_connected(&error),
            }
            sleep_until(began + PROBE).await;
        }
    }

    /// Follows the slots of a cluster, until the server says that it is in none.
    async fn keep_cluster(&self, listener: &dyn Listener) {
        // Always the same as long as it replies: another may know less of a change that has been followed.
        let mut source = None;
        loop {
            let began = Instant::now();
            if let Err(error) = self.look_at_cluster(&mut source, listener).await {
                if error.to_string().contains("cluster support disabled") {
                    break;
                }
                if error.code() == Some("NOPERM") {
                    self.missing.tell(error.detail().unwrap_or_default());
                }
                if matches!(**self.route.load(), Route::Single(_)) {
                    self.single.not_connected(&error);
                }
            }
            self.shared.outages.log(false);
            tokio::select! {
                () = sleep_until(began + LOOK) => {}
                () = self.shared.moved.notified() => sleep_until(began + MOVED).await,
            }
        }
        self.single.set_retired(false);
        self.route.store(Arc::new(Route::Single(Arc::clone(&self.single))));
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Reads slots and policies from the first node that replies.
    async fn look_at_cluster(&self, source: &mut Option<HostPort>, listener: &dyn Listener) -> RedisResult<()> {
        let mut healthy: Vec<(HostPort, Arc<MultiplexedConnection>)> = {
            let nodes = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            let healthy =
                nodes.iter().filter_map(|(host, running)| Some((host.clone(), running.node.healthy_connection()?)));
            healthy.collect()
        };
        healthy.sort_by_key(|(host, _)| source.as_ref() != Some(host));
        for (host, connection) in healthy {
            // A node that hangs is known as such only after its own probe.
            if let Ok(Ok(ranges)) = timeout(PROBE, slots(&connection, &host.0)).await {
                self.set_slots(ranges);
                *source = Some(host);
                return timeout(PROBE_TIMEOUT, policies::read(&connection, listener)).await.unwrap_or(Ok(()));
            }
        }
        let mut last = RedisError::from((ErrorKind::Client, "no node of the cluster replies"));
        for host in &self.shared.address.hosts {
            let asked = async { slots(&connect::connect_to_node(&self.shared.address, host).await?, &host.0).await };
            match timeout(PROBE_TIMEOUT, asked).await {
                Ok(Ok(ranges)) => {
                    self.set_slots(ranges);
                    // The policies are read from a node once it is connected.
                    self.shared.moved.notify_one();
                    return Ok(());
                }
                Ok(Err(error)) => last = error,
                Err(_) => {}
            }
        }
        Err(last)
    }

    /// Goes by these slots from now on.
    fn set_slots(&self, ranges: Vec<SlotRange>) {
        let mut running = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
        let mut nodes = HashMap::new();
        for range in &ranges {
            if !nodes.contains_key(&range.primary) {
                let node = Arc::clone(&self.running(&mut running, range.primary.clone()).node);
                let has_slot = |slot| primary_of(&ranges, slot) == Some(&range.primary);
                if !has_slot(slot_of(&node.probed()))
                    && let Some(key) = probe_key(PROBED, has_slot)
                {
                    node.set_probed(key);
                }
                nodes.insert(range.primary.clone(), node);
            }
        }
        running.retain(|host, one| nodes.contains_key(host) || one.redirected.elapsed() < KEPT);
        if let Route::Cluster { ranges: before, .. } = &**self.route.load()
            && *before == ranges
        {
            return;
        }
        self.route.store(Arc::new(Route::Cluster { ranges, nodes }));
        self.single.set_retired(true);
    }
}

/// Reads the slots of a cluster. A reply without slots is that of a node that has left its cluster.
async fn slots(connection: &MultiplexedConnection, host: &str) -> RedisResult<Vec<SlotRange>> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let ranges = slot_ranges(&connect::send(connection.clone(), &command).await?, host);
    if ranges.is_empty() { Err((ErrorKind::Client, "the node knows no slots").into()) } else { Ok(ranges) }
}

impl Reloadable for Link {
    fn name(&self) -> &'static str {
        "the certificates for the server"
    }

    fn stamp(&self) -> FileStamp {
        FileStamp::read(self.shared.address.tls_files())
    }

    fn read(&self) -> Result<(), String> {
        // Each connection that is made reads them.
        connect::check_certificates(&self.shared.address).map_err(|error| error.to_string())?;
        self.shared.renewals.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
pub mod tests;
