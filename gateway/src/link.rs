//! The link to the server: one connection that all calls share, found anew when it breaks, and given up for a while
//! when nobody answers.

mod address;
mod breaker;
pub mod connect;
pub mod shared;

use crate::ask::{Call, Reply, is_answer};
use crate::file_stamp::Stamp;
use crate::permission::Missing;
use crate::reload::Reloaded;
use crate::seen;
pub use address::Address;
use arc_swap::ArcSwapOption;
use breaker::Breaker;
use connect::Connection;
use futures_util::future::join_all;
use redis::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

/// How long a reply is waited for that is only counted.
const LATEST: Duration = Duration::from_secs(10);
/// How often the server is asked for its policies' digest, and whether it is there.
const LOOK: Duration = Duration::from_secs(1);
/// How often a server that is away is asked whether it is back.
const PROBE: Duration = Duration::from_millis(250);
/// How long a probe waits: longer than a call would, since nobody waits for it.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);

/// The key of a probe, which no descriptor has, and the name of its policy.
const PROBED: &str = "rl:";

/// The link, shared by all calls.
pub struct Link {
    address: Address,
    connection: ArcSwapOption<Connection>,
    breaker: Breaker,
    /// Whether the server has answered once.
    answered: AtomicBool,
    /// What the user may not do.
    pub missing: Missing,
    /// Wakes the task that keeps the connection: it is of no use any more.
    broken: Notify,
    /// How often the certificates for TLS have been renewed.
    renewals: AtomicU64,
}

/// What the server says of its policies, each time that they change.
pub trait Listener: Send + Sync {
    /// The digest of the policies that are known here.
    fn digest(&self) -> Option<String>;
    /// The policies as the server now has them: names and the words of their limits.
    fn policies(&self, digest: String, policies: Vec<(String, String)>);
}

impl Link {
    /// A link that connects once [`Link::keep`] runs.
    #[must_use]
    pub fn new(address: Address) -> Link {
        Link {
            address,
            connection: ArcSwapOption::empty(),
            breaker: Breaker::default(),
            answered: AtomicBool::new(false),
            missing: Missing::default(),
            broken: Notify::new(),
            renewals: AtomicU64::new(0),
        }
    }

    /// Whether files say whom TLS trusts, or who the gateway is.
    pub fn has_certificates(&self) -> bool {
        !self.address.files().is_empty()
    }

    /// Whether the server has answered since the start.
    pub fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed)
    }

    /// The replies to calls that are sent at once, in their order. What has no reply by the deadline is lost; a reply
    /// that comes later is counted.
    pub async fn ask(&self, calls: Arc<[Call]>, deadline: Instant) -> Vec<Reply> {
        let lost = |why: &str| calls.iter().map(|_| Reply::Lost(why.to_owned())).collect::<Vec<_>>();
        if self.breaker.is_open() {
            return lost("the server is away");
        }
        let Some(connection) = self.connection.load_full() else {
            self.failed("not connected");
            return lost("not connected");
        };
        let sent = Instant::now();
        let asked = Arc::clone(&calls);
        let mut all = Box::pin(async move {
            let reply = async |call: &Call| call.reply(connection.send(call.command(), deadline).await);
            match &*asked {
                [call] => vec![reply(call).await],
                calls => join_all(calls.iter().map(reply)).await,
            }
        });
        let Ok(replies) = timeout_at(deadline, &mut all).await else {
            tokio::spawn(async move {
                if let Ok(replies) = timeout(LATEST, all).await {
                    let late = replies.iter().filter(|reply| !matches!(reply, Reply::Lost(_))).count();
                    seen::late(late);
                }
            });
            self.failed("no reply in time");
            return lost("no reply in time");
        };
        match replies.iter().find_map(|reply| if let Reply::Lost(why) = reply { Some(why) } else { None }) {
            Some(why) => {
                self.failed(why);
                self.broken.notify_one();
            }
            None => self.succeeded(),
        }
        seen::server_seconds(sent.elapsed());
        replies
    }

    fn failed(&self, why: &str) {
        if self.breaker.failed() {
            tracing::warn!(why, "the server is away: requests are answered without it");
            seen::outage(true);
        }
    }

    fn succeeded(&self) {
        self.answered.store(true, Ordering::Relaxed);
        if self.breaker.succeeded() {
            tracing::info!("the server is back");
            seen::outage(false);
        }
    }

    /// Connects, and connects again when the connection breaks; asks each second whether the policies have changed.
    pub async fn keep(&self, listener: &dyn Listener) {
        loop {
            match timeout(Duration::from_secs(5), connect::connect(&self.address)).await {
                Ok(Ok(connection)) => {
                    self.watch(connection, listener).await;
                    self.connection.store(None);
                }
                Ok(Err(error)) => self.failed(&error.to_string()),
                Err(_) => self.failed("no connection in time"),
            }
            sleep(PROBE).await;
        }
    }

    /// Until the connection is of no use any more. Renewed certificates are for another one, also of those to the nodes of
    /// a cluster, which takes its place once it is there.
    async fn watch(&self, connection: Connection, listener: &dyn Listener) {
        let mut connection = Arc::new(connection);
        self.connection.store(Some(Arc::clone(&connection)));
        let (mut unanswered, mut renewals) = (0, self.renewals.load(Ordering::Acquire));
        loop {
            let renewed = self.renewals.load(Ordering::Acquire);
            if renewed != renewals
                && let Ok(Ok(found)) = timeout(PROBE_TIMEOUT, connect::connect(&self.address)).await
            {
                renewals = renewed;
                connection = Arc::new(found);
                self.connection.store(Some(Arc::clone(&connection)));
            }
            let began = Instant::now();
            let looked = async {
                if self.breaker.has_failed() {
                    decides(&connection).await?;
                }
                policies(&connection, listener).await
            };
            match timeout(PROBE_TIMEOUT, looked).await {
                Ok(Ok(())) => {
                    unanswered = 0;
                    self.succeeded();
                }
                // Answers tell less of their limits then.
                Ok(Err(error)) if error.code() == Some("NOPERM") => {
                    self.missing.tell(error.detail().unwrap_or_default());
                    self.succeeded();
                }
                Ok(Err(error)) => return self.failed(&error.to_string()),
                // A connection whose other end has vanished never says so.
                Err(_) if unanswered >= 3 => return self.failed("no reply in time"),
                Err(_) => {
                    unanswered += 1;
                    self.failed("no reply in time");
                }
            }
            let pause = if self.breaker.is_open() { PROBE } else { LOOK };
            tokio::select! {
                () = sleep_until(began + pause) => {}
                () = self.broken.notified() => sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Reloaded for Link {
    fn name(&self) -> &'static str {
        "the certificates for the server"
    }

    fn stamp(&self) -> Stamp {
        Stamp::of(self.address.files())
    }

    fn read(&self) -> Result<(), String> {
        // Each connection that is made reads them.
        connect::check(&self.address).map_err(|error| error.to_string())?;
        self.renewals.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

/// Whether calls are decided again. INFO does not tell: it is answered while the server loads its file, while its cluster
/// has no quorum, and by a replica that has lost its primary. So it is asked about a policy that nobody has, without a
/// cost.
async fn decides(connection: &Connection) -> Result<(), redis::RedisError> {
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(PROBED).arg(PROBED).arg("COST").arg(0);
    match connection.send(command, Instant::now()).await {
        Err(error) if !is_answer(&error) => Err(error),
        _ => Ok(()),
    }
}

/// A section of INFO: Redis 6.2 takes no more than one in a call.
async fn info(connection: &Connection, section: &str) -> Result<String, redis::RedisError> {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    redis::from_redis_value(connection.ask(info).await?).map_err(Into::into)
}

/// Asks for the digest of the policies, and for the policies if it is another.
async fn policies(connection: &Connection, listener: &dyn Listener) -> Result<(), redis::RedisError> {
    // A replica would refuse what charges: the primary is elsewhere by now.
    if !connection.is_cluster() && info(connection, "replication").await?.lines().any(|line| line == "role:slave") {
        return Err((redis::ErrorKind::Client, "the server is a replica").into());
    }
    let told = info(connection, "ratelimit_policies").await?;
    let digest = told.lines().find_map(|line| line.strip_prefix("ratelimit_policies_digest:")).unwrap_or_default();
    if listener.digest().as_deref() == Some(digest) {
        return Ok(());
    }
    let Value::Array(rows) = connection.ask(redis::cmd("RL.POLICYLIST")).await? else { return Ok(()) };
    let rows = rows.iter().filter_map(|row| {
        let Value::Array(fields) = row else { return None };
        let text = |place: usize| {
            let bytes = redis::from_redis_value_ref::<Vec<u8>>(fields.get(place)?).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Some((text(0)?, text(2)?))
    });
    listener.policies(digest.to_owned(), rows.collect());
    Ok(())
}

#[cfg(test)]
pub mod tests;
