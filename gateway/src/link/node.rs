//! Node of the server: a connection that all calls share, a breaker and a probe of its own.

use super::breaker::Breaker;
use super::outages::Outages;
use super::policies::{Listener, probe, read, require_primary};
use super::{Address, LOOK, PROBE, PROBE_TIMEOUT, PROBED};
use crate::permission::Missing;
use crate::seen;
use arc_swap::{ArcSwap, ArcSwapOption};
use ratelimit_link::connect::{self, send, send_asking};
use ratelimit_link::redirect::redirect;
use ratelimit_link::server_error::{explain, is_error_reply, lacks_module};
use ratelimit_link::slots::HostPort;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// Maximum time for which a reply is awaited only to be counted.
const LATEST: Duration = Duration::from_secs(10);
/// Maximum number of calls to one server without a reply, also of those that no caller awaits any more.
pub const IN_FLIGHT: usize = 10_000;
/// Probes without a reply after which the connection is given up: one whose other end has vanished never fails.
const UNANSWERED: u32 = 4;

/// State that all nodes of a link share.
pub struct Shared {
    /// Hosts, and the credentials for them.
    pub address: Address,
    /// Nodes that are away.
    pub outages: Outages,
    /// Permissions that the user lacks.
    pub missing: Arc<Missing>,
    /// `true` once a server has replied.
    pub answered: AtomicBool,
    /// Wakes the task that reads the slots of a cluster.
    pub moved: Notify,
    /// Number of times that the certificates for TLS were renewed.
    pub renewals: AtomicU64,
}

/// Server that calls are sent to.
pub struct Node {
    name: String,
    /// Host and port in a cluster.
    host: Option<HostPort>,
    shared: Arc<Shared>,
    connection: ArcSwapOption<MultiplexedConnection>,
    /// `true` once the first attempt to connect is over.
    attempted: watch::Sender<bool>,
    /// Stops calls to a server that does not reply.
    pub breaker: Breaker,
    /// A permit for each call that may be in flight.
    pub in_flight: Arc<Semaphore>,
    /// Wakes the task that keeps the connection.
    broken: Notify,
    /// Key of the probe.
    probed: ArcSwap<Vec<u8>>,
    /// `true` once the node is not in use any more.
    retired: AtomicBool,
}

impl Node {
    /// Creates a node without a connection. `host` is that of a node of a cluster.
    pub fn new(name: String, host: Option<HostPort>, shared: Arc<Shared>) -> Arc<Node> {
        Arc::new(Node {
            name,
            host,
            shared,
            connection: ArcSwapOption::empty(),
            attempted: watch::Sender::new(false),
            breaker: Breaker::default(),
            in_flight: Arc::new(Semaphore::new(IN_FLIGHT)),
            broken: Notify::new(),
            probed: ArcSwap::from_pointee(PROBED.as_bytes().to_vec()),
            retired: AtomicBool::new(false),
        })
    }

    /// Returns the connection if the last call had a reply.
    pub fn healthy_connection(&self) -> Option<Arc<MultiplexedConnection>> {
        self.connection.load_full().filter(|_| !self.breaker.has_failed())
    }

    /// Returns the key of the probe.
    pub fn probed(&self) -> Arc<Vec<u8>> {
        self.probed.load_full()
    }

    /// Sets the key of the probe.
    pub fn set_probed(&self, key: Vec<u8>) {
        self.probed.store(Arc::new(key));
    }

    /// Sends a call and waits for the reply until the deadline; a later reply is counted. With `asking`, the server takes
    /// a call on a slot that it imports.
    ///
    /// # Errors
    /// The server's error, or the reason why there is no reply.
    pub async fn send(&self, command: Cmd, asking: bool, deadline: Instant) -> RedisResult<Value> {
        if self.breaker.is_open() {
            return Err(lost("the server is away"));
        }
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return Err(lost("too many calls without a reply"));
        };
        let Some(connection) = self.connection(deadline).await else {
            self.failed("not connected");
            return Err(lost("not connected"));
        };
        let mut asked = Box::pin(async move {
            let _permit = permit;
            let connection = MultiplexedConnection::clone(&connection);
            if asking { send_asking(connection, command).await } else { send(connection, &command).await }
        });
        let Ok(reply) = timeout_at(deadline, &mut asked).await else {
            tokio::spawn(async move {
                if timeout(LATEST, asked).await.is_ok_and(|reply| reply.as_ref().map_or_else(is_error_reply, |_| true))
                {
                    seen::late(1);
                }
            });
            self.failed("no reply in time");
            return Err(lost("no reply in time"));
        };
        match &reply {
            Err(error) if !is_error_reply(error) && redirect(error).is_none() => {
                self.failed(&error.to_string());
                self.broken.notify_one();
            }
            // The probe reports it; the gateway must not be ready.
            Err(error) if lacks_module(error) => {}
            _ => self.succeeded(),
        }
        reply
    }

    /// Returns the connection. A call to a new node waits for the first attempt to connect.
    async fn connection(&self, deadline: Instant) -> Option<Arc<MultiplexedConnection>> {
        if let Some(connection) = self.connection.load_full() {
            return Some(connection);
        }
        let mut attempted = self.attempted.subscribe();
        let _ = timeout_at(deadline, attempted.wait_for(|attempted| *attempted)).await;
        self.connection.load_full()
    }

    /// Counts a failure of the server.
    pub fn failed(&self, why: &str) {
        if self.breaker.failed() && !self.retired.load(Ordering::Acquire) {
            self.shared.outages.begin(&self.name, why);
        }
    }

    /// Counts a reply of the server.
    pub fn succeeded(&self) {
        self.shared.answered.store(true, Ordering::Relaxed);
        if self.breaker.succeeded() {
            self.shared.outages.end(&self.name);
        }
    }

    /// Starts or ends the time in which the node is in use: an outage of others is not reported.
    pub fn set_retired(&self, is: bool) {
        self.retired.store(is, Ordering::Release);
        if is {
            self.attempted.send_replace(true);
            self.shared.outages.end(&self.name);
        }
    }

    /// Keeps a connection to a node of a cluster, and probes it.
    pub async fn keep(self: Arc<Node>) {
        loop {
            let began = Instant::now();
            match self.connect().await {
                Ok(connection) => self.watch(connection, None).await,
                Err(error) => self.not_connected(&error),
            }
            // Another node may have taken over.
            self.shared.moved.notify_one();
            sleep_until(began + PROBE).await;
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        match &self.host {
            Some(host) => connect::connect_to_node(&self.shared.address, host).await,
            None => Ok(connect::connect(&self.shared.address).await?.connection),
        }
    }

    /// Counts a failed attempt to connect.
    pub fn not_connected(&self, error: &RedisError) {
        self.failed(&error.to_string());
        self.shared.outages.log(false);
        self.attempted.send_replace(true);
    }

    /// Uses a connection until it fails. Each second, and sooner after a failure, the server is probed, and its policies
    /// are read for a listener. Renewed certificates are for another connection.
    pub async fn watch(&self, connection: MultiplexedConnection, listener: Option<&dyn Listener>) {
        let mut connection = Arc::new(connection);
        let store = |connection: &Arc<MultiplexedConnection>| self.connection.store(Some(Arc::clone(connection)));
        store(&connection);
        self.attempted.send_replace(true);
        let (mut unanswered, mut renewals) = (0, self.shared.renewals.load(Ordering::Acquire));
        loop {
            let renewed = self.shared.renewals.load(Ordering::Acquire);
            if renewed != renewals
                && let Ok(Ok(found)) = timeout(PROBE_TIMEOUT, self.connect()).await
            {
                renewals = renewed;
                connection = Arc::new(found);
                store(&connection);
            }
            let began = Instant::now();
            let looked = async {
                if self.breaker.has_failed() {
                    probe(&connection, &self.probed()).await?;
                }
                require_primary(&connection).await?;
                match listener {
                    Some(listener) => read(&connection, listener).await,
                    None => Ok(()),
                }
            };
            match timeout(PROBE_TIMEOUT, looked).await {
                Ok(Ok(())) => {
                    unanswered = 0;
                    self.succeeded();
                }
                // Answers tell less of their limits then.
                Ok(Err(error)) if error.code() == Some("NOPERM") => {
                    self.shared.missing.tell(error.detail().unwrap_or_default());
                    self.succeeded();
                }
                Ok(Err(error)) => {
                    self.failed(&explain(&error));
                    break;
                }
                Err(_) => {
                    self.failed("no reply in time");
                    unanswered += 1;
                    if unanswered >= UNANSWERED {
                        break;
                    }
                }
            }
            self.shared.outages.log(false);
            let pause = if self.breaker.is_open() { PROBE } else { LOOK };
            tokio::select! {
                () = sleep_until(began + pause) => {}
                () = self.broken.notified() => sleep(Duration::from_millis(10)).await,
            }
        }
        self.connection.store(None);
    }
}

fn lost(why: &'static str) -> RedisError {
    (ErrorKind::Client, why).into()
}
