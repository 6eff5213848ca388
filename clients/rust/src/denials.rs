//! Cache of denials in this process. No I/O.
//!
//! The server's `wait` is exact: until it is over the same call would be denied again, so this process answers it.
//! Other charges only make the wait longer. Units given back, a reset or a lifted ban shorten it; client tracking
//! (`tracking.rs`) reports these. Without tracking, a denial is remembered for a second at most. Denials by sketches
//! are never tracked.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decision::{Decision, Source};

/// Maximum number of remembered keys. While all of them are denied, calls on other keys are sent to the server.
const MAX_KEYS: usize = 10_000;
/// Pause between two searches for expired denials.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of different calls with a remembered denial per key. A further denial evicts the oldest.
const MAX_CALLS_PER_KEY: usize = 8;

/// Longest time for which a denial of a key without tracking is remembered.
const UNTRACKED_LIFETIME: Duration = Duration::from_secs(1);

/// Largest rounding error of a wait, which the server rounds up to whole milliseconds.
const ROUNDING_ERROR: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct Denial {
    /// Words of the call, which determine the server's reply for the key.
    words: Vec<String>,
    decision: Decision,
    /// Time of the reply: the wait began no later.
    received_at: Instant,
    expires_at: Instant,
}

impl Denial {
    pub(crate) fn new(words: Vec<String>, decision: Decision, sent_at: Instant, received_at: Instant) -> Self {
        let expires_at = denial_end(&decision, sent_at, UNTRACKED_LIFETIME);
        Self { words, decision, received_at, expires_at }
    }

    /// Returns `true` if `wait` is longer than a denial is remembered without tracking.
    pub(crate) fn is_long(wait: Duration) -> bool {
        wait > UNTRACKED_LIFETIME
    }
}

#[derive(Default)]
pub(crate) struct Denials {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    by_key: HashMap<Vec<u8>, Vec<Denial>>,
    /// Time of the last search for expired denials.
    swept_at: Option<Instant>,
}

impl State {
    /// Returns `true` if there is room for another key. If necessary, removes expired denials, at most once in
    /// `SWEEP_INTERVAL`.
    fn make_room(&mut self, now: Instant) -> bool {
        if self.by_key.len() < MAX_KEYS {
            return true;
        }
        if self.swept_at.is_none_or(|swept_at| now.saturating_duration_since(swept_at) >= SWEEP_INTERVAL) {
            self.swept_at = Some(now);
            self.by_key.retain(|_, denials| denials.iter().any(|denial| now < denial.expires_at));
        }
        self.by_key.len() < MAX_KEYS
    }
}

impl Denials {
    /// Returns the remembered denial of a call, as the server would report it now.
    pub(crate) fn find(&self, key: &[u8], words: &[String], now: Instant) -> Option<Decision> {
        let state = self.lock();
        let denial = state.by_key.get(key)?.iter().find(|denial| now < denial.expires_at && denial.words == words)?;
        Some(aged(&denial.decision, now.saturating_duration_since(denial.received_at)))
    }

    /// Remembers a denial. Returns `true` if it replaces an expired denial of the same call, so that tracking the key
    /// is worthwhile: most keys are denied only once.
    pub(crate) fn remember(&self, key: &[u8], denial: Denial) -> bool {
        let now = denial.received_at;
        if denial.decision.source != Source::Server || denial.expires_at <= now {
            return false;
        }
        let mut state = self.lock();
        if !state.by_key.contains_key(key) && !state.make_room(now) {
            return false;
        }
        let denials_of_key = state.by_key.entry(key.to_vec()).or_default();
        if let Some(existing) = denials_of_key.iter_mut().find(|known| known.words == denial.words) {
            let has_expired = existing.expires_at <= now;
            if has_expired {
                *existing = denial;
            }
            return has_expired;
        }
        if denials_of_key.len() == MAX_CALLS_PER_KEY {
            denials_of_key.remove(0);
        }
        denials_of_key.push(denial);
        false
    }

    /// Applies the reply to a peek at a tracked key: remembers its denial for the entire wait, unless the key has
    /// changed since the denial was remembered.
    pub(crate) fn extend(
        &self,
        key: &[u8],
        words: &[String],
        decision: Decision,
        sent_at: Instant,
        received_at: Instant,
    ) {
        if decision.allowed {
            self.forget(key);
            return;
        }
        let expires_at = denial_end(&decision, sent_at, Duration::MAX);
        if let Some(denial) =
            self.lock().by_key.get_mut(key).and_then(|all| all.iter_mut().find(|one| one.words == words))
        {
            *denial = Denial { words: words.to_vec(), decision, received_at, expires_at };
        }
    }

    /// Removes the denials of a key, whose usage may have changed.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.lock().by_key.remove(key);
    }

    pub(crate) fn forget_all(&self) {
        self.lock().by_key.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the end of a denial of a call that was sent at `sent_at`, at most `max_lifetime` later.
fn denial_end(decision: &Decision, sent_at: Instant, max_lifetime: Duration) -> Instant {
    // A denial of a call that never passes is refreshed each second, because the usage in it recovers meanwhile.
    let wait = decision.wait.unwrap_or(UNTRACKED_LIFETIME).min(max_lifetime).saturating_sub(ROUNDING_ERROR);
    sent_at.checked_add(wait).unwrap_or(sent_at)
}

/// Returns the decision as it is `passed` later: with shorter times.
fn aged(decision: &Decision, passed: Duration) -> Decision {
    let reduced = |time: Option<Duration>| time.map(|time| time.saturating_sub(passed));
    Decision {
        wait: reduced(decision.wait),
        reset: reduced(decision.reset),
        each: decision.each.iter().map(|decision| aged(decision, passed)).collect(),
        is_remembered: true,
        ..decision.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"key";

    fn denied(wait: Duration) -> Decision {
        let words = [0, 5, 0, i64::try_from(wait.as_millis()).unwrap(), 60_000].map(redis::Value::Int);
        Decision::decode(&redis::Value::Array(words.to_vec()), None).unwrap()
    }

    fn words(limit: &str) -> Vec<String> {
        vec!["RL.TAKE".to_owned(), "key".to_owned(), limit.to_owned()]
    }

    #[test]
    fn denial_is_answered_until_its_wait_is_over() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let wait = Duration::from_millis(400);
        assert!(!denials.remember(KEY, Denial::new(words("a"), denied(wait), start, at(10))));
        let found = denials.find(KEY, &words("a"), at(110)).unwrap();
        assert!(!found.allowed && found.is_remembered);
        assert_eq!(found.wait, Some(Duration::from_millis(300)));
        assert_eq!(found.reset, Some(Duration::from_millis(59_900)));
        assert!(denials.find(KEY, &words("b"), at(110)).is_none());
        assert!(denials.find(b"other", &words("a"), at(110)).is_none());
        assert!(denials.find(KEY, &words("a"), at(398)).is_some());
        assert!(denials.find(KEY, &words("a"), at(399)).is_none());
    }

    #[test]
    fn denial_without_tracking_lasts_a_second() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let long = Duration::from_secs(3600);
        denials.remember(KEY, Denial::new(words("a"), denied(long), start, start));
        assert!(denials.find(KEY, &words("a"), at(998)).is_some());
        assert!(denials.find(KEY, &words("a"), at(1000)).is_none());
        // The second denial is worth tracking; then it is remembered for its entire wait, until the key changes.
        assert!(denials.remember(KEY, Denial::new(words("a"), denied(long), at(1000), at(1000))));
        denials.extend(KEY, &words("a"), denied(long), at(1100), at(1100));
        assert!(denials.find(KEY, &words("a"), at(3_000_000)).is_some());
        denials.forget(KEY);
        assert!(denials.find(KEY, &words("a"), at(1200)).is_none());
        // The reply to a peek is ignored after the key has changed.
        denials.extend(KEY, &words("a"), denied(long), at(1100), at(1200));
        assert!(denials.find(KEY, &words("a"), at(1200)).is_none());
    }

    #[test]
    fn calls_per_key_are_bounded() {
        let (denials, start) = (Denials::default(), Instant::now());
        for call in 0..100 {
            let denial = Denial::new(words(&call.to_string()), denied(UNTRACKED_LIFETIME), start, start);
            denials.remember(KEY, denial);
        }
        assert_eq!(denials.lock().by_key[KEY].len(), MAX_CALLS_PER_KEY);
        for key in 0..2 * MAX_KEYS {
            denials.remember(
                key.to_string().as_bytes(),
                Denial::new(words("a"), denied(UNTRACKED_LIFETIME), start, start),
            );
        }
        assert!(denials.lock().by_key.len() <= MAX_KEYS);
    }

    #[test]
    fn full_cache_keeps_denials_until_they_expire() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let remember = |key: usize, now| {
            denials.remember(key.to_string().as_bytes(), Denial::new(words("a"), denied(UNTRACKED_LIFETIME), now, now));
        };
        let is_remembered = |key: usize, now| denials.find(key.to_string().as_bytes(), &words("a"), now).is_some();
        // 12,000 denied keys in turn: remembered ones stay so, and the others are sent to the server.
        (0..12_000).for_each(|key| remember(key, start));
        assert_eq!((0..12_000).filter(|key| is_remembered(*key, at(500))).count(), MAX_KEYS);
        (10_000..12_000).for_each(|key| remember(key, at(500)));
        assert_eq!((0..12_000).filter(|key| is_remembered(*key, at(500))).count(), MAX_KEYS);
        // After the denials have expired there is room.
        remember(11_999, at(1100));
        assert!(is_remembered(11_999, at(1100)) && denials.lock().by_key.len() == 1);
    }
}
