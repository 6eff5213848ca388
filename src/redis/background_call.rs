//! Calls of the module itself, from a timer: work on a key without a client.

use super::Redis;
use super::effect_demand;
use super::server_entry::{ServerEntry, with_name};
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::KeyIndex;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Counters of work that belongs to no client's call.
pub(super) static STATS: CommandStats = CommandStats::new();

/// Runs `run` on a key from a timer, like a call. Returns `true` if it completed without a panic.
pub fn run(entry: ServerEntry, db: c_int, name: &[u8], run: impl FnOnce(&mut Redis, KeyIndex)) -> bool {
    let as_a_call = |name| {
        let argv = [name];
        // SAFETY: the entry's own context; the string lives as long as it is used.
        let mut redis = unsafe { Redis::new(entry.ctx, &argv, &STATS) };
        // Without a client's call there is no command to replicate verbatim, which would count a change.
        effect_demand::with_effects(|| {
            let ran = catch_unwind(AssertUnwindSafe(|| {
                run(&mut redis, KeyIndex(0));
                redis.finish();
            }));
            if ran.is_err() {
                // After a panic, the changes made before it are still propagated.
                drop(catch_unwind(AssertUnwindSafe(|| redis.finish())));
            }
            ran.is_ok()
        })
    };
    // The closure catches panics, so it returns a result.
    with_name(entry, db, name, as_a_call).unwrap_or(false)
}
