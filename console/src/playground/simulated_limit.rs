//! Limit with its usage, under simulated traffic.

use ratelimit_core::algorithm::count_min::SketchUsage;
use ratelimit_core::algorithm::leases::ConcurrencyUsage;
use ratelimit_core::syntax::{KeyRequest, Spec};
use ratelimit_core::wire::args::Args;
use ratelimit_core::{
    Amount, AnyLimit, AnyUsage, InfoField, Limit, PlainUsage, Request, Span, Timestamp, Usage, Verdict, evaluate,
    with_limit, with_usage,
};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Placeholder for the holder of a lease.
const HOLDER: &str = "holder";
/// Item that stands in a sketch for the caller whose traffic is shown.
const CALLER: &str = "203.0.113.42";
/// Maximum size of a sketch in bytes, because many simulations can run at once.
const MAX_SKETCH_BYTES: u64 = 1 << 20;

/// Limit with its usage.
pub struct SimulatedLimit {
    spec: Spec<'static>,
    usage: AnyUsage,
    /// Calls that hold leases: the end and the serial number of each, the earliest end first.
    leases: BinaryHeap<Reverse<(Timestamp, u64)>>,
    /// Decisions on the calls of other callers.
    others: OtherDecisions,
}

/// Numbers of decisions on the calls of other callers.
#[derive(Clone, Copy, Default)]
struct OtherDecisions {
    passed: u64,
    denied: u64,
}

impl SimulatedLimit {
    /// Parses an algorithm with its numbers: `FIXED 10 10s`, `CONCURRENCY 3 30s`.
    ///
    /// # Errors
    /// If the server would reject the words, if they are not exactly one algorithm with its arguments, or if a sketch is
    /// larger than [`MAX_SKETCH_BYTES`].
    pub fn parse(text: &str) -> Result<SimulatedLimit, String> {
        let mut words: Vec<&str> = text.split_ascii_whitespace().collect();
        if words.first().is_some_and(|word| word.eq_ignore_ascii_case("CONCURRENCY")) {
            words.push(HOLDER);
        }
        if words.first().is_some_and(|word| word.eq_ignore_ascii_case("SKETCH")) {
            // The item follows the three numbers.
            words.insert(words.len().min(4), CALLER);
        }
        let words: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(words).map(str::as_bytes).collect();
        let request = KeyRequest::take(&mut Args::new(&words), None).map_err(|error| error.to_string())?;
        let KeyRequest::One(Spec { limit, request: Request::Take(Amount::ONE), keep: Amount::ZERO, .. }) = request
        else {
            return Err("a limit must be an algorithm and its numbers, such as FIXED 10 10s".to_owned());
        };
        if let AnyLimit::Sketch(sketch) = limit
            && sketch.size().bytes() > MAX_SKETCH_BYTES
        {
            return Err("SIZE must be at most 1mb in the playground".to_owned());
        }
        let usage = AnyUsage::unused(limit.kind()).ok_or("a limit must be one algorithm")?;
        let spec = Spec::of(limit, Request::Take(Amount::ONE));
        Ok(SimulatedLimit { spec, usage, leases: BinaryHeap::new(), others: OtherDecisions::default() })
    }

    /// Returns `true` if many callers share the memory of the limit.
    pub fn is_shared(&self) -> bool {
        matches!(self.spec.limit, AnyLimit::Sketch(_))
    }

    /// Replaces the limit and keeps its usage, as on a server when the limit of a key changes. A limit with another
    /// kind of usage starts unused, and so does a sketch of another size, because it would need another key on a server.
    pub fn change(&mut self, replacement: SimulatedLimit) {
        let keeps_usage = match (&self.spec.limit, &replacement.spec.limit) {
            (AnyLimit::Sketch(one), AnyLimit::Sketch(other)) => one.size() == other.size(),
            (one, other) => one.kind() == other.kind(),
        };
        if keeps_usage {
            self.spec = replacement.spec;
        } else {
            *self = replacement;
        }
    }

    /// Decides and charges a call.
    ///
    /// Returns 0 if the call passes at once, its delay in milliseconds if it passes later, the negated milliseconds
    /// until a retry would pass if it is denied, and null if it never passes. A lease is released after
    /// `lease_duration`.
    pub fn take(&mut self, serial: u64, cost: Amount, lease_duration: Span, now: Timestamp) -> Value {
        self.release_leases(now);
        let serial_bytes = serial.to_be_bytes();
        let holder_or_item: &[u8] = if self.is_shared() { CALLER.as_bytes() } else { &serial_bytes };
        let spec = Spec { holder_or_item, ..self.spec };
        let usage = &mut self.usage;
        let verdict = with_limit!(spec, limit => charge(limit, usage, cost, now));
        if verdict.allowed() && matches!(self.spec.limit, AnyLimit::Concurrency(_)) {
            self.leases.push(Reverse((now.plus(lease_duration), serial)));
        }
        verdict_json(verdict)
    }

    /// Decides and charges the only call of another caller, with a cost of 1. Has no effect unless the limit is a
    /// sketch.
    pub fn take_by_other_caller(&mut self, caller: u64, now: Timestamp) {
        if !self.is_shared() {
            return;
        }
        let item = caller.to_be_bytes();
        let spec = Spec { holder_or_item: &item, ..self.spec };
        let usage = &mut self.usage;
        let passes = with_limit!(spec, limit => charge(limit, usage, Amount::ONE, now)).allowed();
        self.others.passed += u64::from(passes);
        self.others.denied += u64::from(!passes);
    }

    /// Releases the leases of calls that have ended.
    fn release_leases(&mut self, now: Timestamp) {
        while let Some(Reverse((at, serial))) = self.leases.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.leases.pop();
            if let Some(leases) = ConcurrencyUsage::of_mut(&mut self.usage) {
                leases.release(&[&serial.to_be_bytes()], at);
            }
        }
    }

    /// Returns the state as JSON: the remaining units, the decision on a call of `cost`, and the fields of the usage. A
    /// sketch also has the remaining units of each of the caller's cells, and the decisions on other callers. Instants
    /// are relative to `start`.
    pub fn state(&mut self, cost: Amount, start: Timestamp, now: Timestamp) -> Value {
        self.release_leases(now);
        let holder_or_item: &[u8] = if self.is_shared() { CALLER.as_bytes() } else { &[] };
        let spec = Spec { holder_or_item, ..self.spec };
        let usage = &self.usage;
        let (max_usage, remaining, reset, verdict) = with_limit!(spec, limit => peek(limit, usage, cost, now));
        let usage_fields = with_usage!(usage, usage => usage_json(usage, start, now));
        let mut state = json!({
            "limit": to_f64(max_usage),
            "left": to_f64(remaining),
            "reset": reset.ceil_millis(),
            "next": verdict_json(verdict),
            "kind": usage.kind().name(),
            "held": self.leases.len(),
            "remembers": usage_fields,
        });
        if let (AnyLimit::Sketch(sketch), Some(usage)) = (&spec.limit, SketchUsage::of(usage))
            && let Some(fields) = state.as_object_mut()
        {
            let remaining = sketch.for_item(spec.holder_or_item).remaining_by_cell(usage, now).map(to_f64);
            let OtherDecisions { passed, denied } = self.others;
            fields.insert("cells".to_owned(), json!(remaining));
            fields.insert("others".to_owned(), json!({ "passed": passed, "denied": denied }));
        }
        state
    }
}

impl std::fmt::Display for SimulatedLimit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spec.limit.fmt(f)
    }
}

fn charge<L: Limit>(limit: &L, usage: &mut AnyUsage, cost: Amount, now: Timestamp) -> Verdict
where
    L::Usage: PlainUsage,
{
    let Some(usage) = L::Usage::of_mut(usage) else { return Verdict::Never };
    let evaluation = evaluate(limit, usage, now, Request::Take(cost));
    evaluation.change.apply(limit, usage, now);
    evaluation.verdict
}

/// Returns the maximum usage of the limit, its remaining units, its reset and the verdict on a call, without charging the call.
fn peek<L: Limit>(limit: &L, usage: &AnyUsage, cost: Amount, now: Timestamp) -> (Amount, Amount, Span, Verdict)
where
    L::Usage: PlainUsage,
{
    let wrong_usage = (limit.limit(), limit.limit(), Span::ZERO, Verdict::Never);
    L::Usage::of(usage).map_or(wrong_usage, |usage| {
        (limit.limit(), limit.remaining(usage, now), limit.reset(usage, now), limit.verdict(usage, now, cost))
    })
}

fn verdict_json(verdict: Verdict) -> Value {
    // Spans are shorter than 2^53 ms, so that JavaScript represents them exactly.
    let millis = |span: Span| i64::try_from(span.ceil_millis()).unwrap_or(i64::MAX);
    match verdict {
        Verdict::Allowed(hold) => millis(hold).into(),
        Verdict::After(wait) => (-millis(wait).max(1)).into(),
        Verdict::Never => Value::Null,
    }
}

fn to_f64(amount: Amount) -> f64 {
    amount.to_string().parse().unwrap_or_default()
}

/// Returns the fields of a usage, with instants and spans in microseconds.
fn usage_json(usage: &impl Usage, start: Timestamp, now: Timestamp) -> Value {
    let fields = usage.describe(now, None).into_iter().filter_map(|(name, field)| {
        let value = match field {
            InfoField::Amount(amount) => to_f64(amount).into(),
            InfoField::Instant(at) if at < start => (-signed_micros(start.since(at))).into(),
            InfoField::Instant(at) => signed_micros(at.since(start)).into(),
            InfoField::Span(span) => span.micros().into(),
            InfoField::Count(count) => count.into(),
            InfoField::Word(word) => word.into(),
            InfoField::Text(text) => text.into(),
            _ => return None,
        };
        Some((name.to_owned(), value))
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

fn signed_micros(span: Span) -> i64 {
    i64::try_from(span.micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
