use super::*;
use crate::testing::calls::us;

#[test]
fn a_mark_stands_for_its_instant_and_moves_back_with_the_shift() {
    let shift = Shift::default().back(Span::from_micros(10));
    let mark = shift.mark(us(100));
    assert_eq!(shift.instant(mark), us(100));
    let shift = shift.back(Span::from_micros(30));
    assert_eq!(shift.instant(mark), us(70));
    assert_eq!(shift.mark(us(70)), mark);
    assert_eq!(shift.back(Span::from_micros(71)).instant(mark), Timestamp::EPOCH, "not before");
}

#[test]
fn marks_are_made_anew_once_the_clock_has_gone_back_too_far_and_not_sooner() {
    let far = Shift::default().back(Shift::FAR);
    assert!(!Shift::default().is_far() && !far.is_far());
    assert!(far.back(Span::MICROSECOND).is_far());
    // So far that no mark overflows.
    let shift = far.back(Span::MAX);
    assert_eq!(shift.instant(shift.mark(Timestamp::MAX)), Timestamp::MAX);
}
