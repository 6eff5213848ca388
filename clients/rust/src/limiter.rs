//! The limiter: charges limits on the server, and says what holds while the server is away.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::Value;
use redis::aio::ConnectionLike;
use uuid::Uuid;

use crate::bound::Bound;
use crate::breaker::Breaker;
use crate::decision::Decision;
use crate::error::Error;
use crate::lease::Lease;
use crate::limits::{Amount, Limit, Time};
use crate::options::{OnOutage, Once, Options, SetupErrors, Take};
use crate::replies::{explained, may_pass_without_id, reply_of};

/// Decides by a server, or by its cluster. The connection is any of redis-rs for async code that can be cloned: a
/// `ConnectionManager`, a `MultiplexedConnection` or a `ClusterConnection`.
#[derive(Clone)]
pub struct Limiter<C> {
    connection: C,
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    breaker: Breaker,
    /// Policies with a concurrency limit: the idempotency key is the holder.
    held: Mutex<HashSet<String>>,
}

/// Why there was no reply, or which error it was.
enum Refused {
    Nothing(String),
    Reply(String),
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// With the default options.
    pub fn new(connection: C) -> Self {
        Self::with_options(connection, Options::default())
    }

    /// With options of yours.
    pub fn with_options(connection: C, options: Options) -> Self {
        let breaker = Breaker::new(options.failures, options.pause);
        Self { connection, shared: Arc::new(Shared { options, breaker, held: Mutex::default() }) }
    }

    /// Limits under a name. Its keys are the name, a colon and whoever is limited.
    pub fn limit(&self, name: impl Into<String>, limits: impl IntoIterator<Item = Limit>) -> Bound<C> {
        Bound::new(self.clone(), name.into(), limits.into_iter().collect())
    }

    /// Charges all limits of a key, or none.
    ///
    /// # Errors
    /// [`Error::Call`] and [`Error::Setup`], and with [`OnOutage::Raise`] [`Error::Unavailable`].
    pub async fn take(&self, key: &str, limits: &[Limit], take: &Take) -> Result<Decision, Error> {
        checked(limits, take.cost)?;
        let id = self.id_of(limits, take);
        match self.taken(key, limits, take, id.as_ref()).await {
            Ok(decision) => Ok(decision),
            Err(Refused::Reply(said)) if id.is_none() && take.once == Once::Needed && needs_id(&said) => {
                self.learn(limits);
                let id = Some((Uuid::new_v4().simple().to_string(), self.remembered()));
                let taken = self.taken(key, limits, take, id.as_ref()).await;
                taken.or_else(|why| self.without(why))
            }
            // Rather than deny what is in order: this one may be charged twice, if it is sent twice.
            Err(Refused::Reply(said))
                if id.is_some() && !matches!(take.once, Once::Own(_)) && may_pass_without_id(&said) =>
            {
                log::error!("Redis refuses a call for {key:?}: {said}");
                let taken = self.taken(key, limits, take, None).await;
                taken.or_else(|why| self.without(why))
            }
            Err(why) => self.without(why),
        }
    }

    /// Says what [`Limiter::take`] would, and charges nothing.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn peek(&self, key: &str, limits: &[Limit], cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        let cost = cost.into();
        checked(limits, cost)?;
        let mut words = vec!["RL.PEEK".to_owned(), self.key_of(key)];
        if cost != Amount::from(1) {
            words.extend(["COST".to_owned(), cost.word()]);
        }
        words.extend(limits.iter().flat_map(Limit::spec));
        self.decided(&words, true, None).await.or_else(|why| self.without(why))
    }

    /// Corrects a charge by its idempotency key, to what the call turned out to cost. Denied only if the server does
    /// not know the key, or no longer.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn settle(
        &self,
        key: &str,
        limits: &[Limit],
        id: &str,
        cost: impl Into<Amount> + Send,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        checked(limits, cost)?;
        let options = vec!["SETTLE".to_owned(), id.to_owned(), cost.word()];
        let words = self.words(key, limits, options);
        self.decided(&words, true, Some(id.to_owned())).await.or_else(|why| match self.explained(why) {
            // What was charged stays charged until it recovers.
            Ok(error) => Ok(Decision::nobody(false, self.shared.options.pause, error)),
            Err(error) => Err(error),
        })
    }

    /// Takes units off the present usage, whoever's it is. It is not sent again if its reply is lost.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn give_back(
        &self,
        key: &str,
        limits: &[Limit],
        cost: impl Into<Amount> + Send,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        checked(limits, cost)?;
        let options = vec!["COST".to_owned(), format!("-{}", cost.word())];
        let words = self.words(key, limits, options);
        self.decided(&words, false, None).await.or_else(|why| match self.explained(why) {
            Ok(error) => Ok(Decision::nobody(false, self.shared.options.pause, error)),
            Err(error) => Err(error),
        })
    }

    /// Takes a lease of a concurrency limit. A task renews it three times in each ttl, until it is released or dropped.
    ///
    /// # Errors
    /// [`Error::Denied`] if all are held, [`Error::Unavailable`] whatever [`OnOutage`] is, and those of
    /// [`Limiter::take`].
    pub async fn lease(&self, key: &str, limit: &Limit) -> Result<Lease<C>, Error> {
        Lease::acquired(self.clone(), key.to_owned(), limit.clone()).await
    }

    /// Forgets all that a key has used. Whether there was anything.
    ///
    /// # Errors
    /// Whatever keeps the server from it.
    pub async fn reset(&self, key: &str) -> Result<bool, Error> {
        let words = ["DEL".to_owned(), self.key_of(key)];
        let reply = self.send(&words, true).await.map_err(Refused::into_error)?;
        Ok(reply == Value::Int(1))
    }

    /// For the start: whether the server is there and has the module.
    ///
    /// # Errors
    /// [`Error::Setup`] says what to do, and [`Error::Unavailable`] that the server is away.
    pub async fn check(&self) -> Result<(), Error> {
        let words = ["RL.PEEK", "redis-ratelimit:check", "FIXED", "1", "1s"].map(str::to_owned);
        self.send(&words, true).await.map(|_| ()).map_err(Refused::into_error)
    }

    /// A command of one key, and its decision. Errors are not decided by [`OnOutage`].
    pub(crate) async fn asked(&self, command: &str, key: &str, words: &[String]) -> Result<Value, Error> {
        let mut all = vec![command.to_owned(), self.key_of(key)];
        all.extend_from_slice(words);
        self.send(&all, true).await.map_err(Refused::into_error)
    }

    async fn taken(
        &self,
        key: &str,
        limits: &[Limit],
        take: &Take,
        id: Option<&(String, Time)>,
    ) -> Result<Decision, Refused> {
        let mut options = Vec::new();
        if take.cost != Amount::from(1) {
            options.extend(["COST".to_owned(), take.cost.word()]);
        }
        if take.force {
            options.push("FORCE".to_owned());
        }
        if let Some((id, ttl)) = id {
            options.extend(["ONCE".to_owned(), id.clone(), ttl.word()]);
        }
        // Without an id it can only deny too much if it is charged twice, and there it does not matter.
        let is_repeatable = id.is_some() || (take.once == Once::Needed && self.shared.options.once);
        let words = self.words(key, limits, options);
        self.decided(&words, is_repeatable, id.map(|(id, _)| id.clone())).await
    }

    fn words(&self, key: &str, limits: &[Limit], options: Vec<String>) -> Vec<String> {
        let key = self.key_of(key);
        if let [limit] = limits
            && limit.is_policy()
        {
            // The form of its own that needs no permission to choose limits.
            return [vec!["RL.LIMIT".to_owned(), key], limit.names(), options].concat();
        }
        let mut words = vec!["RL.TAKE".to_owned(), key];
        words.extend(options);
        words.extend(limits.iter().flat_map(Limit::spec));
        words
    }

    async fn decided(&self, words: &[String], is_repeatable: bool, id: Option<String>) -> Result<Decision, Refused> {
        let reply = self.send(words, is_repeatable).await?;
        Decision::read(&reply, id).ok_or_else(|| Refused::Nothing(format!("no decision: {reply:?}")))
    }

    async fn send(&self, words: &[String], is_repeatable: bool) -> Result<Value, Refused> {
        let Shared { options, breaker, .. } = &*self.shared;
        let mut resends = if is_repeatable { options.resends } else { 0 };
        loop {
            let sent_at = Instant::now();
            if !breaker.allows(sent_at) {
                return Err(Refused::Nothing("the server was not asked: it failed a moment ago".to_owned()));
            }
            let mut command = redis::cmd(&words[0]);
            command.arg(&words[1..]);
            let mut connection = self.connection.clone();
            let reply = tokio::time::timeout(options.timeout, command.query_async::<Value>(&mut connection)).await;
            let why = match reply {
                Ok(Ok(value)) => {
                    breaker.succeeded();
                    return Ok(value);
                }
                Ok(Err(error)) => match reply_of(&error) {
                    Some(said) => {
                        breaker.succeeded();
                        // A server that has become a replica has charged nothing: ask its successor.
                        if !(said.starts_with("READONLY ") && resends > 0) {
                            return Err(Refused::Reply(said));
                        }
                        said
                    }
                    None => error.to_string(),
                },
                Err(_) => format!("no reply within {:?}", options.timeout),
            };
            if resends == 0 {
                breaker.failed(sent_at, Instant::now(), &why);
                return Err(Refused::Nothing(why));
            }
            resends -= 1;
        }
    }

    /// In place of the server's decision. A mistake is an error.
    fn without(&self, why: Refused) -> Result<Decision, Error> {
        let Options { on_outage, pause, .. } = self.shared.options;
        let error = self.explained(why)?;
        let allowed = on_outage == OnOutage::Open && !matches!(error, Error::Full(_));
        Ok(Decision::nobody(allowed, pause, error))
    }

    /// What somebody decides in place of the server, if anybody does.
    fn explained(&self, why: Refused) -> Result<Error, Error> {
        let Options { on_outage, setup_errors, .. } = self.shared.options;
        let error = why.into_error();
        if matches!(error, Error::Setup(_) | Error::Full(_)) {
            log::error!("Redis refuses a call: {error}");
        }
        let is_outage = match error {
            Error::Unavailable(_) => true,
            Error::Setup(_) => setup_errors == SetupErrors::Outage,
            // A key without room is no outage, and denies.
            Error::Full(_) => return Ok(error),
            Error::Call(_) | Error::Denied(_) => false,
        };
        if is_outage && on_outage != OnOutage::Raise { Ok(error) } else { Err(error) }
    }

    fn key_of(&self, key: &str) -> String {
        format!("{}{key}", self.shared.options.prefix)
    }

    /// The idempotency key of a call, and for how long it is remembered.
    fn id_of(&self, limits: &[Limit], take: &Take) -> Option<(String, Time)> {
        let ours = || Uuid::new_v4().simple().to_string();
        match &take.once {
            Once::Own(id) => return Some((id.clone(), take.ttl.clone().unwrap_or_else(|| "10m".into()))),
            Once::Never => return None,
            Once::Needed if !self.shared.options.once => return None,
            Once::New | Once::Needed => {}
        }
        if let Some(ttl) = &take.ttl {
            return Some((ours(), ttl.clone()));
        }
        let held = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_needed = limits.iter().any(|limit| {
            let units = limit.cost.unwrap_or(take.cost).units();
            let most = limit.quota.map_or(f64::INFINITY, |quota| quota.units() * MATTERS);
            let is_held = limit.is_policy() && limit.words.iter().any(|name| held.contains(name));
            take.cost.units() > 0.0 && (units > 1.0 || units > most || is_held)
        });
        (is_needed || take.once == Once::New)
            .then(|| (ours(), if take.cost.units() > 1.0 { "1m".into() } else { self.remembered() }))
    }

    /// These policies have a concurrency limit.
    fn learn(&self, limits: &[Limit]) {
        let mut held = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.extend(limits.iter().flat_map(|limit| limit.words.iter().cloned()));
    }

    /// A little longer than a call is sent again.
    fn remembered(&self) -> Time {
        let Options { timeout, resends, .. } = self.shared.options;
        (Duration::from_secs(1) + 2 * timeout * (1 + resends)).into()
    }
}

/// Above this share of a limit, charging a call twice would matter.
const MATTERS: f64 = 0.01;

fn needs_id(said: &str) -> bool {
    said.starts_with("ERR the policy has a CONCURRENCY limit")
}

fn checked(limits: &[Limit], cost: Amount) -> Result<(), Error> {
    if limits.is_empty() {
        return Err(Error::Call("a call needs a limit, such as Limit::fixed(100, \"1m\")".to_owned()));
    }
    if limits.iter().any(Limit::is_held) {
        return Err(Error::Call("a concurrency limit is held by a lease: Limiter::lease".to_owned()));
    }
    if !cost.is_valid() {
        return Err(Error::Call(format!("cost must be a number from 0 to 10^12, not {}", cost.units())));
    }
    Ok(())
}

impl Refused {
    fn into_error(self) -> Error {
        match self {
            Self::Nothing(why) => Error::Unavailable(why),
            Self::Reply(said) => explained(&said),
        }
    }
}
