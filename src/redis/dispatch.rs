//! Entry point of a command: reads its words, runs its handler, and sends the reply.

use super::Redis;
use super::api::{OK, api, call};
use super::command::Access;
use super::guard::{bytes, panic_test_point_after_reply, strings};
use crate::reply::{HeavyRow, Reply, Row};
use crate::server::stats::CommandStats;
use ratelimit_core::wire::args::{Args, Words};
use ratelimit_core::wire::error::Error;
use redis_module::{Context, raw};
use redis_module_macros::RedisValue;
use std::ffi::{CString, c_int, c_long};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Properties of a command that its calls need.
#[derive(Clone, Copy)]
pub struct CommandProperties {
    /// Number of words, including the command's name; negative for a lower bound.
    pub arity: c_int,
    /// Access of a call to its keys, if the server has to ask each call for them.
    pub getkeys_access: Option<Access>,
    /// Counters of the calls.
    pub stats: &'static CommandStats,
}

/// Runs a command: calls `handler` with its words and sends the reply.
///
/// Inlined into each command, so that the compiler optimizes parsing, decision and reply together.
///
/// # Safety
/// `ctx`, `argv` and `length` are those with which the server has called the command.
#[inline(always)]
pub unsafe fn enter(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    length: c_int,
    CommandProperties { arity, getkeys_access, stats }: CommandProperties,
    handler: impl for<'a> FnOnce(&mut Redis<'a>, Args<'a>) -> Result<Reply, Error>,
) -> c_int {
    // SAFETY: the caller guarantees that the words live as long as this call.
    let argv = unsafe { strings(argv, length) };
    let words = Strings(argv);
    // SAFETY: the caller guarantees that `ctx` and `argv` are those of this call.
    let mut redis = unsafe { Redis::new(ctx, argv, stats) };
    if let Some(access) = getkeys_access
        && redis.is_key_position_request()
    {
        answer_keys(&redis, Args::new(&words), access);
        return OK;
    }
    let answer = catch_unwind(AssertUnwindSafe(|| {
        // Redis 6.2 does not check the arity of a module's commands.
        let is_arity_wrong = length < arity.saturating_abs() || (arity > 0 && length > arity);
        let answer = if is_arity_wrong { Err(Error::WrongArity) } else { handler(&mut redis, Args::new(&words)) };
        redis.finish();
        answer
    }));
    stats.calls.count();
    match answer {
        // Outside of `catch_unwind`: a panic from here on must not reply again. The caller's entry point catches it.
        Ok(Ok(reply)) => {
            Replies { ctx: redis.ctx }.reply(reply);
            panic_test_point_after_reply();
        }
        Ok(Err(error)) => reject(&redis, &error),
        Err(_) => {
            finish_after_panic(&mut redis);
            reject(&redis, &Error::Internal);
        }
    }
    OK
}

/// Sends an error, and counts it.
#[cold]
#[inline(never)]
fn reject(redis: &Redis, error: &Error) {
    Replies { ctx: redis.ctx }.error(error);
    redis.stats.errors.count();
}

/// Propagates and announces what a call had changed before it panicked. A second attempt continues after the action or
/// the event at which the first one panicked.
#[cold]
#[inline(never)]
fn finish_after_panic(redis: &mut Redis) {
    let mut finish = || catch_unwind(AssertUnwindSafe(|| redis.finish()));
    drop(finish().or_else(|_| finish()));
}

/// Reports which arguments of a call with numbered keys are keys. Errors are ignored, as no client waits for a reply.
fn answer_keys(redis: &Redis, mut args: Args, access: Access) {
    let flags = access.key_flags().cast_signed();
    for index in args.numbered_keys().into_iter().flatten() {
        let position = c_int::try_from(index.0).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call, which asks for keys.
        unsafe {
            match api!(RedisModule_KeyAtPosWithFlags) {
                // Without flags, a user would need write permission for a call that only reads.
                Some(answer) => answer(redis.ctx, position, flags),
                None => call!(RedisModule_KeyAtPos(redis.ctx, position)),
            }
        }
    }
}

/// Words of a call, as the server's strings, which live and are not changed for `'a`.
struct Strings<'a>(&'a [*mut raw::RedisModuleString]);

impl Words for Strings<'_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn word(&self, index: usize) -> Option<&[u8]> {
        // SAFETY: the strings live, unchanged, for `'a`.
        self.0.get(index).map(|string| unsafe { bytes(*string) })
    }
}

/// Sink for the reply to a call.
#[derive(Clone, Copy)]
pub struct Replies {
    /// Context of the current call.
    pub(super) ctx: *mut raw::RedisModuleCtx,
}

impl Replies {
    /// Sends a reply, or an error.
    pub fn send(self, reply: Result<Reply, Error>) {
        match reply {
            Ok(reply) => self.reply(reply),
            Err(error) => self.error(&error),
        }
    }

    /// Sends a reply.
    pub fn reply(self, reply: Reply) {
        match reply {
            Reply::Row(ref row) => self.reply_row(row),
            Reply::Rows(integers, rows) => {
                self.reply_array(3);
                for value in integers {
                    self.reply_integer(value);
                }
                self.reply_array(rows.len());
                for row in &rows {
                    self.reply_row(row);
                }
            }
            Reply::Integer(value) => self.reply_integer(value),
            Reply::Bytes(bytes) => self.reply_bytes(&bytes),
            Reply::Array(replies) => {
                self.reply_array(replies.len());
                for reply in replies {
                    self.reply(reply);
                }
            }
            Reply::Heaviest(rows) => {
                let rows: Vec<Vec<Field>> = rows.into_iter().map(fields).collect();
                Context::new(self.ctx).reply(Ok(rows.into()));
            }
            Reply::Map(pairs) => {
                self.reply_map(pairs.len());
                for (name, reply) in pairs {
                    self.reply_bytes(name.as_bytes());
                    self.reply(reply);
                }
            }
            // SAFETY: `ctx` is that of the current call.
            Reply::Null => unsafe {
                call!(RedisModule_ReplyWithNull(self.ctx));
            },
            // SAFETY: `ctx` is that of the current call; the text is a constant.
            Reply::Ok => unsafe {
                call!(RedisModule_ReplyWithSimpleString(self.ctx, c"OK".as_ptr()));
            },
            Reply::Later => {}
        }
    }

    #[inline(always)]
    fn reply_row(self, row: &Row) {
        self.reply_array(row.integers().len());
        for value in row.integers() {
            self.reply_integer(*value);
        }
    }

    #[inline(always)]
    fn reply_array(self, length: usize) {
        let length = c_long::try_from(length).unwrap_or(0);
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithArray(self.ctx, length)) };
    }

    #[inline(always)]
    fn reply_integer(self, value: i64) {
        // SAFETY: `ctx` is that of the current call.
        unsafe { call!(RedisModule_ReplyWithLongLong(self.ctx, value)) };
    }

    fn reply_bytes(self, value: &[u8]) {
        // SAFETY: `ctx` is that of the current call; the server copies the bytes.
        unsafe { call!(RedisModule_ReplyWithStringBuffer(self.ctx, value.as_ptr().cast(), value.len())) };
    }

    /// Begins a reply of `length` pairs: a map in RESP3, a flat array in RESP2.
    ///
    /// On Redis 6.2, a flat array in RESP3 too, as a module cannot reply a map there. It could pass on the reply of
    /// another command or a script (`RedisModule_ReplyWithCallReply`), but both run for a client of RESP2. A module
    /// cannot ask for the protocol of its own client either.
    fn reply_map(self, length: usize) {
        match api!(RedisModule_ReplyWithMap) {
            Some(reply) => {
                let length = c_long::try_from(length).unwrap_or(0);
                // SAFETY: `ctx` is that of the current call.
                unsafe { reply(self.ctx, length) };
            }
            None => self.reply_array(length.saturating_mul(2)),
        }
    }

    /// Sends an error.
    pub fn error(self, error: &Error) {
        if *error == Error::WrongArity {
            // SAFETY: `ctx` is that of the current call.
            unsafe { call!(RedisModule_WrongArity(self.ctx)) };
            return;
        }
        // No error text has a NUL in it: unexpected words are escaped.
        let text = CString::new(error.to_string()).unwrap_or_default();
        // SAFETY: `ctx` is that of the current call, and the server copies the text.
        unsafe { call!(RedisModule_ReplyWithError(self.ctx, text.as_ptr())) };
    }
}

/// Field of a row of RL.TOP, which the SDK sends.
#[derive(RedisValue)]
enum Field {
    Integer(i64),
    Bytes(Vec<u8>),
    Null(()),
}

fn fields(row: HeavyRow) -> Vec<Field> {
    let names = row.names.map(|name| name.map_or(Field::Null(()), Field::Bytes));
    [Field::Bytes(row.key)].into_iter().chain(row.counts.map(Field::Integer)).chain(names).collect()
}

#[cfg(test)]
mod tests {
    use redis_module::RedisValue::{self as Value, OrderedMap};
    use redis_module::redisvalue::RedisValueKey;
    use redis_module_macros::RedisValue;

    /// RL.INFO and RL.POLICYGET begin with the most important fields, so their maps are not derived.
    #[test]
    fn derived_map_is_sorted_by_name() {
        #[derive(RedisValue)]
        struct Policy {
            version: i64,
            set_at: i64,
        }
        let OrderedMap(map) = Value::from(Policy { version: 1, set_at: 2 }) else { unreachable!() };
        let names: Vec<_> = map.into_keys().collect();
        assert_eq!(names, ["set_at", "version"].map(RedisValueKey::from));
    }
}
