//! Limits under a name, and without one.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use redis::aio::ConnectionLike;

use crate::address::network;
use crate::decision::Decision;
use crate::error::Error;
use crate::lease::Lease;
use crate::limiter::Limiter;
use crate::limits::{Amount, Limit};
use crate::options::Take;
use crate::units::{Batch, Units};
use crate::words::refuse_sketches;

/// First part of the keys of clients whose key function returned nothing, which are limited by address.
const BY_ADDRESS: &str = "ip";

/// Limits that are asked for by caller: under a name, by [`Limiter::limit`], or without, by [`Limiter::unnamed`].
#[derive(Clone)]
pub struct Bound<C> {
    limiter: Limiter<C>,
    /// The name, or without one the words of the limits.
    name: Arc<str>,
    is_named: bool,
    limits: Arc<[Limit]>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Gives limits a name, with which their keys begin: the name, a colon and the caller.
    ///
    /// # Errors
    /// [`Error::Call`] if other limits of this limiter have the name and are of another algorithm or window, as both would
    /// charge the same keys; or if the name is `ip` or begins with `ip:`, as keys of addresses do.
    pub fn limit(&self, name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Result<Bound<C>, Error> {
        let (name, limits): (String, Arc<[Limit]>) = (name.into(), limits.into_iter().collect());
        if name == BY_ADDRESS || name.starts_with("ip:") {
            return Err(Error::Call(format!(
                "a limit cannot have the name {name:?}: keys of addresses begin with ip:"
            )));
        }
        self.names.lock().unwrap_or_else(PoisonError::into_inner).bind(&name, &limits)?;
        Ok(Bound { limiter: self.clone(), name: name.into(), is_named: true, limits })
    }

    /// Takes limits without a name. Their keys begin with the words of the limits, so that other limits have other keys;
    /// two places with the same limits share them. Usage begins anew when the limits change: give them a name to avoid that.
    pub fn unnamed(&self, limits: impl IntoIterator<Item = Limit>) -> Bound<C> {
        let limits: Arc<[Limit]> = limits.into_iter().collect();
        let name = limits.iter().map(Limit::canonical).collect::<Vec<_>>().join("+");
        Bound { limiter: self.clone(), name: name.into(), is_named: false, limits }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Bound<C> {
    /// The limits.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The name of the limits in header fields: `default` if they have none.
    pub fn name(&self) -> &str {
        if self.is_named { &self.name } else { "default" }
    }

    /// The key of a caller, without the prefix of the limiter; of a sketch, the item.
    pub fn key_of(&self, who: &str) -> String {
        format!("{}:{who}", self.name)
    }

    /// The key of a client that has a key function but no key, and is limited by its address. No caller has this key.
    pub fn key_of_address(&self, address: Option<IpAddr>, ipv6_prefix: u8) -> String {
        let address = address.map_or_else(|| "unknown".to_owned(), |address| network(address, ipv6_prefix));
        format!("{BY_ADDRESS}:{}:{address}", self.name)
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
    /// As [`Limiter::take`].
    pub async fn take(&self, who: &str) -> Result<Decision, Error> {
        self.take_with(who, &Take::default()).await
    }

    /// Takes what the call says.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn take_with(&self, who: &str, take: &Take) -> Result<Decision, Error> {
        self.take_at(&self.key_of(who), take).await
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
        self.lease_at(&self.key_of(who), wait).await
    }

    /// Units of a hot key, taken from the server by the batch and spent in this process.
    pub fn units(&self, who: &str, batch: Batch) -> Units<C> {
        self.limiter.units(&self.key_of(who), &self.limits, batch)
    }
}
