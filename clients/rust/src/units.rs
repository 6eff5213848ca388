//! Units of a hot key, taken from the server in batches and spent in this process.
//!
//! The server has charged every unit before it is spent here, so all processes together never spend more than it
//! grants. Units that are not spent in time are given back by the idempotency key of their charge, as if only the spent
//! units had been charged from the beginning: units that have recovered meanwhile are not given back twice.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;

use crate::decision::Decision;
use crate::error::Error;
use crate::options::Take;
use crate::sending::{Refused, Sending};
use crate::words::{Charge, Id, random, refuse_sketches};

/// Time beyond `keep` for which the server remembers a grant.
const SETTLED_LATE: Duration = Duration::from_secs(30);

/// Number of units taken at a time, and the time for which they are kept.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Whole units, from 1: 100.
    pub units: u32,
    /// Time within which they can be spent; then the rest is given back: a second.
    pub keep: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self { units: 100, keep: Duration::from_secs(1) }
    }
}

/// Available units, by [`Limiter::units`](crate::Limiter::units). They count as used for all other processes, so choose
/// a batch that is small compared with the limit. When it is dropped, a task gives the rest back.
pub struct Units<C: ConnectionLike + Clone + Send + Sync + 'static> {
    sending: Sending<C>,
    charge: Charge,
    batch: Batch,
    state: Mutex<State>,
    /// Lock of the caller that requests units for all.
    requesting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    grant: Option<Grant>,
    decision: Option<Decision>,
    /// Time of the next request after a denial. `None`: never, as far as is known.
    denied_until: Option<Instant>,
}

/// Units granted by one call.
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
        Self { sending, charge, batch, state: Mutex::default(), requesting: tokio::sync::Mutex::default() }
    }

    /// Spends units, mostly without a call.
    ///
    /// # Errors
    /// As [`Limiter::take`](crate::Limiter::take).
    pub async fn take(&self, cost: u32) -> Result<Decision, Error> {
        self.charge.check(cost.into())?;
        // Unspent units could not be given back.
        refuse_sketches(self.charge.limits())?;
        if cost == 0 || self.batch.units == 0 {
            return Err(Error::Call("units are whole, from 1".to_owned()));
        }
        loop {
            if let Some(decision) = self.in_hand(cost).await {
                return Ok(decision);
            }
            let _one = self.requesting.lock().await;
            // An earlier caller may have got enough units.
            if let Some(decision) = self.in_hand(cost).await {
                return Ok(decision);
            }
            if let Err(why) = self.request(cost).await {
                // The fallback decides one call, not a batch.
                return self.sending.without(why);
            }
        }
    }

    /// Gives unspent units back.
    ///
    /// # Errors
    /// [`Error::Unavailable`] and others: then they recover by themselves.
    pub async fn close(self) -> Result<(), Error> {
        let grant = self.state().grant.take();
        match grant {
            Some(grant) => self.give_back(grant).await.map_err(Refused::into_error),
            None => Ok(()),
        }
    }

    /// Decides without the server, if possible.
    async fn in_hand(&self, cost: u32) -> Option<Decision> {
        let now = Instant::now();
        let expired = self.state().grant.take_if(|grant| now >= grant.expires_at);
        if let Some(grant) = expired {
            // Units that cannot be given back recover by themselves.
            let _ = self.give_back(grant).await;
        }
        let mut state = self.state();
        let State { grant, decision, denied_until } = &mut *state;
        let decision = decision.as_ref()?;
        let left = grant.as_ref().map_or(0, Grant::left);
        let decide = |allowed, left: u32, wait| Decision {
            allowed,
            remaining: Some(decision.remaining.unwrap_or(0).saturating_add(left.into())),
            wait,
            granted: None,
            id: None,
            ..decision.clone()
        };
        if let Some(grant) = grant.as_mut().filter(|_| left >= cost) {
            grant.spent += cost;
            return Some(decide(true, left - cost, Some(Duration::ZERO)));
        }
        if decision.limit.is_some_and(|limit| i64::from(cost) > limit) {
            return Some(decide(false, left, None));
        }
        let wait = (*denied_until)?.checked_duration_since(now).filter(|wait| !wait.is_zero())?;
        Some(decide(false, left, Some(wait)))
    }

    async fn request(&self, cost: u32) -> Result<(), Refused> {
        // The rest of the last grant does not suffice: give it back before a new one.
        let last = self.state().grant.take();
        if let Some(grant) = last {
            let _ = self.give_back(grant).await;
        }
        // They were charged after they were requested, so they expire early rather than late.
        let expires_at = Instant::now() + self.batch.keep;
        let id = Id::new((self.batch.keep + SETTLED_LATE).into());
        let wanted = cost.max(self.batch.units);
        let words = self.charge.take(&Take::units(wanted).up_to(), Some(&id));
        let decision = self.sending.decided(&words, true, None).await?;
        let granted = decision.granted.and_then(|units| u32::try_from(units).ok()).unwrap_or(0);
        let mut state = self.state();
        // The limit is exhausted: waiting callers are denied at once, and the server is asked again after a pause.
        let is_short = granted < wanted;
        state.denied_until = is_short.then(|| Instant::now() + pause(self.batch.keep, &decision, granted < cost));
        if granted > 0 {
            state.grant = Some(Grant { id: id.name, granted, spent: 0, expires_at });
        }
        state.decision = Some(decision);
        Ok(())
    }

    async fn give_back(&self, grant: Grant) -> Result<(), Refused> {
        if grant.left() == 0 {
            return Ok(());
        }
        let words = self.charge.words(vec!["SETTLE".to_owned(), grant.id, grant.spent.to_string()]);
        self.sending.changed(self.charge.key(), &words, true).await.map(|_| ())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the pause after a short grant: a tenth of `keep`, or a quarter of the time until the limit has recovered if
/// that is shorter, and randomly up to half as long again, so that processes do not retry together. If the grant is too
/// small for the call, at least the wait that the server reported.
fn pause(keep: Duration, decision: &Decision, is_too_small: bool) -> Duration {
    let shortest = (keep / 10).min(decision.reset.unwrap_or(keep) / 4).max(Duration::from_millis(1));
    let wait = decision.wait.filter(|_| is_too_small && !decision.allowed).unwrap_or_default();
    shortest.max(wait) + (shortest / 2).mul_f64(random())
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Units<C> {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(grant) = state.grant.take().filter(|grant| grant.left() > 0) else { return };
        let words = self.charge.words(vec!["SETTLE".to_owned(), grant.id, grant.spent.to_string()]);
        let (sending, key) = (self.sending.clone(), self.charge.key().to_owned());
        // Without a runtime they recover by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sending.changed(&key, &words, true).await.map(|_| ()).is_ok() });
        }
    }
}
