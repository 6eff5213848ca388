//! Calls on the fast path. `Server` asserts that the slow path has the same result.

use super::at;
use super::script::CallText;
use super::server::{Server, call_of};
use crate::limit::Verdict;
use crate::number::Span;

const RATES: &str = "FIXED 9 1h TOKENBUCKET 5 1 1h AS t SLIDING 9 1h SLIDING 9 1h STRICT";

impl Server {
    fn takes_fast_path_with(&self, call_text: &CallText, second: u64) -> bool {
        let Some(components) = self.components() else { return false };
        call_text
            .with_request(false, |request| components.evaluate_fast(&call_of(request), at(second)).is_some())
            .unwrap()
    }

    fn takes_fast_path(&self, text: &str, second: u64) -> bool {
        self.takes_fast_path_with(&CallText::inline(text), second)
    }

    fn takes_fast_path_by_policy(&self, policy: &str, factor: &'static str) -> bool {
        self.takes_fast_path_with(&CallText::by_policy("", policy, factor), 0)
    }
}

#[test]
fn rate_limits_with_existing_components_take_the_fast_path() {
    let mut server = Server::default();
    assert!(!server.takes_fast_path(RATES, 0), "missing key");
    server.take("FIXED 9 1h", 0);
    assert!(!server.takes_fast_path("FIXED 9 1h SLIDING 9 1h", 0), "plain key");
    server.take(RATES, 0);
    for text in [
        RATES,
        "SLIDING 9 1h STRICT SLIDING 9 1h FIXED 9 1h",
        "TOKENBUCKET 5 1 1h AS t",
        "COST 3 FIXED 9 1h COST 1 SLIDING 9 1h",
        "KEEP 2 FIXED 9 1h SLIDING 9 1h",
        "FIXED 90 1h SLIDING 1 1h",
        "COST 6 TOKENBUCKET 5 1 1h AS t FIXED 9 1h",
    ] {
        assert!(server.takes_fast_path(text, 0) && server.takes_fast_path(text, 99), "{text}");
        server.take(text, 0);
    }
}

#[test]
fn other_calls_take_the_slow_path() {
    let mut server = Server::default();
    server.take(RATES, 0);
    server.take("SLIDINGLOG 9 1h CONCURRENCY 9 1h me", 0);
    for text in [
        "FIXED 9 1h FIXED 9 2h",
        "TOKENBUCKET 5 1 1h FIXED 9 1h",
        "TOKENBUCKET 5 1 1h AS u FIXED 9 1h",
        "FIXED 9 1h AS t SLIDING 9 1h",
        "EACH FIXED 9 1h SLIDING 9 1h",
        "COST 0 FIXED 9 1h SLIDING 9 1h",
        "FIXED 9 1h COST 0 SLIDING 9 1h",
        "COST -1 FIXED 9 1h SLIDING 9 1h",
        "FIXED 9 1h SLIDING 9 1h FORCE",
        "COST 3 UPTO FIXED 9 1h SLIDING 9 1h",
        "MAXWAIT 1s FIXED 9 1h TOKENBUCKET 5 1 1h AS t",
        "ONCE a 1h EACH FIXED 9 1h SLIDING 9 1h",
        "ONCE a 1h FIXED 9 1h FIXED 9 2h",
        "SETTLE a 1 FIXED 9 1h SLIDING 9 1h",
        "FIXED 9 1h SLIDING 9 1h BAN 1 1h 1h",
        "FIXED 9 1h SLIDINGLOG 9 1h",
        "FIXED 9 1h CONCURRENCY 9 1h me",
    ] {
        assert!(!server.takes_fast_path(text, 0), "{text}");
    }
    assert!(server.takes_fast_path(RATES, 0));
}

#[test]
fn policy_limits_take_the_fast_path_unless_in_shadow_mode_or_a_bucket_is_scaled_up() {
    let mut server = Server::default();
    server.take(RATES, 0);
    assert!(server.takes_fast_path_by_policy(RATES, "1") && server.takes_fast_path_by_policy(RATES, "0.5"));
    assert!(!server.takes_fast_path_by_policy(RATES, "2"), "a bucket may recover at the lower rate later");
    assert!(server.takes_fast_path_by_policy("FIXED 9 1h SLIDING 9 1h", "2"));
    assert!(!server.takes_fast_path_by_policy("FIXED 9 1h SLIDING 9 1h SHADOW", "1"));
    assert!(!server.takes_fast_path_by_policy("FIXED 9 1h SHADOW SLIDING 9 1h", "1"));
}

#[test]
fn backwards_clock_and_bans_disable_the_fast_path() {
    let mut server = Server::default();
    server.take(RATES, 10);
    assert!(server.takes_fast_path(RATES, 10) && !server.takes_fast_path(RATES, 9));
    server.ban(Span::SECOND, at(10));
    assert!(!server.takes_fast_path(RATES, 10));
    // The next change removes the expired ban.
    server.take(RATES, 12);
    assert!(server.takes_fast_path(RATES, 12));
}

#[test]
fn new_id_takes_the_fast_path_and_recorded_id_does_not() {
    let once = |id| format!("ONCE {id} 5s {RATES}");
    let mut server = Server::default();
    server.take(RATES, 10);
    assert!(server.takes_fast_path(&once(0), 10));
    for id in 0..7 {
        server.take(&format!("ONCE {id} 5s FIXED 9 1h"), 10);
        assert!(!server.takes_fast_path(&once(id), 14), "a recorded id");
        assert!(server.takes_fast_path(&once(id), 15), "an expired id");
        assert!(server.takes_fast_path(RATES, 14), "a call without an id");
    }
    let remaining = server.take("SETTLE 0 0 FIXED 9 1h", 12).decision.remaining.whole_units();
    assert_eq!((remaining, server.takes_fast_path("FIXED 9 1h", 12)), (2, true));
}

#[test]
fn denying_limit_with_the_longest_wait_governs() {
    let mut server = Server::default();
    server.take("FIXED 3 1m FIXED 2 1h SLIDING 3 1m", 0);
    let decide = |server: &mut Server, text| {
        let decision = server.take_without_write(text, 0).decision;
        (decision.verdict, decision.limit.whole_units(), decision.remaining.whole_units())
    };
    assert!(server.takes_fast_path("COST 2 FIXED 3 1m FIXED 2 1h SLIDING 3 1m", 0));
    let hour = Verdict::After(Span::SECOND.times(3600));
    assert_eq!(decide(&mut server, "COST 2 FIXED 3 1m FIXED 2 1h SLIDING 3 1m"), (hour, 2, 1));
    assert_eq!(decide(&mut server, "COST 3 FIXED 3 1m FIXED 3 1h SLIDING 2 1m"), (Verdict::Never, 2, 1));
    assert_eq!(
        decide(&mut server, "COST 4 FIXED 3 1m FIXED 2 1h SLIDING 1 1m"),
        (Verdict::Never, 3, 2),
        "the first of three limits with the same verdict"
    );
    // An admitted call reports the limit that runs out first.
    let granted = server.take("FIXED 9 1m FIXED 8 1h SLIDING 8 1m COST 3", 0).decision;
    assert_eq!((granted.limit.whole_units(), granted.remaining.whole_units()), (8, 4));
}
