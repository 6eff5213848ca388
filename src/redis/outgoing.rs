//! Effects on their way out, to replicas and the AOF (the core's `effect.rs` says what they are).

use super::api::{OK, call};
use super::debug_readback::{Readback, check_stored};
use super::effect_demand;
use crate::server::stats;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::Text;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Single, Usage};
use redis_module::raw;

/// The command that carries effects.
pub const COMMAND: &std::ffi::CStr = c"RL.EFFECT";

/// What a call has changed and has not propagated to replicas and the AOF yet.
#[derive(Default)]
pub struct Changes {
    /// The effects, and on which keys. Most calls have one, which needs no list.
    first: Option<Outgoing>,
    rest: Vec<Outgoing>,
    /// Whether a key was written that nobody can want to know of.
    unsent: bool,
}

struct Outgoing {
    name: KeyName,
    text: Text,
}

impl Changes {
    /// Adds the last call on `usage`, in the key of that name, which expires at `expires_at`. Before the call it was
    /// `before`.
    #[inline(always)]
    pub fn change<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: u64, before: &Readback<U>) {
        before.check_change(usage);
        if effect_demand::any() {
            self.add_change(name, usage, expires_at);
        } else {
            usage.forget_effect();
            self.unsent = true;
        }
    }

    #[inline(never)]
    fn add_change<U: Usage>(&mut self, name: KeyName, usage: &mut U, expires_at: u64) {
        self.add(Outgoing { name, text: Text::of_change(usage, expires_at) });
    }

    /// Adds the call that has made `components` of what a plain key of that name remembered, which expired at
    /// `plain_expiry`.
    pub fn conversion<U: Single>(
        &mut self,
        name: KeyName,
        components: &mut CompositeUsage,
        plain_expiry: Option<u64>,
        expires_at: u64,
    ) {
        if components.is_unused() {
            // What the call has changed is no part of another.
            components.forget_effect();
            self.deletion::<U>(name);
        } else if effect_demand::any() {
            self.add(Outgoing { name, text: Text::of_conversion::<U, _>(plain_expiry, components, expires_at) });
        } else {
            components.forget_effect();
            self.unsent = true;
        }
    }

    /// Adds the whole of `usage`, in the key of that name, which expires at `expires_at`.
    pub fn whole<U: Usage>(&mut self, name: KeyName, usage: &U, expires_at: u64) {
        check_stored(usage);
        if effect_demand::any() {
            self.add(Outgoing { name, text: Text::of_whole(usage, expires_at) });
        } else {
            self.unsent = true;
        }
    }

    /// Adds a call that has emptied the key of that name, which held a `U`.
    pub fn deletion<U: Usage>(&mut self, name: KeyName) {
        if effect_demand::any() {
            self.add(Outgoing { name, text: Text::deletion::<U>() });
        } else {
            self.unsent = true;
        }
    }

    fn add(&mut self, effect: Outgoing) {
        if self.first.is_none() {
            self.first = Some(effect);
        } else {
            self.rest.push(effect);
        }
    }
}

impl Changes {
    /// Propagates to replicas and the AOF what was added, as one command; after that there is nothing.
    ///
    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(always)]
    pub unsafe fn propagate(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        if std::mem::take(&mut self.unsent) {
            // Nobody listens, so this goes nowhere; but the server counts a change, by which it knows when to save.
            // SAFETY: the caller's promise.
            unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
        }
        if self.first.is_some() {
            // SAFETY: the caller's promise.
            unsafe { self.propagate_effects(ctx, argv) };
        }
    }

    /// # Safety
    /// `ctx` and `argv` are those of the current call.
    #[inline(never)]
    unsafe fn propagate_effects(&mut self, ctx: *mut raw::RedisModuleCtx, argv: &[*mut raw::RedisModuleString]) {
        let string = |name: KeyName| argv.get(name.0).copied();
        let Some(Outgoing { name, text }) = &self.first else { return };
        let mut handed_over = false;
        // SAFETY: the caller's promise: the context and the keys' names are those of the current call. The server
        // copies what it is given; strings made here are freed here.
        unsafe {
            if self.rest.is_empty() {
                let (start, length) = (text.as_bytes().as_ptr().cast::<std::ffi::c_char>(), text.as_bytes().len());
                if let Some(name) = string(*name) {
                    let words = c"sb".as_ptr();
                    let told = call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), words, name, start, length));
                    handed_over = told == OK;
                }
            } else {
                let mut words = Vec::new();
                for Outgoing { name, text } in self.first.iter().chain(&self.rest) {
                    let Some(name) = string(*name) else { continue };
                    let text = text.as_bytes();
                    words.push(name);
                    words.push(call!(RedisModule_CreateString(ctx, text.as_ptr().cast(), text.len())));
                }
                let (start, length) = (words.as_mut_ptr(), words.len());
                let told = call!(RedisModule_Replicate(ctx, COMMAND.as_ptr(), c"v".as_ptr(), start, length));
                handed_over = told == OK;
                for text in words.into_iter().skip(1).step_by(2) {
                    call!(RedisModule_FreeString(ctx, text));
                }
                self.rest.clear();
            }
        }
        self.first = None;
        if handed_over && effect_demand::hear() {
            stats::EFFECTS_PROPAGATED.count();
        }
    }
}
