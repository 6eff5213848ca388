//! Encodings and effects of a sketch.

use super::*;

#[test]
fn parts_of_an_aof_rewrite_add_up_to_the_whole() {
    for items in [1, 3, 20_000] {
        let usage = filled_sketch(1 << 16, items);
        let (mut from, mut parts, mut after) = (Some(0), 0, SketchUsage::default());
        while let Some(next) = from {
            let mut part = EncodedFields::default();
            from = usage.encode_part_of_whole(next, &mut part);
            after = applied(&after, &part).unwrap();
            // Applying a part again changes nothing.
            if parts > 0 {
                assert_eq!(encoded(&applied(&after, &part).unwrap()), encoded(&after));
            }
            parts += 1;
        }
        assert_eq!(encoded(&after), encoded(&usage));
        assert_eq!(after.fullest, usage.fullest);
        assert_eq!(parts, if items == 20_000 { 9 } else { 1 });
    }
}

#[test]
fn malformed_encoding_is_rejected() {
    let usage = filled_sketch(64, 40);
    round_trip::check_stored(&usage).unwrap();
    let fields = encoded(&usage);
    assert_eq!(encoded(&decoded::<SketchUsage>(&fields).unwrap()), fields);
    assert_eq!(
        applied(&SketchUsage::default(), &whole_effect(&usage)).map(|read| encoded(&read)),
        Some(fields.clone())
    );
    assert!(fields.proper_prefixes().all(|short| decoded::<SketchUsage>(&short).is_none()));
    // Wrong size, era, mark, time, capacity, refill, period or number of pieces.
    for (index, wrong) in [(0, 31), (0, 1 << 40), (0, 33), (4, 1 << 62), (5, u64::MAX), (6, u64::MAX)]
        .into_iter()
        .chain([(7, 0), (8, 0), (9, 0), (9, 2), (10, 9)])
    {
        assert!(decode_exactly(&fields.with(index, wrong)).is_none(), "{wrong} in field {index} is accepted");
    }
    // No pieces, one of zeros, one with an incomplete cell, and one beyond the end.
    let head = EncodedFields::integers(fields.clone().numbers().into_iter().take(9));
    let piece = |used: &[u8]| head.clone().and([1, 0]).then(used, []);
    assert!(decode_exactly(&piece(&1_u64.to_le_bytes())).is_some());
    assert!(decode_exactly(&piece(&[1; 256 * 8])).is_some(), "up to the last cell");
    for wrong in [
        head.clone().and([0]),
        piece(&[]),
        piece(&[0; 8]),
        piece(&[1; 7]),
        piece(&[1; 9]),
        piece(&[0xff; 8]),
        piece(&[1; 257 * 8]),
        head.clone().and([1, 1]).then(&[1; 8], []),
        head.clone().and([2, 0]).then(&[1; 8], [0]).then(&[1; 8], []),
    ] {
        assert!(decode_exactly(&wrong).is_none(), "{wrong:?}");
    }
}

#[test]
fn sketch_in_a_late_era_is_decodable_after_each_charge() {
    let max = Amount::MAX_ARGUMENT;
    let fastest = Bucket::new(max, max, period("1us"), Discipline::Burst).unwrap();
    let mut first = SketchUsage::default();
    call(&item_limit(sketch(64, fastest), b"a"), &mut first, us(0), Force(max));
    for era in [1 << 48, u64::MAX] {
        let mut usage = decoded::<SketchUsage>(&encoded(&first).with(3, era)).unwrap();
        for micros in 1..20 {
            let before = usage.clone();
            let (_, effect) =
                call_and_encode_effect(&item_limit(sketch(64, fastest), b"b"), &mut usage, us(micros), Force(max));
            round_trip::check_stored(&usage).unwrap();
            assert_eq!(applied(&before, &effect).map(|after| encoded(&after)), Some(encoded(&usage)));
        }
        assert_ne!(encoded(&usage).numbers()[3], era, "the mark has entered another era");
    }
}

/// Decodes a sketch; returns `None` also if fields are left over.
fn decode_exactly(fields: &EncodedFields) -> Option<SketchUsage> {
    let mut fields = fields.clone();
    SketchUsage::decode(&mut fields, SketchUsage::VERSION).filter(|_| fields == EncodedFields::default())
}

#[test]
fn malformed_effect_is_rejected() {
    let limits = sketch(64, bucket(50, 50, "1m"));
    let mut usage = filled_sketch(64, 40);
    let before = usage.clone();
    let (_, effect) = call_and_encode_effect(&item_limit(limits, b"another"), &mut usage, us(9_000_000), take_one());
    assert_eq!(encoded(&applied(&before, &effect).unwrap()), encoded(&usage));
    // An effect contains the resulting usage, so it can be applied twice, and to a missing key.
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&usage));
    assert!(applied(&SketchUsage::default(), &effect).is_some());
    assert!(effect.proper_prefixes().all(|short| !before.accepts_effect(&mut short.clone(), 1)));
    // Wrong tag, size, secret, mark, numbers, number of cells, cell or usage.
    for (index, wrong) in
        [(0, 3), (0, 2), (1, 64), (2, 1), (3, 1), (5, 0), (7, u64::MAX), (8, 0), (10, 5), (11, 256), (12, 0)]
    {
        assert!(!before.accepts_effect(&mut effect.with(index, wrong), 1), "{wrong} in field {index} is accepted");
    }
    assert!(!before.accepts_effect_until(&mut effect.clone(), 1, us(1)));
    assert!(!before.accepts_effect_until(&mut whole_effect(&usage), 1, us(1)));
    // After a clock step back, the effect has a time and no cells. It creates no key.
    let mut moved = usage.clone();
    moved.move_back(us(8_000_000));
    let mut effect = EncodedFields::default();
    moved.encode_effect(&mut effect);
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&moved_back_to(&usage, us(8_000_000))));
    assert!(applied(&SketchUsage::default(), &effect).is_none());
    // A part must have the same time as the whole.
    let mut part = EncodedFields::default();
    assert_eq!(usage.encode_part_of_whole(0, &mut part), None);
    let part = part.with(0, WHOLE + 2);
    assert!(usage.accepts_effect(&mut part.clone(), 1));
    assert!(!before.accepts_effect(&mut part.clone(), 1));
    assert!(!SketchUsage::default().accepts_effect(&mut part.clone(), 1));
    // Size, secret, mark and time must be equal.
    let [size, era, level, drained_to] = [1, 4, 5, 6].map(|index| part.clone().numbers()[index]);
    let wrong_fields =
        [(1, size * 2), (2, 1), (3, 1), (4, era + 1), (5, level + 1), (6, drained_to - 1), (6, drained_to + 1)];
    for (index, wrong) in wrong_fields {
        assert!(!usage.accepts_effect(&mut part.with(index, wrong), 1), "{wrong} in field {index} is accepted");
    }
}

#[test]
fn whole_effect_replaces_the_sketch() {
    let (stored, mut received) = (filled_sketch(64, 40), SketchUsage::default());
    let limits = sketch(128, bucket(9, 1, "1s"));
    call(&limits.for_item(b"a").with_secret(Secret { halves: [1, 2] }), &mut received, us(7), Take(units(3)));
    let after = applied(&stored, &whole_effect(&received)).unwrap();
    assert_eq!((encoded(&after), after.fullest), (encoded(&received), received.fullest));
}

#[test]
fn replica_recovers_at_the_same_time_as_its_primary() {
    let limits = sketch(8, bucket(20, 7, "1s"));
    let (mut usage, mut replica) = (SketchUsage::default(), SketchUsage::default());
    let calls = [(0, "a", 20), (100, "b", 1), (900, "c", 17), (900, "a", 2), (4000, "b", 3), (90_000, "d", 5)];
    for (at, item, cost) in calls {
        let limit = item_limit(limits, item.as_bytes());
        let (_, effect) = call_and_encode_effect(&limit, &mut usage, us(at * 1000), Force(units(cost)));
        replica = applied(&replica, &effect).unwrap();
        assert_eq!(replica.fullest, usage.fullest, "at {at}");
        assert_eq!(limit.recovery(&replica, us(at * 1000)), limit.recovery(&usage, us(at * 1000)));
        assert_eq!(decoded::<SketchUsage>(&encoded(&usage)).unwrap().fullest, usage.fullest);
    }
}

#[test]
fn invalid_size_is_rejected() {
    for bytes in [32, 64, SketchSize::MIN_BYTES, SketchSize::MAX_BYTES - 32, SketchSize::MAX_BYTES] {
        assert_eq!(SketchSize::from_stored(bytes).map(SketchSize::bytes), Some(bytes));
    }
    for bytes in [0, 31, 33, SketchSize::MAX_BYTES + 1, SketchSize::MAX_BYTES + 32, 1 << 40, u64::MAX] {
        assert_eq!(SketchSize::from_stored(bytes), None, "{bytes}");
    }
    for bytes in [SketchSize::MIN_BYTES - 1, SketchSize::MAX_BYTES + 1] {
        assert_eq!(SketchSize::new(bytes), None, "{bytes}");
    }
}

#[test]
fn size_is_parsed_like_memory_settings() {
    for (text, bytes) in [
        ("64KB", 65_536),
        ("64kb", 65_536),
        ("65536", 65_536),
        ("65567b", 65_536),
        ("66k", 65_984),
        ("1MB", 1_048_576),
        ("1m", 1_000_000),
        ("256MB", 268_435_456),
    ] {
        let size = SketchSize::parse(text.as_bytes()).unwrap();
        assert_eq!(size.bytes(), bytes / 32 * 32, "{text}");
        assert_eq!(SketchSize::parse(size.to_string().as_bytes()), Some(size), "{size}");
    }
    for text in [
        "",
        "mb",
        "63kb",
        "65535",
        "257mb",
        "1gb",
        "268435457",
        "-1mb",
        "1.5mb",
        "1 mb",
        "1tb",
        "99999999999999999999gb",
    ] {
        assert_eq!(SketchSize::parse(text.as_bytes()), None, "{text}");
    }
    assert_eq!(SketchSize::parse(b"2mb").unwrap().to_string(), "2mb");
    assert_eq!(SketchSize::parse(b"96kb").unwrap().to_string(), "96kb");
    assert_eq!(SketchSize::parse(b"65568").unwrap().to_string(), "65568");
}
