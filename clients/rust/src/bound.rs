//! Limits that are bound to a limiter, with or without a name.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::address::client_network;
use crate::decision::Decision;
use crate::error::Error;
use crate::lease::Lease;
use crate::limiter::Limiter;
use crate::limits::{Amount, Limit};
use crate::names::NameInUse;
use crate::options::Take;
use crate::units::{Batch, Units};
use crate::words::refuse_sketches;

/// Prefix of the keys for requests without a caller, which are limited by address.
const ADDRESS_PREFIX: &str = "ip";

/// Limits bound to a limiter: with a name by [`Limiter::limit`], or without one by [`Limiter::unnamed`].
#[derive(Clone)]
pub struct Bound<C> {
    limiter: Limiter<C>,
    /// Name of the limits, or their canonical words if they are unnamed.
    name: Arc<str>,
    /// `None` if the limits are unnamed.
    name_in_use: Option<Arc<NameInUse>>,
    limits: Arc<[Limit]>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Binds limits to a name, with which their keys begin: the name, a colon and the caller.
    ///
    /// # Errors
    /// [`Error::Call`] if limits of this limiter already have the name but another algorithm or window, because both
    /// would charge the same keys; or if the name is `ip` or begins with `ip:`, which is reserved for keys by address.
    pub fn limit(&self, name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Result<Bound<C>, Error> {
        let (name, limits): (String, Arc<[Limit]>) = (name.into(), limits.into_iter().collect());
        if name == ADDRESS_PREFIX || name.starts_with("ip:") {
            return Err(Error::Call(format!(
                "a limit cannot have the name {name:?}: keys of addresses begin with ip:"
            )));
        }
        let name_in_use = Some(self.names.lock().unwrap_or_else(PoisonError::into_inner).bind(&name, &limits)?);
        Ok(Bound { limiter: self.clone(), name: name.into(), name_in_use, limits })
    }

    /// Binds limits without a name. Their keys begin with the canonical words of the limits, so that different limits
    /// have different keys, and equal limits share their keys. When the limits change, usage begins at 0: use a name to
    /// avoid that.
    pub fn unnamed(&self, limits: impl IntoIterator<Item = Limit>) -> Bound<C> {
        let limits: Arc<[Limit]> = limits.into_iter().collect();
        let name = limits.iter().map(Limit::canonical).collect::<Vec<_>>().join("+");
        Bound { limiter: self.clone(), name: name.into(), name_in_use: None, limits }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Bound<C> {
    /// Returns the limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the name of the limits in header fields: `default` if they have none.
    pub fn name(&self) -> &str {
        if self.name_in_use.is_some() { &self.name } else { "default" }
    }

    /// Returns the key of a caller, without the prefix of the limiter; for a sketch, the item.
    pub fn key_of(&self, who: &str) -> String {
        format!("{}:{who}", self.name)
    }

    /// Returns the key for a request without a caller, which is limited by its address. It is never the key of a
    /// caller. All requests without an address have the same key.
    pub fn key_of_address(&self, address: Option<IpAddr>, ipv6_prefix: u8) -> String {
        let address = address.map_or_else(|| "unknown".to_owned(), |address| client_network(address, ipv6_prefix));
        format!("{ADDRESS_PREFIX}:{}:{address}", self.name)
    }

    pub(crate) async fn take_at(&self, key: &str, take: &Take) -> Result<Decision, Error> {
        self.limiter.take(key, &self.limits, take).await
    }

    pub(crate) async fn settle_at(&self, key: &str, id: &str, cost: Amount) -> Result<Decision, Error> {
        self.limiter.settle(key, &self.limits, id, cost).await
    }

    pub(crate) async fn lease_at(&self, key: &str, wait: Duration) -> Result<Lease<C>, Error> {
        match &*self.limits {
            [limit] => self.limiter.lease_within(key, limit, wait).await,
            _ => Err(Error::Call("a lease is of one concurrency limit".to_owned())),
        }
    }

    /// Takes one unit.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn take(&self, who: &str) -> Result<Decision, Error> {
        self.take_with(who, &Take::default()).await
    }

    /// Charges the limits, with the cost and the options of `take`.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn take_with(&self, who: &str, take: &Take) -> Result<Decision, Error> {
        self.take_at(&self.key_of(who), take).await
    }

    /// Returns the decision that [`Bound::take`] would make, and charges nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn peek(&self, who: &str) -> Result<Decision, Error> {
        self.limiter.peek(&self.key_of(who), &self.limits, 1).await
    }

    /// Corrects a charge by its idempotency key.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn settle(&self, who: &str, id: &str, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        self.limiter.settle(&self.key_of(who), &self.limits, id, cost).await
    }

    /// Subtracts units from the current usage, whichever call charged them.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn give_back(&self, who: &str, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        self.limiter.give_back(&self.key_of(who), &self.limits, cost).await
    }

    /// Deletes the usage of a caller. Returns `true` if there was any.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::reset`].
    pub async fn reset(&self, who: &str) -> Result<bool, Error> {
        refuse_sketches(&self.limits)?;
        self.limiter.reset(&self.key_of(who)).await
    }

    /// Acquires a lease of a concurrency limit, which must be the only limit.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::lease`].
    pub async fn lease(&self, who: &str) -> Result<Lease<C>, Error> {
        self.lease_within(who, Duration::ZERO).await
    }

    /// Acquires a lease, and waits for it for up to `wait`.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::lease_within`].
    pub async fn lease_within(&self, who: &str, wait: Duration) -> Result<Lease<C>, Error> {
        self.lease_at(&self.key_of(who), wait).await
    }

    /// Returns units of a hot key, which are taken from the server in batches and spent in this process.
    pub fn units(&self, who: &str, batch: Batch) -> Units<C> {
        self.limiter.units(&self.key_of(who), &self.limits, batch)
    }
}
