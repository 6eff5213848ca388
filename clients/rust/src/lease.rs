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

/// What of the ttl is for work. The rest is for stopping it, while the lease is still its own.
const WORKING: f64 = 0.8;

/// Between one attempt and the next, where there is no connection to wait on.
const ASKED_AGAIN: Duration = Duration::from_millis(100);

/// The lease of one holder.
#[derive(Clone)]
pub(crate) struct Place<C> {
    sending: Sending<C>,
    key: String,
    /// The number, the ttl, and whose lease it is.
    words: Vec<String>,
    most: Amount,
    ttl: Duration,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Place<C> {
    /// The key is the server's.
    pub(crate) fn new(sending: Sending<C>, key: String, limit: &Limit) -> Result<Self, Error> {
        let (true, Some(ttl), Some(most)) = (limit.is_held(), limit.window, limit.quota) else {
            return Err(Error::Call("a lease is of a limit such as Limit::concurrency(10, \"30s\")".to_owned()));
        };
        let mut words = vec!["RL.ACQUIRE".to_owned(), key.clone()];
        words.extend(limit.words.iter().cloned());
        words.push(Uuid::new_v4().simple().to_string());
        Ok(Self { sending, key, words, most, ttl })
    }

    async fn renewed(&self) -> Result<Decision, Error> {
        let reply = self.sending.asked(&self.words).await?;
        read(&reply)
    }

    async fn released(&self) -> Result<(), Error> {
        let holder = self.words.last().cloned().unwrap_or_default();
        let release = ["RL.RELEASE".to_owned(), self.key.clone(), holder];
        self.sending.changed(&self.key, &release, true).await.map(|_| ()).map_err(Refused::into_error)
    }

    /// As soon as there is room, or the server's denial once the time is over. And when it was asked for.
    async fn waited(&self, wait: Duration) -> Result<(Decision, Instant), Error> {
        let until = Instant::now() + wait;
        loop {
            let asked_at = Instant::now();
            let decision = self.renewed().await?;
            let left = until.saturating_duration_since(Instant::now());
            if decision.allowed || decision.wait.is_none() || left.is_zero() {
                return Ok((decision, asked_at));
            }
            match self.sending.blocked(&self.words, left).await {
                Some(Ok(reply)) => return Ok((read(&reply)?, Instant::now())),
                // Of a server that is no longer the primary: the next attempt asks the one that is.
                Some(Err(Refused::Reply(said))) if said.starts_with("UNBLOCKED ") => {}
                Some(Err(why)) => return Err(why.into_error()),
                None => {}
            }
            sleep(ASKED_AGAIN.min(left)).await;
        }
    }

    /// Until the lease is lost.
    async fn renew(&self, asked_at: Instant) {
        // The lease began after it was asked for, so it ends after this.
        let mut held_until = asked_at + self.ttl.mul_f64(WORKING);
        let mut pause = self.ttl / 3;
        loop {
            let left = held_until.saturating_duration_since(Instant::now());
            sleep(pause.min(left)).await;
            let asked_at = Instant::now();
            if asked_at >= held_until {
                return;
            }
            match self.renewed().await {
                Ok(decision) if decision.allowed => {
                    held_until = asked_at + self.ttl.mul_f64(WORKING);
                    pause = self.ttl / 3;
                }
                // It had expired, and another has it.
                Ok(_) => return,
                // For as long as it is held.
                Err(_) => pause = self.ttl / 20,
            }
        }
    }
}

fn read(reply: &Value) -> Result<Decision, Error> {
    Decision::read(reply, None).ok_or_else(|| Error::Unavailable(format!("no decision: {reply:?}")))
}

/// Releases what may be held when it is dropped: also of somebody who no longer waits.
struct Held<C: ConnectionLike + Clone + Send + Sync + 'static> {
    place: Place<C>,
    is_held: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Held<C> {
    fn drop(&mut self) {
        // Without a runtime it expires by itself.
        if let (true, Ok(runtime)) = (self.is_held, tokio::runtime::Handle::try_current()) {
            let place = self.place.clone();
            runtime.spawn(async move { place.released().await });
        }
    }
}

/// A place, by [`Limiter::lease`](crate::Limiter::lease). When it is dropped, a task releases it.
pub struct Lease<C: ConnectionLike + Clone + Send + Sync + 'static> {
    held: Held<C>,
    decision: Decision,
    renewing: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Lease<C> {
    pub(crate) async fn acquired(place: Place<C>, wait: Duration) -> Result<Self, Error> {
        let mut held = Held { place, is_held: true };
        let (decision, asked_at) = held.place.waited(wait).await?;
        if !decision.allowed {
            held.is_held = false;
            return Err(Error::Denied(format!("all {} leases are held", held.place.most.units())));
        }
        let (tell, lost) = watch::channel(false);
        let place = held.place.clone();
        let renewing = tokio::spawn(async move {
            place.renew(asked_at).await;
            let _ = tell.send(true);
        });
        Ok(Self { held, decision, renewing, lost })
    }

    /// What the server said when it granted the lease.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Whether the lease could not be renewed in time: somebody else may have it soon.
    pub fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }

    /// Returns when the lease is lost, and never if it is not: for a `select!` beside the work.
    pub async fn lost(&self) {
        let mut lost = self.lost.clone();
        if lost.wait_for(|is_lost| *is_lost).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Gives the place back.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and others: then the lease expires by itself.
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
