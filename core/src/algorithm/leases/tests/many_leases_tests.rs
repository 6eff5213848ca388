//! Tables with many leases: cost of calls, and conversion between few and many leases.

use super::*;

#[test]
fn call_after_a_clock_step_back_visits_no_expired_leases() {
    let (mut usage, last) = ten_thousand_leases();
    let (new, full) = (lease_limit("new", 1_000_000, "10s"), lease_limit("new", 9_999, "10s"));
    let later = last.plus(Span::SECOND.times(10));
    new.remaining(&usage, later);
    let visits = step_counter::count_without_copies(|| {
        for back in [1, 1000, 1_000_000] {
            let earlier = last.minus(Span::from_micros(back));
            assert!(peek(&new, &usage, earlier, take(1)).verdict.allowed());
            assert!(!peek(&full, &usage, earlier, take(1)).verdict.allowed());
            assert_eq!(new.entries_after_charge(&usage, earlier), Some(10_001));
        }
        assert_eq!(new.remaining(&usage, later), units(1_000_000), "the cached sum is still valid");
    });
    // A denied cost of 1 waits for the second lease.
    assert_eq!(visits, 3 * 2);

    for back in [1000, 1_000_000] {
        let earlier = last.minus(Span::from_micros(back));
        assert_eq!(step_counter::count_without_copies(|| call(&new, &mut usage, earlier, take(1))), 0);
    }
    assert_eq!(encoded(&usage), encoded(&decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap()));
}

#[test]
fn many_expired_leases_are_visited_once_and_removed_by_many_calls() {
    let (mut usage, last) = ten_thousand_leases();
    let limit = lease_limit("new", 10_000, "10s");
    let (half, all) = (Span::from_micros(10_000_000 - 5000), Span::from_micros(10_000_000));
    for (elapsed, expected, remaining) in [(half, 5000, 5000), (half, 0, 5000), (all, 5000, 10_000), (all, 0, 10_000)] {
        let now = last.plus(elapsed);
        let visits = step_counter::count_without_copies(|| {
            assert_eq!(peek(&limit, &usage, now, take(1)).remaining, units(remaining));
        });
        assert_eq!(visits, expected);
    }
    let now = last.plus(all);
    let heap_before = usage.heap_size();
    for calls in 1..=10_000 / MAX_SWEPT {
        let visits = step_counter::count(|| assert!(call(&limit, &mut usage, now, take(1)).verdict.allowed()));
        assert_eq!((visits, usage.stored_leases()), (MAX_SWEPT, 10_000 - MAX_SWEPT * calls + 1));
        assert_eq!((usage.entries(), limit.remaining(&usage, now)), (1, units(9999)), "expired leases do not count");
    }
    assert_eq!(step_counter::count(|| call(&limit, &mut usage, now, take(1))), 0);
    assert!(usage.heap_size() < heap_before / 100);
}

#[test]
fn replica_with_a_clock_ahead_visits_each_lease_a_bounded_number_of_times() {
    let (mut primary, _) = ten_thousand_leases();
    let (mut replica, limit) = (primary.clone(), lease_limit("new", 20_000, "10s"));
    for step in 0..20 {
        let now = us(11_000_000 + 400 * step);
        let mut effect = call_and_encode_effect(&limit, &mut primary, now, take(1)).1;
        let visits = step_counter::count(|| {
            peek(&limit, &replica, now.plus(Span::from_micros(2000)), take(1));
            assert!(replica.accepts_effect(&mut effect.clone(), 1));
            replica.apply_effect(&mut effect, 1);
        });
        // In each step, 400 leases expire: the peek, the check and the change visit them. The first peek visits 2000
        // more, because its clock is ahead by 2000 microseconds.
        assert!(visits <= 3 * 400 + MAX_SWEPT + 2000 * usize::from(step == 0), "{visits} in step {step}");
        assert_eq!(encoded(&replica), encoded(&primary));
    }
}

#[test]
fn expired_lease_does_not_count_whether_removed_or_not() {
    let (mut usage, last) = ten_thousand_leases();
    let now = last.plus(Span::SECOND.times(10));
    assert!(call(&lease_limit("new", 1, "10s"), &mut usage, now, take(1)).verdict.allowed());
    assert!(usage.stored_leases() > 9000, "most expired leases are still stored");
    let fields = encoded_table(now.micros(), &[(b"new", now.micros() + 10_000_000, 1_000_000)]);
    assert_eq!((encoded(&usage), encoded(&usage.clone())), (fields.clone(), fields));
    assert_eq!(usage.release(&[b"9999", b"9998"], now), 0);
    // An expired lease is not renewed.
    assert!(!peek(&lease_limit("9999", 1, "10s"), &usage, now, take(1)).verdict.allowed());
    assert!(call(&lease_limit("9999", 2, "10s"), &mut usage, now, take(1)).verdict.allowed());
    assert_eq!((usage.entries(), usage.release(&[b"9999", b"9998", b"new"], now)), (2, 2));
    assert!(usage.is_unused());
}

/// Calls of several holders: the first holder, the number of holders, the microseconds since the last calls, the TTL in
/// microseconds, and `true` if every other lease is released afterwards.
type Rush = (u64, u64, i64, u64, bool);

fn rushes() -> impl Strategy<Value = Vec<Rush>> {
    let elapsed = prop_oneof![4 => 0..=40i64, 1 => -100..=0i64, 1 => 100..=200i64];
    vec((0..100u64, 0..60u64, elapsed, 1..=100u64, any::<bool>()), 1..=12)
}

#[test]
fn heap_size_counts_leases_and_names() {
    assert_eq!(ConcurrencyUsage::default().heap_size(), 0);
    // A record contains its length, the expiry, the length of the name, the name, and the units. Blocks of memory are
    // multiples of 16 bytes.
    for (name, size) in [("a", 16), ("ab", 16), ("abc", 32), ("a name of 18 bytes", 32), ("this name: 19 bytes", 48)] {
        assert_eq!(table(&[(name, 1, "60s")]).0.heap_size(), size, "{name}");
    }
    let mut key = table(&[("a", 1, "60s"), ("b", 1, "60s")]);
    assert_eq!(key.0.heap_size(), 32);
    key.0.release(&[b"a", b"b"], us(0));
    assert!(key.0.is_unused());
}

#[test]
fn lease_in_a_table_takes_few_bytes_besides_its_name() {
    for holders in [1000, 10_000, 100_000_u32] {
        let mut usage = ConcurrencyUsage::default();
        for number in 0..holders {
            let lease = numbered_lease(number);
            usage.store_lease(format!("worker-{number:05}").as_bytes(), lease);
        }
        let bytes_per_lease = usage.heap_size() / usize::try_from(holders).unwrap();
        // A name has 12 bytes.
        assert!((12 + 15..12 + 50).contains(&bytes_per_lease), "{bytes_per_lease} bytes for each of {holders}");
        let names: Vec<String> = (0..holders).map(|number| format!("worker-{number:05}")).collect();
        let released: Vec<&[u8]> = names.iter().skip(40).map(String::as_bytes).collect();
        let heap_before = usage.heap_size();
        assert_eq!(usage.release(&released, us(0)), released.len());
        assert!(usage.heap_size() < heap_before / 6 + 4096, "{} of {heap_before}", usage.heap_size());
    }
}

fn numbered_lease(number: u32) -> Lease {
    let expires_at = us(10_000_000 + u64::from(number) * 7 % 1000);
    Lease { expires_at, units: units(1), token: None }
}

#[test]
fn forms_of_few_and_many_leases_are_equivalent() {
    let names: Vec<String> = (0..few_leases::MAX_FEW + 8).map(|number| format!("{number:02}")).collect();
    let mut key = Key(ConcurrencyUsage::default());
    let decoded_and_encoded =
        |usage: &ConcurrencyUsage| encoded(&decoded::<ConcurrencyUsage>(&encoded(usage)).unwrap());
    let mut heap_sizes = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let millis = u64::try_from(60 + number % 7).unwrap();
        let limit = lease_limit(name, 1000, "60s");
        assert_eq!(key.call(&limit, millis, take(1))[2], 999 - i64::try_from(number).unwrap());
        assert_eq!(encoded(&key.0), decoded_and_encoded(&key.0));
        heap_sizes.push(key.0.heap_size());
    }
    assert!(heap_sizes[few_leases::MAX_FEW] > heap_sizes[few_leases::MAX_FEW - 1] + 500, "{heap_sizes:?}");
    for (remaining, name) in names.iter().enumerate().rev() {
        assert_eq!(key.0.release(&[name.as_bytes()], us(70_000)), 1);
        if remaining > 0 {
            assert_eq!((key.0.entries(), encoded(&key.0)), (remaining, decoded_and_encoded(&key.0)));
        }
        let is_small = key.0.heap_size() < size_of::<ManyLeases>();
        assert_eq!(is_small, remaining <= few_leases::MAX_FEW / 4, "{remaining}");
    }
    assert!(key.0.is_unused());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    /// Compares a table with its decoded copy, which has no leases to be swept, no clock shift and no cached
    /// results: these are not part of the state.
    #[test]
    fn table_of_many_decides_like_its_decoded_copy(rushes in rushes()) {
        let (mut usage, mut now) = (ConcurrencyUsage::default(), 1_000_000);
        for (first, holders, elapsed, ttl, releases) in rushes {
            now = u64::checked_add_signed(now, elapsed).unwrap();
            let names: Vec<String> = (first..first + holders).map(|number| format!("{number}")).collect();
            for name in &names {
                let ttl = Period::new(Span::from_micros(ttl)).unwrap();
                let limit = Concurrency::new(units(70), ttl).for_holder(name.as_bytes());
                let mut decoded_copy = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap_or_default();
                for at in [now, now + 50, now + 1, now - 20] {
                    prop_assert_eq!(peek(&limit, &usage, us(at), take(9)), peek(&limit, &decoded_copy, us(at), take(9)));
                    let entries = |usage| limit.entries_after_charge(usage, us(at));
                    prop_assert_eq!(entries(&usage), entries(&decoded_copy));
                }
                let results = [&mut usage, &mut decoded_copy].map(|usage| call_and_encode_effect(&limit, usage, us(now), take(1)));
                prop_assert_eq!(&results[0], &results[1]);
                prop_assert_eq!(encoded(&usage), encoded(&decoded_copy));
            }
            if releases && !usage.is_unused() && !usage.is_after(us(now)) {
                let names: Vec<&[u8]> = names.iter().step_by(2).map(String::as_bytes).collect();
                let mut decoded_copy = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap();
                let results = [&mut usage, &mut decoded_copy].map(|usage| {
                    let (count, mut effect) = (usage.release(&names, us(now)), EncodedFields::default());
                    usage.encode_effect(&mut effect);
                    (count, effect)
                });
                prop_assert!(results[0].0 == 0 || results[0] == results[1]);
                prop_assert_eq!((results[0].0, encoded(&usage)), (results[1].0, encoded(&decoded_copy)));
                if usage.is_unused() {
                    usage = ConcurrencyUsage::default(); // the key is deleted
                }
            }
        }
    }
}

#[test]
fn effect_that_overflows_the_sum_of_units_is_rejected() {
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    let max = Amount::MAX_ARGUMENT.millionths();
    let leases: Vec<LeaseFields> = (0..)
        .zip(&names)
        .map(|(number, name)| (name.as_bytes(), 1000, if number == 0 { max - 300 } else { 1 }))
        .collect();
    let usage: ConcurrencyUsage = decoded(&encoded_table(5, &leases)).unwrap();
    let applies = |units| applied(&usage, &encoded_change(0, 6, &[], Some((b"x", 1000, units)))).is_some();
    assert!(applies(101) && !applies(102));
}
