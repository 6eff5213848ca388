//! Limiter, which charges limits on the server.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{Client, Value};

use crate::decision::Decision;
use crate::error::Error;
use crate::lease::{Lease, LeaseHolder};
use crate::limits::{Amount, Limit, Time};
#[cfg(feature = "memory")]
use crate::memory::{ManualClock, Memory};
use crate::names::Names;
use crate::options::{Once, Options, Take};
use crate::replies::may_pass_without_id;
use crate::sending::{CallFailure, CallSender};
use crate::timer::Timer;
use crate::units::{Batch, Units};
use crate::words::{Charge, Id, random, refuse_sketches};

/// Rate limiter whose decisions a server or a cluster makes. `C` is any clonable asynchronous connection of redis-rs: a
/// `ConnectionManager`, a `MultiplexedConnection` or a `ClusterConnection`.
#[derive(Clone)]
pub struct Limiter<C> {
    sender: CallSender<C>,
    /// Policies with a concurrency limit, whose calls need an idempotency key as the holder.
    concurrency_policies: Arc<Mutex<HashSet<String>>>,
    /// Names of bound limits.
    pub(crate) names: Arc<Mutex<Names>>,
    timer: Timer,
}

#[cfg(feature = "memory")]
impl Limiter<Memory> {
    /// Creates a limiter for tests, which decides in this process as the server does.
    pub fn local() -> Self {
        Self::with_options(Memory::new(), Self::local_options())
    }

    /// Creates a limiter for tests with a clock that the test moves.
    pub fn local_at(clock: &ManualClock) -> Self {
        let timer = Timer { clock: Some(clock.clone()) };
        Self { timer, ..Self::with_options(Memory::with_clock(clock), Self::local_options()) }
    }

    fn local_options() -> Options {
        Options { remember_denials: false, ..Options::default() }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Limiter<C> {
    /// Creates a limiter with the default options.
    pub fn new(connection: C) -> Self {
        Self::with_options(connection, Options::default())
    }

    /// Creates a limiter with options.
    pub fn with_options(connection: C, options: Options) -> Self {
        let sender = CallSender::new(connection, options);
        Self { sender, concurrency_policies: Arc::default(), names: Arc::default(), timer: Timer::default() }
    }

    /// Sets a client for additional connections to a server, not to a cluster. A call that waits for a lease then waits
    /// in the server's queue, on a connection of its own. Another connection uses client tracking, so that a denial is
    /// remembered for its entire wait.
    pub fn beside(self, client: Client) -> Self {
        Self { sender: self.sender.with_client(client), ..self }
    }

    /// Charges all limits of a key, or none.
    ///
    /// # Errors
    /// [`Error::Call`] and [`Error::Setup`], and with [`OnOutage::Raise`](crate::OnOutage::Raise)
    /// [`Error::Unavailable`].
    pub async fn take(&self, key: &str, limits: &[Limit], take: &Take) -> Result<Decision, Error> {
        self.take_with_wait(&self.charge_of_key(key, limits), take).await
    }

    /// Charges a limit on each of several keys: all of them, or none. In a cluster the keys must be in one slot, so use
    /// a common hash tag: `{acme}:user:42` and `{acme}:all`. [`Decision::each`] is in the order of the keys.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn take_all(&self, limits_by_key: &[(&str, Limit)], take: &Take) -> Result<Decision, Error> {
        self.take_with_wait(&self.charge_of_keys(limits_by_key), take).await
    }

    /// Returns the decision that [`Limiter::take`] would make, and charges nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn peek(&self, key: &str, limits: &[Limit], cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        self.peek_charge(&self.charge_of_key(key, limits), cost.into()).await
    }

    /// Returns the decision that [`Limiter::take_all`] would make, and charges nothing.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn peek_all(
        &self,
        limits_by_key: &[(&str, Limit)],
        cost: impl Into<Amount> + Send,
    ) -> Result<Decision, Error> {
        self.peek_charge(&self.charge_of_keys(limits_by_key), cost.into()).await
    }

    /// Corrects a charge to its actual cost by its idempotency key. Denied only if the idempotency key is unknown or
    /// expired. A charge over several keys is corrected on each of them.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn settle(
        &self,
        key: &str,
        limits: &[Limit],
        id: &str,
        cost: impl Into<Amount> + Send,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        let options = vec!["SETTLE".to_owned(), id.to_owned(), cost.word()];
        self.correct(key, limits, cost, options, Some(id.to_owned())).await
    }

    /// Subtracts units from the current usage, whichever call charged them. The call is not resent if its reply is
    /// lost.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`].
    pub async fn give_back(
        &self,
        key: &str,
        limits: &[Limit],
        cost: impl Into<Amount> + Send,
    ) -> Result<Decision, Error> {
        let cost = cost.into();
        let options = vec!["COST".to_owned(), format!("-{}", cost.word())];
        self.correct(key, limits, cost, options, None).await
    }

    /// Acquires a lease of a concurrency limit. A task renews it three times in each ttl, until it is released or
    /// dropped.
    ///
    /// # Errors
    /// [`Error::Denied`] if all leases are taken, [`Error::Unavailable`] in an outage with any
    /// [`OnOutage`](crate::OnOutage), and those of [`Limiter::take`].
    pub async fn lease(&self, key: &str, limit: &Limit) -> Result<Lease<C>, Error> {
        self.lease_within(key, limit, Duration::ZERO).await
    }

    /// Acquires a lease, and waits for it for up to `wait`. With a client of [`Limiter::beside`] it waits in the
    /// server's queue, first come first served. Without one it retries every 100 ms, out of order.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::lease`].
    pub async fn lease_within(&self, key: &str, limit: &Limit, wait: Duration) -> Result<Lease<C>, Error> {
        let holder = LeaseHolder::new(self.sender.clone(), self.sender.key_of(key), limit)?;
        Lease::acquired(holder, wait).await
    }

    /// Returns units of a hot key, which are taken from the server in batches and spent in this process.
    pub fn units(&self, key: &str, limits: &[Limit], batch: Batch) -> Units<C> {
        Units::new(self.sender.clone(), self.charge_of_key(key, limits), batch)
    }

    /// Deletes the usage of a key. Returns `true` if there was any.
    ///
    /// # Errors
    /// Any error of the server or the connection.
    pub async fn reset(&self, key: &str) -> Result<bool, Error> {
        let key = self.sender.key_of(key);
        let words = ["DEL".to_owned(), key.clone()];
        let reply = self.sender.send_change(&key, &words, true).await.map_err(CallFailure::into_error)?;
        Ok(reply == Value::Int(1))
    }

    /// Checks at the start that the server is reachable and has the module.
    ///
    /// # Errors
    /// [`Error::Setup`] says what to do, and [`Error::Unavailable`] means that the server is unreachable.
    pub async fn check(&self) -> Result<(), Error> {
        let words = ["RL.PEEK", "redis-ratelimit:check", "FIXED", "1", "1s"].map(str::to_owned);
        self.sender.send_command(&words).await.map(|_| ())
    }

    fn charge_of_key(&self, key: &str, limits: &[Limit]) -> Charge {
        Charge::of_key(|key| self.sender.key_of(key), key, limits)
    }

    fn charge_of_keys(&self, limits_by_key: &[(&str, Limit)]) -> Charge {
        Charge::of_keys(|key| self.sender.key_of(key), limits_by_key)
    }

    async fn peek_charge(&self, charge: &Charge, cost: Amount) -> Result<Decision, Error> {
        charge.check(cost)?;
        let reply = self.sender.send_for_decision(&charge.peek_words(&Take::units(cost)), true, None).await;
        reply.map_or_else(
            |why| self.sender.fallback(why),
            |decision| Ok(decision.with_governing_limit(&charge.costs(cost))),
        )
    }

    async fn correct(
        &self,
        key: &str,
        limits: &[Limit],
        cost: Amount,
        options: Vec<String>,
        id: Option<String>,
    ) -> Result<Decision, Error> {
        let charge = self.charge_of_key(key, limits);
        charge.check(cost)?;
        refuse_sketches(charge.limits())?;
        let is_repeatable = id.is_some();
        let reply = self.sender.send_change(charge.key(), &charge.words(options), is_repeatable).await;
        let decode = |reply| Decision::decode(&reply, id).ok_or_else(|| CallFailure::NoReply("no decision".to_owned()));
        reply.and_then(decode).or_else(|why| self.sender.correction_fallback(why))
    }

    /// Charges units, and repeats a denied call while `take.wait` has not passed.
    async fn take_with_wait(&self, charge: &Charge, take: &Take) -> Result<Decision, Error> {
        charge.check(take.cost)?;
        if take.ttl.is_some() || matches!(take.once, Once::Own(_) | Once::New) {
            refuse_sketches(charge.limits())?;
        }
        if !take.wait.is_zero()
            && let Err(why) = self.sender.refuse_forced(charge).await
        {
            return self.sender.fallback(why);
        }
        if !take.wait.is_zero() && charge.is_reservable() && !take.force && !take.up_to && take.once != Once::Never {
            return self.reserve_and_wait(charge, take).await;
        }
        let deadline = self.timer.now() + take.wait;
        loop {
            let decision = self.take_unless_remembered(charge, take).await?;
            let remaining = deadline.saturating_duration_since(self.timer.now());
            match decision.wait {
                Some(wait)
                    if !decision.allowed && !decision.is_degraded() && wait <= remaining && !remaining.is_zero() =>
                {
                    // Retrying at once would be denied. The random part spreads callers that wait equally long.
                    let jitter = (wait / 10).min(remaining.saturating_sub(wait)).mul_f64(random());
                    self.timer.sleep(wait.max(Duration::from_millis(1)) + jitter).await;
                }
                _ => return Ok(decision),
            }
        }
    }

    /// Reserves units of token buckets by one call, and waits until the units are due.
    async fn reserve_and_wait(&self, charge: &Charge, take: &Take) -> Result<Decision, Error> {
        let ttl = take.ttl.clone().or_else(|| Some((take.wait + SETTLE_MARGIN).into()));
        let once = if take.once == Once::Needed { Once::New } else { take.once.clone() };
        let take = Take { max_wait: Some(take.wait), ttl, once, ..take.clone() };
        let decision = self.take_unless_remembered(charge, &take).await?;
        let Some(wait) = decision.wait.filter(|wait| decision.allowed && !wait.is_zero()) else { return Ok(decision) };
        let mut reservation = Reservation { sender: &self.sender, charge, id: decision.id.clone() };
        self.timer.sleep(wait).await;
        reservation.id = None;
        Ok(Decision { wait: Some(Duration::ZERO), ..decision })
    }

    async fn take_unless_remembered(&self, charge: &Charge, take: &Take) -> Result<Decision, Error> {
        let words_without_id = charge.take_words(take, None);
        // A call with the caller's own id, and a forced call, must reach the server. A policy may have FORCE, unless it
        // is a sketch.
        let may_force = take.force || charge.limits().iter().any(|limit| limit.is_policy() && !charge.has_items());
        let may_remember = self.sender.options().remember_denials
            && !charge.has_several_keys()
            && !may_force
            && !matches!(take.once, Once::Own(_));
        if let (true, Some(denied)) =
            (may_remember, self.sender.remembered_denial(&charge.denial_key(), &words_without_id))
        {
            return Ok(denied);
        }
        let sent_at = Instant::now();
        let decision = self.take_with_fallback(charge, take, &words_without_id).await?;
        if may_remember && !decision.allowed {
            // Tracking does not report changes of a policy, and reports those of a sketch at each call on any item.
            let is_tracked = !charge.has_items() && !charge.limits().iter().any(Limit::is_policy);
            let peek = is_tracked.then(|| charge.peek_words(take));
            self.sender.remember(&charge.denial_key(), &words_without_id, &decision, sent_at, peek);
        }
        Ok(decision)
    }

    async fn take_with_fallback(
        &self,
        charge: &Charge,
        take: &Take,
        words_without_id: &[String],
    ) -> Result<Decision, Error> {
        let id = if charge.has_items() { None } else { self.id_for(charge.limits(), take) };
        match self.send_take(charge, take, id.as_ref()).await {
            Ok(decision) => Ok(decision),
            Err(CallFailure::ErrorReply(reply))
                if id.is_none() && !charge.has_items() && take.once == Once::Needed && requires_id(&reply) =>
            {
                self.record_concurrency_policies(charge.limits());
                let id = Id::new(self.id_lifetime());
                self.send_take(charge, take, Some(&id)).await.or_else(|why| self.sender.fallback(why))
            }
            // Rather than deny a valid call, send it without its id: the charge can then not be settled.
            Err(CallFailure::ErrorReply(reply))
                if id.is_some() && !matches!(take.once, Once::Own(_)) && may_pass_without_id(&reply) =>
            {
                log::error!("Redis refuses a call for {:?}: {reply}", charge.key());
                let reply = self.sender.send_for_decision(words_without_id, false, None).await;
                reply.map_or_else(
                    |why| self.sender.fallback(why),
                    |decision| Ok(decision.with_governing_limit(&charge.costs(take.cost))),
                )
            }
            Err(why) => self.sender.fallback(why),
        }
    }

    async fn send_take(&self, charge: &Charge, take: &Take, id: Option<&Id>) -> Result<Decision, CallFailure> {
        // A call without an id may be resent if it needs none, because a double charge would be negligible.
        let is_repeatable = id.is_some() || (take.once == Once::Needed && self.sender.options().once);
        let words = charge.take_words(take, id);
        let decision = self.sender.send_for_decision(&words, is_repeatable, id.map(|id| id.name.clone())).await?;
        Ok(decision.with_governing_limit(&charge.costs(take.cost)))
    }

    /// Returns the idempotency key of a call, with its lifetime, if the call needs one.
    fn id_for(&self, limits: &[Limit], take: &Take) -> Option<Id> {
        match &take.once {
            Once::Own(name) => {
                let ttl = take.ttl.clone().unwrap_or_else(|| "10m".into());
                return Some(Id { name: name.clone(), ttl });
            }
            Once::Never => return None,
            Once::Needed if !self.sender.options().once => return None,
            Once::New | Once::Needed => {}
        }
        if let Some(ttl) = &take.ttl {
            return Some(Id::new(ttl.clone()));
        }
        let concurrency_policies = self.concurrency_policies.lock().unwrap_or_else(PoisonError::into_inner);
        let is_needed = limits.iter().any(|limit| {
            let units = limit.cost.unwrap_or(take.cost).units();
            let threshold = limit.quota.map_or(f64::INFINITY, |quota| quota.units() * NEGLIGIBLE_SHARE);
            let needs_holder = limit.is_policy() && limit.words.iter().any(|name| concurrency_policies.contains(name));
            take.cost.units() > 0.0 && (units > 1.0 || units > threshold || needs_holder)
        });
        (is_needed || take.once == Once::New)
            .then(|| Id::new(if take.cost.units() > 1.0 { "1m".into() } else { self.id_lifetime() }))
    }

    /// Records that these policies have a concurrency limit.
    fn record_concurrency_policies(&self, limits: &[Limit]) {
        let mut concurrency_policies = self.concurrency_policies.lock().unwrap_or_else(PoisonError::into_inner);
        concurrency_policies.extend(limits.iter().flat_map(|limit| limit.words.iter().cloned()));
    }

    /// Returns the lifetime of an id: a second longer than a call may be resent.
    fn id_lifetime(&self) -> Time {
        let Options { timeout, resends, .. } = *self.sender.options();
        (Duration::from_secs(1) + 2 * timeout * (1 + resends)).into()
    }
}

/// Reserved units, which are given back if the caller stops waiting.
struct Reservation<'r, C: ConnectionLike + Clone + Send + Sync + 'static> {
    sender: &'r CallSender<C>,
    charge: &'r Charge,
    /// Idempotency key of the charge, or `None` after the wait.
    id: Option<String>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Reservation<'_, C> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let words = self.charge.words(vec!["SETTLE".to_owned(), id, "0".to_owned()]);
        let (sender, key) = (self.sender.clone(), self.charge.key().to_owned());
        // Without a runtime, the units are not given back, but recover by themselves.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { sender.send_change(&key, &words, true).await.map(|_| ()).is_ok() });
        }
    }
}

/// Time after a wait for which the server still remembers the idempotency key of a reservation.
const SETTLE_MARGIN: Duration = Duration::from_secs(30);

/// Largest share of a limit that may be charged twice without harm.
const NEGLIGIBLE_SHARE: f64 = 0.01;

fn requires_id(reply: &str) -> bool {
    reply.starts_with("ERR the policy has a CONCURRENCY limit")
}
