//! Every kind of usage that a key can hold.

use crate::redis::kind::KindRow;
use ratelimit_core::Kind;
use ratelimit_core::bucket::BucketUsage;
use ratelimit_core::composite::PartsUsage;
use ratelimit_core::fixed_window::FixedWindowUsage;
use ratelimit_core::leases::ConcurrencyUsage;
use ratelimit_core::log::SlidingLogUsage;
use ratelimit_core::sliding_window::SlidingWindowUsage;
use ratelimit_core::strict_window::StrictWindowUsage;

/// A row a kind.
pub static KINDS: [KindRow; Kind::ALL.len()] = [
    KindRow::of_plain::<BucketUsage>(),
    KindRow::of_plain::<FixedWindowUsage>(),
    KindRow::of_plain::<SlidingWindowUsage>(),
    KindRow::of_plain::<StrictWindowUsage>(),
    KindRow::of_plain::<SlidingLogUsage>(),
    KindRow::of_plain::<ConcurrencyUsage>(),
    KindRow::of::<PartsUsage>(),
];
