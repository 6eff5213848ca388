//! Key of a server, plain or composite, and the replicas that apply its effects.

use super::sent_effects::{after_conversion, check_each_number, check_effect};
use crate::algorithm::any::{AnyUsage, PlainUsage, with_limit, with_usage};
use crate::composite::{
    Answer, Component, ComponentChange, CompositeEvaluation, CompositeUsage, FastEvaluation, StoredUsage,
};
use crate::expiry::{Expiry, StepBack};
use crate::limit::{Limit, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::{CompositeRequest, KeyRequest};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::usage_kind::UsageKind;
use crate::wire::codec::Discard;
use proptest::sample::Index;

/// Value of a key.
#[derive(Clone, Debug)]
pub enum Value {
    Plain(AnyUsage),
    Composite(CompositeUsage),
}

/// Key with its expiry in milliseconds since the Unix epoch; `None` if the key is missing.
pub type Key = Option<(Value, u64)>;

#[derive(Clone, Debug, Default)]
pub struct Server {
    pub key: Key,
    /// Replica, which applies effects and has no limits.
    replica: CompositeUsage,
    /// Replica that decodes its stored key before each effect.
    restarted: CompositeUsage,
    /// Mutations of the next effect.
    pub mutations: Vec<(Index, u64)>,
    /// `true`: [`check_each_number`] is run on each effect.
    pub mutates_all: bool,
}

/// Reason for a rejected call.
#[derive(Debug, PartialEq, Eq)]
pub enum CallError {
    WrongType,
    TooManyComponents,
    NoHolder,
}

/// Result of an accepted call.
#[derive(Debug)]
pub struct CallResult {
    pub answer: Answer,
    /// `true`: the call has written the key.
    pub writes: bool,
}

/// Returns the request with EACH, so that the answer has the decision of each limit.
pub fn with_each<'a>(call: &CompositeRequest<'a>) -> CompositeRequest<'a> {
    CompositeRequest { each: true, ..call.clone() }
}

pub fn call_of<'a>(request: &KeyRequest<'a>) -> CompositeRequest<'a> {
    match request {
        KeyRequest::One(spec) => CompositeRequest::of_one(*spec),
        KeyRequest::Composite(call) => (**call).clone(),
        KeyRequest::Policy(by) => unreachable!("{by:?}"),
    }
}

pub fn unused_of<L: Limit>(_: &L) -> AnyUsage
where
    L::Usage: PlainUsage,
{
    L::Usage::default().into_any()
}

/// Moves a usage back for a call that charges nothing, if the clock moved backwards.
fn step_back<U: Usage>(usage: &mut U, now: Timestamp, reset: impl Fn(&U, Timestamp) -> Span) -> Option<StepBack> {
    let moved_back = usage.ahead(now);
    if moved_back == Span::ZERO {
        return None;
    }
    let time_before = now.plus(moved_back);
    let range_before = Expiry::of(time_before, reset(usage, time_before));
    usage.move_back(now);
    let range_after = Expiry::of(now, reset(usage, now));
    Some(StepBack { now, moved_back, recovery: usage.recovery_source(), range_before, range_after })
}

/// Call on the fast path.
struct FastCharge {
    evaluation: FastEvaluation,
    answer: Answer,
    /// Usage after the call, which has recorded its effect.
    propagated: CompositeUsage,
    /// Usage after the call, which has not recorded its effect.
    unpropagated: CompositeUsage,
}

impl FastCharge {
    fn new(before: &CompositeUsage, call: &CompositeRequest, now: Timestamp) -> Option<FastCharge> {
        let evaluation = before.evaluate_fast(call, now)?;
        let (mut propagated, mut unpropagated) = (before.clone(), before.clone());
        let decision = if evaluation.denies() {
            before.deny_fast(call, &evaluation, now)
        } else {
            let decision = propagated.charge_fast(call, &evaluation, true, now);
            assert_eq!(unpropagated.charge_fast(call, &evaluation, false, now), decision);
            decision
        };
        Some(FastCharge { evaluation, answer: Answer::of(decision), propagated, unpropagated })
    }

    /// Asserts that the slow path has the same result.
    fn assert_equals_slow_path(
        mut self,
        call: &CompositeRequest,
        evaluation: &CompositeEvaluation,
        answer: &Answer,
        usage: &CompositeUsage,
        is_charged: bool,
    ) {
        assert_eq!(!self.evaluation.denies(), is_charged, "{call:?}");
        assert_eq!(self.evaluation.limits(call).collect::<Vec<_>>(), evaluation.limits(call).collect::<Vec<_>>());
        assert_eq!(self.answer, Answer { each: vec![], ..answer.clone() }, "{call:?}");
        for fast_usage in [&self.propagated, &self.unpropagated] {
            assert_eq!(encoded(fast_usage), encoded(usage), "{call:?}");
        }
        let (mut effect, mut fast_effect) = (EncodedFields::default(), EncodedFields::default());
        usage.clone().encode_effect(&mut effect);
        self.propagated.encode_effect(&mut fast_effect);
        assert_eq!(fast_effect, effect, "{call:?}");
        // A remaining change would be propagated with the next effect.
        self.unpropagated.discard_effect();
        assert!(!has_delta(&self.propagated) && !has_delta(&self.unpropagated));
    }
}

impl Server {
    pub fn components(&self) -> Option<&CompositeUsage> {
        if let Some((Value::Composite(components), _)) = &self.key { Some(components) } else { None }
    }

    pub fn plain(&self) -> Option<&AnyUsage> {
        if let Some((Value::Plain(usage), _)) = &self.key { Some(usage) } else { None }
    }

    /// Returns the stored fields.
    pub fn stored(&self) -> Option<EncodedFields> {
        self.key.as_ref().map(|(value, _)| match value {
            Value::Plain(any) => with_usage!(any, usage => encoded(usage)),
            Value::Composite(components) => encoded(components),
        })
    }

    /// Returns the stored fields and the expiry.
    pub fn key_as_stored(&self) -> Option<(EncodedFields, u64)> {
        self.stored().zip(self.key.as_ref().map(|(_, at)| *at))
    }

    /// Removes the key if it has expired. Returns `true` if it was removed.
    pub fn expire(&mut self, now: Timestamp) -> bool {
        let has_expired = self.key.as_ref().is_some_and(|(_, at)| *at <= now.floor_millis());
        if has_expired {
            *self = Server::default();
        }
        has_expired
    }

    /// Runs RL.PEEK or RL.TAKE.
    pub fn call(&mut self, request: &KeyRequest, now: Timestamp, peeks: bool) -> Result<CallResult, CallError> {
        let call = call_of(request);
        let unused_value = || match request {
            KeyRequest::One(spec) => Value::Plain(with_limit!(spec, limit => unused_of(limit))),
            KeyRequest::Composite(_) | KeyRequest::Policy(_) => Value::Composite(CompositeUsage::default()),
        };
        let expires_at = self.key.as_ref().map(|(_, at)| *at);
        match self.key.as_ref().map_or_else(unused_value, |(value, _)| value.clone()) {
            Value::Composite(usage) => self.call_composite(&call, usage, expires_at, now, peeks),
            Value::Plain(any) => match call.specs.as_slice() {
                // A usage left by another definition of a policy is not a wrong type.
                [spec] if spec.limit.kind() != any.kind() && !spec.by_policy => Err(CallError::WrongType),
                _ => Ok(with_usage!(&any, usage => self.call_plain(&call, usage, expires_at, now, peeks))),
            },
        }
    }

    fn call_composite(
        &mut self,
        call: &CompositeRequest,
        mut usage: CompositeUsage,
        expires_at: Option<u64>,
        now: Timestamp,
        peeks: bool,
    ) -> Result<CallResult, CallError> {
        let fast = if peeks { None } else { FastCharge::new(&usage, call, now) };
        let call = &with_each(call);
        let stored = StoredUsage::Composite(&usage);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        if evaluation.has_too_many_components(stored, now) {
            assert!(fast.is_none());
            return Err(CallError::TooManyComponents);
        }
        if peeks || (!evaluation.changes() && !evaluation.is_strike()) {
            let answer = evaluation.answer(call, stored, now, false);
            if let Some(fast) = fast {
                fast.assert_equals_slow_path(call, &evaluation, &answer, &usage, false);
            }
            let step = if peeks { None } else { step_back(&mut usage, now, CompositeUsage::reset) };
            if let Some(step) = &step {
                self.propagate(&mut usage);
                self.put(usage, step.expiry(expires_at));
            }
            return Ok(CallResult { answer, writes: step.is_some() });
        }
        let moves_back = usage.is_after(now);
        let entries: Vec<_> = evaluation.entries(call, stored, now).collect();
        if moves_back {
            usage.move_back(now);
        }
        usage.charge(call, &evaluation, now);
        check_entries(&usage, &entries, now);
        let answer = evaluation.answer(call, StoredUsage::Composite(&usage), now, true);
        if let Some(fast) = fast {
            assert!(!moves_back);
            let ids = fast.evaluation.id_count_after().map(|ids| (UsageKind::Limits, ids, true));
            assert_eq!(entries, ids.into_iter().collect::<Vec<_>>());
            fast.assert_equals_slow_path(call, &evaluation, &answer, &usage, true);
        }
        self.commit(usage, expires_at, moves_back, now);
        Ok(CallResult { answer, writes: true })
    }

    fn call_plain<U: PlainUsage>(
        &mut self,
        call: &CompositeRequest,
        usage: &U,
        expires_at: Option<u64>,
        now: Timestamp,
        peeks: bool,
    ) -> CallResult {
        let mut usage = usage.clone();
        let call = &with_each(call);
        let stored = StoredUsage::plain(&usage);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        assert!(!evaluation.has_too_many_components(stored, now));
        let reset = |usage: &U, now| call.reset_of_plain(usage, now);
        let put = |server: &mut Server, usage: U, at| {
            server.key = (!usage.is_unused()).then(|| (Value::Plain(usage.into_any()), at));
        };
        if peeks || (!evaluation.changes() && !evaluation.is_strike()) {
            let answer = evaluation.answer(call, stored, now, false);
            let step = if peeks { None } else { step_back(&mut usage, now, reset) };
            if let Some(step) = &step {
                usage.encode_effect(&mut Discard);
                put(self, usage, step.expiry(expires_at));
            }
            return CallResult { answer, writes: step.is_some() };
        }
        if evaluation.stays_plain(call) {
            let moves_back = usage.is_after(now);
            if moves_back {
                usage.move_back(now);
            }
            evaluation.charge_plain(call, &mut usage, now);
            usage.encode_effect(&mut Discard);
            let answer = evaluation.answer(call, StoredUsage::plain(&usage), now, true);
            let at = Expiry::of(now, reset(&usage, now)).after_charge(expires_at, moves_back);
            put(self, usage, at);
            return CallResult { answer, writes: true };
        }
        let components = self.convert(&usage, expires_at, now, |components| components.charge(call, &evaluation, now));
        let answer = evaluation.answer(call, StoredUsage::Composite(&components), now, true);
        CallResult { answer, writes: true }
    }

    /// Converts a plain key to a composite key and propagates the conversion.
    fn convert<U: PlainUsage>(
        &mut self,
        usage: &U,
        expires_at: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage),
    ) -> CompositeUsage {
        let mut plain = usage.clone();
        let (mut components, ()) = CompositeUsage::convert(&mut plain, expires_at, now, change);
        assert!(plain.is_unused(), "the plain usage is moved");
        let mut effect = EncodedFields::default();
        components.encode_effect(&mut effect);
        for (field, value) in std::mem::take(&mut self.mutations) {
            after_conversion(usage, expires_at, &effect.with_integer(field, value));
        }
        // A replica has the propagated usage of the plain key, or has decoded a stored one.
        self.replica = after_conversion(usage, expires_at, &effect).unwrap();
        let stored: U = decoded(&encoded(usage)).unwrap();
        self.restarted = after_conversion(&stored, expires_at, &effect).unwrap();
        assert_eq!(encoded(&self.replica), encoded(&components));
        assert_eq!(encoded(&self.restarted), encoded(&components));
        if components.is_unused() {
            (self.replica, self.restarted) = (CompositeUsage::default(), CompositeUsage::default());
        } else {
            self.compare(&components);
            let whole = whole_effect(&components);
            assert_eq!(encoded(&applied(&CompositeUsage::default(), &whole).unwrap()), encoded(&components));
        }
        let at = Expiry::of(now, components.reset(now)).after_charge(None, false);
        self.put(components.clone(), at);
        components
    }

    /// Runs RL.RELEASE. Returns the number of released leases, and `true` if the key has been written.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) -> Option<(usize, bool)> {
        let (Value::Composite(mut usage), expires_at) = self.key.clone()? else { return None };
        let step = step_back(&mut usage, now, CompositeUsage::reset);
        let before = encoded(&usage);
        let released = usage.release(&[holder], now);
        if released > 0 {
            self.commit(usage, Some(expires_at), step.is_some(), now);
        } else {
            assert_eq!(encoded(&usage), before, "a release of no lease is not propagated");
            if let Some(step) = &step {
                self.propagate(&mut usage);
                self.put(usage, step.expiry(Some(expires_at)));
            }
        }
        Some((released, step.is_some() || released > 0))
    }

    /// Runs RL.BAN. Returns the remaining duration of the ban, and `true` if the key has been written.
    pub fn ban(&mut self, duration: Span, now: Timestamp) -> (Span, bool) {
        let (mut usage, expires_at) = match self.key.clone() {
            Some((Value::Plain(any), at)) if duration != Span::ZERO => {
                let change = |components: &mut CompositeUsage| components.ban(duration, now);
                let components = with_usage!(&any, usage => self.convert(usage, Some(at), now, change));
                return (components.remaining_ban(now), true);
            }
            Some((Value::Composite(usage), at)) => (usage, Some(at)),
            None => (CompositeUsage::default(), None),
            Some((Value::Plain(_), _)) => return (Span::ZERO, false),
        };
        if !usage.is_changed_by_ban(duration, now) {
            return (usage.remaining_ban(now), false);
        }
        let moves_back = usage.is_after(now);
        if moves_back {
            usage.move_back(now);
        }
        usage.ban(duration, now);
        let remaining = usage.remaining_ban(now);
        self.commit(usage, expires_at, moves_back, now);
        (remaining, true)
    }

    /// Propagates and stores a changed usage.
    fn commit(&mut self, mut usage: CompositeUsage, expires_at: Option<u64>, moves_back: bool, now: Timestamp) {
        let at = Expiry::of(now, usage.reset(now)).after_charge(expires_at, moves_back);
        if usage.is_unused() {
            *self = Server::default();
        } else {
            self.propagate(&mut usage);
            self.put(usage, at);
        }
    }

    fn put(&mut self, usage: CompositeUsage, at: u64) {
        self.key = (!usage.is_unused()).then_some((Value::Composite(usage), at));
    }

    /// Propagates the change to the replicas and compares their state.
    fn propagate(&mut self, usage: &mut CompositeUsage) {
        let mut effect = EncodedFields::default();
        usage.encode_effect(&mut effect);
        for (field, value) in std::mem::take(&mut self.mutations) {
            check_effect(&self.replica, &effect.with_integer(field, value));
        }
        if self.mutates_all {
            check_each_number(&self.replica, &effect);
        }
        let replica = applied(&self.replica, &effect);
        assert!(replica.is_some(), "{effect:?} is rejected");
        self.replica = replica.unwrap();
        if !self.restarted.is_unused() {
            self.restarted = decoded(&encoded(&self.restarted)).unwrap();
        }
        self.restarted = applied(&self.restarted, &effect).unwrap();
        self.compare(usage);
    }

    fn compare(&self, usage: &CompositeUsage) {
        let stored = encoded(usage);
        assert_eq!(encoded(&self.replica), stored);
        assert_eq!(encoded(&self.restarted), stored);
        assert_eq!(encoded(&decoded::<CompositeUsage>(&stored).unwrap()), stored);
    }
}

/// Asserts that the components have the expected numbers of entries. (Ids are not checked, because some may have
/// expired. At the last timestamp, a lease expires as soon as it is acquired.)
fn check_entries(usage: &CompositeUsage, expected: &[(UsageKind, usize, bool)], now: Timestamp) {
    let is_checked =
        |kind: UsageKind| kind != UsageKind::Limits && (kind != UsageKind::Concurrency || now < Timestamp::MAX);
    for (kind, entries, _) in expected.iter().filter(|(kind, ..)| is_checked(*kind)) {
        let mut of_kind = usage.components.iter().filter(|component| component.usage.kind() == *kind);
        let has_expected = |component: &Component| with_usage!(&component.usage, usage => usage.entries()) == *entries;
        assert!(of_kind.any(has_expected), "{expected:?}");
    }
}

/// Returns `true` if `usage` holds a change that has not been encoded as an effect.
fn has_delta(usage: &CompositeUsage) -> bool {
    let has_change = |component: &Component| component.change() != ComponentChange::Nothing;
    usage.components.iter().any(has_change)
        || usage.extras().is_some_and(|extras| extras.delta.is_some() || extras.records.has_changed())
}
