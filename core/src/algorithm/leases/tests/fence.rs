//! Fencing tokens of leases, stored and propagated.

use super::*;

fn token(number: u64) -> Option<Token> {
    Token::new(number)
}

fn fenced_limit<'a>(holder: &'a str, ttl: &str, number: u64) -> LeaseLimit<'a> {
    lease_limit(holder, 1000, ttl).with_token(token(number))
}

/// Flag in the units of an encoded lease: a fencing token follows.
const TOKEN_FLAG: u64 = 1 << 63;

#[test]
fn lease_keeps_its_token_until_it_ends() {
    let mut key = Key::<ConcurrencyUsage>::default();
    let token_of = |key: &Key<ConcurrencyUsage>, holder: &str, millis: u64| {
        key.0.lease_token(holder.as_bytes(), us(1000 * millis))
    };
    key.call(&fenced_limit("a", "10ms", 7), 0, take(1));
    key.call(&lease_limit("b", 1000, "10ms"), 0, take(1));
    assert_eq!([token_of(&key, "a", 0), token_of(&key, "b", 0), token_of(&key, "c", 0)], [token(7), None, None]);
    // A renewal keeps the token, also with another cost or without a request for a token.
    key.call(&fenced_limit("a", "10ms", 8), 5, take(2));
    key.call(&lease_limit("a", 1000, "10ms"), 6, take(1));
    assert_eq!(token_of(&key, "a", 15), token(7));
    assert_eq!(token_of(&key, "a", 16), None, "the lease has expired");
    // A lease without a token receives one.
    key.call(&fenced_limit("b", "10ms", 9), 7, take(1));
    assert_eq!(token_of(&key, "b", 7), token(9));
    // A new lease does not inherit the token of the old one.
    key.call(&lease_limit("a", 1000, "10ms"), 16, take(1));
    assert_eq!(token_of(&key, "a", 16), None);
    key.0.release(&[b"b"], us(16_000));
    key.call(&lease_limit("b", 1000, "10ms"), 16, take(1));
    assert_eq!([token_of(&key, "b", 16), token(key.0.latest_token())], [None, token(9)]);
}

#[test]
fn token_is_stored_and_propagated_with_its_lease() {
    let mut usage = ConcurrencyUsage::default();
    let before = usage.clone();
    let (_, effect) = call_and_encode_effect(&fenced_limit("a", "1ms", 7), &mut usage, us(1000), take(2));
    let lease = [2000, TOKEN_FLAG + 2_000_000, 7];
    assert_eq!(effect, EncodedFields::integers([CHANGE, 0, 1000, 0, 1]).then(b"a", lease));
    assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    assert!(effect.proper_prefixes().all(|effect| applied(&before, &effect).is_none()));
    let before = usage.clone();
    let (_, effect) = call_and_encode_effect(&lease_limit("b", 6, "1ms"), &mut usage, us(1500), take(1));
    assert_eq!(effect, encoded_change(0, 1500, &[], Some((b"b", 2500, 1_000_000))), "the form without a token");
    assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    let stored = EncodedFields::integers([1500, 2]).then(b"a", lease).then(b"b", [2500, 1_000_000]);
    assert_eq!(encoded(&usage), stored);
    let decoded = decoded::<ConcurrencyUsage>(&stored).unwrap();
    assert_eq!((encoded(&decoded), decoded.latest_token()), (stored, 7));
    // A new lease without a token replaces the old token on a replica as well.
    let before = usage.clone();
    let (_, effect) = call_and_encode_effect(&lease_limit("a", 6, "1ms"), &mut usage, us(2000), take(1));
    let after = applied(&before, &effect).unwrap();
    assert_eq!((encoded(&after), after.lease_token(b"a", us(2000))), (encoded(&usage), None));
}

#[test]
fn malformed_token_is_rejected() {
    let is_accepted = |units: u64, token: &[u64]| {
        let fields = EncodedFields::integers([5, 1]).then(b"a", [10, units]);
        let fields = token.iter().fold(fields, |fields, token| fields.and([*token]));
        decoded::<ConcurrencyUsage>(&fields).is_some()
    };
    let last = Timestamp::MAX.micros();
    assert!(is_accepted(1 | TOKEN_FLAG, &[1]) && is_accepted(1 | TOKEN_FLAG, &[last]));
    assert!(
        !is_accepted(1 | TOKEN_FLAG, &[0])
            && !is_accepted(1 | TOKEN_FLAG, &[last + 1])
            && !is_accepted(1 | TOKEN_FLAG, &[])
    );
    assert!(!is_accepted(TOKEN_FLAG, &[7]), "a lease of zero units is rejected");
}

#[test]
fn each_of_many_leases_has_its_own_token_and_expired_tokens_are_dropped() {
    let mut key = Key::<ConcurrencyUsage>::default();
    let names: Vec<String> = (0..200).map(|number| format!("{number:03}")).collect();
    for (number, name) in (1..).zip(&names) {
        key.call(&fenced_limit(name, "10ms", number), 0, take(1));
    }
    for (number, name) in (1..).zip(&names) {
        assert_eq!(key.0.lease_token(name.as_bytes(), us(9_000)), token(number));
    }
    assert_eq!(encoded(&decoded::<ConcurrencyUsage>(&encoded(&key.0)).unwrap()), encoded(&key.0));
    let heap_size = key.0.heap_size();
    // All leases expire, and a few new leases follow. Tokens of expired leases are removed.
    for (number, name) in (1000..).zip(names.iter().cycle().take(400)) {
        let at = 100 + 100 * (number - 1000);
        key.call(&fenced_limit(name, "10ms", number), at, take(1));
        assert_eq!(key.0.lease_token(name.as_bytes(), us(1000 * at)), token(number));
    }
    assert!(key.0.heap_size() * 4 < heap_size, "{} of {heap_size}", key.0.heap_size());
    assert_eq!(key.0.latest_token(), 1399);
}

#[test]
fn described_lease_includes_its_token() {
    let mut key = Key::<ConcurrencyUsage>::default();
    key.call(&fenced_limit("a", "60s", 7), 0, take(1));
    let lease = (Box::from(&b"a"[..]), units(1), us(60_000_000), token(7));
    assert_eq!(key.0.describe(us(0), None)[3], ("leases", InfoField::Leases(vec![lease])));
}

#[test]
fn token_takes_memory_in_addition_to_its_lease() {
    let (mut plain, mut fenced) = (Key::<ConcurrencyUsage>::default(), Key::<ConcurrencyUsage>::default());
    plain.call(&lease_limit("a", 1000, "60s"), 0, take(1));
    fenced.call(&fenced_limit("a", "60s", 1_700_000_000_000_000), 0, take(1));
    assert!(fenced.0.heap_size() > plain.0.heap_size());
}
