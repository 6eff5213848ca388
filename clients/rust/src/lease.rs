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
use crate::sending::{Refused, Sending};

/// Share of the ttl after which a lease counts as lost. The rest is for stopping the work before the server grants the
/// lease to another holder.
const WORKING: f64 = 0.8;

/// Pause between attempts without a connection for blocking calls.
const ASKED_AGAIN: Duration = Duration::from_millis(100);

/// Holder of a lease, and the calls for it.
#[derive(Clone)]
pub(crate) struct Place<C> {
    sending: Sending<C>,
    key: String,
    /// Limit, ttl, and holder.
    words: Vec<String>,
    most: Amount,
    ttl: Duration,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Place<C> {
    /// Creates a holder. `key` is the key on the server.
    pub(crate) fn new(sending: Sending<C>, key: String, limit: &Limit) -> Result<Self, Error> {
        let (true, Some(ttl), Some(most)) = (limit.is_concurrency(), limit.window, limit.quota) else {
            return Err(Error::Call("a lease is of a limit such as Limit::concurrency(10, \"30s\")".to_owned()));
        };
        let mut words = vec!["RL.ACQUIRE".to_owned(), key.clone()];
        words.extend(limit.words.iter().cloned());
        words.push(Uuid::new_v4().simple().to_string());
        Ok(Self { sending, key, words, most, ttl })
    }

    async fn renewed(&self) -> Result<Decision, Error> {
        let reply = self.sending.send_command(&self.words).await?;
        read(&reply)
    }

    async fn released(&self) -> Result<(), Error> {
        let holder = self.words.last().cloned().unwrap_or_default();
        let release = ["RL.RELEASE".to_owned(), self.key.clone(), holder];
        self.sending.changed(&self.key, &release, true).await.map(|_| ()).map_err(Refused::into_error)
    }

    /// Acquires the lease as soon as there is room, or returns the server's denial after `wait`. Also returns the time
    /// of the request.
    async fn acquire(&self, wait: Duration) -> Result<(Decision, Instant), Error> {
        let until = Instant::now() + wait;
        loop {
            let sent_at = Instant::now();
            let decision = self.renewed().await?;
            let left = until.saturating_duration_since(Instant::now());
            if decision.allowed || decision.wait.is_none() || left.is_zero() {
                return Ok((decision, sent_at));
            }
            match self.sending.blocked(&self.words, left).await {
                Some(Ok(reply)) => return Ok((read(&reply)?, Instant::now())),
                // The server is no longer the primary: the next attempt goes to the new one.
                Some(Err(Refused::Reply(reply))) if reply.starts_with("UNBLOCKED ") => {}
                Some(Err(why)) => return Err(why.into_error()),
                None => {}
            }
            sleep(ASKED_AGAIN.min(left)).await;
        }
    }

    /// Renews the lease, and returns when it is lost.
    async fn renew(&self, sent_at: Instant) {
        // The lease was granted after it was requested, so it ends after this.
        let mut held_until = sent_at + self.ttl.mul_f64(WORKING);
        let mut pause = self.ttl / 3;
        loop {
            let left = held_until.saturating_duration_since(Instant::now());
            sleep(pause.min(left)).await;
            let sent_at = Instant::now();
            if sent_at >= held_until {
                return;
            }
            match self.renewed().await {
                Ok(decision) if decision.allowed => {
                    held_until = sent_at + self.ttl.mul_f64(WORKING);
                    pause = self.ttl / 3;
                }
                // The lease had expired, and another holder has its place.
                Ok(_) => return,
                // Retry sooner while the lease is held.
                Err(_) => pause = self.ttl / 20,
            }
        }
    }
}

fn read(reply: &Value) -> Result<Decision, Error> {
    Decision::read(reply, None).ok_or_else(|| Error::Unavailable(format!("no decision: {reply:?}")))
}

/// Guard that releases the lease when it is dropped, also while it is being acquired.
struct Held<C: ConnectionLike + Clone + Send + Sync + 'static> {
    place: Place<C>,
    is_held: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Held<C> {
    fn drop(&mut self) {
        // Without a runtime the lease expires.
        if let (true, Ok(runtime)) = (self.is_held, tokio::runtime::Handle::try_current()) {
            let place = self.place.clone();
            runtime.spawn(async move { place.released().await });
        }
    }
}

/// Lease, by [`Limiter::lease`](crate::Limiter::lease). When it is dropped, a task releases it.
pub struct Lease<C: ConnectionLike + Clone + Send + Sync + 'static> {
    held: Held<C>,
    decision: Decision,
    renewing: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Lease<C> {
    pub(crate) async fn acquired(place: Place<C>, wait: Duration) -> Result<Self, Error> {
        let mut held = Held { place, is_held: true };
        let (decision, sent_at) = held.place.acquire(wait).await?;
        if !decision.allowed {
            held.is_held = false;
            return Err(Error::Denied(format!("all {} leases are held", held.place.most.units())));
        }
        let (tell, lost) = watch::channel(false);
        let place = held.place.clone();
        let renewing = tokio::spawn(async move {
            place.renew(sent_at).await;
            let _ = tell.send(true);
        });
        Ok(Self { held, decision, renewing, lost })
    }

    /// Returns the server's decision that granted the lease.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns `true` if the lease was not renewed in time: another holder may get it soon.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Completes when the lease is lost, and never otherwise: for a `select!` with the work.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|is_lost| *is_lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Releases the lease.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and others: then the lease expires.
    pub async fn release(mut self) -> Result<(), Error> {
        self.held.is_held = false;
        self.renewing.abort();
        self.held.place.released().await
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Lease<C> {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}
