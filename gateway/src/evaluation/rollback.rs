//! Rollback of the charges of a denied request.

use super::{Evaluator, RequestPart};
use crate::call::{Call, Operation, Reply};
use crate::charge::ChargingMode;
use crate::metrics;
use crate::traces::RequestSpan;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum lifetime of an idempotency key that is used only to roll back.
const ROLLBACK_LIFETIME: Duration = Duration::from_secs(2);

impl Evaluator {
    /// Rolls back the charges of a denied request. A rollback without a reply is sent once more; charges that could not
    /// be rolled back are counted.
    pub(super) async fn roll_back(&self, calls: &[Call], replies: &[Reply], span: Option<&RequestSpan>) {
        let needs_rollback = |(call, reply): &(&Call, &Reply)| {
            let Reply::Decided(decision) = reply else { return false };
            let is_charged = call.may_charge() && decision.allowed;
            is_charged && call.charging_mode_under(&self.limits(&call.rule, decision)) == ChargingMode::AllOrNone
        };
        let mut rollbacks: Arc<[Call]> =
            calls.iter().zip(replies).filter(needs_rollback).map(|(call, _)| call.rollback()).collect();
        for _ in 0..2 {
            if rollbacks.is_empty() {
                return;
            }
            let replies = self.upstream.send_calls(Arc::clone(&rollbacks), Instant::now() + self.timeout, span).await;
            // A settlement fails, for example, if the policy was deleted after the charge.
            let failed = replies.iter().filter(|reply| !matches!(reply, Reply::Decided(_) | Reply::Lost(_)));
            metrics::count_unsettled(failed.count());
            let lost = rollbacks.iter().zip(&replies).filter(|(_, reply)| matches!(reply, Reply::Lost(_)));
            // Without an idempotency key, a second attempt could return the units twice.
            let (retries, abandoned): (Vec<Call>, Vec<Call>) =
                lost.map(|(call, _)| call.clone()).partition(|call| call.id.is_some());
            metrics::count_unsettled(abandoned.len());
            rollbacks = retries.into();
        }
        metrics::count_unsettled(rollbacks.len());
    }
}

/// Returns the calls of a request. A call that may be charged while another part denies gets an idempotency key, by
/// which it can be rolled back. The lifetime of the key is longer than a charge and its rollback take if each call has
/// this `timeout`.
pub(super) fn identifiable_calls(parts: &[RequestPart], timeout: Duration) -> Arc<[Call]> {
    let lifetime = ROLLBACK_LIFETIME.max(timeout.saturating_mul(4));
    let mut calls: Vec<Call> = parts
        .iter()
        .filter_map(|part| if let RequestPart::Call(rule_call) = part { Some(rule_call.call.clone()) } else { None })
        .collect();
    let may_deny = |part: &&RequestPart| match part {
        RequestPart::Call(rule_call) => matches!(rule_call.call.operation, Operation::Take(_)),
        RequestPart::CostTooHigh => true,
        RequestPart::NoLimit | RequestPart::Unlimited => false,
    };
    let may_roll_back = parts.iter().filter(may_deny).count() > 1;
    let mut keys: Vec<Vec<u8>> = vec![];
    for call in &mut calls {
        if may_roll_back && call.charge == ChargingMode::AllOrNone && call.may_charge() && call.id.is_none() {
            call.id = Some(random_id());
            call.id_lifetime = format!("{}ms", lifetime.as_millis());
        }
        // Two calls of a request on one key are both charged, so that they need different idempotency keys.
        let occurrence = 1 + keys.iter().filter(|key| **key == call.key).count();
        keys.push(call.key.clone());
        if let (Some(id), 2..) = (&mut call.id, occurrence) {
            id.extend(format!("#{occurrence}").bytes());
        }
    }
    calls.into()
}

/// Returns a unique idempotency key.
fn random_id() -> Vec<u8> {
    let mut bytes = [0; 16];
    // Never fails where TLS works; equal idempotency keys would leave a call uncharged.
    if getrandom::fill(&mut bytes).is_err() {
        std::process::abort();
    }
    bytes.to_vec()
}
