//! Requests answered by remembered denials.

use super::{Evaluator, RequestPart, RuleCall};
use crate::call::{Call, Operation, Reply};
use crate::denied_keys::SentCall;
use crate::traces::RequestSpan;
use std::sync::Arc;
use tokio::time::Instant;

impl Evaluator {
    /// Returns the reply from a remembered denial, or `None`, for each part that is a call.
    pub(super) fn remembered_denials(&self, parts: &[RequestPart], now: Instant) -> Vec<Option<Reply>> {
        let policy_changes = self.policies.changes();
        let find = |rule_call: &RuleCall| {
            let may_find = self.may_remember_denial(rule_call);
            let denied_keys = may_find.then_some(&self.upstream.denied_keys)?;
            denied_keys.find(&rule_call.call, policy_changes, now).map(Reply::Remembered)
        };
        rule_calls(parts).map(find).collect()
    }

    /// Sends the calls that no remembered denial answers. Returns all calls with their replies.
    pub(super) async fn send_remaining(
        &self,
        calls: Arc<[Call]>,
        remembered: &[Option<Reply>],
        span: Option<&RequestSpan>,
    ) -> (Arc<[Call]>, Vec<Reply>) {
        if remembered.iter().all(Option::is_none) {
            return self.send(calls, span).await;
        }
        let remaining =
            calls.iter().zip(remembered).filter(|(_, denial)| denial.is_none()).map(|(call, _)| call.clone());
        let (sent_calls, replies) = self.send(remaining.collect(), span).await;
        let mut calls_and_replies = sent_calls.iter().cloned().zip(replies);
        let reply = |(call, denial): (&Call, &Option<Reply>)| match denial {
            Some(reply) => Some((call.clone(), reply.clone())),
            None => calls_and_replies.next(),
        };
        let (calls, replies): (Vec<Call>, Vec<Reply>) = calls.iter().zip(remembered).filter_map(reply).unzip();
        (calls.into(), replies)
    }

    /// Records the denials of the server among the replies. The calls were sent after `started`.
    pub(super) fn record_denials(&self, parts: &[RequestPart], replies: &[Reply], started: Instant) {
        let (now, policy_changes) = (Instant::now(), self.policies.changes());
        for (rule_call, reply) in rule_calls(parts).zip(replies) {
            let call = &rule_call.call;
            let Reply::Decided(decision) = reply else { continue };
            if decision.allowed || !self.may_remember_denial(rule_call) {
                continue;
            }
            let max_duration = self.remember_denials;
            let (limits, sent) =
                (self.limits(&call.rule, decision), SentCall { call, decision, sent_at: started, max_duration });
            if let Some(peek) = self.upstream.denied_keys.record(sent, &limits, policy_changes, now) {
                let (upstream, call) = (Arc::clone(&self.upstream), call.clone());
                tokio::spawn(async move { upstream.track(&call, peek, max_duration).await });
            }
        }
    }

    /// Returns `true` if a denial of the call is enforced and may be remembered. Idempotency keys for rollbacks do not
    /// matter, because only the copies of the calls that are sent have them.
    fn may_remember_denial(&self, rule_call: &RuleCall) -> bool {
        let RuleCall { call, shadow, .. } = rule_call;
        let is_off = self.remember_denials.is_zero() || self.shadow || *shadow;
        !is_off && matches!((&call.operation, &call.id), (Operation::Take(_), None))
    }
}

fn rule_calls(parts: &[RequestPart]) -> impl Iterator<Item = &RuleCall> {
    parts.iter().filter_map(|part| if let RequestPart::Call(rule_call) = part { Some(rule_call) } else { None })
}
