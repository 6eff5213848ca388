//! Denials that this process remembers. No I/O.
//!
//! The server's `wait` is exact, so until it is over the same call would be denied again, and is answered here. What
//! others take only makes the wait longer. What they give back, a reset or a ban that is lifted is heard by client
//! tracking (`ear.rs`). Where nothing is heard, a denial is remembered for a second at most. So is that of a sketch by
//! a policy, whose numbers can change.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::decision::{Decision, Source};

/// Maximum number of keys that are remembered. While all of them are denied, other keys are asked of the server.
const KEYS: usize = 10_000;
/// Pause between two searches for keys whose denials are over.
const SWEEP: Duration = Duration::from_millis(100);
/// Of each key so many calls: what was denied first is forgotten.
const CALLS: usize = 8;

/// Without a word from the server that nothing has changed.
const UNHEARD: Duration = Duration::from_secs(1);

/// A wait is told in whole milliseconds, rounded up.
const ROUNDED: Duration = Duration::from_millis(1);

#[derive(Clone)]
pub(crate) struct Denial {
    /// All that decides what the server answers for its key.
    words: Vec<String>,
    decision: Decision,
    /// Its wait began no later.
    heard_at: Instant,
    until: Instant,
}

impl Denial {
    pub(crate) fn new(words: Vec<String>, decision: Decision, sent_at: Instant, heard_at: Instant) -> Self {
        let until = until(&decision, sent_at, UNHEARD);
        Self { words, decision, heard_at, until }
    }

    /// Whether a denial lasts longer than it is remembered unheard.
    pub(crate) fn is_long(wait: Duration) -> bool {
        wait > UNHEARD
    }
}

#[derive(Default)]
pub(crate) struct Denials {
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    by_key: HashMap<Vec<u8>, Vec<Denial>>,
    /// Instant of the last search for keys whose denials are over.
    swept_at: Option<Instant>,
}

impl Remembered {
    /// Makes room for another key. Returns `false` if all keys are denied, or were a moment ago.
    fn has_room(&mut self, now: Instant) -> bool {
        if self.by_key.len() < KEYS {
            return true;
        }
        if self.swept_at.is_none_or(|swept_at| now.saturating_duration_since(swept_at) >= SWEEP) {
            self.swept_at = Some(now);
            self.by_key.retain(|_, denials| denials.iter().any(|one| now < one.until));
        }
        self.by_key.len() < KEYS
    }
}

impl Denials {
    /// What the server would answer now, if it is known.
    pub(crate) fn find(&self, key: &[u8], words: &[String], now: Instant) -> Option<Decision> {
        let remembered = self.lock();
        let denial = remembered.by_key.get(key)?.iter().find(|one| now < one.until && one.words == words)?;
        Some(left(&denial.decision, now.saturating_duration_since(denial.heard_at)))
    }

    /// Remembers a denial. Returns `true` if the same call on the key was denied before, so that it is worth listening for
    /// changes of the key: most keys are denied once.
    pub(crate) fn remember(&self, key: &[u8], denial: Denial) -> bool {
        let now = denial.heard_at;
        if denial.decision.source != Source::Server || denial.until <= now {
            return false;
        }
        let mut remembered = self.lock();
        if !remembered.by_key.contains_key(key) && !remembered.has_room(now) {
            return false;
        }
        let known = remembered.by_key.entry(key.to_vec()).or_default();
        if let Some(same) = known.iter_mut().find(|one| one.words == denial.words) {
            let is_over = same.until <= now;
            if is_over {
                *same = denial;
            }
            return is_over;
        }
        if known.len() == CALLS {
            known.remove(0);
        }
        known.push(denial);
        false
    }

    /// It stands until something is heard. Unless something was, it is remembered for all its wait.
    pub(crate) fn extend(&self, key: &[u8], words: &[String], said: Decision, sent_at: Instant, heard_at: Instant) {
        if said.allowed {
            self.forget(key);
            return;
        }
        let until = until(&said, sent_at, Duration::MAX);
        if let Some(denial) =
            self.lock().by_key.get_mut(key).and_then(|all| all.iter_mut().find(|one| one.words == words))
        {
            *denial = Denial { words: words.to_vec(), decision: said, heard_at, until };
        }
    }

    /// What the key would answer may have changed.
    pub(crate) fn forget(&self, key: &[u8]) {
        self.lock().by_key.remove(key);
    }

    pub(crate) fn forget_all(&self) {
        self.lock().by_key.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.remembered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until when a denial holds that was asked at that time, and at most for so long.
fn until(said: &Decision, sent_at: Instant, most: Duration) -> Instant {
    // One that lasts for ever is asked again each second, as what it says of the rest recovers meanwhile.
    let wait = said.wait.unwrap_or(UNHEARD).min(most).saturating_sub(ROUNDED);
    sent_at.checked_add(wait).unwrap_or(sent_at)
}

/// The instant this much later.
fn left(said: &Decision, passed: Duration) -> Decision {
    let less = |time: Option<Duration>| time.map(|time| time.saturating_sub(passed));
    Decision {
        wait: less(said.wait),
        reset: less(said.reset),
        each: said.each.iter().map(|one| left(one, passed)).collect(),
        is_remembered: true,
        ..said.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"key";

    fn denied(wait: Duration) -> Decision {
        let words = [0, 5, 0, i64::try_from(wait.as_millis()).unwrap(), 60_000].map(redis::Value::Int);
        Decision::read(&redis::Value::Array(words.to_vec()), None).unwrap()
    }

    fn words(limit: &str) -> Vec<String> {
        vec!["RL.TAKE".to_owned(), "key".to_owned(), limit.to_owned()]
    }

    #[test]
    fn a_denial_is_answered_until_its_wait_is_over() {
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
    fn unheard_it_is_a_second_at_most() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let long = Duration::from_secs(3600);
        denials.remember(KEY, Denial::new(words("a"), denied(long), start, start));
        assert!(denials.find(KEY, &words("a"), at(998)).is_some());
        assert!(denials.find(KEY, &words("a"), at(1000)).is_none());
        // The second time it is worth hearing; then it is remembered for as long as it lasts, until something changes.
        assert!(denials.remember(KEY, Denial::new(words("a"), denied(long), at(1000), at(1000))));
        denials.extend(KEY, &words("a"), denied(long), at(1100), at(1100));
        assert!(denials.find(KEY, &words("a"), at(3_000_000)).is_some());
        denials.forget(KEY);
        assert!(denials.find(KEY, &words("a"), at(1200)).is_none());
        // What was heard first is not taken back by what was asked before.
        denials.extend(KEY, &words("a"), denied(long), at(1100), at(1200));
        assert!(denials.find(KEY, &words("a"), at(1200)).is_none());
    }

    #[test]
    fn it_is_bounded() {
        let (denials, start) = (Denials::default(), Instant::now());
        for call in 0..100 {
            let denial = Denial::new(words(&call.to_string()), denied(UNHEARD), start, start);
            denials.remember(KEY, denial);
        }
        assert_eq!(denials.lock().by_key[KEY].len(), CALLS);
        for key in 0..2 * KEYS {
            denials.remember(key.to_string().as_bytes(), Denial::new(words("a"), denied(UNHEARD), start, start));
        }
        assert!(denials.lock().by_key.len() <= KEYS);
    }

    #[test]
    fn full_memory_keeps_what_it_has_until_it_is_over() {
        let (denials, start) = (Denials::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let remember = |key: usize, now| {
            denials.remember(key.to_string().as_bytes(), Denial::new(words("a"), denied(UNHEARD), now, now));
        };
        let known = |key: usize, now| denials.find(key.to_string().as_bytes(), &words("a"), now).is_some();
        // 12,000 denied keys in turn: those that are remembered stay so, and the rest is asked of the server.
        (0..12_000).for_each(|key| remember(key, start));
        assert_eq!((0..12_000).filter(|key| known(*key, at(500))).count(), KEYS);
        (10_000..12_000).for_each(|key| remember(key, at(500)));
        assert_eq!((0..12_000).filter(|key| known(*key, at(500))).count(), KEYS);
        // Once they are over there is room.
        remember(11_999, at(1100));
        assert!(known(11_999, at(1100)) && denials.lock().by_key.len() == 1);
    }
}
