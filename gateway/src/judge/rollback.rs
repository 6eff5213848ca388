//! Rollback of what a denied request was charged.

use super::{Judge, RequestPart};
use crate::ask::{Call, Reply, Verb};
use crate::charge::Charge;
use crate::seen;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum lifetime of an idempotency key that is used only to roll back.
const ROLLBACK_LIFETIME: Duration = Duration::from_secs(2);

impl Judge {
    /// Gives back what a denied request was charged. A call without a reply is sent again once; a charge that stands all
    /// the same is counted.
    pub(super) async fn undo(&self, calls: &[Call], replies: &[Reply]) {
        let charged = |(call, reply): &(&Call, &Reply)| {
            let Reply::Decided(verdict) = reply else { return false };
            let is_charged = call.charges() && verdict.allowed;
            is_charged && call.charge_under(&self.windows(&call.rule, verdict)) == Charge::AllOrNone
        };
        let mut left: Arc<[Call]> = calls.iter().zip(replies).filter(charged).map(|(call, _)| call.undone()).collect();
        for _ in 0..2 {
            if left.is_empty() {
                return;
            }
            let replies = self.link.ask(Arc::clone(&left), Instant::now() + self.timeout).await;
            // Where the policy has gone meanwhile, there is nothing to settle by.
            let refused = replies.iter().filter(|reply| !matches!(reply, Reply::Decided(_) | Reply::Lost(_)));
            refused.for_each(|_| seen::unsettled());
            let lost = left.iter().zip(&replies).filter(|(_, reply)| matches!(reply, Reply::Lost(_)));
            // Without an id it could be undone twice.
            let (again, stand): (Vec<Call>, Vec<Call>) =
                lost.map(|(call, _)| call.clone()).partition(|call| call.id.is_some());
            for _ in stand {
                seen::unsettled();
            }
            left = again.into();
        }
        left.iter().for_each(|_| seen::unsettled());
    }
}

/// The calls of a request. Where one is to be charged and another part may deny, it has an id by which it can be undone.
/// `timeout` is that of each call: an id is remembered for longer than a charge and its rollback may take.
pub(super) fn identified(asked: &[RequestPart], timeout: Duration) -> Arc<[Call]> {
    let lifetime = ROLLBACK_LIFETIME.max(timeout.saturating_mul(4));
    let mut calls: Vec<Call> = asked
        .iter()
        .filter_map(|one| if let RequestPart::Server(question) = one { Some(question.call.clone()) } else { None })
        .collect();
    let may_deny = |one: &&RequestPart| match one {
        RequestPart::Server(question) => matches!(question.call.verb, Verb::Take(_)),
        RequestPart::TooMuch => true,
        RequestPart::Nothing | RequestPart::Unlimited => false,
    };
    let several = asked.iter().filter(may_deny).count() > 1;
    let mut seen: Vec<Vec<u8>> = vec![];
    for call in &mut calls {
        if several && call.charge == Charge::AllOrNone && call.charges() && call.id.is_none() {
            call.id = Some(random());
            call.remembered = format!("{}ms", lifetime.as_millis());
        }
        // A key that a request has twice is called twice: that is no repetition.
        let again = 1 + seen.iter().filter(|key| **key == call.key).count();
        seen.push(call.key.clone());
        if let (Some(id), 2..) = (&mut call.id, again) {
            id.extend(format!("#{again}").bytes());
        }
    }
    calls.into()
}

/// An id that nobody else has.
fn random() -> Vec<u8> {
    let mut bytes = [0; 16];
    // Without a source of randomness nothing of TLS works either, and two ids that are the same would forgive a call.
    if getrandom::fill(&mut bytes).is_err() {
        std::process::abort();
    }
    bytes.to_vec()
}
