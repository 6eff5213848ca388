//! Calls on a key as `src/command` makes them, without a server: single calls for examples, and random scripts for laws
//! and the oracle.

use crate::evaluate::{Request, evaluate};
use crate::limit::{Decision, Limit, Usage, Verdict};
use crate::number::{Amount, Period, Span, Timestamp};
use crate::syntax::{KeyRequest, LimitParser, ManyKeysRequest, Spec, SpecOptions};
use crate::testing::encoded_fields::EncodedFields;
use crate::wire::args::Args;
use crate::wire::error::Error;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Parses the arguments of a command for one algorithm like `src/command/rl_take.rs`.
pub fn parse_one_algorithm<'a>(args: &mut Args<'a>, parse: LimitParser<'a>) -> Result<KeyRequest<'a>, Error> {
    let mut options = SpecOptions::default();
    let parsed = parse(args, &mut options)?;
    if options.is_plain(args) {
        return Ok(KeyRequest::One(Spec::plain(parsed)));
    }
    KeyRequest::build_single_with_options(args, &parsed, &options)
}

/// Parses the arguments of RL.MTAKE.
pub fn take_keys<'a>(args: &mut Args<'a>) -> Result<ManyKeysRequest<'a>, Error> {
    let mut request = ManyKeysRequest::default();
    request.take(args, None).map(|()| request)
}

/// Parses the arguments of RL.MPEEK.
pub fn peek_keys<'a>(args: &mut Args<'a>) -> Result<ManyKeysRequest<'a>, Error> {
    let mut request = ManyKeysRequest::default();
    request.peek(args, None).map(|()| request)
}

/// Number of millionths in a unit, and of microseconds in a second.
const UNIT: u64 = 1_000_000;

/// Latest time of a script in microseconds, before timestamps saturate.
const END: u64 = 300_000 * 86_400_000_000;

/// Evaluates and charges like RL.TAKE, and returns the decision.
pub fn call<L: Limit>(limit: &L, usage: &mut L::Usage, now: Timestamp, request: Request) -> Decision {
    call_and_encode_effect(limit, usage, now, request).0
}

/// Evaluates and charges like RL.TAKE, and returns the decision and the effect.
pub fn call_and_encode_effect<L: Limit>(
    limit: &L,
    usage: &mut L::Usage,
    now: Timestamp,
    request: Request,
) -> (Decision, EncodedFields) {
    let evaluation = evaluate(limit, usage, now, request);
    if usage.is_after(now) {
        usage.move_back(now);
    }
    evaluation.change.apply(limit, usage, now);
    let decision = evaluation.decision(limit, usage, now, true);
    let mut effect = EncodedFields::default();
    usage.encode_effect(&mut effect);
    if usage.is_unused() {
        *usage = L::Usage::default(); // the key is deleted
    }
    (decision, effect)
}

/// Evaluates like RL.PEEK, and returns the decision.
pub fn peek<L: Limit>(limit: &L, usage: &L::Usage, now: Timestamp, request: Request) -> Decision {
    evaluate(limit, usage, now, request).decision(limit, usage, now, false)
}

/// Returns a copy of `usage`, moved back if the clock moved backwards.
pub fn moved_back_to<U: Usage>(usage: &U, now: Timestamp) -> U {
    let mut usage = usage.clone();
    if usage.is_after(now) {
        usage.move_back(now);
    }
    usage
}

/// Returns the five integers of a reply: allowed, limit, remaining, `wait_ms`, `reset_ms`.
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

/// Key under test. Its methods take the time in milliseconds and return the reply.
#[derive(Clone, Debug, Default)]
pub struct Key<U>(pub U);

impl<U: Usage> Key<U> {
    pub fn call<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, request: Request) -> [i64; 5] {
        reply(call(limit, &mut self.0, at(at_ms), request))
    }

    pub fn peek<L: Limit<Usage = U>>(&self, limit: &L, at_ms: u64, request: Request) -> [i64; 5] {
        reply(peek(limit, &self.0, at(at_ms), request))
    }

    /// Returns how many of `calls` calls with a cost of 1 are admitted.
    pub fn admitted<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, calls: usize) -> usize {
        (0..calls).filter(|_| self.call(limit, at_ms, Request::Take(Amount::ONE))[0] == 1).count()
    }

    /// Returns the number of units that a call with UPTO is granted.
    pub fn granted<L: Limit<Usage = U>>(&mut self, limit: &L, at_ms: u64, max: u64) -> u64 {
        call(limit, &mut self.0, at(at_ms), Request::UpTo(units(max))).granted.unwrap().whole_units()
    }

    /// Returns `true` if the key does not exist.
    pub fn is_deleted(&self) -> bool {
        self.0.is_unused()
    }
}

fn at(millis: u64) -> Timestamp {
    us(millis * 1000)
}

/// Returns the timestamp at a number of microseconds after the epoch.
pub fn us(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

/// Asserts that a charge of the whole limit at `charged_at` denies calls under `next` until just before `expires_at`.
pub fn assert_charge_counts_until<L: Limit>(limit: &L, next: &L, charged_at: u64, expires_at: u64) {
    let mut usage = L::Usage::default();
    assert!(call(limit, &mut usage, us(charged_at), Request::Take(limit.limit())).verdict.allowed());
    let one = Request::Take(millionths(1));
    for early in [charged_at, u64::midpoint(charged_at, expires_at), expires_at - 1] {
        let decision = peek(next, &usage, us(early), one);
        let wait = Span::from_micros(expires_at - early);
        assert_eq!((decision.verdict, decision.reset), (Verdict::After(wait), wait), "at {early}");
    }
    let decision = peek(next, &usage, us(expires_at), one);
    assert_eq!((decision.verdict, decision.reset), (Verdict::Allowed(Span::ZERO), Span::ZERO), "at {expires_at}");
}

/// Returns the amount in a request.
pub fn amount_of(request: Request) -> Amount {
    match request {
        Request::Take(amount)
        | Request::UpTo(amount)
        | Request::Force(amount)
        | Request::ForceUpTo(amount)
        | Request::Within(amount, _)
        | Request::Refund(amount) => amount,
        Request::PeekPastLimit => Amount::ZERO,
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

/// Generates valid amounts of arguments in millionths: common and extreme ones.
pub fn amounts() -> impl Strategy<Value = u64> + Clone {
    let max = Amount::MAX_ARGUMENT.millionths();
    prop_oneof![
        4 => (0..=20u64).prop_map(|units| units * UNIT),
        2 => 0..=5 * UNIT,
        2 => (1..=1_000_000u64).prop_map(|units| units * UNIT),
        1 => 0..=3u64,
        2 => up_to(max),
        1 => max - 3..=max,
    ]
}

/// Generates valid durations of arguments in microseconds: common and extreme ones.
pub fn lengths() -> impl Strategy<Value = u64> + Clone {
    let max = 3650 * 86_400_000_000;
    prop_oneof![
        4 => select(vec![1000, UNIT, 60 * UNIT, 3600 * UNIT, 86_400 * UNIT]),
        2 => 1..=10u64,
        2 => 1..=3 * UNIT,
        2 => up_to(max - 1).prop_map(|micros| micros + 1),
        1 => max - 3..=max,
    ]
}

/// Generates numbers of every magnitude up to `max`.
fn up_to(max: u64) -> impl Strategy<Value = u64> + Clone {
    (0..=max.ilog2(), any::<u64>()).prop_map(move |(bits, random)| (random >> (63 - bits)).min(max))
}

/// Call of a script. Errors of limiters occur at boundaries, which random numbers never hit. So most times and amounts
/// are relative to the previous decision and to the remaining amount.
#[derive(Clone, Debug)]
pub struct Call {
    /// Selects one of the script's limits.
    pub limit: Index,
    pub when: When,
    pub operation: Operation,
    /// `true`: the call is a peek.
    pub peeks: bool,
    /// `true`: the server removes the key before the call if the key has expired.
    pub key_may_expire: bool,
}

/// Time of a call, in relation to the previous call.
#[derive(Clone, Debug)]
pub enum When {
    /// Microseconds later.
    Later(u64),
    /// Microseconds earlier: the clock moved backwards.
    Earlier(u64),
    /// Microseconds before or after the end of the previous wait.
    AroundWait(i64),
    /// Microseconds before or after the previous reset.
    AroundReset(i64),
    /// Hundredths of the time until the previous reset.
    WithinReset(u64),
}

#[derive(Clone, Debug)]
pub enum Operation {
    Take(AmountChoice),
    UpTo(AmountChoice),
    Force(AmountChoice),
    Within(AmountChoice, MaxWait),
    Refund(AmountChoice),
}

#[derive(Clone, Debug)]
pub enum AmountChoice {
    Exactly(u64),
    /// Remaining amount plus this many millionths.
    Remaining(i64),
    /// Remaining whole units plus this many millionths.
    WholeRemaining(i64),
    /// Limit plus this many millionths.
    Limit(i64),
    /// Used amount plus this many millionths.
    Used(i64),
    /// Hundredths of the limit.
    PartOfLimit(u64),
}

#[derive(Clone, Debug)]
pub enum MaxWait {
    Exactly(u64),
    /// Wait of the call without MAXWAIT, plus this many microseconds.
    AroundWait(i64),
}

/// Start time and calls.
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
    let choice = || {
        prop_oneof![
            1 => Just(AmountChoice::Exactly(0)),
            4 => Just(AmountChoice::Exactly(UNIT)),
            1 => amounts().prop_map(AmountChoice::Exactly),
            2 => (-1..=1i64).prop_map(AmountChoice::Remaining),
            2 => select(vec![-1_000_000, 0, 1, 1_000_000]).prop_map(AmountChoice::WholeRemaining),
            1 => (-1..=1i64).prop_map(AmountChoice::Limit),
            1 => (-1..=1i64).prop_map(AmountChoice::Used),
            3 => (0..=110u64).prop_map(AmountChoice::PartOfLimit),
        ]
    };
    let max_wait = prop_oneof![lengths().prop_map(MaxWait::Exactly), (-1..=1i64).prop_map(MaxWait::AroundWait)];
    let operation = prop_oneof![
        6 => choice().prop_map(Operation::Take),
        2 => choice().prop_map(Operation::UpTo),
        1 => choice().prop_map(Operation::Force),
        2 => (choice(), max_wait).prop_map(|(choice, max_wait)| Operation::Within(choice, max_wait)),
        1 => choice().prop_map(Operation::Refund),
    ];
    (any::<Index>(), when, operation, prop::bool::weighted(0.1), prop::bool::weighted(0.3)).prop_map(
        |(limit, when, operation, peeks, key_may_expire)| Call { limit, when, operation, peeks, key_may_expire },
    )
}

impl When {
    /// Returns the time of a call, given the time and the decision of the previous call.
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
            When::AroundWait(offset) => (last + wait.micros()).saturating_add_signed(offset),
            When::AroundReset(offset) => (last + reset.micros()).saturating_add_signed(offset),
            When::WithinReset(percent) => last + reset.micros() / 100 * percent,
        };
        Timestamp::from_micros(micros.min(END)).unwrap()
    }
}

impl Operation {
    /// Returns the request for the current usage.
    pub fn request<L: Limit>(&self, limit: &L, usage: &L::Usage, now: Timestamp) -> Request {
        let amount = |choice: &AmountChoice| {
            let remaining = limit.remaining(usage, now);
            let millionths = match *choice {
                AmountChoice::Exactly(millionths) => millionths,
                AmountChoice::Remaining(offset) => remaining.millionths().saturating_add_signed(offset),
                AmountChoice::WholeRemaining(offset) => remaining.floor().millionths().saturating_add_signed(offset),
                AmountChoice::Limit(offset) => limit.limit().millionths().saturating_add_signed(offset),
                AmountChoice::Used(offset) => limit.limit().minus(remaining).millionths().saturating_add_signed(offset),
                AmountChoice::PartOfLimit(percent) => limit.limit().millionths() / 100 * percent,
            };
            Amount::saturating(millionths).min(Amount::MAX_ARGUMENT)
        };
        match self {
            Operation::Take(choice) => Request::Take(amount(choice)),
            Operation::UpTo(choice) => Request::UpTo(amount(choice).floor().max(Amount::ONE)),
            Operation::Force(choice) => Request::Force(amount(choice)),
            Operation::Refund(choice) => Request::Refund(amount(choice)),
            Operation::Within(choice, max_wait) => {
                let micros = match (max_wait, limit.verdict(usage, now, amount(choice))) {
                    (MaxWait::Exactly(micros), _) => *micros,
                    (MaxWait::AroundWait(offset), Verdict::After(wait)) => wait.micros().saturating_add_signed(*offset),
                    (MaxWait::AroundWait(_), _) => 0,
                };
                Request::Within(amount(choice), Span::from_micros(micros.min(period("3650d").span().micros())))
            }
        }
    }
}
