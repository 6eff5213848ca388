//! Limits under a name.

use std::sync::Arc;

use redis::aio::ConnectionLike;

use crate::decision::Decision;
use crate::error::Error;
use crate::lease::Lease;
use crate::limiter::Limiter;
use crate::limits::{Amount, Limit};
use crate::options::Take;

/// Limits under a name, by [`Limiter::limit`]: they are asked for whom they are.
#[derive(Clone)]
pub struct Bound<C> {
    limiter: Limiter<C>,
    name: Arc<str>,
    limits: Arc<[Limit]>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Bound<C> {
    pub(crate) fn new(limiter: Limiter<C>, name: String, limits: Vec<Limit>) -> Self {
        Self { limiter, name: name.into(), limits: limits.into() }
    }

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
        self.limiter.reset(&self.key_of(who)).await
    }

    /// A lease of a concurrency limit, which is to be the only limit.
    ///
    /// # Errors
    /// As [`Limiter::lease`].
    pub async fn lease(&self, who: &str) -> Result<Lease<C>, Error> {
        match &*self.limits {
            [limit] => self.limiter.lease(&self.key_of(who), limit).await,
            _ => Err(Error::Call("a lease is of one concurrency limit".to_owned())),
        }
    }
}
