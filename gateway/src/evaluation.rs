//! Evaluation of requests: the calls of a request are sent concurrently and combined into one decision, and the charges
//! of a denied request are rolled back.

mod combine;
mod decision;
mod denial_log;
mod denials;
mod part;
mod rollback;

pub use decision::{PartDecision, RequestDecision};
pub use denial_log::DenialLog;
pub use part::{RequestPart, RuleCall};

use crate::call::{Call, CallDecision, Reply};
use crate::local_limits::LocalLimits;
use crate::metrics::{self, NearLimitRatio};
use crate::outage_mode::OutageMode;
use crate::policy_cache::PolicyCache;
use crate::traces::RequestSpan;
use crate::upstream::Upstream;
use rollback::identifiable_calls;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

/// Caller of a request.
#[derive(Clone, Default)]
pub struct Caller {
    /// Time for which the caller waits, if it is known.
    pub timeout: Option<Duration>,
    /// Span of the request, if it is traced.
    pub span: Option<Arc<RequestSpan>>,
}

/// Evaluator of requests.
pub struct Evaluator {
    /// Connections to the server.
    pub upstream: Arc<Upstream>,
    /// Policies of the server.
    pub policies: Arc<PolicyCache>,
    /// Answer while the server is away.
    pub outage_mode: OutageMode,
    /// Limits of the gateway itself, if `outage_mode` is `Local`.
    pub local: Option<LocalLimits>,
    /// Timeout of a call. A call without a reply within this time is a failure of the server.
    pub timeout: Duration,
    /// Shadow mode: denials are counted but not enforced.
    pub shadow: bool,
    /// Longest time for which denials are remembered. Zero remembers none.
    pub remember_denials: Duration,
    /// Share of a limit above which usage counts as near the limit.
    pub near_limit_ratio: NearLimitRatio,
    /// Permits for the requests in flight.
    pub in_flight: Arc<Semaphore>,
    /// Log of denied requests.
    pub denial_log: DenialLog,
    /// Time of the last log line about an error of the server.
    pub error_logged_at: Mutex<Option<Instant>>,
}

impl Evaluator {
    /// Returns `true` if the request must be answered with an error (`--on-outage error`): a part has no decision, and
    /// no part denies.
    #[must_use]
    pub fn is_failed(&self, decision: &RequestDecision) -> bool {
        self.outage_mode == OutageMode::Error && decision.is_undecided && decision.allowed && !self.shadow
    }

    /// Evaluates all parts of a request concurrently. A denied request is rolled back according to the charging mode of
    /// each call.
    ///
    /// The decision is returned within the shorter of the caller's timeout and the timeout of the gateway. Calls
    /// without a reply continue in the background: a caller's short timeout is not a failure of the server, and charges
    /// of a denied request must still be rolled back.
    pub async fn evaluate(
        self: &Arc<Evaluator>,
        domain: String,
        parts: Arc<[RequestPart]>,
        caller: Caller,
    ) -> RequestDecision {
        let (this, part_count) = (Arc::clone(self), parts.len());
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move { this.run(&domain, &parts, caller, sender).await });
        // The sender is dropped without a decision only if the task panics.
        receiver.await.unwrap_or_else(|_| self.outage_decision(part_count))
    }

    async fn run(&self, domain: &str, parts: &[RequestPart], caller: Caller, sender: oneshot::Sender<RequestDecision>) {
        let (started, Caller { timeout, span }) = (Instant::now(), caller);
        let span = span.as_deref();
        let deadline = started + timeout.map_or(self.timeout, |timeout| timeout.min(self.timeout));
        let permit = self.in_flight.try_acquire();
        let calls = identifiable_calls(parts, self.timeout);
        let remembered = self.remembered_denials(parts, started);
        let without_replies = |why: &str| {
            let reply = |denial: &Option<Reply>| denial.clone().unwrap_or_else(|| Reply::Lost(why.to_owned()));
            remembered.iter().map(reply).collect::<Vec<_>>()
        };
        let mut sending = pin!(async {
            match &permit {
                Ok(_) => self.send_remaining(Arc::clone(&calls), &remembered, span).await,
                Err(_) => (Arc::clone(&calls), without_replies("too many requests at once")),
            }
        });
        let (is_late, (sent_calls, mut replies)) = match timeout_at(deadline, &mut sending).await {
            Ok(calls_and_replies) => (false, calls_and_replies),
            Err(_) => (true, (Arc::clone(&calls), without_replies("no reply before the deadline of the caller"))),
        };
        self.read_new_policies(&sent_calls, &replies, deadline).await;
        self.record_denials(parts, &replies, started);
        if let Some(local) = &self.local
            && replies.iter().any(Reply::is_undecided)
        {
            local.decide(&sent_calls, &mut replies, &self.policies);
        }
        let mut decision = self.combine(parts, &replies);
        let is_rolled_back = !decision.allowed;
        if self.shadow {
            decision.apply_shadow_mode();
        }
        decision.count_in_metrics(domain, parts, self.near_limit_ratio);
        self.denial_log.log(domain, parts, &decision);
        if let Some(span) = span {
            decision.describe_in_span(span, domain, parts);
        }
        let mut remaining = pin!(async {
            let (sent_calls, replies) = if is_late { sending.await } else { (sent_calls, replies) };
            if is_late {
                metrics::count_late_replies(replies.iter().filter(|reply| !matches!(reply, Reply::Lost(_))).count());
            }
            if is_rolled_back {
                self.roll_back(&sent_calls, &replies, span).await;
            }
        });
        // If there is time, the rollback precedes the answer, so that the units are available to a caller that retries
        // at once.
        let is_done = timeout_at(deadline, &mut remaining).await.is_ok();
        metrics::record_request_seconds(started.elapsed(), decision.outcome());
        // Fails if the caller has closed its connection.
        let _ = sender.send(decision);
        if !is_done {
            remaining.await;
        }
    }

    /// Sends the calls and returns them with their replies. A call on a key without room for another idempotency key is
    /// sent again, and returned, without its idempotency key.
    async fn send(&self, calls: Arc<[Call]>, span: Option<&RequestSpan>) -> (Arc<[Call]>, Vec<Reply>) {
        let mut replies = self.upstream.send_calls(Arc::clone(&calls), Instant::now() + self.timeout, span).await;
        let lacks_room =
            |call: &Call, reply: &Reply| call.may_charge() && call.id.is_some() && reply.lacks_room_for_id();
        if !calls.iter().zip(&replies).any(|(call, reply)| lacks_room(call, reply)) {
            return (calls, replies);
        }
        let mut sent_calls = Vec::with_capacity(calls.len());
        let (mut retries, mut retried_replies) = (Vec::new(), Vec::new());
        for (call, reply) in calls.iter().zip(&mut replies) {
            let mut call = call.clone();
            if lacks_room(&call, reply) {
                call.id = None;
                retries.push(call.clone());
                retried_replies.push(reply);
            }
            sent_calls.push(call);
        }
        // A full timeout again: if only the rest of the first timeout applied, a slow reply would count as a failure of
        // the server.
        let deadline = Instant::now() + self.timeout;
        let new_replies = self.upstream.send_calls(retries.into(), deadline, span).await;
        for (reply, new) in retried_replies.into_iter().zip(new_replies) {
            *reply = new;
        }
        (sent_calls.into(), replies)
    }

    /// Reads each applied policy whose version is newer than the cached version, so that the response describes its
    /// current limits.
    async fn read_new_policies(&self, calls: &[Call], replies: &[Reply], deadline: Instant) {
        for (call, reply) in calls.iter().zip(replies) {
            if let Reply::Decided(CallDecision { policy: Some(policy), version: Some(version), .. }) = reply
                && !self.policies.has_version(policy, *version)
            {
                let (upstream, policies) = (Arc::clone(&self.upstream), Arc::clone(&self.policies));
                // A spawned task, because other requests may wait for the same policy longer than this request.
                let reading = tokio::spawn(upstream.read_policy(call.key.clone(), policy.clone(), *version, policies));
                let _ = timeout_at(deadline, reading).await;
            }
        }
    }
}

#[cfg(test)]
mod tests;
