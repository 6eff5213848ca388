use super::*;
use crate::testing::encoded_fields::EncodedFields;

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH.plus(Span::SECOND.times(seconds))
}

fn rule(strikes: u32, window: u64, block: u64) -> BanRule {
    let [window, block] = [window, block].map(|seconds| Period::new(Span::SECOND.times(seconds)).unwrap());
    BanRule { strikes, window, block, longest: None }
}

#[test]
fn last_strike_in_the_window_bans() {
    let mut ban = Ban::default();
    for (second, left) in [(0, 0), (59, 0), (60, 0), (61, 0), (119, 600), (120, 599)] {
        if left != 599 {
            ban.strike(rule(3, 60, 600), at(second));
        }
        assert_eq!(ban.left(at(second)), Span::SECOND.times(left), "{second}");
    }
    assert_eq!(ban.strikes(at(119)), None, "a ban clears the strikes");
    assert_eq!(ban.left(at(719)), Span::ZERO);
}

#[test]
fn rule_of_one_strike_bans_at_once() {
    let mut ban = Ban::default();
    ban.strike(rule(1, 1, 1), at(0));
    assert_eq!(ban.left(at(0)), Span::SECOND);
    let mut ban = Ban::default();
    ban.strike(rule(1, 60, 5), at(10));
    assert_eq!((ban.left(at(10)), ban.expires_at()), (Span::SECOND.times(5), at(15)));
}

#[test]
fn manual_ban_never_shortens_and_zero_lifts() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(100), at(0));
    ban.set_manual(Span::SECOND.times(50), at(10));
    assert_eq!(ban.left(at(10)), Span::SECOND.times(90));
    ban.strike(rule(3, 60, 1), at(10));
    ban.strike(rule(3, 60, 1), at(11));
    ban.strike(rule(3, 60, 1), at(12));
    assert_eq!(ban.left(at(12)), Span::SECOND.times(88), "a rule does not shorten it either");
    ban.strike(rule(3, 60, 1), at(12));
    ban.set_manual(Span::ZERO, at(13));
    assert!(ban.is_empty());
}

#[test]
fn ban_and_strikes_expire_separately() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(10), at(0));
    ban.strike(rule(9, 60, 1), at(0));
    ban.forget(at(9));
    assert_eq!((ban.until(), ban.strikes(at(9))), (at(10), Some((1, at(0)))));
    ban.forget(at(10));
    assert_eq!((ban.left(at(10)), ban.strikes(at(10)), ban.expires_at()), (Span::ZERO, Some((1, at(0))), at(60)));
    ban.forget(at(59));
    assert!(!ban.is_empty());
    assert_eq!([59, 60, 61].map(|second| ban.strikes(at(second))), [Some((1, at(0))), None, None]);
    ban.forget(at(60));
    assert!(ban.is_empty());
    assert_eq!(ban.strikes(at(0)), None);
}

#[test]
fn encoded_ban_is_decoded_to_the_same() {
    let mut ban = Ban::default();
    let three = BanRule { strikes: 3, ..growing() };
    // No strike, one strike, a ban of the first level, and a strike beside a level.
    for (second, rule) in [(0, None), (1, Some(three)), (2, Some(growing())), (3 * HOUR, Some(three))] {
        if let Some(rule) = rule {
            ban.strike(rule, at(second));
        }
        let mut written = EncodedFields::default();
        ban.encode(&mut written);
        let length = 2 + if ban.level(at(second)) > 0 { 2 } else { 0 } + if ban.strikes > 0 { 2 } else { 0 };
        assert_eq!(written.clone().numbers().len(), length, "{ban:?}");
        assert_eq!(Ban::decode(&mut written, at(second)), Some(ban));
        assert_eq!(written, EncodedFields::default(), "left over");
    }
    assert_eq!((ban.level(at(3 * HOUR)), ban.strikes(at(3 * HOUR))), (1, Some((1, at(3 * HOUR)))));
}

#[test]
fn ban_survives_expired_strikes() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(100), at(0));
    ban.strike(rule(9, 60, 1), at(0));
    ban.forget(at(60));
    assert_eq!((ban.left(at(60)), ban.strikes(at(59))), (Span::SECOND.times(40), None));
}

#[test]
fn clock_step_back_moves_ban_and_strikes() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(10), at(100));
    ban.strike(rule(3, 60, 1), at(100));
    ban.move_back(Span::SECOND.times(40));
    assert_eq!((ban.left(at(60)), ban.strikes(at(60))), (Span::SECOND.times(10), Some((1, at(60)))));
    assert_eq!(ban.expires_at(), at(120));
}

#[test]
fn ban_at_the_last_timestamp_saturates() {
    let mut ban = Ban::default();
    ban.set_manual(Span::MAX_ARGUMENT, Timestamp::MAX);
    assert_eq!(ban.until(), Timestamp::MAX);
    ban.strike(rule(1, 60, 60), Timestamp::MAX);
    assert_eq!(ban.until(), Timestamp::MAX);
}

const HOUR: u64 = 3600;

/// Returns a rule by which one strike bans for an hour, then for 2, 4 and at most 7 hours.
fn growing() -> BanRule {
    BanRule { longest: Period::new(Span::SECOND.times(7 * HOUR)), ..rule(1, 60, HOUR) }
}

/// Strikes at `second`, and returns the hours of the ban.
fn hours(ban: &mut Ban, rule: BanRule, second: u64) -> u64 {
    assert_eq!(ban.left(at(second)), Span::ZERO, "it is banned already");
    ban.strike(rule, at(second));
    assert!(ban.is_sound(at(second)));
    ban.left(at(second)).micros() / Span::SECOND.times(HOUR).micros()
}

#[test]
fn repeated_ban_is_doubled_up_to_the_longest() {
    let (mut ban, mut now) = (Ban::default(), 0);
    for (length, level) in [(1, 1), (2, 2), (4, 3), (7, 4), (7, 4), (7, 4)] {
        assert_eq!((hours(&mut ban, growing(), now), ban.level(at(now))), (length, level));
        // A microsecond less than `longest` after its end.
        now += (length + 7) * HOUR - 1;
        ban.forget(at(now));
    }
}

#[test]
fn level_decreases_with_each_longest_since_the_end() {
    let mut third = Ban::default();
    let mut end = 0;
    for length in [1, 2, 4] {
        assert_eq!(hours(&mut third, growing(), end), length);
        end += length * HOUR;
    }
    for (passed, level, next) in
        [(0, 3, 7), (7 * HOUR - 1, 3, 7), (7 * HOUR, 2, 4), (14 * HOUR - 1, 2, 4), (14 * HOUR, 1, 2)]
    {
        let mut ban = third;
        assert_eq!(ban.level(at(end + passed)), level, "{passed}");
        ban.forget(at(end + passed));
        assert_eq!(hours(&mut ban, growing(), end + passed), next, "{passed}");
    }
    assert_eq!(third.expires_at(), at(end + 21 * HOUR));
    third.forget(at(end + 21 * HOUR - 1));
    assert!(!third.is_empty());
    third.forget(at(end + 21 * HOUR));
    assert!(third.is_empty(), "expired levels are cleared");
}

#[test]
fn level_decreases_by_the_longest_of_its_own_ban() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    let other = BanRule { longest: Period::new(Span::SECOND.times(30 * HOUR)), ..rule(1, 60, 10 * HOUR) };
    // 7 hours after the end, one of two levels is left, whatever rule the call has. The duration is that of the call.
    assert_eq!((hours(&mut ban, other, 10 * HOUR), ban.level(at(10 * HOUR))), (20, 2));
    assert_eq!(ban.expires_at(), at((10 + 20 + 2 * 30) * HOUR));
}

#[test]
fn level_is_capped_by_the_rule_of_the_call() {
    let mut ban = Ban::default();
    for _ in 0..4 {
        ban.strike(growing(), at(0));
    }
    assert_eq!(ban.level(at(0)), 4);
    let end = 7 * HOUR;
    let flat = BanRule { longest: Period::new(Span::SECOND.times(HOUR)), ..rule(1, 60, HOUR) };
    assert_eq!((hours(&mut ban, flat, end), ban.level(at(end))), (1, 1));
}

#[test]
fn ban_without_max_keeps_the_level() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    assert_eq!((hours(&mut ban, rule(1, 60, 5 * HOUR), 10 * HOUR), ban.level(at(14 * HOUR))), (5, 1));
    // The level decreases from the end of that ban on.
    assert_eq!([ban.level(at(22 * HOUR - 1)), ban.level(at(22 * HOUR))], [1, 0]);
    // An expired level is not kept.
    let (mut late, mut first) = (Ban::default(), Ban::default());
    assert_eq!(hours(&mut late, growing(), 0), 1);
    assert_eq!([&mut late, &mut first].map(|ban| hours(ban, rule(1, 60, HOUR), 8 * HOUR)), [1, 1]);
    assert_eq!(late, first);
    // A ban without MAX creates no level.
    let mut ban = Ban::default();
    assert_eq!((hours(&mut ban, rule(1, 60, HOUR), 0), ban.level(at(0)), ban.expires_at()), (1, 0, at(HOUR)));
}

#[test]
fn manual_ban_keeps_the_level_and_zero_clears_it() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    let before = ban;
    ban.set_manual(Span::SECOND.times(HOUR), at(HOUR));
    assert_eq!(ban, before, "a shorter ban changes nothing");
    ban.set_manual(Span::SECOND.times(9 * HOUR), at(HOUR));
    assert_eq!([ban.level(at(17 * HOUR - 1)), ban.level(at(17 * HOUR)), ban.level(at(24 * HOUR))], [2, 1, 0]);
    // Levels that have expired are not restored.
    ban.set_manual(Span::SECOND.times(HOUR), at(20 * HOUR));
    assert_eq!([ban.level(at(20 * HOUR)), ban.level(at(28 * HOUR - 1)), ban.level(at(28 * HOUR))], [1, 1, 0]);
    ban.set_manual(Span::SECOND.times(HOUR), at(28 * HOUR));
    assert_eq!((ban.level(at(28 * HOUR)), ban.expires_at()), (0, at(29 * HOUR)));
    let mut ban = before;
    ban.set_manual(Span::ZERO, at(HOUR));
    assert!(ban.is_empty());
}

#[test]
fn strikes_without_a_ban_keep_the_level() {
    let mut ban = Ban::default();
    assert_eq!(hours(&mut ban, growing(), 0), 1);
    let three = BanRule { strikes: 3, ..growing() };
    ban.strike(three, at(2 * HOUR));
    ban.strike(three, at(2 * HOUR));
    ban.forget(at(2 * HOUR + 59));
    assert_eq!((ban.level(at(2 * HOUR)), ban.strikes(at(2 * HOUR)).unwrap().0), (1, 2));
    ban.forget(at(2 * HOUR + 60));
    assert_eq!((ban.level(at(2 * HOUR + 60)), ban.strikes(at(2 * HOUR + 60))), (1, None));
    ban.forget(at(8 * HOUR));
    assert!(ban.is_empty());
}

#[test]
fn clock_step_back_moves_the_end_of_the_last_ban() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 100 * HOUR), hours(&mut ban, growing(), 101 * HOUR)], [1, 2]);
    // 3 hours after the end, the clock goes back by 50 hours.
    ban.move_back(Span::SECOND.times(50 * HOUR));
    assert_eq!([ban.level(at(60 * HOUR - 1)), ban.level(at(60 * HOUR))], [2, 1]);
    assert_eq!(ban.expires_at(), at(67 * HOUR));
}

#[test]
fn levels_do_not_overflow_at_the_last_timestamp() {
    let longest = Period::new(Span::MAX_ARGUMENT);
    let smallest = BanRule { longest, block: Period::new(Span::MICROSECOND).unwrap(), ..rule(1, 60, 1) };
    let mut ban = Ban::default();
    for level in 1..=60_u8 {
        let now = ban.until();
        ban.strike(smallest, now);
        assert!(ban.is_sound(now));
        // 2^49 microseconds are more than 3650 days.
        assert_eq!(ban.level(now), level.min(50));
        assert_eq!(ban.left(now).micros(), (1 << (level.min(50) - 1)).min(Span::MAX_ARGUMENT.micros()));
    }
    ban.strike(smallest, Timestamp::MAX);
    // All levels have expired by then: 90 decades are more than 50.
    assert_eq!((ban.until(), ban.level(Timestamp::MAX)), (Timestamp::MAX, 1));
}
