use super::*;
use crate::testing::calls::us;

#[test]
fn mark_moves_back_with_the_shift() {
    let shift = Shift::default().back(Span::from_micros(10));
    let mark = shift.mark(us(100));
    assert_eq!(shift.timestamp(mark), us(100));
    let shift = shift.back(Span::from_micros(30));
    assert_eq!(shift.timestamp(mark), us(70));
    assert_eq!(shift.mark(us(70)), mark);
    assert_eq!(shift.back(Span::from_micros(71)).timestamp(mark), Timestamp::EPOCH);
}

#[test]
fn marks_are_recomputed_only_beyond_the_bound() {
    let at_bound = Shift::default().back(Shift::FAR);
    assert!(!Shift::default().is_far() && !at_bound.is_far());
    assert!(at_bound.back(Span::MICROSECOND).is_far());
    // Marks do not overflow even beyond the bound.
    let shift = at_bound.back(Span::MAX);
    assert_eq!(shift.timestamp(shift.mark(Timestamp::MAX)), Timestamp::MAX);
}
