//! Laws of the core, which the targets check.

use ratelimit_core::AnyLimit;
use ratelimit_core::composite::{CompositeEvaluation, CompositeUsage, StoredUsage};
use ratelimit_core::effect::{Effect, EncodedText};
use ratelimit_core::syntax::{CompositeRequest, Idempotency, MAX_SPECS, Policy};
use ratelimit_core::wire::args::Args;
use ratelimit_core::wire::codec::{Decoder, Encoder};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{Amount, Change, Decision, Evaluation, Limit, Request, Span, Timestamp, Usage, Verdict, evaluate};

/// Fields of a usage, as in an RDB payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    pub fields: std::collections::VecDeque<Field>,
}

/// Field of a payload.
#[derive(Clone, Debug, PartialEq, Eq, arbitrary::Arbitrary)]
pub enum Field {
    Integer(u64),
    Bytes(Vec<u8>),
}

impl Encoder for Fields {
    fn integer(&mut self, value: u64) {
        self.fields.push_back(Field::Integer(value));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.fields.push_back(Field::Bytes(value.to_vec()));
    }
}

impl Decoder for Fields {
    fn integer(&mut self) -> Option<u64> {
        match self.fields.pop_front()? {
            Field::Integer(value) => Some(value),
            Field::Bytes(_) => None,
        }
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        match self.fields.pop_front()? {
            Field::Bytes(value) if value.len() <= most => Some(value.into()),
            _ => None,
        }
    }
}

/// Returns the fields of a usage.
pub fn fields<U: Usage>(usage: &U) -> Fields {
    let mut fields = Fields::default();
    usage.encode(&mut fields);
    fields
}

/// Asserts that a decoded usage is one that a call could have made: it can be decoded from its own encoding, as a
/// payload and as an effect.
pub fn assert_sound<U: Usage>(usage: &U) {
    assert!(!usage.is_unused(), "a usage of nothing is no key");
    let written = fields(usage);
    let again = U::decode(&mut written.clone(), U::VERSION).expect("what is written is read");
    assert_eq!(fields(&again), written);

    let text = EncodedText::of_whole(usage, 1);
    let Some(Effect::Change { version, fields: mut words, .. }) = Effect::decode::<U>(text.as_bytes()) else {
        panic!("an effect that is written is read");
    };
    assert!(U::default().accepts_effect(&mut words, version) && words.end());
}

/// Asserts that an error is one line that a reply can carry, whatever bytes it quotes.
pub fn assert_wire(error: &Error) {
    let text = error.to_string();
    let (code, most) = match error {
        // Lists all names of the call, however many there are.
        Error::NoPolicy(names) => ("NOPOLICY ", names.len() + 300),
        // A name of 256 bytes is shown whole.
        Error::OtherVersion { .. } => ("ERR ", 400),
        _ => ("ERR ", 300),
    };
    assert!(text.starts_with(code) && text.len() < most, "{text}");
    assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
}

/// Parses the specs of a policy, which follow its name in RL.POLICYSET.
pub fn read_policy(text: &[u8]) -> Option<Policy> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(|byte| *byte == b' ')).collect();
    Policy::parse(&mut Args::new(&words)).ok()
}

/// Asserts that a policy is equal to its displayed form when parsed, at every scale.
pub fn assert_policy(policy: &Policy) {
    assert!((1..=MAX_SPECS).contains(&policy.limit_count()));
    let text = policy.to_string();
    assert_eq!(policy.scaled(Amount::ONE).to_string(), text);
    for millionths in [0, 1, 500_000, 1_000_000, 1_000_000_000] {
        let scaled = policy.scaled(Amount::saturating(millionths));
        let text = scaled.to_string();
        let again = read_policy(text.as_bytes()).unwrap_or_else(|| panic!("{text} is not read"));
        assert_eq!(again.to_string(), text);
        assert_eq!(again.limit_count(), policy.limit_count());
    }
}

/// Makes a call on a usage and asserts the laws of every call.
pub fn assert_lawful<L: Limit>(limit: &L, usage: &mut L::Usage, now: Timestamp, request: Request) {
    let decision = evaluate(limit, usage, now, request).decision(limit, usage, now, false);
    let entries = limit.entries_after_charge(usage, now);
    if usage.is_after(now) {
        usage.move_back(now);
    }
    assert!(!usage.is_after(now));
    let (before, evaluation): (Fields, Evaluation) = (fields(usage), evaluate(limit, usage, now, request));
    let peeked = evaluation.decision(limit, usage, now, false);
    assert_eq!(fields(usage), before, "a peek changes nothing");
    assert_eq!(
        (peeked, limit.entries_after_charge(usage, now)),
        (decision, entries),
        "nor does it need a clock gone back seen to"
    );
    assert!(peeked.remaining <= limit.limit());

    // A replica that applies the effect of the call must get the same state.
    let mut elsewhere = usage.clone();
    let mut effect = Fields::default();
    usage.encode_effect(&mut effect);
    evaluation.change.apply(limit, usage, now);
    let decision = evaluation.decision(limit, usage, now, true);
    if evaluation.change == Change::Nothing {
        assert_eq!(fields(usage), before, "what changes nothing writes nothing");
        assert_eq!(decision, peeked);
    } else if !usage.is_unused() {
        let mut effect = Fields::default();
        usage.encode_effect(&mut effect);
        assert!(elsewhere.accepts_effect(&mut effect.clone(), L::Usage::VERSION));
        elsewhere.apply_effect(&mut effect, L::Usage::VERSION);
        assert_eq!(fields(&elsewhere), fields(usage));
        assert_sound(usage);
    }
    if let Verdict::After(wait) = decision.verdict {
        let then = now.plus(wait);
        if !request.is_forced() && then < Timestamp::MAX {
            let passes = evaluate(limit, usage, then, request).decision(limit, usage, then, false);
            assert!(passes.verdict.allowed(), "{request:?} is denied after {wait:?}: {passes:?}");
        }
    }
}

/// Returns the decision of a call on the fast path and the key after it; `None` if the call takes the slow path.
fn by_fast_path(call: &CompositeRequest, usage: &CompositeUsage, now: Timestamp) -> Option<(Decision, Fields)> {
    let evaluation = usage.evaluate_fast(call, now)?;
    let mut usage = usage.clone();
    let decision = if evaluation.denies() {
        usage.deny_fast(call, &evaluation, now)
    } else {
        usage.charge_fast(call, &evaluation, true, now)
    };
    Some((decision, fields(&usage)))
}

/// Asserts that a call on a key with components is decided and charged as the laws say.
pub fn assert_lawful_call(call: &CompositeRequest, usage: &mut CompositeUsage, now: Timestamp) {
    // With the decision of each limit.
    let all = CompositeRequest { each: true, ..call.clone() };
    let answer = |evaluation: &CompositeEvaluation, usage: &CompositeUsage, now, charged| {
        evaluation.answer(&all, StoredUsage::Composite(usage), now, charged)
    };
    let evaluation = CompositeEvaluation::at(call, StoredUsage::Composite(usage), now);
    if evaluation.has_too_many_components(StoredUsage::Composite(usage), now) {
        return;
    }
    let peeked = answer(&evaluation, usage, now, false);
    for (decision, spec) in peeked.each.iter().zip(&call.specs) {
        assert!(decision.remaining <= spec.limit.limit());
    }
    let mut elsewhere = usage.clone();
    let goes_back = usage.is_after(now);
    if goes_back {
        usage.move_back(now);
    }
    assert!(!usage.is_after(now));
    let writes = evaluation.changes() || evaluation.is_strike();
    let fast = by_fast_path(call, usage, now);
    let moved = fields(usage);
    assert_eq!(
        answer(&CompositeEvaluation::at(call, StoredUsage::Composite(usage), now), usage, now, false),
        peeked,
        "the clock was seen to before"
    );
    assert_eq!(fields(usage), moved, "a peek changes nothing");
    if writes {
        usage.charge(call, &evaluation, now);
    }
    let decision = answer(&evaluation, usage, now, writes).decision;
    // At the last timestamp every charge has recovered at once.
    if let Some(fast) = fast.filter(|_| !goes_back && now < Timestamp::MAX) {
        assert_eq!(fast, (decision, fields(usage)), "the fast path comes to the same");
    }
    if call.specs.iter().all(|spec| spec.shadow) && usage.banned(now) == Span::ZERO {
        assert!(!evaluation.denies(), "what decides only for itself denies no call");
    }
    assert!(!evaluation.allows() || decision.verdict != Verdict::Never);
    if usage.is_unused() {
        *usage = CompositeUsage::default(); // the key is deleted
        return;
    }
    if writes || goes_back {
        let mut effect = Fields::default();
        usage.encode_effect(&mut effect);
        assert!(elsewhere.accepts_effect(&mut effect.clone(), CompositeUsage::VERSION));
        elsewhere.apply_effect(&mut effect, CompositeUsage::VERSION);
        assert_eq!(fields(&elsewhere), fields(usage));
        assert_sound(usage);
    }
    // With ids, bans or leases that expire meanwhile, the call may still be denied after the wait.
    let by_limits = call.idempotency == Idempotency::Every && call.ban.is_none() && usage.banned(now) == Span::ZERO;
    let lapses =
        call.specs.iter().any(|spec| matches!(spec.limit, AnyLimit::Concurrency(_)) && spec.keep != Amount::ZERO);
    let forced = call.specs.iter().any(|spec| spec.request.is_forced());
    if let Verdict::After(wait) = decision.verdict
        && by_limits
        && !lapses
        && !forced
        && now.plus(wait) < Timestamp::MAX
    {
        let then = now.plus(wait);
        let passes =
            answer(&CompositeEvaluation::at(call, StoredUsage::Composite(usage), then), usage, then, false).decision;
        assert!(passes.verdict.allowed(), "{call:?} is denied after {wait:?}: {passes:?}");
    }
}
