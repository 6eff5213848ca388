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
        redis.stats.decided(allowed);
    }
}

/// Counts the limits of one of a call's keys. Returns `true` if the caller has to record a denial by the key: the key
/// denies the call, and the call is not a denied peek.
#[inline(always)]
pub fn count_key_and_report_denial(evaluation: &impl KeyEvaluation, allowed: bool, is_denied_peek: bool) -> bool {
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

/// Counts the limits of a call at a composite key, each with its kind and `true` if it denies the call. Also counts the
/// key itself, like [`count_limit`].
pub fn count_limits(limits: impl Iterator<Item = (UsageKind, bool)>, denies: bool, admitted: bool, creates: bool) {
    limits.for_each(|(kind, denies)| count_limit(kind, denies, admitted, false));
    count_limit(UsageKind::Limits, denies, admitted, creates);
}
