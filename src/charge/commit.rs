//! Last step of the charge path: moves the usage back if the clock did, applies the change, and sets the expiry of the
//! key.

use crate::redis::key::{ClosedKey, Key, OpenKey, ResumedKey, Writable};
use crate::redis::{Redis, guard};
use ratelimit_core::PlainUsage;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::{Span, Timestamp, Usage};

/// Change of a usage by an evaluated call.
pub trait Apply {
    /// State stored at the key.
    type Usage: Usage;
    /// Answer to the call.
    type Answer;

    /// Changes the usage, which is not ahead of `now`. Returns `None` if there is nothing to change.
    fn apply(&self, usage: &mut Self::Usage, now: Timestamp) -> Option<Applied<Self::Answer>>;

    /// Returns the answer of a call that changes nothing.
    fn answer(&self, usage: &Self::Usage, now: Timestamp) -> Self::Answer;

    /// Returns the time until the usage has recovered.
    fn reset(&self, usage: &Self::Usage, now: Timestamp) -> Span;
}

/// Change that was made.
pub struct Applied<A> {
    /// Answer to the call.
    pub answer: A,
    /// Time until the usage has recovered.
    pub reset: Span,
}

/// Commits an evaluated call: applies its change to the usage of the key if `changes_key` is `true`. In either case,
/// moves timestamps back if the clock has moved backwards.
#[inline(always)]
pub fn commit<K: Writable, C: Apply<Usage = K::Usage>>(
    mut key: K,
    call: &C,
    changes_key: bool,
    now: Timestamp,
) -> C::Answer {
    let usage = key.usage_mut();
    let back = usage.ahead(now);
    let step = if back == Span::ZERO { None } else { Some(step_back(usage, call, back, now)) };
    if changes_key {
        let applied = call.apply(usage, now);
        guard::panic_test_point();
        if let Some(Applied { answer, reset }) = applied {
            let (expiry, moved) = (Expiry::of(now, reset), step.is_some());
            key.commit(|present| expiry.after_charge(present, moved), now);
            return answer;
        }
    }
    let answer = call.answer(usage, now);
    if let Some(step) = step {
        commit_step(key, &step, now);
    }
    answer
}

/// Moves a usage back with the clock. Returns the step, from which the expiry follows if nothing else changes.
#[cold]
#[inline(never)]
fn step_back<C: Apply>(usage: &mut C::Usage, call: &C, back: Span, now: Timestamp) -> StepBack {
    let then = now.plus(back);
    let before = Expiry::of(then, call.reset(usage, then));
    usage.move_back(now);
    let after = Expiry::of(now, call.reset(usage, now));
    StepBack { now, back, recovery: usage.recovery_source(), before, after }
}

/// Commits a step back where the call itself changes nothing.
#[cold]
#[inline(never)]
fn commit_step(key: impl Writable, step: &StepBack, now: Timestamp) {
    key.commit(|present| step.expiry(present), now);
}

/// Commits an evaluated call to its key, like [`commit`]. Changes nothing if other modules have replaced the key since.
#[inline(always)]
pub fn commit_to<'r, 'a: 'r, C: Apply>(
    target: impl Target<'r, 'a>,
    call: &C,
    changes_key: bool,
    now: Timestamp,
) -> C::Answer {
    match target.resume(now) {
        Some(key) => commit(key, call, changes_key, now),
        None => call.answer(&C::Usage::default(), now),
    }
}

/// Key that an evaluated call is committed to.
pub trait Target<'r, 'a: 'r>: Sized {
    /// A key whose usage is a `U`.
    type Writable<U: Usage>: Writable<Usage = U>;

    /// Returns the key, to change its usage; `None` if other modules have replaced it.
    fn resume<U: Usage>(self, now: Timestamp) -> Option<Self::Writable<U>>;

    /// Returns the open key, to replace its value.
    fn open(self) -> Option<OpenKey<'r, 'a>>;
}

impl<'r, 'a: 'r> Target<'r, 'a> for OpenKey<'r, 'a> {
    type Writable<U: Usage> = Key<'r, 'a, U>;

    #[inline(always)]
    fn resume<U: Usage>(self, _now: Timestamp) -> Option<Key<'r, 'a, U>> {
        self.typed().ok()
    }

    fn open(self) -> Option<OpenKey<'r, 'a>> {
        Some(self)
    }
}

/// Closed key, and the call that opens it again.
pub struct Closed<'k, 'r, 'a> {
    /// Call.
    pub redis: &'r mut Redis<'a>,
    /// Key.
    pub key: &'k ClosedKey<'a>,
}

impl<'r, 'a: 'r> Target<'r, 'a> for Closed<'_, 'r, 'a> {
    type Writable<U: Usage> = ResumedKey<'r, 'a, U>;

    #[inline(always)]
    fn resume<U: Usage>(self, now: Timestamp) -> Option<ResumedKey<'r, 'a, U>> {
        self.redis.resume(self.key, now)
    }

    fn open(self) -> Option<OpenKey<'r, 'a>> {
        self.redis.open(self.key.index()).ok()
    }
}

/// Converts a plain key to a composite one, and applies the change of a call to it.
pub fn convert<U: PlainUsage, C: Apply<Usage = CompositeUsage>>(key: Key<U>, call: &C, now: Timestamp) -> C::Answer {
    // The conversion has moved the usage back with the clock.
    key.convert(now, |usage| match call.apply(usage, now) {
        Some(applied) => applied.answer,
        None => call.answer(usage, now),
    })
}
