use super::*;

const SECOND: Span = Span::SECOND;

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH.plus(SECOND.times(seconds))
}

/// Returns a step of the clock from second 59 back to second 1. The call's limit has these resets, in seconds.
fn step(recovery: RecoverySource, reset_before: u64, reset_after: u64) -> StepBack {
    let (before, after) = (at(59), at(1));
    StepBack {
        now: after,
        moved_back: before.since(after),
        recovery,
        range_before: Expiry::of(before, SECOND.times(reset_before)),
        range_after: Expiry::of(after, SECOND.times(reset_after)),
    }
}

#[test]
fn expiry_is_at_most_an_eighth_and_a_second_after_the_recovery() {
    let expiry = Expiry::of(at(100), SECOND.times(80));
    assert_eq!(expiry.after_charge(None, false), 190_999);
    assert_eq!(expiry.after_charge(Some(185_000), true), 190_999);
    for (present, expected) in [(180_000, 190_999), (180_001, 180_001), (190_999, 190_999), (191_000, 190_999)] {
        assert_eq!(expiry.after_charge(Some(present), false), expected);
    }
}

#[test]
fn expiry_of_an_aligned_window_follows_its_end() {
    let aligned = |reset_before, reset_after| step(RecoverySource::Limit, reset_before, reset_after);
    // An expiry set by the call's limit is computed anew: a minute, an eighth of 59 s and a second.
    assert_eq!(aligned(1, 59).expiry(Some(61_124)), 68_374);
    // The expiry of a day window is later than that of any minute window.
    assert_eq!(aligned(1, 59).expiry(Some(86_400_000)), 86_400_000);
    // The window of the call's limit has another length, so its expiry before the step would have been another.
    assert_eq!(aligned(60, 60).expiry(Some(61_124)), 61_124);
    assert_eq!(aligned(3541, 3599).expiry(Some(61_124)), 4_050_874, "never before the reported recovery");
}

#[test]
fn expiry_moves_back_exactly_with_many_small_steps() {
    let (mut now, mut present) = (at(1000), 1_009_999);
    for micros in (0..20_000).map(|step| 100 + step % 900) {
        let moved_back = Span::from_micros(micros);
        let earlier = now.minus(moved_back);
        let expiry = |now: Timestamp| Expiry::of(now, SECOND.times(8));
        let (range_before, range_after) = (expiry(now), expiry(earlier));
        let recovery = RecoverySource::MovesBack;
        let step = StepBack { now: earlier, moved_back, recovery, range_before, range_after };
        (now, present) = (earlier, step.expiry(Some(present)));
    }
    assert_eq!(present, 1_009_999 - 1_000_000 + now.floor_millis());
}

#[test]
fn expiry_of_another_limit_does_not_move_back() {
    // Under the call's limit, the reset is eight seconds before and after the step.
    let expiry_after_step = |present| step(RecoverySource::MovesBack, 8, 8).expiry(Some(present));
    // Earliest and latest expiry under the call's limit before the step.
    for present in [67_001, 68_999] {
        assert_eq!(expiry_after_step(present), present - 58_000);
    }
    for present in [67_000, 69_000, 3_600_000] {
        assert_eq!(expiry_after_step(present), present);
    }
}

#[test]
fn invalid_expiry_is_replaced() {
    for recovery in [RecoverySource::MovesBack, RecoverySource::Usage, RecoverySource::Limit] {
        for present in [None, Some(0), Some(1_001), Some(LATEST_EXPIRY + 58_001), Some(u64::MAX)] {
            assert_eq!(step(recovery, 1, 59).expiry(present), 68_374, "{recovery:?} {present:?}");
        }
    }
}

#[test]
fn expiry_of_any_limit_is_valid() {
    let latest = Expiry::of(Timestamp::MAX, Span::MAX).after_charge(None, false);
    // The latest expiry is 365000 days plus 9/8 of 365000 days; `LATEST_EXPIRY` is at most 5/16 later.
    assert!(latest <= LATEST_EXPIRY && LATEST_EXPIRY < latest / 4 * 5 + latest / 16, "{latest}");
}
