//! Leases of a concurrency limit: held until they are released or dropped, and renewed meanwhile.

use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::ConnectionLike;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::decision::Decision;
use crate::error::Error;
use crate::limits::{Amount, Limit};
use crate::sending::{CallFailure, CallSender};

/// Share of the ttl after which a lease that was not renewed counts as lost. The rest of the ttl is for stopping the
/// work before the server grants the lease to another holder.
const HELD_SHARE: f64 = 0.8;

/// Pause between attempts to acquire a lease without a client for blocking calls.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Holder of a lease, and the calls for it.
#[derive(Clone)]
pub(crate) struct LeaseHolder<C> {
    sender: CallSender<C>,
    key: String,
    /// Words of the call RL.ACQUIRE, the last of which is the id of the holder.
    words: Vec<String>,
    max_leases: Amount,
    ttl: Duration,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> LeaseHolder<C> {
    /// Creates a holder. `key` is the key on the server.
    pub(crate) fn new(sender: CallSender<C>, key: String, limit: &Limit) -> Result<Self, Error> {
        let (true, Some(ttl), Some(max_leases)) = (limit.is_concurrency(), limit.window, limit.quota) else {
            return Err(Error::Call("a lease is of a limit such as Limit::concurrency(10, \"30s\")".to_owned()));
        };
        let mut words = vec!["RL.ACQUIRE".to_owned(), key.clone()];
        words.extend(limit.words.iter().cloned());
        words.push(Uuid::new_v4().simple().to_string());
        Ok(Self { sender, key, words, max_leases, ttl })
    }

    /// Sends RL.ACQUIRE, which acquires the lease, or renews it if it is held.
    async fn send_acquire(&self) -> Result<Decision, Error> {
        let reply = self.sender.send_command(&self.words).await?;
        decode(&reply)
    }

    async fn send_release(&self) -> Result<(), Error> {
        let holder = self.words.last().cloned().unwrap_or_default();
        let release = ["RL.RELEASE".to_owned(), self.key.clone(), holder];
        self.sender.send_change(&self.key, &release, true).await.map(|_| ()).map_err(CallFailure::into_error)
    }

    /// Acquires the lease as soon as there is room, or returns the server's denial after `wait`. Also returns the time
    /// of the request, after which the server granted or renewed the lease.
    async fn acquire(&self, wait: Duration) -> Result<(Decision, Instant), Error> {
        let deadline = Instant::now() + wait;
        loop {
            let sent_at = Instant::now();
            let decision = self.send_acquire().await?;
            let remaining = deadline.saturating_duration_since(Instant::now());
            if decision.allowed || decision.wait.is_none() || remaining.is_zero() {
                return Ok((decision, sent_at));
            }
            let blocking_sent_at = Instant::now();
            match self.sender.send_blocking(&self.words, remaining).await {
                Some(Ok(reply)) => {
                    let decision = decode(&reply)?;
                    // The time of the grant is unknown, only that of the request: if much of the ttl may be over, the
                    // lease is renewed first.
                    if !decision.allowed || blocking_sent_at.elapsed() < self.ttl / 2 {
                        return Ok((decision, blocking_sent_at));
                    }
                    continue;
                }
                // The server is no longer the primary: the next attempt goes to the new one.
                Some(Err(CallFailure::ErrorReply(reply))) if reply.starts_with("UNBLOCKED ") => {}
                Some(Err(why)) => return Err(why.into_error()),
                None => {}
            }
            sleep(RETRY_PAUSE.min(remaining)).await;
        }
    }

    /// Renews the lease until it is lost. `requested_at` is the time that `acquire` returned.
    async fn renew(&self, requested_at: Instant) {
        // The server counts the ttl from a time after the request.
        let mut held_until = requested_at + self.ttl.mul_f64(HELD_SHARE);
        let mut pause = (self.ttl / 3).saturating_sub(requested_at.elapsed());
        loop {
            let remaining = held_until.saturating_duration_since(Instant::now());
            sleep(pause.min(remaining)).await;
            let sent_at = Instant::now();
            if sent_at >= held_until {
                return;
            }
            match self.send_acquire().await {
                Ok(decision) if decision.allowed => {
                    held_until = sent_at + self.ttl.mul_f64(HELD_SHARE);
                    pause = self.ttl / 3;
                }
                // The lease had expired, and another holder has taken it.
                Ok(_) => return,
                // Retry sooner while the lease is held.
                Err(_) => pause = self.ttl / 20,
            }
        }
    }
}

fn decode(reply: &Value) -> Result<Decision, Error> {
    Decision::decode(reply, None).ok_or_else(|| Error::Unavailable(format!("no decision: {reply:?}")))
}

/// Guard that releases the lease when it is dropped, also while it is being acquired.
struct ReleaseGuard<C: ConnectionLike + Clone + Send + Sync + 'static> {
    holder: LeaseHolder<C>,
    must_release: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for ReleaseGuard<C> {
    fn drop(&mut self) {
        // Without a runtime the lease expires.
        if let (true, Ok(runtime)) = (self.must_release, tokio::runtime::Handle::try_current()) {
            let holder = self.holder.clone();
            runtime.spawn(async move { holder.send_release().await });
        }
    }
}

/// Lease of a concurrency limit, acquired by [`Limiter::lease`](crate::Limiter::lease). When it is dropped, a task
/// releases it.
pub struct Lease<C: ConnectionLike + Clone + Send + Sync + 'static> {
    guard: ReleaseGuard<C>,
    decision: Decision,
    renewing: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Lease<C> {
    pub(crate) async fn acquired(holder: LeaseHolder<C>, wait: Duration) -> Result<Self, Error> {
        let mut guard = ReleaseGuard { holder, must_release: true };
        let (decision, requested_at) = guard.holder.acquire(wait).await?;
        if !decision.allowed {
            guard.must_release = false;
            return Err(Error::Denied(format!("all {} leases are held", guard.holder.max_leases.units())));
        }
        let (lost_sender, lost) = watch::channel(false);
        let holder = guard.holder.clone();
        let renewing = tokio::spawn(async move {
            holder.renew(requested_at).await;
            let _ = lost_sender.send(true);
        });
        Ok(Self { guard, decision, renewing, lost })
    }

    /// Returns the server's decision that granted the lease.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns `true` if the lease was not renewed in time: another holder may get it soon.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Completes when the lease is lost, and never otherwise. Use it in a `select!` with the work.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|is_lost| *is_lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Releases the lease.
    ///
    /// # Errors
    /// Any error of the server or the connection. The lease then expires.
    pub async fn release(mut self) -> Result<(), Error> {
        self.guard.must_release = false;
        self.renewing.abort();
        self.guard.holder.send_release().await
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Lease<C> {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}
