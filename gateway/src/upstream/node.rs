//! Server or node of a cluster: one connection that all calls share, a circuit breaker and a probe.

use super::breaker::Breaker;
use super::outages::Outages;
use super::policies::{self, probe, require_primary};
use super::tracking::Tracking;
use super::{Address, CHECK_INTERVAL, PROBE_INTERVAL, PROBE_KEY, PROBE_TIMEOUT};
use crate::denied_keys::DeniedKeys;
use crate::metrics;
use crate::permission_log::PermissionLog;
use crate::policy_cache::PolicyCache;
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

/// Maximum time for which the gateway awaits a late reply, in order to count it.
const LATE_REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of calls to one server without a reply, including those whose callers have timed out.
pub const MAX_IN_FLIGHT: usize = 10_000;
/// Number of consecutive probes without a reply after which the connection is replaced. A connection whose peer has
/// vanished never fails by itself.
const MAX_UNANSWERED_PROBES: u32 = 4;

/// State that all nodes share.
pub struct Shared {
    /// Address of the server, with credentials.
    pub address: Address,
    /// Servers that are away, for metrics and the log.
    pub outages: Outages,
    /// Log of the permissions that the user lacks.
    pub permission_log: Arc<PermissionLog>,
    /// Remembered denials.
    pub denied_keys: Arc<DeniedKeys>,
    /// `true` once a server has replied.
    pub has_replied: AtomicBool,
    /// Wakes the task that reads the slots of a cluster.
    pub slots_changed: Notify,
    /// Number of times that the certificates for TLS were reloaded.
    pub certificate_reloads: AtomicU64,
}

/// Server that calls are sent to.
pub struct Node {
    name: String,
    /// Host and port of a node of a cluster.
    pub host: Option<HostPort>,
    pub shared: Arc<Shared>,
    /// Connection on which the server reports changes of keys whose denials are remembered.
    pub tracking: Tracking,
    connection: ArcSwapOption<MultiplexedConnection>,
    /// Error of the last attempt to connect, while there is no connection.
    connect_error: ArcSwapOption<String>,
    /// `true` once the first attempt to connect has ended.
    has_attempted: watch::Sender<bool>,
    /// Circuit breaker of the calls.
    pub breaker: Breaker,
    /// Permits for the calls in flight.
    pub in_flight: Arc<Semaphore>,
    /// Wakes the task that maintains the connection.
    connection_broken: Notify,
    /// Key of the probe.
    probe_key: ArcSwap<Vec<u8>>,
    /// `true` while no key belongs to the node. Outages of a retired node are not reported.
    is_retired: AtomicBool,
}

impl Node {
    /// Creates a node without a connection. `host` is set for a node of a cluster.
    pub fn new(name: String, host: Option<HostPort>, shared: Arc<Shared>) -> Arc<Node> {
        Arc::new(Node {
            name,
            host,
            shared,
            tracking: Tracking::default(),
            connection: ArcSwapOption::empty(),
            connect_error: ArcSwapOption::empty(),
            has_attempted: watch::Sender::new(false),
            breaker: Breaker::default(),
            in_flight: Arc::new(Semaphore::new(MAX_IN_FLIGHT)),
            connection_broken: Notify::new(),
            probe_key: ArcSwap::from_pointee(PROBE_KEY.as_bytes().to_vec()),
            is_retired: AtomicBool::new(false),
        })
    }

    /// Returns host and port of the server, or `None` if the address names several hosts or Sentinels.
    pub fn address(&self) -> Option<&HostPort> {
        match (&self.host, self.shared.address.hosts.as_slice()) {
            (Some(host), _) => Some(host),
            (None, [host]) if self.shared.address.primary.is_none() => Some(host),
            (None, _) => None,
        }
    }

    /// Returns the connection if the last call had a reply.
    pub fn healthy_connection(&self) -> Option<Arc<MultiplexedConnection>> {
        self.connection.load_full().filter(|_| !self.breaker.has_failed())
    }

    /// Returns the key of the probe.
    pub fn probe_key(&self) -> Arc<Vec<u8>> {
        self.probe_key.load_full()
    }

    /// Sets the key of the probe.
    pub fn set_probe_key(&self, key: Vec<u8>) {
        self.probe_key.store(Arc::new(key));
    }

    /// Sends a call and waits for the reply until the deadline; a later reply is counted. If `is_asking` is `true`,
    /// ASKING precedes the call, so that the node accepts the call on a slot that it imports.
    ///
    /// # Errors
    /// If the reply is an error, or if there is no reply.
    pub async fn send(&self, command: Cmd, is_asking: bool, deadline: Instant) -> RedisResult<Value> {
        if self.breaker.is_open() {
            return Err(lost_call("the server is away"));
        }
        let Ok(permit) = Arc::clone(&self.in_flight).try_acquire_owned() else {
            return Err(lost_call("too many calls without a reply"));
        };
        let Some(connection) = self.connection(deadline).await else {
            // The outage that this failure may begin is logged with its cause.
            let cause = self.connect_error.load_full();
            self.record_failure(cause.as_deref().map_or("not connected", String::as_str));
            return Err(lost_call("not connected"));
        };
        let mut request = Box::pin(async move {
            let _permit = permit;
            let connection = MultiplexedConnection::clone(&connection);
            if is_asking { send_asking(connection, command).await } else { send(connection, &command).await }
        });
        let Ok(reply) = timeout_at(deadline, &mut request).await else {
            tokio::spawn(async move {
                if timeout(LATE_REPLY_TIMEOUT, request)
                    .await
                    .is_ok_and(|reply| reply.as_ref().map_or_else(is_error_reply, |_| true))
                {
                    metrics::count_late_replies(1);
                }
            });
            self.record_failure("no reply in time");
            return Err(lost_call("no reply in time"));
        };
        match &reply {
            Err(error) if !is_error_reply(error) && redirect(error).is_none() => {
                self.record_failure(&error.to_string());
                self.connection_broken.notify_one();
            }
            // Neither a success, which would make the gateway ready, nor a failure: the probe reports the missing
            // module.
            Err(error) if lacks_module(error) => {}
            _ => self.record_success(),
        }
        reply
    }

    /// Returns the connection, if there is one. If the node is new, first waits for the first attempt to connect.
    async fn connection(&self, deadline: Instant) -> Option<Arc<MultiplexedConnection>> {
        if let Some(connection) = self.connection.load_full() {
            return Some(connection);
        }
        let mut has_attempted = self.has_attempted.subscribe();
        let _ = timeout_at(deadline, has_attempted.wait_for(|has_attempted| *has_attempted)).await;
        self.connection.load_full()
    }

    /// Counts a failure of the server.
    pub fn record_failure(&self, why: &str) {
        if self.breaker.record_failure() && !self.is_retired.load(Ordering::Acquire) {
            self.shared.outages.begin(&self.name, why);
        }
    }

    /// Counts a reply of the server.
    pub fn record_success(&self) {
        self.shared.has_replied.store(true, Ordering::Relaxed);
        if self.breaker.record_success() {
            self.shared.outages.end(&self.name);
        }
    }

    /// Sets `is_retired`. Outages of a retired node are not reported.
    pub fn set_retired(&self, is_retired: bool) {
        self.is_retired.store(is_retired, Ordering::Release);
        if is_retired {
            self.has_attempted.send_replace(true);
            self.shared.outages.end(&self.name);
        }
    }

    /// Maintains the connection to a node of a cluster. Never completes.
    pub async fn run(self: Arc<Node>) {
        loop {
            let started = Instant::now();
            match self.connect().await {
                Ok(connection) => self.watch(connection, None).await,
                Err(error) => self.record_connect_failure(&error),
            }
            // Another node may have taken over the slots.
            self.shared.slots_changed.notify_one();
            sleep_until(started + PROBE_INTERVAL).await;
        }
    }

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        match &self.host {
            Some(host) => connect::connect_to_node(&self.shared.address, host).await,
            None => Ok(connect::connect(&self.shared.address).await?.connection),
        }
    }

    /// Counts a failed attempt to connect.
    pub fn record_connect_failure(&self, error: &RedisError) {
        let error = Arc::new(error.to_string());
        self.connect_error.store(Some(Arc::clone(&error)));
        self.record_failure(&error);
        self.shared.outages.log(false);
        self.has_attempted.send_replace(true);
    }

    /// Uses a connection until it fails. Each second, and sooner after a failure, checks the server and reads its
    /// policies into `cache`, unless it is `None`. Replaces the connection after a reload of the certificates.
    pub async fn watch(&self, connection: MultiplexedConnection, cache: Option<&PolicyCache>) {
        let mut connection = Arc::new(connection);
        let store = |connection: &Arc<MultiplexedConnection>| self.connection.store(Some(Arc::clone(connection)));
        store(&connection);
        self.connect_error.store(None);
        self.has_attempted.send_replace(true);
        let (mut unanswered_probes, mut used_reload) = (0, self.shared.certificate_reloads.load(Ordering::Acquire));
        loop {
            let last_reload = self.shared.certificate_reloads.load(Ordering::Acquire);
            if last_reload != used_reload
                && let Ok(Ok(new)) = timeout(PROBE_TIMEOUT, self.connect()).await
            {
                used_reload = last_reload;
                connection = Arc::new(new);
                store(&connection);
            }
            let started = Instant::now();
            let check = async {
                if self.breaker.has_failed() {
                    probe(&connection, &self.probe_key()).await?;
                }
                require_primary(&connection).await?;
                match cache {
                    Some(cache) => policies::refresh(&connection, cache).await,
                    None => Ok(()),
                }
            };
            match timeout(PROBE_TIMEOUT, check).await {
                Ok(Ok(())) => {
                    unanswered_probes = 0;
                    self.record_success();
                }
                // The server decides nevertheless; responses describe its limits in less detail.
                Ok(Err(error)) if error.code() == Some("NOPERM") => {
                    self.shared.permission_log.log(error.detail().unwrap_or_default());
                    self.record_success();
                }
                Ok(Err(error)) => {
                    self.record_failure(&explain(&error));
                    break;
                }
                Err(_) => {
                    self.record_failure("no reply in time");
                    unanswered_probes += 1;
                    if unanswered_probes >= MAX_UNANSWERED_PROBES {
                        break;
                    }
                }
            }
            self.shared.outages.log(false);
            let pause = if self.breaker.is_open() { PROBE_INTERVAL } else { CHECK_INTERVAL };
            tokio::select! {
                () = sleep_until(started + pause) => {}
                () = self.connection_broken.notified() => sleep(Duration::from_millis(10)).await,
            }
        }
        self.connection.store(None);
        self.tracking.close();
        self.shared.denied_keys.forget_all();
    }
}

fn lost_call(why: &'static str) -> RedisError {
    (ErrorKind::Client, why).into()
}
