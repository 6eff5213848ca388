mod fence;

use super::few;
use super::many::{ManyLeases, SWEPT};
use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::Take;
use crate::limit::{InfoField, Usage};
use crate::testing::calls::{
    Key, amount_of, amounts, assert_leaves, call, call_and_tell, lengths, millionths, peek, period, units, us,
};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::Lawful;
use crate::wire::codec::{CHANGE, WHOLE};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

const LONGEST: u64 = 3650 * 86_400_000_000;

fn held<'a>(holder: &'a str, limit: u64, ttl: &str) -> LeaseLimit<'a> {
    Concurrency::new(units(limit), period(ttl)).asked_by(holder.as_bytes())
}

fn cost(cost: u64) -> Request {
    Take(units(cost))
}

/// Leases that were taken at 0 s.
fn table(leases: &[(&str, u64, &str)]) -> Key<ConcurrencyUsage> {
    let mut key = Key::default();
    for (holder, units, ttl) in leases {
        assert_eq!(key.call(&held(holder, 1000, ttl), 0, cost(*units))[0], 1);
    }
    key
}

/// A holder, when its lease expires, and its units.
type Lease<'a> = (&'a [u8], u64, u64);

/// A table as it is written out.
fn written(at: u64, leases: &[Lease]) -> EncodedFields {
    let fields = EncodedFields::integers([at, leases.len().try_into().unwrap()]);
    leases.iter().fold(fields, |fields, (holder, expires_at, units)| fields.then(holder, [*expires_at, *units]))
}

/// What a call has changed, as it is written out.
fn change(moved_back: u64, at: u64, released: &[&[u8]], leased: Option<Lease>) -> EncodedFields {
    let fields = EncodedFields::integers([CHANGE, moved_back, at, released.len().try_into().unwrap()]);
    let fields = released.iter().fold(fields, |fields, holder| fields.then(holder, []));
    match leased {
        None => fields.and([0]),
        Some((holder, expires_at, units)) => fields.and([1]).then(holder, [expires_at, units]),
    }
}

#[test]
fn a_lease_expires_after_its_ttl() {
    for ttl in [1, 59, 60_000_000, LONGEST] {
        let limit = |holder| Concurrency::new(units(10), Period::new(Span::from_micros(ttl)).unwrap()).asked_by(holder);
        for acquired in [0, 7, 1_700_000_000_000_000] {
            assert_leaves(&limit(b"a"), &limit(b"b"), acquired, acquired + ttl);
        }
    }
    // Whatever the limit and the time to live of whoever asks.
    assert_leaves(&held("a", 10, "60s"), &held("b", 5, "1s"), 500, 60_000_500);
}

#[test]
fn at_most_the_limit_is_held_at_once() {
    let mut key = Key::default();
    for (holder, ttl, at, asked, reply) in [
        ("a", "10s", 0, 4, [1, 10, 6, 0, 10_000]),
        ("b", "60s", 1000, 6, [1, 10, 0, 0, 60_000]),
        ("c", "60s", 2000, 1, [0, 10, 0, 8000, 59_000]),
        ("c", "60s", 9999, 4, [0, 10, 0, 1, 51_001]),
        ("c", "60s", 10_000, 5, [0, 10, 4, 51_000, 51_000]),
        ("c", "1s", 10_000, 4, [1, 10, 0, 0, 51_000]),
        ("a", "1s", 10_000, 11, [0, 10, 0, -1, 51_000]),
        ("a", "1s", 61_000, 10, [1, 10, 0, 0, 1000]),
    ] {
        assert_eq!(key.call(&held(holder, 10, ttl), at, cost(asked)), reply, "{holder} at {at}");
    }
}

#[test]
fn a_renewal_takes_nothing_from_anybody() {
    // a holds 2 and b 3; a asks again after a second, for so long.
    for (what, limit, asked, ttl, reply, left_at_15_s) in [
        ("the same", 6, 2, "10s", [1, 6, 1, 0, 19_000], 3),
        ("less", 6, 1, "10s", [1, 6, 2, 0, 19_000], 3),
        ("more, which fits beside the others", 6, 3, "10s", [1, 6, 0, 0, 19_000], 3),
        ("more than fits", 6, 4, "10s", [0, 6, 1, 19_000, 19_000], 3),
        ("more than the limit", 6, 7, "10s", [0, 6, 1, -1, 19_000], 3),
        ("for longer", 6, 2, "30s", [1, 6, 1, 0, 30_000], 1),
        ("the same under a lower limit", 1, 2, "30s", [1, 1, 0, 0, 30_000], 0),
        ("the same under a limit of nothing", 0, 2, "30s", [1, 0, 0, 0, 30_000], 0),
        ("less under a limit of nothing", 0, 1, "30s", [1, 0, 0, 0, 30_000], 0),
        ("more under a limit that the others exceed", 2, 2, "10s", [1, 2, 0, 0, 19_000], 0),
        ("more under a limit that the others reach", 3, 3, "10s", [0, 3, 0, 19_000, 19_000], 0),
        ("more under a limit of nothing", 0, 3, "10s", [0, 0, 0, -1, 19_000], 0),
    ] {
        let mut key = table(&[("a", 2, "10s"), ("b", 3, "20s")]);
        assert_eq!(key.call(&held("a", limit, ttl), 1000, cost(asked)), reply, "{what}");
        assert_eq!(key.peek(&held("c", limit, ttl), 15_000, cost(1))[2], left_at_15_s, "{what}");
    }
    // A holder whose lease has expired is as good as new.
    let key = table(&[("a", 2, "10s"), ("b", 3, "20s")]);
    assert_eq!(key.peek(&held("a", 0, "10s"), 9999, cost(2))[0], 1);
    assert_eq!(key.peek(&held("a", 0, "10s"), 10_000, cost(2)), [0, 0, 0, -1, 10_000]);
    assert_eq!(key.peek(&held("a", 4, "10s"), 10_000, cost(2)), [0, 4, 1, 10_000, 10_000]);
}

#[test]
fn a_shorter_renewal_expires_sooner() {
    let mut key = table(&[("a", 2, "60s")]);
    assert_eq!(key.call(&held("a", 2, "1s"), 10_000, cost(2)), [1, 2, 0, 0, 1000]);
    assert_eq!(key.call(&held("b", 2, "1s"), 11_000, cost(2)), [1, 2, 0, 0, 1000]);
}

#[test]
fn a_wait_ends_when_enough_of_the_others_have_expired() {
    let key = table(&[("a", 2, "10s"), ("b", 3, "20s"), ("c", 1, "30s")]);
    for (holder, asked, wait) in [
        ("d", 1, 9000),
        ("d", 2, 9000),
        ("d", 3, 19_000),
        ("d", 5, 19_000),
        ("d", 6, 29_000),
        ("d", 7, -1),
        // For b only a and c are in the way, for a only b and c, for c only a and b.
        ("b", 4, 9000),
        ("b", 5, 9000),
        ("b", 6, 29_000),
        ("a", 3, 19_000),
        ("a", 6, 29_000),
        ("c", 2, 9000),
        ("c", 6, 19_000),
    ] {
        assert_eq!(key.peek(&held(holder, 6, "1s"), 1000, cost(asked)), [0, 6, 0, wait, 29_000], "{holder} {asked}");
    }
}

#[test]
fn a_first_lease_is_no_renewal() {
    // a holds 2, b 3 and c 1 of 6; each asks after a second as if it had none.
    for (holder, limit, asked, reply) in [
        ("a", 6, 2, [0, 6, 0, 9000, 29_000]),
        ("a", 6, 1, [0, 6, 0, 9000, 29_000]),
        // Its own lease has to expire, whatever room there is.
        ("a", 100, 1, [0, 100, 94, 9000, 29_000]),
        ("c", 100, 1, [0, 100, 94, 29_000, 29_000]),
        // And the others have to leave room: before that, at the same time, or after.
        ("c", 6, 2, [0, 6, 0, 29_000, 29_000]),
        ("b", 6, 5, [0, 6, 0, 19_000, 29_000]),
        ("a", 6, 3, [0, 6, 0, 19_000, 29_000]),
        ("a", 6, 6, [0, 6, 0, 29_000, 29_000]),
        ("a", 6, 7, [0, 6, 0, -1, 29_000]),
        ("a", 1, 2, [0, 1, 0, -1, 29_000]),
        ("a", 0, 0, [0, 0, 0, 29_000, 29_000]),
        ("a", 100, 0, [0, 100, 94, 9000, 29_000]),
        // A holder without a lease is asked nothing more.
        ("d", 7, 1, [1, 7, 0, 0, 29_000]),
        ("d", 6, 1, [0, 6, 0, 9000, 29_000]),
    ] {
        let mut key = table(&[("a", 2, "10s"), ("b", 3, "20s"), ("c", 1, "30s")]);
        let limit = held(holder, limit, "10s").nx(true);
        assert_eq!(key.call(&limit, 1000, cost(asked)), reply, "{holder} of {limit:?}");
        if reply[0] == 0 {
            assert_eq!(
                key.call(&limit.nx(false), 1000, cost(1))[0],
                i64::from(holder != "d"),
                "it has written nothing"
            );
        }
    }
    // Expired or released, it is gone.
    let mut key = table(&[("a", 2, "10s")]);
    assert_eq!(key.peek(&held("a", 2, "1s").nx(true), 9999, cost(2))[0], 0);
    assert_eq!(key.peek(&held("a", 2, "1s").nx(true), 10_000, cost(2))[0], 1);
    key.0.release(&[b"a"], us(0));
    assert_eq!(key.call(&held("a", 2, "1s").nx(true), 0, cost(2))[0], 1);
    assert_eq!(key.call(&held("a", 2, "1s").nx(true), 0, cost(2)), [0, 2, 0, 1000, 1000], "of two, one");
}

#[test]
fn a_lease_lasts_until_its_ttl_is_over_or_it_is_released() {
    let mut usage = table(&[("a", 1, "1s"), ("b", 2, "10s")]).0;
    let until = |usage: &ConcurrencyUsage, holder: &str, at| usage.lease_until(holder.as_bytes(), us(at));
    for (holder, at, expires_at) in [
        ("a", 0, Some(1_000_000)),
        ("a", 999_999, Some(1_000_000)),
        ("a", 1_000_000, None),
        ("b", 1_000_000, Some(10_000_000)),
        ("c", 0, None),
    ] {
        assert_eq!(until(&usage, holder, at), expires_at.map(us), "{holder} at {at}");
    }
    usage.release(&[b"b"], us(0));
    assert_eq!((until(&usage, "a", 0), until(&usage, "b", 0)), (Some(us(1_000_000)), None));
}

#[test]
fn released_are_those_that_were_held() {
    let mut usage = table(&[("a", 1, "1s"), ("b", 2, "10s"), ("c", 3, "20s"), ("d", 4, "30s")]).0;
    for (millis, holders, count, left) in [
        (500, &["x"][..], 0, 10),
        (500, &["b", "b", "x"], 1, 8),
        (500, &["b"], 0, 8),
        // a has expired.
        (1000, &["a"], 0, 7),
        (19_999, &["c", "a", "c"], 1, 4),
        (29_999, &["a", "b", "c", "d"], 1, 0),
    ] {
        let before = encoded(&usage);
        let names: Vec<&[u8]> = holders.iter().map(|holder| holder.as_bytes()).collect();
        assert_eq!(usage.release(&names, us(millis * 1000)), count, "{holders:?} at {millis}");
        assert_eq!(usage.present(us(millis * 1000)).units, units(left));
        assert_eq!(encoded(&usage) == before, count == 0, "what releases nothing changes nothing");
    }
    assert!(usage.is_unused());
}

#[test]
fn what_has_expired_stays_until_a_charge_but_does_not_count() {
    let mut key = table(&[("a", 1, "1s"), ("b", 1, "2s"), ("c", 1, "60s")]);
    let before = encoded(&key.0);
    let (newcomer, holder) = (held("d", 3, "60s"), held("c", 3, "60s"));
    for (at, asked, left, entries) in [(0, 1, 0, 4), (999, 1, 0, 4), (1000, 2, 1, 3), (2000, 3, 2, 2)] {
        assert_eq!(key.call(&newcomer, at, cost(asked))[..3], [0, 3, left]);
        assert_eq!(newcomer.entries_after_charge(&key.0, us(at * 1000)), Some(entries));
        assert_eq!(holder.entries_after_charge(&key.0, us(at * 1000)), None, "it has an entry");
    }
    assert_eq!((encoded(&key.0) == before, key.0.effort()), (true, 3), "a denied call changes nothing");
    // Looks may come in any order, those of a later time first.
    for (at, left) in [(2000, 2), (0, 0), (1500, 1), (999, 0), (60_000, 3), (1000, 1)] {
        assert_eq!(key.peek(&newcomer, at, cost(1))[2], left);
    }
    assert_eq!(key.call(&newcomer, 2000, cost(2)), [1, 3, 0, 0, 60_000]);
    assert_eq!(encoded(&key.0), written(2_000_000, &[(b"c", 60_000_000, 1_000_000), (b"d", 62_000_000, 2_000_000)]));
    assert_eq!(held("a", 3, "1s").entries_after_charge(&key.0, us(60_000_000)), Some(2));
}

#[test]
fn a_clock_gone_back_takes_the_expires_along() {
    let mut key = table(&[]);
    key.call(&held("a", 6, "10s"), 1_000_000, cost(2));
    key.call(&held("b", 6, "60s"), 1_005_000, cost(4));
    let limit = held("c", 6, "60s");
    // By 965 s, from when the table was last changed.
    assert_eq!(key.peek(&limit, 40_000, cost(2)), [0, 6, 0, 5000, 60_000]);
    assert_eq!(key.peek(&limit, 1_010_000, cost(2)), [1, 6, 2, 0, 55_000], "a peek has written nothing");
    assert_eq!(key.call(&limit, 40_000, cost(2)), [0, 6, 0, 5000, 60_000]);
    assert_eq!(key.peek(&limit, 45_000, cost(2)), [1, 6, 2, 0, 55_000], "a denied call has written that");
    assert_eq!(encoded(&key.0), written(40_000_000, &[(b"a", 45_000_000, 2_000_000), (b"b", 100_000_000, 4_000_000)]));
    assert_eq!(key.call(&limit, 0, cost(2)), [0, 6, 0, 5000, 60_000], "nor is the epoch too early");
}

/// A lease of 10 s each for 10,000 holders, a microsecond apart, and the last instant.
fn crowd() -> (ConcurrencyUsage, Timestamp) {
    let mut usage = ConcurrencyUsage::default();
    for number in 0..10_000 {
        let holder = format!("{number}");
        call_and_tell(&held(&holder, 1_000_000, "10s"), &mut usage, us(1_000_000 + number), cost(1));
    }
    (usage, us(1_009_999))
}

#[test]
fn a_clock_gone_back_costs_no_more_among_many() {
    let (mut usage, last) = crowd();
    let (new, full) = (held("new", 1_000_000, "10s"), held("new", 9_999, "10s"));
    let later = last.plus(Span::SECOND.times(10));
    new.remaining(&usage, later);
    let walked = effort::without_copies(|| {
        for back in [1, 1000, 1_000_000] {
            let earlier = last.minus(Span::from_micros(back));
            assert!(peek(&new, &usage, earlier, cost(1)).verdict.allowed());
            assert!(!peek(&full, &usage, earlier, cost(1)).verdict.allowed());
            assert_eq!(new.entries_after_charge(&usage, earlier), Some(10_001));
        }
        assert_eq!(new.remaining(&usage, later), units(1_000_000), "nor have they forgotten what was seen before");
    });
    // A denied cost of 1 waits for the second lease.
    assert_eq!(walked, 3 * 2);

    for back in [1000, 1_000_000] {
        let earlier = last.minus(Span::from_micros(back));
        assert_eq!(effort::without_copies(|| call(&new, &mut usage, earlier, cost(1))), 0);
    }
    assert_eq!(encoded(&usage), encoded(&decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap()));
}

#[test]
fn a_crowd_that_has_expired_is_passed_once_and_swept_out_by_many_calls() {
    let (mut usage, last) = crowd();
    let limit = held("new", 10_000, "10s");
    let (half, all) = (Span::from_micros(10_000_000 - 5000), Span::from_micros(10_000_000));
    for (later, passed, left) in [(half, 5000, 5000), (half, 0, 5000), (all, 5000, 10_000), (all, 0, 10_000)] {
        let now = last.plus(later);
        let walked = effort::without_copies(|| assert_eq!(peek(&limit, &usage, now, cost(1)).remaining, units(left)));
        assert_eq!(walked, passed);
    }
    let now = last.plus(all);
    let whole = usage.heap_size();
    for calls in 1..=10_000 / SWEPT {
        let walked = effort::of(|| assert!(call(&limit, &mut usage, now, cost(1)).verdict.allowed()));
        assert_eq!((walked, usage.effort()), (SWEPT, 10_000 - SWEPT * calls + 1));
        assert_eq!((usage.entries(), limit.remaining(&usage, now)), (1, units(9999)), "of them nobody knows");
    }
    assert_eq!(effort::of(|| call(&limit, &mut usage, now, cost(1))), 0);
    assert!(usage.heap_size() < whole / 100);
}

#[test]
fn looks_ahead_of_the_changes_cost_no_more() {
    // As on a replica, whose clock is ahead of that of its master.
    let (mut here, _) = crowd();
    let (mut there, limit) = (here.clone(), held("new", 20_000, "10s"));
    for step in 0..20 {
        let now = us(11_000_000 + 400 * step);
        let mut told = call_and_tell(&limit, &mut here, now, cost(1)).1;
        let walked = effort::of(|| {
            peek(&limit, &there, now.plus(Span::from_micros(2000)), cost(1));
            assert!(there.accepts_effect(&mut told.clone(), 1));
            there.apply_effect(&mut told, 1);
        });
        // Those that have expired since the last time, as the looks and the changes have it; and the first time, by
        // the looks' clock, 2000 more.
        assert!(walked <= 3 * 400 + SWEPT + 2000 * usize::from(step == 0), "{walked} in step {step}");
        assert_eq!(encoded(&there), encoded(&here));
    }
}

#[test]
fn who_has_expired_is_gone_whether_swept_out_or_not() {
    let (mut usage, last) = crowd();
    let now = last.plus(Span::SECOND.times(10));
    assert!(call(&held("new", 1, "10s"), &mut usage, now, cost(1)).verdict.allowed());
    assert!(usage.effort() > 9000, "most are still there");
    let fields = written(now.micros(), &[(b"new", now.micros() + 10_000_000, 1_000_000)]);
    assert_eq!((encoded(&usage), encoded(&usage.clone())), (fields.clone(), fields));
    assert_eq!(usage.release(&[b"9999", b"9998"], now), 0);
    // A renewal it is not.
    assert!(!peek(&held("9999", 1, "10s"), &usage, now, cost(1)).verdict.allowed());
    assert!(call(&held("9999", 2, "10s"), &mut usage, now, cost(1)).verdict.allowed());
    assert_eq!((usage.entries(), usage.release(&[b"9999", b"9998", b"new"], now)), (2, 2));
    assert!(usage.is_unused());
}

#[test]
fn a_clock_may_go_through_its_whole_range_however_often() {
    for holders in [1, 2 * few::MOST] {
        let names = |when: &str| (0..holders).map(|number| format!("{when}{number:02}")).collect::<Vec<_>>();
        let (early, late) = (names("early"), names("late"));
        let mut usage = ConcurrencyUsage::default();
        let mut moved = 0;
        for _ in 0..200 {
            for (at, names) in [(Timestamp::MAX.micros() - 1_000_000, &late), (0, &early)] {
                for name in names {
                    let limit = held(name, 300, "1ms");
                    moved += effort::of(|| assert!(call(&limit, &mut usage, us(at), cost(1)).verdict.allowed()));
                    assert_eq!(peek(&limit, &usage, us(at), cost(301)).reset, Span::from_micros(1000));
                }
            }
            let leases: Vec<Lease> = early.iter().chain(&late).map(|name| (name.as_bytes(), 1000, 1_000_000)).collect();
            assert_eq!(encoded(&usage), written(0, &leases));
        }
        // In each round those of a crowd expire and are swept out, which passes each twice; and in dozens of rounds all
        // are moved once, one by one. Of few nothing is counted.
        let most = 4 * holders * 200 + 10 * 2 * holders;
        let rounds = if holders == 1 { 0..1 } else { 1..most };
        assert!(rounds.contains(&moved), "{moved} of {holders}");
    }
}

#[test]
fn at_the_end_of_time_a_lease_expires_as_it_comes() {
    let (last, before) = (Timestamp::MAX, Timestamp::MAX.minus(Span::MICROSECOND));
    let mut usage = ConcurrencyUsage::default();
    for number in 0..3 * SWEPT {
        let holder = format!("{number}");
        assert!(call(&held(&holder, 100, "1h"), &mut usage, before, cost(1)).verdict.allowed());
    }
    for holder in ["d", "e", "a"] {
        let limit = held(holder, 3, "1h");
        assert_eq!(peek(&limit, &usage, last, cost(1)).remaining, units(3), "all have expired");
        assert!(call(&limit, &mut usage, last, cost(3)).verdict.allowed());
        assert_eq!(encoded(&usage), written(last.micros(), &[(holder.as_bytes(), last.micros(), 3_000_000)]));
        assert_eq!((peek(&limit, &usage, last, cost(1)).remaining, usage.release(&[b"a"], last)), (units(3), 0));
    }
    assert_eq!(peek(&held("b", 3, "1h"), &usage, before, cost(1)).remaining, units(3));
    usage.move_back(before);
    assert!(usage.is_unused());
}

#[test]
fn takes_nothing_for_a_table_that_is_none() {
    let (last, most, long) = (Timestamp::MAX.micros(), Amount::MAX_ARGUMENT.millionths(), [b'x'; 257]);
    for fields in [
        written(0, &[(b"a", 1, 1)]),
        written(last - 1, &[(b"\0\xff", last, most)]),
        written(last, &[(b"where times saturate", last, 1)]),
        written(5, &[(b"b", 6, 1), (b"a", 7, most - 3), (b"c", 7, 1), (&long[1..], 5 + LONGEST, 1)]),
    ] {
        assert_eq!(decoded::<ConcurrencyUsage>(&fields).map(|usage| encoded(&usage)), Some(fields.clone()));
        assert!(fields.cut_short().all(|fields| decoded::<ConcurrencyUsage>(&fields).is_none()));
    }
    for (what, fields) in [
        ("no lease", written(5, &[])),
        ("a holder without a name", written(5, &[(b"", 6, 1)])),
        ("a holder of 257 bytes", written(5, &[(&long, 6, 1)])),
        ("a holder twice", written(5, &[(b"a", 6, 1), (b"a", 7, 1)])),
        ("no units", written(5, &[(b"a", 6, 0)])),
        ("units past any limit", written(5, &[(b"a", 6, most + 1)])),
        ("a sum past any limit", written(5, &[(b"a", 6, most), (b"b", 7, 1)])),
        ("units past saturation", written(5, &[(b"a", 6, 1 << 63)])),
        ("too late an expiry", written(last, &[(b"a", last + 1, 1)])),
        ("too late an instant", written(last + 1, &[(b"a", last, 1)])),
        ("a lease for too long", written(5, &[(b"a", 6 + LONGEST, 1)])),
        ("a lease that had expired", written(6, &[(b"a", 6, 1)])),
        ("an expiry at the epoch", written(0, &[(b"a", 0, 1)])),
    ] {
        assert!(decoded::<ConcurrencyUsage>(&fields).is_none(), "{what}");
    }
}

#[test]
fn an_effect_tells_what_a_call_has_changed() {
    let mut usage = ConcurrencyUsage::default();
    let acquires = [
        ("a", 1000, 2, change(0, 1000, &[], Some((b"a", 2000, 2_000_000)))),
        ("b", 1500, 3, change(0, 1500, &[], Some((b"b", 2500, 3_000_000)))),
        ("b", 1600, 1, change(0, 1600, &[], Some((b"b", 2600, 1_000_000)))),
        ("c", 2000, 1, change(0, 2000, &[], Some((b"c", 3000, 1_000_000)))),
        // The clock goes back: seen to by a denied call, and by one that is admitted.
        ("d", 1900, 6, change(100, 1900, &[], None)),
        ("d", 1800, 1, change(100, 1800, &[], Some((b"d", 2800, 1_000_000)))),
    ];
    let check = |before: &ConcurrencyUsage, after: &ConcurrencyUsage, told: &EncodedFields, effect: &EncodedFields| {
        assert_eq!(told, effect);
        assert_eq!(encoded(&applied(before, told).unwrap()), encoded(after));
        assert!(told.cut_short().all(|told| applied(before, &told).is_none()));
        let whole = whole_effect(after);
        assert_eq!(whole, encoded(after).behind(WHOLE));
        for elsewhere in [&ConcurrencyUsage::default(), before].into_iter().filter(|_| !after.is_unused()) {
            assert_eq!(encoded(&applied(elsewhere, &whole).unwrap()), encoded(after));
        }
    };
    for (holder, micros, asked, effect) in &acquires {
        let before = usage.clone();
        let (_, told) = call_and_tell(&held(holder, 6, "1ms"), &mut usage, us(*micros), cost(*asked));
        check(&before, &usage, &told, effect);
    }
    let releases = [
        (1800, &["x", "b", "c", "b"][..], change(0, 1800, &[b"b", b"c"], None)),
        (1700, &["x"], change(100, 1700, &[], None)),
        (1600, &["x", "d"], change(100, 1600, &[b"d"], None)),
    ];
    for (micros, holders, effect) in &releases {
        let before = usage.clone();
        if usage.is_after(us(*micros)) {
            usage.move_back(us(*micros));
        }
        let names: Vec<&[u8]> = holders.iter().map(|holder| holder.as_bytes()).collect();
        usage.release(&names, us(*micros));
        let mut told = EncodedFields::default();
        usage.encode_effect(&mut told);
        check(&before, &usage, &told, effect);
    }
    assert!(usage.is_unused());
}

#[test]
fn refuses_an_effect_that_no_call_can_have_had() {
    let (last, most, long) = (Timestamp::MAX.micros(), Amount::MAX_ARGUMENT.millionths(), [b'x'; 257]);
    let (a, b): (Lease, Lease) = ((b"a", 10, most - 5), (b"b", 20, 3));
    let usage = decoded::<ConcurrencyUsage>(&written(5, &[a, b])).unwrap();
    for (what, effect, becomes) in [
        ("nothing", change(0, 5, &[], None), Some(written(5, &[a, b]))),
        ("a clock gone back", change(5, 0, &[], None), Some(written(0, &[(b"a", 5, most - 5), (b"b", 15, 3)]))),
        ("a clock gone far back", change(u64::MAX, 0, &[], None), Some(written(0, &[]))),
        ("an expiry", change(0, 10, &[], None), Some(written(10, &[b]))),
        ("a release", change(0, 9, &[b"b", b"x", b"b"], None), Some(written(9, &[a]))),
        ("a lease", change(0, 9, &[], Some((b"c", 15, 2))), Some(written(9, &[a, (b"c", 15, 2), b]))),
        ("a renewal", change(0, 9, &[], Some((b"b", 9 + LONGEST, 5))), Some(written(9, &[a, (b"b", 9 + LONGEST, 5)]))),
        (
            "what an expired lease has left",
            change(0, 10, &[], Some((b"c", 15, most - 3))),
            Some(written(10, &[(b"c", 15, most - 3), b])),
        ),
        ("a whole table", written(9, &[b]).behind(WHOLE), Some(written(9, &[b]))),
        ("no effect", EncodedFields::default(), None),
        ("an empty table", written(9, &[]).behind(WHOLE), None),
        ("a table that is none", written(9, &[b, b]).behind(WHOLE), None),
        ("another tag", written(9, &[b]).behind(2), None),
        ("a clock gone back untold", change(0, 4, &[], None), None),
        ("a lease by a clock gone back untold", change(0, 4, &[], Some((b"c", 15, 1))), None),
        ("a clock gone back further than told", change(2, 2, &[], None), None),
        ("a release of nobody", change(0, 9, &[b""], None), None),
        ("a release of 257 bytes", change(0, 9, &[&long], None), None),
        ("a release and a lease", change(0, 9, &[b"b"], Some((b"c", 15, 1))), None),
        ("a lease of nobody", change(0, 9, &[], Some((b"", 15, 1))), None),
        ("a lease of 257 bytes", change(0, 9, &[], Some((&long, 15, 1))), None),
        ("a lease of nothing", change(0, 9, &[], Some((b"c", 15, 0))), None),
        ("a lease that has expired", change(0, 9, &[], Some((b"c", 9, 1))), None),
        ("a lease for too long", change(0, 9, &[], Some((b"c", 10 + LONGEST, 1))), None),
        ("a sum past any limit", change(0, 9, &[], Some((b"c", 15, 3))), None),
        ("a renewal past any limit", change(0, 9, &[], Some((b"b", 15, 6))), None),
        ("too late an expiry", change(0, last, &[], Some((b"c", last + 1, 1))), None),
        ("too late an instant", change(0, last + 1, &[], None), None),
        ("two leases", EncodedFields::integers([CHANGE, 0, 9, 0, 2]), None),
    ] {
        assert_eq!(applied(&usage, &effect).map(|usage| encoded(&usage)), becomes, "{what}");
    }
}

/// How many holders ask, from one on, and when they all do, after the last or before.
type Rush = (u64, u64, i64, u64, bool);

fn rushes() -> impl Strategy<Value = Vec<Rush>> {
    let later = prop_oneof![4 => 0..=40i64, 1 => -100..=0i64, 1 => 100..=200i64];
    vec((0..100u64, 0..60u64, later, 1..=100u64, any::<bool>()), 1..=12)
}

#[test]
fn a_table_keeps_its_room_until_32_times_as_much_is_left_over() {
    let names: Vec<String> = (0..6000).map(|number| format!("{number:04}")).collect();
    let mut key = Key(ConcurrencyUsage::default());
    assert!(names.iter().all(|name| key.call(&held(name, 6000, "60s"), 0, cost(1))[0] == 1));
    let mut left_of_them = |left: usize| {
        let gone: Vec<&[u8]> = names[left..].iter().map(String::as_bytes).collect();
        key.0.release(&gone, us(0));
        (key.0.heap_size() - size_of::<ManyLeases>() - 384 * left.div_ceil(6) - 32 * left) / 41
    };
    // There are 8192 places, 7168 of which may be taken; one that was taken may be lost until the table is moved. Moved
    // to twice of what is left, it would have 1024.
    assert!(left_of_them(400) > (1568 * 8) / 7);
    assert_eq!(left_of_them(35), 128);
}

#[test]
fn people_are_told_who_holds_how_much_for_how_long() {
    let mut key = table(&[("b", 2, "60s"), ("a", 3, "30s"), ("gone", 5, "1s")]);
    key.call(&held("c", 1000, "60s"), 2000, cost(1));
    assert_eq!(key.0.entries(), 3);
    let lease = |holder: &str, cost, expires_at| (Box::from(holder.as_bytes()), units(cost), us(expires_at), None);
    let leases = vec![lease("a", 3, 30_000_000), lease("b", 2, 60_000_000), lease("c", 1, 62_000_000)];
    assert_eq!(
        key.0.describe(Timestamp::EPOCH),
        [
            ("used", InfoField::Amount(units(6))),
            ("written", InfoField::Instant(us(2_000_000))),
            ("holders", InfoField::Count(3)),
            ("leases", InfoField::Leases(leases)),
        ]
    );
}

#[test]
fn people_are_told_of_the_first_hundred_to_expire() {
    let names: Vec<String> = (0..101).map(|number| format!("{number:03}")).collect();
    let leases: Vec<_> = names.iter().map(|name| (name.as_str(), 1, "60s")).collect();
    let facts = table(&leases).0.describe(Timestamp::EPOCH);
    assert_eq!(facts[2], ("holders", InfoField::Count(101)));
    let lease = |name: &String| (Box::from(name.as_bytes()), units(1), us(60_000_000), None);
    assert_eq!(facts[3], ("leases", InfoField::Leases(names[..100].iter().map(lease).collect())));
}

#[test]
fn what_a_table_holds_is_its_leases_and_their_names() {
    assert_eq!(ConcurrencyUsage::default().heap_size(), 0);
    for (name, size) in [("a", 16), ("a name of sixteen", 32), ("of 16 bytes here", 16)] {
        assert_eq!(table(&[(name, 1, "60s")]).0.heap_size(), 32 + size, "{name}");
    }
    let mut key = table(&[("a", 1, "60s"), ("b", 1, "60s")]);
    assert_eq!(key.0.heap_size(), 2 * (32 + 16));
    key.0.release(&[b"a"], us(0));
    assert_eq!(key.0.heap_size(), 2 * 32 + 16, "a name that has gone is not counted");
}

#[test]
fn what_a_crowd_holds_is_nodes_places_and_the_names() {
    let names: Vec<String> = (0..=few::MOST).map(|number| format!("{number:02}")).collect();
    let leases: Vec<_> = names.iter().map(|name| (name.as_str(), 1, "60s")).collect();
    assert_eq!(table(&leases[..few::MOST]).0.heap_size(), few::MOST * (32 + 16));
    // Of a hash, a name, an instant and units, and the table's byte.
    let places = 64 * (8 + 16 + 8 + 8 + 1);
    let nodes = (few::MOST + 1).div_ceil(6) * 384;
    let many = size_of::<ManyLeases>() + nodes + places + (few::MOST + 1) * 32;
    assert_eq!(table(&leases).0.heap_size(), many);
}

#[test]
fn few_become_many_and_few_again_and_nobody_can_tell() {
    let names: Vec<String> = (0..few::MOST + 8).map(|number| format!("{number:02}")).collect();
    let mut key = Key(ConcurrencyUsage::default());
    let as_read = |usage: &ConcurrencyUsage| encoded(&decoded::<ConcurrencyUsage>(&encoded(usage)).unwrap());
    let mut bytes = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let seconds = u64::try_from(60 + number % 7).unwrap();
        let limit = held(name, 1000, "60s");
        assert_eq!(key.call(&limit, seconds, cost(1))[2], 999 - i64::try_from(number).unwrap());
        assert_eq!(encoded(&key.0), as_read(&key.0));
        bytes.push(key.0.heap_size());
    }
    assert!(bytes[few::MOST] > bytes[few::MOST - 1] + 1000, "{bytes:?}");
    for (left, name) in names.iter().enumerate().rev() {
        assert_eq!(key.0.release(&[name.as_bytes()], us(70_000)), 1);
        if left > 0 {
            assert_eq!((key.0.entries(), encoded(&key.0)), (left, as_read(&key.0)));
        }
        let is_small = key.0.heap_size() < 32 * few::MOST * 2;
        assert_eq!(is_small, left <= few::MOST / 4, "{left}");
    }
    assert!(key.0.is_unused());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    /// What waits to be swept out, how far all has moved and what was seen before are no part of the state: a
    /// table that was read a moment ago has none of them.
    #[test]
    fn among_many_a_table_answers_as_if_just_read(rushes in rushes()) {
        let (mut usage, mut now) = (ConcurrencyUsage::default(), 1_000_000);
        for (first, holders, later, ttl, releases) in rushes {
            now = u64::checked_add_signed(now, later).unwrap();
            let names: Vec<String> = (first..first + holders).map(|number| format!("{number}")).collect();
            for name in &names {
                let ttl = Period::new(Span::from_micros(ttl)).unwrap();
                let limit = Concurrency::new(units(70), ttl).asked_by(name.as_bytes());
                let mut read = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap_or_default();
                for at in [now, now + 50, now + 1, now - 20] {
                    prop_assert_eq!(peek(&limit, &usage, us(at), cost(9)), peek(&limit, &read, us(at), cost(9)));
                    let entries = |usage| limit.entries_after_charge(usage, us(at));
                    prop_assert_eq!(entries(&usage), entries(&read));
                }
                let answers = [&mut usage, &mut read].map(|usage| call_and_tell(&limit, usage, us(now), cost(1)));
                prop_assert_eq!(&answers[0], &answers[1]);
                prop_assert_eq!(encoded(&usage), encoded(&read));
            }
            if releases && !usage.is_unused() && !usage.is_after(us(now)) {
                let names: Vec<&[u8]> = names.iter().step_by(2).map(String::as_bytes).collect();
                let mut read = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap();
                let answers = [&mut usage, &mut read].map(|usage| {
                    let (count, mut told) = (usage.release(&names, us(now)), EncodedFields::default());
                    usage.encode_effect(&mut told);
                    (count, told)
                });
                prop_assert!(answers[0].0 == 0 || answers[0] == answers[1]);
                prop_assert_eq!((answers[0].0, encoded(&usage)), (answers[1].0, encoded(&read)));
                if usage.is_unused() {
                    usage = ConcurrencyUsage::default(); // the key is deleted
                }
            }
        }
    }
}

impl Lawful for LeaseLimit<'static> {
    fn limits() -> impl Strategy<Value = LeaseLimit<'static>> {
        let holder = select(vec![&b"a"[..], b"b", b"c"]);
        (amounts(), lengths(), holder, any::<bool>()).prop_map(|(limit, ttl, holder, nx)| {
            let concurrency = Concurrency::new(Amount::saturating(limit), Period::new(Span::from_micros(ttl)).unwrap());
            concurrency.asked_by(holder).nx(nx)
        })
    }

    /// One limit is one holder, who has one lease at a time: each is within the limit. That all together are is
    /// for the oracle, where several ask.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        assert!(admitted.iter().all(|(_, units)| *units <= u128::from(self.limit().millionths())));
    }

    /// There are no options but a cost above 0.
    fn asks(request: Request) -> Request {
        Take(amount_of(request).max(millionths(1)))
    }
}

/// All but that giving back never makes more than the limit: a lease is given back whole, by name.
mod laws {
    use super::*;
    use crate::testing::laws;

    #[test]
    fn never_more_than_the_limit() {
        laws::never_more_than_the_limit::<LeaseLimit>();
    }

    #[test]
    fn a_clock_gone_back_frees_nothing_and_locks_nobody_out() {
        let law = laws::a_clock_gone_back_frees_nothing_and_locks_nobody_out;
        laws::in_every_state::<LeaseLimit>(1..=1, laws::without_debts, law);
    }

    #[test]
    fn a_key_expires_when_it_has_recovered_and_not_much_later() {
        laws::a_key_expires_when_it_has_recovered_and_not_much_later::<LeaseLimit>();
    }

    #[test]
    fn what_moves_along_recovers_as_much_sooner() {
        laws::in_every_state::<LeaseLimit>(1..=1, |what| what, laws::what_moves_along_recovers_as_much_sooner);
    }

    laws::laws!(LeaseLimit:
        a_denied_call_changes_nothing,
        a_look_changes_nothing,
        a_look_back_sees_what_a_call_would_write,
        wait_is_exact,
        encoding_round_trips,
        an_effect_does_elsewhere_what_the_call_did,
    );

    // What is left is left to somebody who holds nothing; a renewal passes beside it.

    fn newcomer(limit: &LeaseLimit<'static>) -> LeaseLimit<'static> {
        limit.concurrency.asked_by(b"newcomer")
    }

    #[test]
    fn remaining_is_what_passes_next() {
        laws::in_every_state::<LeaseLimit>(
            1..=3,
            |what| what,
            |limit, usage, now, request| {
                laws::remaining_is_what_passes_next(&newcomer(limit), usage, now, request);
            },
        );
    }

    #[test]
    fn a_recovered_key_is_as_good_as_new() {
        laws::in_every_state::<LeaseLimit>(
            1..=3,
            |what| what,
            |limit, usage, now, request| {
                laws::a_recovered_key_is_as_good_as_new(&newcomer(limit), usage, now, request);
            },
        );
    }
}
