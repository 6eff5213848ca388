use super::*;
use proptest::prelude::*;

/// Record of a scale without an end.
const RECORD: &str = "rl-policy 1 4:gold 1700000000000000 7 1600000000000000 3 2 1700000000000 \
                      22:TOKENBUCKET 60 60 1m X 1650000000000000 9 500000 0";

/// Record of a scale for an hour, of which a minute is left. MUL changed it 59 minutes ago, and ADD a minute ago.
const RECORD_STEPS: &str = "rl-policy 3 4:gold 1700000000000000 7 1600000000000000 3 1700000000000000 1700000000000 \
                            22:TOKENBUCKET 60 60 1m X 1650000000000000 9 500000 1650003600000000 3600000000 \
                            1650000000000000 1640000000000000 3540000000 60000000 60000000";

/// Record of a scale for an hour, of which a minute is left.
const RECORD_FOR: &str = "rl-policy 2 4:gold 1700000000000000 7 1600000000000000 3 1700000000000000 1700000000000 \
                          22:TOKENBUCKET 60 60 1m X 1650000000000000 9 500000 1650003600000000 3600000000 60000000";

const MINUTE: Span = Span::SECOND.times(60);

fn micros(micros: u64) -> Timestamp {
    Timestamp::from_micros(micros).unwrap()
}

fn entry() -> PolicyEntry {
    PolicyEntry {
        name: b"gold"[..].into(),
        definition: Definition {
            stamp: Stamp { at: 1_700_000_000_000_000, node: 7 },
            created: Stamp { at: 1_600_000_000_000_000, node: 3 },
            legacy_version: 2,
            set_at: 1_700_000_000_000,
            text: b"TOKENBUCKET 60 60 1m X"[..].into(),
        },
        scale: Scale {
            stamp: Stamp { at: 1_650_000_000_000_000, node: 9 },
            factor: Amount::saturating(500_000),
            end: End::Never,
            times: StepTimes::NEVER,
        },
    }
}

/// Returns an entry with a scale for an hour.
fn timed_entry() -> PolicyEntry {
    let end = End::For { duration: Period::parse(b"1h").unwrap(), until: micros(1_650_003_600_000_000) };
    let PolicyEntry { name, definition, scale } = entry();
    let definition = Definition { legacy_version: definition.version(), ..definition };
    PolicyEntry { name, definition, scale: Scale { end, ..scale } }
}

/// Returns the record with `time_left` until the end of the scale.
fn record_text(entry: &PolicyEntry, time_left: Span) -> String {
    record_with_timing(entry, timing(Some(time_left)))
}

fn record_with_timing(entry: &PolicyEntry, timing: ScaleTiming) -> String {
    String::from_utf8(entry.record(timing).as_bytes().to_vec()).unwrap()
}

/// Returns the timing of a scale with `time_left` until its end, which MUL and ADD never changed.
fn timing(time_left: Option<Span>) -> ScaleTiming {
    ScaleTiming { time_left, ..ScaleTiming::default() }
}

fn parse(record: &str) -> Option<Record> {
    Record::read(record.as_bytes())
}

#[test]
fn record_contains_the_name_and_both_registers() {
    assert_eq!(record_text(&entry(), MINUTE), RECORD);
    assert_eq!(parse(RECORD), Some(Record { entry: entry(), timing: timing(None) }));
    let deleted = PolicyEntry {
        definition: Definition { text: Box::default(), ..entry().definition },
        scale: Scale::NONE,
        ..entry()
    };
    let record = "rl-policy 1 4:gold 1700000000000000 7 1600000000000000 3 2 1700000000000 0: 0 0 1000000 0";
    assert_eq!(record_text(&deleted, MINUTE), record);
    assert_eq!(parse(record), Some(Record { entry: deleted, timing: timing(None) }));
}

#[test]
fn record_of_a_timed_scale_contains_duration_and_time_left() {
    assert_eq!(record_text(&timed_entry(), MINUTE), RECORD_FOR);
    assert_eq!(parse(RECORD_FOR), Some(Record { entry: timed_entry(), timing: timing(Some(MINUTE)) }));
    // The time left differs between servers.
    let identity = timed_entry().identity();
    assert_eq!(String::from_utf8_lossy(identity.as_bytes()), RECORD_FOR.strip_suffix(" 60000000").unwrap());
    assert_eq!(entry().identity().as_bytes(), RECORD.as_bytes());
    // The time left is capped at the duration.
    assert!(record_text(&timed_entry(), MINUTE.times(61)).ends_with(" 3600000000 3600000000"));
}

#[test]
fn record_of_a_stepped_scale_contains_times_of_changes() {
    let times = StepTimes { multiplied: micros(1_650_000_000_000_000), added: micros(1_640_000_000_000_000) };
    let entry = PolicyEntry { scale: Scale { times, ..timed_entry().scale }, ..timed_entry() };
    let stepped = ScaleTiming { time_left: Some(MINUTE), since_multiplied: MINUTE.times(59), since_added: MINUTE };
    assert_eq!(record_with_timing(&entry, stepped), RECORD_STEPS);
    assert_eq!(parse(RECORD_STEPS), Some(Record { entry: entry.clone(), timing: stepped }));
    let identity = entry.identity();
    let unshared_fields = " 3540000000 60000000 60000000";
    assert_eq!(String::from_utf8_lossy(identity.as_bytes()), RECORD_STEPS.strip_suffix(unshared_fields).unwrap());
    // Without an end there is no time left.
    let endless = PolicyEntry { scale: Scale { end: End::Never, ..entry.scale.clone() }, ..entry };
    let written = record_with_timing(&endless, stepped);
    assert!(written.ends_with(" 500000 0 0 1650000000000000 1640000000000000 3540000000 60000000"), "{written}");
    assert_eq!(
        parse(&written),
        Some(Record { entry: endless.clone(), timing: ScaleTiming { time_left: None, ..stepped } })
    );
    // A word that never changed the scale has no age.
    let only_mul = StepTimes { added: Timestamp::EPOCH, ..times };
    let only_mul = PolicyEntry { scale: Scale { times: only_mul, ..endless.scale.clone() }, ..endless };
    assert!(record_with_timing(&only_mul, stepped).ends_with(" 1650000000000000 0 3540000000 0"));
    for (valid, invalid) in [
        // A record without changes has another form.
        (" 1650000000000000 1640000000000000 3540000000 60000000 ", " 0 0 0 0 "),
        (" 1640000000000000 ", " 31536000000000001 "),
        (" 1640000000000000 ", " 0 "),
        (" 3540000000 ", " 31536000000000001 "),
        (" 60000000 60000000", ""),
        (" 60000000 60000000", " 60000000"),
        (" 60000000 60000000", " 60000000 3600000001"),
        (" 60000000 60000000", " 60000000 60000000 0"),
        (" 3600000000 ", " 315360000000001 "),
        (" 3600000000 ", " 0 "),
    ] {
        assert_eq!(RECORD_STEPS.matches(valid).count(), 1, "{valid}");
        assert_eq!(parse(&RECORD_STEPS.replace(valid, invalid)), None, "{invalid:?}");
    }
}

#[test]
fn time_left_by_the_clock_is_at_most_the_duration() {
    let (end, hour) = (micros(1_650_003_600_000_000), MINUTE.times(60));
    let left = |entry: &PolicyEntry, now| entry.scale.left_by_clock(now);
    let entry = timed_entry();
    assert_eq!(left(&entry, end.minus(MINUTE)), Some(MINUTE));
    assert_eq!(left(&entry, end), Some(Span::ZERO));
    assert_eq!(left(&entry, end.plus(MINUTE)), Some(Span::ZERO));
    assert_eq!(left(&entry, end.minus(hour.times(24))), Some(hour));
    assert_eq!(left(&entry, Timestamp::EPOCH), Some(hour));
    assert_eq!(Scale::NONE.left_by_clock(end), None);
}

#[test]
fn malformed_record_is_rejected() {
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
        // Later than the last timestamp, or earlier than the creation.
        replaced("1700000000000000", "31536000000000001"),
        replaced("1600000000000000 3", "1700000000000000 8"),
        replaced("1650000000000000", "31536000000000001"),
        // An end without a duration.
        replaced(" 500000 0", " 500000 1700000060000000"),
        replaced(" 2 1700000000000 ", " 0 1700000000000 "),
        replaced(" 2 1700000000000 ", " 2 31536000000001 "),
        replaced(" 500000 ", " 1000000001 "),
        replaced(" 500000 ", " 0500000 "),
        replaced("22:TOKENBUCKET 60 60 1m X", &format!("16385:{}", "x".repeat(16_385))),
        format!("{RECORD} "),
        format!("{RECORD} 1"),
        format!(" {RECORD}"),
    ] {
        assert_eq!(parse(&record), None, "{record}");
    }
    for end in 0..RECORD.len() {
        let truncated = parse(&RECORD[..end]);
        // A record that is truncated within its last number is still well-formed.
        assert_eq!(truncated.is_some(), end > RECORD.rfind(' ').unwrap() + 1, "{end}");
    }
}

#[test]
fn malformed_record_of_a_timed_scale_is_rejected() {
    let valid = " 3600000000 60000000";
    for invalid in [
        "",
        " 3600000000",
        " 0",
        " 0 0",
        // Longer than FOR permits, and more time left than the duration.
        " 315360000000001 60000000",
        " 3600000000 3600000001",
        " 3600000000 060000000",
        " 3600000000 60000000 0",
    ] {
        assert_eq!(parse(&RECORD_FOR.replace(valid, invalid)), None, "{invalid:?}");
    }
    for other in [" 315360000000000 315360000000000", " 1 0", " 3600000000 3600000000"] {
        let record = RECORD_FOR.replace(valid, other);
        let Record { entry, timing } = parse(&record).unwrap();
        assert_eq!(record_with_timing(&entry, timing), record);
    }
    assert_eq!(parse(&RECORD_FOR.replace("rl-policy 2", "rl-policy 1")), None);
}

#[test]
fn record_with_extreme_values_is_accepted() {
    for (from, to) in [
        ("4:gold".to_owned(), format!("256:{}", "x".repeat(256))),
        ("1700000000000000".to_owned(), Timestamp::MAX.micros().to_string()),
        ("1600000000000000 3".to_owned(), "1700000000000000 7".to_owned()),
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
        assert_eq!(
            parse(&record).map(|parsed| record_text(&parsed.entry, Span::ZERO)),
            Some(record.clone()),
            "{record}"
        );
    }
}

#[test]
fn scale_counts_only_if_later_than_the_creation() {
    let scaled_at = |at, node| {
        let entry = entry();
        PolicyEntry { scale: Scale { stamp: Stamp { at, node }, ..entry.scale }, ..entry }
    };
    let created = entry().definition.created;
    assert_eq!(scaled_at(created.at, created.node).current_scale(), None);
    assert_eq!(scaled_at(created.at - 1, u64::MAX).current_scale(), None);
    for scaled in [scaled_at(created.at, created.node + 1), scaled_at(created.at + 1, 0)] {
        assert_eq!(scaled.current_scale(), Some(&scaled.scale));
    }
}

prop_compose! {
    /// Generates stamps that are close to each other, so that there are ties.
    fn stamps()(at in 0_u64..4, node in 0_u64..3) -> Stamp {
        Stamp { at, node }
    }
}

prop_compose! {
    fn entries()(
        (stamp, other, scale_stamp) in (stamps(), stamps(), stamps()),
        (legacy_version, set_at, factor) in (1_u64..3, 0_u64..2, 0_u64..3),
        end in proptest::sample::select(vec![
            End::Never,
            End::For { duration: Period::parse(b"1s").unwrap(), until: micros(1) },
            End::For { duration: Period::parse(b"2s").unwrap(), until: micros(1) },
        ]),
        (multiplied, added) in (0_u64..2, 0_u64..2),
        text in proptest::sample::select(vec!["", "FIXED 1 1s", "later"]),
    ) -> PolicyEntry {
        let (created, stamp) = (stamp.min(other), stamp.max(other));
        let text = text.as_bytes().into();
        let times = StepTimes { multiplied: micros(multiplied), added: micros(added) };
        PolicyEntry {
            name: b"a"[..].into(),
            definition: Definition { stamp, created, legacy_version, set_at, text },
            scale: Scale { stamp: scale_stamp, factor: Amount::saturating(factor), end, times },
        }
    }
}

/// Generates horizons that lie before, between or after the generated stamps.
fn horizons() -> impl Strategy<Value = Horizon> {
    proptest::sample::select(vec![Horizon::within(0), Horizon::within(2), Horizon::of(Timestamp::EPOCH)])
}

fn merged(one: &PolicyEntry, other: &PolicyEntry, horizon: Horizon) -> PolicyEntry {
    let mut merged = one.clone();
    let changed = merged.merge(other.clone(), horizon);
    assert_eq!(changed, (merged.definition != one.definition, merged.scale != one.scale));
    merged
}

#[test]
fn stamp_beyond_the_horizon_is_the_oldest() {
    let with_stamps = |at| {
        let PolicyEntry { name, definition, scale } = entry();
        let stamp = Stamp { at, node: 7 };
        PolicyEntry { name, definition: Definition { stamp, ..definition }, scale: Scale { stamp, ..scale } }
    };
    let horizon = Horizon::of(micros(1_700_000_000_000_000));
    let (ahead, last) = (with_stamps(1_700_086_400_000_001), with_stamps(1_700_086_400_000_000));
    let older = with_stamps(1_600_000_000_000_000);
    assert_eq!(merged(&ahead, &last, horizon), last);
    assert_eq!(merged(&older, &last, horizon), last);
    for known in [&older, &last] {
        assert_eq!(merged(known, &ahead, horizon), *known);
        assert_eq!(merged(&ahead, known, horizon), *known);
    }
    // A second later, the stamp is within the horizon.
    let later = Horizon::of(micros(1_700_000_001_000_000));
    assert_eq!(merged(&last, &ahead, later), ahead);
}

proptest! {
    #[test]
    fn merge_is_idempotent_commutative_and_associative(
        a in entries(), b in entries(), c in entries(), horizon in horizons(),
    ) {
        let merged = |one: &PolicyEntry, other: &PolicyEntry| merged(one, other, horizon);
        prop_assert_eq!(&merged(&a, &a), &a);
        prop_assert_eq!(merged(&a, &b), merged(&b, &a));
        prop_assert_eq!(merged(&merged(&a, &b), &c), merged(&a, &merged(&b, &c)));
        let all = merged(&merged(&a, &b), &c);
        let latest = |stamps: [Stamp; 3]| {
            let within_horizon = stamps.into_iter().filter(|stamp| horizon.covers(*stamp)).max();
            within_horizon.or(stamps.into_iter().max()).unwrap()
        };
        prop_assert_eq!(all.definition.stamp, latest([&a, &b, &c].map(|entry| entry.definition.stamp)));
        prop_assert_eq!(all.scale.stamp, latest([&a, &b, &c].map(|entry| entry.scale.stamp)));
    }

    #[test]
    fn record_is_parsed_back_to_the_same_entry(
        entry in entries(), time_left in 0_u64..1_000_000, ages in (0_u64..2, 0_u64..2),
    ) {
        let times = entry.scale.times;
        let age = |at, age| if at == Timestamp::EPOCH { Span::ZERO } else { Span::from_micros(age) };
        let timing = ScaleTiming {
            time_left: matches!(entry.scale.end, End::For { .. }).then_some(Span::from_micros(time_left)),
            since_multiplied: age(times.multiplied, ages.0),
            since_added: age(times.added, ages.1),
        };
        prop_assert_eq!(parse(&record_with_timing(&entry, timing)), Some(Record { entry, timing }));
    }

    #[test]
    fn parsed_record_is_encoded_to_the_same_bytes(
        record in proptest::sample::select(vec![RECORD, RECORD_FOR, RECORD_STEPS]),
        index in any::<proptest::sample::Index>(),
        byte in proptest::sample::select(b"0123456789 :-x".to_vec()),
    ) {
        let mut record = record.as_bytes().to_vec();
        let index = index.index(record.len());
        record[index] = byte;
        if let Some(Record { entry, timing }) = Record::read(&record) {
            let written = entry.record(timing);
            prop_assert_eq!(written.as_bytes(), record);
        }
    }
}
