//! Steps of the charge path that follow the evaluation, whatever its form: checks of room and memory, counting, and the
//! commit, which moves the usage back if the clock did, applies the change, and sets the expiry of the key.

use crate::redis::key::{ClosedKey, Key, OpenKey, ResumedKey, Writable};
use crate::redis::{Redis, guard};
use crate::server::{settings, stats};
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::{Expiry, StepBack};
use ratelimit_core::wire::error::Error;
use ratelimit_core::{PlainUsage, Span, Timestamp, Usage, UsageKind};

/// Evaluation of a request at a key, of any form.
pub trait KeyEvaluation {
    /// Returns `true` if this key denies the call. Then no key of the call is charged.
    fn denies(&self) -> bool;

    /// Returns `true` if the limits of this key grant the call.
    #[inline(always)]
    fn allows(&self) -> bool {
        !self.denies()
    }

    /// Returns `true` if the key has a record of the call's idempotency key.
    fn has_record(&self) -> bool {
        false
    }

    /// Checks that the charge does not exceed the maximum number of entries, idempotency keys and components.
    ///
    /// # Errors
    /// Returns an error that names the exceeded maximum.
    fn check_room(&self) -> Result<(), Error>;

    /// Returns `true` if the charge creates a key, a component or an entry.
    fn grows(&self) -> bool;

    /// Returns `true` if the commit changes the key. `allowed` is `true` if the call as a whole is granted; a denied
    /// call may still add a strike.
    fn changes_key(&self, allowed: bool) -> bool;

    /// Counts the limits of this key, by kind. `allowed` is `true` if the call as a whole is granted.
    fn count(&self, allowed: bool);
}

/// Returns an error if one of the keys has no room for the call, or there is no memory for it.
#[inline(always)]
pub fn check_room_and_memory<'e, E: KeyEvaluation + 'e>(
    redis: &Redis,
    evaluations: impl Iterator<Item = &'e E>,
) -> Result<(), Error> {
    let mut grows = false;
    for evaluation in evaluations {
        evaluation.check_room()?;
        grows |= evaluation.grows();
    }
    reject_growth(redis, grows)
}

/// Returns an error if the call would create a key, a component or an entry while the server is out of memory. Other
/// calls are still accepted.
#[inline(always)]
pub fn reject_growth(redis: &Redis, grows: bool) -> Result<(), Error> {
    if grows && redis.out_of_memory() { Err(Error::OutOfMemory) } else { Ok(()) }
}

/// Returns an error if the number of entries exceeds the maximum per key.
#[inline(always)]
pub fn check_entries(kind: UsageKind, entries: usize) -> Result<(), Error> {
    match settings::max_entries(kind) {
        Some((max, setting)) if entries > max => Err(Error::TooManyEntries { max, setting }),
        _ => Ok(()),
    }
}

/// Counts a call, as granted if `allowed` is `true` and as denied otherwise. A denied peek is not counted.
#[inline(always)]
pub fn count_call(redis: &Redis, allowed: bool, is_denied_peek: bool) {
    if !is_denied_peek {
        redis.stats.count_decision(allowed);
    }
}

/// Counts the limits of one of a call's keys. Returns `true` if the caller has to record a denial by the key: the key
/// denies the call, and the call is not a denied peek.
#[inline(always)]
pub fn count_key(evaluation: &impl KeyEvaluation, allowed: bool, is_denied_peek: bool) -> bool {
    let denies = evaluation.denies();
    if denies && is_denied_peek {
        return false;
    }
    evaluation.count(allowed);
    denies
}

/// Counts a limit of a call, as denied if `denies` is `true`, otherwise as admitted if `admitted` is `true`. `creates`
/// is `true` if an admitted call creates the key.
#[inline(always)]
pub fn count_limit(kind: UsageKind, denies: bool, admitted: bool, creates: bool) {
    if let Some(stats) = stats::of_kind(kind) {
        if denies {
            stats.denied.count();
        } else if admitted {
            stats.admitted.count();
            if creates {
                stats.keys_created.count();
            }
        }
    }
}

/// Counts the limits of a call at a composite key: `limits` has the kind of each, and `true` if it denies the call.
/// Also counts the key itself, like [`count_limit`].
pub fn count_limits(limits: impl Iterator<Item = (UsageKind, bool)>, denies: bool, admitted: bool, creates: bool) {
    limits.for_each(|(kind, denies)| count_limit(kind, denies, admitted, false));
    count_limit(UsageKind::Limits, denies, admitted, creates);
}

/// Change of a usage by an evaluated call.
pub trait Apply {
    /// State stored at the key.
    type Usage: Usage;
    /// Answer to the call.
    type Answer;

    /// Changes the usage, none of whose timestamps is later than `now`. Returns `None` if there is nothing to change.
    fn apply(&self, usage: &mut Self::Usage, now: Timestamp) -> Option<Applied<Self::Answer>>;

    /// Returns the answer of a call that changes nothing.
    fn answer(&self, usage: &Self::Usage, now: Timestamp) -> Self::Answer;

    /// Returns the time until the usage has recovered.
    fn reset(&self, usage: &Self::Usage, now: Timestamp) -> Span;
}

/// Result of an applied change.
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
            key.commit(|current| expiry.after_charge(current, moved), now);
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
fn step_back<C: Apply>(usage: &mut C::Usage, call: &C, moved_back: Span, now: Timestamp) -> StepBack {
    let clock_before = now.plus(moved_back);
    let range_before = Expiry::of(clock_before, call.reset(usage, clock_before));
    usage.move_back(now);
    let range_after = Expiry::of(now, call.reset(usage, now));
    StepBack { now, moved_back, recovery: usage.recovery_source(), range_before, range_after }
}

/// Commits a step back with the clock, for a call that itself changes nothing.
#[cold]
#[inline(never)]
fn commit_step(key: impl Writable, step: &StepBack, now: Timestamp) {
    key.commit(|current| step.expiry(current), now);
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

/// Key to which an evaluated call is committed: still open, or closed since.
pub trait Target<'r, 'a: 'r>: Sized {
    /// Key whose usage is a `U`.
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
pub struct ClosedTarget<'k, 'r, 'a> {
    /// Call that has closed the key.
    pub redis: &'r mut Redis<'a>,
    /// Closed key.
    pub key: &'k ClosedKey<'a>,
}

impl<'r, 'a: 'r> Target<'r, 'a> for ClosedTarget<'_, 'r, 'a> {
    type Writable<U: Usage> = ResumedKey<'r, 'a, U>;

    #[inline(always)]
    fn resume<U: Usage>(self, now: Timestamp) -> Option<ResumedKey<'r, 'a, U>> {
        self.redis.resume(self.key, now)
    }

    fn open(self) -> Option<OpenKey<'r, 'a>> {
        self.redis.open(self.key.index).ok()
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
