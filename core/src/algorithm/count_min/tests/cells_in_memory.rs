//! Memory of a sketch's cells: allocation, copies and renewal.

use super::*;

#[test]
fn copies_share_unchanged_pieces() {
    let usage = filled(1 << 16, 20_000);
    let (mut copy, before) = (usage.clone(), encoded(&usage));
    assert_eq!(encoded(&copy), before);
    let limits = sketch(1 << 16, bucket(50, 50, "1m"));
    let (_, effect) = call_and_encode_effect(&of(limits, b"another"), &mut copy, us(2_000_000), one());
    assert_ne!(encoded(&copy), before);
    assert_eq!(encoded(&usage), before, "the original has changed");
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&copy));
    assert_eq!(copy.heap_size(), usage.heap_size());
}

#[test]
fn memory_grows_on_write_up_to_the_size() {
    let empty = filled(1 << 16, 0);
    assert_eq!((empty.heap_size(), empty.free_effort()), (0, 1));
    let one_item = filled(1 << 16, 1);
    assert!((4 * 4096..4 * 6144 + 100).contains(&one_item.heap_size()), "{}", one_item.heap_size());
    let full = filled(1 << 16, 20_000);
    let size = 32 << 16;
    assert!((size..size + size / 50).contains(&full.heap_size()), "{}", full.heap_size());
    assert_eq!(full.free_effort(), 1 + 516 + 3);
}

#[test]
fn charge_that_needs_a_new_piece_adds_as_many_entries() {
    let numbers = bucket(50, 50, "1m");
    let limits = sketch(1 << 16, numbers);
    let mut usage = filled(1 << 16, 1);
    let (mut grown, mut fit) = (0, 0);
    for number in 0..300_u32 {
        let item = number.to_string();
        let limit = of(limits, item.as_bytes());
        let before = usage.entries();
        let expected = limit.entries_after_charge(&usage, us(2_000_000));
        call(&limit, &mut usage, us(2_000_000), one());
        if let Some(after) = expected {
            // Two cells may be in the same piece.
            assert!(before < usage.entries() && usage.entries() <= after);
            grown += 1;
        } else {
            assert_eq!(usage.entries(), before);
            fit += 1;
        }
        assert_eq!(limit.entries_after_charge(&usage, us(2_000_000)), None, "the pieces of the item are allocated now");
    }
    assert!(grown > 100 && fit > 10, "{grown} {fit}");
    // A shared piece is copied when it is written.
    let copy = usage.clone();
    assert!(of(limits, b"0").entries_after_charge(&usage, us(2_000_000)).is_some());
    drop(copy);
    assert_eq!(of(limits, b"0").entries_after_charge(&usage, us(2_000_000)), None);
}

#[test]
fn cached_cells_are_recomputed_for_another_sketch() {
    let numbers = bucket(9, 1, "1s");
    let sketches = [(128, [1, 2]), (64, [1, 2]), (64, [1, 3]), (64, [2, 2])].map(|(columns, halves)| {
        let (limits, secret, mut usage) = (sketch(columns, numbers), Secret { halves }, SketchUsage::default());
        call(&limits.for_item(b"a").with_secret(secret), &mut usage, us(1), Take(units(4)));
        usage
    });
    let one_call = sketch(64, numbers).for_item(b"a");
    for usage in sketches.iter().chain(sketches.iter().rev()) {
        assert_eq!(one_call.remaining(usage, us(1)), units(5));
        let mut charged = usage.clone();
        one_call.charge(&mut charged, us(1), units(5));
        assert_eq!(one_call.remaining(&charged, us(1)), units(0));
    }
}

#[test]
fn levels_are_exact_across_eras() {
    // A refill of 10^12 per microsecond, so that the mark crosses an era within a few calls.
    let most = Amount::MAX_ARGUMENT;
    let fastest = Bucket::new(most, most, period("1us"), Discipline::Burst).unwrap();
    let (limits, mut usage) = (sketch(4096, fastest), SketchUsage::default());
    let lasting = of(limits, b"lasting");
    call(&lasting, &mut usage, us(0), Force(Amount::MAX_ARGUMENT));
    for micros in 1..100 {
        let decision = call(&of(limits, b"busy"), &mut usage, us(micros), Force(Amount::MAX_ARGUMENT));
        assert_eq!(decision.reset, Span::MICROSECOND);
        let left = peek(&lasting, &usage, us(micros), one());
        assert_eq!((left.remaining, left.reset), (most, Span::ZERO), "at {micros}");
        round_trip::check_stored(&usage).unwrap();
    }
    for _ in 0..20 {
        call(&lasting, &mut usage, us(100), Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!(usage.fullest.used, Amount::MAX);
    call(&of(limits, b"busy"), &mut usage, us(103), one());
    assert_eq!(peek(&lasting, &usage, us(103), one()).reset.micros(), 10 - 3);
    round_trip::check_stored(&usage).unwrap();
}

#[test]
fn renewal_moves_unshared_pieces_in_steps() {
    // Three chunks of pieces.
    let (limits, mut usage) = (sketch(1 << 16, bucket(5, 1, "1m")), SketchUsage::default());
    for item in 0..2000_u32 {
        of(limits, &item.to_be_bytes()).charge(&mut usage, us(1), units(2));
    }
    let addresses = SketchUsage::addresses;
    let (before, first, blocks) = (encoded(&usage), addresses(&usage), usage.free_effort());
    assert!(blocks > 400, "{blocks}");
    let (mut from, mut steps) = (Some(0), 0);
    while let Some(next) = from {
        let mut left = 50;
        from = usage.renew_pieces(next, &mut || {
            left -= 1;
            left > 0
        });
        steps += 1;
        assert!(from.is_none_or(|from| from > next));
    }
    assert!((blocks / 60..blocks / 40).contains(&steps), "{steps} steps for {blocks} blocks");
    let renewed = addresses(&usage);
    assert!(first.iter().zip(&renewed).all(|(before, after)| before != after), "each block has moved");
    assert_eq!((encoded(&usage), usage.free_effort()), (before.clone(), blocks));

    // A copy shares every piece until the usage writes to four of them.
    let copy = usage.clone();
    of(limits, b"").charge(&mut usage, us(2), units(2));
    let (charged, before_renewal, of_copy) = (encoded(&usage), addresses(&usage), addresses(&copy));
    let own = before_renewal.iter().filter(|place| !of_copy.contains(place)).count();
    assert!((1 + 1 + 4..=1 + 3 + 4).contains(&own), "{own} blocks are not shared");
    assert_eq!(usage.renew_pieces(0, &mut || true), None);
    let renewed = addresses(&usage);
    let moved = before_renewal.iter().zip(&renewed).map(|(before, after)| before != after);
    let are_own = before_renewal.iter().map(|place| !of_copy.contains(place));
    assert!(moved.eq(are_own), "a shared block has moved, or an unshared one has not");
    assert_eq!((encoded(&usage), encoded(&copy), addresses(&copy)), (charged, before, of_copy));
    // A step without permission to continue renews one piece.
    drop(copy);
    let pieces = usage.free_effort() - 1 - 3;
    let steps = std::iter::successors(Some(0), |from| usage.renew_pieces(*from, &mut || false));
    assert_eq!(steps.take(2 * pieces).count(), pieces);
    assert_eq!(SketchUsage::default().renew_pieces(0, &mut || true), None);
}
