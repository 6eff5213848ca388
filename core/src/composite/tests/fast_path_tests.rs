//! Calls that take the fast path. `Server` asserts of each that the slow path comes to the same.

use super::at;
use super::script::Said;
use super::server::{Server, call_of};
use crate::limit::Verdict;
use crate::number::Span;

const RATES: &str = "FIXED 9 1h TOKENBUCKET 5 1 1h AS t SLIDING 9 1h SLIDING 9 1h STRICT";

impl Server {
    fn looks_fast(&self, said: &Said, second: u64) -> bool {
        let Some(components) = self.components() else { return false };
        said.asks(false, |asked| components.evaluate_fast(&call_of(asked), at(second)).is_some()).unwrap()
    }

    fn goes_fast(&self, text: &str, second: u64) -> bool {
        self.looks_fast(&Said::inline(text), second)
    }

    fn goes_fast_by(&self, policy: &str, factor: &'static str) -> bool {
        self.looks_fast(&Said::by_policy("", policy, factor), 0)
    }
}

#[test]
fn rates_whose_components_are_there_go_the_fast_path() {
    let mut server = Server::default();
    assert!(!server.goes_fast(RATES, 0), "no key");
    server.take("FIXED 9 1h", 0);
    assert!(!server.goes_fast("FIXED 9 1h SLIDING 9 1h", 0), "a plain key");
    server.take(RATES, 0);
    for fast in [
        RATES,
        "SLIDING 9 1h STRICT SLIDING 9 1h FIXED 9 1h",
        "TOKENBUCKET 5 1 1h AS t",
        "COST 3 FIXED 9 1h COST 1 SLIDING 9 1h",
        "KEEP 2 FIXED 9 1h SLIDING 9 1h",
        "FIXED 90 1h SLIDING 1 1h",
        "COST 6 TOKENBUCKET 5 1 1h AS t FIXED 9 1h",
    ] {
        assert!(server.goes_fast(fast, 0) && server.goes_fast(fast, 99), "{fast}");
        server.take(fast, 0);
    }
}

#[test]
fn whatever_asks_for_more_goes_the_general_way() {
    let mut server = Server::default();
    server.take(RATES, 0);
    server.take("SLIDINGLOG 9 1h CONCURRENCY 9 1h me", 0);
    for general in [
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
        "ONCE a 1h FIXED 9 1h SLIDING 9 1h",
        "SETTLE a 1 FIXED 9 1h SLIDING 9 1h",
        "FIXED 9 1h SLIDING 9 1h BAN 1 1h 1h",
        "FIXED 9 1h SLIDINGLOG 9 1h",
        "FIXED 9 1h CONCURRENCY 9 1h me",
    ] {
        assert!(!server.goes_fast(general, 0), "{general}");
    }
    assert!(server.goes_fast(RATES, 0));
}

#[test]
fn a_policys_limits_go_fast_unless_they_have_a_shadow_or_are_scaled_up() {
    let mut server = Server::default();
    server.take(RATES, 0);
    assert!(server.goes_fast_by(RATES, "1") && server.goes_fast_by(RATES, "0.5"));
    assert!(!server.goes_fast_by(RATES, "2"), "a bucket may recover more slowly again");
    assert!(server.goes_fast_by("FIXED 9 1h SLIDING 9 1h", "2"));
    assert!(!server.goes_fast_by("FIXED 9 1h SLIDING 9 1h SHADOW", "1"));
    assert!(!server.goes_fast_by("FIXED 9 1h SHADOW SLIDING 9 1h", "1"));
}

#[test]
fn after_the_clock_has_gone_back_or_beside_an_id_or_a_ban_no_call_goes_fast() {
    let mut server = Server::default();
    server.take(RATES, 10);
    assert!(server.goes_fast(RATES, 10) && !server.goes_fast(RATES, 9));
    let mut banned = server.clone();
    banned.ban(Span::SECOND, at(10));
    assert!(!banned.goes_fast(RATES, 10));
    server.take("ONCE a 1s FIXED 9 1h SLIDING 9 1h", 10);
    assert!(!server.goes_fast(RATES, 10));
    // What the id kept has gone with the change after it had expired.
    server.take(RATES, 12);
    assert!(server.goes_fast(RATES, 12));
}

#[test]
fn of_those_that_deny_the_one_with_the_longest_wait_governs() {
    let mut server = Server::default();
    server.take("FIXED 3 1m FIXED 2 1h SLIDING 3 1m", 0);
    let told = |server: &mut Server, text| {
        let decision = server.takes_nothing(text, 0).decision;
        (decision.verdict, decision.limit.whole_units(), decision.remaining.whole_units())
    };
    assert!(server.goes_fast("COST 2 FIXED 3 1m FIXED 2 1h SLIDING 3 1m", 0));
    let hour = Verdict::After(Span::SECOND.times(3600));
    assert_eq!(told(&mut server, "COST 2 FIXED 3 1m FIXED 2 1h SLIDING 3 1m"), (hour, 2, 1));
    assert_eq!(told(&mut server, "COST 3 FIXED 3 1m FIXED 3 1h SLIDING 2 1m"), (Verdict::Never, 2, 1));
    assert_eq!(told(&mut server, "COST 4 FIXED 3 1m FIXED 2 1h SLIDING 1 1m"), (Verdict::Never, 3, 2), "of equals");
    // Nothing denies: the one that runs out first.
    let passes = server.take("FIXED 9 1m FIXED 8 1h SLIDING 8 1m COST 3", 0).decision;
    assert_eq!((passes.limit.whole_units(), passes.remaining.whole_units()), (8, 4));
}
