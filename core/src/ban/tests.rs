use super::*;

fn at(seconds: u64) -> Timestamp {
    Timestamp::EPOCH.plus(Span::SECOND.times(seconds))
}

fn rule(strikes: u32, window: u64, block: u64) -> BanRule {
    let [window, block] = [window, block].map(|seconds| Period::new(Span::SECOND.times(seconds)).unwrap());
    BanRule { strikes, window, block }
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
    ban.forget(at(60));
    assert!(ban.is_empty());
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
