//! The list of algorithms: a line each, from which whatever goes over all of them is made.
//!
//! A line says, in this order:
//!
//! * the kind, and its name as a type of the server: nine characters of `A-Za-z0-9-_`, never to change;
//! * the limit that a call brings, and who asks for it: `anyone`, a `holder` of leases, or for an `item` of a sketch;
//! * the usage that a key remembers, and how it is held among others in one key: a large one is `boxed`, so that one of
//!   another kind is not as large;
//! * the words that begin a spec of it, each with the function of [`Spec`](crate::syntax::Spec) that reads what
//!   follows.
//!   An algorithm that is an option of another has none.
//!
//! A new line stands last: the place of a kind in the list is stored.

/// Calls the macro that is named, with the list of algorithms behind whatever else it is to be told.
///
/// ```
/// macro_rules! names {
///     ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+) => {
///         [$($name),+]
///     };
/// }
/// assert_eq!(ratelimit_core::algorithms!(names, {}).first(), Some(&"rl-bucket"));
/// ```
#[macro_export]
macro_rules! algorithms {
    ($($callback:ident)::+, {$($told:tt)*}) => {
        $($callback)::+! {
            {$($told)*}
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

macro_rules! kinds {
    ({} $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $who:ident, $usage:ty: $held:ident, $words:tt;)+) => {
        /// The kinds of usage: the type that a key shows in TYPE.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind {
            $($(#[doc = $doc])+ $kind,)+
            /// Several limits on one key, ids, a ban.
            Limits,
        }

        impl Kind {
            /// Every kind.
            pub const ALL: [Kind; [$($name),+].len() + 1] = [$(Kind::$kind,)+ Kind::Limits];

            /// Whether a usage of this kind is alone in its key: it cannot be a component of several.
            #[must_use]
            pub fn stands_alone(self) -> bool {
                self == Kind::Sketch
            }

            /// Its place among them.
            #[must_use]
            #[allow(clippy::as_conversions, reason = "of a variant without fields, its number")]
            pub const fn index(self) -> usize {
                self as usize
            }

            /// Its name as a type of the server.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Kind::$kind => $name,)+
                    Kind::Limits => "rl-limits",
                }
            }
        }
    };
}
algorithms!(kinds, {});
