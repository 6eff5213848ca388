//! Leases of a concurrency limit: held until they are released or dropped, and renewed meanwhile.

use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use uuid::Uuid;

use crate::decision::Decision;
use crate::error::Error;
use crate::limiter::Limiter;
use crate::limits::Limit;

/// What of the ttl is for work. The rest is for stopping it, while the lease is still its own.
const WORKING: f64 = 0.8;

/// A place, by [`Limiter::lease`]. When it is dropped, a task releases it.
pub struct Lease<C: ConnectionLike + Clone + Send + Sync + 'static> {
    limiter: Limiter<C>,
    key: String,
    holder: String,
    decision: Decision,
    renewing: JoinHandle<()>,
    lost: watch::Receiver<bool>,
    is_released: bool,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Lease<C> {
    pub(crate) async fn acquired(limiter: Limiter<C>, key: String, limit: Limit) -> Result<Self, Error> {
        let (true, Some(ttl)) = (limit.is_held(), limit.window) else {
            return Err(Error::Call("a lease is of a limit such as Limit::concurrency(10, \"30s\")".to_owned()));
        };
        let holder = Uuid::new_v4().simple().to_string();
        let asked_at = Instant::now();
        let decision = renewed(&limiter, &key, &limit, &holder).await?;
        if !decision.allowed {
            let most = limit.quota.map_or(0.0, crate::limits::Amount::units);
            return Err(Error::Denied(format!("all {most} leases are held")));
        }
        let (tell, lost) = watch::channel(false);
        let renewing = tokio::spawn({
            let (limiter, key, holder) = (limiter.clone(), key.clone(), holder.clone());
            async move {
                renew(&limiter, &key, &limit, &holder, ttl, asked_at).await;
                let _ = tell.send(true);
            }
        });
        Ok(Self { limiter, key, holder, decision, renewing, lost, is_released: false })
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
        self.is_released = true;
        self.renewing.abort();
        self.limiter.asked("RL.RELEASE", &self.key, std::slice::from_ref(&self.holder)).await.map(|_| ())
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Lease<C> {
    fn drop(&mut self) {
        self.renewing.abort();
        if self.is_released {
            return;
        }
        let (limiter, key, holder) = (self.limiter.clone(), self.key.clone(), self.holder.clone());
        // Without a runtime it expires by itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { limiter.asked("RL.RELEASE", &key, &[holder]).await });
        }
    }
}

async fn renewed<C>(limiter: &Limiter<C>, key: &str, limit: &Limit, holder: &str) -> Result<Decision, Error>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    // The number, the ttl, and whose lease it is.
    let mut words = limit.words.clone();
    words.push(holder.to_owned());
    let reply = limiter.asked("RL.ACQUIRE", key, &words).await?;
    Decision::read(&reply, None).ok_or_else(|| Error::Unavailable(format!("no decision: {reply:?}")))
}

/// Until the lease is lost.
async fn renew<C>(limiter: &Limiter<C>, key: &str, limit: &Limit, holder: &str, ttl: Duration, asked_at: Instant)
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    // The lease began after it was asked for, so it ends after this.
    let mut held_until = asked_at + ttl.mul_f64(WORKING);
    let mut pause = ttl / 3;
    loop {
        let left = held_until.saturating_duration_since(Instant::now());
        sleep(pause.min(left)).await;
        let asked_at = Instant::now();
        if asked_at >= held_until {
            return;
        }
        match renewed(limiter, key, limit, holder).await {
            Ok(decision) if decision.allowed => {
                held_until = asked_at + ttl.mul_f64(WORKING);
                pause = ttl / 3;
            }
            // It had expired, and another has it.
            Ok(_) => return,
            // For as long as it is held.
            Err(_) => pause = ttl / 20,
        }
    }
}
