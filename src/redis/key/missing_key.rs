//! A key that is not there, opened for a call that has done nothing else yet: the first call on a key.

use super::super::api::call;
use super::super::current_call::is_out_of_memory;
use super::super::debug_readback::Readback;
use super::super::effect_demand;
use super::handle::Handle;
use super::plain::{FastCall, announce_taken};
use ratelimit_core::expiry::Expiry;
use ratelimit_core::wire::args::KeyName;
use ratelimit_core::{Timestamp, Usage};
use redis_module::raw;

/// An open key that is missing, in a call of which nobody wants to hear more than its event.
pub struct MissingKey<'c, 'a> {
    call: &'c FastCall<'a>,
    name: KeyName,
    string: *mut raw::RedisModuleString,
    handle: Handle,
}

impl<'a> FastCall<'a> {
    /// The key that was opened and left to the slow path, if it is missing. `None`: the call takes the slow path.
    #[inline(always)]
    pub fn missing_key(&self) -> Option<MissingKey<'_, 'a>> {
        let (name, handle) = self.left_open.take()?;
        let key = MissingKey { call: self, name, string: self.string(name)?, handle };
        // If it has expired just now, other modules were told, and one of them may have had somebody begin to listen.
        if !key.handle.is_missing() || effect_demand::any() {
            key.leave();
            return None;
        }
        Some(key)
    }
}

impl MissingKey<'_, '_> {
    /// Whether the server has no memory for it.
    #[inline(always)]
    pub fn out_of_memory(&self) -> bool {
        // SAFETY: `ctx` is that of the current call.
        unsafe { is_out_of_memory(self.call.context()) }
    }

    /// Leaves the key to the slow path.
    #[cold]
    pub fn leave(self) {
        self.call.left_open.set(Some((self.name, self.handle)));
    }

    /// Makes the key, which remembers something used, and sees to all that this entails, as the slow path does
    /// (`Key::commit`).
    #[inline(always)]
    pub fn make<U: Usage>(self, mut usage: U, expiry: Expiry, now: Timestamp) {
        Readback::of(&U::default()).check_change(&usage);
        usage.forget_effect();
        let (ctx, string) = (self.call.context(), self.string);
        // Nobody listens; the server counts a change by it (see `Changes::propagate`).
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplicateVerbatim(ctx)) };
        drop(self.handle.make_key(ctx, string, usage, expiry.after_charge(None, false), now));
        // SAFETY: `ctx` and the string are those of the current call. No handle is open any more.
        unsafe { announce_taken(ctx, string) };
    }
}
