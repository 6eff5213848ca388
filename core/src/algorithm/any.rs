//! Enums over the limits and usages of all algorithms.

use crate::algorithms;
use crate::limit::sealed::Sealed;
use crate::limit::{Identity, Limit, Usage};
use crate::number::Amount;
use crate::usage_kind::UsageKind;
use std::borrow::{Borrow, BorrowMut};
use std::fmt;

/// Types that store a usage in [`AnyUsage`], named by the words in the list of algorithms.
#[allow(non_camel_case_types, reason = "words of the list of algorithms")]
mod storage {
    /// Stored inline.
    pub type inline<Usage> = Usage;
    /// Stored in a heap block.
    pub type boxed<Usage> = Box<Usage>;
}

/// Returns the size of the heap block of a usage type, or 0 if its [storage] is inline.
macro_rules! boxed_size {
    (inline $usage:ty) => {
        0
    };
    (boxed $usage:ty) => {
        size_of::<$usage>()
    };
}

/// Takes a boxed usage out of its heap block; returns an inline usage unchanged.
macro_rules! unbox {
    (inline $usage:ident) => {
        $usage
    };
    (boxed $usage:ident) => {
        *$usage
    };
}

macro_rules! any {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+) => {
        /// Limit of any algorithm. [`Display`](fmt::Display) prints the words of its spec. Use
        /// [`with_limit!`](crate::with_limit) to call its methods.
        #[derive(Clone, Copy, Debug)]
        pub enum AnyLimit {
            $($(#[doc = $doc])+ $kind($limit),)+
        }

        /// Usage of any algorithm, with a label of any type. Use [`with_usage!`](crate::with_usage) to call its
        /// methods. A label of up to seven bytes with an alignment of one takes no extra memory.
        #[derive(Clone, Debug)]
        pub enum AnyUsage<Label = ()> {
            $($(#[doc = $doc])+ $kind(storage::$storage<$usage>, Label),)+
        }

        impl AnyLimit {
            /// Returns the kind of usage that the limit charges.
            #[must_use]
            pub fn kind(&self) -> UsageKind {
                match self {
                    $(AnyLimit::$kind(_) => UsageKind::$kind,)+
                }
            }

            /// Returns the maximum usage.
            #[must_use]
            pub fn limit(&self) -> Amount {
                match self {
                    $(AnyLimit::$kind(limit) => limit.limit(),)+
                }
            }

            /// Returns `true` if the usage grows with the calls.
            #[must_use]
            pub fn grows(&self) -> bool {
                match self {
                    $(AnyLimit::$kind(_) => <$usage as Usage>::GROWS,)+
                }
            }

            fn limited_to(self, amount: Amount) -> AnyLimit {
                match self {
                    $(AnyLimit::$kind(limit) => AnyLimit::$kind(limit.limited_to(amount)),)+
                }
            }

            /// Returns the identity that stands for the limit if it has no name.
            #[must_use]
            pub fn identity(&self) -> Identity {
                match self {
                    $(AnyLimit::$kind(limit) => limit.identity(),)+
                }
            }
        }

        impl fmt::Display for AnyLimit {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(AnyLimit::$kind(limit) => limit.fmt(f),)+
                }
            }
        }

        impl AnyUsage {
            /// Creates an unused usage of a kind. Returns `None` for composite keys.
            #[must_use]
            pub fn unused(kind: UsageKind) -> Option<AnyUsage> {
                match kind {
                    $(UsageKind::$kind => Some(<$usage>::default().into_any()),)+
                    UsageKind::Limits => None,
                }
            }

            /// Adds a label to the usage.
            #[must_use]
            pub fn with_label<Label>(self, label: Label) -> AnyUsage<Label> {
                match self {
                    $(AnyUsage::$kind(usage, ()) => AnyUsage::$kind(usage, label),)+
                }
            }
        }

        impl<Label> AnyUsage<Label> {
            /// Returns the kind of the usage.
            #[must_use]
            #[inline(always)]
            pub fn kind(&self) -> UsageKind {
                match self {
                    $(AnyUsage::$kind(..) => UsageKind::$kind,)+
                }
            }

            /// Returns the label.
            #[must_use]
            #[inline(always)]
            pub fn label(&self) -> &Label {
                match self {
                    $(AnyUsage::$kind(_, label) => label,)+
                }
            }

            /// Returns the label for modification.
            #[inline(always)]
            pub fn label_mut(&mut self) -> &mut Label {
                match self {
                    $(AnyUsage::$kind(_, label) => label,)+
                }
            }

            /// Returns the size of the heap block that stores the usage, or zero if it is inline.
            pub(crate) fn boxed_size(&self) -> usize {
                match self {
                    $(AnyUsage::$kind(..) => boxed_size!($storage $usage),)+
                }
            }
        }

        $(
            impl Sealed for $usage {}

            const _: () = assert!(matches!(<$usage as Usage>::KIND, UsageKind::$kind));

            impl PlainUsage for $usage {
                fn into_any(self) -> AnyUsage {
                    AnyUsage::$kind(self.into(), ())
                }

                #[inline(always)]
                fn from_any(any: AnyUsage) -> Option<$usage> {
                    if let AnyUsage::$kind(usage, ()) = any { Some(unbox!($storage usage)) } else { None }
                }

                #[inline(always)]
                fn of<Label>(any: &AnyUsage<Label>) -> Option<&$usage> {
                    if let AnyUsage::$kind(usage, _) = any { Some(usage.borrow()) } else { None }
                }

                #[inline(always)]
                fn of_mut<Label>(any: &mut AnyUsage<Label>) -> Option<&mut $usage> {
                    if let AnyUsage::$kind(usage, _) = any { Some(usage.borrow_mut()) } else { None }
                }
            }
        )+
    };
}
algorithms!(any, {});

impl AnyLimit {
    /// Returns this limit lowered by the amount of `KEEP`.
    #[must_use]
    pub fn lowered_by(self, keep: Amount) -> AnyLimit {
        self.limited_to(self.limit().minus(keep))
    }

    /// Returns this limit raised by the amount of `KEEP`, which reverts [`lowered_by`](AnyLimit::lowered_by).
    #[must_use]
    pub fn raised_by(self, keep: Amount) -> AnyLimit {
        self.limited_to(self.limit().plus(keep))
    }

    /// Returns this limit with its amounts multiplied by `factor` and rounded down. A refill is at least one millionth.
    #[must_use]
    pub fn scaled(self, factor: Amount) -> AnyLimit {
        match self {
            AnyLimit::Bucket(bucket) => AnyLimit::Bucket(bucket.scaled(factor)),
            AnyLimit::Sketch(sketch) => AnyLimit::Sketch(sketch.scaled(factor)),
            other => other.limited_to(other.limit().times(factor)),
        }
    }

    /// Returns `true` if the time of recovery depends on a rate that [`scaled`](AnyLimit::scaled) changes. Then usage
    /// recovers more slowly after a scale above 1 has ended.
    #[must_use]
    pub fn recovers_by_rate(&self) -> bool {
        matches!(self, AnyLimit::Bucket(_) | AnyLimit::Sketch(_))
    }

    /// Returns this limit with precomputed values, for limits that serve many calls.
    #[must_use]
    pub fn prepared(self) -> AnyLimit {
        match self {
            AnyLimit::Bucket(bucket) => AnyLimit::Bucket(bucket.prepared()),
            AnyLimit::Sketch(sketch) => AnyLimit::Sketch(sketch.prepared()),
            other => other,
        }
    }
}

/// Usage that a plain key can hold, and that can be a component of a composite key.
pub trait PlainUsage: Usage {
    /// Converts the usage to [`AnyUsage`].
    fn into_any(self) -> AnyUsage;

    /// Takes the usage out of `any`. Returns `None` if it is of another kind.
    fn from_any(any: AnyUsage) -> Option<Self>;

    /// Returns the usage in `any`, or `None` if it is of another kind.
    fn of<Label>(any: &AnyUsage<Label>) -> Option<&Self>;

    /// Returns the usage in `any` for modification, or `None` if it is of another kind.
    fn of_mut<Label>(any: &mut AnyUsage<Label>) -> Option<&mut Self>;
}

/// Runs `$body` with `$limit` bound to the limit in the [`Spec`](crate::syntax::Spec) `$spec`, as its concrete type. A
/// concurrency limit or a sketch is bound as the limit of the spec's holder or item.
#[macro_export]
macro_rules! with_limit {
    (
        {@of $spec:expr, $limit:ident => $body:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+
    ) => {
        match &$spec.limit {
            $($crate::AnyLimit::$kind(limit) => $crate::with_limit!(@$selector limit, $spec, $limit => $body),)+
        }
    };
    (@anyone $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = $any;
        $body
    }};
    (@holder $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = &$any.for_holder($spec.holder_or_item).with_nx($spec.nx).with_token($spec.fence);
        $body
    }};
    (@item $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = &$any.for_item($spec.holder_or_item);
        $body
    }};
    ($spec:expr, $limit:ident => $body:expr) => {
        $crate::algorithms!($crate::with_limit, {@of $spec, $limit => $body})
    };
}

/// Runs `$body` with `$usage` bound to the usage in the [`AnyUsage`] `$any`, as a reference to its concrete type:
/// a mutable one for `mut $usage`.
#[macro_export]
macro_rules! with_usage {
    (
        {@of $any:expr, $trait:ident $borrow:ident, $bound:ident => $body:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+
    ) => {
        match $any {
            $($crate::AnyUsage::$kind(storage, _) => {
                let $bound = ::std::borrow::$trait::<$usage>::$borrow(storage);
                $body
            })+
        }
    };
    ($any:expr, mut $usage:ident => $body:expr) => {
        $crate::algorithms!($crate::with_usage, {@of $any, BorrowMut borrow_mut, $usage => $body})
    };
    ($any:expr, $usage:ident => $body:expr) => {
        $crate::algorithms!($crate::with_usage, {@of $any, Borrow borrow, $usage => $body})
    };
}

/// Runs `$body` with `$plain` as the usage type of the [`UsageKind`] `$kind`, or runs `$composite` for the kind of
/// composite keys.
#[macro_export]
macro_rules! with_usage_type {
    (
        {@of $usage_kind:expr, $plain:ident => $body:expr, $composite:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+
    ) => {
        match $usage_kind {
            $($crate::UsageKind::$kind => {
                type $plain = $usage;
                $body
            })+
            $crate::UsageKind::Limits => $composite,
        }
    };
    ($kind:expr, $plain:ident => $body:expr, $composite:expr) => {
        $crate::algorithms!($crate::with_usage_type, {@of $kind, $plain => $body, $composite})
    };
}

pub use {with_limit, with_usage, with_usage_type};
