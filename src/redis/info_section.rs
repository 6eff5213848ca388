//! INFO sections of the module.

use super::api::{OK, api};
use super::command::Command;
use super::server_entry::module_state;
use super::{guard, now};
use crate::reply;
use crate::server::ModuleState;
use crate::server::stats::{self, CommandStats, Counter, KindStats};
use crate::version;
use ratelimit_core::Span;
use redis_module::raw;
use std::ffi::{CStr, CString, c_int};
use std::sync::OnceLock;

/// Commands that INFO shows.
static COMMANDS: OnceLock<Vec<&'static Command>> = OnceLock::new();

fn commands() -> impl Iterator<Item = &'static Command> {
    COMMANDS.get().into_iter().flatten().copied()
}

/// Registers the INFO sections with the counters of these commands and of every kind.
///
/// # Safety
/// `ctx` is that of the module's load.
pub unsafe fn register(ctx: *mut raw::RedisModuleCtx, commands: Vec<&'static Command>) {
    // Set once, because the module is never unloaded after this step of the load.
    drop(COMMANDS.set(commands));
    if let Some(register) = api!(RedisModule_RegisterInfoFunc) {
        // SAFETY: the caller guarantees that `ctx` is that of the module's load; the callback is a plain function.
        unsafe { register(ctx, Some(show)) };
    }
}

/// Size of the name of a kind as a C string: nine characters and the terminator.
const KIND_NAME_SIZE: usize = 10;

guard::entry_point! {
    /// Adds the sections. The server also calls this function for a crash report, in which nothing may be allocated:
    /// the report omits queues and policies.
    unsafe fn show(ctx: *mut raw::RedisModuleInfoCtx, crashed: c_int) {
        let info = Info { ctx };
        if info.section(c"module") {
            info.constant(c"version", version::TEXT);
        }
        if info.section(c"stats") {
            let sum_of_commands = |field: fn(&CommandStats) -> &Counter| sum(commands().map(|row| field(row.stats)));
            let sum_of_kinds =
                |field: fn(&KindStats) -> &Counter| sum(stats::all_kinds().map(|(_, stats)| field(stats)));
            info.field(c"calls", sum_of_commands(|stats| &stats.calls));
            info.field(c"admitted", sum_of_commands(|stats| &stats.admitted));
            info.field(c"denied", sum_of_commands(|stats| &stats.denied));
            info.field(c"errors", sum_of_commands(|stats| &stats.errors));
            info.field(c"keys_made", sum_of_kinds(|stats| &stats.keys_created));
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
            for (kind, KindStats { admitted, denied, keys_created }) in stats::all_kinds() {
                let mut name = [0; KIND_NAME_SIZE];
                name.iter_mut().zip(kind.name().bytes()).for_each(|(byte, letter)| *byte = letter);
                let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
                info.dict(name, &[(c"admitted", admitted), (c"denied", denied), (c"keys_made", keys_created)]);
            }
        }
        if crashed != 0 {
            return;
        }
        // SAFETY: the server answers INFO with its lock held, if it has not crashed.
        let state = unsafe { module_state() };
        if info.section(c"waiting") {
            info.waiting(state);
        }
        if info.section(c"policies") {
            info.policies(state);
        }
    }
}

/// Escapes a name for INFO and monitoring: bytes that could be parsed as syntax are percent-encoded, as in a URL.
fn escaped(name: &[u8]) -> String {
    let mut text = String::new();
    for byte in name {
        if byte.is_ascii_alphanumeric() || b"_-.:/@".contains(byte) {
            text.push(char::from(*byte));
        } else {
            text.extend([format!("%{byte:02X}")]);
        }
    }
    text
}

fn count(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

fn sum<'a>(counters: impl Iterator<Item = &'a Counter>) -> u64 {
    counters.fold(0, |sum, counter| sum.saturating_add(counter.get()))
}

/// Reply to an INFO command. The server puts the module's name before every name of a section or a field.
struct Info {
    ctx: *mut raw::RedisModuleInfoCtx,
}

impl Info {
    /// Begins a section. Returns `false` if it was not requested.
    fn section(&self, name: &CStr) -> bool {
        // SAFETY: `ctx` is that of the current INFO; the server copies the name.
        api!(RedisModule_InfoAddSection).is_some_and(|add| unsafe { add(self.ctx, name.as_ptr()) } == OK)
    }

    fn field(&self, name: &CStr, value: u64) {
        if let Some(add) = api!(RedisModule_InfoAddFieldULongLong) {
            // SAFETY: `ctx` is that of the current INFO; the server copies the name.
            unsafe { add(self.ctx, name.as_ptr(), value) };
        }
    }

    fn constant(&self, name: &CStr, value: &CStr) {
        if let Some(add) = api!(RedisModule_InfoAddFieldCString) {
            // SAFETY: `ctx` is that of the current INFO; the server copies the name and the value.
            unsafe { add(self.ctx, name.as_ptr(), value.as_ptr()) };
        }
    }

    fn text(&self, name: &CStr, value: &str) {
        if let Ok(value) = CString::new(value) {
            self.constant(name, &value);
        }
    }

    /// Adds the number of calls that wait for leases, the outcomes of waits, and the queues with the longest waits.
    fn waiting(&self, state: &ModuleState) {
        const MAX_SHOWN: usize = 16;
        let millis = |span: Span| span.ceil_millis();
        let queues = state.queues.longest_waiting(MAX_SHOWN, now());
        let (clients, keys) = state.queues.counts();
        self.field(c"blocked_clients", count(clients));
        self.field(c"blocked_keys", count(keys));
        self.field(c"longest_blocked_ms", queues.first().map_or(0, |queue| millis(queue.longest_wait)));
        self.field(c"served", state.queues.served.get());
        self.field(c"timed_out", state.queues.timed_out.get());
        self.field(c"looks", state.queues.evaluations.get());
        self.field(c"busiest_turn", state.queues.max_work.get());
        for (position, queue) in queues.into_iter().enumerate() {
            let Ok(field) = CString::new(format!("blocked_{position}")) else { continue };
            self.dict_of(&field, || {
                self.text(c"key", &escaped(&queue.key.name));
                self.field(c"db", u64::try_from(queue.key.db).unwrap_or(0));
                self.field(c"waiting", count(queue.waiter_count));
                self.field(c"longest_ms", millis(queue.longest_wait));
            });
        }
    }

    /// Adds the number of policies, the comparison with other nodes, and the counts of the most used policies.
    fn policies(&self, state: &ModuleState) {
        const MAX_SHOWN: usize = 100;
        let (policies, digest, refused, shown) = state
            .policies
            .with(|table| (table.len(), table.digest(), table.stamps_refused(), table.busiest(MAX_SHOWN, now())));
        self.field(c"policies", count(policies));
        self.text(c"policies_digest", &format!("{digest:016x}"));
        self.field(
            c"policy_peers_differ",
            count(state.peers.with(|gossip, now| gossip.differing_peer_count(digest, now))),
        );
        self.field(c"policy_stamps_refused", refused);
        self.field(c"policies_shown", count(shown.len()));
        for (position, policy) in shown.into_iter().enumerate() {
            let Ok(field) = CString::new(format!("policy_{position}")) else { continue };
            self.dict_of(&field, || {
                self.text(c"name", &escaped(&policy.name));
                self.field(c"version", policy.version);
                self.text(c"scale", &policy.scale.to_string());
                self.text(c"scale_ms", &reply::scale_ms(&policy).to_string());
                for (count, value) in policy.counts.all() {
                    if let Ok(count) = CString::new(count) {
                        self.field(&count, value);
                    }
                }
            });
        }
    }

    /// Adds a field of the form `name:one=1,other=2`.
    fn dict(&self, name: &CStr, fields: &[(&CStr, &Counter)]) {
        self.dict_of(name, || {
            for (name, counter) in fields {
                self.field(name, counter.get());
            }
        });
    }

    /// Adds a dictionary. `add` adds its fields.
    fn dict_of(&self, name: &CStr, add: impl FnOnce()) {
        if let (Some(begin), Some(end)) = (api!(RedisModule_InfoBeginDictField), api!(RedisModule_InfoEndDictField)) {
            // SAFETY: `ctx` is that of the current INFO; the server copies the name.
            unsafe { begin(self.ctx, name.as_ptr()) };
            add();
            // SAFETY: `ctx` is that of the current INFO.
            unsafe { end(self.ctx) };
        }
    }
}
