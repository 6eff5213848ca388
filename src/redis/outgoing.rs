//! Outgoing effects, to replicas and the AOF (see the core's `effect.rs` for the format).

use super::api::{OK, call};
use super::debug_round_trip::{RoundTripCheck, check_stored};
use super::effect_demand;
use crate::server::stats;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::EncodedText;
use ratelimit_core::wire::args::KeyIndex;
use ratelimit_core::{PlainUsage, Usage};
use redis_module::raw;
use smallvec::SmallVec;
use std::ffi::{c_char, c_int};

/// Command that propagates effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

/// Effects that a call has recorded and not propagated yet.
#[derive(Default)]
pub struct RecordedEffects {
    /// `true` if a key was changed without making an effect, as no consumer would receive it. The server must still
    /// count the change.
    uncounted_change: bool,
    /// Each effect with its key. Calls on one key propagate theirs at once and record none.
    recorded: SmallVec<[(KeyIndex, EncodedText); 8]>,
}

impl RecordedEffects {
    /// Records the last change of `usage`, in the key at `index`, which expires at `expires_at` after it. Debug builds
    /// check the change with `check`.
    #[inline(always)]
    pub fn record_change<U: Usage>(
        &mut self,
        index: KeyIndex,
        usage: &mut U,
        expires_at: u64,
        check: &RoundTripCheck<U>,
    ) {
        check.check_change(usage);
        if effect_demand::exists() {
            self.recorded.push((index, EncodedText::of_change(usage, expires_at)));
        } else {
            usage.discard_effect();
            self.uncounted_change = true;
        }
    }

    /// Records the conversion of the plain key at `index`, whose expiry was `plain_expiry`, to `components`, which expire
    /// at `expires_at`.
    pub fn record_conversion<U: PlainUsage>(
        &mut self,
        index: KeyIndex,
        components: &mut CompositeUsage,
        plain_expiry: Option<u64>,
        expires_at: u64,
    ) {
        if components.is_unused() {
            // Otherwise the next call would propagate this change once more.
            components.discard_effect();
            self.record_deletion::<U>(index);
        } else if effect_demand::exists() {
            self.recorded.push((index, EncodedText::of_conversion::<U, _>(plain_expiry, components, expires_at)));
        } else {
            components.discard_effect();
            self.uncounted_change = true;
        }
    }

    /// Records the whole `usage`, in the key at `index`, which expires at `expires_at`.
    pub fn record_whole<U: Usage>(&mut self, index: KeyIndex, usage: &U, expires_at: u64) {
        check_stored(usage);
        self.record(index, || EncodedText::of_whole(usage, expires_at));
    }

    /// Records the deletion of the key at `index`, which held a `U`.
    pub fn record_deletion<U: Usage>(&mut self, index: KeyIndex) {
        self.record(index, EncodedText::deletion::<U>);
    }

    fn record(&mut self, index: KeyIndex, text: impl FnOnce() -> EncodedText) {
        if effect_demand::exists() {
            self.recorded.push((index, text()));
        } else {
            self.uncounted_change = true;
        }
    }

    /// Propagates everything recorded to replicas and the AOF, as one command.
    ///
    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(always)]
    pub unsafe fn propagate(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        if std::mem::take(&mut self.uncounted_change) {
            // SAFETY: the caller guarantees that `ctx` is that of the current call.
            unsafe { count_change(ctx) };
        }
        if !self.recorded.is_empty() {
            // SAFETY: the caller guarantees that `ctx` and `argv` are those of the current call.
            unsafe { self.propagate_recorded(ctx, argv) };
        }
    }

    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(never)]
    unsafe fn propagate_recorded(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        let recorded = std::mem::take(&mut self.recorded);
        let keys = recorded.iter().filter_map(|(index, text)| Some((argv.get(index.0).copied()?, text.as_bytes())));
        let mut words = SmallVec::<[*mut raw::RedisModuleString; 16]>::new();
        // SAFETY: the caller guarantees that the context and the names are those of the current call. The server copies
        // what it is given; strings made here are freed here.
        let status = unsafe {
            for (name, text) in keys {
                words.push(name);
                words.push(call!(RedisModule_CreateString(ctx, text.as_ptr().cast(), text.len())));
            }
            let status =
                call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"v".as_ptr(), words.as_mut_ptr(), words.len()));
            for text in words.into_iter().skip(1).step_by(2) {
                call!(RedisModule_FreeString(ctx, text));
            }
            status
        };
        count_propagated(status);
    }
}

/// Propagates at once the last change of `usage`, in the key `name`, which expires at `expires_at` after it. Debug
/// builds check the change with `check`.
///
/// # Safety
/// `ctx` and `name` are those of the current call.
#[inline(always)]
pub unsafe fn propagate_change<U: Usage>(
    ctx: *mut raw::RedisModuleCtx,
    name: *mut raw::RedisModuleString,
    usage: &mut U,
    expires_at: u64,
    check: &RoundTripCheck<U>,
) {
    check.check_change(usage);
    // SAFETY: the caller guarantees that `ctx` and `name` are those of the current call.
    unsafe {
        if effect_demand::exists() {
            propagate_effect(ctx, name, &EncodedText::of_change(usage, expires_at));
        } else {
            usage.discard_effect();
            count_change(ctx);
        }
    }
}

/// # Safety
/// `ctx` and `name` are those of the current call.
#[inline(always)]
unsafe fn propagate_effect(ctx: *mut raw::RedisModuleCtx, name: *mut raw::RedisModuleString, text: &EncodedText) {
    let (start, length) = (text.as_bytes().as_ptr().cast::<c_char>(), text.as_bytes().len());
    // SAFETY: the caller guarantees that `ctx` and `name` are those of the current call; the server copies the text.
    let status = unsafe { call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"sb".as_ptr(), name, start, length)) };
    count_propagated(status);
}

/// Increases the server's count of changes, by which it decides when to save. Replicating the call does that; without a
/// consumer, nothing receives it.
///
/// # Safety
/// `ctx` is that of the current call.
#[inline(always)]
unsafe fn count_change(ctx: *mut raw::RedisModuleCtx) {
    // SAFETY: the caller guarantees that `ctx` is that of the current call.
    unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
}

fn count_propagated(status: c_int) {
    if status == OK && effect_demand::is_received() {
        stats::EFFECTS_PROPAGATED.count();
    }
}
