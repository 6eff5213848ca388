//! Methods of `Key` take the time in milliseconds and return `[allowed, limit, remaining, wait_ms, reset_ms]`.

mod fence;
mod lease_times;
mod many_leases_tests;

use super::few_leases;
use super::many_leases::{MAX_SWEPT, ManyLeases};
use super::*;
use crate::evaluate::Request;
use crate::evaluate::Request::Take;
use crate::limit::{InfoField, Usage};
use crate::testing::calls::{
    Key, amount_of, amounts, assert_charge_counts_until, call, call_and_encode_effect, lengths, millionths, peek,
    period, units, us,
};
use crate::testing::encoded_fields::{EncodedFields, applied, decoded, encoded, whole_effect};
use crate::testing::laws::Lawful;
use crate::wire::codec::{CHANGE, WHOLE};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

impl ConcurrencyUsage {
    /// Returns the number of stored leases, including those that no longer count.
    fn stored_leases(&self) -> usize {
        match self.by_form() {
            (Some(few), _) => few.len(),
            (_, many) => many.map_or(0, ManyLeases::len),
        }
    }
}

/// Maximum TTL in microseconds.
const MAX_TTL: u64 = 3650 * 86_400_000_000;

fn lease_limit<'a>(holder: &'a str, limit: u64, ttl: &str) -> LeaseLimit<'a> {
    Concurrency::new(units(limit), period(ttl)).for_holder(holder.as_bytes())
}

fn take(cost: u64) -> Request {
    Take(units(cost))
}

/// Returns a table of leases that were acquired at 0 s.
fn table(leases: &[(&str, u64, &str)]) -> Key<ConcurrencyUsage> {
    let mut key = Key::default();
    for (holder, units, ttl) in leases {
        assert_eq!(key.call(&lease_limit(holder, 1000, ttl), 0, take(*units))[0], 1);
    }
    key
}

/// Holder, expiry in microseconds, and units in millionths.
type LeaseFields<'a> = (&'a [u8], u64, u64);

/// Encodes a table that was last changed at `changed_at`.
fn encoded_table(changed_at: u64, leases: &[LeaseFields]) -> EncodedFields {
    let fields = EncodedFields::integers([changed_at, leases.len().try_into().unwrap()]);
    leases.iter().fold(fields, |fields, (holder, expires_at, units)| fields.then(holder, [*expires_at, *units]))
}

/// Encodes the change of a call at `changed_at`.
fn encoded_change(moved_back: u64, changed_at: u64, released: &[&[u8]], leased: Option<LeaseFields>) -> EncodedFields {
    let fields = EncodedFields::integers([CHANGE, moved_back, changed_at, released.len().try_into().unwrap()]);
    let fields = released.iter().fold(fields, |fields, holder| fields.then(holder, []));
    match leased {
        None => fields.and([0]),
        Some((holder, expires_at, units)) => fields.and([1]).then(holder, [expires_at, units]),
    }
}

/// Returns a table with a lease of 10 s for each of 10,000 holders, a microsecond apart, and the time of the last
/// charge.
fn ten_thousand_leases() -> (ConcurrencyUsage, Timestamp) {
    let mut usage = ConcurrencyUsage::default();
    for number in 0..10_000 {
        let holder = format!("{number}");
        call_and_encode_effect(&lease_limit(&holder, 1_000_000, "10s"), &mut usage, us(1_000_000 + number), take(1));
    }
    (usage, us(1_009_999))
}

#[test]
fn malformed_table_is_rejected() {
    let (last, max, long_name) = (Timestamp::MAX.micros(), Amount::MAX_ARGUMENT.millionths(), [b'x'; 257]);
    for fields in [
        encoded_table(0, &[(b"a", 1, 1)]),
        encoded_table(last - 1, &[(b"\0\xff", last, max)]),
        encoded_table(last, &[(b"a", last, 1)]),
        encoded_table(5, &[(b"b", 6, 1), (b"a", 7, max - 3), (b"c", 7, 1), (&long_name[1..], 5 + MAX_TTL, 1)]),
    ] {
        assert_eq!(decoded::<ConcurrencyUsage>(&fields).map(|usage| encoded(&usage)), Some(fields.clone()));
        assert!(fields.proper_prefixes().all(|fields| decoded::<ConcurrencyUsage>(&fields).is_none()));
    }
    for (case, fields) in [
        ("no lease", encoded_table(5, &[])),
        ("a holder without a name", encoded_table(5, &[(b"", 6, 1)])),
        ("a holder of 257 bytes", encoded_table(5, &[(&long_name, 6, 1)])),
        ("a holder twice", encoded_table(5, &[(b"a", 6, 1), (b"a", 7, 1)])),
        ("no units", encoded_table(5, &[(b"a", 6, 0)])),
        ("units past any limit", encoded_table(5, &[(b"a", 6, max + 1)])),
        ("a sum past any limit", encoded_table(5, &[(b"a", 6, max), (b"b", 7, 1)])),
        ("units past saturation", encoded_table(5, &[(b"a", 6, 1 << 63)])),
        ("an expiry after the last timestamp", encoded_table(last, &[(b"a", last + 1, 1)])),
        ("a change after the last timestamp", encoded_table(last + 1, &[(b"a", last, 1)])),
        ("a lease for too long", encoded_table(5, &[(b"a", 6 + MAX_TTL, 1)])),
        ("a lease that had expired", encoded_table(6, &[(b"a", 6, 1)])),
        ("an expiry at the epoch", encoded_table(0, &[(b"a", 0, 1)])),
    ] {
        assert!(decoded::<ConcurrencyUsage>(&fields).is_none(), "{case}");
    }
}

#[test]
fn effect_holds_the_change_of_a_call() {
    let mut usage = ConcurrencyUsage::default();
    let acquires = [
        ("a", 1000, 2, encoded_change(0, 1000, &[], Some((b"a", 2000, 2_000_000)))),
        ("b", 1500, 3, encoded_change(0, 1500, &[], Some((b"b", 2500, 3_000_000)))),
        ("b", 1600, 1, encoded_change(0, 1600, &[], Some((b"b", 2600, 1_000_000)))),
        ("c", 2000, 1, encoded_change(0, 2000, &[], Some((b"c", 3000, 1_000_000)))),
        // The clock moves backwards before a denied call, and before a granted call.
        ("d", 1900, 6, encoded_change(100, 1900, &[], None)),
        ("d", 1800, 1, encoded_change(100, 1800, &[], Some((b"d", 2800, 1_000_000)))),
    ];
    let check =
        |before: &ConcurrencyUsage, after: &ConcurrencyUsage, effect: &EncodedFields, expected: &EncodedFields| {
            assert_eq!(effect, expected);
            assert_eq!(encoded(&applied(before, effect).unwrap()), encoded(after));
            assert!(effect.proper_prefixes().all(|effect| applied(before, &effect).is_none()));
            let whole = whole_effect(after);
            assert_eq!(whole, encoded(after).prepend(WHOLE));
            for elsewhere in [&ConcurrencyUsage::default(), before].into_iter().filter(|_| !after.is_unused()) {
                assert_eq!(encoded(&applied(elsewhere, &whole).unwrap()), encoded(after));
            }
        };
    for (holder, micros, cost, expected) in &acquires {
        let before = usage.clone();
        let (_, effect) = call_and_encode_effect(&lease_limit(holder, 6, "1ms"), &mut usage, us(*micros), take(*cost));
        check(&before, &usage, &effect, expected);
    }
    let releases = [
        (1800, &["x", "b", "c", "b"][..], encoded_change(0, 1800, &[b"b", b"c"], None)),
        (1700, &["x"], encoded_change(100, 1700, &[], None)),
        (1600, &["x", "d"], encoded_change(100, 1600, &[b"d"], None)),
    ];
    for (micros, holders, expected) in &releases {
        let before = usage.clone();
        if usage.is_after(us(*micros)) {
            usage.move_back(us(*micros));
        }
        let names: Vec<&[u8]> = holders.iter().map(|holder| holder.as_bytes()).collect();
        usage.release(&names, us(*micros));
        let mut effect = EncodedFields::default();
        usage.encode_effect(&mut effect);
        check(&before, &usage, &effect, expected);
    }
    assert!(usage.is_unused());
}

#[test]
fn possible_effect_is_applied_and_impossible_effect_is_rejected() {
    let (last, max, long_name) = (Timestamp::MAX.micros(), Amount::MAX_ARGUMENT.millionths(), [b'x'; 257]);
    let (a, b): (LeaseFields, LeaseFields) = ((b"a", 10, max - 5), (b"b", 20, 3));
    let usage = decoded::<ConcurrencyUsage>(&encoded_table(5, &[a, b])).unwrap();
    for (case, effect, expected) in [
        ("no change", encoded_change(0, 5, &[], None), Some(encoded_table(5, &[a, b]))),
        (
            "a clock moved back",
            encoded_change(5, 0, &[], None),
            Some(encoded_table(0, &[(b"a", 5, max - 5), (b"b", 15, 3)])),
        ),
        ("a clock moved far back", encoded_change(u64::MAX, 0, &[], None), Some(encoded_table(0, &[]))),
        ("an expiry", encoded_change(0, 10, &[], None), Some(encoded_table(10, &[b]))),
        ("a release", encoded_change(0, 9, &[b"b", b"x", b"b"], None), Some(encoded_table(9, &[a]))),
        ("a lease", encoded_change(0, 9, &[], Some((b"c", 15, 2))), Some(encoded_table(9, &[a, (b"c", 15, 2), b]))),
        (
            "a renewal",
            encoded_change(0, 9, &[], Some((b"b", 9 + MAX_TTL, 5))),
            Some(encoded_table(9, &[a, (b"b", 9 + MAX_TTL, 5)])),
        ),
        (
            "a lease of the units of an expired lease",
            encoded_change(0, 10, &[], Some((b"c", 15, max - 3))),
            Some(encoded_table(10, &[(b"c", 15, max - 3), b])),
        ),
        ("a whole table", encoded_table(9, &[b]).prepend(WHOLE), Some(encoded_table(9, &[b]))),
        ("no effect", EncodedFields::default(), None),
        ("an empty table", encoded_table(9, &[]).prepend(WHOLE), None),
        ("a table with a repeated holder", encoded_table(9, &[b, b]).prepend(WHOLE), None),
        ("another tag", encoded_table(9, &[b]).prepend(2), None),
        ("an earlier time without a shift", encoded_change(0, 4, &[], None), None),
        ("a lease at an earlier time without a shift", encoded_change(0, 4, &[], Some((b"c", 15, 1))), None),
        ("an earlier time with too small a shift", encoded_change(2, 2, &[], None), None),
        ("a release without a name", encoded_change(0, 9, &[b""], None), None),
        ("a release of a name of 257 bytes", encoded_change(0, 9, &[&long_name], None), None),
        ("a release and a lease", encoded_change(0, 9, &[b"b"], Some((b"c", 15, 1))), None),
        ("a lease without a name", encoded_change(0, 9, &[], Some((b"", 15, 1))), None),
        ("a lease with a name of 257 bytes", encoded_change(0, 9, &[], Some((&long_name, 15, 1))), None),
        ("a lease of zero units", encoded_change(0, 9, &[], Some((b"c", 15, 0))), None),
        ("a lease that has expired", encoded_change(0, 9, &[], Some((b"c", 9, 1))), None),
        ("a lease for too long", encoded_change(0, 9, &[], Some((b"c", 10 + MAX_TTL, 1))), None),
        ("a sum past any limit", encoded_change(0, 9, &[], Some((b"c", 15, 3))), None),
        ("a renewal past any limit", encoded_change(0, 9, &[], Some((b"b", 15, 6))), None),
        ("an expiry after the last timestamp", encoded_change(0, last, &[], Some((b"c", last + 1, 1))), None),
        ("a change after the last timestamp", encoded_change(0, last + 1, &[], None), None),
        ("two leases", EncodedFields::integers([CHANGE, 0, 9, 0, 2]), None),
    ] {
        assert_eq!(applied(&usage, &effect).map(|usage| encoded(&usage)), expected, "{case}");
    }
}

#[test]
fn described_facts_hold_active_leases() {
    let mut key = table(&[("b", 2, "60s"), ("a", 3, "30s"), ("expired", 5, "1s")]);
    key.call(&lease_limit("c", 1000, "60s"), 2000, take(1));
    assert_eq!(key.0.entries(), 3);
    let lease = |holder: &str, cost, expires_at| (Box::from(holder.as_bytes()), units(cost), us(expires_at), None);
    let leases = vec![lease("a", 3, 30_000_000), lease("b", 2, 60_000_000), lease("c", 1, 62_000_000)];
    assert_eq!(
        key.0.describe(Timestamp::EPOCH, None),
        [
            ("used", InfoField::Amount(units(6))),
            ("written", InfoField::Instant(us(2_000_000))),
            ("holders", InfoField::Count(3)),
            ("leases", InfoField::Leases(leases.clone())),
        ]
    );
    // Expired leases are left out, although they are stored until the next change.
    assert_eq!(
        key.0.describe(us(30_000_000), None),
        [
            ("used", InfoField::Amount(units(3))),
            ("written", InfoField::Instant(us(2_000_000))),
            ("holders", InfoField::Count(2)),
            ("leases", InfoField::Leases(leases[1..].to_vec())),
        ]
    );
    assert_eq!(key.0.entries(), 3);
}

#[test]
fn described_leases_are_the_first_hundred_to_expire() {
    let names: Vec<String> = (0..101).map(|number| format!("{number:03}")).collect();
    let leases: Vec<_> = names.iter().map(|name| (name.as_str(), 1, "60s")).collect();
    let facts = table(&leases).0.describe(Timestamp::EPOCH, None);
    assert_eq!(facts[2], ("holders", InfoField::Count(101)));
    let lease = |name: &String| (Box::from(name.as_bytes()), units(1), us(60_000_000), None);
    assert_eq!(facts[3], ("leases", InfoField::Leases(names[..100].iter().map(lease).collect())));
}

impl Lawful for LeaseLimit<'static> {
    fn limits() -> impl Strategy<Value = LeaseLimit<'static>> {
        let holder = select(vec![&b"a"[..], b"b", b"c"]);
        (amounts(), lengths(), holder, any::<bool>()).prop_map(|(limit, ttl, holder, nx)| {
            let concurrency = Concurrency::new(Amount::saturating(limit), Period::new(Span::from_micros(ttl)).unwrap());
            concurrency.for_holder(holder).with_nx(nx)
        })
    }

    /// Asserts that the units of a lease are within the limit. A limiter is one holder with one lease; the oracle
    /// covers several holders.
    fn check_guarantee(&self, admitted: &[(Timestamp, u128)]) {
        assert!(admitted.iter().all(|(_, units)| *units <= u128::from(self.limit().millionths())));
    }

    /// Returns a plain charge with a cost above 0.
    fn supported_request(request: Request) -> Request {
        Take(amount_of(request).max(millionths(1)))
    }
}

/// All laws, except that a refund never raises the remaining units above the limit: a lease is released whole, by name.
mod laws {
    use super::*;
    use crate::testing::laws;

    #[test]
    fn never_more_than_the_limit() {
        laws::never_more_than_the_limit::<LeaseLimit>();
    }

    #[test]
    fn clock_step_back_frees_nothing_and_bounds_denials() {
        let law = laws::clock_step_back_frees_nothing_and_bounds_denials;
        laws::in_every_state::<LeaseLimit>(1..=1, laws::without_debts, law);
    }

    #[test]
    fn key_expires_soon_after_its_recovery() {
        laws::key_expires_soon_after_its_recovery::<LeaseLimit>();
    }

    #[test]
    fn move_back_moves_the_recovery_by_the_step() {
        laws::in_every_state::<LeaseLimit>(
            1..=1,
            |operation| operation,
            laws::move_back_moves_the_recovery_by_the_step,
        );
    }

    laws::laws!(LeaseLimit:
        denied_call_changes_nothing,
        peek_changes_nothing,
        peek_after_clock_step_back_equals_peek_after_a_call,
        wait_is_exact,
        encoding_round_trips,
        effect_applied_to_a_copy_gives_the_same_state,
    );

    // The remaining units are available to a new holder; a renewal may be granted beyond them.

    fn newcomer(limit: &LeaseLimit<'static>) -> LeaseLimit<'static> {
        limit.concurrency.for_holder(b"newcomer")
    }

    #[test]
    fn remaining_is_the_largest_cost_that_passes() {
        laws::in_every_state::<LeaseLimit>(
            1..=3,
            |operation| operation,
            |limit, usage, now, request| {
                laws::remaining_is_the_largest_cost_that_passes(&newcomer(limit), usage, now, request);
            },
        );
    }

    #[test]
    fn recovered_key_equals_a_new_one() {
        laws::in_every_state::<LeaseLimit>(
            1..=3,
            |operation| operation,
            |limit, usage, now, request| {
                laws::recovered_key_equals_a_new_one(&newcomer(limit), usage, now, request);
            },
        );
    }
}
