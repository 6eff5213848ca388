//! Laws of the core, as assertions for the targets.

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

    fn bytes(&mut self, max: usize) -> Option<Box<[u8]>> {
        match self.fields.pop_front()? {
            Field::Bytes(value) if value.len() <= max => Some(value.into()),
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

/// Asserts that a decoded usage is a possible result of a call: it can be decoded from its own encoding, as a payload
/// and as an effect.
pub fn assert_sound<U: Usage>(usage: &U) {
    assert!(!usage.is_unused(), "an unused usage has no key");
    let encoded = fields(usage);
    let decoded = U::decode(&mut encoded.clone(), U::VERSION).expect("an encoded usage can be decoded");
    assert_eq!(fields(&decoded), encoded);

    let text = EncodedText::of_whole(usage, 1);
    let Some(Effect::Change { version, fields: mut words, .. }) = Effect::decode::<U>(text.as_bytes()) else {
        panic!("an encoded effect cannot be decoded");
    };
    assert!(U::default().accepts_effect(&mut words, version) && words.is_at_end());
}

/// Asserts that the text of an error is one short line of printable characters.
pub fn assert_error_text(error: &Error) {
    let text = error.to_string();
    let (code, max) = match error {
        // The error lists all names of the call.
        Error::NoPolicy(names) => ("NOPOLICY ", names.len() + 300),
        // A name of 256 bytes is shown in full.
        Error::OtherVersion { .. } => ("ERR ", 400),
        _ => ("ERR ", 300),
    };
    assert!(text.starts_with(code) && text.len() < max, "{text}");
    assert!(text.bytes().all(|byte| matches!(byte, b' '..=b'~')), "{text:?}");
}

/// Parses the specs of a policy, which follow its name in RL.POLICYSET.
pub fn parse_policy(text: &[u8]) -> Option<Policy> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(|byte| *byte == b' ')).collect();
    Policy::parse(&mut Args::new(&words)).ok()
}

/// Asserts that a policy is displayed as the specs of the same policy, at every scale.
pub fn assert_policy(policy: &Policy) {
    assert!((1..=MAX_SPECS).contains(&policy.limit_count()));
    let text = policy.to_string();
    assert_eq!(policy.scaled(Amount::ONE).to_string(), text);
    for millionths in [0, 1, 500_000, 1_000_000, 1_000_000_000] {
        let scaled = policy.scaled(Amount::saturating(millionths));
        let text = scaled.to_string();
        let parsed = parse_policy(text.as_bytes()).unwrap_or_else(|| panic!("{text} is rejected"));
        assert_eq!(parsed.to_string(), text);
        assert_eq!(parsed.limit_count(), policy.limit_count());
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
        "a peek with a clock that moved backwards has the same result"
    );
    assert!(peeked.remaining <= limit.limit());

    // A replica that applies the effect of the call must get the same state.
    let mut replica = usage.clone();
    let mut effect = Fields::default();
    usage.encode_effect(&mut effect);
    evaluation.change.apply(limit, usage, now);
    let decision = evaluation.decision(limit, usage, now, true);
    if evaluation.change == Change::Nothing {
        assert_eq!(fields(usage), before, "a call without a change writes nothing");
        assert_eq!(decision, peeked);
    } else if !usage.is_unused() {
        let mut effect = Fields::default();
        usage.encode_effect(&mut effect);
        assert!(replica.accepts_effect(&mut effect.clone(), L::Usage::VERSION));
        replica.apply_effect(&mut effect, L::Usage::VERSION);
        assert_eq!(fields(&replica), fields(usage));
        assert_sound(usage);
    }
    if let Verdict::After(wait) = decision.verdict {
        let grant_time = now.plus(wait);
        if !request.is_forced() && grant_time < Timestamp::MAX {
            let granted = evaluate(limit, usage, grant_time, request).decision(limit, usage, grant_time, false);
            assert!(granted.verdict.allowed(), "{request:?} is denied after {wait:?}: {granted:?}");
        }
    }
}

/// Returns the decision of a call on the fast path and the key after it; `None` if the call takes the slow path.
fn take_fast_path(call: &CompositeRequest, usage: &CompositeUsage, now: Timestamp) -> Option<(Decision, Fields)> {
    let evaluation = usage.evaluate_fast(call, now)?;
    let mut usage = usage.clone();
    let decision = if evaluation.denies() {
        usage.deny_fast(call, &evaluation, now)
    } else {
        usage.charge_fast(call, &evaluation, true, now)
    };
    Some((decision, fields(&usage)))
}

/// Makes a call on a composite key and asserts the laws of every call.
pub fn assert_lawful_call(call: &CompositeRequest, usage: &mut CompositeUsage, now: Timestamp) {
    // Lists the decision of each limit.
    let with_each = CompositeRequest { each: true, ..call.clone() };
    let answer = |evaluation: &CompositeEvaluation, usage: &CompositeUsage, now, charged| {
        evaluation.answer(&with_each, StoredUsage::Composite(usage), now, charged)
    };
    let evaluation = CompositeEvaluation::at(call, StoredUsage::Composite(usage), now);
    if evaluation.has_too_many_components(StoredUsage::Composite(usage), now) {
        return;
    }
    let peeked = answer(&evaluation, usage, now, false);
    for (decision, spec) in peeked.each.iter().zip(&call.specs) {
        assert!(decision.remaining <= spec.limit.limit());
    }
    let mut replica = usage.clone();
    let is_moved_back = usage.is_after(now);
    if is_moved_back {
        usage.move_back(now);
    }
    assert!(!usage.is_after(now));
    let writes = evaluation.changes() || evaluation.is_strike();
    let fast = take_fast_path(call, usage, now);
    let state = fields(usage);
    assert_eq!(
        answer(&CompositeEvaluation::at(call, StoredUsage::Composite(usage), now), usage, now, false),
        peeked,
        "a peek with a clock that moved backwards has the same result"
    );
    assert_eq!(fields(usage), state, "a peek changes nothing");
    if writes {
        usage.charge(call, &evaluation, now);
    }
    let decision = answer(&evaluation, usage, now, writes).decision;
    // At the last timestamp, every charge has recovered at once.
    if let Some(fast) = fast.filter(|_| !is_moved_back && now < Timestamp::MAX) {
        assert_eq!(fast, (decision, fields(usage)), "the fast path has the result of the slow path");
    }
    if call.specs.iter().all(|spec| spec.shadow) && usage.remaining_ban(now) == Span::ZERO {
        assert!(!evaluation.denies(), "limits in shadow mode never deny");
    }
    assert!(!evaluation.allows() || decision.verdict != Verdict::Never);
    if usage.is_unused() {
        *usage = CompositeUsage::default(); // the key is deleted
        return;
    }
    if writes || is_moved_back {
        let mut effect = Fields::default();
        usage.encode_effect(&mut effect);
        assert!(replica.accepts_effect(&mut effect.clone(), CompositeUsage::VERSION));
        replica.apply_effect(&mut effect, CompositeUsage::VERSION);
        assert_eq!(fields(&replica), fields(usage));
        assert_sound(usage);
    }
    // After the wait, the call may still be denied because of an id, a ban, or a lease that expires in the meantime.
    let only_limits_decide =
        call.idempotency == Idempotency::Every && call.ban.is_none() && usage.remaining_ban(now) == Span::ZERO;
    let has_lease_to_keep =
        call.specs.iter().any(|spec| matches!(spec.limit, AnyLimit::Concurrency(_)) && spec.keep != Amount::ZERO);
    let is_forced = call.specs.iter().any(|spec| spec.request.is_forced());
    if let Verdict::After(wait) = decision.verdict
        && only_limits_decide
        && !has_lease_to_keep
        && !is_forced
        && now.plus(wait) < Timestamp::MAX
    {
        let grant_time = now.plus(wait);
        let evaluation = CompositeEvaluation::at(call, StoredUsage::Composite(usage), grant_time);
        let granted = answer(&evaluation, usage, grant_time, false).decision;
        assert!(granted.verdict.allowed(), "{call:?} is denied after {wait:?}: {granted:?}");
    }
}
