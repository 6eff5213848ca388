//! Units of a hot key, taken from the server in batches and spent in this process.
//!
//! The server has charged every unit before it is spent here, so all processes together never spend more than the
//! server grants. Units that are not spent in time are given back by the idempotency key of their charge, as if only
//! the spent units had been charged from the beginning: units that have recovered meanwhile are not given back twice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::batching::{Batching, Grant, Reply};
use crate::decision::Decision;
use crate::error::Error;
use crate::options::Take;
use crate::sending::{CallFailure, CallSender};
use crate::words::{Charge, Id, random, refuse_sketches};

/// Time after `keep` for which the server still remembers the idempotency key of a grant.
const SETTLE_MARGIN: Duration = Duration::from_secs(30);

/// Bounds of the batches in which units are taken from the server, and the time for which units are kept.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Upper bound of a batch: whole units, from 1. `None`: a hundredth of the limit.
    pub largest: Option<u32>,
    /// Number of processes that share the limit. In place of a hundredth, a batch is at most the limit divided by four
    /// times that number.
    pub peers: Option<u32>,
    /// Time within which the units of a batch can be spent. Then unspent units are given back. A second by default.
    pub keep: Duration,
}

impl Default for Batch {
    fn default() -> Self {
        Self { largest: None, peers: None, keep: Duration::from_secs(1) }
    }
}

/// Units in hand, from [`Limiter::units`](crate::Limiter::units). They count as used for all other processes. The next
/// batch is requested before the current batch is spent. When `Units` is dropped, a task gives unspent units back.
pub struct Units<C: ConnectionLike + Clone + Send + Sync + 'static> {
    shared: Arc<Shared<C>>,
    /// `false` if a bound of the batches is 0.
    has_valid_bounds: bool,
}

struct Shared<C: ConnectionLike + Clone + Send + Sync + 'static> {
    sender: CallSender<C>,
    charge: Charge,
    keep: Duration,
    /// Origin of the times of the batching.
    start: Instant,
    state: Mutex<State>,
}

struct State {
    batching: Batching,
    /// Last decision of the server.
    last_decision: Option<Decision>,
    waiters: VecDeque<Waiter>,
    /// Task that requests units, while there is one.
    request: Option<JoinHandle<()>>,
    /// `true` while a task waits until units expire.
    has_expiry_task: bool,
    is_dropped: bool,
}

/// Take that waits for units.
struct Waiter {
    cost: u32,
    answer: oneshot::Sender<Result<Decision, CallFailure>>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Units<C> {
    pub(crate) fn new(sender: CallSender<C>, charge: Charge, batch: Batch) -> Self {
        let Batch { largest, peers, keep } = batch;
        let state = State {
            batching: Batching::new(keep.as_secs_f64(), largest, peers.map(|peers| peers.max(1))),
            last_decision: None,
            waiters: VecDeque::new(),
            request: None,
            has_expiry_task: false,
            is_dropped: false,
        };
        let shared = Shared { sender, charge, keep, start: Instant::now(), state: Mutex::new(state) };
        Self { shared: Arc::new(shared), has_valid_bounds: largest != Some(0) && peers != Some(0) }
    }

    /// Spends units, mostly without a call.
    ///
    /// # Errors
    /// Returns the errors of [`Limiter::take`](crate::Limiter::take).
    pub async fn take(&self, cost: u32) -> Result<Decision, Error> {
        let Shared { sender, charge, .. } = &*self.shared;
        charge.check(cost.into())?;
        // A sketch could not take unspent units back.
        refuse_sketches(charge.limits())?;
        if cost == 0 || !self.has_valid_bounds {
            return Err(Error::Call("units are whole, from 1".to_owned()));
        }
        let receiver = match self.start_take(cost) {
            StartedTake::Decided(decision) => return Ok(decision),
            StartedTake::Waiting(receiver) => receiver,
        };
        match receiver.await {
            Ok(Ok(decision)) => Ok(decision),
            // The fallback decides one call, not a batch.
            Ok(Err(why)) => sender.fallback(why),
            Err(_) => sender.fallback(CallFailure::NoReply("the request for units was aborted".to_owned())),
        }
    }

    /// Gives unspent units back.
    ///
    /// # Errors
    /// Any error of the server or the connection. The units then recover by themselves.
    pub async fn close(self) -> Result<(), Error> {
        let request = self.shared.state().request.take();
        if let Some(request) = request {
            let _ = request.await;
        }
        let grants = self.shared.state().batching.take_all();
        self.shared.give_back(grants).await.map_err(CallFailure::into_error)
    }

    fn start_take(&self, cost: u32) -> StartedTake {
        let shared = &self.shared;
        let now = shared.now();
        let mut state = shared.state();
        state.batching.record_demand(cost, now);
        let started = if let Some(decision) = state.decide(cost, now) {
            StartedTake::Decided(decision)
        } else {
            let (answer, receiver) = oneshot::channel();
            state.waiters.push_back(Waiter { cost, answer });
            StartedTake::Waiting(receiver)
        };
        let expired = state.batching.take_expired();
        if expired.iter().any(|grant| grant.unspent > 0) {
            let shared = shared.clone();
            tokio::spawn(async move { shared.give_back(expired).await.is_ok() });
        }
        let is_needed = !state.waiters.is_empty() || state.batching.is_due(now);
        if is_needed && state.request.is_none() {
            state.request = Some(tokio::spawn(shared.clone().request_units()));
        }
        started
    }
}

/// Take that was decided without a call, or that waits for a request.
enum StartedTake {
    Decided(Decision),
    Waiting(oneshot::Receiver<Result<Decision, CallFailure>>),
}

impl State {
    /// Decides a take without a call, if possible.
    fn decide(&mut self, cost: u32, now: f64) -> Option<Decision> {
        let last_decision = self.last_decision.as_ref()?;
        let decision = |allowed, remaining, wait| Decision {
            allowed,
            remaining: Some(remaining),
            wait,
            granted: None,
            id: None,
            ..last_decision.clone()
        };
        if self.batching.spend(cost, now) {
            let in_hand = i64::try_from(self.batching.in_hand(now)).unwrap_or(i64::MAX);
            return Some(decision(
                true,
                last_decision.remaining.unwrap_or(0).saturating_add(in_hand),
                Some(Duration::ZERO),
            ));
        }
        if !self.batching.denies(cost, now) {
            return None;
        }
        let in_hand = i64::try_from(self.batching.in_hand(now)).unwrap_or(i64::MAX);
        let wait = self.batching.wait(cost, now).map(|wait| Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX));
        Some(decision(false, in_hand, wait.map(|wait| wait.max(Duration::from_millis(1)))))
    }

    /// Records the reply to a request, and answers the waiting takes, first come, first served. Takes that came after
    /// the request was sent may have to wait for the next request.
    fn record_reply(&mut self, decision: Decision, id: String, requested: u64, sent_at: f64, now: f64) {
        let whole = |number: Option<i64>| u64::try_from(number.unwrap_or(0)).unwrap_or(0);
        let reply = Reply {
            id,
            // A policy that now has FORCE charges denied calls, whose units are not granted.
            granted: whole(decision.granted.filter(|_| decision.allowed)),
            limit: whole(decision.limit),
            remaining: whole(decision.remaining),
            wait: decision.wait.map(|wait| wait.as_secs_f64()),
            reset: decision.reset.unwrap_or_default().as_secs_f64(),
        };
        self.last_decision = Some(decision);
        self.batching.record_reply(reply, requested, sent_at, now, random());
        while let Some(waiter) = self.waiters.pop_front() {
            // The units of a cancelled take are for the other takes.
            if waiter.answer.is_closed() {
                continue;
            }
            let Some(answer) = self.decide(waiter.cost, now) else {
                self.waiters.push_front(waiter);
                break;
            };
            let _ = waiter.answer.send(Ok(answer));
        }
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shared<C> {
    fn now(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests units until every waiting take is answered. Runs as a task of its own, because a caller may be
    /// cancelled.
    async fn request_units(self: Arc<Self>) {
        loop {
            let force_check = self.sender.refuse_forced(&self.charge).await;
            let sent_at = self.now();
            let requested = {
                let mut state = self.state();
                let waiting = state.waiters.iter().map(|waiter| u64::from(waiter.cost)).sum();
                u32::try_from(state.batching.plan_request(waiting, sent_at)).unwrap_or(u32::MAX)
            };
            let id = Id::new(self.keep.saturating_add(SETTLE_MARGIN).into());
            let words = self.charge.take_words(&Take::units(requested).up_to(), Some(&id));
            let reply = match force_check {
                Ok(()) => self.sender.send_for_decision(&words, true, None).await,
                Err(why) => Err(why),
            };
            if let Some(grants) = self.record_result(reply, id.name, requested, sent_at) {
                // Units that cannot be given back recover by themselves.
                let _ = self.give_back(grants).await;
                return;
            }
        }
    }

    /// Records the result of a request. If no take waits any more, ends the request and returns the grants to settle:
    /// all grants if `Units` was dropped, otherwise none.
    fn record_result(
        self: &Arc<Self>,
        reply: Result<Decision, CallFailure>,
        id: String,
        requested: u32,
        sent_at: f64,
    ) -> Option<Vec<Grant>> {
        let now = self.now();
        let mut state = self.state();
        match reply {
            Ok(decision) => state.record_reply(decision, id, requested.into(), sent_at, now),
            Err(why) => {
                state.batching.record_failure(now);
                for waiter in state.waiters.drain(..) {
                    let _ = waiter.answer.send(Err(why.clone()));
                }
            }
        }
        self.start_expiry_task(&mut state);
        if !state.waiters.is_empty() {
            return None;
        }
        state.request = None;
        Some(if state.is_dropped { state.batching.take_all() } else { Vec::new() })
    }

    /// Starts a task that gives units back when they expire, even if no take follows.
    fn start_expiry_task(self: &Arc<Self>, state: &mut State) {
        if !state.has_expiry_task && state.batching.expires_at().is_some() {
            state.has_expiry_task = true;
            tokio::spawn(give_back_expired(Arc::downgrade(self)));
        }
    }

    /// Settles grants. Returns the first error, after all attempts.
    async fn give_back(&self, grants: Vec<Grant>) -> Result<(), CallFailure> {
        let mut outcome = Ok(());
        for Grant { id, spent, .. } in grants.into_iter().filter(|grant| grant.unspent > 0) {
            let words = self.charge.words(vec!["SETTLE".to_owned(), id, spent.to_string()]);
            let settled = self.sender.send_change(self.charge.key(), &words, true).await;
            outcome = outcome.and(settled.map(|_| ()));
        }
        outcome
    }
}

/// Gives units back when they expire, until no units are in hand.
async fn give_back_expired<C: ConnectionLike + Clone + Send + Sync + 'static>(units: Weak<Shared<C>>) {
    loop {
        let wait = {
            let Some(shared) = units.upgrade() else { return };
            let now = shared.now();
            let mut state = shared.state();
            let Some(expires_at) = state.batching.expires_at() else {
                state.has_expiry_task = false;
                return;
            };
            Duration::try_from_secs_f64(expires_at - now).unwrap_or_default()
        };
        // A millisecond longer, because a timer may be early.
        tokio::time::sleep(wait.saturating_add(Duration::from_millis(1))).await;
        let Some(shared) = units.upgrade() else { return };
        let expired = {
            let now = shared.now();
            let mut state = shared.state();
            state.batching.in_hand(now);
            state.batching.take_expired()
        };
        let _ = shared.give_back(expired).await;
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Drop for Units<C> {
    fn drop(&mut self) {
        let grants = {
            let mut state = self.shared.state();
            state.is_dropped = true;
            state.batching.take_all()
        };
        // Without a runtime, the units are not given back, but recover by themselves.
        if grants.iter().any(|grant| grant.unspent > 0)
            && let Ok(runtime) = Handle::try_current()
        {
            let shared = self.shared.clone();
            runtime.spawn(async move { shared.give_back(grants).await.is_ok() });
        }
    }
}
