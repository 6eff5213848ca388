//! Connections to the servers. They are separate from those of the gateway, so that a list of thousands of policies
//! does not delay decisions. Commands on keys go to the primary of their slot, and counters are read from each primary.

use super::failure::Failure;
use futures_util::future::join_all;
use ratelimit_link::address::Address;
use ratelimit_link::connect::{self, ServerConnection, send, send_asking};
use ratelimit_link::redirect::{Redirects, Target};
use ratelimit_link::slots::{HostPort, SlotRange, format_host, primary_of, slot_of, slot_ranges};
use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

/// Timeout of a server.
const SERVER_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of a node of a cluster, shorter because the other nodes suffice.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time after a failed attempt to connect in which no other attempt is made.
const RETRY_PAUSE: Duration = Duration::from_millis(250);
/// Time after which the primaries of a cluster are looked up again.
const LOOKUP_INTERVAL: Duration = Duration::from_secs(5);
/// Time after which the primaries are looked up again while one of them does not reply.
const BROKEN_LOOKUP_INTERVAL: Duration = Duration::from_secs(1);

/// Single server, or a primary of a cluster.
pub struct Node {
    /// Host and port.
    pub name: String,
    connection: MultiplexedConnection,
    timeout: Duration,
    broken: Arc<AtomicBool>,
}

/// Connected server, or all connected primaries of a cluster.
pub struct Server {
    address: Arc<Address>,
    /// Slots of a cluster, or `None` for a single server.
    slots: Option<Vec<SlotRange>>,
    /// Primaries that can be reached, sorted by name. There is at least one.
    nodes: Vec<Arc<Node>>,
    /// Primaries that cannot be reached, with the reason.
    pub away: Vec<(String, String)>,
    /// `true` after the server did not reply, or if the primaries of the cluster were not found again.
    broken: Arc<AtomicBool>,
    /// Time at which the server or the primaries were looked up.
    found_at: Instant,
}

/// Connections to the servers, opened at the first request and again after they broke.
pub struct Upstream {
    address: Arc<Address>,
    state: Arc<Mutex<UpstreamState>>,
}

#[derive(Default)]
struct UpstreamState {
    server: Option<Arc<Server>>,
    /// Time and error of the last attempt to connect, if it failed.
    last_failure: Option<(Instant, Failure)>,
    /// `true` while the primaries of the cluster are being looked up again.
    is_renewing: bool,
}

impl Upstream {
    /// Creates closed connections to the servers at an address.
    #[must_use]
    pub fn new(address: Address) -> Upstream {
        Upstream { address: Arc::new(address), state: Arc::default() }
    }

    /// Returns the address without credentials, for the page.
    #[must_use]
    pub fn address_text(&self) -> String {
        let hosts: Vec<String> = self.address.hosts.iter().map(format_host).collect();
        self.address.primary.clone().unwrap_or_else(|| hosts.join(", "))
    }

    /// Returns the connected servers, and connects to them if necessary.
    ///
    /// # Errors
    /// If no server can be reached.
    pub async fn server(&self) -> Result<Arc<Server>, Failure> {
        let mut state = self.state.lock().await;
        if let Some(server) = state.server.clone().filter(|server| !server.broken.load(Ordering::Relaxed)) {
            if server.is_outdated() && !state.is_renewing {
                state.is_renewing = true;
                // In the background, so that requests do not wait for a node that does not reply.
                tokio::spawn(renew(Arc::clone(&self.address), Arc::clone(&self.state), Arc::clone(&server)));
            }
            return Ok(server);
        }
        if let Some((at, failure)) = &state.last_failure
            && at.elapsed() < RETRY_PAUSE
        {
            return Err(failure.clone());
        }
        match with_timeout(SERVER_TIMEOUT, Server::find(&self.address, None)).await {
            Ok(server) => {
                let server = Arc::new(server);
                (state.server, state.last_failure) = (Some(Arc::clone(&server)), None);
                Ok(server)
            }
            Err(failure) => {
                (state.server, state.last_failure) = (None, Some((Instant::now(), failure.clone())));
                Err(failure)
            }
        }
    }
}

/// Looks up the primaries of a cluster again, and replaces those in use.
async fn renew(address: Arc<Address>, state: Arc<Mutex<UpstreamState>>, before: Arc<Server>) {
    // Time to query several nodes one after another, and then to connect to all of them concurrently.
    let found = with_timeout(SERVER_TIMEOUT * 4, Server::find(&address, Some(&before))).await;
    let mut state = state.lock().await;
    state.is_renewing = false;
    match found {
        Ok(server) => state.server = Some(Arc::new(server)),
        Err(_) => before.broken.store(true, Ordering::Relaxed),
    }
}

impl Server {
    /// Connects to the server or the primaries at an address. Working connections of `before` are kept.
    async fn find(address: &Arc<Address>, before: Option<&Server>) -> Result<Server, Failure> {
        let broken = before.map(|before| Arc::clone(&before.broken)).unwrap_or_default();
        let (nodes, away, found_at) = (vec![], vec![], Instant::now());
        let mut server = Server { address: Arc::clone(address), slots: None, nodes, away, broken, found_at };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let slots = if let Some(before) = before {
            // Any node, because the first may be the one that does not reply.
            slot_ranges(&before.send_any(&command).await?, &before.fallback_host())
        } else {
            let ServerConnection { connection, host, is_cluster } = connect::connect(address).await?;
            if !is_cluster {
                let (name, broken) = (format_host(&host), Arc::clone(&server.broken));
                server.nodes.push(Arc::new(Node { name, connection, timeout: SERVER_TIMEOUT, broken }));
                return Ok(server);
            }
            slot_ranges(&send(connection, &command).await?, &host.0)
        };
        let mut primaries: Vec<HostPort> = slots.iter().map(|range| range.primary.clone()).collect();
        primaries.sort();
        primaries.dedup();
        server.slots = Some(slots);
        let known = |name: &str| {
            let mut nodes = before?.nodes.iter();
            nodes.find(|node| node.name == name && !node.broken.load(Ordering::Relaxed)).cloned()
        };
        let found = join_all(primaries.into_iter().map(|host| async move {
            let name = format_host(&host);
            if let Some(node) = known(&name) {
                return Ok(node);
            }
            // The system accepts connections even for a process that hangs, so a reply is awaited.
            let connect = async {
                let connection = connect::connect_to_node(address, &host).await?;
                send(connection.clone(), &redis::cmd("PING")).await?;
                Ok::<_, RedisError>(connection)
            };
            match timeout(NODE_TIMEOUT, connect).await {
                Ok(Ok(connection)) => {
                    Ok(Arc::new(Node { name, connection, timeout: NODE_TIMEOUT, broken: Arc::default() }))
                }
                Ok(Err(error)) => Err((name, error.to_string())),
                Err(_) => Err((name, "no reply in time".to_owned())),
            }
        }));
        for node in found.await {
            match node {
                Ok(node) => server.nodes.push(node),
                Err(away) => server.away.push(away),
            }
        }
        server.nodes.sort_by(|one, other| one.name.cmp(&other.name));
        if server.nodes.is_empty() {
            return Err(Failure::Away("no primary of the cluster answers".to_owned()));
        }
        Ok(server)
    }

    /// Returns the host of the first primary, for nodes that do not know their own host.
    fn fallback_host(&self) -> String {
        let name = self.nodes.first().map_or("", |node| node.name.as_str());
        let (host, _) = name.rsplit_once(':').unwrap_or((name, ""));
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Returns `true` for a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// Returns the primaries that can be reached, sorted by name.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Returns `true` if the primaries should be looked up again.
    fn is_outdated(&self) -> bool {
        let is_broken = self.nodes.iter().any(|node| node.is_broken());
        let interval = if is_broken { BROKEN_LOOKUP_INTERVAL } else { LOOKUP_INTERVAL };
        self.is_cluster() && self.found_at.elapsed() >= interval
    }

    /// Returns the primary that policies are read from and set on. It is the same one as long as it replies, so that
    /// concurrent changes of a policy conflict there before they reach the other nodes.
    ///
    /// # Errors
    /// If there is no primary.
    pub fn first(&self) -> Result<&Node, Failure> {
        let node = self.nodes.iter().find(|node| !node.is_broken()).or(self.nodes.first());
        node.map(AsRef::as_ref).ok_or_else(|| Failure::Away("no primary answers".to_owned()))
    }

    /// Sends a command to the first primary that replies.
    ///
    /// # Errors
    /// If the reply is an error, or if no primary replies.
    pub async fn send_any(&self, command: &Cmd) -> Result<Value, Failure> {
        for _ in 1..self.nodes.len() {
            match self.first()?.send(command).await {
                Err(Failure::Away(_)) => {}
                result => return result,
            }
        }
        self.first()?.send(command).await
    }

    /// Sends a command to the primary of its key.
    ///
    /// # Errors
    /// If the reply is an error, or if there is no reply in time.
    pub async fn send_by_key(&self, command: Cmd) -> Result<Value, Failure> {
        let Some(slots) = &self.slots else { return self.first()?.send(&command).await };
        let key = command.args_iter().nth(1);
        let slot = slot_of(if let Some(Arg::Simple(key)) = key { key } else { &[] });
        let deadline = Instant::now() + NODE_TIMEOUT;
        let request = async {
            let (mut redirects, mut target) = (Redirects::until(deadline), Target::Primary);
            loop {
                let reply = self.send_to(&command, primary_of(slots, slot), &target).await;
                match redirects.next(&reply).await {
                    Some(next) => target = next,
                    None => return Ok(reply?),
                }
            }
        };
        with_timeout(NODE_TIMEOUT, request).await
    }

    async fn send_to(&self, command: &Cmd, primary: Option<&HostPort>, target: &Target) -> RedisResult<Value> {
        let no_primary = || RedisError::from((ErrorKind::Client, "no node of the cluster has the slot"));
        match target {
            Target::Primary => send(self.connection_to(primary.ok_or_else(no_primary)?).await?, command).await,
            Target::Node(host) => send(self.connection_to(host).await?, command).await,
            Target::Importing(host) => send_asking(self.connection_to(host).await?, command.clone()).await,
        }
    }

    /// Returns the connection to a node of the cluster, or a new one for a node that became a primary only recently.
    async fn connection_to(&self, host: &HostPort) -> RedisResult<MultiplexedConnection> {
        let name = format_host(host);
        match self.nodes.iter().find(|node| node.name == name && !node.is_broken()) {
            Some(node) => Ok(node.connection.clone()),
            None => connect::connect_to_node(&self.address, host).await,
        }
    }
}

impl Node {
    /// Marks the connection as broken, so that the next request connects again.
    pub fn mark_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if the node did not reply to the last command.
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Sends a command to this node.
    ///
    /// # Errors
    /// If the reply is an error, or if there is no reply in time.
    pub async fn send(&self, command: &Cmd) -> Result<Value, Failure> {
        self.run(async { Ok(send(self.connection.clone(), command).await?) }).await
    }

    /// Waits for a request, and marks the connection as broken without a reply. Fails at once if it is already broken.
    async fn run<T>(&self, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if self.is_broken() {
            return Err(Failure::Away("it did not answer a moment ago".to_owned()));
        }
        let result = with_timeout(self.timeout, request).await;
        if let Err(Failure::Away(_)) = &result {
            self.mark_broken();
        }
        result
    }

    /// Sends several commands as a pipeline.
    ///
    /// # Errors
    /// If a reply is an error, or if there is no reply in time.
    pub async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut connection = self.connection.clone();
        let count = commands.len();
        let request = async {
            let replies = connection.req_packed_commands(commands, 0, count).await?;
            replies.into_iter().map(|reply| Ok(reply.extract_error()?)).collect()
        };
        self.run(request).await
    }
}

async fn with_timeout<T>(duration: Duration, request: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(duration, request).await.unwrap_or_else(|_| Err(Failure::Away("no reply in time".to_owned())))
}
