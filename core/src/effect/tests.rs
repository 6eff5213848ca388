use super::*;
use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage};
use crate::algorithm::log::SlidingLogUsage;
use crate::composite::CompositeUsage;
use crate::limit::Limit;
use crate::number::{Period, Span};
use crate::testing::calls::{millionths, us};

/// Creates a decoder for fields without an expiry.
fn decoder_without_expiry(text: &str) -> TextDecoder<'_> {
    TextDecoder { rest: text.as_bytes(), time_base: TimeBase::None }
}

/// Returns a usage of 1.5 units, one second after the epoch.
fn bucket() -> BucketUsage {
    let mut fields = decoder_without_expiry(" 1500000 1000000");
    BucketUsage::decode(&mut fields, 1).unwrap()
}

/// Returns a usage in which each holder has a lease of a millionth, taken at the epoch for one second.
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

fn escaped(text: &EncodedText) -> String {
    text.as_bytes().escape_ascii().to_string()
}

/// Decodes an effect on a bucket, and returns its version, its expiry and the remaining text.
fn decode_change(text: &str) -> Option<(u32, u64, String)> {
    match Effect::decode::<BucketUsage>(text.as_bytes())? {
        Effect::Change { version, expires_at, fields } => {
            Some((version, expires_at, fields.rest.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Conversion { .. } => None,
    }
}

/// Decodes the conversion of a bucket, and returns its version, its expiry, the former expiry and the remaining text.
fn decode_conversion(text: &str) -> Option<(u32, u64, Option<u64>, String)> {
    match Effect::decode::<BucketUsage>(text.as_bytes())? {
        Effect::Conversion { version, expires_at, plain_expiry, fields } => {
            Some((version, expires_at, plain_expiry, fields.rest.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Change { .. } => None,
    }
}

#[test]
fn effect_contains_kind_version_expiry_and_fields() {
    assert_eq!(escaped(&EncodedText::of_change(&mut bucket(), 5000)), "rl-bucket 1 5000 1500000 1M");
    assert_eq!(escaped(&EncodedText::of_whole(&bucket(), 5000)), "rl-bucket 1 5000 1500000 1M");
    assert_eq!(escaped(&EncodedText::of_part(&bucket(), 0).0), "rl-bucket 1 max 1500000 1M");
    assert_eq!(escaped(&EncodedText::deletion::<BucketUsage>()), "rl-bucket del");
    assert_eq!(escaped(&EncodedText::deletion::<SlidingLogUsage>()), "rl-reqlog del");
}

#[test]
fn conversion_contains_both_expiries_and_the_change() {
    let encode = |plain_expiry| {
        let (mut composite, ()) = CompositeUsage::convert(&mut bucket(), plain_expiry, us(2_000_000), |composite| {
            composite.ban(Span::SECOND, us(2_000_000));
        });
        escaped(&EncodedText::of_conversion::<BucketUsage, _>(plain_expiry, &mut composite, 5000))
    };
    let change = " 2 2M 0 1 0 0 1 3M 0";
    assert_eq!(encode(Some(4000)), format!("rl-bucket convert 1 5000 4000{change}"));
    for none in [None, Some(LATEST_EXPIRY + 1)] {
        assert_eq!(encode(none), format!("rl-bucket convert 1 5000 0{change}"));
    }
    let decode = |plain_expiry| decode_conversion(&encode(plain_expiry));
    assert_eq!(decode(Some(4000)), Some((1, 5000, Some(4000), change.to_owned())));
    assert_eq!(decode(None), Some((1, 5000, None, change.to_owned())));
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
        assert_eq!(decode_conversion(text), None, "{text:?}");
    }
}

#[test]
fn string_is_encoded_with_its_length() {
    let mut usage = leases(&[b"a b:\xff"]);
    assert_eq!(escaped(&EncodedText::of_change(&mut usage, 2000)), r"rl-leases 1 2000 1 0 0 0 1 5:a b:\xff 1M 1");
    assert_eq!(
        escaped(&EncodedText::of_change(&mut usage, 2000)),
        "rl-leases 1 2000 1 0 0 0 0",
        "nothing has changed since"
    );
    assert_eq!(escaped(&EncodedText::of_whole(&usage, 2000)), r"rl-leases 1 2000 0 0 1 5:a b:\xff 1M 1");
}

#[test]
fn effect_longer_than_the_inline_buffer_is_encoded() {
    // The effect ends before, at, just after and far after the end of the inline buffer.
    let length_without_lease = EncodedText::of_whole(&leases(&[b"x"]), 2000).as_bytes().len() - " 1:x 1M 1".len();
    for length in (EncodedText::SHORT - length_without_lease - 8..=EncodedText::SHORT - length_without_lease + 2)
        .chain([250, 256])
    {
        let name = vec![b'x'; length];
        let expected = format!("rl-leases 1 2000 0 0 1 {length}:{} 1M 1", "x".repeat(length));
        assert_eq!(escaped(&EncodedText::of_whole(&leases(&[&name]), 2000)), expected);
    }
}

#[test]
fn effect_is_decoded() {
    assert_eq!(decode_change("rl-bucket 1 5000 1500000 1000000"), Some((1, 5000, " 1500000 1000000".to_owned())));
    assert_eq!(decode_change("rl-bucket 1 5000"), Some((1, 5000, String::new())));
    assert_eq!(decode_change(&format!("rl-bucket 1 {LATEST_EXPIRY}")), Some((1, LATEST_EXPIRY, String::new())));
    assert_eq!(decode_change("rl-bucket 1 1"), Some((1, 1, String::new())));
    assert_eq!(decode_change("rl-bucket 1 max 1500000 1M"), Some((1, LATEST_EXPIRY, " 1500000 1M".to_owned())));
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
        assert_eq!(decode_change(text), None, "{text:?}");
    }
}

#[test]
fn only_canonical_fields_are_decoded() {
    for (text, value, rest) in [
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
        let mut fields = decoder_without_expiry(text);
        assert_eq!(fields.integer(), value, "{text:?}");
        assert_eq!(fields.rest, rest.as_bytes(), "{text:?}");
        assert_eq!(fields.is_at_end(), rest.is_empty(), "{text:?}");
    }
    for (text, max_length, value, rest) in [
        (" 3:a b c", 3, Some("a b"), " c"),
        (" 0: 1", 0, Some(""), " 1"),
        (" 3:a b", 2, None, ":a b"),
        (" 4:a b", 9, None, " 4:a b"),
        (" 3;a b", 9, None, ";a b"),
        (" x:a b", 9, None, "x:a b"),
    ] {
        let mut fields = decoder_without_expiry(text);
        assert_eq!(fields.bytes(max_length).as_deref(), value.map(str::as_bytes), "{text:?}");
        if value.is_some() {
            assert_eq!(fields.rest, rest.as_bytes(), "{text:?}");
        }
    }
}

/// Expiry in 2023, in microseconds.
const EXPIRY_US: u64 = 1_700_003_600_000_000;
const EXPIRY_MS: u64 = EXPIRY_US / 1000;

fn decoder_with_expiry(text: &str) -> TextDecoder<'_> {
    TextDecoder { rest: text.as_bytes(), time_base: TimeBase::of_expiry(EXPIRY_MS) }
}

fn encode_numbers(values: &[u64]) -> String {
    let mut text = EncodedText::heading::<BucketUsage>(EXPIRY_MS);
    for value in values {
        text.integer(*value);
    }
    escaped(&text).strip_prefix(&format!("rl-bucket 1 {EXPIRY_MS}")).unwrap().to_owned()
}

fn decode_numbers(text: &str) -> Option<Vec<u64>> {
    let mut fields = decoder_with_expiry(text);
    let mut numbers = Vec::new();
    while !fields.is_at_end() {
        numbers.push(fields.integer()?);
    }
    Some(numbers)
}

#[test]
fn timestamps_are_encoded_as_distances() {
    let now = EXPIRY_US - 3_600_000_000;
    assert_eq!(encode_numbers(&[7, now, 0, now + 5, now, now - 5]), " 7 -3600000000 0 +5 + -5");
    assert_eq!(encode_numbers(&[EXPIRY_US, EXPIRY_US + 1]), " + +1");
    let far = now + TimeBase::DISTANCE_LIMIT;
    assert_eq!(
        encode_numbers(&[now, far - 1, far, now - TimeBase::DISTANCE_LIMIT]),
        format!(" -3600000000 +99999999999 {far} {}", now - TimeBase::DISTANCE_LIMIT)
    );
    assert_eq!(encode_numbers(&[TimeBase::MIN_TIMESTAMP, TimeBase::MIN_TIMESTAMP - 1]), " 1000000000000 999999999999");
    assert_eq!(encode_numbers(&[u64::MAX, u64::MAX - 1]), format!(" {} -1", u64::MAX));
}

#[test]
fn multiple_of_a_million_is_abbreviated() {
    let far = TimeBase::MIN_TIMESTAMP;
    assert_eq!(
        encode_numbers(&[0, 1, 999_999, 1_000_000, 1_000_001, 60_000_000, far - 1_000_000, far]),
        " 0 1 999999 1M 1000001 60M 999999M 1000000000000"
    );
}

#[test]
fn numbers_are_decoded_abbreviated_and_in_digits() {
    let now = EXPIRY_US - 3_600_000_000;
    let values = [7, now, 2_000_000, now + 5, now, now - 5, now + TimeBase::DISTANCE_LIMIT, u64::MAX];
    assert_eq!(decode_numbers(&encode_numbers(&values)).as_deref(), Some(&values[..]));
    let digits = format!(" {}", values.map(|value| value.to_string()).join(" "));
    assert_eq!(decode_numbers(&digits).as_deref(), Some(&values[..]));
}

#[test]
fn non_canonical_number_is_rejected() {
    let distance_to_min_timestamp = EXPIRY_US - TimeBase::MIN_TIMESTAMP;
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
        &format!(" -{distance_to_min_timestamp}"),
    ] {
        assert_eq!(decode_numbers(text), None, "{text:?}");
    }
    for text in [" +1", " -1", " +", " M"] {
        assert_eq!(decoder_without_expiry(text).integer(), None, "{text:?} without an expiry");
    }
    let mut million = decoder_without_expiry(" 1M");
    assert_eq!((million.integer(), million.is_at_end()), (Some(1), false));
    let mut near_zero = TextDecoder { rest: b" -1", time_base: TimeBase::Instant(TimeBase::MIN_TIMESTAMP) };
    assert_eq!(near_zero.integer(), None);
    let mut near_the_end = TextDecoder { rest: b" +1", time_base: TimeBase::Instant(u64::MAX) };
    assert_eq!(near_the_end.integer(), None);
}

#[test]
fn short_numbers_are_encoded_in_digits() {
    let values: Vec<u64> = (0..=11).chain([99, 100, 255, 256, 257, 265]).collect();
    let expected = values.iter().map(u64::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(encode_numbers(&values), format!(" {expected}"));
}

#[test]
fn timestamps_after_max_and_after_the_latest_expiry_are_encoded_alike() {
    let now = EXPIRY_US - 3_600_000_000;
    let mut usage = BucketUsage::decode(&mut decoder_without_expiry(&format!(" 1500000 {now}")), 1).unwrap();
    let part = escaped(&EncodedText::of_part(&usage, 0).0);
    assert_eq!(part, format!("rl-bucket 1 max 1500000 {now}"));
    assert_eq!(
        part.replace("max", &LATEST_EXPIRY.to_string()),
        escaped(&EncodedText::of_change(&mut usage, LATEST_EXPIRY))
    );
}
