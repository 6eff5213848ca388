use super::*;
use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage};
use crate::algorithm::log::SlidingLogUsage;
use crate::composite::CompositeUsage;
use crate::limit::Limit;
use crate::number::{Period, Span};
use crate::testing::calls::{millionths, us};

/// Creates a decoder for fields without an expiry.
fn digits_only(text: &str) -> TextDecoder<'_> {
    TextDecoder { rest: text.as_bytes(), anchor: TimeBase::None }
}

/// Returns a usage of 1.5 units, one second after the epoch.
fn bucket() -> BucketUsage {
    let mut fields = digits_only(" 1500000 1000000");
    BucketUsage::decode(&mut fields, 1).unwrap()
}

/// Returns leases of one second and one millionth each, taken at the epoch.
fn leases(holders: &[&[u8]]) -> ConcurrencyUsage {
    let mut usage = ConcurrencyUsage::default();
    for holder in holders {
        Concurrency::new(millionths(100), Period::new(Span::SECOND).unwrap()).for_holder(holder).charge(
            &mut usage,
            us(0),
            millionths(1),
        );
    }
    usage
}

fn shown(text: &EncodedText) -> String {
    text.as_bytes().escape_ascii().to_string()
}

/// Decodes an effect on a bucket, and returns its version, its expiry and the remaining text.
fn read(text: &str) -> Option<(u32, u64, String)> {
    match Effect::decode::<BucketUsage>(text.as_bytes())? {
        Effect::Change { version, expires_at, fields } => {
            Some((version, expires_at, fields.rest.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Conversion { .. } => None,
    }
}

/// Decodes the conversion of a bucket, and returns its version, its expiry, the former expiry and the remaining text.
fn read_conversion(text: &str) -> Option<(u32, u64, Option<u64>, String)> {
    match Effect::decode::<BucketUsage>(text.as_bytes())? {
        Effect::Conversion { version, expires_at, plain_expiry, fields } => {
            Some((version, expires_at, plain_expiry, fields.rest.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Change { .. } => None,
    }
}

#[test]
fn effect_contains_kind_version_expiry_and_fields() {
    assert_eq!(shown(&EncodedText::of_change(&mut bucket(), 5000)), "rl-bucket 1 5000 1500000 1M");
    assert_eq!(shown(&EncodedText::of_whole(&bucket(), 5000)), "rl-bucket 1 5000 1500000 1M");
    assert_eq!(shown(&EncodedText::of_part(&bucket(), 0).0), "rl-bucket 1 max 1500000 1M");
    assert_eq!(shown(&EncodedText::deletion::<BucketUsage>()), "rl-bucket del");
    assert_eq!(shown(&EncodedText::deletion::<SlidingLogUsage>()), "rl-reqlog del");
}

#[test]
fn conversion_contains_both_expiries_and_the_change() {
    let text = |plain_expiry| {
        let (mut composite, ()) = CompositeUsage::convert(&mut bucket(), plain_expiry, us(2_000_000), |composite| {
            composite.ban(Span::SECOND, us(2_000_000));
        });
        shown(&EncodedText::of_conversion::<BucketUsage, _>(plain_expiry, &mut composite, 5000))
    };
    let change = " 2 2M 0 1 0 0 1 3M 0";
    assert_eq!(text(Some(4000)), format!("rl-bucket convert 1 5000 4000{change}"));
    for none in [None, Some(LATEST_EXPIRY + 1)] {
        assert_eq!(text(none), format!("rl-bucket convert 1 5000 0{change}"));
    }
    let read = |plain_expiry| read_conversion(&text(plain_expiry));
    assert_eq!(read(Some(4000)), Some((1, 5000, Some(4000), change.to_owned())));
    assert_eq!(read(None), Some((1, 5000, None, change.to_owned())));
    let too_late = format!("rl-bucket convert 1 5000 {} 1", LATEST_EXPIRY + 1);
    for text in [
        "rl-bucket convert",
        "rl-bucket convert 1 5000",
        "rl-bucket convert 1 0 4000 1",
        "rl-bucket convert 4294967297 5000 4000 1",
        "rl-bucket  convert 1 5000 4000 1",
        "rl-window convert 1 5000 4000 1",
        &too_late,
    ] {
        assert_eq!(read_conversion(text), None, "{text:?}");
    }
}

#[test]
fn string_is_encoded_with_its_length() {
    let mut usage = leases(&[b"a b:\xff"]);
    assert_eq!(shown(&EncodedText::of_change(&mut usage, 2000)), r"rl-leases 1 2000 1 0 0 0 1 5:a b:\xff 1M 1");
    assert_eq!(
        shown(&EncodedText::of_change(&mut usage, 2000)),
        "rl-leases 1 2000 1 0 0 0 0",
        "nothing has changed since"
    );
    assert_eq!(shown(&EncodedText::of_whole(&usage, 2000)), r"rl-leases 1 2000 0 0 1 5:a b:\xff 1M 1");
}

#[test]
fn long_effect_equals_a_short_one_beyond_the_inline_buffer() {
    // The name ends just before, at and after the last inline byte, and far after it.
    let around = EncodedText::of_whole(&leases(&[b"x"]), 2000).as_bytes().len() - " 1:x 1M 1".len();
    for length in (EncodedText::SHORT - around - 8..=EncodedText::SHORT - around + 2).chain([250, 256]) {
        let name = vec![b'x'; length];
        let expected = format!("rl-leases 1 2000 0 0 1 {length}:{} 1M 1", "x".repeat(length));
        assert_eq!(shown(&EncodedText::of_whole(&leases(&[&name]), 2000)), expected);
    }
}

#[test]
fn encoded_effect_is_decoded() {
    assert_eq!(read("rl-bucket 1 5000 1500000 1000000"), Some((1, 5000, " 1500000 1000000".to_owned())));
    assert_eq!(read("rl-bucket 1 5000"), Some((1, 5000, String::new())));
    assert_eq!(read(&format!("rl-bucket 1 {LATEST_EXPIRY}")), Some((1, LATEST_EXPIRY, String::new())));
    assert_eq!(read("rl-bucket 1 1"), Some((1, 1, String::new())));
    assert_eq!(read("rl-bucket 1 max 1500000 1M"), Some((1, LATEST_EXPIRY, " 1500000 1M".to_owned())));
    assert!(matches!(Effect::decode::<BucketUsage>(b"rl-bucket del"), Some(Effect::Deletion)));
}

#[test]
fn malformed_effect_is_rejected() {
    let too_late = format!("rl-bucket 1 {}", LATEST_EXPIRY + 1);
    for text in [
        "",
        "rl-bucket",
        "rl-window 1 5000 1",
        "rl-window del",
        "rl-bucketdel",
        "rl-bucket  del",
        "rl-bucket 0 5000",
        "rl-bucket 2 5000",
        "rl-bucket 4294967297 5000",
        "rl-bucket 1",
        "rl-bucket 1 ",
        "rl-bucket 1 0",
        "rl-bucket 1 -5",
        "rl-bucket 01 5000",
        "rl-bucket 1 05000",
        "rl-bucket  1 5000",
        "rl-bucket 1\t5000",
        "rl-bucket 1 x",
        "rl-bucket 1 MAX",
        "rl-bucket 1 ma",
        "rl-bucket max",
        "rl-bucket max 5000",
        &too_late,
    ] {
        assert_eq!(read(text), None, "{text:?}");
    }
}

#[test]
fn only_canonical_fields_are_decoded() {
    for (text, value, left) in [
        (" 0", Some(0), ""),
        (" 7 8", Some(7), " 8"),
        (" 10:", Some(10), ":"),
        (" 18446744073709551615", Some(u64::MAX), ""),
        (" 18446744073709551616", None, ""),
        (" 00", None, ""),
        (" 01", None, ""),
        (" ", None, ""),
        ("7", None, "7"),
        ("", None, ""),
    ] {
        let mut fields = digits_only(text);
        assert_eq!(fields.integer(), value, "{text:?}");
        assert_eq!(fields.rest, left.as_bytes(), "{text:?}");
        assert_eq!(fields.end(), left.is_empty(), "{text:?}");
    }
    for (text, most, value, left) in [
        (" 3:a b c", 3, Some("a b"), " c"),
        (" 0: 1", 0, Some(""), " 1"),
        (" 3:a b", 2, None, ":a b"),
        (" 4:a b", 9, None, " 4:a b"),
        (" 3;a b", 9, None, ";a b"),
        (" x:a b", 9, None, "x:a b"),
    ] {
        let mut fields = digits_only(text);
        assert_eq!(fields.bytes(most).as_deref(), value.map(str::as_bytes), "{text:?}");
        if value.is_some() {
            assert_eq!(fields.rest, left.as_bytes(), "{text:?}");
        }
    }
}

/// Expiry an hour after a time in 2023, in microseconds and in milliseconds.
const EXPIRY_US: u64 = 1_700_003_600_000_000;
const EXPIRY_MS: u64 = EXPIRY_US / 1000;

fn with_an_expiry(text: &str) -> TextDecoder<'_> {
    TextDecoder { rest: text.as_bytes(), anchor: TimeBase::of_expiry(EXPIRY_MS) }
}

fn written(values: &[u64]) -> String {
    let mut text = EncodedText::heading::<BucketUsage>(EXPIRY_MS);
    for value in values {
        text.integer(*value);
    }
    shown(&text).strip_prefix(&format!("rl-bucket 1 {EXPIRY_MS}")).unwrap().to_owned()
}

fn numbers(text: &str) -> Option<Vec<u64>> {
    let mut fields = with_an_expiry(text);
    let mut numbers = Vec::new();
    while !fields.end() {
        numbers.push(fields.integer()?);
    }
    Some(numbers)
}

#[test]
fn timestamps_are_encoded_as_distances() {
    let now = EXPIRY_US - 3_600_000_000;
    assert_eq!(written(&[7, now, 0, now + 5, now, now - 5]), " 7 -3600000000 0 +5 + -5");
    assert_eq!(written(&[EXPIRY_US, EXPIRY_US + 1]), " + +1");
    let far = now + TimeBase::DISTANCE_LIMIT;
    assert_eq!(
        written(&[now, far - 1, far, now - TimeBase::DISTANCE_LIMIT]),
        format!(" -3600000000 +99999999999 {far} {}", now - TimeBase::DISTANCE_LIMIT)
    );
    assert_eq!(written(&[TimeBase::MIN_TIMESTAMP, TimeBase::MIN_TIMESTAMP - 1]), " 1000000000000 999999999999");
    assert_eq!(written(&[u64::MAX, u64::MAX - 1]), format!(" {} -1", u64::MAX));
}

#[test]
fn multiple_of_a_million_is_abbreviated() {
    let far = TimeBase::MIN_TIMESTAMP;
    assert_eq!(
        written(&[0, 1, 999_999, 1_000_000, 1_000_001, 60_000_000, far - 1_000_000, far]),
        " 0 1 999999 1M 1000001 60M 999999M 1000000000000"
    );
}

#[test]
fn numbers_are_decoded_abbreviated_and_in_digits() {
    let now = EXPIRY_US - 3_600_000_000;
    let values = [7, now, 2_000_000, now + 5, now, now - 5, now + TimeBase::DISTANCE_LIMIT, u64::MAX];
    assert_eq!(numbers(&written(&values)).as_deref(), Some(&values[..]));
    let digits = format!(" {}", values.map(|value| value.to_string()).join(" "));
    assert_eq!(numbers(&digits).as_deref(), Some(&values[..]));
}

#[test]
fn non_canonical_number_is_rejected() {
    let least_distance = EXPIRY_US - TimeBase::MIN_TIMESTAMP;
    for text in [
        " +0",
        " -0",
        " -",
        " +01",
        " +100000000000",
        " -100000000000",
        " 0M",
        " 01M",
        " M",
        " 1000000M",
        " 1m",
        " 18446744073709551615M",
        " +1M",
        " ++1",
        " + 1x",
        " 1M1",
        &format!(" -{least_distance}"),
    ] {
        assert_eq!(numbers(text), None, "{text:?}");
    }
    for text in [" +1", " -1", " +", " M"] {
        assert_eq!(digits_only(text).integer(), None, "{text:?} without an expiry");
    }
    let mut million = digits_only(" 1M");
    assert_eq!((million.integer(), million.end()), (Some(1), false));
    let mut near_zero = TextDecoder { rest: b" -1", anchor: TimeBase::Instant(TimeBase::MIN_TIMESTAMP) };
    assert_eq!(near_zero.integer(), None);
    let mut near_the_end = TextDecoder { rest: b" +1", anchor: TimeBase::Instant(u64::MAX) };
    assert_eq!(near_the_end.integer(), None);
}

#[test]
fn number_of_one_digit_is_encoded() {
    let values: Vec<u64> = (0..=11).chain([99, 100, 255, 256, 257, 265]).collect();
    let expected = values.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(written(&values), format!(" {expected}"));
}

#[test]
fn timestamp_after_max_is_encoded_as_after_the_number() {
    let now = EXPIRY_US - 3_600_000_000;
    let mut usage = BucketUsage::decode(&mut digits_only(&format!(" 1500000 {now}")), 1).unwrap();
    let part = shown(&EncodedText::of_part(&usage, 0).0);
    assert_eq!(part, format!("rl-bucket 1 max 1500000 {now}"));
    assert_eq!(
        part.replace("max", &LATEST_EXPIRY.to_string()),
        shown(&EncodedText::of_change(&mut usage, LATEST_EXPIRY))
    );
}
