//! Something done to a key that no client has called for.

use super::Redis;
use super::effect_demand;
use super::server_entry::{ServerEntry, with_name};
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::KeyName;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Counters of work that is not about one client's call.
pub(super) static STATS: CommandStats = CommandStats::new();

/// Runs something on a key from a timer, as a call would; whether it came to its end.
pub fn run(entry: ServerEntry, db: c_int, name: &[u8], run: impl FnOnce(&mut Redis, KeyName)) -> bool {
    let as_a_call = |name| {
        let argv = [name];
        // SAFETY: the entry's own context; the string lives as long as it is used.
        let mut redis = unsafe { Redis::new(entry.ctx, &argv, &STATS) };
        // Of a call that nobody made there are no words to count a change by.
        effect_demand::as_if_somebody_listened(|| {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                run(&mut redis, KeyName(0));
                redis.finish();
            }));
            if ran.is_err() {
                // When a call panics, too, what has been changed by then is propagated all the same.
                drop(catch_unwind(AssertUnwindSafe(|| redis.finish())));
            }
            ran.is_ok()
        })
    };
    // What is run does not panic.
    with_name(entry, db, name, as_a_call).unwrap_or(false)
}
