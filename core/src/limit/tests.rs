use super::*;
use crate::algorithm::bucket::{Bucket, BucketUsage, Discipline};
use crate::algorithm::count_min::SketchUsage;
use crate::algorithm::fixed_window::FixedWindowUsage;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::algorithm::log::SlidingLogUsage;
use crate::algorithm::sliding_window::SlidingWindowUsage;
use crate::algorithm::strict_window::StrictWindowUsage;
use crate::testing::calls::{period, units, us};
use crate::testing::encoded_fields::{EncodedFields, encoded, whole_effect};

fn bucket() -> Bucket {
    Bucket::new(units(10), units(1), period("1s"), Discipline::Burst).unwrap()
}

fn charged(units_used: u64) -> BucketUsage {
    let mut usage = BucketUsage::default();
    bucket().charge(&mut usage, us(0), units(units_used));
    usage
}

#[test]
fn a_usage_of_one_piece_is_told_in_one_part() {
    let mut part = EncodedFields::default();
    assert_eq!(charged(3).encode_part_of_whole(0, &mut part), None);
    assert_eq!(part, whole_effect(&charged(3)));
}

/// In what is stored, so that they never change.
#[test]
fn every_kind_has_the_name_and_the_version_that_it_always_had() {
    let names =
        ["rl-bucket", "rl-window", "rl-slider", "rl-strict", "rl-reqlog", "rl-leases", "rl-sketch", "rl-limits"];
    assert_eq!(Kind::ALL.map(Kind::name), names);
    let versions = [
        BucketUsage::VERSION,
        FixedWindowUsage::VERSION,
        SlidingWindowUsage::VERSION,
        StrictWindowUsage::VERSION,
        SlidingLogUsage::VERSION,
        ConcurrencyUsage::VERSION,
        SketchUsage::VERSION,
    ];
    assert_eq!(versions, [1; 7]);
}

#[test]
fn a_kind_that_never_grows_holds_nothing_beside_itself() {
    let usage = charged(3);
    assert_eq!((usage.entries(), usage.heap_size(), usage.effort()), (0, 0, 1));
    assert_eq!(bucket().entries_after_charge(&usage, us(0)), None);
    assert_eq!(FixedWindowUsage::default().entries(), 0);
}

#[test]
fn the_effect_of_a_small_kind_is_all_of_its_usage() {
    let mut usage = charged(3);
    let mut told = EncodedFields::default();
    usage.encode_effect(&mut told);
    assert_eq!(told, encoded(&usage));
    assert_eq!(whole_effect(&usage), encoded(&usage));
    let mut elsewhere = charged(9);
    elsewhere.apply_effect(&mut told, 1);
    assert_eq!(elsewhere, usage);
}

#[test]
fn a_small_kind_accepts_an_effect_if_it_is_a_usage() {
    let accepts = |fields: &[u64]| charged(1).accepts_effect(&mut EncodedFields::integers(fields.iter().copied()), 1);
    assert!(accepts(&[1, 0]));
    assert!(!accepts(&[0, 0]) && !accepts(&[1]) && !accepts(&[]));
}

#[test]
fn a_usage_is_after_now_if_it_was_written_later() {
    let mut usage = BucketUsage::default();
    bucket().charge(&mut usage, us(10), units(1));
    assert_eq!([9, 10, 11].map(|now| usage.is_after(us(now))), [true, false, false]);
}

#[test]
fn a_debt_is_what_has_to_go_until_the_limit_is_kept() {
    let (limit, within, past) = (bucket(), charged(10), charged(12));
    let debt = |usage| limit.debt(usage, us(500_000));
    assert_eq!((debt(&within), debt(&past)), (Span::ZERO, Span::from_micros(1_500_000)));
    let after = |usage, now, cost| limit.debt_after_charge(usage, us(now), units(cost));
    assert_eq!(after(&within, 500_000, 0), Span::ZERO);
    assert_eq!(after(&within, 500_000, 3), Span::from_micros(2_500_000));
    let mut later = BucketUsage::default();
    limit.charge(&mut later, us(9_000_000), units(10));
    assert_eq!(after(&later, 1_000_000, 3), Span::from_micros(3_000_000), "by a clock that has gone back");
}

#[test]
fn only_what_is_allowed_passes() {
    let verdicts = [Verdict::Allowed(Span::ZERO), Verdict::Allowed(Span::SECOND), Verdict::After(Span::ZERO)];
    assert_eq!(verdicts.map(Verdict::allowed), [true, true, false]);
    assert!(!Verdict::Never.allowed());
}
