//! Decoding of composite keys: states and effects of calls are accepted, impossible states and effects are rejected.

use super::script::words;
use super::server::{Server, call_of};
use super::{at, remaining_units, seconds};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::leases::Concurrency;
use crate::algorithm::log::SlidingLog;
use crate::composite::{CompositeEvaluation, CompositeUsage, StoredUsage};
use crate::limit::{InfoField, Limit, Usage, Verdict};
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::KeyRequest;
use crate::testing::calls::{period, units};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded};
use crate::wire::args::Args;

#[test]
fn effect_with_one_changed_number_is_rejected_or_gives_a_decodable_state() {
    let mut server = Server::default();
    server.mutates_all = true;
    for text in [
        "TOKENBUCKET 9 1 1h",
        "TOKENBUCKET 9 1 1m",
        "ONCE r1 1h TOKENBUCKET 9 1 1h FIXED 9 1h AS a CONCURRENCY 9 1h me",
        "ONCE r2 1h TOKENBUCKET 9 1 1h FIXED 9 1h AS b FIXED 9 1h AS c",
        "SETTLE r1 3 TOKENBUCKET 9 1 1h FIXED 9 1h AS a CONCURRENCY 9 1h me",
    ] {
        server.take(text, 0);
    }
    // Up to the maximum number of components.
    for period in 2..13 {
        server.take(&format!("TOKENBUCKET 9 1 {period}h"), 1);
    }
    assert_eq!(server.components().map(|usage| usage.components.len()), Some(16));
}

#[test]
fn description_omits_expired_bans_and_strikes() {
    let names = |server: &Server, second: u64| {
        server.components().unwrap().describe(at(second), None).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let mut server = Server::default();
    server.take("FIXED 1 1h AS a BAN 2 1m 1h MAX 1h", 0);
    assert_eq!(names(&server, 0), ["written", "parts"]);
    server.take("FIXED 1 1h AS a BAN 2 1m 1h MAX 1h", 0);
    assert_eq!(names(&server, 59), ["written", "parts", "strikes", "first_strike"]);
    assert_eq!(names(&server, 60), ["written", "parts"]);
    server.take("FIXED 1 1h AS a BAN 2 1m 1h MAX 1h", 1);
    assert_eq!(names(&server, 3600), ["written", "parts", "banned_until", "ban_level"]);
    assert_eq!(names(&server, 3601), ["written", "parts", "ban_level"]);
    assert_eq!(names(&server, 7201), ["written", "parts"]);

    let mut server = Server::default();
    server.take("ONCE r1 1h FIXED 9 1h AS a SLIDING 9 1m CONCURRENCY 9 1h me", 0);
    assert_eq!(names(&server, 0), ["written", "parts", "ids"]);
    let facts = server.components().unwrap().describe(at(0), None);
    let Some(("parts", InfoField::Components(parts))) = facts.get(1) else { unreachable!("{facts:?}") };
    let second_facts = parts.iter().map(|part| part.get(1).cloned()).collect::<Vec<_>>();
    assert!(matches!(&second_facts[0], Some(("name", InfoField::Name(name))) if **name == *b"a"), "{second_facts:?}");
    assert_eq!(second_facts[1], Some(("window", InfoField::Span(seconds(60)))));
    // A table of leases has no window.
    assert!(matches!(second_facts[2], Some(("recovers_at", _))), "{second_facts:?}");
}

#[test]
fn force_of_one_limit_is_combined_with_upto_of_the_others() {
    let call = "COST 4 UPTO ONCE a 10m FIXED 3 1h FIXED 5 1d COST 4 FORCE";
    let mut server = Server::default();
    let first = server.take(call, 0).decision;
    assert_eq!((first.verdict, first.granted), (Verdict::Allowed(Span::ZERO), Some(units(3))));
    // The repetition reports the same grant, although the other limit has been forced further.
    server.take("COST 4 FORCE FIXED 5 1d", 1);
    let repetition = server.take_without_write(call, 1).decision;
    let rest_of_the_day = Verdict::After(seconds(86_400 - 1));
    assert_eq!((repetition.verdict, repetition.granted), (rest_of_the_day, Some(units(3))));
    // So does the limit with UPTO, although it has been forced since.
    server.take("COST 4 FORCE FIXED 3 1h", 1);
    let each = server.take_without_write(&format!("EACH {call}"), 1).each;
    assert_eq!(each.iter().map(|decision| decision.granted).collect::<Vec<_>>(), [Some(units(3)), None]);
    // A limit with UPTO and no remaining unit denies the call. A limit with FORCE does not.
    let denied = server.take_without_write(call.replace("ONCE a", "ONCE b").as_str(), 2).decision;
    assert_eq!((denied.verdict, denied.granted), (Verdict::After(seconds(3600 - 2)), Some(Amount::ZERO)));
    let forced = server.take("COST 2 UPTO ONCE c 10m FIXED 3 1m FIXED 5 1d COST 1 FORCE", 2).decision;
    assert_eq!(
        (forced.verdict, forced.granted),
        (Verdict::After(seconds(86_400 - 2)), Some(units(2))),
        "the charged amount is reported"
    );
    // The charge with a cost of its own is not settled.
    server.take("SETTLE c 0 FIXED 3 1m FIXED 5 1d COST 1", 3);
    assert_eq!(remaining_units(&server.peek("EACH FIXED 3 1m FIXED 100 1d", 3)), [3, 91]);
}

/// Returns a server with a key that has a component of each kind. All components are charged at second 10.
fn server_with_every_kind() -> Server {
    let mut server = Server::default();
    let limits = "TOKENBUCKET 9 9 1h FIXED 9 1h SLIDING 9 1h SLIDING 9 1h STRICT SLIDINGLOG 9 1h CONCURRENCY 9 1h me";
    server.take(limits, 10);
    server
}

#[test]
fn component_later_than_its_key_is_rejected() {
    let stored = server_with_every_kind().stored().unwrap();
    let fields: Vec<u64> = stored.clone().numbers();
    assert_eq!(fields[0], at(10).micros(), "time of the last change of the key");
    assert!(decoded::<CompositeUsage>(&stored).is_some());
    let timestamps: Vec<usize> = (1..fields.len()).filter(|index| fields[*index] == at(10).micros()).collect();
    assert_eq!(timestamps.len(), 6, "each component has a timestamp");
    for index in timestamps {
        let later = stored.with(index, at(10).micros() + 1);
        assert!(decoded::<CompositeUsage>(&later).is_none(), "{index}");
    }
}

#[test]
fn effect_with_a_component_later_than_its_key_is_rejected() {
    let mut server = server_with_every_kind();
    let limits = "TOKENBUCKET 9 9 1h FIXED 9 1s SLIDING 9 1s SLIDING 9 1s STRICT SLIDINGLOG 9 1h CONCURRENCY 9 1h me";
    let before = server.components().unwrap().clone();
    let mut usage = before.clone();
    let words = words(limits);
    let call = call_of(&KeyRequest::take(&mut Args::new(&words), None).unwrap());
    let now = at(20);
    let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(&usage), now);
    usage.charge(&call, &evaluation, now);
    let mut effect = EncodedFields::default();
    usage.encode_effect(&mut effect);
    assert!(applied(&before, &effect).is_some());
    let fields = effect.clone().numbers();
    // The first two fields are the tag and the time of the change.
    let timestamps: Vec<usize> = (2..fields.len()).filter(|index| fields[*index] == now.micros()).collect();
    assert!(timestamps.len() >= 5, "{effect:?}");
    for index in timestamps {
        let later = effect.with(index, now.micros() + 1);
        assert!(applied(&before, &later).is_none(), "{index}");
    }
    server.take(limits, 20);
}

#[test]
fn effect_after_the_latest_accepted_time_is_rejected() {
    let accepts = |effect: &EncodedFields, latest: u64| {
        let unused = CompositeUsage::default();
        unused.accepts_effect_until(&mut effect.clone(), CompositeUsage::VERSION, at(latest))
    };
    let usage = server_with_every_kind().components().unwrap().clone();
    let mut whole = EncodedFields::default();
    usage.encode_whole_effect(&mut whole);
    let words = words("FIXED 9 1h SLIDINGLOG 9 1h CONCURRENCY 9 1h me");
    let call = call_of(&KeyRequest::take(&mut Args::new(&words), None).unwrap());
    let mut charged = CompositeUsage::default();
    let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(&charged), at(10));
    charged.charge(&call, &evaluation, at(10));
    let mut change = EncodedFields::default();
    charged.encode_effect(&mut change);
    for effect in [whole, change] {
        assert!(accepts(&effect, 10) && accepts(&effect, 11) && !accepts(&effect, 9));
    }
}

/// Asserts that a whole effect and a change are rejected if the latest accepted time is before their call.
fn assert_later_effects_are_rejected<L: Limit>(limit: &L) {
    let mut usage = L::Usage::default();
    limit.charge(&mut usage, at(10), Amount::ONE);
    let (mut whole, mut change) = (EncodedFields::default(), EncodedFields::default());
    usage.encode_whole_effect(&mut whole);
    usage.encode_effect(&mut change);
    for effect in [whole, change] {
        let accepts =
            |latest: u64| L::Usage::default().accepts_effect_until(&mut effect.clone(), L::Usage::VERSION, at(latest));
        assert!(accepts(10) && accepts(11) && !accepts(9), "{effect:?}");
    }
}

#[test]
fn effect_on_a_plain_usage_after_the_latest_accepted_time_is_rejected() {
    let hour = period("1h");
    assert_later_effects_are_rejected(&SlidingLog::new(units(9), hour));
    assert_later_effects_are_rejected(&Concurrency::new(units(9), hour).for_holder(b"me"));
    assert_later_effects_are_rejected(&FixedWindow::new(units(9), hour));
}

#[test]
fn component_removed_in_its_first_call_leaves_no_gap_on_a_replica() {
    // At the last timestamp, a lease has expired when it is acquired.
    let words = words("ONCE a 1h FIXED 9 1h AS a CONCURRENCY 9 1h me FIXED 9 1h AS b");
    let call = call_of(&KeyRequest::take(&mut Args::new(&words), None).unwrap());
    let (before, now) = (CompositeUsage::default(), Timestamp::MAX);
    let mut usage = before.clone();
    let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(&usage), now);
    usage.charge(&call, &evaluation, now);
    assert_eq!(usage.components.iter().map(super::Component::serial).collect::<Vec<_>>(), [0, 2]);
    let mut effect = EncodedFields::default();
    usage.encode_effect(&mut effect);
    assert_eq!(applied(&before, &effect).map(|applied| encoded(&applied)), Some(encoded(&usage)));
    // A replica accepts any unused serial number in range.
    let tag = |serial| serial * 16 * 8 + 9;
    let accepts_serial = |serial| applied(&before, &effect.with(12, serial).with(22, tag(serial))).is_some();
    assert_eq!([12, 22].map(|index| effect.clone().numbers()[index]), [2, tag(2)]);
    assert!(accepts_serial(23) && !accepts_serial(24) && !accepts_serial(0));
}

#[test]
fn impossible_ban_is_rejected() {
    let accepts_ban = |ban: &[u64]| {
        let key = EncodedFields::integers([at(10).micros(), 0, 1, 0]).and(ban.iter().copied());
        decoded::<CompositeUsage>(&key).is_some()
    };
    let (now, longest) = (at(10).micros(), Span::MAX_ARGUMENT.micros());
    assert!(accepts_ban(&[now + longest, 1, now, longest]));
    for rejected in [[now + longest + 1, 1, now, longest], [now, 1, now + 1, longest], [now, 1, now, longest + 1]] {
        assert!(!accepts_ban(&rejected));
    }
    // With a level, whose fields come before those of the strikes.
    let level = 1 << 32;
    assert!(accepts_ban(&[now, level, 1, 1]) && accepts_ban(&[now, level + 1, 3, 4, now, longest]));
    // A level of 8 seconds expires in a microsecond.
    assert!(accepts_ban(&[at(2).micros() + 1, level, 1, 8_000_000]));
    assert!(accepts_ban(&[now + longest, level, 50, longest]));
    for rejected in [
        [now, level, 0, 1],
        [now, level, 1, 0],
        [now, level, 1, longest + 1],
        [now, level, 256, longest],
        [now, level, 51, longest],
        [now, level, 4, 4],
        [now, level * 2, 1, 1],
        [at(2).micros(), level, 1, 8_000_000],
    ] {
        assert!(!accepts_ban(&rejected), "{rejected:?}");
    }
}

#[test]
fn conversion_keeps_the_usage_if_the_expiry_is_newer_than_the_clock_step() {
    // MIGRATE moves the key to a server whose clock is two hours behind, and keeps the remaining TTL.
    for limit in [
        "FIXED 9 1h",
        "FIXED 9 1d ALIGNED",
        "TOKENBUCKET 9 9 1h",
        "SLIDING 9 1h",
        "SLIDING 9 1h STRICT",
        "SLIDINGLOG 9 1h",
        "CONCURRENCY 9 1h me COST 9",
    ] {
        let mut server = Server::default();
        let cost = if limit.starts_with("CONC") { String::new() } else { " COST 9".to_owned() };
        server.take(&format!("{limit}{cost}"), 10_000);
        let (value, _) = server.key.take().unwrap();
        let arrival = 10_000 - 7200;
        server.key = Some((value, at(arrival + 3600 + 450).floor_millis()));
        // The call converts the key and changes nothing but the ban.
        server.ban(seconds(1), at(arrival));
        let state_at = |second: u64| {
            let mut server = server.clone();
            let has_expired = server.expire(at(second));
            let peek = limit.replace(" COST 9", "").replace(" me", " other");
            (has_expired, remaining_units(&server.peek(&peek, second))[0])
        };
        assert_eq!(state_at(arrival + 1), (false, 0), "{limit}");
        let recovers_gradually = limit.starts_with("TOKEN") || limit == "SLIDING 9 1h";
        let expected = if recovers_gradually { 0..=9 } else { 0..=0 };
        let (has_expired, remaining) = state_at(arrival + 3599);
        assert!(!has_expired && expected.contains(&remaining), "{limit}: {remaining}");
    }
}

#[test]
fn shortened_expiry_of_a_plain_key_is_kept_unless_its_recovery_needs_longer() {
    let limits = ["FIXED 9 1h", "SLIDING 9 1h STRICT", "SLIDINGLOG 9 1h", "CONCURRENCY 9 1h me"];
    for (arrival, remaining) in [(100, [9, 9, 9, 9]), (50, [9, 8, 9, 9])] {
        for (limit, remaining) in limits.into_iter().zip(remaining) {
            let mut server = Server::default();
            server.take(limit, 100);
            let (value, _) = server.key.take().unwrap();
            server.key = Some((value, at(arrival + 10).floor_millis()));
            server.ban(seconds(3600), at(arrival));
            let peek = limit.replace(" me", " other");
            assert_eq!(remaining_units(&server.peek(&peek, arrival + 9)), [8], "{limit} at {arrival}");
            // The next change removes a component that has recovered.
            server.ban(seconds(7200), at(arrival + 10));
            assert_eq!(remaining_units(&server.peek(&peek, arrival + 10)), [remaining], "{limit}");
        }
    }
}

#[test]
fn converted_log_is_shifted_back_once() {
    for limit in ["SLIDINGLOG 9 1h", "CONCURRENCY 9 1h me"] {
        let mut server = Server::default();
        server.take(limit, 100);
        server.ban(seconds(1), at(50));
        // `Server` compares the replicas with the key.
        server.take(limit, 60);
        server.take(limit, 70);
    }
}

/// Returns a server with a key of fifteen components, and the effect of a call at second 60. The call charges the last
/// component (serial number 14), which has recovered, and creates a sixteenth component.
fn effect_with_a_sixteenth_component() -> (Server, Vec<u64>) {
    let mut server = Server::default();
    for name in 0..14 {
        server.take(&format!("FIXED 9 1h AS n{name}"), 0);
    }
    server.take("FIXED 9 1m", 0);
    let words = words("FIXED 9 1m FIXED 9 2h");
    let call = call_of(&KeyRequest::take(&mut Args::new(&words), None).unwrap());
    let mut charged = server.components().unwrap().clone();
    let evaluation = CompositeEvaluation::at(&call, StoredUsage::Composite(&charged), at(60));
    charged.charge(&call, &evaluation, at(60));
    let mut effect = EncodedFields::default();
    charged.encode_effect(&mut effect);
    let numbers = effect.numbers();
    assert_eq!((numbers[CHARGED], numbers[NEW]), (tag(14, 1, 0), tag(15, 1, 1)), "{numbers:?}");
    (server, numbers)
}

/// Index of the charged component's tag. Its recovery and three numbers of its usage follow.
const CHARGED: usize = 6;
/// Index of the new component's tag. Three numbers of its identity follow, its recovery, and three of its usage.
const NEW: usize = 11;

fn tag(serial: u64, kind: u64, flags: u64) -> u64 {
    (serial * 16 + kind) * 8 + flags
}

fn applied_numbers(usage: &CompositeUsage, numbers: &[u64]) -> Option<CompositeUsage> {
    applied(usage, &EncodedFields::integers(numbers.iter().copied()))
}

#[test]
fn effect_with_a_seventeenth_component_is_rejected() {
    let (mut server, numbers) = effect_with_a_sixteenth_component();
    let components = |server: &Server, numbers: &[u64]| {
        applied_numbers(server.components().unwrap(), numbers).map(|after| after.components.len())
    };
    assert_eq!(components(&server, &numbers), Some(16));
    server.take("FIXED 9 1h AS n14", 0);
    assert_eq!(server.components().unwrap().components.len(), 16);
    let edited = |recovers_at: u64| {
        let mut numbers = numbers.clone();
        (numbers[CHARGED + 1], numbers[NEW]) = (recovers_at, tag(16, 1, 1));
        numbers
    };
    assert_eq!(components(&server, &edited(at(120).micros())), None);
    // There is room for the new component if the charged one has recovered by the time of the call, or is unused.
    assert_eq!(components(&server, &edited(at(60).micros())), Some(16));
    let mut unused = edited(at(120).micros());
    unused[CHARGED] = tag(14, 1, 2);
    unused.drain(CHARGED + 2..NEW);
    assert_eq!(components(&server, &unused), Some(16));
}

#[test]
fn effect_on_a_component_of_another_kind_or_name_is_rejected() {
    let (server, numbers) = effect_with_a_sixteenth_component();
    let applies = |numbers: &[u64]| applied_numbers(server.components().unwrap(), numbers).is_some();
    let with = |index: usize, value: u64| {
        let mut numbers = numbers.clone();
        numbers[index] = value;
        numbers
    };
    assert!(applies(&numbers));
    assert!(!applies(&with(CHARGED, tag(14, 2, 0))), "another kind");
    assert_eq!(numbers[NEW + 2], seconds(7200).micros());
    assert!(!applies(&with(NEW + 2, seconds(60).micros())), "the window of another component");
    let mut without_identity = with(NEW, tag(15, 1, 0));
    without_identity.drain(NEW + 1..NEW + 4);
    assert!(!applies(&without_identity), "a new component without an identity");
}

#[test]
fn effect_with_an_unknown_tag_is_rejected() {
    let (server, numbers) = effect_with_a_sixteenth_component();
    let usage = server.components().unwrap();
    assert!(applied_numbers(usage, &numbers).is_some());
    for effect_tag in [1, 3] {
        let numbers = [&[effect_tag], &numbers[1..]].concat();
        assert!(applied_numbers(usage, &numbers).is_none(), "{effect_tag}");
    }
}
