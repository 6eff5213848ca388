//! The server's clock.
//!
//! Where the server has it (7.2, Valkey 8), the instant at which the command began: TIME, scripts and key expiry see
//! the same one, frozen throughout a MULTI or a script. Older servers show no such instant to modules; there it is
//! the real-time clock that they read themselves, live at each call.

use super::api::api;
use ratelimit_core::Timestamp;

/// The instant of this call, on the server's clock. Read it once and pass it down.
pub fn now() -> Timestamp {
    let micros = match api!(RedisModule_CachedMicroseconds) {
        // SAFETY: it takes nothing and only reads the server's cached clock.
        Some(cached) => unsafe { cached() },
        None => read_clock(),
    };
    Timestamp::from_clock(micros)
}

/// The real-time clock, in microseconds since the epoch.
fn read_clock() -> i64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time` alone. It cannot fail: there is such a clock.
    unsafe { libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time) };
    // Less than a second, so that 32 bits will do, in which the division is shorter.
    let micros = u32::try_from(time.tv_nsec).unwrap_or(0) / 1000;
    time.tv_sec.saturating_mul(1_000_000).saturating_add(i64::from(micros))
}
