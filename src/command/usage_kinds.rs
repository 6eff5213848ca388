//! All kinds of usage that a key can hold.

use crate::redis::kind_operations::KindOperations;
use ratelimit_core::UsageKind;
use ratelimit_core::composite::CompositeUsage;

macro_rules! rows {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+) => {
        [$(KindOperations::of_plain::<$usage>(),)+ KindOperations::of::<CompositeUsage>()]
    };
}

/// Operations of each kind of usage.
pub static KINDS: [KindOperations; UsageKind::ALL.len()] = ratelimit_core::algorithms!(rows, {});
