//! Limiter in memory, for tests.

mod clock;
mod key;
mod store;

use std::sync::{Arc, Mutex, PoisonError};

use ratelimit_core::Timestamp;
use redis::aio::ConnectionLike;
use redis::{Arg, Cmd, Pipeline, RedisFuture, RedisResult, Value};

pub use clock::ManualClock;
use store::Store;

/// Keys in this process, which take the place of a connection. Commands have the replies of the server, but sketches,
/// policies and bans are an [`Error::Call`](crate::Error::Call). Clones share the keys.
#[derive(Clone, Default)]
pub struct Memory {
    store: Arc<Mutex<Store>>,
    clock: Option<ManualClock>,
}

impl Memory {
    /// Creates an empty memory with the real clock.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty memory with a clock that the test moves.
    pub fn with_clock(clock: &ManualClock) -> Self {
        Self { clock: Some(clock.clone()), ..Self::default() }
    }

    fn reply(&self, command: &Cmd) -> RedisResult<Value> {
        let words: Vec<&[u8]> = command
            .args_iter()
            .map(|word| match word {
                Arg::Simple(word) => word,
                _ => b"",
            })
            .collect();
        let now = self.clock.as_ref().map_or_else(clock::real_micros, ManualClock::micros);
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        match store.reply(&words, Timestamp::from_clock(now)) {
            Ok(value) => Ok(value),
            Err(text) => redis::parse_redis_value(format!("-{text}\r\n").as_bytes())?.extract_error(),
        }
    }
}

impl ConnectionLike for Memory {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.reply(command) })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        commands: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(
            async move { commands.cmd_iter().skip(offset).take(count).map(|command| self.reply(command)).collect() },
        )
    }

    fn get_db(&self) -> i64 {
        0
    }
}

#[cfg(test)]
mod tests;
