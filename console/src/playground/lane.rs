//! A limit under traffic, and what it remembers.

use ratelimit_core::algorithm::count_min::SketchUsage;
use ratelimit_core::algorithm::leases::ConcurrencyUsage;
use ratelimit_core::syntax::{KeyRequest, Spec};
use ratelimit_core::wire::args::Args;
use ratelimit_core::{
    Amount, AnyLimit, AnyUsage, InfoField, Limit, Request, Single, Span, Timestamp, Usage, Verdict, evaluate,
    with_limit, with_usage,
};
use serde_json::{Map, Value, json};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The word that stands for the holder, in a limit whose calls hold a lease each.
const HOLDER: &str = "holder";
/// Whose calls the traffic is, where a limit counts each caller apart.
const CALLER: &str = "203.0.113.42";
/// The largest sketch, in bytes: many pages can play at once.
const LARGEST_SKETCH: u64 = 1 << 20;

/// A limit under traffic.
pub struct Lane {
    spec: Spec<'static>,
    usage: AnyUsage,
    /// When calls end that hold a lease, and which they are.
    holding: BinaryHeap<Reverse<(Timestamp, u64)>>,
    /// What became of the calls of others.
    others: Others,
}

/// How many calls of others, of which each is the caller's first, have passed and have not.
#[derive(Clone, Copy, Default)]
struct Others {
    passed: u64,
    denied: u64,
}

impl Lane {
    /// Of an algorithm's name and numbers: `FIXED 10 10s`, `CONCURRENCY 3 30s`.
    ///
    /// # Errors
    /// What the server would say of the words, and anything else than an algorithm with its numbers.
    pub fn read(words: &str) -> Result<Lane, String> {
        let mut said: Vec<&str> = words.split_ascii_whitespace().collect();
        if said.first().is_some_and(|word| word.eq_ignore_ascii_case("CONCURRENCY")) {
            said.push(HOLDER);
        }
        if said.first().is_some_and(|word| word.eq_ignore_ascii_case("SKETCH")) {
            // Behind its three numbers.
            said.insert(said.len().min(4), CALLER);
        }
        let said: Vec<&[u8]> = std::iter::once("RL.TAKE").chain(said).map(str::as_bytes).collect();
        let asked = KeyRequest::take(&mut Args::new(&said)).map_err(|error| error.to_string())?;
        let KeyRequest::One(Spec { limit, request: Request::Take(Amount::ONE), kept: Amount::ZERO, .. }) = asked else {
            return Err("a limit must be an algorithm and its numbers, such as FIXED 10 10s".to_owned());
        };
        if let AnyLimit::Sketch(sketch) = limit
            && sketch.size().bytes() > LARGEST_SKETCH
        {
            return Err("SIZE must be at most 1mb in the playground".to_owned());
        }
        let usage = AnyUsage::unused(limit.kind()).ok_or("a limit must be one algorithm")?;
        let spec = Spec::of(limit, Request::Take(Amount::ONE));
        Ok(Lane { spec, usage, holding: BinaryHeap::new(), others: Others::default() })
    }

    /// Whether it counts each of many callers apart, in memory that they share.
    pub fn is_shared(&self) -> bool {
        matches!(self.spec.limit, AnyLimit::Sketch(_))
    }

    /// Goes on under other numbers, with what was used so far: as a key does whose limit is changed. Another algorithm
    /// starts empty, and so does a sketch of another size, which on a server is another key.
    pub fn change(&mut self, to: Lane) {
        let is_same = match (&self.spec.limit, &to.spec.limit) {
            (AnyLimit::Sketch(one), AnyLimit::Sketch(other)) => one.size() == other.size(),
            (one, other) => one.kind() == other.kind(),
        };
        if is_same {
            self.spec = to.spec;
        } else {
            *self = to;
        }
    }

    /// What becomes of a call: 0 if it passes, the milliseconds that it is held first, less than 0 the milliseconds
    /// after which it would pass, or null if it never would. One that holds a lease gives it back after `hold`.
    pub fn take(&mut self, serial: u64, cost: Amount, hold: Span, now: Timestamp) -> Value {
        self.let_go(now);
        let serial_bytes = serial.to_be_bytes();
        let holder: &[u8] = if self.is_shared() { CALLER.as_bytes() } else { &serial_bytes };
        let spec = Spec { holder, ..self.spec };
        let usage = &mut self.usage;
        let verdict = with_limit!(spec, limit => taken(limit, usage, cost, now));
        if verdict.allowed() && matches!(self.spec.limit, AnyLimit::Concurrency(_)) {
            self.holding.push(Reverse((now.plus(hold), serial)));
        }
        told(verdict)
    }

    /// A call of a unit by another caller, who has not called before. Only a limit that is shared hears of it.
    pub fn take_of_other(&mut self, caller: u64, now: Timestamp) {
        if !self.is_shared() {
            return;
        }
        let item = caller.to_be_bytes();
        let spec = Spec { holder: &item, ..self.spec };
        let usage = &mut self.usage;
        let passes = with_limit!(spec, limit => taken(limit, usage, Amount::ONE, now)).allowed();
        self.others.passed += u64::from(passes);
        self.others.denied += u64::from(!passes);
    }

    /// Gives back the leases of calls that have ended.
    fn let_go(&mut self, now: Timestamp) {
        while let Some(Reverse((at, serial))) = self.holding.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.holding.pop();
            if let Some(leases) = ConcurrencyUsage::of_mut(&mut self.usage) {
                leases.release(&[&serial.to_be_bytes()], at);
            }
        }
    }

    /// What it shows: how much is left of the limit, what would become of a call, and what it remembers; of a sketch also
    /// how much each of the caller's cells leaves, and what became of others' calls. Instants are told by their distance
    /// from `start`.
    pub fn state(&mut self, cost: Amount, start: Timestamp, now: Timestamp) -> Value {
        self.let_go(now);
        let holder: &[u8] = if self.is_shared() { CALLER.as_bytes() } else { &[] };
        let spec = Spec { holder, ..self.spec };
        let usage = &self.usage;
        let (limit, left, reset, next) = with_limit!(spec, limit => seen(limit, usage, cost, now));
        let remembered = with_usage!(usage, usage => described(usage, start, now));
        let mut state = json!({
            "limit": number(limit),
            "left": number(left),
            "reset": reset.ceil_millis(),
            "next": told(next),
            "kind": usage.kind().name(),
            "held": self.holding.len(),
            "remembers": remembered,
        });
        if let (AnyLimit::Sketch(sketch), Some(usage)) = (&spec.limit, SketchUsage::of(usage))
            && let Some(fields) = state.as_object_mut()
        {
            let left = sketch.of_item(spec.holder).remaining_by_cell(usage, now).map(number);
            let Others { passed, denied } = self.others;
            fields.insert("cells".to_owned(), json!(left));
            fields.insert("others".to_owned(), json!({ "passed": passed, "denied": denied }));
        }
        state
    }
}

impl std::fmt::Display for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.spec.limit.fmt(f)
    }
}

fn taken<L: Limit>(limit: &L, usage: &mut AnyUsage, cost: Amount, now: Timestamp) -> Verdict
where
    L::Usage: Single,
{
    let Some(usage) = L::Usage::of_mut(usage) else { return Verdict::Never };
    let seen = evaluate(limit, usage, now, Request::Take(cost));
    seen.change().apply(limit, usage, now);
    seen.verdict()
}

fn seen<L: Limit>(limit: &L, usage: &AnyUsage, cost: Amount, now: Timestamp) -> (Amount, Amount, Span, Verdict)
where
    L::Usage: Single,
{
    let nothing = (limit.limit(), limit.limit(), Span::ZERO, Verdict::Never);
    L::Usage::of(usage).map_or(nothing, |usage| {
        (limit.limit(), limit.remaining(usage, now), limit.reset(usage, now), limit.verdict(usage, now, cost))
    })
}

fn told(verdict: Verdict) -> Value {
    // Below 2^53, so that a page reads them as they are.
    let millis = |span: Span| i64::try_from(span.ceil_millis()).unwrap_or(i64::MAX);
    match verdict {
        Verdict::Allowed(hold) => millis(hold).into(),
        Verdict::After(wait) => (-millis(wait).max(1)).into(),
        Verdict::Never => Value::Null,
    }
}

fn number(amount: Amount) -> f64 {
    amount.to_string().parse().unwrap_or_default()
}

/// What a usage says of itself, with instants and spans in microseconds.
fn described(usage: &impl Usage, start: Timestamp, now: Timestamp) -> Value {
    let fields = usage.describe(now, None).into_iter().filter_map(|(name, field)| {
        let value = match field {
            InfoField::Amount(amount) => number(amount).into(),
            InfoField::Instant(at) if at < start => (-signed(start.since(at))).into(),
            InfoField::Instant(at) => signed(at.since(start)).into(),
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

fn signed(span: Span) -> i64 {
    i64::try_from(span.micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
