//! What limits say of calls, one after another: each key starts empty, and the time is that of the call. The core
//! decides, as it does in the server.

use super::limits::{Limits, TrialRequest};
use ratelimit_core::composite::{CompositeEvaluation, CompositeUsage, Held};
use ratelimit_core::syntax::{CompositeRequest, Purpose, Spec};
use ratelimit_core::{
    Amount, AnyUsage, Change, Limit, Request, Single, Span, Timestamp, Usage, evaluate, with_limit, with_usage,
};

/// How many entries a key of the server may have (`ratelimit.max-log-entries`, as it is by default).
const ENTRIES_OF_A_KEY: usize = 100_000;

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrialOutcome {
    /// It passes.
    Admitted,
    /// It does not.
    Denied,
    /// Its key remembers more calls than a server lets it, or all keys more than there is memory for here.
    Overfull,
}

/// What the limits remember of each key.
pub struct Trial<'l> {
    asked: TrialRequest<'l>,
    /// What each of several limits asks by itself.
    own: Vec<Request>,
    /// Whether what a key remembers grows with the calls.
    grows: bool,
    usages: Vec<Option<Remembered>>,
    /// How many bytes the keys remember that grow, and how many they may.
    held: usize,
    most_held: usize,
}

/// What a key remembers.
enum Remembered {
    One(AnyUsage),
    Several(CompositeUsage),
}

impl<'l> Trial<'l> {
    /// Under these limits. What grows with the calls may grow to so many bytes.
    ///
    /// # Errors
    /// Limits that a log does not tell enough for.
    pub fn new(limits: &'l Limits, most_held: usize) -> Result<Trial<'l>, String> {
        let asked = limits.asked()?;
        let specs = match &asked {
            TrialRequest::One(spec) => std::slice::from_ref(spec),
            TrialRequest::Several(call) => call.specs.as_slice(),
        };
        let grows = specs.iter().any(|spec| spec.limit.grows());
        let own = specs.iter().map(|spec| spec.request).collect();
        Ok(Trial { asked, own, grows, usages: vec![], held: 0, most_held })
    }

    /// The outcome of a call of a key, which is told by its number.
    pub fn decide(&mut self, key: usize, now: Timestamp, cost: Amount) -> TrialOutcome {
        if self.usages.len() <= key {
            self.usages.resize_with(key + 1, || None);
        }
        if self.grows && self.held > self.most_held {
            self.forget(now);
        }
        let full = self.held > self.most_held;
        let Some(remembered) = self.usages.get_mut(key) else { return TrialOutcome::Overfull };
        let before = if self.grows { size(remembered.as_ref()) } else { 0 };
        let outcome = match &mut self.asked {
            TrialRequest::One(spec) => of_one(*spec, remembered, now, cost, full),
            TrialRequest::Several(call) => {
                at_cost(call, &self.own, cost);
                of_several(call, remembered, now, full)
            }
        };
        if self.grows {
            self.held = (self.held + size(remembered.as_ref())).saturating_sub(before);
        }
        outcome
    }

    /// Forgets what has recovered: it is as good as never seen.
    fn forget(&mut self, now: Timestamp) {
        let asked = &self.asked;
        for usage in self.usages.iter_mut().filter(|usage| usage.is_some()) {
            usage.take_if(|usage| usage.recovery(asked, now) == Span::ZERO);
        }
        self.held = self.usages.iter().map(|usage| size(usage.as_ref())).sum();
    }
}

impl Remembered {
    fn recovery(&self, asked: &TrialRequest, now: Timestamp) -> Span {
        match (self, asked) {
            (Remembered::One(usage), TrialRequest::One(spec)) => {
                with_limit!(spec, limit => recovery_of(limit, usage, now))
            }
            (Remembered::Several(usage), _) => usage.reset(now),
            (Remembered::One(_), TrialRequest::Several(_)) => Span::MAX,
        }
    }
}

fn recovery_of<L: Limit>(limit: &L, usage: &AnyUsage, now: Timestamp) -> Span
where
    L::Usage: Single,
{
    L::Usage::of(usage).map_or(Span::MAX, |usage| limit.recovery(usage, now))
}

/// How many bytes a usage takes beside its place.
fn size(remembered: Option<&Remembered>) -> usize {
    match remembered {
        None => 0,
        Some(Remembered::One(usage)) => with_usage!(usage, usage => size_of_val(usage) + usage.heap_size()),
        Some(Remembered::Several(usage)) => usage.heap_size(),
    }
}

fn of_one(spec: Spec, remembered: &mut Option<Remembered>, now: Timestamp, cost: Amount, full: bool) -> TrialOutcome {
    if remembered.is_none() {
        *remembered = AnyUsage::unused(spec.limit.kind()).map(Remembered::One);
    }
    let Some(Remembered::One(usage)) = remembered else { return TrialOutcome::Overfull };
    with_limit!(spec, limit => take(limit, usage, now, cost, full))
}

fn take<L: Limit>(limit: &L, usage: &mut AnyUsage, now: Timestamp, cost: Amount, full: bool) -> TrialOutcome
where
    L::Usage: Single,
{
    let Some(usage) = L::Usage::of_mut(usage) else { return TrialOutcome::Overfull };
    let seen = evaluate(limit, usage, now, Request::Take(cost));
    if !seen.verdict().allowed() {
        return TrialOutcome::Denied;
    }
    if let (true, Change::Charge(_)) = (L::Usage::GROWS, seen.change()) {
        let entries = limit.entries_after_charge(usage, now);
        if entries.is_some_and(|entries| entries > ENTRIES_OF_A_KEY || full && entries > usage.entries()) {
            return TrialOutcome::Overfull;
        }
    }
    seen.change().apply(limit, usage, now);
    TrialOutcome::Admitted
}

/// Lets a call have that cost, where its limits have none of their own. A call that costs nothing charges none.
fn at_cost(call: &mut CompositeRequest, own: &[Request], cost: Amount) {
    let looks = cost == Amount::ZERO;
    call.purpose = if looks { Purpose::Check } else { Purpose::Charge };
    for (spec, own) in call.specs.iter_mut().zip(own) {
        spec.request = if spec.own_cost && !looks { *own } else { Request::Take(cost) };
    }
}

fn of_several(
    call: &CompositeRequest,
    remembered: &mut Option<Remembered>,
    now: Timestamp,
    full: bool,
) -> TrialOutcome {
    let usage = remembered.get_or_insert_with(|| Remembered::Several(CompositeUsage::default()));
    let Remembered::Several(usage) = usage else { return TrialOutcome::Overfull };
    if let Some(fast) = usage.evaluate_fast(call, now) {
        if fast.denies() {
            return TrialOutcome::Denied;
        }
        usage.charge_fast(call, &fast, false, now);
        return TrialOutcome::Admitted;
    }
    let held = Held::Composite(usage);
    let mut evaluation = CompositeEvaluation::at(call, held, now);
    let admits = evaluation.allows();
    let is_over = |evaluation: &CompositeEvaluation| {
        evaluation.entries(call, held, now).any(|(_, entries, grows)| entries > ENTRIES_OF_A_KEY || full && grows)
    };
    if admits && is_over(&evaluation) {
        // As in the server, what only limits in the shadow would add is left out first.
        evaluation.leave_shadows_out();
        if is_over(&evaluation) {
            return TrialOutcome::Overfull;
        }
    }
    if admits && evaluation.changes() || evaluation.strikes() {
        usage.charge(call, &evaluation, now);
    }
    if admits { TrialOutcome::Admitted } else { TrialOutcome::Denied }
}

#[cfg(test)]
mod tests;
