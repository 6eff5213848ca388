//! Model of a key in the module, plain or composite. Applies calls, releases and bans, and checks after each of them
//! that replicas can apply the effect and that the stored state can be read.

use crate::laws::{Fields, fields};
use ratelimit_core::composite::{CompositeEvaluation, CompositeUsage, StoredUsage};
use ratelimit_core::effect::{Effect, EncodedText};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::round_trip;
use ratelimit_core::syntax::{CompositeRequest, KeyRequest, Spec};
use ratelimit_core::{AnyUsage, Limit, PlainUsage, Span, Timestamp, Usage, with_limit, with_usage};

/// Value of a key.
#[derive(Clone, Debug)]
pub enum Value {
    Plain(AnyUsage),
    Composite(CompositeUsage),
}

#[derive(Clone, Debug, Default)]
pub struct Key {
    /// Value and its expiry in milliseconds since the Unix epoch.
    pub value: Option<(Value, Option<u64>)>,
}

/// Result of a command on a key.
pub enum CallEffect {
    /// Unchanged or deleted key.
    Nothing,
    /// Value before the command, and the effect on it.
    Change(Value, EncodedText),
}

/// Returns the effect of a change, after a check that replicas can apply it and that the new state can be read.
fn encode_effect<U: Usage>(before: &U, after: &mut U, at: u64) -> EncodedText {
    let text = EncodedText::of_change(after, at);
    round_trip::check_effect(before, &text, after).unwrap_or_else(|error| panic!("{error}"));
    check(after);
    text
}

/// Checks that the stored form of a usage can be read.
pub fn check<U: Usage>(usage: &U) {
    round_trip::check_stored(usage).unwrap_or_else(|error| panic!("{error}"));
}

fn unused_of<L: Limit>(_: &L) -> AnyUsage
where
    L::Usage: PlainUsage,
{
    L::Usage::default().into_any()
}

fn move_back<U: Usage>(usage: &mut U, now: Timestamp) -> bool {
    let ahead = usage.is_after(now);
    if ahead {
        usage.move_back(now);
    }
    ahead
}

impl Key {
    /// Runs RL.TAKE.
    pub fn take(&mut self, request: &KeyRequest, now: Timestamp) -> CallEffect {
        let call = match request {
            KeyRequest::One(spec) => CompositeRequest::of_one(*spec),
            KeyRequest::Composite(call) => (**call).clone(),
            KeyRequest::Policy(_) => return CallEffect::Nothing,
        };
        let alone = call.specs.iter().find(|spec| spec.limit.kind().stands_alone());
        let missing = || match (request, alone) {
            (_, Some(spec)) | (KeyRequest::One(spec), _) => Value::Plain(with_limit!(spec, limit => unused_of(limit))),
            _ => Value::Composite(CompositeUsage::default()),
        };
        let (value, expires_at) = self.value.clone().unwrap_or_else(|| (missing(), None));
        let alone = alone.map(|spec| spec.limit.kind());
        match value {
            Value::Composite(_) if alone.is_some() => CallEffect::Nothing,
            Value::Plain(any) if (alone.is_some() || any.kind().stands_alone()) && alone != Some(any.kind()) => {
                CallEffect::Nothing
            }
            Value::Composite(usage) => self.take_from_composite(&call, usage, expires_at, now),
            Value::Plain(any) => {
                let mistaken = |spec: &Spec| spec.limit.kind() != any.kind() && !spec.by_policy;
                match call.specs.as_slice() {
                    [spec] if mistaken(spec) => CallEffect::Nothing,
                    _ => with_usage!(&any, usage => self.take_from_plain(&call, usage, expires_at, now)),
                }
            }
        }
    }

    fn take_from_composite(
        &mut self,
        call: &CompositeRequest,
        before: CompositeUsage,
        present: Option<u64>,
        now: Timestamp,
    ) -> CallEffect {
        let stored = StoredUsage::Composite(&before);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        if evaluation.has_too_many_components(stored, now) {
            return CallEffect::Nothing;
        }
        let writes = evaluation.changes() || evaluation.is_strike();
        let mut usage = before.clone();
        let moved = move_back(&mut usage, now);
        if writes {
            usage.charge(call, &evaluation, now);
        }
        let _answer = evaluation.answer(call, StoredUsage::Composite(&usage), now, writes);
        if writes || moved { self.changed_composite(before, usage, present, moved, now) } else { CallEffect::Nothing }
    }

    fn changed_composite(
        &mut self,
        before: CompositeUsage,
        mut usage: CompositeUsage,
        present: Option<u64>,
        moved: bool,
        now: Timestamp,
    ) -> CallEffect {
        if usage.is_unused() {
            self.value = None;
            return CallEffect::Nothing;
        }
        let at = Expiry::of(now, usage.reset(now)).after_charge(present, moved);
        let text = encode_effect(&before, &mut usage, at);
        self.value = Some((Value::Composite(usage), Some(at)));
        CallEffect::Change(Value::Composite(before), text)
    }

    fn take_from_plain<U: PlainUsage>(
        &mut self,
        call: &CompositeRequest,
        before: &U,
        present: Option<u64>,
        now: Timestamp,
    ) -> CallEffect {
        let stored = StoredUsage::plain(before);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        let writes = evaluation.changes() || evaluation.is_strike();
        let mut usage = before.clone();
        if writes && !evaluation.stays_plain(call) {
            return self.convert(before, present, now, |components| components.charge(call, &evaluation, now));
        }
        let moved = move_back(&mut usage, now);
        if writes {
            evaluation.charge_plain(call, &mut usage, now);
        }
        let _answer = evaluation.answer(call, StoredUsage::plain(&usage), now, writes);
        if !writes && !moved {
            return CallEffect::Nothing;
        }
        let reset = call.reset_of_plain(&usage, now);
        self.changed_plain(before, usage, present, reset, moved, now)
    }

    fn changed_plain<U: PlainUsage>(
        &mut self,
        before: &U,
        mut usage: U,
        present: Option<u64>,
        reset: Span,
        moved: bool,
        now: Timestamp,
    ) -> CallEffect {
        if usage.is_unused() {
            self.value = None;
            return CallEffect::Nothing;
        }
        let at = Expiry::of(now, reset).after_charge(present, moved);
        let text = encode_effect(before, &mut usage, at);
        self.value = Some((Value::Plain(usage.into_any()), Some(at)));
        CallEffect::Change(Value::Plain(before.clone().into_any()), text)
    }

    fn convert<U: PlainUsage>(
        &mut self,
        before: &U,
        present: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage),
    ) -> CallEffect {
        let (mut components, ()) = CompositeUsage::convert(&mut before.clone(), present, now, change);
        if components.is_unused() {
            self.value = None;
            return CallEffect::Nothing;
        }
        let at = Expiry::of(now, components.reset(now)).after_charge(None, false);
        let text = EncodedText::of_conversion::<U, _>(present, &mut components, at);
        CompositeUsage::check_conversion(before, &text, &components).unwrap_or_else(|error| panic!("{error}"));
        check(&components);
        self.value = Some((Value::Composite(components), Some(at)));
        CallEffect::Change(Value::Plain(before.clone().into_any()), text)
    }

    /// Runs RL.RELEASE.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) -> CallEffect {
        match self.value.clone() {
            Some((Value::Composite(before), present)) => {
                let mut usage = before.clone();
                let moved = move_back(&mut usage, now);
                let released = usage.release(&[holder], now) > 0;
                if released || moved {
                    self.changed_composite(before, usage, present, moved, now)
                } else {
                    CallEffect::Nothing
                }
            }
            Some((Value::Plain(AnyUsage::Concurrency(before, ())), present)) => {
                let mut usage = (*before).clone();
                let moved = move_back(&mut usage, now);
                if usage.release(&[holder], now) == 0 && !moved {
                    return CallEffect::Nothing;
                }
                let reset = usage.time_to_recovery(now);
                self.changed_plain(&*before, usage, present, reset, moved, now)
            }
            _ => CallEffect::Nothing,
        }
    }

    /// Runs RL.BAN.
    pub fn ban(&mut self, duration: Span, now: Timestamp) -> CallEffect {
        let (before, present) = match self.value.clone() {
            Some((Value::Plain(_), _)) if duration == Span::ZERO => return CallEffect::Nothing,
            Some((Value::Plain(any), present)) => {
                let change = |components: &mut CompositeUsage| components.ban(duration, now);
                return with_usage!(&any, usage => self.convert(usage, present, now, change));
            }
            Some((Value::Composite(usage), present)) => (usage, present),
            None => (CompositeUsage::default(), None),
        };
        if !before.can_ban(duration, now) {
            return CallEffect::Nothing;
        }
        let mut usage = before.clone();
        let moved = move_back(&mut usage, now);
        usage.ban(duration, now);
        self.changed_composite(before, usage, present, moved, now)
    }

    /// Runs RESTORE with an edited payload of `like`. The payload is rejected, or makes a key like any other.
    pub fn restore(&mut self, like: &Value, edit: impl Fn(&mut Fields), expires_at: Option<u64>) {
        fn read<U: Usage>(like: &U, edit: impl Fn(&mut Fields)) -> Option<U> {
            let mut payload = fields(like);
            edit(&mut payload);
            let usage = U::decode(&mut payload, U::VERSION).filter(|_| payload.fields.is_empty())?;
            check(&usage);
            Some(usage)
        }
        let restored = match like {
            Value::Composite(usage) => read(usage, edit).map(Value::Composite),
            Value::Plain(any) => {
                with_usage!(any, usage => read(usage, edit).map(|usage| Value::Plain(usage.into_any())))
            }
        };
        if let Some(value) = restored {
            self.value = Some((value, expires_at));
        }
    }

    /// Runs RL.EFFECT with an edited text of an effect on `before`. An accepted effect replaces the value of the key.
    pub fn apply(&mut self, before: &Value, text: &[u8]) {
        fn applied<U: Usage>(before: &U, text: &[u8]) -> Option<(U, u64)> {
            let Some(Effect::Change { version, expires_at, fields }) = Effect::decode::<U>(text) else { return None };
            let (mut checked, mut read, mut after) = (fields, fields, before.clone());
            if !before.accepts_effect(&mut checked, version) || !checked.end() {
                return None;
            }
            after.apply_effect(&mut read, version);
            check(&after);
            Some((after, expires_at)).filter(|(after, _)| !after.is_unused())
        }
        fn converted<U: PlainUsage>(before: &U, text: &[u8]) -> Option<(CompositeUsage, u64)> {
            let Some(Effect::Conversion { version, expires_at, plain_expiry, fields }) = Effect::decode::<U>(text)
            else {
                return None;
            };
            let (mut checked, mut read) = (fields, fields);
            if !CompositeUsage::accepts_conversion(before, plain_expiry, &mut checked, version) || !checked.end() {
                return None;
            }
            let after = CompositeUsage::apply_conversion(&mut before.clone(), plain_expiry, &mut read);
            check(&after);
            Some((after, expires_at)).filter(|(after, _)| !after.is_unused())
        }
        let after = match before {
            Value::Composite(usage) => applied(usage, text).map(|(usage, at)| (Value::Composite(usage), at)),
            Value::Plain(any) => with_usage!(any, usage => {
                let changed = applied(usage, text).map(|(usage, at)| (Value::Plain(usage.into_any()), at));
                changed.or_else(|| converted(usage, text).map(|(usage, at)| (Value::Composite(usage), at)))
            }),
        };
        if let Some((value, at)) = after {
            self.value = Some((value, Some(at)));
        }
    }
}
