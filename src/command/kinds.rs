//! Every kind of usage that a key can hold.

use crate::redis::kind::KindRow;
use ratelimit_core::Kind;
use ratelimit_core::bucket::BucketUsage;
use ratelimit_core::fixed_window::WindowUsage;
use ratelimit_core::leases::LeasesUsage;
use ratelimit_core::log::LogUsage;
use ratelimit_core::sliding_window::SliderUsage;
use ratelimit_core::strict_window::StrictUsage;

/// A row a kind.
pub static KINDS: [KindRow; Kind::ALL.len()] = [
    KindRow::of::<BucketUsage>(),
    KindRow::of::<WindowUsage>(),
    KindRow::of::<SliderUsage>(),
    KindRow::of::<StrictUsage>(),
    KindRow::of::<LogUsage>(),
    KindRow::of::<LeasesUsage>(),
];
