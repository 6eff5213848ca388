//! Units of a hot key, taken from the server by the batch and spent in this process.
//!
//! The server has charged every unit before it is spent here, so all processes together never spend more than it
//! grants. What is not spent in time is given back by the idempotency key of its charge, as if only what was spent had
//! been charged from the beginning: so nobody is given again what has recovered in the meantime.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;

use crate::decision::Decision;
use crate::error::Error;
use crate::options::Take;
use crate::sending::{Refused, Sending};
use crate::words::{Charge, Id, random, refuse_sketches};

/// For so long beyond their own time the server remembers what units were granted.
const SETTLED_LATE: Duration = Duration::from_secs(30);

/// How many units are taken at a time, and for how long they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Whole units, from 1: 100.
    pub units: u32,
    /// For how long they are there to be spent; then what is left is given back: a second.
    pub keep: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self { units: 100, keep: Duration::from_secs(1) }
    }
}

/// Units in hand, by [`Limiter::units`](crate::Limiter::units). What is in hand counts as used for all other processes,
/// so take few compared to the limit. When it is dropped, a task gives back what is left.
pub struct Units<C: ConnectionLike + Clone + Send + Sync + 'static> {
    sending: Sending<C>,
    charge: Charge,
    batch: Batch,
    hand: Mutex<Hand>,
    /// One asks, however many wait.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Hand {
    grant: Option<Grant>,
    said: Option<Decision>,
    /// Denied: no use in asking before. None: never again, as far as is known.
    ask_again: Option<Instant>,
}

/// What was granted by one call.
struct Grant {
    id: String,
    granted: u32,
    spent: u32,
    expires_at: Instant,
}

impl Grant {
    fn left(&self) -> u32 {
        self.granted - self.spent
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Units<C> {
    pub(crate) fn new(sending: Sending<C>, charge: Charge, batch: Batch) -> Self {
        Self { sending, charge, batch, hand: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// Spends units, mostly without a call.
    ///
    /// # Errors
    /// As [`Limiter::take`](crate::Limiter::take).
    pub async fn take(&self, cost: u32) -> Result<Decision, Error> {
        self.charge.check(cost.into())?;
        // What is not spent could not be given back.
        refuse_sketches(self.charge.limits())?;
        if cost == 0 || self.batch.units == 0 {
            return Err(Error::Call("units are whole, from 1".to_owned()));
        }
        loop {
            if let Some(decision) = self.in_hand(cost).await {
                return Ok(decision);
            }
            let _one = self.asking.lock().await;
            // Whoever asked before may have got enough.
            if let Some(decision) = self.in_hand(cost).await {
                return Ok(decision);
            }
            if let Err(why) = self.ask(cost).await {
                // It is one call that is decided, not a batch.
                return self.sending.without(why);
            }
        }
    }

    /// Gives back what is not spent.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and others: then it recovers by itself.
    pub async fn close(self) -> Result<(), Error> {
        let grant = self.hand().grant.take();
        match grant {
            Some(grant) => self.give_back(grant).await.map_err(Refused::into_error),
            None => Ok(()),
        }
    }

    /// What can be decided without the server.
    async fn in_hand(&self, cost: u32) -> Option<Decision> {
        let now = Instant::now();
        let expired = self.hand().grant.take_if(|grant| now >= grant.expires_at);
        if let Some(grant) = expired {
            // What could not be given back recovers by itself.
            let _ = self.give_back(grant).await;
        }
        let mut hand = self.hand();
        let Hand { grant, said, ask_again } = &mut *hand;
        let said = said.as_ref()?;
        let left = grant.as_ref().map_or(0, Grant::left);
        let told = |allowed, left: u32, wait| Decision {
            allowed,
            remaining: Some(said.remaining.unwrap_or(0).saturating_add(left.into())),
            wait,
            granted: None,
            id: None,
            ..said.clone()
        };
        if let Some(grant) = grant.as_mut().filter(|_| left >= cost) {
            grant.spent += cost;
            return Some(told(true, left - cost, Some(Duration::ZERO)));
        }
        if said.limit.is_some_and(|limit| i64::from(cost) > limit) {
            return Some(told(false, left, None));
        }
        let wait = (*ask_again)?.checked_duration_since(now).filter(|wait| !wait.is_zero())?;
        Some(told(false, left, Some(wait)))
    }

    async fn ask(&self, cost: u32) -> Result<(), Refused> {
        // What is left of the last grant does not suffice: a new one is for all of it.
        let last = self.hand().grant.take();
        if let Some(grant) = last {
            let _ = self.give_back(grant).await;
        }
        // They were charged after they were asked for, so they expire in time.
        let expires_at = Instant::now() + self.batch.keep;
        let id = Id::new((self.batch.keep + SETTLED_LATE).into());
        let asked = cost.max(self.batch.units);
        let words = self.charge.take(&Take::units(asked).up_to(), Some(&id));
        let said = self.sending.decided(&words, true, None).await?;
        let granted = said.granted.and_then(|units| u32::try_from(units).ok()).unwrap_or(0);
        let mut hand = self.hand();
        // The limit is reached: those who wait are denied at once, and the server is asked again after a pause.
        let is_short = granted < asked;
        hand.ask_again = is_short.then(|| Instant::now() + pause(self.batch.keep, &said, granted < cost));
        if granted > 0 {
            hand.grant = Some(Grant { id: id.name, granted, spent: 0, expires_at });
        }
        hand.said = Some(said);
        Ok(())
    }

    async fn give_back(&self, grant: Grant) -> Result<(), Refused> {
        if grant.left() == 0 {
            return Ok(());
        }
        let words = self.charge.words(vec!["SETTLE".to_owned(), grant.id, grant.spent.to_string()]);
        self.sending.changed(self.charge.key(), &words, true).await.map(|_| ())
    }

    fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns how long the server is not asked after a short grant: a tenth of `keep`, or a quarter of the time until the limit
/// has recovered if that is shorter, and up to half as long again, so that processes do not ask together. If the grant is
/// too small for the call, not before the server said that it may pass.
fn pause(keep: Duration, said: &Decision, is_too_small: bool) -> Duration {
    let shortest = (keep / 10).min(said.reset.unwrap_or(keep) / 4).max(Duration::from_millis(1));
    let wait = said.wait.filter(|_| is_too_small && !said.allowed).unwrap_or_default();
    shortest.max(wait) + (shortest / 2).mul_f64(random())
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Units<C> {
    fn drop(&mut self) {
        let hand = self.hand.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(grant) = hand.grant.take().filter(|grant| grant.left() > 0) else { return };
        let words = self.charge.words(vec!["SETTLE".to_owned(), grant.id, grant.spent.to_string()]);
        let (sending, key) = (self.sending.clone(), self.charge.key().to_owned());
        // Without a runtime it recovers by itself.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sending.changed(&key, &words, true).await.map(|_| ()).is_ok() });
        }
    }
}
