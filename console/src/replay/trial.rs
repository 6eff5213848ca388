//! Evaluation of calls under limits, in order. Each key starts unused, and the clock is the time of the call. The core
//! decides, as on the server.

use super::limits::{Limits, TrialRequest};
use ratelimit_core::composite::{CompositeEvaluation, CompositeUsage, StoredUsage};
use ratelimit_core::syntax::{CompositeRequest, Purpose, Spec};
use ratelimit_core::{
    Amount, AnyUsage, Change, Limit, PlainUsage, Request, Span, Timestamp, Usage, evaluate, with_limit, with_usage,
};

/// Maximum number of entries of a key: the default of the server's `ratelimit.max-log-entries`.
const MAX_ENTRIES: usize = 100_000;

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// The call passes.
    Admitted,
    /// The call is denied.
    Denied,
    /// The key would have too many entries for a server, or there is no memory for another entry.
    Overfull,
}

/// Limits with the usage of each key.
pub struct Trial<'l> {
    request: TrialRequest<'l>,
    /// Request of each limit for a call with a cost of 1.
    unit_requests: Vec<Request>,
    /// `true` if usages grow with the number of calls.
    grows: bool,
    usages: Vec<Option<KeyUsage>>,
    /// Memory of growing usages in bytes.
    bytes: usize,
    /// Value of `bytes` above which no entries are added.
    max_bytes: usize,
}

/// Usage of a key.
enum KeyUsage {
    One(AnyUsage),
    Several(CompositeUsage),
}

impl<'l> Trial<'l> {
    /// Creates a trial in which all keys are unused. Usages that grow with the calls may take `max_bytes` together.
    ///
    /// # Errors
    /// If the limits need data that a log does not have.
    pub fn new(limits: &'l Limits, max_bytes: usize) -> Result<Trial<'l>, String> {
        let request = limits.request()?;
        let specs = match &request {
            TrialRequest::One(spec) => std::slice::from_ref(spec),
            TrialRequest::Several(call) => call.specs.as_slice(),
        };
        let grows = specs.iter().any(|spec| spec.limit.grows());
        let unit_requests = specs.iter().map(|spec| spec.request).collect();
        Ok(Trial { request, unit_requests, grows, usages: vec![], bytes: 0, max_bytes })
    }

    /// Decides and charges a call of the key with this number.
    pub fn decide(&mut self, key: usize, now: Timestamp, cost: Amount) -> TrialOutcome {
        if self.usages.len() <= key {
            self.usages.resize_with(key + 1, || None);
        }
        if self.grows && self.bytes > self.max_bytes {
            self.drop_recovered(now);
        }
        let is_full = self.bytes > self.max_bytes;
        let Some(usage) = self.usages.get_mut(key) else { return TrialOutcome::Overfull };
        let before = if self.grows { memory(usage.as_ref()) } else { 0 };
        let outcome = match &mut self.request {
            TrialRequest::One(spec) => decide_one(*spec, usage, now, cost, is_full),
            TrialRequest::Several(call) => {
                set_cost(call, &self.unit_requests, cost);
                decide_several(call, usage, now, is_full)
            }
        };
        if self.grows {
            self.bytes = (self.bytes + memory(usage.as_ref())).saturating_sub(before);
        }
        outcome
    }

    /// Drops usages that have recovered, which are equivalent to unused keys.
    fn drop_recovered(&mut self, now: Timestamp) {
        let request = &self.request;
        for usage in self.usages.iter_mut().filter(|usage| usage.is_some()) {
            usage.take_if(|usage| usage.recovery(request, now) == Span::ZERO);
        }
        self.bytes = self.usages.iter().map(|usage| memory(usage.as_ref())).sum();
    }
}

impl KeyUsage {
    fn recovery(&self, request: &TrialRequest, now: Timestamp) -> Span {
        match (self, request) {
            (KeyUsage::One(usage), TrialRequest::One(spec)) => {
                with_limit!(spec, limit => recovery_of(limit, usage, now))
            }
            (KeyUsage::Several(usage), _) => usage.reset(now),
            (KeyUsage::One(_), TrialRequest::Several(_)) => Span::MAX,
        }
    }
}

fn recovery_of<L: Limit>(limit: &L, usage: &AnyUsage, now: Timestamp) -> Span
where
    L::Usage: PlainUsage,
{
    L::Usage::of(usage).map_or(Span::MAX, |usage| limit.recovery(usage, now))
}

/// Returns the memory of a usage in bytes.
fn memory(usage: Option<&KeyUsage>) -> usize {
    match usage {
        None => 0,
        Some(KeyUsage::One(usage)) => with_usage!(usage, usage => size_of_val(usage) + usage.heap_size()),
        Some(KeyUsage::Several(usage)) => usage.heap_size(),
    }
}

fn decide_one(
    spec: Spec,
    key_usage: &mut Option<KeyUsage>,
    now: Timestamp,
    cost: Amount,
    is_full: bool,
) -> TrialOutcome {
    if key_usage.is_none() {
        *key_usage = AnyUsage::unused(spec.limit.kind()).map(KeyUsage::One);
    }
    let Some(KeyUsage::One(usage)) = key_usage else { return TrialOutcome::Overfull };
    with_limit!(spec, limit => take(limit, usage, now, cost, is_full))
}

fn take<L: Limit>(limit: &L, usage: &mut AnyUsage, now: Timestamp, cost: Amount, is_full: bool) -> TrialOutcome
where
    L::Usage: PlainUsage,
{
    let Some(usage) = L::Usage::of_mut(usage) else { return TrialOutcome::Overfull };
    let evaluation = evaluate(limit, usage, now, Request::Take(cost));
    if !evaluation.verdict.allowed() {
        return TrialOutcome::Denied;
    }
    if let (true, Change::Charge(_)) = (L::Usage::GROWS, evaluation.change) {
        let entries = limit.entries_after_charge(usage, now);
        if entries.is_some_and(|entries| entries > MAX_ENTRIES || is_full && entries > usage.entries()) {
            return TrialOutcome::Overfull;
        }
    }
    evaluation.change.apply(limit, usage, now);
    TrialOutcome::Admitted
}

/// Sets the cost of a call for each limit without a cost of its own. A call of cost 0 charges no limit.
fn set_cost(call: &mut CompositeRequest, unit_requests: &[Request], cost: Amount) {
    let is_check = cost == Amount::ZERO;
    call.purpose = if is_check { Purpose::Peek } else { Purpose::Charge };
    for (spec, unit_request) in call.specs.iter_mut().zip(unit_requests) {
        spec.request = if spec.has_own_cost && !is_check { *unit_request } else { Request::Take(cost) };
    }
}

fn decide_several(
    call: &CompositeRequest,
    key_usage: &mut Option<KeyUsage>,
    now: Timestamp,
    is_full: bool,
) -> TrialOutcome {
    let usage = key_usage.get_or_insert_with(|| KeyUsage::Several(CompositeUsage::default()));
    let KeyUsage::Several(usage) = usage else { return TrialOutcome::Overfull };
    if let Some(fast) = usage.evaluate_fast(call, now) {
        if fast.denies() {
            return TrialOutcome::Denied;
        }
        usage.charge_fast(call, &fast, false, now);
        return TrialOutcome::Admitted;
    }
    let stored = StoredUsage::Composite(usage);
    let mut evaluation = CompositeEvaluation::at(call, stored, now);
    let admits = evaluation.allows();
    let is_overfull = |evaluation: &CompositeEvaluation| {
        evaluation.entries(call, stored, now).any(|(_, entries, grows)| entries > MAX_ENTRIES || is_full && grows)
    };
    if admits && is_overfull(&evaluation) {
        // As on the server, entries of limits in shadow mode are left out first.
        evaluation.exclude_shadow_limits();
        if is_overfull(&evaluation) {
            return TrialOutcome::Overfull;
        }
    }
    if admits && evaluation.changes() || evaluation.is_strike() {
        usage.charge(call, &evaluation, now);
    }
    if admits { TrialOutcome::Admitted } else { TrialOutcome::Denied }
}

#[cfg(test)]
mod tests;
