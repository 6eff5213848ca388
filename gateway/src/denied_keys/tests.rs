use super::{DeniedKeys, MAX_DURATION, MAX_KEYS, MIN_DURATION, PURGE_INTERVAL, Peek, SentCall};
use crate::call::{Call, CallDecision, Operation, Rule};
use crate::charge::ChargingMode;
use crate::limit::parse_limits;
use ratelimit_core::Amount;
use std::time::Duration;
use tokio::time::Instant;

const LIMITS: &str = "FIXED 10 1m";

fn amount(units: u64) -> Amount {
    Amount::from_millionths(units * 1_000_000).unwrap()
}

fn take(key: &str, cost: u64) -> Call {
    Call {
        key: key.into(),
        rule: Rule::Policies(vec!["p".to_owned()]),
        operation: Operation::Take(amount(cost)),
        id: None,
        id_lifetime: String::new(),
        charge: ChargingMode::AllOrNone,
    }
}

fn denial(wait_ms: i64) -> CallDecision {
    CallDecision { allowed: false, wait_ms, limit_decisions: vec![], policy: None, version: None }
}

/// Denied keys with a clock that the test advances.
struct Memory {
    keys: DeniedKeys,
    now: Instant,
}

impl Memory {
    fn new() -> Memory {
        Memory { keys: DeniedKeys::default(), now: Instant::now() }
    }

    fn advance(&mut self, duration: Duration) {
        self.now += duration;
    }

    /// Records a denial of the call, with this wait, under these limits.
    fn record_under(&self, limits: &str, call: &Call, wait_ms: i64) -> Option<Peek> {
        let decision = denial(wait_ms);
        let sent = SentCall { call, decision: &decision, sent_at: self.now, max_duration: MAX_DURATION };
        self.keys.record(sent, &parse_limits(limits), 0, self.now)
    }

    fn record(&self, call: &Call, wait_ms: i64) -> Option<Peek> {
        self.record_under(LIMITS, call, wait_ms)
    }

    fn confirm(&self, call: &Call, peek: Peek, decision: &CallDecision) {
        let sent = SentCall { call, decision, sent_at: self.now, max_duration: MAX_DURATION };
        self.keys.confirm(sent, peek, self.now);
    }

    /// Records two denials and confirms their peek.
    fn deny(&self, call: &Call, wait_ms: i64) {
        assert!(self.record(call, wait_ms).is_none(), "the first denial requests no peek");
        let peek = self.record(call, wait_ms).unwrap();
        self.confirm(call, peek, &denial(wait_ms));
    }

    /// Returns the wait of a remembered denial of the call.
    fn remembered_wait(&self, call: &Call) -> Option<i64> {
        self.keys.find(call, 0, self.now).map(|decision| decision.wait_ms)
    }
}

#[test]
fn denial_is_used_after_its_peek() {
    let memory = Memory::new();
    let call = take("k", 1);
    assert!(memory.record(&call, 500).is_none() && memory.remembered_wait(&call).is_none());
    let peek = memory.record(&call, 500).unwrap();
    assert!(memory.remembered_wait(&call).is_none());
    assert!(memory.record(&call, 500).is_none(), "one peek at a time");
    memory.confirm(&call, peek, &denial(500));
    assert_eq!(memory.remembered_wait(&call), Some(500));
    assert!(memory.record(&call, 500).is_none(), "a concurrent denial changes nothing");
    assert_eq!(memory.remembered_wait(&call), Some(500));
}

#[test]
fn denial_ends_before_its_wait_is_over() {
    let mut memory = Memory::new();
    let call = take("k", 1);
    memory.deny(&call, 500);
    memory.advance(Duration::from_millis(498));
    assert_eq!(memory.remembered_wait(&call), Some(2));
    memory.advance(Duration::from_millis(1));
    assert_eq!(memory.remembered_wait(&call), None, "the server rounds waits up");
}

#[test]
fn denial_is_remembered_for_a_second_at_most() {
    for wait in [3_600_000, -1] {
        let mut memory = Memory::new();
        let call = take("k", 1);
        memory.deny(&call, wait);
        memory.advance(Duration::from_millis(999));
        assert_eq!(memory.remembered_wait(&call), Some(if wait < 0 { wait } else { wait - 999 }));
        memory.advance(Duration::from_millis(1));
        assert_eq!(memory.remembered_wait(&call), None);
        assert!(memory.record(&call, wait).is_some(), "a key that was denied before needs no second denial");
    }
}

#[test]
fn short_denial_is_not_remembered() {
    let memory = Memory::new();
    let wait = i64::try_from(MIN_DURATION.as_millis()).unwrap();
    for _ in 0..3 {
        assert!(memory.record(&take("k", 1), wait).is_none());
    }
}

#[test]
fn smaller_cost_is_sent() {
    let memory = Memory::new();
    memory.deny(&take("k", 5), 500);
    assert_eq!([4, 5, 6].map(|cost| memory.remembered_wait(&take("k", cost)).is_some()), [false, true, true]);
    // The lower cost is denied, too, and takes the place of the higher one.
    let peek = memory.record(&take("k", 4), 500).unwrap();
    memory.confirm(&take("k", 4), peek, &denial(500));
    assert_eq!([3, 4, 5].map(|cost| memory.remembered_wait(&take("k", cost)).is_some()), [false, true, true]);
}

#[test]
fn other_calls_are_sent() {
    let memory = Memory::new();
    let call = take("k", 1);
    memory.deny(&call, 500);
    let others = [
        take("other", 1),
        Call { rule: Rule::Policies(vec!["q".to_owned()]), ..call.clone() },
        Call { rule: Rule::Limits(vec!["p".to_owned()]), ..call.clone() },
        Call { charge: ChargingMode::Always, ..call.clone() },
        Call { id: Some(b"x".to_vec()), ..call.clone() },
        Call { operation: Operation::GiveBack(Amount::ONE), ..call.clone() },
        Call { operation: Operation::Settle(Amount::ONE), ..call.clone() },
        Call { operation: Operation::Force(Amount::ONE), ..call.clone() },
        Call { operation: Operation::Release, ..call.clone() },
    ];
    for other in &others {
        assert!(memory.remembered_wait(other).is_none(), "{other:?}");
        if other.id.is_some() || !matches!(other.operation, Operation::Take(_)) {
            assert!(memory.record(other, 500).is_none() && memory.record(other, 500).is_none(), "{other:?}");
        }
    }
    assert!(memory.remembered_wait(&call).is_some());
    assert!(memory.keys.find(&call, 1, memory.now).is_none(), "the policies have changed");
}

#[test]
fn change_of_the_key_ends_the_denial() {
    let memory = Memory::new();
    let call = take("k", 1);
    memory.deny(&call, 500);
    memory.keys.forget(b"k");
    assert!(memory.remembered_wait(&call).is_none());
    memory.deny(&call, 500);
    memory.keys.forget_all();
    assert!(memory.remembered_wait(&call).is_none());
}

#[test]
fn change_of_the_key_after_the_peek_is_not_overwritten() {
    let memory = Memory::new();
    let call = take("k", 1);
    memory.record(&call, 500);
    let peek = memory.record(&call, 500).unwrap();
    memory.keys.forget(b"k");
    memory.confirm(&call, peek, &denial(500));
    assert!(memory.remembered_wait(&call).is_none());
    memory.record(&call, 500);
    let next = memory.record(&call, 500).unwrap();
    memory.confirm(&call, peek, &denial(500));
    assert!(memory.remembered_wait(&call).is_none(), "the earlier peek does not confirm the later denial");
    memory.confirm(&call, next, &CallDecision { allowed: true, ..denial(0) });
    assert!(memory.remembered_wait(&call).is_none(), "the key is not denied any more");
}

#[test]
fn charge_beyond_an_aligned_window_denies_all_costs() {
    let memory = Memory::new();
    let call = Call { charge: ChargingMode::Always, ..take("k", 5) };
    for _ in 0..2 {
        assert!(memory.record_under("FIXED 10 1m ALIGNED", &call, 500).is_none(), "the denial needs no peek");
    }
    let smaller = Call { operation: Operation::Take(Amount::ONE), ..call.clone() };
    assert_eq!([memory.remembered_wait(&call), memory.remembered_wait(&smaller)], [Some(500), Some(500)]);
    for _ in 0..3 {
        let above_capacity = Call { key: b"above".to_vec(), operation: Operation::Take(amount(11)), ..call.clone() };
        memory.record_under("FIXED 10 1m ALIGNED", &above_capacity, -1);
        assert!(memory.remembered_wait(&above_capacity).is_none(), "the end of the window is not known");
    }
    let by_policy = take("q", 5);
    for _ in 0..2 {
        memory.record_under("FIXED 10 1m ALIGNED FORCE", &by_policy, 500);
    }
    assert!(memory.remembered_wait(&take("q", 1)).is_some());
}

#[test]
fn denials_that_charge_or_count_strikes_are_sent() {
    let forced = Call { charge: ChargingMode::Always, ..take("k", 1) };
    for (limits, call) in [
        ("FIXED 10 1m", &forced),
        ("TOKENBUCKET 10 10 1m", &forced),
        ("FIXED 10 1m ALIGNED FIXED 100 1d ALIGNED", &forced),
        ("FIXED 10 1m FORCE", &take("k", 1)),
        ("FIXED 10 1m FIXED 100 1d FORCE", &take("k", 1)),
        ("FIXED 10 1m FIXED 100 1d BAN 3 1m 1h", &take("k", 1)),
        ("", &take("k", 1)),
    ] {
        let memory = Memory::new();
        for _ in 0..3 {
            assert!(memory.record_under(limits, call, 500).is_none(), "{limits}");
            assert!(memory.remembered_wait(call).is_none(), "{limits}");
        }
    }
}

#[test]
fn number_of_keys_is_bounded() {
    let mut memory = Memory::new();
    for number in 0..MAX_KEYS + 10 {
        memory.record(&take(&number.to_string(), 1), 500);
    }
    assert_eq!(memory.keys.lock().by_key.len(), MAX_KEYS);
    assert!(memory.record(&take("0", 1), 500).is_some(), "a known key is remembered");
    memory.advance(MAX_DURATION + PURGE_INTERVAL);
    memory.record(&take("new", 1), 500);
    assert_eq!(memory.keys.lock().by_key.len(), 1, "expired denials are removed");
}
