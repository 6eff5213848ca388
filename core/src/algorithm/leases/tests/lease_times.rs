//! Expiry of leases, with clocks that move.

use super::*;

#[test]
fn lease_expires_after_its_ttl() {
    for ttl in [1, 59, 60_000_000, MAX_TTL] {
        let limit =
            |holder| Concurrency::new(units(10), Period::new(Span::from_micros(ttl)).unwrap()).for_holder(holder);
        for acquired_at in [0, 7, 1_700_000_000_000_000] {
            assert_charge_counts_until(&limit(b"a"), &limit(b"b"), acquired_at, acquired_at + ttl);
        }
    }
    // The limit and the TTL of a later caller do not matter.
    assert_charge_counts_until(&lease_limit("a", 10, "60s"), &lease_limit("b", 5, "1s"), 500, 60_000_500);
}

#[test]
fn at_most_the_limit_is_held_at_once() {
    let mut key = Key::default();
    for (holder, ttl, at, cost, reply) in [
        ("a", "10s", 0, 4, [1, 10, 6, 0, 10_000]),
        ("b", "60s", 1000, 6, [1, 10, 0, 0, 60_000]),
        ("c", "60s", 2000, 1, [0, 10, 0, 8000, 59_000]),
        ("c", "60s", 9999, 4, [0, 10, 0, 1, 51_001]),
        ("c", "60s", 10_000, 5, [0, 10, 4, 51_000, 51_000]),
        ("c", "1s", 10_000, 4, [1, 10, 0, 0, 51_000]),
        ("a", "1s", 10_000, 11, [0, 10, 0, -1, 51_000]),
        ("a", "1s", 61_000, 10, [1, 10, 0, 0, 1000]),
    ] {
        assert_eq!(key.call(&lease_limit(holder, 10, ttl), at, take(cost)), reply, "{holder} at {at}");
    }
}

#[test]
fn renewal_takes_no_units_from_other_holders() {
    // a holds 2 units and b holds 3. After a second, a renews its lease with this cost.
    for (case, limit, cost, ttl, reply, remaining_at_15_s) in [
        ("the same", 6, 2, "10s", [1, 6, 1, 0, 19_000], 3),
        ("less", 6, 1, "10s", [1, 6, 2, 0, 19_000], 3),
        ("more, which fits beside the others", 6, 3, "10s", [1, 6, 0, 0, 19_000], 3),
        ("more than fits", 6, 4, "10s", [0, 6, 1, 19_000, 19_000], 3),
        ("more than the limit", 6, 7, "10s", [0, 6, 1, -1, 19_000], 3),
        ("for longer", 6, 2, "30s", [1, 6, 1, 0, 30_000], 1),
        ("the same under a lower limit", 1, 2, "30s", [1, 1, 0, 0, 30_000], 0),
        ("the same under a limit of zero", 0, 2, "30s", [1, 0, 0, 0, 30_000], 0),
        ("less under a limit of zero", 0, 1, "30s", [1, 0, 0, 0, 30_000], 0),
        ("more under a limit that the others exceed", 2, 2, "10s", [1, 2, 0, 0, 19_000], 0),
        ("more under a limit that the others reach", 3, 3, "10s", [0, 3, 0, 19_000, 19_000], 0),
        ("more under a limit of zero", 0, 3, "10s", [0, 0, 0, -1, 19_000], 0),
    ] {
        let mut key = table(&[("a", 2, "10s"), ("b", 3, "20s")]);
        assert_eq!(key.call(&lease_limit("a", limit, ttl), 1000, take(cost)), reply, "{case}");
        assert_eq!(key.peek(&lease_limit("c", limit, ttl), 15_000, take(1))[2], remaining_at_15_s, "{case}");
    }
    // A holder with an expired lease is treated as a new holder.
    let key = table(&[("a", 2, "10s"), ("b", 3, "20s")]);
    assert_eq!(key.peek(&lease_limit("a", 0, "10s"), 9999, take(2))[0], 1);
    assert_eq!(key.peek(&lease_limit("a", 0, "10s"), 10_000, take(2)), [0, 0, 0, -1, 10_000]);
    assert_eq!(key.peek(&lease_limit("a", 4, "10s"), 10_000, take(2)), [0, 4, 1, 10_000, 10_000]);
}

#[test]
fn shorter_renewal_expires_sooner() {
    let mut key = table(&[("a", 2, "60s")]);
    assert_eq!(key.call(&lease_limit("a", 2, "1s"), 10_000, take(2)), [1, 2, 0, 0, 1000]);
    assert_eq!(key.call(&lease_limit("b", 2, "1s"), 11_000, take(2)), [1, 2, 0, 0, 1000]);
}

#[test]
fn wait_ends_when_enough_leases_have_expired() {
    let key = table(&[("a", 2, "10s"), ("b", 3, "20s"), ("c", 1, "30s")]);
    for (holder, cost, wait) in [
        ("d", 1, 9000),
        ("d", 2, 9000),
        ("d", 3, 19_000),
        ("d", 5, 19_000),
        ("d", 6, 29_000),
        ("d", 7, -1),
        // A holder waits for the leases of the others only.
        ("b", 4, 9000),
        ("b", 5, 9000),
        ("b", 6, 29_000),
        ("a", 3, 19_000),
        ("a", 6, 29_000),
        ("c", 2, 9000),
        ("c", 6, 19_000),
    ] {
        assert_eq!(
            key.peek(&lease_limit(holder, 6, "1s"), 1000, take(cost)),
            [0, 6, 0, wait, 29_000],
            "{holder} {cost}"
        );
    }
}

#[test]
fn nx_denies_a_renewal() {
    // a holds 2 units, b 3 and c 1. After a second, a holder calls with NX.
    for (holder, limit, cost, reply) in [
        ("a", 6, 2, [0, 6, 0, 9000, 29_000]),
        ("a", 6, 1, [0, 6, 0, 9000, 29_000]),
        // The holder's own lease has to expire, even if there is room.
        ("a", 100, 1, [0, 100, 94, 9000, 29_000]),
        ("c", 100, 1, [0, 100, 94, 29_000, 29_000]),
        // The leases of other holders have to leave room as well: before the own lease expires, then, or later.
        ("c", 6, 2, [0, 6, 0, 29_000, 29_000]),
        ("b", 6, 5, [0, 6, 0, 19_000, 29_000]),
        ("a", 6, 3, [0, 6, 0, 19_000, 29_000]),
        ("a", 6, 6, [0, 6, 0, 29_000, 29_000]),
        ("a", 6, 7, [0, 6, 0, -1, 29_000]),
        ("a", 1, 2, [0, 1, 0, -1, 29_000]),
        ("a", 0, 0, [0, 0, 0, 29_000, 29_000]),
        ("a", 100, 0, [0, 100, 94, 9000, 29_000]),
        // A holder without a lease has no further condition.
        ("d", 7, 1, [1, 7, 0, 0, 29_000]),
        ("d", 6, 1, [0, 6, 0, 9000, 29_000]),
    ] {
        let mut key = table(&[("a", 2, "10s"), ("b", 3, "20s"), ("c", 1, "30s")]);
        let limit = lease_limit(holder, limit, "10s").with_nx(true);
        assert_eq!(key.call(&limit, 1000, take(cost)), reply, "{holder} of {limit:?}");
        if reply[0] == 0 {
            assert_eq!(
                key.call(&limit.with_nx(false), 1000, take(1))[0],
                i64::from(holder != "d"),
                "the denied call changes nothing"
            );
        }
    }
    // An expired or released lease does not count.
    let mut key = table(&[("a", 2, "10s")]);
    assert_eq!(key.peek(&lease_limit("a", 2, "1s").with_nx(true), 9999, take(2))[0], 0);
    assert_eq!(key.peek(&lease_limit("a", 2, "1s").with_nx(true), 10_000, take(2))[0], 1);
    key.0.release(&[b"a"], us(0));
    assert_eq!(key.call(&lease_limit("a", 2, "1s").with_nx(true), 0, take(2))[0], 1);
    assert_eq!(
        key.call(&lease_limit("a", 2, "1s").with_nx(true), 0, take(2)),
        [0, 2, 0, 1000, 1000],
        "only the first of two calls is granted"
    );
}

#[test]
fn lease_lasts_until_its_ttl_or_release() {
    let mut usage = table(&[("a", 1, "1s"), ("b", 2, "10s")]).0;
    let lease_until = |usage: &ConcurrencyUsage, holder: &str, at| usage.lease_until(holder.as_bytes(), us(at));
    for (holder, at, expires_at) in [
        ("a", 0, Some(1_000_000)),
        ("a", 999_999, Some(1_000_000)),
        ("a", 1_000_000, None),
        ("b", 1_000_000, Some(10_000_000)),
        ("c", 0, None),
    ] {
        assert_eq!(lease_until(&usage, holder, at), expires_at.map(us), "{holder} at {at}");
    }
    usage.release(&[b"b"], us(0));
    assert_eq!((lease_until(&usage, "a", 0), lease_until(&usage, "b", 0)), (Some(us(1_000_000)), None));
}

#[test]
fn release_returns_the_number_of_active_leases() {
    let mut usage = table(&[("a", 1, "1s"), ("b", 2, "10s"), ("c", 3, "20s"), ("d", 4, "30s")]).0;
    for (millis, holders, count, remaining_units) in [
        (500, &["x"][..], 0, 10),
        (500, &["b", "b", "x"], 1, 8),
        (500, &["b"], 0, 8),
        // The lease of a has expired.
        (1000, &["a"], 0, 7),
        (19_999, &["c", "a", "c"], 1, 4),
        (29_999, &["a", "b", "c", "d"], 1, 0),
    ] {
        let before = encoded(&usage);
        let names: Vec<&[u8]> = holders.iter().map(|holder| holder.as_bytes()).collect();
        assert_eq!(usage.release(&names, us(millis * 1000)), count, "{holders:?} at {millis}");
        assert_eq!(usage.live_sum(us(millis * 1000)).units, units(remaining_units));
        assert_eq!(encoded(&usage) == before, count == 0, "a release of no lease changes nothing");
    }
    assert!(usage.is_unused());
}

#[test]
fn expired_leases_are_stored_until_a_charge_but_do_not_count() {
    let mut key = table(&[("a", 1, "1s"), ("b", 1, "2s"), ("c", 1, "60s")]);
    let before = encoded(&key.0);
    let (newcomer, holder) = (lease_limit("d", 3, "60s"), lease_limit("c", 3, "60s"));
    for (at, cost, remaining, entries) in [(0, 1, 0, 4), (999, 1, 0, 4), (1000, 2, 1, 3), (2000, 3, 2, 2)] {
        assert_eq!(key.call(&newcomer, at, take(cost))[..3], [0, 3, remaining]);
        assert_eq!(newcomer.entries_after_charge(&key.0, us(at * 1000)), Some(entries));
        assert_eq!(holder.entries_after_charge(&key.0, us(at * 1000)), None, "the holder has an entry");
    }
    assert_eq!((encoded(&key.0) == before, key.0.entries()), (true, 3), "a denied call changes nothing");
    // Peeks need not be in the order of time.
    for (at, remaining) in [(2000, 2), (0, 0), (1500, 1), (999, 0), (60_000, 3), (1000, 1)] {
        assert_eq!(key.peek(&newcomer, at, take(1))[2], remaining);
    }
    assert_eq!(key.call(&newcomer, 2000, take(2)), [1, 3, 0, 0, 60_000]);
    assert_eq!(
        encoded(&key.0),
        encoded_table(2_000_000, &[(b"c", 60_000_000, 1_000_000), (b"d", 62_000_000, 2_000_000)])
    );
    assert_eq!(lease_limit("a", 3, "1s").entries_after_charge(&key.0, us(60_000_000)), Some(2));
}

#[test]
fn backwards_clock_shifts_the_expiries() {
    let mut key = table(&[]);
    key.call(&lease_limit("a", 6, "10s"), 1_000_000, take(2));
    key.call(&lease_limit("b", 6, "60s"), 1_005_000, take(4));
    let limit = lease_limit("c", 6, "60s");
    // The clock moves back by 965 s from the last change of the table.
    assert_eq!(key.peek(&limit, 40_000, take(2)), [0, 6, 0, 5000, 60_000]);
    assert_eq!(key.peek(&limit, 1_010_000, take(2)), [1, 6, 2, 0, 55_000], "a peek changes nothing");
    assert_eq!(key.call(&limit, 40_000, take(2)), [0, 6, 0, 5000, 60_000]);
    assert_eq!(key.peek(&limit, 45_000, take(2)), [1, 6, 2, 0, 55_000], "a denied call stores the shift");
    assert_eq!(
        encoded(&key.0),
        encoded_table(40_000_000, &[(b"a", 45_000_000, 2_000_000), (b"b", 100_000_000, 4_000_000)])
    );
    assert_eq!(key.call(&limit, 0, take(2)), [0, 6, 0, 5000, 60_000], "expiries are shifted back to the epoch");
}

#[test]
fn leases_are_exact_while_the_clock_crosses_its_whole_range_repeatedly() {
    for holders in [1, 2 * few_leases::MAX_FEW] {
        let names = |prefix: &str| (0..holders).map(|number| format!("{prefix}{number:02}")).collect::<Vec<_>>();
        let (early, late) = (names("early"), names("late"));
        let mut usage = ConcurrencyUsage::default();
        let mut visits = 0;
        for _ in 0..200 {
            for (at, names) in [(Timestamp::MAX.micros() - 1_000_000, &late), (0, &early)] {
                for name in names {
                    let limit = lease_limit(name, 300, "1ms");
                    visits +=
                        step_counter::count(|| assert!(call(&limit, &mut usage, us(at), take(1)).verdict.allowed()));
                    assert_eq!(peek(&limit, &usage, us(at), take(301)).reset, Span::from_micros(1000));
                }
            }
            let leases: Vec<LeaseFields> =
                early.iter().chain(&late).map(|name| (name.as_bytes(), 1000, 1_000_000)).collect();
            assert_eq!(encoded(&usage), encoded_table(0, &leases));
        }
        // In each of the 200 rounds, both sets of leases expire and are removed, which visits each of many leases
        // twice. Once in dozens of rounds, the marks of all leases are recomputed. Visits of few leases are not
        // counted.
        let max_visits = 4 * holders * 200 + 10 * 2 * holders;
        let expected = if holders == 1 { 0..1 } else { 1..max_visits };
        assert!(expected.contains(&visits), "{visits} visits for {holders} holders");
    }
}

#[test]
fn lease_at_the_last_timestamp_expires_immediately() {
    let (last, before) = (Timestamp::MAX, Timestamp::MAX.minus(Span::MICROSECOND));
    let mut usage = ConcurrencyUsage::default();
    for number in 0..3 * MAX_SWEPT {
        let holder = format!("{number}");
        assert!(call(&lease_limit(&holder, 100, "1h"), &mut usage, before, take(1)).verdict.allowed());
    }
    for holder in ["d", "e", "a"] {
        let limit = lease_limit(holder, 3, "1h");
        assert_eq!(peek(&limit, &usage, last, take(1)).remaining, units(3), "all leases have expired");
        assert!(call(&limit, &mut usage, last, take(3)).verdict.allowed());
        assert_eq!(encoded(&usage), encoded_table(last.micros(), &[(holder.as_bytes(), last.micros(), 3_000_000)]));
        assert_eq!((peek(&limit, &usage, last, take(1)).remaining, usage.release(&[b"a"], last)), (units(3), 0));
    }
    assert_eq!(peek(&lease_limit("b", 3, "1h"), &usage, before, take(1)).remaining, units(3));
    usage.move_back(before);
    assert!(usage.is_unused());
}

#[test]
fn holder_has_a_lease_until_the_expiry_and_recovery_follows_the_last_lease() {
    let key = table(&[("a", 1, "10s"), ("b", 1, "20s")]);
    let has_lease = |holder: &str, at| key.0.lease_until(holder.as_bytes(), us(at)).is_some();
    assert_eq!(["a", "b", "c"].map(|holder| has_lease(holder, 9_999_999)), [true, true, false]);
    assert_eq!(["a", "b"].map(|holder| has_lease(holder, 10_000_000)), [false, true]);
    assert_eq!(key.0.time_to_recovery(us(5_000_000)), Span::SECOND.times(15));
}
