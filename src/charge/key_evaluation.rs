//! Steps between evaluation and commit that all forms of evaluation share: checks of room and memory, and counting.

use crate::redis::Redis;
use crate::server::{settings, stats};
use ratelimit_core::UsageKind;
use ratelimit_core::wire::error::Error;

/// Evaluation of a request at a key, of any form.
pub trait KeyEvaluation {
    /// Returns `true` if this key denies the call. Then no key of the call is charged.
    fn denies(&self) -> bool;

    /// Returns `true` if the limits of this key grant the call.
    #[inline(always)]
    fn allows(&self) -> bool {
        !self.denies()
    }

    /// Returns `true` if the key has recorded the idempotency key of a call that settles it.
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

    /// Returns `true` if the commit changes the key. `allowed` is the outcome of the whole call; a denied call may be a
    /// strike.
    fn changes_key(&self, allowed: bool) -> bool;

    /// Counts the limits. `allowed` is the outcome of the whole call.
    fn count(&self, allowed: bool);
}

/// Returns an error if one of the keys has no room for the call, or there is no memory for it.
#[inline(always)]
pub fn check<'e, E: KeyEvaluation + 'e>(redis: &Redis, evaluations: impl Iterator<Item = &'e E>) -> Result<(), Error> {
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

/// Counts a call that as a whole is `allowed`. A call that only `peeks` is not counted as denied.
#[inline(always)]
pub fn count_call(redis: &Redis, allowed: bool, peeks: bool) {
    if allowed || !peeks {
        redis.stats.decided(allowed);
    }
}

/// Counts the limits of one of a call's keys. Returns `true` if the key denies the call.
#[inline(always)]
pub fn count_key(evaluation: &impl KeyEvaluation, allowed: bool, peeks: bool) -> bool {
    let denies = evaluation.denies();
    if denies && peeks {
        return false;
    }
    evaluation.count(allowed);
    denies
}

/// Counts a limit of a call that is `admitted` and that may create the key.
#[inline(always)]
pub fn count_limit(kind: UsageKind, denies: bool, admitted: bool, creates: bool) {
    if let Some(stats) = stats::of(kind) {
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

/// Counts limits, each with its kind and whether it denies, and the composite key of a call that is denied by them or
/// is `admitted`, and that may create the key.
pub fn count_limits(limits: impl Iterator<Item = (UsageKind, bool)>, denies: bool, admitted: bool, creates: bool) {
    limits.for_each(|(kind, denies)| count_limit(kind, denies, admitted, false));
    count_limit(UsageKind::Limits, denies, admitted, creates);
}
