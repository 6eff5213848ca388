//! Server's clock.
//!
//! On Redis 7.2, Valkey 8 and later, it is the instant at which the command began: TIME, scripts and key expiry use the
//! same instant, which does not advance within a MULTI or a script. Older servers do not give modules this instant;
//! there it is the real-time clock, read at each call.

use super::api::api;
use ratelimit_core::Timestamp;

/// Returns the instant of this call on the server's clock. To be read once per call and passed on.
pub fn now() -> Timestamp {
    let micros = match api!(RedisModule_CachedMicroseconds) {
        // SAFETY: the function has no arguments and only reads the server's cached clock.
        Some(cached) => unsafe { cached() },
        None => read_clock(),
    };
    Timestamp::from_clock(micros)
}

/// Returns the real-time clock in microseconds since the epoch.
fn read_clock() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the function writes only to `time`. It cannot fail, as the clock exists.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // Less than a second, so it fits 32 bits, for which the division is faster.
    let micros = u32::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    time.tv_sec.saturating_mul(1_000_000).saturating_add(i64::from(micros))
}
