//! A limit of any algorithm, and a usage of any.

use crate::algorithms;
use crate::kind::Kind;
use crate::limit::{Identity, Limit, Usage};
use crate::number::Amount;
use std::borrow::{Borrow, BorrowMut};
use std::fmt;

/// How a usage is held among others, by the word that the list of algorithms says.
#[allow(non_camel_case_types, reason = "words of the list of algorithms")]
mod held {
    /// As it is.
    pub type inline<Usage> = Usage;
    /// In a block of its own.
    pub type boxed<Usage> = Box<Usage>;
}

/// How many bytes a usage takes beside the place where it is held among others.
macro_rules! boxed_size {
    (inline $usage:ty) => {
        0
    };
    (boxed $usage:ty) => {
        size_of::<$usage>()
    };
}

macro_rules! any {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+) => {
        /// A limit of any algorithm; it displays as the words that it is read from.
        /// [`with_limit!`](crate::with_limit) is how to call it.
        #[derive(Clone, Copy, Debug)]
        pub enum AnyLimit {
            $($(#[doc = $doc])+ $kind($limit),)+
        }

        /// A usage of any algorithm. [`with_usage!`](crate::with_usage) is how to call it. With each stands what its
        /// holder keeps beside it: up to seven bytes that are aligned to one fit where the tag leaves room.
        #[derive(Clone, Debug)]
        pub enum AnyUsage<Label = ()> {
            $($(#[doc = $doc])+ $kind(held::$held<$usage>, Label),)+
        }

        impl AnyLimit {
            /// The kind of usage that it is charged to.
            #[must_use]
            pub fn kind(&self) -> Kind {
                match self {
                    $(AnyLimit::$kind(_) => Kind::$kind,)+
                }
            }

            /// How much may be used at once.
            #[must_use]
            pub fn limit(&self) -> Amount {
                match self {
                    $(AnyLimit::$kind(limit) => limit.limit(),)+
                }
            }

            /// Whether its usage grows with the calls.
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

            /// This limit times `factor`, its refill too: rounded down as arguments are, a refill not below a millionth.
            #[must_use]
            pub fn scaled(self, factor: Amount) -> AnyLimit {
                match self {
                    $(AnyLimit::$kind(limit) => AnyLimit::$kind(limit.scaled(factor)),)+
                }
            }

            /// Whether what is used of it recovers more slowly once a scale above 1 has ended.
            #[must_use]
            pub fn recovers_by_rate(&self) -> bool {
                match self {
                    $(AnyLimit::$kind(_) => <$limit>::RECOVERS_BY_RATE,)+
                }
            }

            /// What it is known by without a name, among those of its kind.
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
            /// Never seen, of a kind. `None` of a kind that is made of others.
            #[must_use]
            pub fn unused(kind: Kind) -> Option<AnyUsage> {
                match kind {
                    $(Kind::$kind => Some(<$usage>::default().into_any()),)+
                    Kind::Limits => None,
                }
            }

            /// This usage with what its holder keeps beside it.
            #[must_use]
            pub fn with<Label>(self, label: Label) -> AnyUsage<Label> {
                match self {
                    $(AnyUsage::$kind(usage, ()) => AnyUsage::$kind(usage, label),)+
                }
            }
        }

        impl<Label> AnyUsage<Label> {
            /// Its kind.
            #[must_use]
            #[inline(always)]
            pub fn kind(&self) -> Kind {
                match self {
                    $(AnyUsage::$kind(..) => Kind::$kind,)+
                }
            }

            /// What its holder keeps beside it.
            #[must_use]
            #[inline(always)]
            pub fn label(&self) -> &Label {
                match self {
                    $(AnyUsage::$kind(_, label) => label,)+
                }
            }

            /// What its holder keeps beside it, to change that.
            #[inline(always)]
            pub fn label_mut(&mut self) -> &mut Label {
                match self {
                    $(AnyUsage::$kind(_, label) => label,)+
                }
            }

            /// How many bytes it takes beside itself, but for what its usage says of that.
            pub(crate) fn boxed_size(&self) -> usize {
                match self {
                    $(AnyUsage::$kind(..) => boxed_size!($held $usage),)+
                }
            }
        }

        $(
            const _: () = assert!(matches!(<$usage as Usage>::KIND, Kind::$kind));

            impl Single for $usage {
                fn into_any(self) -> AnyUsage {
                    AnyUsage::$kind(self.into(), ())
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
    /// This limit, lower by what a call keeps for others.
    #[must_use]
    pub fn lowered_by(self, kept: Amount) -> AnyLimit {
        self.limited_to(self.limit().minus(kept))
    }

    /// This limit, higher by `kept`: the whole limit of a call that keeps as much for others.
    #[must_use]
    pub fn raised_by(self, kept: Amount) -> AnyLimit {
        self.limited_to(self.limit().plus(kept))
    }

    /// This limit with what its calls would work out each time, for one that many calls bring.
    #[must_use]
    pub fn prepared(self) -> AnyLimit {
        match self {
            AnyLimit::Bucket(bucket) => AnyLimit::Bucket(bucket.prepared()),
            AnyLimit::Sketch(sketch) => AnyLimit::Sketch(sketch.prepared()),
            other => other,
        }
    }
}

/// A usage that a plain key remembers by itself, and that can be a component of a key with several.
pub trait Single: Usage {
    /// The usage as one of any kind.
    fn into_any(self) -> AnyUsage;

    /// The usage in `any` if it is of this kind; `None` if it is of another.
    fn of<Label>(any: &AnyUsage<Label>) -> Option<&Self>;

    /// The usage in `any`, to change it, if it is of this kind; `None` if it is of another.
    fn of_mut<Label>(any: &mut AnyUsage<Label>) -> Option<&mut Self>;
}

/// Runs `$body` with `$limit` bound to the algorithm's own type, as the [`Spec`](crate::syntax::Spec) `$spec` asks it.
#[macro_export]
macro_rules! with_limit {
    (
        {@of $spec:expr, $limit:ident => $body:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+
    ) => {
        match &$spec.limit {
            $($crate::AnyLimit::$kind(limit) => $crate::with_limit!(@$who limit, $spec, $limit => $body),)+
        }
    };
    (@anyone $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = $any;
        $body
    }};
    (@holder $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = &$any.asked_by($spec.holder).nx($spec.nx).fenced($spec.fence);
        $body
    }};
    (@item $any:ident, $spec:expr, $limit:ident => $body:expr) => {{
        let $limit = &$any.of_item($spec.holder);
        $body
    }};
    ($spec:expr, $limit:ident => $body:expr) => {
        $crate::algorithms!($crate::with_limit, {@of $spec, $limit => $body})
    };
}

/// Runs `$body` with `$usage` bound to what `$any` refers to, of its own type; with `mut`, to change it.
#[macro_export]
macro_rules! with_usage {
    (
        {@of $any:expr, $trait:ident $borrow:ident, $bound:ident => $body:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+
    ) => {
        match $any {
            $($crate::AnyUsage::$kind(held, _) => {
                let $bound = ::std::borrow::$trait::<$usage>::$borrow(held);
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

/// Runs `$body` with `$plain` as the type of a kind's usage; of the kind that is made of others, `$composite`.
#[macro_export]
macro_rules! with_usage_type {
    (
        {@of $of:expr, $plain:ident => $body:expr, $composite:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $type:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+
    ) => {
        match $of {
            $($crate::Kind::$kind => {
                type $plain = $usage;
                $body
            })+
            $crate::Kind::Limits => $composite,
        }
    };
    ($kind:expr, $plain:ident => $body:expr, $composite:expr) => {
        $crate::algorithms!($crate::with_usage_type, {@of $kind, $plain => $body, $composite})
    };
}

pub use {with_limit, with_usage, with_usage_type};
