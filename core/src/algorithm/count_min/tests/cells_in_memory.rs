//! Memory of a sketch's cells: allocation, copies and renewal.

use super::*;

#[test]
fn copies_share_unchanged_pieces() {
    let usage = filled_sketch(1 << 16, 20_000);
    let (mut copy, before) = (usage.clone(), encoded(&usage));
    assert_eq!(encoded(&copy), before);
    let limits = sketch(1 << 16, bucket(50, 50, "1m"));
    let (_, effect) = call_and_encode_effect(&item_limit(limits, b"another"), &mut copy, us(2_000_000), take_one());
    assert_ne!(encoded(&copy), before);
    assert_eq!(encoded(&usage), before, "the original has changed");
    assert_eq!(encoded(&applied(&usage, &effect).unwrap()), encoded(&copy));
    assert_eq!(copy.heap_size(), usage.heap_size());
}

#[test]
fn memory_grows_on_write_up_to_the_size() {
    let empty = filled_sketch(1 << 16, 0);
    assert_eq!((empty.heap_size(), empty.free_effort()), (0, 1));
    // Each cell of an item may need a piece and a chunk of its own.
    let one_item = filled_sketch(1 << 16, 1);
    assert!((4 * 4096..4 * (4096 + 2048) + 100).contains(&one_item.heap_size()), "{}", one_item.heap_size());
    let full = filled_sketch(1 << 16, 20_000);
    let size = 32 << 16;
    assert!((size..size + size / 50).contains(&full.heap_size()), "{}", full.heap_size());
    // One for the usage, 516 pieces, and 3 chunks.
    assert_eq!(full.free_effort(), 1 + 516 + 3);
}

#[test]
fn entries_after_charge_counts_the_pieces_that_a_charge_allocates() {
    let limits = sketch(1 << 16, bucket(50, 50, "1m"));
    let mut usage = filled_sketch(1 << 16, 1);
    let (mut growing_calls, mut other_calls) = (0, 0);
    for number in 0..300_u32 {
        let item = number.to_string();
        let limit = item_limit(limits, item.as_bytes());
        let before = usage.entries();
        let expected = limit.entries_after_charge(&usage, us(2_000_000));
        call(&limit, &mut usage, us(2_000_000), take_one());
        if let Some(after) = expected {
            // Two cells may be in the same piece.
            assert!(before < usage.entries() && usage.entries() <= after);
            growing_calls += 1;
        } else {
            assert_eq!(usage.entries(), before);
            other_calls += 1;
        }
        assert_eq!(limit.entries_after_charge(&usage, us(2_000_000)), None, "the pieces of the item are allocated now");
    }
    assert!(growing_calls > 100 && other_calls > 10, "{growing_calls} {other_calls}");
    // A shared piece is copied when it is written.
    let copy = usage.clone();
    assert!(item_limit(limits, b"0").entries_after_charge(&usage, us(2_000_000)).is_some());
    drop(copy);
    assert_eq!(item_limit(limits, b"0").entries_after_charge(&usage, us(2_000_000)), None);
}

#[test]
fn cached_cells_are_recomputed_for_another_sketch() {
    let item_bucket = bucket(9, 1, "1s");
    let sketches = [(128, [1, 2]), (64, [1, 2]), (64, [1, 3]), (64, [2, 2])].map(|(columns, halves)| {
        let (limits, secret, mut usage) = (sketch(columns, item_bucket), Secret { halves }, SketchUsage::default());
        call(&limits.for_item(b"a").with_secret(secret), &mut usage, us(1), Take(units(4)));
        usage
    });
    let limit = sketch(64, item_bucket).for_item(b"a");
    for usage in sketches.iter().chain(sketches.iter().rev()) {
        assert_eq!(limit.remaining(usage, us(1)), units(5));
        let mut charged = usage.clone();
        limit.charge(&mut charged, us(1), units(5));
        assert_eq!(limit.remaining(&charged, us(1)), units(0));
    }
}

#[test]
fn levels_are_exact_across_eras() {
    // A refill of 10^12 units per microsecond, so that the mark crosses an era within a few calls.
    let max = Amount::MAX_ARGUMENT;
    let fastest = Bucket::new(max, max, period("1us"), Discipline::Burst).unwrap();
    let (limits, mut usage) = (sketch(4096, fastest), SketchUsage::default());
    let lasting = item_limit(limits, b"lasting");
    call(&lasting, &mut usage, us(0), Force(Amount::MAX_ARGUMENT));
    for micros in 1..100 {
        let busy = call(&item_limit(limits, b"busy"), &mut usage, us(micros), Force(Amount::MAX_ARGUMENT));
        assert_eq!(busy.reset, Span::MICROSECOND);
        let decision = peek(&lasting, &usage, us(micros), take_one());
        assert_eq!((decision.remaining, decision.reset), (max, Span::ZERO), "at {micros}");
        round_trip::check_stored(&usage).unwrap();
    }
    for _ in 0..20 {
        call(&lasting, &mut usage, us(100), Force(Amount::MAX_ARGUMENT));
    }
    assert_eq!(usage.fullest.used, Amount::MAX);
    call(&item_limit(limits, b"busy"), &mut usage, us(103), take_one());
    // A saturated cell drains in 10 microseconds, of which 3 have passed.
    assert_eq!(peek(&lasting, &usage, us(103), take_one()).reset.micros(), 10 - 3);
    round_trip::check_stored(&usage).unwrap();
}

#[test]
fn renewal_moves_unshared_pieces_in_steps() {
    // Three chunks of pieces.
    let (limits, mut usage) = (sketch(1 << 16, bucket(5, 1, "1m")), SketchUsage::default());
    for item in 0..2000_u32 {
        item_limit(limits, &item.to_be_bytes()).charge(&mut usage, us(1), units(2));
    }
    let addresses = SketchUsage::addresses;
    let (before, addresses_before, blocks) = (encoded(&usage), addresses(&usage), usage.free_effort());
    assert!(blocks > 400, "{blocks}");
    let (mut from, mut steps) = (Some(0), 0);
    while let Some(next) = from {
        let mut pieces_left = 50;
        from = usage.renew_pieces(next, &mut || {
            pieces_left -= 1;
            pieces_left > 0
        });
        steps += 1;
        assert!(from.is_none_or(|from| from > next));
    }
    assert!((blocks / 60..blocks / 40).contains(&steps), "{steps} steps for {blocks} blocks");
    let renewed = addresses(&usage);
    assert!(addresses_before.iter().zip(&renewed).all(|(before, after)| before != after), "a block has not moved");
    assert_eq!((encoded(&usage), usage.free_effort()), (before.clone(), blocks));

    // A copy shares every piece until the usage writes to four of them.
    let copy = usage.clone();
    item_limit(limits, b"").charge(&mut usage, us(2), units(2));
    let (charged, before_renewal, copy_addresses) = (encoded(&usage), addresses(&usage), addresses(&copy));
    let unshared = before_renewal.iter().filter(|address| !copy_addresses.contains(address)).count();
    // The list of chunks, one to three chunks, and four pieces.
    assert!((1 + 1 + 4..=1 + 3 + 4).contains(&unshared), "{unshared} blocks are not shared");
    assert_eq!(usage.renew_pieces(0, &mut || true), None);
    let renewed = addresses(&usage);
    let moved = before_renewal.iter().zip(&renewed).map(|(before, after)| before != after);
    let are_unshared = before_renewal.iter().map(|address| !copy_addresses.contains(address));
    assert!(moved.eq(are_unshared), "a shared block has moved, or an unshared one has not");
    assert_eq!((encoded(&usage), encoded(&copy), addresses(&copy)), (charged, before, copy_addresses));
    // A step without time to continue renews one piece.
    drop(copy);
    let chunks = 3;
    let pieces = usage.free_effort() - 1 - chunks;
    let steps = std::iter::successors(Some(0), |from| usage.renew_pieces(*from, &mut || false));
    assert_eq!(steps.take(2 * pieces).count(), pieces);
    assert_eq!(SketchUsage::default().renew_pieces(0, &mut || true), None);
}
