//! Tables with many leases: cost of calls, and conversion between few and many leases.

use super::*;

#[test]
fn clock_step_back_costs_no_more_with_many_leases() {
    let (mut usage, last) = many_leases();
    let (new, full) = (held("new", 1_000_000, "10s"), held("new", 9_999, "10s"));
    let later = last.plus(Span::SECOND.times(10));
    new.remaining(&usage, later);
    let walked = step_counter::count_without_copies(|| {
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
        assert_eq!(step_counter::count_without_copies(|| call(&new, &mut usage, earlier, cost(1))), 0);
    }
    assert_eq!(encoded(&usage), encoded(&decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap()));
}

#[test]
fn many_expired_leases_are_visited_once_and_removed_by_many_calls() {
    let (mut usage, last) = many_leases();
    let limit = held("new", 10_000, "10s");
    let (half, all) = (Span::from_micros(10_000_000 - 5000), Span::from_micros(10_000_000));
    for (later, passed, left) in [(half, 5000, 5000), (half, 0, 5000), (all, 5000, 10_000), (all, 0, 10_000)] {
        let now = last.plus(later);
        let walked = step_counter::count_without_copies(|| {
            assert_eq!(peek(&limit, &usage, now, cost(1)).remaining, units(left));
        });
        assert_eq!(walked, passed);
    }
    let now = last.plus(all);
    let whole = usage.heap_size();
    for calls in 1..=10_000 / MAX_SWEPT {
        let walked = step_counter::count(|| assert!(call(&limit, &mut usage, now, cost(1)).verdict.allowed()));
        assert_eq!((walked, usage.kept()), (MAX_SWEPT, 10_000 - MAX_SWEPT * calls + 1));
        assert_eq!((usage.entries(), limit.remaining(&usage, now)), (1, units(9999)), "of them nobody knows");
    }
    assert_eq!(step_counter::count(|| call(&limit, &mut usage, now, cost(1))), 0);
    assert!(usage.heap_size() < whole / 100);
}

#[test]
fn peeks_ahead_of_the_changes_cost_no_more() {
    // As on a replica, whose clock is ahead of that of its master.
    let (mut here, _) = many_leases();
    let (mut there, limit) = (here.clone(), held("new", 20_000, "10s"));
    for step in 0..20 {
        let now = us(11_000_000 + 400 * step);
        let mut sent = call_and_encode_effect(&limit, &mut here, now, cost(1)).1;
        let walked = step_counter::count(|| {
            peek(&limit, &there, now.plus(Span::from_micros(2000)), cost(1));
            assert!(there.accepts_effect(&mut sent.clone(), 1));
            there.apply_effect(&mut sent, 1);
        });
        // Those that have expired since the last time, as the looks and the changes have it; and the first time, by
        // the looks' clock, 2000 more.
        assert!(walked <= 3 * 400 + MAX_SWEPT + 2000 * usize::from(step == 0), "{walked} in step {step}");
        assert_eq!(encoded(&there), encoded(&here));
    }
}

#[test]
fn expired_lease_does_not_count_whether_removed_or_not() {
    let (mut usage, last) = many_leases();
    let now = last.plus(Span::SECOND.times(10));
    assert!(call(&held("new", 1, "10s"), &mut usage, now, cost(1)).verdict.allowed());
    assert!(usage.kept() > 9000, "most are still there");
    let fields = written(now.micros(), &[(b"new", now.micros() + 10_000_000, 1_000_000)]);
    assert_eq!((encoded(&usage), encoded(&usage.clone())), (fields.clone(), fields));
    assert_eq!(usage.release(&[b"9999", b"9998"], now), 0);
    // A renewal it is not.
    assert!(!peek(&held("9999", 1, "10s"), &usage, now, cost(1)).verdict.allowed());
    assert!(call(&held("9999", 2, "10s"), &mut usage, now, cost(1)).verdict.allowed());
    assert_eq!((usage.entries(), usage.release(&[b"9999", b"9998", b"new"], now)), (2, 2));
    assert!(usage.is_unused());
}

/// Calls of several holders: the first holder, the number of holders, the time since the last calls, the TTL, and
/// `true` if every other lease is released afterwards.
type Rush = (u64, u64, i64, u64, bool);

fn rushes() -> impl Strategy<Value = Vec<Rush>> {
    let later = prop_oneof![4 => 0..=40i64, 1 => -100..=0i64, 1 => 100..=200i64];
    vec((0..100u64, 0..60u64, later, 1..=100u64, any::<bool>()), 1..=12)
}

#[test]
fn heap_size_counts_leases_and_names() {
    assert_eq!(ConcurrencyUsage::default().heap_size(), 0);
    // Of a length, an instant, another length, a name and units, in blocks of the allocator.
    for (name, size) in [("a", 16), ("ab", 16), ("abc", 32), ("a name of 18 bytes", 32), ("of nineteen bytes: 19", 48)]
    {
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
            let lease = held_by_number(number);
            usage.lease(format!("worker-{number:05}").as_bytes(), lease);
        }
        let each = usage.heap_size() / usize::try_from(holders).unwrap();
        assert!((12 + 15..12 + 50).contains(&each), "{each} bytes for each of {holders}");
        let names: Vec<String> = (0..holders).map(|number| format!("worker-{number:05}")).collect();
        let gone: Vec<&[u8]> = names.iter().skip(40).map(String::as_bytes).collect();
        let held = usage.heap_size();
        assert_eq!(usage.release(&gone, us(0)), gone.len());
        assert!(usage.heap_size() < held / 6 + 4096, "{} of {held}", usage.heap_size());
    }
}

fn held_by_number(number: u32) -> lease::Lease {
    let expires_at = us(10_000_000 + u64::from(number) * 7 % 1000);
    lease::Lease { expires_at, units: units(1), token: None }
}

#[test]
fn forms_of_few_and_many_leases_are_equivalent() {
    let names: Vec<String> = (0..few_leases::MAX_FEW + 8).map(|number| format!("{number:02}")).collect();
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
    assert!(bytes[few_leases::MAX_FEW] > bytes[few_leases::MAX_FEW - 1] + 500, "{bytes:?}");
    for (left, name) in names.iter().enumerate().rev() {
        assert_eq!(key.0.release(&[name.as_bytes()], us(70_000)), 1);
        if left > 0 {
            assert_eq!((key.0.entries(), encoded(&key.0)), (left, as_read(&key.0)));
        }
        let is_small = key.0.heap_size() < size_of::<ManyLeases>();
        assert_eq!(is_small, left <= few_leases::MAX_FEW / 4, "{left}");
    }
    assert!(key.0.is_unused());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 4, ..ProptestConfig::default() })]

    /// Compares a table with its decoded copy, which has no leases to be swept, no clock shift and no cached
    /// results: these are not part of the state.
    #[test]
    fn table_of_many_answers_like_its_decoded_copy(rushes in rushes()) {
        let (mut usage, mut now) = (ConcurrencyUsage::default(), 1_000_000);
        for (first, holders, later, ttl, releases) in rushes {
            now = u64::checked_add_signed(now, later).unwrap();
            let names: Vec<String> = (first..first + holders).map(|number| format!("{number}")).collect();
            for name in &names {
                let ttl = Period::new(Span::from_micros(ttl)).unwrap();
                let limit = Concurrency::new(units(70), ttl).for_holder(name.as_bytes());
                let mut read = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap_or_default();
                for at in [now, now + 50, now + 1, now - 20] {
                    prop_assert_eq!(peek(&limit, &usage, us(at), cost(9)), peek(&limit, &read, us(at), cost(9)));
                    let entries = |usage| limit.entries_after_charge(usage, us(at));
                    prop_assert_eq!(entries(&usage), entries(&read));
                }
                let answers = [&mut usage, &mut read].map(|usage| call_and_encode_effect(&limit, usage, us(now), cost(1)));
                prop_assert_eq!(&answers[0], &answers[1]);
                prop_assert_eq!(encoded(&usage), encoded(&read));
            }
            if releases && !usage.is_unused() && !usage.is_after(us(now)) {
                let names: Vec<&[u8]> = names.iter().step_by(2).map(String::as_bytes).collect();
                let mut read = decoded::<ConcurrencyUsage>(&encoded(&usage)).unwrap();
                let answers = [&mut usage, &mut read].map(|usage| {
                    let (count, mut sent) = (usage.release(&names, us(now)), EncodedFields::default());
                    usage.encode_effect(&mut sent);
                    (count, sent)
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

#[test]
fn effect_that_overflows_the_sum_of_units_is_rejected() {
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    let most = Amount::MAX_ARGUMENT.millionths();
    let leases: Vec<Lease> =
        (0..).zip(&names).map(|(n, name)| (name.as_bytes(), 1000, if n == 0 { most - 300 } else { 1 })).collect();
    let usage: ConcurrencyUsage = decoded(&written(5, &leases)).unwrap();
    let applies = |units| applied(&usage, &change(0, 6, &[], Some((b"x", 1000, units)))).is_some();
    assert!(applies(101) && !applies(102));
}
