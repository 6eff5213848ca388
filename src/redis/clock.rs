//! The server's clock.
//!
//! Where the server has it (7.2, Valkey 8), the instant at which the command began: TIME, scripts and key expiry see
//! the same one, frozen throughout a MULTI or a script. Older servers show no such instant to modules; there it is
//! the real-time clock that they read themselves, live at each call.

use super::api::api;
use ratelimit_core::Timestamp;
use std::time::{SystemTime, UNIX_EPOCH};

/// The instant of this call, on the server's clock. Read it once and pass it down.
pub fn now() -> Timestamp {
    let micros = match api!(RedisModule_CachedMicroseconds) {
        // SAFETY: it takes nothing and only reads the server's cached clock.
        Some(cached) => unsafe { cached() },
        None => match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(_before) => 0,
        },
    };
    Timestamp::from_clock(micros)
}
