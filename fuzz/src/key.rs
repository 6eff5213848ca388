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
    /// The key is unchanged or deleted.
    None,
    /// Value before the command, and the effect on it.
    Change(Value, EncodedText),
}

/// Returns the effect of a change, after a check that replicas can apply it and that the new state can be read. The key
/// expires at `expires_at`.
fn encode_effect<U: Usage>(before: &U, after: &mut U, expires_at: u64) -> EncodedText {
    let text = EncodedText::of_change(after, expires_at);
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

/// Moves the usage back if it is later than `now`. Returns `true` if it was.
fn move_back<U: Usage>(usage: &mut U, now: Timestamp) -> bool {
    let is_ahead = usage.is_after(now);
    if is_ahead {
        usage.move_back(now);
    }
    is_ahead
}

impl Key {
    /// Runs RL.TAKE.
    pub fn take(&mut self, request: &KeyRequest, now: Timestamp) -> CallEffect {
        let call = match request {
            KeyRequest::One(spec) => CompositeRequest::of_one(*spec),
            KeyRequest::Composite(call) => (**call).clone(),
            KeyRequest::Policy(_) => return CallEffect::None,
        };
        let sketch = call.specs.iter().find(|spec| spec.limit.kind().stands_alone());
        let new_value = || match (request, sketch) {
            (_, Some(spec)) | (KeyRequest::One(spec), _) => Value::Plain(with_limit!(spec, limit => unused_of(limit))),
            _ => Value::Composite(CompositeUsage::default()),
        };
        let (value, expires_at) = self.value.clone().unwrap_or_else(|| (new_value(), None));
        let sketch_kind = sketch.map(|spec| spec.limit.kind());
        match value {
            // Calls of the wrong type are rejected.
            Value::Composite(_) if sketch_kind.is_some() => CallEffect::None,
            Value::Plain(any)
                if (sketch_kind.is_some() || any.kind().stands_alone()) && sketch_kind != Some(any.kind()) =>
            {
                CallEffect::None
            }
            Value::Composite(usage) => self.take_on_composite(&call, usage, expires_at, now),
            Value::Plain(any) => {
                let is_wrong_type = |spec: &Spec| spec.limit.kind() != any.kind() && !spec.by_policy;
                match call.specs.as_slice() {
                    [spec] if is_wrong_type(spec) => CallEffect::None,
                    _ => with_usage!(&any, usage => self.take_on_plain(&call, usage, expires_at, now)),
                }
            }
        }
    }

    fn take_on_composite(
        &mut self,
        call: &CompositeRequest,
        before: CompositeUsage,
        present_expiry: Option<u64>,
        now: Timestamp,
    ) -> CallEffect {
        let stored = StoredUsage::Composite(&before);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        if evaluation.has_too_many_components(stored, now) {
            return CallEffect::None;
        }
        let writes = evaluation.changes() || evaluation.is_strike();
        let mut usage = before.clone();
        let was_moved_back = move_back(&mut usage, now);
        if writes {
            usage.charge(call, &evaluation, now);
        }
        let _answer = evaluation.answer(call, StoredUsage::Composite(&usage), now, writes);
        if writes || was_moved_back {
            self.store_composite(before, usage, present_expiry, was_moved_back, now)
        } else {
            CallEffect::None
        }
    }

    /// Stores the changed value of a composite key. `was_moved_back` is `true` if the clock moved backwards, and the
    /// value with it.
    fn store_composite(
        &mut self,
        before: CompositeUsage,
        mut usage: CompositeUsage,
        present_expiry: Option<u64>,
        was_moved_back: bool,
        now: Timestamp,
    ) -> CallEffect {
        if usage.is_unused() {
            self.value = None;
            return CallEffect::None;
        }
        let at = Expiry::of(now, usage.reset(now)).after_charge(present_expiry, was_moved_back);
        let text = encode_effect(&before, &mut usage, at);
        self.value = Some((Value::Composite(usage), Some(at)));
        CallEffect::Change(Value::Composite(before), text)
    }

    fn take_on_plain<U: PlainUsage>(
        &mut self,
        call: &CompositeRequest,
        before: &U,
        present_expiry: Option<u64>,
        now: Timestamp,
    ) -> CallEffect {
        let stored = StoredUsage::plain(before);
        let evaluation = CompositeEvaluation::at(call, stored, now);
        let writes = evaluation.changes() || evaluation.is_strike();
        let mut usage = before.clone();
        if writes && !evaluation.stays_plain(call) {
            return self.convert(before, present_expiry, now, |components| components.charge(call, &evaluation, now));
        }
        let was_moved_back = move_back(&mut usage, now);
        if writes {
            evaluation.charge_plain(call, &mut usage, now);
        }
        let _answer = evaluation.answer(call, StoredUsage::plain(&usage), now, writes);
        if !writes && !was_moved_back {
            return CallEffect::None;
        }
        let reset = call.reset_of_plain(&usage, now);
        self.store_plain(before, usage, present_expiry, reset, was_moved_back, now)
    }

    /// Stores the changed value of a plain key. `was_moved_back` is `true` if the clock moved backwards, and the value
    /// with it.
    fn store_plain<U: PlainUsage>(
        &mut self,
        before: &U,
        mut usage: U,
        present_expiry: Option<u64>,
        reset: Span,
        was_moved_back: bool,
        now: Timestamp,
    ) -> CallEffect {
        if usage.is_unused() {
            self.value = None;
            return CallEffect::None;
        }
        let at = Expiry::of(now, reset).after_charge(present_expiry, was_moved_back);
        let text = encode_effect(before, &mut usage, at);
        self.value = Some((Value::Plain(usage.into_any()), Some(at)));
        CallEffect::Change(Value::Plain(before.clone().into_any()), text)
    }

    /// Converts a plain key to a composite one with the change of a call.
    fn convert<U: PlainUsage>(
        &mut self,
        before: &U,
        present_expiry: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage),
    ) -> CallEffect {
        let (mut components, ()) = CompositeUsage::convert(&mut before.clone(), present_expiry, now, change);
        if components.is_unused() {
            self.value = None;
            return CallEffect::None;
        }
        let at = Expiry::of(now, components.reset(now)).after_charge(None, false);
        let text = EncodedText::of_conversion::<U, _>(present_expiry, &mut components, at);
        CompositeUsage::check_conversion(before, &text, &components).unwrap_or_else(|error| panic!("{error}"));
        check(&components);
        self.value = Some((Value::Composite(components), Some(at)));
        CallEffect::Change(Value::Plain(before.clone().into_any()), text)
    }

    /// Runs RL.RELEASE.
    pub fn release(&mut self, holder: &[u8], now: Timestamp) -> CallEffect {
        match self.value.clone() {
            Some((Value::Composite(before), present_expiry)) => {
                let mut usage = before.clone();
                let was_moved_back = move_back(&mut usage, now);
                let released = usage.release(&[holder], now) > 0;
                if released || was_moved_back {
                    self.store_composite(before, usage, present_expiry, was_moved_back, now)
                } else {
                    CallEffect::None
                }
            }
            Some((Value::Plain(AnyUsage::Concurrency(before, ())), present_expiry)) => {
                let mut usage = (*before).clone();
                let was_moved_back = move_back(&mut usage, now);
                if usage.release(&[holder], now) == 0 && !was_moved_back {
                    return CallEffect::None;
                }
                let reset = usage.time_to_recovery(now);
                self.store_plain(&*before, usage, present_expiry, reset, was_moved_back, now)
            }
            _ => CallEffect::None,
        }
    }

    /// Runs RL.BAN.
    pub fn ban(&mut self, duration: Span, now: Timestamp) -> CallEffect {
        let (before, present_expiry) = match self.value.clone() {
            Some((Value::Plain(_), _)) if duration == Span::ZERO => return CallEffect::None,
            Some((Value::Plain(any), present_expiry)) => {
                let change = |components: &mut CompositeUsage| components.ban(duration, now);
                return with_usage!(&any, usage => self.convert(usage, present_expiry, now, change));
            }
            Some((Value::Composite(usage), present_expiry)) => (usage, present_expiry),
            None => (CompositeUsage::default(), None),
        };
        if !before.is_changed_by_ban(duration, now) {
            return CallEffect::None;
        }
        let mut usage = before.clone();
        let was_moved_back = move_back(&mut usage, now);
        usage.ban(duration, now);
        self.store_composite(before, usage, present_expiry, was_moved_back, now)
    }

    /// Runs RESTORE with an edited payload of `source`. A payload that is not rejected becomes the value of the key.
    pub fn restore(&mut self, source: &Value, edit: impl Fn(&mut Fields), expires_at: Option<u64>) {
        fn decode_edited<U: Usage>(source: &U, edit: impl Fn(&mut Fields)) -> Option<U> {
            let mut payload = fields(source);
            edit(&mut payload);
            let usage = U::decode(&mut payload, U::VERSION).filter(|_| payload.fields.is_empty())?;
            check(&usage);
            Some(usage)
        }
        let restored = match source {
            Value::Composite(usage) => decode_edited(usage, edit).map(Value::Composite),
            Value::Plain(any) => {
                with_usage!(any, usage => decode_edited(usage, edit).map(|usage| Value::Plain(usage.into_any())))
            }
        };
        if let Some(value) = restored {
            self.value = Some((value, expires_at));
        }
    }

    /// Runs RL.EFFECT on `before` with the edited text of an effect. The result of an accepted effect becomes the value
    /// of the key.
    pub fn apply(&mut self, before: &Value, text: &[u8]) {
        fn apply_change<U: Usage>(before: &U, text: &[u8]) -> Option<(U, u64)> {
            let Some(Effect::Change { version, expires_at, fields }) = Effect::decode::<U>(text) else { return None };
            let (mut checked_fields, mut applied_fields, mut after) = (fields, fields, before.clone());
            if !before.accepts_effect(&mut checked_fields, version) || !checked_fields.is_at_end() {
                return None;
            }
            after.apply_effect(&mut applied_fields, version);
            check(&after);
            Some((after, expires_at)).filter(|(after, _)| !after.is_unused())
        }
        fn apply_conversion<U: PlainUsage>(before: &U, text: &[u8]) -> Option<(CompositeUsage, u64)> {
            let Some(Effect::Conversion { version, expires_at, plain_expiry, fields }) = Effect::decode::<U>(text)
            else {
                return None;
            };
            let (mut checked_fields, mut applied_fields) = (fields, fields);
            if !CompositeUsage::accepts_conversion(before, plain_expiry, &mut checked_fields, version)
                || !checked_fields.is_at_end()
            {
                return None;
            }
            let after = CompositeUsage::apply_conversion(&mut before.clone(), plain_expiry, &mut applied_fields);
            check(&after);
            Some((after, expires_at)).filter(|(after, _)| !after.is_unused())
        }
        let after = match before {
            Value::Composite(usage) => apply_change(usage, text).map(|(usage, at)| (Value::Composite(usage), at)),
            Value::Plain(any) => with_usage!(any, usage => {
                let changed = apply_change(usage, text).map(|(usage, at)| (Value::Plain(usage.into_any()), at));
                changed.or_else(|| apply_conversion(usage, text).map(|(usage, at)| (Value::Composite(usage), at)))
            }),
        };
        if let Some((value, at)) = after {
            self.value = Some((value, Some(at)));
        }
    }
}
