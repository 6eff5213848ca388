//! Decisions on a request and its parts.

use super::RequestPart;
use crate::call::{CallDecision, LimitDecision};
use crate::limit::Limit;
use crate::metrics::{self, Outcome, RequestOutcome, Units};
use ratelimit_core::Amount;
use std::sync::Arc;

/// Decision on a request.
#[derive(Clone, Debug)]
pub struct RequestDecision {
    /// `true` if the request passes.
    pub allowed: bool,
    /// `true` if a part has no decision, so that the outage mode applied to it.
    pub undecided: bool,
    /// Decisions on the parts, in order.
    pub parts: Vec<PartDecision>,
}

/// Decision on a part of a request.
#[derive(Clone, Debug)]
pub struct PartDecision {
    /// Outcome in metrics.
    pub outcome: Outcome,
    /// `true` if the part exceeds its limit, also in shadow mode.
    pub over: bool,
    /// Shadow mode of the rule: the denial is not enforced.
    pub shadow: bool,
    /// `true` if the part denies the request.
    pub denies: bool,
    /// Decision on the call, by the server or by local limits.
    pub decision: Option<CallDecision>,
    /// Limits that applied, if they are known.
    pub limits: Arc<[Limit]>,
    /// Cost of the call.
    pub cost: Amount,
}

impl RequestDecision {
    /// Allows a denied request, and counts its denials as those of shadow mode.
    pub(super) fn apply_shadow_mode(&mut self) {
        if !self.allowed {
            self.allowed = true;
            let denied = self.parts.iter_mut().filter(|part| part.outcome == Outcome::Denied);
            denied.for_each(|part| part.outcome = Outcome::Shadow);
        }
    }

    /// Counts the decisions on the parts in metrics.
    pub(super) fn count(&self, domain: &str, parts: &[RequestPart]) {
        for (part, decision) in parts.iter().zip(&self.parts) {
            let rule_call = if let RequestPart::Call(rule_call) = part { Some(rule_call) } else { None };
            let metric = rule_call.and_then(|rule_call| rule_call.metric.as_ref());
            let applied = decision.decision.as_ref().and_then(|decision| decision.policy.as_deref());
            let policy = applied.or_else(|| metric.map(|metric| metric.rule.as_str()));
            let is_known_domain = applied.is_some() || metric.is_some_and(|metric| !metric.is_override);
            let values = metric.and_then(|metric| metric.values.as_deref());
            let units = rule_call.map(|rule_call| Units::new(&rule_call.call.operation, decision.outcome));
            metrics::count_decision(domain, is_known_domain, policy, values, decision.outcome, units);
            if let (Outcome::Allowed, Some(policy), Some(governing)) = (decision.outcome, policy, decision.governing())
                && governing.remaining.saturating_mul(5) <= governing.limit
            {
                metrics::count_near_limit(policy);
            }
        }
    }

    /// Returns the outcome of the request in metrics.
    pub(super) fn outcome(&self) -> RequestOutcome {
        match (self.undecided, self.allowed) {
            (true, _) if self.parts.iter().any(|part| part.outcome == Outcome::Error) => RequestOutcome::Error,
            (true, _) => RequestOutcome::Outage,
            (false, true) => RequestOutcome::Allowed,
            (false, false) => RequestOutcome::Denied,
        }
    }
}

impl PartDecision {
    /// Creates an enforced decision without a call.
    pub(super) fn new(outcome: Outcome, over: bool) -> PartDecision {
        let (shadow, denies) = (false, false);
        PartDecision { outcome, over, shadow, denies, decision: None, limits: Arc::default(), cost: Amount::ONE }
    }

    /// Returns the decision of the limit that a response describes: see [`CallDecision::governing`].
    #[must_use]
    pub fn governing(&self) -> Option<LimitDecision> {
        self.indexed_governing().map(|(_, decision)| decision)
    }

    /// Returns the limit that a response describes, if it is known.
    #[must_use]
    pub fn governing_limit(&self) -> Option<&Limit> {
        self.indexed_governing().and_then(|(index, _)| self.limits.get(index))
    }

    /// Returns the remaining units of the governing limit, and the cost of this call under it in millionths.
    #[must_use]
    pub fn remaining_and_cost(&self) -> Option<(i64, u64)> {
        let (index, decision) = self.indexed_governing()?;
        let cost = self.limits.get(index).and_then(|limit| limit.cost).unwrap_or(self.cost);
        // A call without a cost is compared as one of cost 1.
        let cost = if cost == Amount::ZERO { Amount::ONE } else { cost };
        Some((decision.remaining, cost.millionths()))
    }

    fn indexed_governing(&self) -> Option<(usize, LimitDecision)> {
        self.decision.as_ref().and_then(|decision| decision.governing(&self.limits, self.cost))
    }
}
