//! Limits under a name.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::decision::Decision;
use crate::error::Error;
use crate::lease::Lease;
use crate::limiter::Limiter;
use crate::limits::{Amount, Limit};
use crate::options::Take;
use crate::units::{Batch, Units};
use crate::words::refuse_sketches;

/// Limits under a name, by [`Limiter::limit`]: they are asked for whom they are.
#[derive(Clone)]
pub struct Bound<C> {
    limiter: Limiter<C>,
    name: Arc<str>,
    limits: Arc<[Limit]>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Limits under a name. Its keys are the name, a colon and whoever is limited.
    pub fn limit(&self, name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Bound<C> {
        Bound { limiter: self.clone(), name: name.into().into(), limits: limits.into_iter().collect() }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Bound<C> {
    /// The limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The key of whoever is limited.
    pub fn key_of(&self, who: &str) -> String {
        format!("{}:{who}", self.name)
    }

    /// Takes one unit.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn take(&self, who: &str) -> Result<Decision, Error> {
        self.take_with(who, &Take::default()).await
    }

    /// Takes what the call says.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn take_with(&self, who: &str, take: &Take) -> Result<Decision, Error> {
        self.limiter.take(&self.key_of(who), &self.limits, take).await
    }

    /// Says what [`Bound::take`] would, and charges nothing.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn peek(&self, who: &str) -> Result<Decision, Error> {
        self.limiter.peek(&self.key_of(who), &self.limits, 1).await
    }

    /// Corrects a charge by its idempotency key.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn settle(&self, who: &str, id: &str, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        self.limiter.settle(&self.key_of(who), &self.limits, id, cost).await
    }

    /// Takes units off the present usage, whoever's it is.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn give_back(&self, who: &str, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        self.limiter.give_back(&self.key_of(who), &self.limits, cost).await
    }

    /// Forgets all that was used. Whether there was anything.
    ///
    /// # Errors
    /// As [`Limiter::reset`].
    pub async fn reset(&self, who: &str) -> Result<bool, Error> {
        refuse_sketches(&self.limits)?;
        self.limiter.reset(&self.key_of(who)).await
    }

    /// A lease of a concurrency limit, which is to be the only limit.
    ///
    /// # Errors
    /// As [`Limiter::lease`].
    pub async fn lease(&self, who: &str) -> Result<Lease<C>, Error> {
        self.lease_within(who, Duration::ZERO).await
    }

    /// Waits for a lease for so long.
    ///
    /// # Errors
    /// As [`Limiter::lease_within`].
    pub async fn lease_within(&self, who: &str, wait: Duration) -> Result<Lease<C>, Error> {
        match &*self.limits {
            [limit] => self.limiter.lease_within(&self.key_of(who), limit, wait).await,
            _ => Err(Error::Call("a lease is of one concurrency limit".to_owned())),
        }
    }

    /// Units of a hot key, taken from the server by the batch and spent in this process.
    pub fn units(&self, who: &str, batch: Batch) -> Units<C> {
        self.limiter.units(&self.key_of(who), &self.limits, batch)
    }
}
