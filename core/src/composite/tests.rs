mod composite_laws;
mod conversion_tests;
mod decoding_tests;
mod fast_path_tests;
mod histories;
mod model;
mod policy_tests;
mod script;
mod sent_effects;
mod server;

use super::*;
use crate::limit::Usage;
use crate::limit::Verdict;
use crate::syntax::KeyRequest;
use crate::testing::encoded_fields::EncodedFields;
use crate::wire::args::Args;
use component_head::ComponentTag;
use server::{CallError, Server};

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH.plus(Span::SECOND.times(1_700_000_000 + seconds))
}

fn seconds(seconds: u64) -> Span {
    Span::SECOND.times(seconds)
}

impl Server {
    /// Runs RL.TAKE at a number of seconds after the start time.
    fn take(&mut self, text: &str, second: u64) -> Answer {
        self.try_take(text, second).unwrap()
    }

    fn try_take(&mut self, text: &str, second: u64) -> Result<Answer, CallError> {
        composite_laws::run_inline(self, text, at(second), false).map(|result| result.answer)
    }

    fn peek(&mut self, text: &str, second: u64) -> Answer {
        composite_laws::run_inline(self, text, at(second), true).unwrap().answer
    }

    /// Runs RL.TAKE and asserts that it writes nothing.
    fn take_without_write(&mut self, text: &str, second: u64) -> Answer {
        let before = self.stored();
        let answer = self.take(text, second);
        assert_eq!(self.stored(), before, "{text}");
        answer
    }
}

/// Returns the remaining whole units of each limit.
fn remaining_units(answer: &Answer) -> Vec<u64> {
    answer.each.iter().map(|decision| decision.remaining.whole_units()).collect()
}

#[test]
fn component_kind_excludes_sketch_and_composite() {
    for kind in UsageKind::ALL {
        let component = component_head::component_kind(u64::try_from(kind.index()).unwrap());
        let is_accepted = !matches!(kind, UsageKind::Sketch | UsageKind::Limits);
        assert_eq!(component, is_accepted.then_some(kind));
    }
    assert_eq!(component_head::component_kind(u64::try_from(UsageKind::ALL.len()).unwrap()), None);
}

#[test]
fn serial_number_out_of_range_is_rejected() {
    for serial in [0, MAX_SERIALS - 1, MAX_SERIALS, MAX_SERIALS + 1] {
        let (has_identity, is_used, changes_settlement) = (true, false, true);
        let kind = UsageKind::Bucket;
        let tag = ComponentTag { serial, kind, version: 3, has_identity, is_used, changes_settlement };
        let mut fields = EncodedFields::default();
        tag.encode(&mut fields);
        let decoded = ComponentTag::decode(&mut fields).map(|tag| (tag.serial, tag.kind, tag.version));
        assert_eq!(decoded, (serial < MAX_SERIALS).then_some((serial, kind, 3)));
    }
}

#[test]
fn all_limits_are_charged_or_none() {
    let mut server = Server::default();
    let limits = "TOKENBUCKET 10 1 1s FIXED 3 1h";
    for remaining in [2, 1, 0] {
        let answer = server.take(limits, 0);
        assert_eq!((answer.decision.verdict.allowed(), answer.decision.remaining.whole_units()), (true, remaining));
    }
    let denied = server.take_without_write(limits, 0);
    assert_eq!(denied.decision.verdict, Verdict::After(seconds(3600)));
    assert_eq!(remaining_units(&denied), [7, 0]);
}

#[test]
fn denied_call_writes_only_strikes() {
    let mut plain = Server::default();
    plain.take("FIXED 1 1h", 0);
    plain.take_without_write("FIXED 1 1h", 0);
    plain.take_without_write("FIXED 1 1h SLIDING 1 1h", 0);
    assert!(plain.plain().is_some(), "a denied call creates no components");
    let mut components = Server::default();
    components.take("FIXED 1 1h AS a", 0);
    components.take_without_write("FIXED 1 1h AS a", 0);
    for (text, verdict) in [
        ("FIXED 1 1h AS a BAN 2 1h 2h", Verdict::After(seconds(3600))),
        ("FIXED 1 1h AS a BAN 2 1h 2h", Verdict::After(seconds(7200))),
    ] {
        assert_eq!(components.take(text, 0).decision.verdict, verdict);
    }
    components.take_without_write("FIXED 1 1h AS a BAN 2 1h 2h", 0);
    // A call that can never be granted is not a strike. A denial by KEEP or by a concurrency limit is not a strike
    // either.
    let mut server = Server::default();
    server.take("FIXED 2 1h", 0);
    for text in ["COST 3 FIXED 2 1h", "KEEP 1 FIXED 2 1h", "CONCURRENCY 0 1h h FIXED 2 1h COST 1"] {
        assert!(!server.take_without_write(&format!("{text} BAN 1 1h 2h"), 0).decision.verdict.allowed(), "{text}");
    }
}

#[test]
fn conversion_moves_the_plain_usage_back_with_the_clock() {
    let mut server = Server::default();
    server.take("FIXED 9 1m", 100);
    assert!(server.plain().is_some());
    assert_eq!(remaining_units(&server.take("FIXED 9 1m AS a SLIDING 9 1h", 50)), [7, 8]);
    // The window opened at 100 s is moved back to 50 s.
    assert_eq!(remaining_units(&server.take("FIXED 9 1m AS a SLIDING 9 1h", 109)), [6, 7]);
    assert_eq!(remaining_units(&server.take("FIXED 9 1m AS a SLIDING 9 1h", 110)), [8, 6]);
}

#[test]
fn lease_of_a_composite_key_is_found_by_its_holder() {
    let mut server = Server::default();
    server.take("FIXED 9 1h SLIDING 9 1h", 0);
    assert_eq!(server.components().unwrap().leases().map(Usage::entries), None);
    server.take("CONCURRENCY 9 1m me", 0);
    let lease_until = |server: &Server, holder: &[u8], second| {
        server.components().unwrap().leases().unwrap().lease_until(holder, at(second))
    };
    assert_eq!((lease_until(&server, b"me", 59), lease_until(&server, b"you", 59)), (Some(at(60)), None));
    assert_eq!(lease_until(&server, b"me", 60), None);
}

#[test]
fn unused_component_is_removed() {
    let mut server = Server::default();
    server.take("FIXED 9 1h SLIDING 9 1h COST 3", 0);
    server.take("COST -1 FIXED 9 1h SLIDING 9 1h", 0);
    assert_eq!(server.components().unwrap().components.len(), 1);
    server.take("CONCURRENCY 9 1h me", 0);
    assert_eq!(server.release(b"me", at(0)), Some((1, true)));
    assert_eq!(server.components().unwrap().components.len(), 1);
    // A settlement may leave a component unused as well.
    server.take("ONCE r1 1h FIXED 9 1h", 0);
    assert_eq!(server.components().unwrap().components.len(), 2);
    server.take("SETTLE r1 0 FIXED 9 1h", 0);
    assert_eq!(server.components().unwrap().components.len(), 1);
}

#[test]
fn unused_component_is_kept_while_a_charge_can_be_settled() {
    let mut server = Server::default();
    server.take("ONCE r1 1h SLIDING 9 1m AS a FIXED 9 1h", 10);
    server.take("COST -1 SLIDING 9 1m AS a", 20);
    // The unused component moves back with the key. A replica does not know the time of its charge.
    server.take("FIXED 9 1h", 5);
    assert_eq!(server.components().unwrap().components.len(), 2);
    server.take("SETTLE r1 0 SLIDING 9 1m AS a FIXED 9 1h", 6);
    assert_eq!(server.components().unwrap().components.len(), 1);
}

#[test]
fn expired_id_no_longer_holds_its_component() {
    let mut server = Server::default();
    server.take("ONCE b 1h FIXED 99 1h AS b", 0);
    for id in 0..20 {
        server.take(&format!("ONCE a{id} 1m FIXED 99 1h AS a"), 0);
    }
    // `Server` decodes the stored key, which checks the counts of charges.
    server.take("FIXED 99 1h AS a", 60);
    server.take("FIXED 99 1h AS a", 60);
    assert_eq!(server.components().unwrap().extras().unwrap().records.len(), 1);
}

#[test]
fn number_of_components_is_limited_to_sixteen() {
    let mut server = Server::default();
    for name in 0..15 {
        server.take(&format!("FIXED 9 1h AS n{name}"), 0);
    }
    server.take("FIXED 9 1m", 0);
    assert_eq!(server.try_take("FIXED 9 1h", 0).err(), Some(CallError::TooManyComponents));
    server.take("FIXED 9 1m", 0);
    // The minute window has recovered. If it is charged again, there is no room for another component.
    assert_eq!(server.try_take("FIXED 9 1m FIXED 9 1h", 60).err(), Some(CallError::TooManyComponents));
    server.take("FIXED 9 1h", 60);
    assert_eq!(server.components().unwrap().components.len(), 16);
    server.take("FIXED 9 1h AS n3", 60);
}

#[test]
fn serial_numbers_are_reused() {
    let mut server = Server::default();
    for second in 0..100 {
        server.take(&format!("FIXED 9 1h AS n{} SLIDING 9 1us", second % 3), second);
    }
    assert!(server.components().unwrap().components.iter().all(|component| component.serial() < 4));
}

#[test]
fn key_has_one_table_of_leases_for_all_names() {
    let mut server = Server::default();
    for (call, text) in ["CONCURRENCY 2 1m a AS x", "CONCURRENCY 2 1m b", "CONCURRENCY 2 1m c AS y"].iter().enumerate()
    {
        assert_eq!(server.take(&format!("{text} FIXED 9 1h COST 0"), 0).decision.verdict.allowed(), call < 2);
    }
    assert_eq!(server.components().unwrap().components.len(), 1);
}

#[test]
fn release_of_no_lease_and_repeated_settlement_write_nothing() {
    let mut server = Server::default();
    // An expired id stays until the next change.
    server.take("ONCE r1 1s FIXED 9 1h SLIDING 9 1h", 0);
    server.take("ONCE r2 1h FIXED 9 1h CONCURRENCY 9 1h me", 0);
    server.take("SETTLE r2 3 FIXED 9 1h", 0);
    assert_eq!(server.release(b"you", at(2)), Some((0, false)));
    assert!(server.take_without_write("SETTLE r2 5 FIXED 9 1h", 2).decision.verdict.allowed());
    assert!(server.take_without_write("COST 99 ONCE r2 1h FIXED 9 1h", 2).decision.verdict.allowed());
    assert_eq!(server.take_without_write("SETTLE r3 1 FIXED 9 1h", 2).decision.verdict, Verdict::Never);
    server.take("FIXED 9 1h", 2);
    assert_eq!(server.components().unwrap().extras().unwrap().records.len(), 1);
}

#[test]
fn denied_call_after_a_clock_step_back_sweeps_no_records() {
    let mut server = Server::default();
    for id in 0..40 {
        server.take(&format!("ONCE r{id} 1s FIXED 99 1h SLIDING 99 2s AS a"), 0);
    }
    let id_count = |server: &Server| server.components().unwrap().extras().map_or(0, |extras| extras.records.len());
    server.take("FIXED 99 1h", 10);
    assert_eq!(id_count(&server), 24);
    // A denied call only stores the time.
    server.take("COST 99 FIXED 99 1h", 5);
    assert_eq!((id_count(&server), server.components().unwrap().written), (24, at(5)));
    server.take("FIXED 99 1h", 5);
    assert_eq!(id_count(&server), 8);
    server.take("FIXED 99 1h", 5);
    assert_eq!((id_count(&server), server.components().unwrap().components.len()), (0, 1));
}

#[test]
fn denying_limit_with_the_longest_wait_governs() {
    let mut server = Server::default();
    server.take("COST 5 FIXED 5 1h SLIDINGLOG 7 1h COST 7", 0);
    // The debt of the first limit would last as long as the denial by the second. Only the second limit denies the
    // call.
    let denied = server.take_without_write("COST 1 FORCE FIXED 5 1h SLIDINGLOG 7 1h COST 1", 0).decision;
    assert_eq!((denied.verdict, denied.limit.whole_units()), (Verdict::After(seconds(3600)), 7));
    // A cost of zero is compared as a cost of one.
    for mode in ["FORCE", "MAXWAIT 1s"] {
        let mut server = Server::default();
        server.take("COST 1 TOKENBUCKET 9 9 1h TOKENBUCKET 5 5 2h", 0);
        assert_eq!(
            server
                .take(&format!("COST 0 {mode} TOKENBUCKET 9 9 1h TOKENBUCKET 5 5 2h"), 0)
                .decision
                .limit
                .whole_units(),
            5
        );
    }
}

#[test]
fn upto_grants_the_smallest_grant_of_all_limits() {
    let mut server = Server::default();
    let granted = |answer: &Answer| {
        answer.each.iter().map(|decision| decision.granted.map(crate::number::Amount::whole_units)).collect::<Vec<_>>()
    };
    let text = "COST 9 UPTO ONCE r1 1h SLIDINGLOG 7 1h COST 2 FIXED 5 1h TOKENBUCKET 7 7 1h";
    let first = server.take(text, 0);
    assert_eq!((granted(&first), remaining_units(&first)), (vec![None, Some(5), Some(5)], vec![5, 0, 2]));
    let repeated = server.take_without_write(text, 0);
    assert_eq!(granted(&repeated), [None, Some(5), Some(5)], "a repetition reports the same grants");
    let denied = server.take_without_write("COST 9 UPTO FIXED 5 1h TOKENBUCKET 7 7 1h", 0);
    assert_eq!(granted(&denied), [Some(0), Some(0)]);
    assert_eq!(denied.decision.granted.map(crate::number::Amount::whole_units), Some(0));
}

#[test]
fn banned_key_grants_repetitions_renewals_and_refunds() {
    let mut server = Server::default();
    server.take("ONCE r1 1h FIXED 9 1h CONCURRENCY 2 1h me", 0);
    server.ban(seconds(60), at(0));
    let banned = Verdict::After(seconds(60));
    for text in [
        "FIXED 9 1h",
        "COST 0 FIXED 9 1h",
        "CONCURRENCY 2 1h you",
        "COST 0 CONCURRENCY 2 1h you",
        "COST 0 CONCURRENCY 2 1h me",
    ] {
        let decision = server.take_without_write(text, 0).decision;
        assert_eq!((decision.verdict, decision.remaining), (banned, crate::number::Amount::ZERO), "{text}");
    }
    assert!(server.take("CONCURRENCY 2 1h me", 0).decision.verdict.allowed());
    assert!(server.take("ONCE r1 1h FIXED 9 1h", 0).decision.verdict.allowed());
    assert!(server.take("SETTLE r1 2 FIXED 9 1h", 0).decision.verdict.allowed());
    assert_eq!(server.take("COST 3 FORCE FIXED 9 1h", 0).decision.verdict, banned);
    assert!(server.take("COST -1 FIXED 9 1h", 0).decision.verdict.allowed());
    assert_eq!(server.ban(Span::ZERO, at(0)).0, Span::ZERO);
    assert_eq!(remaining_units(&server.peek("FIXED 9 1h", 0)), [5]);
}

#[test]
fn plain_usage_is_claimed_by_the_first_limit_of_its_kind() {
    let mut server = Server::default();
    server.take("COST 3 FIXED 9 1h", 0);
    // A peek does not claim the component.
    assert_eq!(remaining_units(&server.take("FIXED 9 1m COST 0 FIXED 9 1d", 0)), [6, 8]);
    assert_eq!(remaining_units(&server.peek("FIXED 9 1d FIXED 9 1m FIXED 9 2m", 0)), [8, 6, 9]);
    assert_eq!(remaining_units(&server.take("FIXED 9 1h AS a FIXED 9 1m", 0)), [5, 8]);
    assert_eq!(remaining_units(&server.peek("FIXED 9 1h", 0)), [9]);
}

#[test]
fn plain_key_of_another_kind_is_a_wrong_type() {
    let mut server = Server::default();
    server.take("FIXED 9 1h", 0);
    for text in ["SLIDING 9 1h", "ONCE r1 1h SLIDING 9 1h AS a"] {
        assert!(KeyRequest::take(&mut Args::new(&script::words(text)), None).is_ok());
        assert_eq!(server.try_take(text, 0).err(), Some(CallError::WrongType));
    }
}

#[test]
fn expired_ban_is_dropped_by_a_move_back_to_the_epoch() {
    let mut usage = CompositeUsage::default();
    usage.ban(seconds(1), Timestamp::EPOCH);
    let mut expired = usage.clone();
    expired.written = Timestamp::EPOCH.plus(seconds(5));
    expired.move_back(Timestamp::EPOCH.plus(seconds(1)));
    assert!(expired.is_unused());
    usage.move_back(Timestamp::EPOCH);
    assert_eq!(usage.remaining_ban(Timestamp::EPOCH), seconds(1));
}

#[test]
fn repeated_call_is_not_denied_by_its_own_lease() {
    let mut server = Server::default();
    let call = "COST 3 FORCE ONCE r0 1h CONCURRENCY 2 1h me NX FIXED 5 1m";
    assert_eq!(server.take(call, 0).decision.verdict, Verdict::Allowed(Span::ZERO));
    assert_eq!(server.take_without_write(call, 1).decision.verdict, Verdict::Allowed(Span::ZERO));
}
