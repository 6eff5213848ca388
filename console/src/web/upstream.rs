//! The servers behind the console, over connections of their own: a list of thousands of policies must not stand before
//! a decision. Keys are asked of whoever has their slot, and each primary by itself of what it counts.

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

/// How long a server is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long one node of a cluster is waited for: the others have something to tell meanwhile.
const PATIENCE_WITH_NODE: Duration = Duration::from_secs(1);
/// How long nobody tries again who could not be reached.
const PAUSE: Duration = Duration::from_millis(250);
/// How long it is taken for granted which primaries a cluster has; and while one of them does not answer.
const KNOWN: Duration = Duration::from_secs(5);
const KNOWN_BROKEN: Duration = Duration::from_secs(1);

/// A server with keys of its own: the one there is, or a primary of a cluster.
pub struct Node {
    /// Its host and port.
    pub name: String,
    connection: MultiplexedConnection,
    /// How long it is waited for.
    patience: Duration,
    broken: Arc<AtomicBool>,
}

/// What the console asks.
pub struct Server {
    address: Arc<Address>,
    /// Slots of a cluster; `None` if there is none.
    slots: Option<Vec<SlotRange>>,
    /// The primaries that can be reached, by name. There is one at least.
    nodes: Vec<Arc<Node>>,
    /// The primaries of a cluster that cannot be reached, and why.
    pub away: Vec<(String, String)>,
    broken: Arc<AtomicBool>,
    since: Instant,
}

/// The way to the servers: connected when somebody asks, and again when a connection broke.
pub struct Upstream {
    address: Arc<Address>,
    state: Arc<Mutex<UpstreamState>>,
}

#[derive(Default)]
struct UpstreamState {
    server: Option<Arc<Server>>,
    failed: Option<(Instant, Failure)>,
    /// Whether the primaries of the cluster are being looked up anew.
    renewing: bool,
}

impl Upstream {
    /// The way to the servers at an address.
    #[must_use]
    pub fn new(address: Address) -> Upstream {
        Upstream { address: Arc::new(address), state: Arc::default() }
    }

    /// Where they are, without who the console is to them.
    #[must_use]
    pub fn told(&self) -> String {
        let hosts: Vec<String> = self.address.hosts.iter().map(format_host).collect();
        self.address.primary.clone().unwrap_or_else(|| hosts.join(", "))
    }

    /// The servers, as they can be reached now.
    ///
    /// # Errors
    /// If none can be.
    pub async fn server(&self) -> Result<Arc<Server>, Failure> {
        let mut state = self.state.lock().await;
        if let Some(server) = state.server.clone().filter(|server| !server.broken.load(Ordering::Relaxed)) {
            if server.is_dated() && !state.renewing {
                state.renewing = true;
                // Nobody who asks waits for a node that does not answer.
                tokio::spawn(renew(Arc::clone(&self.address), Arc::clone(&self.state), Arc::clone(&server)));
            }
            return Ok(server);
        }
        if let Some((at, failure)) = &state.failed
            && at.elapsed() < PAUSE
        {
            return Err(failure.clone());
        }
        match in_time(PATIENCE, Server::find(&self.address, None)).await {
            Ok(server) => {
                let server = Arc::new(server);
                (state.server, state.failed) = (Some(Arc::clone(&server)), None);
                Ok(server)
            }
            Err(failure) => {
                (state.server, state.failed) = (None, Some((Instant::now(), failure.clone())));
                Err(failure)
            }
        }
    }
}

/// Looks up which primaries the cluster has now, beside those who ask.
async fn renew(address: Arc<Address>, state: Arc<Mutex<UpstreamState>>, before: Arc<Server>) {
    // Of each node so long, one after another, and then of all at once.
    let found = in_time(PATIENCE * 4, Server::find(&address, Some(&before))).await;
    let mut state = state.lock().await;
    state.renewing = false;
    match found {
        Ok(server) => state.server = Some(Arc::new(server)),
        Err(_) => before.broken.store(true, Ordering::Relaxed),
    }
}

impl Server {
    /// Connects to those that serve at an address; what was connected before is kept.
    async fn find(address: &Arc<Address>, before: Option<&Server>) -> Result<Server, Failure> {
        let broken = before.map(|before| Arc::clone(&before.broken)).unwrap_or_default();
        let (nodes, away, since) = (vec![], vec![], Instant::now());
        let mut server = Server { address: Arc::clone(address), slots: None, nodes, away, broken, since };
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let slots = if let Some(before) = before {
            // Of any node: the first may be the one that does not answer.
            slot_ranges(&before.ask_any(&command).await?, &before.host())
        } else {
            let ServerConnection { connection, host, is_cluster } = connect::connect(address).await?;
            if !is_cluster {
                let (name, broken) = (format_host(&host), Arc::clone(&server.broken));
                server.nodes.push(Arc::new(Node { name, connection, patience: PATIENCE, broken }));
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
            // A process that hangs still has its connections accepted.
            let greeted = async {
                let connection = connect::connect_to_node(address, &host).await?;
                send(connection.clone(), &redis::cmd("PING")).await?;
                Ok::<_, RedisError>(connection)
            };
            // One that never answers keeps nobody from the others.
            match timeout(PATIENCE_WITH_NODE, greeted).await {
                Ok(Ok(connection)) => {
                    Ok(Arc::new(Node { name, connection, patience: PATIENCE_WITH_NODE, broken: Arc::default() }))
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

    /// The host of a primary: those of a cluster that do not know their own address are at the same.
    fn host(&self) -> String {
        let name = self.nodes.first().map_or("", |node| node.name.as_str());
        let (host, _) = name.rsplit_once(':').unwrap_or((name, ""));
        host.trim_matches(['[', ']']).to_owned()
    }

    /// Whether it is a cluster.
    #[must_use]
    pub fn is_cluster(&self) -> bool {
        self.slots.is_some()
    }

    /// The primaries that can be reached, by name.
    #[must_use]
    pub fn nodes(&self) -> &[Arc<Node>] {
        &self.nodes
    }

    /// Whether to look up anew which primaries there are.
    fn is_dated(&self) -> bool {
        let known = if self.nodes.iter().any(|node| node.is_broken()) { KNOWN_BROKEN } else { KNOWN };
        self.is_cluster() && self.since.elapsed() >= known
    }

    /// The primary that policies are read from and set on: always the same, as long as it answers, so that two people who
    /// change one policy meet there, before the nodes of a cluster have told each other.
    ///
    /// # Errors
    /// If there is none.
    pub fn first(&self) -> Result<&Node, Failure> {
        let node = self.nodes.iter().find(|node| !node.is_broken()).or(self.nodes.first());
        node.map(AsRef::as_ref).ok_or_else(|| Failure::Away("no primary answers".to_owned()))
    }

    /// Asks the first primary that answers something that all know.
    ///
    /// # Errors
    /// The server's error, or that none answers.
    pub async fn ask_any(&self, command: &Cmd) -> Result<Value, Failure> {
        for _ in 1..self.nodes.len() {
            match self.first()?.ask(command).await {
                Err(Failure::Away(_)) => {}
                answered => return answered,
            }
        }
        self.first()?.ask(command).await
    }

    /// Asks whoever has the key of this command.
    ///
    /// # Errors
    /// The server's error, or that it does not answer.
    pub async fn ask_key(&self, command: Cmd) -> Result<Value, Failure> {
        let Some(slots) = &self.slots else { return self.first()?.ask(&command).await };
        let key = command.args_iter().nth(1);
        let slot = slot_of(if let Some(Arg::Simple(key)) = key { key } else { &[] });
        let deadline = Instant::now() + PATIENCE_WITH_NODE;
        let asked = async {
            let (mut redirects, mut target) = (Redirects::until(deadline), Target::Primary);
            loop {
                let reply = self.send(&command, primary_of(slots, slot), &target).await;
                match redirects.next(&reply).await {
                    Some(next) => target = next,
                    None => return Ok(reply?),
                }
            }
        };
        in_time(PATIENCE_WITH_NODE, asked).await
    }

    async fn send(&self, command: &Cmd, primary: Option<&HostPort>, target: &Target) -> RedisResult<Value> {
        let none = || RedisError::from((ErrorKind::Client, "no node of the cluster has the slot"));
        match target {
            Target::Primary => send(self.connection_to(primary.ok_or_else(none)?).await?, command).await,
            Target::Node(host) => send(self.connection_to(host).await?, command).await,
            Target::Importing(host) => send_asking(self.connection_to(host).await?, command.clone()).await,
        }
    }

    /// Returns the connection to a node of the cluster. One that has become a primary since gets a new connection.
    async fn connection_to(&self, host: &HostPort) -> RedisResult<MultiplexedConnection> {
        let name = format_host(host);
        match self.nodes.iter().find(|node| node.name == name && !node.is_broken()) {
            Some(node) => Ok(node.connection.clone()),
            None => connect::connect_to_node(&self.address, host).await,
        }
    }
}

impl Node {
    /// Gives up the connection; the next call connects anew.
    pub fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }

    /// Whether it did not answer when it was asked last.
    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Asks this server.
    ///
    /// # Errors
    /// The server's error, or that it does not answer.
    pub async fn ask(&self, command: &Cmd) -> Result<Value, Failure> {
        self.watched(async { Ok(send(self.connection.clone(), command).await?) }).await
    }

    /// Waits for an answer, but not for that of a server that did not answer the last time.
    async fn watched<T>(&self, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if self.is_broken() {
            return Err(Failure::Away("it did not answer a moment ago".to_owned()));
        }
        watched(&self.broken, in_time(self.patience, asked).await)
    }

    /// Asks it several things at once.
    ///
    /// # Errors
    /// The first error of the server, or that it does not answer.
    pub async fn ask_all(&self, commands: &Pipeline) -> Result<Vec<Value>, Failure> {
        let mut connection = self.connection.clone();
        let count = commands.len();
        let asked = async {
            let replies = connection.req_packed_commands(commands, 0, count).await?;
            replies.into_iter().map(|reply| Ok(reply.extract_error()?)).collect()
        };
        self.watched(asked).await
    }
}

/// Takes note of a connection that is of no use any more.
fn watched<T>(broken: &AtomicBool, asked: Result<T, Failure>) -> Result<T, Failure> {
    if let Err(Failure::Away(_)) = &asked {
        broken.store(true, Ordering::Relaxed);
    }
    asked
}

async fn in_time<T>(patience: Duration, asked: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    timeout(patience, asked).await.unwrap_or_else(|_| Err(Failure::Away("no reply in time".to_owned())))
}
