//! Combination of the replies to the calls of a request into one decision.

use super::{Evaluator, PartDecision, RequestDecision, RequestPart, RuleCall};
use crate::call::{CallDecision, Operation, Reply, Rule};
use crate::limit::{Limit, parse_limits};
use crate::metrics::Outcome;
use crate::outage_mode::OutageMode;
use ratelimit_core::Amount;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Minimum time between two log lines about errors of the server.
const ERROR_LOG_INTERVAL: Duration = Duration::from_mins(1);

impl Evaluator {
    /// Returns the decision on a request if none of its parts could be evaluated.
    pub(super) fn outage_decision(&self, part_count: usize) -> RequestDecision {
        let is_closed = self.outage_mode == OutageMode::Closed;
        let part = PartDecision { denies: is_closed, ..PartDecision::new(Outcome::Outage, is_closed) };
        RequestDecision { allowed: !is_closed, is_undecided: true, parts: vec![part; part_count] }
    }

    /// Combines the replies into the decision on the request. `replies` has one reply for each part that is a call, in
    /// the order of the parts.
    pub(super) fn combine(&self, parts: &[RequestPart], replies: &[Reply]) -> RequestDecision {
        let mut replies = replies.iter();
        let mut decisions: Vec<PartDecision> = vec![];
        let (mut quotas, mut is_undecided) = (vec![], false);
        for part in parts {
            let mut part_decision = match part {
                RequestPart::NoLimit => PartDecision::new(Outcome::Unmatched, false),
                RequestPart::Unlimited => PartDecision::new(Outcome::Allowed, false),
                RequestPart::CostTooHigh => PartDecision::new(Outcome::Denied, true),
                RequestPart::Call(rule_call) => {
                    let decision = replies.next().map(|reply| self.part_decision(rule_call, reply));
                    let decision = decision.unwrap_or_else(|| PartDecision::new(Outcome::Outage, false));
                    PartDecision { shadow: rule_call.shadow, ..decision }
                }
            };
            let is_part_undecided =
                matches!(part_decision.outcome, Outcome::Outage | Outcome::Error) && part_decision.decision.is_none();
            is_undecided |= is_part_undecided;
            part_decision.denies = part_decision.is_over && !part_decision.shadow;
            if matches!(part, RequestPart::Call(RuleCall { quota: true, .. })) && !is_part_undecided {
                quotas.push(decisions.len());
            }
            decisions.push(part_decision);
        }
        // Quotas with a decision deny only if all of these are exceeded.
        let is_exceeded = |index: &usize| decisions.get(*index).is_some_and(|part| part.is_over && !part.shadow);
        if !quotas.iter().all(is_exceeded) {
            for index in quotas {
                if let Some(decision) = decisions.get_mut(index) {
                    decision.denies = false;
                }
            }
        }
        let allowed = !decisions.iter().any(|decision| decision.denies);
        RequestDecision { allowed, is_undecided, parts: decisions }
    }

    fn part_decision(&self, rule_call: &RuleCall, reply: &Reply) -> PartDecision {
        // Only a take denies. A settlement of an unknown idempotency key is not allowed, but does not deny the request.
        let may_deny = matches!(rule_call.call.operation, Operation::Take(_));
        match reply {
            Reply::Decided(decision) => {
                let outcome = match (may_deny && !decision.allowed, rule_call.shadow) {
                    (false, _) => Outcome::Allowed,
                    (true, true) => Outcome::Shadow,
                    (true, false) => Outcome::Denied,
                };
                self.decided_part(rule_call, decision, outcome)
            }
            Reply::Remembered(decision) => self.decided_part(rule_call, decision, Outcome::DeniedLocal),
            Reply::Local(decision, error) => {
                let outcome = if let Some(error) = error {
                    self.log_error(error);
                    Outcome::Error
                } else {
                    Outcome::Outage
                };
                self.decided_part(rule_call, decision, outcome)
            }
            Reply::Unmatched => PartDecision::new(Outcome::Unmatched, false),
            Reply::Released => PartDecision::new(Outcome::Allowed, false),
            Reply::Refused(_) | Reply::Forbidden(_) => {
                self.log_error(reply);
                PartDecision::new(Outcome::Error, may_deny && self.outage_mode == OutageMode::Closed)
            }
            Reply::Lost(_) => PartDecision::new(Outcome::Outage, may_deny && self.outage_mode == OutageMode::Closed),
        }
    }

    fn decided_part(&self, rule_call: &RuleCall, decision: &CallDecision, outcome: Outcome) -> PartDecision {
        let limits = self.limits(&rule_call.call.rule, decision);
        let (is_over, cost) = match rule_call.call.operation {
            Operation::Take(cost) => (!decision.allowed, cost),
            _ => (false, Amount::ZERO),
        };
        PartDecision { limits, decision: Some(decision.clone()), cost, ..PartDecision::new(outcome, is_over) }
    }

    /// Returns the limits that applied to a call, or an empty list if they are not known.
    pub(super) fn limits(&self, rule: &Rule, decision: &CallDecision) -> Arc<[Limit]> {
        match (&decision.policy, rule) {
            (Some(policy), _) => self.policies.limits(policy),
            (None, Rule::Limits(words)) => parse_limits(&words.join(" ")).into(),
            (None, Rule::Policies(_)) => Arc::default(),
        }
    }

    /// Logs an error reply: each different error about a missing permission once, other errors at most once a minute.
    fn log_error(&self, reply: &Reply) {
        let why = match reply {
            Reply::Forbidden(why) => return self.upstream.permission_log.log(why),
            Reply::Refused(why) => why,
            _ => return,
        };
        let Ok(mut logged_at) = self.error_logged_at.lock() else { return };
        if logged_at.is_none_or(|at| at.elapsed() >= ERROR_LOG_INTERVAL) {
            tracing::error!(why, "the server refused to decide");
            *logged_at = Some(Instant::now());
        }
    }
}
