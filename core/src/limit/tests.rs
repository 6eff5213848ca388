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

fn usage_of(units_used: u64) -> BucketUsage {
    let mut usage = BucketUsage::default();
    bucket().charge(&mut usage, us(0), units(units_used));
    usage
}

#[test]
fn usage_without_pieces_is_encoded_as_one_part() {
    let mut part = EncodedFields::default();
    assert_eq!(usage_of(3).encode_part_of_whole(0, &mut part), None);
    assert_eq!(part, whole_effect(&usage_of(3)));
}

/// Names and versions are stored, so they never change.
#[test]
fn names_and_versions_of_kinds_are_stable() {
    let names =
        ["rl-bucket", "rl-window", "rl-slider", "rl-strict", "rl-reqlog", "rl-leases", "rl-sketch", "rl-limits"];
    assert_eq!(UsageKind::ALL.map(UsageKind::name), names);
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
fn fixed_size_kind_uses_no_heap_memory() {
    let usage = usage_of(3);
    assert_eq!((usage.entries(), usage.heap_size(), usage.free_effort()), (0, 0, 1));
    assert_eq!(bucket().entries_after_charge(&usage, us(0)), None);
    assert_eq!(FixedWindowUsage::default().entries(), 0);
}

#[test]
fn effect_of_a_fixed_size_kind_is_its_whole_usage() {
    let mut usage = usage_of(3);
    let mut effect = EncodedFields::default();
    usage.encode_effect(&mut effect);
    assert_eq!(effect, encoded(&usage));
    assert_eq!(whole_effect(&usage), encoded(&usage));
    let mut replica = usage_of(9);
    replica.apply_effect(&mut effect, 1);
    assert_eq!(replica, usage);
}

#[test]
fn effect_of_a_fixed_size_kind_must_be_a_valid_usage() {
    let accepts = |fields: &[u64]| usage_of(1).accepts_effect(&mut EncodedFields::integers(fields.iter().copied()), 1);
    assert!(accepts(&[1, 0]));
    assert!(!accepts(&[0, 0]) && !accepts(&[1]) && !accepts(&[]));
}

#[test]
fn usage_is_after_an_earlier_time() {
    let mut usage = BucketUsage::default();
    bucket().charge(&mut usage, us(10), units(1));
    assert_eq!([9, 10, 11].map(|now| usage.is_after(us(now))), [true, false, false]);
}

#[test]
fn debt_is_the_time_until_the_usage_is_within_the_limit() {
    let (limit, within, past) = (bucket(), usage_of(10), usage_of(12));
    let debt = |usage| limit.debt(usage, us(500_000));
    assert_eq!((debt(&within), debt(&past)), (Span::ZERO, Span::from_micros(1_500_000)));
    let debt_after_charge = |usage, now, cost| limit.debt_after_charge(usage, us(now), units(cost));
    assert_eq!(debt_after_charge(&within, 500_000, 0), Span::ZERO);
    assert_eq!(debt_after_charge(&within, 500_000, 3), Span::from_micros(2_500_000));
    let mut later = BucketUsage::default();
    limit.charge(&mut later, us(9_000_000), units(10));
    assert_eq!(
        debt_after_charge(&later, 1_000_000, 3),
        Span::from_micros(3_000_000),
        "after the clock moved backwards"
    );
}

#[test]
fn only_allowed_verdicts_are_granted() {
    let verdicts = [Verdict::Allowed(Span::ZERO), Verdict::Allowed(Span::SECOND), Verdict::After(Span::ZERO)];
    assert_eq!(verdicts.map(Verdict::allowed), [true, true, false]);
    assert!(!Verdict::Never.allowed());
}
