//! The end of the charge path: a usage steps back with the clock and is changed, and its key gets its expiry.

use crate::redis::key::{ClosedKey, Key, OpenKey, ResumedKey, Writable};
use crate::redis::{Redis, guard};
use ratelimit_core::Single;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::{Span, Timestamp, Usage};

/// What a call makes of a usage, once it has been evaluated.
pub trait Apply {
    /// What the key remembers.
    type Usage: Usage;
    /// What the call is answered.
    type Answer;

    /// Makes the change. `None` if there is nothing to change. Nothing later than `now` is in the usage.
    fn apply(&self, usage: &mut Self::Usage, now: Timestamp) -> Option<Applied<Self::Answer>>;

    /// The answer of a call that changes nothing.
    fn answer(&self, usage: &Self::Usage, now: Timestamp) -> Self::Answer;

    /// How long until the usage has recovered.
    fn reset(&self, usage: &Self::Usage, now: Timestamp) -> Span;
}

/// A change that was made.
pub struct Applied<A> {
    /// What the call is answered.
    pub answer: A,
    /// How long until the usage has recovered now.
    pub reset: Span,
}

/// Makes of the usage of a key what an evaluated call makes of it, if that `changes_key`, and moves it back with the clock
/// in any case; and commits what has changed.
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

/// Moves a usage back with the clock; what its expiry goes by if nothing else is changed.
#[cold]
#[inline(never)]
fn step_back<C: Apply>(usage: &mut C::Usage, call: &C, back: Span, now: Timestamp) -> StepBack {
    let then = now.plus(back);
    let before = Expiry::of(then, call.reset(usage, then));
    usage.move_back(now);
    let after = Expiry::of(now, call.reset(usage, now));
    StepBack { now, back, recovery: usage.recovery(), before, after }
}

/// Commits a step back: the one thing that a call which changes nothing writes.
#[cold]
#[inline(never)]
fn commit_step(key: impl Writable, step: &StepBack, now: Timestamp) {
    key.commit(|present| step.expiry(present), now);
}

/// A usage that is in no key yet. Its commit says when the key that it comes into is to expire.
pub struct Unplaced<'u, U> {
    /// The usage.
    pub usage: &'u mut U,
    /// When the key is to expire, in milliseconds since the epoch, once it is known.
    pub expires_at: &'u mut Option<u64>,
}

impl<U: Usage> Writable for Unplaced<'_, U> {
    type Usage = U;

    fn usage_mut(&mut self) -> &mut U {
        self.usage
    }

    fn commit(self, expiry: impl FnOnce(Option<u64>) -> u64, _now: Timestamp) {
        *self.expires_at = Some(expiry(None));
    }
}

/// Commits an evaluated call to the key where it goes on. What others have put into the place of that key meanwhile is
/// left alone.
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

/// Where an evaluated call goes on.
pub trait Target<'r, 'a: 'r>: Sized {
    /// A key whose usage is a `U`.
    type Writable<U: Usage>: Writable<Usage = U>;

    /// The key, to change its usage. `None` if others have put something else into its place.
    fn resume<U: Usage>(self, now: Timestamp) -> Option<Self::Writable<U>>;

    /// The open key, to make something else of it.
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

/// A key that was closed, and the call.
pub struct Closed<'r, 'a> {
    /// The call.
    pub redis: &'r mut Redis<'a>,
    /// The key.
    pub key: ClosedKey,
}

impl<'r, 'a: 'r> Target<'r, 'a> for Closed<'r, 'a> {
    type Writable<U: Usage> = ResumedKey<'r, 'a, U>;

    #[inline(always)]
    fn resume<U: Usage>(self, now: Timestamp) -> Option<ResumedKey<'r, 'a, U>> {
        self.redis.resume(&self.key, now)
    }

    fn open(self) -> Option<OpenKey<'r, 'a>> {
        self.redis.open(self.key.name()).ok()
    }
}

/// Makes a composite key of a plain one, and changes that.
pub fn convert<U: Single, C: Apply<Usage = CompositeUsage>>(key: Key<U>, call: &C, now: Timestamp) -> C::Answer {
    // It gets a new expiry in any case.
    let mut expires_at = None;
    key.convert(now, |usage| commit(Unplaced { usage, expires_at: &mut expires_at }, call, true, now))
}
