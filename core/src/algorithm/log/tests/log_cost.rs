//! Memory of a log, and numbers of entries that calls visit.

use super::*;

#[test]
fn entry_takes_16_bytes_plus_a_sixteenth_of_spare_capacity() {
    let (limit, mut usage) = (log(1_000_000, "1ms"), SlidingLogUsage::default());
    let max_heap_size = |length: usize| 16 * (length + length / 16 + 4);
    for micros in 0..1000 {
        call_and_encode_effect(&limit, &mut usage, us(micros), take_one());
        let length = usage.entries.len();
        assert!((16 * length..=max_heap_size(length)).contains(&usage.heap_size()));
    }
    assert_eq!(usage.entries.len(), 1000);
    assert!(decoded::<SlidingLogUsage>(&encoded(&usage)).unwrap().heap_size() <= max_heap_size(1000), "after decoding");
    // The buffer shrinks as entries expire, but not at every step.
    for micros in (1000..2000).step_by(7) {
        call_and_encode_effect(&limit, &mut usage, us(micros), take_one());
        assert!(usage.heap_size() <= max_heap_size(2 * usage.entries.len()));
    }
    call_and_encode_effect(&limit, &mut usage, us(9000), take_one());
    assert_eq!((usage.entries.len(), usage.heap_size() <= max_heap_size(2)), (1, true));
}

#[test]
fn buffer_grows_in_steps_and_shrinks_below_half() {
    let (limit, mut usage, mut sizes) = (log(1_000_000, "1ms"), SlidingLogUsage::default(), vec![0]);
    for micros in 0..1000 {
        call_and_encode_effect(&limit, &mut usage, us(micros), take_one());
        sizes.push(usage.heap_size());
    }
    sizes.dedup();
    assert!(sizes.is_sorted() && sizes.len() < 100, "{} sizes", sizes.len());
    // Two or one of eight entries remain.
    for (now, capacity) in [(1005, 8), (1006, 5)] {
        let mut usage = SlidingLogUsage::default();
        for micros in 0..8 {
            call_and_encode_effect(&limit, &mut usage, us(micros), take_one());
        }
        call_and_encode_effect(&limit, &mut usage, us(now), take_one());
        assert_eq!(usage.heap_size(), 16 * capacity, "at {now}");
    }
}

#[test]
fn decisions_visit_no_entries_of_a_long_log() {
    let mut usage = SlidingLogUsage::default();
    for micros in 1_000_000..1_010_000 {
        call_and_encode_effect(&log(10_000, "10s"), &mut usage, us(micros), take_one());
    }
    let (limit, last) = (log(10_000, "10s"), us(1_009_999));
    let run_peeks = |usage: &SlidingLogUsage, now: Timestamp| {
        for request in [take_one(), Force(units(1)), Force(units(20_000)), UpTo(units(9)), Refund(units(1))] {
            peek(&limit, usage, now, request);
        }
        assert_eq!(peek(&limit, usage, now, Force(units(2))).verdict, Verdict::After(Span::from_micros(9_990_002)));
    };
    let visits = step_counter::count_without_copies(|| {
        for back in [0, 1, 1000, 1_000_000] {
            run_peeks(&usage, last.minus(Span::from_micros(back)));
        }
        for back in [1, 1000] {
            call(&limit, &mut usage, last.minus(Span::from_micros(back)), take_one());
            run_peeks(&usage, last.minus(Span::from_micros(back)));
        }
        call(&limit, &mut usage, Timestamp::EPOCH, take_one());
        call(&limit, &mut usage, last, take_one());
    });
    assert_eq!(visits, 0);
}

#[test]
fn take_back_adjusts_the_shorter_side() {
    let (limit, mut usage) = (log(1000, "1s"), SlidingLogUsage::default());
    for micros in 1..=1000 {
        limit.charge(&mut usage, us(micros), units(1));
    }
    for (micros, visits) in [(1, 0), (3, 2), (500, 499), (501, 500), (502, 499), (998, 3), (1000, 1)] {
        assert_eq!(step_counter::count(|| usage.take_back(Some(us(micros)), millionths(1))), visits, "{micros}");
    }
}

#[test]
fn capacity_is_a_sixteenth_and_four_above_the_length() {
    for (length, capacity) in [(0, 4), (1, 5), (15, 19), (16, 21), (160, 174)] {
        assert_eq!(SlidingLogUsage::capacity_for(length), capacity, "{length}");
    }
}
