use super::*;
use proptest::prelude::*;

const RECORD: &str = "rl-policy 1 4:gold 1700000000000000 7 1600000000000000 3 2 1700000000000 \
                      22:TOKENBUCKET 60 60 1m X 1650000000000000 9 500000 1700000060000000";

fn entry() -> Entry {
    Entry {
        name: b"gold"[..].into(),
        definition: Definition {
            stamp: Stamp { at: 1_700_000_000_000_000, node: 7 },
            born: Stamp { at: 1_600_000_000_000_000, node: 3 },
            version: 2,
            set_at: 1_700_000_000_000,
            text: b"TOKENBUCKET 60 60 1m X"[..].into(),
        },
        scale: Scale {
            stamp: Stamp { at: 1_650_000_000_000_000, node: 9 },
            factor: Amount::saturating(500_000),
            until: Timestamp::from_micros(1_700_000_060_000_000).unwrap(),
        },
    }
}

#[test]
fn a_record_is_the_name_and_both_registers() {
    assert_eq!(String::from_utf8_lossy(entry().record().as_bytes()), RECORD);
    assert_eq!(Entry::read(RECORD.as_bytes()), Some(entry()));
    let deleted =
        Entry { definition: Definition { text: Box::default(), ..entry().definition }, scale: Scale::NONE, ..entry() };
    let text = "rl-policy 1 4:gold 1700000000000000 7 1600000000000000 3 2 1700000000000 0: 0 0 1000000 0";
    assert_eq!(String::from_utf8_lossy(deleted.record().as_bytes()), text);
    assert_eq!(Entry::read(text.as_bytes()), Some(deleted));
}

#[test]
fn what_no_server_can_have_written_is_refused() {
    let replaced = |from: &str, to: &str| {
        assert_eq!(RECORD.matches(from).count(), 1, "{from}");
        RECORD.replace(from, to)
    };
    for record in [
        String::new(),
        replaced("rl-policy 1", "rl-policy 2"),
        replaced("rl-policy 1", "rl-policy 01"),
        replaced("rl-policy", "rl-bucket"),
        replaced("4:gold", "0:"),
        replaced("4:gold", "5:gold"),
        replaced("4:gold", &format!("257:{}", "x".repeat(257))),
        // Later than the last instant, or than what was born of it.
        replaced("1700000000000000", "31536000000000001"),
        replaced("1600000000000000 3", "1700000000000000 8"),
        replaced("1650000000000000", "31536000000000001"),
        replaced("1700000060000000", "31536000000000001"),
        replaced(" 2 1700000000000 ", " 0 1700000000000 "),
        replaced(" 2 1700000000000 ", " 2 31536000000001 "),
        replaced(" 500000 ", " 1000000001 "),
        replaced(" 500000 ", " 0500000 "),
        replaced("22:TOKENBUCKET 60 60 1m X", &format!("16385:{}", "x".repeat(16_385))),
        format!("{RECORD} "),
        format!("{RECORD} 1"),
        format!(" {RECORD}"),
    ] {
        assert_eq!(Entry::read(record.as_bytes()), None, "{record}");
    }
    for end in 0..RECORD.len() {
        let cut = Entry::read(&RECORD.as_bytes()[..end]);
        // What is cut within the last number may be one.
        assert_eq!(cut.is_some(), end > RECORD.rfind(' ').unwrap() + 1, "{end}");
    }
}

#[test]
fn what_a_server_can_just_have_written_is_read() {
    for (from, to) in [
        ("4:gold".to_owned(), format!("256:{}", "x".repeat(256))),
        ("1700000000000000".to_owned(), Timestamp::MAX.micros().to_string()),
        ("1600000000000000 3".to_owned(), "1700000000000000 7".to_owned()),
        ("1700000060000000".to_owned(), Timestamp::MAX.micros().to_string()),
        ("1700000000000 ".to_owned(), "31536000000000 ".to_owned()),
        (" 2 1700000000000 ".to_owned(), format!(" {} 1700000000000 ", u64::MAX)),
        (" 7 ".to_owned(), format!(" {} ", u64::MAX)),
        (" 500000 ".to_owned(), " 1000000000 ".to_owned()),
        (" 500000 ".to_owned(), " 0 ".to_owned()),
        ("22:TOKENBUCKET 60 60 1m X".to_owned(), format!("16384:{}", "x".repeat(16_384))),
        ("22:TOKENBUCKET 60 60 1m X".to_owned(), "3:a b".to_owned()),
    ] {
        assert_eq!(RECORD.matches(&from).count(), 1, "{from}");
        let record = RECORD.replace(&from, &to);
        let read = Entry::read(record.as_bytes());
        assert_eq!(read.map(|entry| entry.record().as_bytes().to_vec()), Some(record.clone().into_bytes()), "{record}");
    }
}

#[test]
fn only_a_scale_later_than_the_birth_counts() {
    let scaled_at = |at, node| {
        let entry = entry();
        Entry { scale: Scale { stamp: Stamp { at, node }, ..entry.scale }, ..entry }
    };
    let born = entry().definition.born;
    assert_eq!(scaled_at(born.at, born.node).scale(), &Scale::NONE);
    assert_eq!(scaled_at(born.at - 1, u64::MAX).scale(), &Scale::NONE);
    for scaled in [scaled_at(born.at, born.node + 1), scaled_at(born.at + 1, 0)] {
        assert_eq!(scaled.scale(), &scaled.scale);
    }
}

prop_compose! {
    /// Near each other, so that there are ties.
    fn stamps()(at in 0_u64..4, node in 0_u64..3) -> Stamp {
        Stamp { at, node }
    }
}

prop_compose! {
    fn entries()(
        (stamp, other, scaled) in (stamps(), stamps(), stamps()),
        (version, set_at, factor) in (1_u64..3, 0_u64..2, 0_u64..3),
        until in 0_u64..2,
        text in proptest::sample::select(vec!["", "FIXED 1 1s", "later"]),
    ) -> Entry {
        let (born, stamp) = (stamp.min(other), stamp.max(other));
        let text = text.as_bytes().into();
        let until = Timestamp::from_micros(until).unwrap();
        Entry {
            name: b"a"[..].into(),
            definition: Definition { stamp, born, version, set_at, text },
            scale: Scale { stamp: scaled, factor: Amount::saturating(factor), until },
        }
    }
}

fn merged(one: &Entry, other: &Entry) -> Entry {
    let mut merged = one.clone();
    let changed = merged.merge(other.clone());
    assert_eq!(changed, merged != *one);
    merged
}

proptest! {
    #[test]
    fn to_merge_is_idempotent_commutative_and_associative(a in entries(), b in entries(), c in entries()) {
        prop_assert_eq!(&merged(&a, &a), &a);
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        let all = merged(&merged(&a, &b), &c);
        prop_assert_eq!(all.definition.stamp, [&a, &b, &c].map(|entry| entry.definition.stamp).into_iter().max().unwrap());
        prop_assert_eq!(all.scale.stamp, [&a, &b, &c].map(|entry| entry.scale.stamp).into_iter().max().unwrap());
    }

    #[test]
    fn a_record_reads_back_as_it_was(entry in entries()) {
        prop_assert_eq!(Entry::read(entry.record().as_bytes()), Some(entry));
    }

    #[test]
    fn what_is_read_is_written_the_same(
        place in any::<proptest::sample::Index>(),
        byte in proptest::sample::select(b"0123456789 :-x".to_vec()),
    ) {
        let mut record = RECORD.as_bytes().to_vec();
        let place = place.index(record.len());
        record[place] = byte;
        if let Some(entry) = Entry::read(&record) {
            prop_assert_eq!(entry.record().as_bytes().to_vec(), record);
        }
    }
}
