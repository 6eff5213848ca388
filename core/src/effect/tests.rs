use super::*;
use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::leases::{Concurrency, ConcurrencyUsage};
use crate::algorithm::log::SlidingLogUsage;
use crate::composite::CompositeUsage;
use crate::limit::Limit;
use crate::number::{Period, Span};
use crate::testing::calls::{millionths, us};

/// 1.5 units, of a second after the epoch.
fn bucket() -> BucketUsage {
    let mut fields = Fields(b" 1500000 1000000");
    BucketUsage::decode(&mut fields, 1).unwrap()
}

/// Leases of a second, of one millionth each, taken at the epoch.
fn leases(holders: &[&[u8]]) -> ConcurrencyUsage {
    let mut usage = ConcurrencyUsage::default();
    for holder in holders {
        Concurrency::new(millionths(100), Period::new(Span::SECOND).unwrap()).asked_by(holder).charge(
            &mut usage,
            us(0),
            millionths(1),
        );
    }
    usage
}

fn shown(text: &Text) -> String {
    text.as_bytes().escape_ascii().to_string()
}

/// What is read of an effect on a bucket: its version, its expiry and whatever follows.
fn read(text: &str) -> Option<(u32, u64, String)> {
    match Effect::read::<BucketUsage>(text.as_bytes())? {
        Effect::Change { version, expires_at, fields } => {
            Some((version, expires_at, fields.0.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Conversion { .. } => None,
    }
}

/// What is read of the conversion of a bucket, likewise; with the expiry that it had.
fn read_conversion(text: &str) -> Option<(u32, u64, Option<u64>, String)> {
    match Effect::read::<BucketUsage>(text.as_bytes())? {
        Effect::Conversion { version, expires_at, plain_expiry, fields } => {
            Some((version, expires_at, plain_expiry, fields.0.escape_ascii().to_string()))
        }
        Effect::Deletion | Effect::Change { .. } => None,
    }
}

#[test]
fn an_effect_is_the_kind_its_version_the_expiry_and_the_fields() {
    assert_eq!(shown(&Text::of_change(&mut bucket(), 5000)), "rl-bucket 1 5000 1500000 1000000");
    assert_eq!(shown(&Text::of_whole(&bucket(), 5000)), "rl-bucket 1 5000 1500000 1000000");
    assert_eq!(shown(&Text::deletion::<BucketUsage>()), "rl-bucket del");
    assert_eq!(shown(&Text::deletion::<SlidingLogUsage>()), "rl-reqlog del");
}

#[test]
fn a_conversion_is_the_kind_before_the_version_and_expiry_of_the_new_one_the_expiry_before_and_the_change() {
    let text = |plain_expiry| {
        let (mut composite, ()) = CompositeUsage::convert(&mut bucket(), plain_expiry, us(2_000_000), |composite| {
            composite.ban(Span::SECOND, us(2_000_000));
        });
        shown(&Text::of_conversion::<BucketUsage, _>(plain_expiry, &mut composite, 5000))
    };
    let change = " 1 2000000 0 1 0 0 1 3000000 0";
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
fn a_string_is_its_length_a_colon_and_its_bytes() {
    let mut usage = leases(&[b"a b:\xff"]);
    assert_eq!(shown(&Text::of_change(&mut usage, 2000)), r"rl-leases 1 2000 1 0 0 0 1 5:a b:\xff 1000000 1");
    assert_eq!(shown(&Text::of_change(&mut usage, 2000)), "rl-leases 1 2000 1 0 0 0 0", "that was all");
    assert_eq!(shown(&Text::of_whole(&usage, 2000)), r"rl-leases 1 2000 0 0 1 5:a b:\xff 1000000 1");
}

#[test]
fn a_long_effect_goes_on_where_a_short_one_would_end() {
    // The name ends just before, at, and behind the last byte that needs no memory, and far behind.
    let around = Text::of_whole(&leases(&[b"x"]), 2000).as_bytes().len() - " 1:x 1000000 1".len();
    for length in (Text::SHORT - around - 8..=Text::SHORT - around + 2).chain([250, 256]) {
        let name = vec![b'x'; length];
        let expected = format!("rl-leases 1 2000 0 0 1 {length}:{} 1000000 1", "x".repeat(length));
        assert_eq!(shown(&Text::of_whole(&leases(&[&name]), 2000)), expected);
    }
}

#[test]
fn what_was_written_is_read_back() {
    assert_eq!(read("rl-bucket 1 5000 1500000 1000000"), Some((1, 5000, " 1500000 1000000".to_owned())));
    assert_eq!(read("rl-bucket 1 5000"), Some((1, 5000, String::new())));
    assert_eq!(read(&format!("rl-bucket 1 {LATEST_EXPIRY}")), Some((1, LATEST_EXPIRY, String::new())));
    assert_eq!(read("rl-bucket 1 1"), Some((1, 1, String::new())));
    assert!(matches!(Effect::read::<BucketUsage>(b"rl-bucket del"), Some(Effect::Deletion)));
}

#[test]
fn what_no_call_can_have_caused_is_refused() {
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
        &too_late,
    ] {
        assert_eq!(read(text), None, "{text:?}");
    }
}

#[test]
fn fields_are_read_as_they_are_written_and_no_other_way() {
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
        let mut fields = Fields(text.as_bytes());
        assert_eq!(fields.integer(), value, "{text:?}");
        assert_eq!(fields.0, left.as_bytes(), "{text:?}");
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
        let mut fields = Fields(text.as_bytes());
        assert_eq!(fields.bytes(most).as_deref(), value.map(str::as_bytes), "{text:?}");
        if value.is_some() {
            assert_eq!(fields.0, left.as_bytes(), "{text:?}");
        }
    }
}
