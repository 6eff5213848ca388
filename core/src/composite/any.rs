//! A usage of any kind that a part can be.

use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::fixed_window::FixedWindowUsage;
use crate::algorithm::leases::ConcurrencyUsage;
use crate::algorithm::log::SlidingLogUsage;
use crate::algorithm::sliding_window::SlidingWindowUsage;
use crate::algorithm::strict_window::StrictWindowUsage;
use crate::limit::{Kind, Usage};

/// Lists the kinds that a part can be of, and how each is held: the large ones in a box, so that a part of another kind
/// is not as large as they are.
macro_rules! kinds_of_parts {
    ($($kind:ident($usage:ty) in $held:ty, $put:expr;)+) => {
        /// A usage of any kind.
        #[derive(Clone, Debug)]
        pub enum AnyUsage {
            $(#[doc = concat!("A [`", stringify!($usage), "`].")] $kind($held),)+
        }

        $(impl Single for $usage {
            fn into_any(self) -> AnyUsage {
                AnyUsage::$kind($put(self))
            }

            fn of(any: &AnyUsage) -> Option<&$usage> {
                if let AnyUsage::$kind(usage) = any { Some(usage) } else { None }
            }

            fn of_mut(any: &mut AnyUsage) -> Option<&mut $usage> {
                if let AnyUsage::$kind(usage) = any { Some(usage) } else { None }
            }
        })+

        impl AnyUsage {
            /// Its kind.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(AnyUsage::$kind(_) => Kind::$kind,)+
                }
            }

            /// Never seen, of a kind. `None` of a kind that is made of others.
            #[must_use]
            pub fn unused(kind: Kind) -> Option<AnyUsage> {
                match kind {
                    $(Kind::$kind => Some(<$usage>::default().into_any()),)+
                    Kind::Limits => None,
                }
            }
        }
    };
}

kinds_of_parts! {
    Bucket(BucketUsage) in BucketUsage, std::convert::identity;
    FixedWindow(FixedWindowUsage) in FixedWindowUsage, std::convert::identity;
    SlidingWindow(SlidingWindowUsage) in SlidingWindowUsage, std::convert::identity;
    StrictWindow(StrictWindowUsage) in Box<StrictWindowUsage>, Box::new;
    SlidingLog(SlidingLogUsage) in Box<SlidingLogUsage>, Box::new;
    Concurrency(ConcurrencyUsage) in Box<ConcurrencyUsage>, Box::new;
}

/// A usage that a plain key remembers by itself, and that can be a part of a key with several.
pub trait Single: Usage {
    /// Of any kind.
    fn into_any(self) -> AnyUsage;

    /// Of its own kind; `None` if it is of another.
    fn of(any: &AnyUsage) -> Option<&Self>;

    /// The same, to change it.
    fn of_mut(any: &mut AnyUsage) -> Option<&mut Self>;
}

/// Runs `$body` with `$usage` bound to the usage that `$any` refers to, of its own type; with `as_mut`, to change it.
macro_rules! with_usage {
    ($any:expr, $usage:ident => $body:expr) => {
        $crate::composite::any::with_usage!($any, as_ref, $usage => $body)
    };
    ($any:expr, $unboxed:ident, $usage:ident => $body:expr) => {
        match $any {
            $crate::composite::AnyUsage::Bucket($usage) => $body,
            $crate::composite::AnyUsage::FixedWindow($usage) => $body,
            $crate::composite::AnyUsage::SlidingWindow($usage) => $body,
            $crate::composite::AnyUsage::StrictWindow(boxed) => {
                let $usage = boxed.$unboxed();
                $body
            }
            $crate::composite::AnyUsage::SlidingLog(boxed) => {
                let $usage = boxed.$unboxed();
                $body
            }
            $crate::composite::AnyUsage::Concurrency(boxed) => {
                let $usage = boxed.$unboxed();
                $body
            }
        }
    };
}
pub(super) use with_usage;
