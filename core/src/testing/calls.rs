//! Calls on a key as `src/command` makes them, without a server: one by one, for facts, and at random, for laws and
//! for the oracle.

use crate::evaluate::{Request, evaluate};
use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::testing::encoded_fields::EncodedFields;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

const UNIT: u64 = 1_000_000;

/// When scripts end: some time before times saturate.
const END: u64 = 300_000 * 86_400_000_000;

/// Evaluates and charges as RL.TAKE does, and tells the decision.
pub fn call<L: Limit>(limit: &L, usage: &mut L::Usage, now: Timestamp, request: Request) -> Decision {
    call_and_tell(limit, usage, now, request).0
}

/// Evaluates and charges as RL.TAKE does, and tells the decision and the effect.
pub fn call_and_tell<L: Limit>(
    limit: &L,
    usage: &mut L::Usage,
    now: Timestamp,
    request: Request,
) -> (Decision, EncodedFields) {
    let evaluation = evaluate(limit, usage, now, request);
    if usage.is_after(now) {
        usage.move_back(now);
    }
    evaluation.change().apply(limit, usage, now);
    let decision = evaluation.decision(limit, usage, now, true);
    let mut effect = EncodedFields::default();
    usage.encode_effect(&mut effect);
    if usage.is_unused() {
        *usage = L::Usage::default(); // the key is deleted
    }
    (decision, effect)
}

/// What RL.PEEK does.
pub fn peek<L: Limit>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) -> Decision {
    evaluate(limit, usage, now, request).decision(limit, usage, now, false)
}

/// A copy of `usage` after a clock gone back was seen to.
pub fn seen_at<U: Usage>(usage: &U, now: Timestamp) -> U {
    let mut usage = usage.clone();
    if usage.is_after(now) {
        usage.move_back(now);
    }
    usage
}

/// The five integers of a reply: allowed, limit, remaining, `wait_ms`, `reset_ms`.
fn reply(decision: Decision) -> [i64; 5] {
    let millis = |span: Span| i64::try_from(span.ceil_millis()).unwrap();
    let units = |amount: Amount| i64::try_from(amount.whole_units()).unwrap();
    let wait = match decision.verdict {
        Verdict::Allowed(wait) | Verdict::After(wait) => millis(wait),
        Verdict::Never => -1,
    };
    let allowed = i64::from(decision.verdict.allowed());
    [allowed, units(decision.limit), units(decision.remaining), wait, millis(decision.reset)]
}

/// A key under test, for facts: calls say when in milliseconds, and get a reply.
#[derive(Clone, Debug, Default)]
pub struct Key<U>(pub U);

impl<U: Usage> Key<U> {
    pub fn call<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, request: Request) -> [i64; 5] {
        reply(call(limit, &mut self.0, at(at_ms), request))
    }

    pub fn peek<L: Limit<Usage = U>>(&self, limit: &L, at_ms: u64, request: Request) -> [i64; 5] {
        reply(peek(limit, &self.0, at(at_ms), request))
    }

    /// How many of so many calls with a cost of 1 are admitted.
    pub fn admitted<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, calls: usize) -> usize {
        (0..calls).filter(|_| self.call(limit, at_ms, Request::Take(Amount::ONE))[0] == 1).count()
    }

    /// What `UPTO` is granted.
    pub fn granted<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, most: u64) -> u64 {
        call(limit, &mut self.0, at(at_ms), Request::UpTo(units(most))).granted.unwrap().whole_units()
    }

    /// Whether there is no such key.
    pub fn is_gone(&self) -> bool {
        self.0.is_unused()
    }
}

fn at(millis: u64) -> Timestamp {
    us(millis * 1000)
}

/// The instant this many microseconds after the epoch.
pub fn us(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Panics unless a charge of the whole limit, made at `charged`, is in the way of `next` until just before `leaves`.
pub fn assert_leaves<L: Limit>(limit: &L, next: &L, charged: u64, leaves: u64) {
    let mut usage = L::Usage::default();
    assert!(call(limit, &mut usage, us(charged), Request::Take(limit.limit())).verdict.allowed());
    let one = Request::Take(millionths(1));
    for early in [charged, u64::midpoint(charged, leaves), leaves - 1] {
        let told = peek(next, &usage, us(early), one);
        let left = Span::from_micros(leaves - early);
        assert_eq!((told.verdict, told.reset), (Verdict::After(left), left), "at {early}");
    }
    let told = peek(next, &usage, us(leaves), one);
    assert_eq!((told.verdict, told.reset), (Verdict::Allowed(Span::ZERO), Span::ZERO), "at {leaves}");
}

/// How much a request names, of whatever it is asked to do with that.
pub fn amount_of(request: Request) -> Amount {
    match request {
        Request::Take(amount)
        | Request::UpTo(amount)
        | Request::Force(amount)
        | Request::ForceUpTo(amount)
        | Request::Within(amount, _)
        | Request::GiveBack(amount) => amount,
        Request::LookPastLimit => Amount::ZERO,
    }
}

pub fn units(units: u64) -> Amount {
    millionths(units * UNIT)
}

pub fn millionths(millionths: u64) -> Amount {
    Amount::from_millionths(millionths).unwrap()
}

pub fn period(text: &str) -> Period {
    Period::parse(text.as_bytes()).unwrap()
}

/// Amounts that an argument may be, in millionths: everyday and extreme.
pub fn amounts() -> impl Strategy<Value = u64> + Clone {
    let top = Amount::MAX_ARGUMENT.millionths();
    prop_oneof![
        4 => (0..=20u64).prop_map(|units| units * UNIT),
        2 => 0..=5 * UNIT,
        2 => (1..=1_000_000u64).prop_map(|units| units * UNIT),
        1 => 0..=3u64,
        2 => up_to(top),
        1 => top - 3..=top,
    ]
}

/// Lengths that an argument may be, in microseconds: everyday and extreme.
pub fn lengths() -> impl Strategy<Value = u64> + Clone {
    let top = 3650 * 86_400_000_000;
    prop_oneof![
        4 => select(vec![1000, UNIT, 60 * UNIT, 3600 * UNIT, 86_400 * UNIT]),
        2 => 1..=10u64,
        2 => 1..=3 * UNIT,
        2 => up_to(top - 1).prop_map(|micros| micros + 1),
        1 => top - 3..=top,
    ]
}

/// Numbers of every magnitude.
fn up_to(top: u64) -> impl Strategy<Value = u64> + Clone {
    (0..=top.ilog2(), any::<u64>()).prop_map(move |(bits, random)| (random >> (63 - bits)).min(top))
}

/// One call of a script. Limiters go wrong at edges, which random numbers never hit: so most times and amounts are
/// said relative to what the last call was told and to what is left.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which of the script's limits it brings.
    pub limit: Index,
    pub when: When,
    pub what: What,
    /// It only looks.
    pub peeks: bool,
    /// The server has removed the key if it may by now.
    pub key_may_expire: bool,
}

#[derive(Clone, Debug)]
pub enum When {
    Later(u64),
    Earlier(u64),
    /// Microseconds before or after the end of the last wait.
    AroundWait(i64),
    /// Microseconds before or after the last reset.
    AroundReset(i64),
    /// Hundredths of the time until the last reset.
    WithinReset(u64),
}

#[derive(Clone, Debug)]
pub enum What {
    Take(Much),
    UpTo(Much),
    Force(Much),
    Within(Much, Patience),
    GiveBack(Much),
}

#[derive(Clone, Debug)]
pub enum Much {
    Exactly(u64),
    /// What remains, and this many millionths more.
    Remaining(i64),
    /// The whole units that remain, and this many millionths more.
    WholeRemaining(i64),
    /// The limit, and this many millionths more.
    Limit(i64),
    /// What is used, and this many millionths more.
    Used(i64),
    /// Hundredths of the limit.
    PartOfLimit(u64),
}

#[derive(Clone, Debug)]
pub enum Patience {
    Exactly(u64),
    /// What it takes, and this many microseconds more.
    Enough(i64),
}

/// A moment to begin at, and calls.
pub type Script = (Timestamp, Vec<Call>);

pub fn scripts() -> impl Strategy<Value = Script> + Clone {
    let begin = prop_oneof![
        4 => (0..1_000_000_000_000u64).prop_map(|micros| 1_700_000_000_000_000 + micros),
        1 => 0..10u64,
        1 => 0..=END,
    ];
    let begin = begin.prop_map(|micros| Timestamp::from_micros(micros).unwrap());
    (begin, vec(calls(), 1..=20))
}

fn calls() -> impl Strategy<Value = Call> + Clone {
    let when = prop_oneof![
        3 => Just(When::Later(0)),
        1 => lengths().prop_map(When::Later),
        1 => prop_oneof![1..=10u64, lengths(), Just(u64::MAX)].prop_map(When::Earlier),
        2 => (-1..=1i64).prop_map(When::AroundWait),
        2 => (-1..=1i64).prop_map(When::AroundReset),
        3 => (0..=120u64).prop_map(When::WithinReset),
    ];
    let much = || {
        prop_oneof![
            1 => Just(Much::Exactly(0)),
            4 => Just(Much::Exactly(UNIT)),
            1 => amounts().prop_map(Much::Exactly),
            2 => (-1..=1i64).prop_map(Much::Remaining),
            2 => select(vec![-1_000_000, 0, 1, 1_000_000]).prop_map(Much::WholeRemaining),
            1 => (-1..=1i64).prop_map(Much::Limit),
            1 => (-1..=1i64).prop_map(Much::Used),
            3 => (0..=110u64).prop_map(Much::PartOfLimit),
        ]
    };
    let patience = prop_oneof![lengths().prop_map(Patience::Exactly), (-1..=1i64).prop_map(Patience::Enough)];
    let what = prop_oneof![
        6 => much().prop_map(What::Take),
        2 => much().prop_map(What::UpTo),
        1 => much().prop_map(What::Force),
        2 => (much(), patience).prop_map(|(much, patience)| What::Within(much, patience)),
        1 => much().prop_map(What::GiveBack),
    ];
    (any::<Index>(), when, what, prop::bool::weighted(0.1), prop::bool::weighted(0.3))
        .prop_map(|(limit, when, what, peeks, key_may_expire)| Call { limit, when, what, peeks, key_may_expire })
}

impl When {
    /// The moment of a call that follows one at `last`, which was told `decision`.
    pub fn after(&self, last: Timestamp, decision: Option<&Decision>) -> Timestamp {
        let (wait, reset) = match decision {
            Some(Decision { verdict: Verdict::Allowed(wait) | Verdict::After(wait), reset, .. }) => (*wait, *reset),
            Some(Decision { reset, .. }) => (Span::ZERO, *reset),
            None => (Span::ZERO, Span::ZERO),
        };
        let last = last.micros();
        let micros = match *self {
            When::Later(span) => last.saturating_add(span),
            When::Earlier(span) => last.saturating_sub(span),
            When::AroundWait(extras) => (last + wait.micros()).saturating_add_signed(extras),
            When::AroundReset(extras) => (last + reset.micros()).saturating_add_signed(extras),
            When::WithinReset(component) => last + reset.micros() / 100 * component,
        };
        Timestamp::from_micros(micros.min(END)).unwrap()
    }
}

impl What {
    /// The ask that this comes to, as things stand.
    pub fn request<L: Limit>(&self, limit: &L, usage: &L::Usage, now: Timestamp) -> Request {
        let amount = |much: &Much| {
            let remaining = limit.remaining(usage, now);
            let millionths = match *much {
                Much::Exactly(millionths) => millionths,
                Much::Remaining(more) => remaining.millionths().saturating_add_signed(more),
                Much::WholeRemaining(more) => remaining.floor().millionths().saturating_add_signed(more),
                Much::Limit(more) => limit.limit().millionths().saturating_add_signed(more),
                Much::Used(more) => limit.limit().minus(remaining).millionths().saturating_add_signed(more),
                Much::PartOfLimit(component) => limit.limit().millionths() / 100 * component,
            };
            Amount::saturating(millionths).min(Amount::MAX_ARGUMENT)
        };
        match self {
            What::Take(much) => Request::Take(amount(much)),
            What::UpTo(much) => Request::UpTo(amount(much).floor().max(Amount::ONE)),
            What::Force(much) => Request::Force(amount(much)),
            What::GiveBack(much) => Request::GiveBack(amount(much)),
            What::Within(much, patience) => {
                let micros = match (patience, limit.verdict(usage, now, amount(much))) {
                    (Patience::Exactly(micros), _) => *micros,
                    (Patience::Enough(more), Verdict::After(wait)) => wait.micros().saturating_add_signed(*more),
                    (Patience::Enough(_), _) => 0,
                };
                Request::Within(amount(much), Span::from_micros(micros.min(period("3650d").span().micros())))
            }
        }
    }
}
