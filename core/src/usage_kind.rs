//! List of algorithms, from which all code that dispatches over them is generated.
//!
//! Each line contains, in this order:
//!
//! * the kind and its name as a type of the server: nine characters of `A-Za-z0-9-_`, which never change;
//! * the limit in a call, and for whom the limit is evaluated: `anyone` (any caller), `holder` (a holder of leases) or
//!   `item` (an item of a sketch);
//! * the usage at a key, and its storage in [`AnyUsage`](crate::AnyUsage): `boxed` for a large one, so that it does not
//!   enlarge the others;
//! * the words that begin its spec, each with the function of [`Spec`](crate::syntax::Spec) that parses the words after
//!   it. An algorithm that is an option of another has none.
//!
//! A new line must come last, because the index of a kind is stored.

/// Calls the given macro with the given tokens, followed by the list of algorithms.
///
/// ```
/// macro_rules! names {
///     ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+) => {
///         [$($name),+]
///     };
/// }
/// assert_eq!(ratelimit_core::algorithms!(names, {}).first(), Some(&"rl-bucket"));
/// ```
#[macro_export]
macro_rules! algorithms {
    ($($callback:ident)::+, {$($arguments:tt)*}) => {
        $($callback)::+! {
            {$($arguments)*}
            /// Token bucket, leaky bucket and GCRA.
            Bucket = "rl-bucket", $crate::algorithm::bucket::Bucket: anyone,
                $crate::algorithm::bucket::BucketUsage: inline, [TOKENBUCKET token_bucket, LEAKYBUCKET leaky_bucket];
            /// Fixed window.
            FixedWindow = "rl-window", $crate::algorithm::fixed_window::FixedWindow: anyone,
                $crate::algorithm::fixed_window::FixedWindowUsage: inline, [FIXED fixed_window];
            /// Sliding-window counter.
            SlidingWindow = "rl-slider", $crate::algorithm::sliding_window::SlidingWindow: anyone,
                $crate::algorithm::sliding_window::SlidingWindowUsage: boxed, [SLIDING sliding_window];
            /// Strict sliding window.
            StrictWindow = "rl-strict", $crate::algorithm::strict_window::StrictWindow: anyone,
                $crate::algorithm::strict_window::StrictWindowUsage: boxed, [];
            /// Sliding log.
            SlidingLog = "rl-reqlog", $crate::algorithm::log::SlidingLog: anyone,
                $crate::algorithm::log::SlidingLogUsage: boxed, [SLIDINGLOG sliding_log];
            /// Concurrency leases.
            Concurrency = "rl-leases", $crate::algorithm::leases::Concurrency: holder,
                $crate::algorithm::leases::ConcurrencyUsage: boxed, [CONCURRENCY concurrency];
            /// Sketch of token buckets by item.
            Sketch = "rl-sketch", $crate::algorithm::count_min::Sketch: item,
                $crate::algorithm::count_min::SketchUsage: boxed, [SKETCH sketch];
        }
    };
}

macro_rules! usage_kinds {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+) => {
        /// Kind of usage: the type of a key, as in the reply of TYPE.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum UsageKind {
            $($(#[doc = $doc])+ $kind,)+
            /// Composite key: several limits, idempotency keys and a ban.
            Limits,
        }

        impl UsageKind {
            /// All kinds.
            pub const ALL: [UsageKind; [$($name),+].len() + 1] = [$(UsageKind::$kind,)+ UsageKind::Limits];

            /// Returns `true` if a usage of this kind cannot be a component of a composite key.
            #[must_use]
            pub fn stands_alone(self) -> bool {
                self == UsageKind::Sketch
            }

            /// Returns the index of the kind in [`ALL`](UsageKind::ALL).
            #[must_use]
            #[allow(clippy::as_conversions, reason = "discriminant of a variant without fields")]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Returns the name of the kind as a type of the server.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(UsageKind::$kind => $name,)+
                    UsageKind::Limits => "rl-limits",
                }
            }
        }
    };
}
algorithms!(usage_kinds, {});
