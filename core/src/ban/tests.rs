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
fn the_last_strike_within_the_window_of_the_first_bans() {
    let mut ban = Ban::default();
    for (second, left) in [(0, 0), (59, 0), (60, 0), (61, 0), (119, 600), (120, 599)] {
        if left != 599 {
            ban.strike(rule(3, 60, 600), at(second));
        }
        assert_eq!(ban.left(at(second)), Span::SECOND.times(left), "{second}");
    }
    assert_eq!(ban.strikes(at(119)), None, "a ban begins anew");
    assert_eq!(ban.left(at(719)), Span::ZERO);
}

#[test]
fn one_strike_may_be_enough_and_then_bans_at_once() {
    let mut ban = Ban::default();
    assert!(ban.is_next(rule(1, 1, 1), at(0)));
    ban.strike(rule(1, 60, 5), at(10));
    assert_eq!((ban.left(at(10)), ban.expires_at()), (Span::SECOND.times(5), at(15)));
}

#[test]
fn a_ban_by_hand_never_shortens_and_nothing_lifts() {
    let mut ban = Ban::default();
    ban.by_hand(Span::SECOND.times(100), at(0));
    ban.by_hand(Span::SECOND.times(50), at(10));
    assert_eq!(ban.left(at(10)), Span::SECOND.times(90));
    ban.strike(rule(3, 60, 1), at(10));
    ban.strike(rule(3, 60, 1), at(11));
    ban.strike(rule(3, 60, 1), at(12));
    assert_eq!(ban.left(at(12)), Span::SECOND.times(88), "nor does a rule");
    ban.strike(rule(3, 60, 1), at(12));
    ban.by_hand(Span::ZERO, at(13));
    assert!(ban.is_empty());
}

#[test]
fn what_is_over_is_forgotten_each_for_itself() {
    let mut ban = Ban::default();
    ban.by_hand(Span::SECOND.times(10), at(0));
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
fn what_is_written_of_a_ban_is_read_as_that() {
    let mut ban = Ban::default();
    let three = BanRule { strikes: 3, ..growing() };
    // No strike, one, a ban of the first level, and one with a strike beside its level.
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
fn a_ban_outlasts_the_strikes_beside_it() {
    let mut ban = Ban::default();
    ban.by_hand(Span::SECOND.times(100), at(0));
    ban.strike(rule(9, 60, 1), at(0));
    ban.forget(at(60));
    assert_eq!((ban.left(at(60)), ban.strikes(at(59))), (Span::SECOND.times(40), None));
}

#[test]
fn a_clock_gone_back_moves_a_ban_and_its_strikes() {
    let mut ban = Ban::default();
    ban.by_hand(Span::SECOND.times(10), at(100));
    ban.strike(rule(3, 60, 1), at(100));
    ban.move_back(Span::SECOND.times(40));
    assert_eq!((ban.left(at(60)), ban.strikes(at(60))), (Span::SECOND.times(10), Some((1, at(60)))));
    assert_eq!(ban.expires_at(), at(120));
}

#[test]
fn the_end_of_time_is_no_end_of_it() {
    let mut ban = Ban::default();
    ban.by_hand(Span::MAX_ARGUMENT, Timestamp::MAX);
    assert_eq!(ban.until(), Timestamp::MAX);
    ban.strike(rule(1, 60, 60), Timestamp::MAX);
    assert_eq!(ban.until(), Timestamp::MAX);
}

const HOUR: u64 = 3600;

/// One strike bans for an hour, then for 2, 4 and at most 7 hours.
fn growing() -> BanRule {
    BanRule { longest: Period::new(Span::SECOND.times(7 * HOUR)), ..rule(1, 60, HOUR) }
}

/// How many hours the ban lasts that a strike at `second` brings.
fn hours(ban: &mut Ban, rule: BanRule, second: u64) -> u64 {
    assert_eq!(ban.left(at(second)), Span::ZERO, "it is banned already");
    ban.strike(rule, at(second));
    assert!(ban.is_sound(at(second)));
    ban.left(at(second)).micros() / Span::SECOND.times(HOUR).micros()
}

#[test]
fn a_ban_that_follows_soon_is_twice_as_long_up_to_the_longest() {
    let (mut ban, mut now) = (Ban::default(), 0);
    for (length, level) in [(1, 1), (2, 2), (4, 3), (7, 4), (7, 4), (7, 4)] {
        assert_eq!((hours(&mut ban, growing(), now), ban.level(at(now))), (length, level));
        // A microsecond less than the longest behind its end.
        now += (length + 7) * HOUR - 1;
        ban.forget(at(now));
    }
}

#[test]
fn a_level_passes_with_each_whole_longest_since_the_end() {
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
    assert!(third.is_empty(), "what has passed is forgotten");
}

#[test]
fn a_level_passes_by_the_longest_of_its_own_ban() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    let other = BanRule { longest: Period::new(Span::SECOND.times(30 * HOUR)), ..rule(1, 60, 10 * HOUR) };
    // 7 hours after the end one of two levels is left, whatever the call says; the length is the call's.
    assert_eq!((hours(&mut ban, other, 10 * HOUR), ban.level(at(10 * HOUR))), (20, 2));
    assert_eq!(ban.expires_at(), at((10 + 20 + 2 * 30) * HOUR));
}

#[test]
fn a_rule_that_reaches_its_longest_sooner_has_fewer_levels() {
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
fn a_ban_without_a_longest_leaves_the_level() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    assert_eq!((hours(&mut ban, rule(1, 60, 5 * HOUR), 10 * HOUR), ban.level(at(14 * HOUR))), (5, 1));
    // It passes from the end of that ban on.
    assert_eq!([ban.level(at(22 * HOUR - 1)), ban.level(at(22 * HOUR))], [1, 0]);
    // Of a level that has passed nothing is left.
    let (mut late, mut first) = (Ban::default(), Ban::default());
    assert_eq!(hours(&mut late, growing(), 0), 1);
    assert_eq!([&mut late, &mut first].map(|ban| hours(ban, rule(1, 60, HOUR), 8 * HOUR)), [1, 1]);
    assert_eq!(late, first);
    // And a ban that has none makes none.
    let mut ban = Ban::default();
    assert_eq!((hours(&mut ban, rule(1, 60, HOUR), 0), ban.level(at(0)), ban.expires_at()), (1, 0, at(HOUR)));
}

#[test]
fn a_ban_by_hand_leaves_the_level_and_0_forgets_it() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 0), hours(&mut ban, growing(), HOUR)], [1, 2]);
    let before = ban;
    ban.by_hand(Span::SECOND.times(HOUR), at(HOUR));
    assert_eq!(ban, before, "a shorter ban changes nothing");
    ban.by_hand(Span::SECOND.times(9 * HOUR), at(HOUR));
    assert_eq!([ban.level(at(17 * HOUR - 1)), ban.level(at(17 * HOUR)), ban.level(at(24 * HOUR))], [2, 1, 0]);
    // What has passed before stays so.
    ban.by_hand(Span::SECOND.times(HOUR), at(20 * HOUR));
    assert_eq!([ban.level(at(20 * HOUR)), ban.level(at(28 * HOUR - 1)), ban.level(at(28 * HOUR))], [1, 1, 0]);
    ban.by_hand(Span::SECOND.times(HOUR), at(28 * HOUR));
    assert_eq!((ban.level(at(28 * HOUR)), ban.expires_at()), (0, at(29 * HOUR)));
    let mut ban = before;
    ban.by_hand(Span::ZERO, at(HOUR));
    assert!(ban.is_empty());
}

#[test]
fn strikes_below_a_ban_leave_the_level() {
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
fn a_clock_gone_back_moves_the_end_that_a_level_passes_from() {
    let mut ban = Ban::default();
    assert_eq!([hours(&mut ban, growing(), 100 * HOUR), hours(&mut ban, growing(), 101 * HOUR)], [1, 2]);
    // 3 hours after the end the clock goes back by 50.
    ban.move_back(Span::SECOND.times(50 * HOUR));
    assert_eq!([ban.level(at(60 * HOUR - 1)), ban.level(at(60 * HOUR))], [2, 1]);
    assert_eq!(ban.expires_at(), at(67 * HOUR));
}

#[test]
fn levels_neither_overflow_nor_end_with_time() {
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
    // By then all of them have passed: 90 decades are more than 50.
    assert_eq!((ban.until(), ban.level(Timestamp::MAX)), (Timestamp::MAX, 1));
}
