//! Every kind of usage that a key can hold.

use crate::redis::kind::KindRow;
use ratelimit_core::Kind;
use ratelimit_core::bucket::BucketUsage;
use ratelimit_core::fixed_window::FixedWindowUsage;
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::log::SlidingLogUsage;
use ratelimit_core::parts::PartsUsage;
use ratelimit_core::sliding_window::SlidingWindowUsage;
use ratelimit_core::strict_window::StrictWindowUsage;

/// A row a kind.
pub static KINDS: [KindRow; Kind::ALL.len()] = [
    KindRow::of::<BucketUsage>(),
    KindRow::of::<FixedWindowUsage>(),
    KindRow::of::<SlidingWindowUsage>(),
    KindRow::of::<StrictWindowUsage>(),
    KindRow::of::<SlidingLogUsage>(),
    KindRow::of::<ConcurrencyUsage>(),
    KindRow::of::<PartsUsage>(),
];
