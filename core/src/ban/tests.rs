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
    // The first window ends at second 60.
    for (second, banned_for) in [(0, 0), (59, 0), (60, 0), (61, 0), (119, 600)] {
        ban.strike(rule(3, 60, 600), at(second));
        assert_eq!(ban.remaining(at(second)), Span::SECOND.times(banned_for), "{second}");
    }
    assert_eq!(ban.remaining(at(120)), Span::SECOND.times(599));
    assert_eq!(ban.strikes(at(119)), None, "a ban clears the strikes");
    assert_eq!(ban.remaining(at(719)), Span::ZERO);
}

#[test]
fn rule_of_one_strike_bans_at_once() {
    let mut ban = Ban::default();
    ban.strike(rule(1, 1, 1), at(0));
    assert_eq!(ban.remaining(at(0)), Span::SECOND);
    let mut ban = Ban::default();
    ban.strike(rule(1, 60, 5), at(10));
    assert_eq!((ban.remaining(at(10)), ban.expires_at()), (Span::SECOND.times(5), at(15)));
}

#[test]
fn manual_ban_never_shortens_a_ban_and_zero_lifts_it() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(100), at(0));
    ban.set_manual(Span::SECOND.times(50), at(10));
    assert_eq!(ban.remaining(at(10)), Span::SECOND.times(90));
    ban.strike(rule(3, 60, 1), at(10));
    ban.strike(rule(3, 60, 1), at(11));
    ban.strike(rule(3, 60, 1), at(12));
    assert_eq!(ban.remaining(at(12)), Span::SECOND.times(88), "a rule does not shorten a ban either");
    ban.strike(rule(3, 60, 1), at(12));
    ban.set_manual(Span::ZERO, at(13));
    assert!(ban.is_empty());
}

#[test]
fn ban_and_strikes_expire_separately() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(10), at(0));
    ban.strike(rule(9, 60, 1), at(0));
    ban.clear_expired(at(9));
    assert_eq!((ban.until(), ban.strikes(at(9))), (at(10), Some((1, at(0)))));
    ban.clear_expired(at(10));
    assert_eq!((ban.remaining(at(10)), ban.strikes(at(10)), ban.expires_at()), (Span::ZERO, Some((1, at(0))), at(60)));
    ban.clear_expired(at(59));
    assert!(!ban.is_empty());
    assert_eq!([59, 60, 61].map(|second| ban.strikes(at(second))), [Some((1, at(0))), None, None]);
    ban.clear_expired(at(60));
    assert!(ban.is_empty());
    assert_eq!(ban.strikes(at(0)), None);
}

#[test]
fn encoded_ban_is_decoded_to_an_equal_ban() {
    let mut ban = Ban::default();
    let rule_of_three = BanRule { strikes: 3, ..doubling_rule() };
    // No strike, one strike, a ban of the first level, and a strike beside a level.
    for (second, rule) in
        [(0, None), (1, Some(rule_of_three)), (2, Some(doubling_rule())), (3 * HOUR, Some(rule_of_three))]
    {
        if let Some(rule) = rule {
            ban.strike(rule, at(second));
        }
        let mut fields = EncodedFields::default();
        ban.encode(&mut fields);
        let length = 2 + if ban.level(at(second)) > 0 { 2 } else { 0 } + if ban.strikes > 0 { 2 } else { 0 };
        assert_eq!(fields.clone().numbers().len(), length, "{ban:?}");
        assert_eq!(Ban::decode(&mut fields, at(second)), Some(ban));
        assert_eq!(fields, EncodedFields::default(), "all fields are decoded");
    }
    assert_eq!((ban.level(at(3 * HOUR)), ban.strikes(at(3 * HOUR))), (1, Some((1, at(3 * HOUR)))));
}

#[test]
fn ban_survives_expired_strikes() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(100), at(0));
    ban.strike(rule(9, 60, 1), at(0));
    ban.clear_expired(at(60));
    assert_eq!((ban.remaining(at(60)), ban.strikes(at(59))), (Span::SECOND.times(40), None));
}

#[test]
fn clock_step_back_moves_ban_and_strikes() {
    let mut ban = Ban::default();
    ban.set_manual(Span::SECOND.times(10), at(100));
    ban.strike(rule(3, 60, 1), at(100));
    ban.move_back(Span::SECOND.times(40));
    assert_eq!((ban.remaining(at(60)), ban.strikes(at(60))), (Span::SECOND.times(10), Some((1, at(60)))));
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

/// Returns a rule of one strike, whose bans last 1, 2, 4 and then always 7 hours.
fn doubling_rule() -> BanRule {
    BanRule { longest: Period::new(Span::SECOND.times(7 * HOUR)), ..rule(1, 60, HOUR) }
}

/// Counts a strike at `second` that must ban the key, and returns the duration of the ban in hours.
fn banned_hours(ban: &mut Ban, rule: BanRule, second: u64) -> u64 {
    assert_eq!(ban.remaining(at(second)), Span::ZERO, "the key is banned already");
    ban.strike(rule, at(second));
    assert!(ban.is_sound(at(second)));
    ban.remaining(at(second)).micros() / Span::SECOND.times(HOUR).micros()
}

#[test]
fn repeated_ban_is_doubled_up_to_the_longest() {
    let (mut ban, mut now) = (Ban::default(), 0);
    for (length, level) in [(1, 1), (2, 2), (4, 3), (7, 4), (7, 4), (7, 4)] {
        assert_eq!((banned_hours(&mut ban, doubling_rule(), now), ban.level(at(now))), (length, level));
        // A second before the level decreases.
        now += (length + 7) * HOUR - 1;
        ban.clear_expired(at(now));
    }
}

#[test]
fn level_decreases_with_each_longest_since_the_end() {
    let mut level_3 = Ban::default();
    let mut end = 0;
    for length in [1, 2, 4] {
        assert_eq!(banned_hours(&mut level_3, doubling_rule(), end), length);
        end += length * HOUR;
    }
    for (passed, level, next) in
        [(0, 3, 7), (7 * HOUR - 1, 3, 7), (7 * HOUR, 2, 4), (14 * HOUR - 1, 2, 4), (14 * HOUR, 1, 2)]
    {
        let mut ban = level_3;
        assert_eq!(ban.level(at(end + passed)), level, "{passed}");
        ban.clear_expired(at(end + passed));
        assert_eq!(banned_hours(&mut ban, doubling_rule(), end + passed), next, "{passed}");
    }
    assert_eq!(level_3.expires_at(), at(end + 21 * HOUR));
    level_3.clear_expired(at(end + 21 * HOUR - 1));
    assert!(!level_3.is_empty());
    level_3.clear_expired(at(end + 21 * HOUR));
    assert!(level_3.is_empty(), "expired levels are cleared");
}

#[test]
fn level_decreases_by_the_longest_of_the_ban_that_set_it() {
    let mut ban = Ban::default();
    assert_eq!([banned_hours(&mut ban, doubling_rule(), 0), banned_hours(&mut ban, doubling_rule(), HOUR)], [1, 2]);
    let longer = BanRule { longest: Period::new(Span::SECOND.times(30 * HOUR)), ..rule(1, 60, 10 * HOUR) };
    // 7 hours after the end, the level has decreased from 2 to 1, under any rule. The call raises it to 2 again, and
    // its rule sets the duration.
    assert_eq!((banned_hours(&mut ban, longer, 10 * HOUR), ban.level(at(10 * HOUR))), (20, 2));
    assert_eq!(ban.expires_at(), at((10 + 20 + 2 * 30) * HOUR));
}

#[test]
fn level_is_capped_by_the_rule_of_the_call() {
    let mut ban = Ban::default();
    for _ in 0..4 {
        ban.strike(doubling_rule(), at(0));
    }
    assert_eq!(ban.level(at(0)), 4);
    let end = 7 * HOUR;
    let undoubled = BanRule { longest: Period::new(Span::SECOND.times(HOUR)), ..rule(1, 60, HOUR) };
    assert_eq!((banned_hours(&mut ban, undoubled, end), ban.level(at(end))), (1, 1));
}

#[test]
fn ban_without_max_keeps_the_level() {
    let mut ban = Ban::default();
    assert_eq!([banned_hours(&mut ban, doubling_rule(), 0), banned_hours(&mut ban, doubling_rule(), HOUR)], [1, 2]);
    assert_eq!((banned_hours(&mut ban, rule(1, 60, 5 * HOUR), 10 * HOUR), ban.level(at(14 * HOUR))), (5, 1));
    // The level decreases from the end of the last ban on.
    assert_eq!([ban.level(at(22 * HOUR - 1)), ban.level(at(22 * HOUR))], [1, 0]);
    // An expired level is not kept.
    let (mut with_expired_level, mut new) = (Ban::default(), Ban::default());
    assert_eq!(banned_hours(&mut with_expired_level, doubling_rule(), 0), 1);
    for ban in [&mut with_expired_level, &mut new] {
        assert_eq!(banned_hours(ban, rule(1, 60, HOUR), 8 * HOUR), 1);
    }
    assert_eq!(with_expired_level, new);
    // A ban without MAX creates no level.
    let mut ban = Ban::default();
    assert_eq!((banned_hours(&mut ban, rule(1, 60, HOUR), 0), ban.level(at(0)), ban.expires_at()), (1, 0, at(HOUR)));
}

#[test]
fn manual_ban_keeps_the_level_and_zero_clears_it() {
    let mut ban = Ban::default();
    assert_eq!([banned_hours(&mut ban, doubling_rule(), 0), banned_hours(&mut ban, doubling_rule(), HOUR)], [1, 2]);
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
    assert_eq!(banned_hours(&mut ban, doubling_rule(), 0), 1);
    let rule_of_three = BanRule { strikes: 3, ..doubling_rule() };
    ban.strike(rule_of_three, at(2 * HOUR));
    ban.strike(rule_of_three, at(2 * HOUR));
    ban.clear_expired(at(2 * HOUR + 59));
    assert_eq!((ban.level(at(2 * HOUR)), ban.strikes(at(2 * HOUR)).unwrap().0), (1, 2));
    ban.clear_expired(at(2 * HOUR + 60));
    assert_eq!((ban.level(at(2 * HOUR + 60)), ban.strikes(at(2 * HOUR + 60))), (1, None));
    ban.clear_expired(at(8 * HOUR));
    assert!(ban.is_empty());
}

#[test]
fn clock_step_back_moves_the_end_of_the_last_ban() {
    let mut ban = Ban::default();
    assert_eq!(
        [banned_hours(&mut ban, doubling_rule(), 100 * HOUR), banned_hours(&mut ban, doubling_rule(), 101 * HOUR)],
        [1, 2]
    );
    // 3 hours after the end, the clock goes back by 50 hours.
    ban.move_back(Span::SECOND.times(50 * HOUR));
    assert_eq!([ban.level(at(60 * HOUR - 1)), ban.level(at(60 * HOUR))], [2, 1]);
    assert_eq!(ban.expires_at(), at(67 * HOUR));
}

#[test]
fn levels_do_not_overflow_at_the_last_timestamp() {
    let longest = Period::new(Span::MAX_ARGUMENT);
    let shortest = BanRule { longest, block: Period::new(Span::MICROSECOND).unwrap(), ..rule(1, 60, 1) };
    let mut ban = Ban::default();
    for level in 1..=60_u8 {
        let now = ban.until();
        ban.strike(shortest, now);
        assert!(ban.is_sound(now));
        // 2^49 microseconds are more than 3650 days.
        assert_eq!(ban.level(now), level.min(50));
        assert_eq!(ban.remaining(now).micros(), (1 << (level.min(50) - 1)).min(Span::MAX_ARGUMENT.micros()));
    }
    ban.strike(shortest, Timestamp::MAX);
    // The 50 levels have expired: one expires in 3650 days, and `Timestamp::MAX` is nearly 9 centuries later.
    assert_eq!((ban.until(), ban.level(Timestamp::MAX)), (Timestamp::MAX, 1));
}
