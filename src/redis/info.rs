//! The module's part of INFO.

use super::api::{OK, api};
use super::command::Command;
use super::guard;
use crate::stats::{self, CommandStats, Counter, KindStats};
use redis_module::raw;
use std::ffi::{CStr, c_int};
use std::sync::OnceLock;

/// The commands that INFO shows, as they were registered.
static COMMANDS: OnceLock<Vec<&'static Command>> = OnceLock::new();

fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.get().into_iter().flatten().copied()
}

/// Sees to it that INFO shows the counters of these commands, and of every kind.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx, shown: Vec<&'static Command>) {
    // Set once: a module whose load has come this far is never unloaded.
    drop(COMMANDS.set(shown));
    if let Some(register) = api!(RedisModule_RegisterInfoFunc) {
        // SAFETY: the caller's promise; the callback is a plain function.
        unsafe { register(ctx, Some(show)) };
    }
}

/// Room for the name of a kind: nine letters, and the end of a C string.
const MAX_NAME: usize = 10;

/// The server also asks when it has crashed, so nothing here allocates.
unsafe extern "C" fn show(ctx: *mut raw::RedisModuleInfoCtx, _crashed: c_int) {
    guard::callback((), || {
        let info = Info { ctx };
        if info.section(c"stats") {
            let of_commands = |field: fn(&CommandStats) -> &Counter| sum(commands().map(|row| field(row.stats)));
            let of_kinds = |field: fn(&KindStats) -> &Counter| sum(stats::of_kinds().map(|(_, stats)| field(stats)));
            info.field(c"calls", of_commands(|stats| &stats.calls));
            info.field(c"admitted", of_commands(|stats| &stats.admitted));
            info.field(c"denied", of_commands(|stats| &stats.denied));
            info.field(c"errors", of_commands(|stats| &stats.errors));
            info.field(c"keys_made", of_kinds(|stats| &stats.keys_made));
            info.field(c"effects_propagated", stats::EFFECTS_PROPAGATED.get());
            info.field(c"effects_applied", stats::EFFECTS_APPLIED.get());
        }
        if info.section(c"commands") {
            for Command { name, stats, .. } in commands() {
                let CommandStats { calls, admitted, denied, errors } = stats;
                info.dict(
                    name,
                    &[(c"calls", calls), (c"admitted", admitted), (c"denied", denied), (c"errors", errors)],
                );
            }
        }
        if info.section(c"kinds") {
            for (kind, KindStats { admitted, denied, keys_made }) in stats::of_kinds() {
                let mut name = [0; MAX_NAME];
                name.iter_mut().zip(kind.name().bytes()).for_each(|(to, letter)| *to = letter);
                let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
                info.dict(name, &[(c"admitted", admitted), (c"denied", denied), (c"keys_made", keys_made)]);
            }
        }
    });
}

fn sum<'a>(counters: impl Iterator<Item = &'a Counter>) -> u64 {
    counters.fold(0, |sum, counter| sum.saturating_add(counter.get()))
}

/// One INFO that is being answered. The server puts the module's name before every name of a section or a field.
struct Info {
    ctx: *mut raw::RedisModuleInfoCtx,
}

impl Info {
    /// Begins a section. `false` if it was not asked for.
    fn section(&self, name: &CStr) -> bool {
        // SAFETY: `ctx` is that of the current INFO; the server copies the name.
        api!(RedisModule_InfoAddSection).is_some_and(|add| unsafe { add(self.ctx, name.as_ptr()) } == OK)
    }

    fn field(&self, name: &CStr, value: u64) {
        if let Some(add) = api!(RedisModule_InfoAddFieldULongLong) {
            // SAFETY: likewise.
            unsafe { add(self.ctx, name.as_ptr(), value) };
        }
    }

    /// `name:one=1,other=2`
    fn dict(&self, name: &CStr, fields: &[(&CStr, &Counter)]) {
        if let (Some(begin), Some(end)) = (api!(RedisModule_InfoBeginDictField), api!(RedisModule_InfoEndDictField)) {
            // SAFETY: likewise.
            unsafe { begin(self.ctx, name.as_ptr()) };
            for (name, counter) in fields {
                self.field(name, counter.get());
            }
            // SAFETY: likewise.
            unsafe { end(self.ctx) };
        }
    }
}
