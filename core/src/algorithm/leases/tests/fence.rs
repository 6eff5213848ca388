//! Fencing tokens of leases, stored and propagated.

use super::*;

fn token(number: u64) -> Option<Token> {
    Token::new(number)
}

fn fenced<'a>(holder: &'a str, ttl: &str, number: u64) -> LeaseLimit<'a> {
    held(holder, 1000, ttl).with_token(token(number))
}

const FLAG: u64 = 1 << 63;

#[test]
fn lease_keeps_its_token_until_it_ends() {
    let mut key = Key::<ConcurrencyUsage>::default();
    let of = |key: &Key<ConcurrencyUsage>, holder: &str, millis: u64| {
        key.0.lease_token(holder.as_bytes(), us(1000 * millis))
    };
    key.call(&fenced("a", "10ms", 7), 0, cost(1));
    key.call(&held("b", 1000, "10ms"), 0, cost(1));
    assert_eq!([of(&key, "a", 0), of(&key, "b", 0), of(&key, "c", 0)], [token(7), None, None]);
    // A renewal keeps the token, also with another cost or without a request for a token.
    key.call(&fenced("a", "10ms", 8), 5, cost(2));
    key.call(&held("a", 1000, "10ms"), 6, cost(1));
    assert_eq!(of(&key, "a", 15), token(7));
    assert_eq!(of(&key, "a", 16), None, "it has expired");
    // A lease without a token receives one.
    key.call(&fenced("b", "10ms", 9), 7, cost(1));
    assert_eq!(of(&key, "b", 7), token(9));
    // A new lease does not inherit the token of the old one.
    key.call(&held("a", 1000, "10ms"), 16, cost(1));
    assert_eq!(of(&key, "a", 16), None);
    key.0.release(&[b"b"], us(16_000));
    key.call(&held("b", 1000, "10ms"), 16, cost(1));
    assert_eq!([of(&key, "b", 16), token(key.0.latest_token())], [None, token(9)]);
}

#[test]
fn token_is_stored_and_propagated_with_its_lease() {
    let mut usage = ConcurrencyUsage::default();
    let before = usage.clone();
    let (_, sent) = call_and_encode_effect(&fenced("a", "1ms", 7), &mut usage, us(1000), cost(2));
    let lease = [2000, FLAG + 2_000_000, 7];
    assert_eq!(sent, EncodedFields::integers([CHANGE, 0, 1000, 0, 1]).then(b"a", lease));
    assert_eq!(encoded(&applied(&before, &sent).unwrap()), encoded(&usage));
    assert!(sent.cut_short().all(|sent| applied(&before, &sent).is_none()));
    let before = usage.clone();
    let (_, sent) = call_and_encode_effect(&held("b", 6, "1ms"), &mut usage, us(1500), cost(1));
    assert_eq!(sent, change(0, 1500, &[], Some((b"b", 2500, 1_000_000))), "the form without a token");
    assert_eq!(encoded(&applied(&before, &sent).unwrap()), encoded(&usage));
    let stored = EncodedFields::integers([1500, 2]).then(b"a", lease).then(b"b", [2500, 1_000_000]);
    assert_eq!(encoded(&usage), stored);
    let read = decoded::<ConcurrencyUsage>(&stored).unwrap();
    assert_eq!((encoded(&read), read.latest_token()), (stored, 7));
    // A new lease without a token replaces the old token on a replica as well.
    let before = usage.clone();
    let (_, sent) = call_and_encode_effect(&held("a", 6, "1ms"), &mut usage, us(2000), cost(1));
    let after = applied(&before, &sent).unwrap();
    assert_eq!((encoded(&after), after.lease_token(b"a", us(2000))), (encoded(&usage), None));
}

#[test]
fn malformed_token_is_rejected() {
    let stored = |units: u64, token: &[u64]| {
        let fields = EncodedFields::integers([5, 1]).then(b"a", [10, units]);
        let fields = token.iter().fold(fields, |fields, token| fields.and([*token]));
        decoded::<ConcurrencyUsage>(&fields).is_some()
    };
    let last = Timestamp::MAX.micros();
    assert!(stored(1 | FLAG, &[1]) && stored(1 | FLAG, &[last]));
    assert!(!stored(1 | FLAG, &[0]) && !stored(1 | FLAG, &[last + 1]) && !stored(1 | FLAG, &[]));
    assert!(!stored(FLAG, &[7]), "lease of zero units");
}

#[test]
fn each_of_many_leases_has_its_own_token_and_expired_tokens_are_dropped() {
    let mut key = Key::<ConcurrencyUsage>::default();
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    for (number, name) in (1..).zip(&names) {
        key.call(&fenced(name, "10ms", number), 0, cost(1));
    }
    for (number, name) in (1..).zip(&names) {
        assert_eq!(key.0.lease_token(name.as_bytes(), us(9_000)), token(number));
    }
    assert_eq!(encoded(&decoded::<ConcurrencyUsage>(&encoded(&key.0)).unwrap()), encoded(&key.0));
    let heap_size = key.0.heap_size();
    // All leases expire, and a few new ones follow. Tokens of expired leases do not stay forever.
    for (number, name) in (1000..).zip(names.iter().cycle().take(400)) {
        let at = 100 + 100 * (number - 1000);
        key.call(&fenced(name, "10ms", number), at, cost(1));
        assert_eq!(key.0.lease_token(name.as_bytes(), us(1000 * at)), token(number));
    }
    assert!(key.0.heap_size() * 4 < heap_size, "{} of {heap_size}", key.0.heap_size());
    assert_eq!(key.0.latest_token(), 1399);
}

#[test]
fn described_lease_has_its_token_after_the_expiry() {
    let mut key = Key::<ConcurrencyUsage>::default();
    key.call(&fenced("a", "60s", 7), 0, cost(1));
    let lease = (Box::from(&b"a"[..]), units(1), us(60_000_000), token(7));
    assert_eq!(key.0.describe(us(0), None)[3], ("leases", InfoField::Leases(vec![lease])));
}

#[test]
fn token_takes_memory_in_addition_to_its_lease() {
    let (mut plain, mut key) = (Key::<ConcurrencyUsage>::default(), Key::<ConcurrencyUsage>::default());
    plain.call(&held("a", 1000, "60s"), 0, cost(1));
    key.call(&fenced("a", "60s", 1_700_000_000_000_000), 0, cost(1));
    assert!(key.0.heap_size() > plain.0.heap_size());
}
