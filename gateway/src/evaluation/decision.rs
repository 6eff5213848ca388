//! Decisions on a request and its parts.

use super::{RequestPart, RuleCall};
use crate::call::{CallDecision, LimitDecision, Operation};
use crate::charge::ChargingMode;
use crate::limit::Limit;
use crate::metrics::envoyproxy::{self, Hits, LimitState};
use crate::metrics::{self, NearLimitRatio, Outcome, RequestOutcome, Units};
use crate::traces::RequestSpan;
use ratelimit_core::Amount;
use std::sync::Arc;

/// Decision on a request.
#[derive(Clone, Debug)]
pub struct RequestDecision {
    /// `true` if the request passes.
    pub allowed: bool,
    /// `true` if a part has no decision, so that the outage mode applied to it.
    pub is_undecided: bool,
    /// Decisions on the parts, in order.
    pub parts: Vec<PartDecision>,
}

/// Decision on a part of a request.
#[derive(Clone, Debug)]
pub struct PartDecision {
    /// Outcome in metrics.
    pub outcome: Outcome,
    /// `true` if the part exceeds its limit, even if shadow mode or a quota lets the request pass.
    pub is_over: bool,
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
            envoyproxy::count_global_shadow();
            let denied = self.parts.iter_mut().filter(|part| part.outcome == Outcome::Denied);
            denied.for_each(|part| part.outcome = Outcome::Shadow);
        }
    }

    /// Counts the decisions on the parts in metrics.
    pub(super) fn count_in_metrics(&self, domain: &str, parts: &[RequestPart], near_limit: NearLimitRatio) {
        if self.is_undecided {
            envoyproxy::count_undecided();
        }
        for (part, decision) in parts.iter().zip(&self.parts) {
            let rule_call = if let RequestPart::Call(rule_call) = part { Some(rule_call) } else { None };
            let metric = rule_call.and_then(|rule_call| rule_call.metric.as_ref());
            let applied_policy = decision.applied_policy();
            let policy = applied_policy.or_else(|| metric.map(|metric| metric.rule.as_str()));
            let is_known_domain = applied_policy.is_some() || metric.is_some_and(|metric| !metric.is_override);
            let values = metric.and_then(|metric| metric.values.as_deref());
            let units = rule_call.map(|rule_call| Units::new(&rule_call.call.operation, decision.outcome));
            metrics::count_decision(domain, is_known_domain, policy, values, decision.outcome, units);
            if let (Outcome::Allowed, Some(policy), Some(governing)) = (decision.outcome, policy, decision.governing())
                && near_limit.is_near(governing.limit, governing.remaining)
            {
                metrics::count_near_limit(policy);
            }
            if envoyproxy::is_enabled()
                && let Some(rule_call) = rule_call
                && let Some(policy) = policy
                && let Some(hits) = decision.hits(rule_call)
            {
                let label = metrics::domain_label(domain, is_known_domain);
                let path = match metric {
                    Some(metric) => metric.values.clone().unwrap_or_else(|| metric.rule.clone()),
                    None => policy_path(domain, policy),
                };
                envoyproxy::count_hits(label, &path, hits, near_limit);
            }
        }
    }

    /// Returns the part that denies the request for the longest time under a limit, with its index.
    #[must_use]
    pub fn longest_denial(&self) -> Option<(usize, &PartDecision)> {
        let denials = self.parts.iter().enumerate().filter(|(_, part)| part.denies && part.governing().is_some());
        denials.filter(|_| !self.allowed).max_by_key(|(_, part)| {
            let wait = part.decision.as_ref().map_or(0, |decision| decision.wait_ms);
            // A call that never passes waits for the longest time.
            if wait < 0 { i64::MAX } else { wait }
        })
    }

    /// Describes the decision in the span of the request.
    pub(super) fn describe_in_span(&self, span: &RequestSpan, domain: &str, parts: &[RequestPart]) {
        span.set_text("ratelimit.domain", domain);
        span.set("ratelimit.descriptors", i64::try_from(self.parts.len()).unwrap_or(i64::MAX));
        span.set("ratelimit.decision", if self.allowed { "allowed" } else { "denied" });
        span.set("ratelimit.outcome", self.outcome().label());
        if let Some((index, part)) = self.longest_denial() {
            if let Some(RequestPart::Call(rule_call)) = parts.get(index) {
                span.set_text("ratelimit.policy", part.policy(rule_call).unwrap_or_default());
            }
            span.set_text("ratelimit.limit", &part.limit_name());
            span.set("ratelimit.remembered", part.outcome == Outcome::DeniedLocal);
        }
    }

    /// Returns the outcome of the request in metrics.
    pub(super) fn outcome(&self) -> RequestOutcome {
        match (self.is_undecided, self.allowed) {
            (true, _) if self.parts.iter().any(|part| part.outcome == Outcome::Error) => RequestOutcome::Error,
            (true, _) => RequestOutcome::Outage,
            (false, true) => RequestOutcome::Allowed,
            (false, false) => RequestOutcome::Denied,
        }
    }
}

impl PartDecision {
    /// Creates a decision on an enforced part without a reply of the server.
    pub(super) fn new(outcome: Outcome, is_over: bool) -> PartDecision {
        let (shadow, denies) = (false, false);
        PartDecision { outcome, is_over, shadow, denies, decision: None, limits: Arc::default(), cost: Amount::ONE }
    }

    /// Returns the decision of the governing limit: see [`CallDecision::governing`].
    #[must_use]
    pub fn governing(&self) -> Option<LimitDecision> {
        self.indexed_governing().map(|(_, decision)| decision)
    }

    /// Returns the governing limit, if it is known.
    #[must_use]
    pub fn governing_limit(&self) -> Option<&Limit> {
        self.indexed_governing().and_then(|(index, _)| self.limits.get(index))
    }

    /// Returns the name of the governing limit, or its units if the limit is not known.
    pub(super) fn limit_name(&self) -> String {
        let name = self.governing_limit().map(|limit| limit.name.clone());
        name.or_else(|| self.governing().map(|governing| governing.limit.to_string())).unwrap_or_default()
    }

    /// Returns the name of the policy that applied to a call, or the name of its rule if no policy applied.
    pub(super) fn policy<'a>(&'a self, rule_call: &'a RuleCall) -> Option<&'a str> {
        self.applied_policy().or_else(|| rule_call.metric.as_ref().map(|metric| metric.rule.as_str()))
    }

    fn applied_policy(&self) -> Option<&str> {
        self.decision.as_ref().and_then(|decision| decision.policy.as_deref())
    }

    /// Returns the remaining units of the governing limit, and the cost of this call under it in millionths.
    #[must_use]
    pub fn remaining_and_cost(&self) -> Option<(i64, u64)> {
        let (index, decision) = self.indexed_governing()?;
        let cost = self.limits.get(index).and_then(|limit| limit.cost).unwrap_or(self.cost);
        // A call without a cost is compared like a call of cost 1.
        let cost = if cost == Amount::ZERO { Amount::ONE } else { cost };
        Some((decision.remaining, cost.millionths()))
    }

    /// Returns the hits of the call on its limit, or `None` for a call that only corrects earlier calls.
    fn hits(&self, rule_call: &RuleCall) -> Option<Hits> {
        let operation = &rule_call.call.operation;
        if !matches!(operation, Operation::Take(_) | Operation::Force(_)) {
            return None;
        }
        let count = Units::new(operation, self.outcome).count;
        let state = self.governing().map(|governing| {
            let limit = u64::try_from(governing.limit).unwrap_or_default();
            let after = limit.saturating_sub(u64::try_from(governing.remaining).unwrap_or_default());
            let used_before = match (self.is_over, rule_call.call.charging_mode_under(&self.limits)) {
                // The reply has no usage beyond the limit: all hits of a denied call count as above it.
                (true, ChargingMode::Always) => limit,
                (true, _) => after,
                (false, _) => after.saturating_sub(count),
            };
            LimitState { limit, used_before, is_over: self.is_over }
        });
        Some(Hits { count, is_shadow: self.shadow, state })
    }

    fn indexed_governing(&self) -> Option<(usize, LimitDecision)> {
        self.decision.as_ref().and_then(|decision| decision.governing(&self.limits, self.cost))
    }
}

/// Returns the path of a policy in metrics of envoyproxy/ratelimit: the name `api|plan=gold|user` in the domain `api` is
/// the path `plan_gold.user`.
fn policy_path(domain: &str, policy: &str) -> String {
    let entries = policy.strip_prefix(domain).and_then(|rest| rest.strip_prefix('|')).unwrap_or(policy);
    entries.replace('|', ".").replace('=', "_")
}
