//! All kinds of usage that a key can hold.

use crate::redis::kind_row::KindRow;
use ratelimit_core::Kind;
use ratelimit_core::composite::CompositeUsage;

macro_rules! rows {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+) => {
        [$(KindRow::of_plain::<$usage>(),)+ KindRow::of::<CompositeUsage>()]
    };
}

/// Operations of each kind of usage.
pub static KINDS: [KindRow; Kind::ALL.len()] = ratelimit_core::algorithms!(rows, {});
