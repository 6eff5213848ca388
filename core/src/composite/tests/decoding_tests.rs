//! Decoding of composite keys: states and effects of calls are accepted, impossible ones are rejected.

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
    // Up to the most components that there can be.
    for period in 2..13 {
        server.take(&format!("TOKENBUCKET 9 1 {period}h"), 1);
    }
    assert_eq!(server.components().map(|usage| usage.components.len()), Some(16));
}

#[test]
fn description_shows_the_state_that_counts() {
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
    let known = parts.iter().map(|part| part.get(1).cloned()).collect::<Vec<_>>();
    assert!(matches!(&known[0], Some(("name", InfoField::Name(name))) if **name == *b"a"), "{known:?}");
    assert_eq!(known[1], Some(("window", InfoField::Span(seconds(60)))));
    // A table of leases has no window.
    assert!(matches!(known[2], Some(("recovers_at", _))), "{known:?}");
}

#[test]
fn force_of_one_limit_is_combined_with_upto_of_the_others() {
    let call = "COST 4 UPTO ONCE a 10m FIXED 3 1h FIXED 5 1d COST 4 FORCE";
    let mut server = Server::default();
    let first = server.take(call, 0).decision;
    assert_eq!((first.verdict, first.granted), (Verdict::Allowed(Span::ZERO), Some(units(3))));
    // Sent again, it is answered as it was, whatever has become of the other limit.
    server.take("COST 4 FORCE FIXED 5 1d", 1);
    let again = server.take_without_write(call, 1).decision;
    let until_the_day_is_over = Verdict::After(seconds(86_400 - 1));
    assert_eq!((again.verdict, again.granted), (until_the_day_is_over, Some(units(3))));
    // So is each limit, though it has been forced past by then.
    server.take("COST 4 FORCE FIXED 3 1h", 1);
    let each = server.take_without_write(&format!("EACH {call}"), 1).each;
    assert_eq!(each.iter().map(|decision| decision.granted).collect::<Vec<_>>(), [Some(units(3)), None]);
    // One that has nothing to grant denies all; one that forces does not.
    let denied = server.take_without_write(call.replace("ONCE a", "ONCE b").as_str(), 2).decision;
    assert_eq!((denied.verdict, denied.granted), (Verdict::After(seconds(3600 - 2)), Some(Amount::ZERO)));
    let past = server.take("COST 2 UPTO ONCE c 10m FIXED 3 1m FIXED 5 1d COST 1 FORCE", 2).decision;
    assert_eq!(
        (past.verdict, past.granted),
        (Verdict::After(seconds(86_400 - 2)), Some(units(2))),
        "the charged amount is reported"
    );
    // Both are settled, but for the cost of its own.
    server.take("SETTLE c 0 FIXED 3 1m FIXED 5 1d COST 1", 3);
    assert_eq!(remaining_units(&server.peek("EACH FIXED 3 1m FIXED 100 1d", 3)), [3, 91]);
}

/// A key of one component of each kind that has its own instant, as it is stored, each charged at the tenth second.
fn of_every_kind() -> Server {
    let mut server = Server::default();
    let limits = "TOKENBUCKET 9 9 1h FIXED 9 1h SLIDING 9 1h SLIDING 9 1h STRICT SLIDINGLOG 9 1h CONCURRENCY 9 1h me";
    server.take(limits, 10);
    server
}

#[test]
fn component_later_than_its_key_is_rejected() {
    let stored = of_every_kind().stored().unwrap();
    let fields: Vec<u64> = stored.clone().numbers();
    assert_eq!(fields[0], at(10).micros(), "when the key was changed");
    assert!(decoded::<CompositeUsage>(&stored).is_some());
    let places: Vec<usize> = (1..fields.len()).filter(|place| fields[*place] == at(10).micros()).collect();
    assert_eq!(places.len(), 6, "each component has an instant of its own");
    for place in places {
        let later = stored.with(place, at(10).micros() + 1);
        assert!(decoded::<CompositeUsage>(&later).is_none(), "{place}");
    }
}

#[test]
fn effect_with_a_component_later_than_its_key_is_rejected() {
    let mut server = of_every_kind();
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
    // But for that of the key itself, which stands behind what begins an effect.
    let places: Vec<usize> = (2..fields.len()).filter(|place| fields[*place] == now.micros()).collect();
    assert!(places.len() >= 5, "{effect:?}");
    for place in places {
        let later = effect.with(place, now.micros() + 1);
        assert!(applied(&before, &later).is_none(), "{place}");
    }
    server.take(limits, 20);
}

#[test]
fn effect_older_than_the_usage_is_rejected_for_each_kind() {
    let accepts = |effect: &EncodedFields, latest: u64| {
        let unused = CompositeUsage::default();
        unused.accepts_effect_until(&mut effect.clone(), CompositeUsage::VERSION, at(latest))
    };
    let usage = of_every_kind().components().unwrap().clone();
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

/// Asserts that a whole effect and a change are accepted at the time of their call, and rejected before.
fn accepts_no_later_effect<L: Limit>(limit: &L) {
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
fn effect_older_than_its_component_is_rejected() {
    let hour = period("1h");
    accepts_no_later_effect(&SlidingLog::new(units(9), hour));
    accepts_no_later_effect(&Concurrency::new(units(9), hour).for_holder(b"me"));
    accepts_no_later_effect(&FixedWindow::new(units(9), hour));
}

#[test]
fn component_removed_in_its_first_call_leaves_no_gap_on_a_replica() {
    // At the end of time a lease has expired as it is taken.
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
    // Such a number is one of those that there can be.
    let tag = |serial| serial * 16 * 8 + 9;
    let of_serial = |serial| applied(&before, &effect.with(12, serial).with(22, tag(serial))).is_some();
    assert_eq!([12, 22].map(|place| effect.clone().numbers()[place]), [2, tag(2)]);
    assert!(of_serial(23) && !of_serial(24) && !of_serial(0));
}

#[test]
fn impossible_ban_is_rejected() {
    let ban = |ban: &[u64]| {
        let extras =
            ban.iter().fold(EncodedFields::integers([at(10).micros(), 0, 1, 0]), |fields, own| fields.and([*own]));
        decoded::<CompositeUsage>(&extras).is_some()
    };
    let (now, longest) = (at(10).micros(), Span::MAX_ARGUMENT.micros());
    assert!(ban(&[now + longest, 1, now, longest]));
    for refused in [[now + longest + 1, 1, now, longest], [now, 1, now + 1, longest], [now, 1, now, longest + 1]] {
        assert!(!ban(&refused));
    }
    // With a level, which stands before the strikes.
    let level = 1 << 32;
    assert!(ban(&[now, level, 1, 1]) && ban(&[now, level + 1, 3, 4, now, longest]));
    // 8 seconds make a level; at least a microsecond of them is left.
    assert!(ban(&[at(2).micros() + 1, level, 1, 8_000_000]) && ban(&[now + longest, level, 50, longest]));
    for refused in [
        [now, level, 0, 1],
        [now, level, 1, 0],
        [now, level, 1, longest + 1],
        [now, level, 256, longest],
        [now, level, 51, longest],
        [now, level, 4, 4],
        [now, level * 2, 1, 1],
        [at(2).micros(), level, 1, 8_000_000],
    ] {
        assert!(!ban(&refused), "{refused:?}");
    }
}

#[test]
fn conversion_keeps_the_usage_if_the_expiry_is_newer_than_the_clock_step() {
    // As MIGRATE brings it to a server whose clock is two hours behind: the TTL is what was left of it.
    for (limit, used) in [
        ("FIXED 9 1h", 9),
        ("FIXED 9 1d ALIGNED", 9),
        ("TOKENBUCKET 9 9 1h", 8),
        ("SLIDING 9 1h", 9),
        ("SLIDING 9 1h STRICT", 9),
        ("SLIDINGLOG 9 1h", 9),
        ("CONCURRENCY 9 1h me COST 9", 9),
    ] {
        let mut server = Server::default();
        let cost = if limit.starts_with("CONC") { String::new() } else { " COST 9".to_owned() };
        server.take(&format!("{limit}{cost}"), 10_000);
        let (value, _) = server.key.take().unwrap();
        let arrives = 10_000 - 7200;
        server.key = Some((value, at(arrives + 3600 + 450).floor_millis()));
        // A ban is all that the call changes.
        server.ban(seconds(1), at(arrives));
        let left_at = |second: u64| {
            let mut server = server.clone();
            let gone = server.expire(at(second));
            let evaluations = limit.replace(" COST 9", "").replace(" me", " other");
            (gone, remaining_units(&server.peek(&evaluations, second))[0])
        };
        assert_eq!(left_at(arrives + 1), (false, 0), "{limit}");
        let recovering = if limit.starts_with("TOKEN") || limit == "SLIDING 9 1h" { 0..=9 } else { 0..=0 };
        let (gone, units) = left_at(arrives + 3599);
        assert!(!gone && recovering.contains(&units), "{limit}: {units} of {used}");
    }
}

#[test]
fn shortened_expiry_of_a_plain_key_is_kept_unless_its_recovery_needs_longer() {
    let limits = ["FIXED 9 1h", "SLIDING 9 1h STRICT", "SLIDINGLOG 9 1h", "CONCURRENCY 9 1h me"];
    for (arrives, remembered) in [(100, [9, 9, 9, 9]), (50, [9, 8, 9, 9])] {
        for (limit, remembered) in limits.into_iter().zip(remembered) {
            let mut server = Server::default();
            server.take(limit, 100);
            let (value, _) = server.key.take().unwrap();
            server.key = Some((value, at(arrives + 10).floor_millis()));
            server.ban(seconds(3600), at(arrives));
            let evaluations = limit.replace(" me", " other");
            assert_eq!(remaining_units(&server.peek(&evaluations, arrives + 9)), [8], "{limit} at {arrives}");
            // What has recovered goes with the next change.
            server.ban(seconds(7200), at(arrives + 10));
            assert_eq!(remaining_units(&server.peek(&evaluations, arrives + 10)), [remembered], "{limit}");
        }
    }
}

#[test]
fn converted_log_is_shifted_back_once() {
    for limit in ["SLIDINGLOG 9 1h", "CONCURRENCY 9 1h me"] {
        let mut server = Server::default();
        server.take(limit, 100);
        server.ban(seconds(1), at(50));
        // The replicas that follow are compared.
        server.take(limit, 60);
        server.take(limit, 70);
    }
}

/// A server whose key has fifteen components, and the effect of a call at 60 s that charges the last, of serial number
/// 14, which has recovered by then, and makes a sixteenth.
fn sixteenth() -> (Server, Vec<u64>) {
    let mut server = Server::default();
    for n in 0..14 {
        server.take(&format!("FIXED 9 1h AS n{n}"), 0);
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

/// Index of the charged component's tag in the numbers; its recovery and three numbers of its usage follow. `NEW` is
/// that of the new component, which also has three numbers of its identity.
const CHARGED: usize = 6;
const NEW: usize = 11;

fn tag(serial: u64, kind: u64, flags: u64) -> u64 {
    (serial * 16 + kind) * 8 + flags
}

fn applied_numbers(usage: &CompositeUsage, numbers: &[u64]) -> Option<CompositeUsage> {
    applied(usage, &EncodedFields::integers(numbers.iter().copied()))
}

#[test]
fn effect_with_a_seventeenth_component_is_rejected() {
    let (mut server, numbers) = sixteenth();
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
    // Whichever has recovered by the call, or has nothing used, makes room for the new one.
    assert_eq!(components(&server, &edited(at(60).micros())), Some(16));
    let mut unused = edited(at(120).micros());
    unused[CHARGED] = tag(14, 1, 2);
    unused.drain(CHARGED + 2..NEW);
    assert_eq!(components(&server, &unused), Some(16));
}

#[test]
fn effect_on_a_component_of_another_kind_or_name_is_rejected() {
    let (server, numbers) = sixteenth();
    let applies = |numbers: &[u64]| applied_numbers(server.components().unwrap(), numbers).is_some();
    let with = |place: usize, value: u64| {
        let mut numbers = numbers.clone();
        numbers[place] = value;
        numbers
    };
    assert!(applies(&numbers));
    assert!(!applies(&with(CHARGED, tag(14, 2, 0))), "of another kind");
    assert_eq!(numbers[NEW + 2], seconds(7200).micros());
    assert!(!applies(&with(NEW + 2, seconds(60).micros())), "of a window that another component has");
    let mut unnamed = with(NEW, tag(15, 1, 0));
    unnamed.drain(NEW + 1..NEW + 4);
    assert!(!applies(&unnamed), "known by nothing");
}

#[test]
fn non_canonical_change_is_rejected() {
    let (server, numbers) = sixteenth();
    let usage = server.components().unwrap();
    assert!(applied_numbers(usage, &numbers).is_some());
    for form in [1, 3] {
        let numbers = [&[form], &numbers[1..]].concat();
        assert!(applied_numbers(usage, &numbers).is_none(), "{form}");
    }
}
