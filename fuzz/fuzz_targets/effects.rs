//! Effects from any bytes, one after another on one key of a kind: refused, or a state that a call could have made.

#![no_main]

use libfuzzer_sys::fuzz_target;
use redis_ratelimit_fuzz::assert_sound;
use redis_ratelimit_fuzz::effect::{Effect, LATEST_EXPIRY};
use redis_ratelimit_fuzz::limiter::Usage;
use redis_ratelimit_fuzz::limiter::bucket::BucketUsage;
use redis_ratelimit_fuzz::limiter::fixed_window::WindowUsage;
use redis_ratelimit_fuzz::limiter::leases::LeasesUsage;
use redis_ratelimit_fuzz::limiter::log::LogUsage;
use redis_ratelimit_fuzz::limiter::sliding_window::SliderUsage;
use redis_ratelimit_fuzz::limiter::strict_window::StrictUsage;

fuzz_target!(|data: &[u8]| {
    check::<BucketUsage>(data);
    check::<WindowUsage>(data);
    check::<SliderUsage>(data);
    check::<StrictUsage>(data);
    check::<LogUsage>(data);
    check::<LeasesUsage>(data);
});

fn check<U: Usage>(data: &[u8]) {
    let mut usage = U::default();
    for text in data.split(|byte| *byte == b'\n') {
        let Some(Effect::Change { version, expires_at, mut fields }) = Effect::read::<U>(text) else { continue };
        assert!((1..=LATEST_EXPIRY).contains(&expires_at), "no key without an expiry");
        let mut unread = fields.clone();
        if !usage.accepts_effect(&mut unread, version) || !unread.end() {
            continue;
        }
        usage.apply_effect(&mut fields, version);
        if usage.is_unused() {
            usage = U::default(); // the key is deleted
        } else {
            assert_sound(&usage);
        }
    }
}
