//! Effects from any bytes, one after another on one key of a kind: refused, or a state that a call could have made.

use crate::laws::assert_sound;
use ratelimit_core::Usage;
use ratelimit_core::algorithm::bucket::BucketUsage;
use ratelimit_core::algorithm::fixed_window::FixedWindowUsage;
use ratelimit_core::algorithm::leases::ConcurrencyUsage;
use ratelimit_core::algorithm::log::SlidingLogUsage;
use ratelimit_core::algorithm::sliding_window::SlidingWindowUsage;
use ratelimit_core::algorithm::strict_window::StrictWindowUsage;
use ratelimit_core::composite::PartsUsage;
use ratelimit_core::effect::Effect;
use ratelimit_core::expiry::LATEST_EXPIRY;

pub fn run(data: &[u8]) {
    check::<BucketUsage>(data);
    check::<FixedWindowUsage>(data);
    check::<SlidingWindowUsage>(data);
    check::<StrictWindowUsage>(data);
    check::<SlidingLogUsage>(data);
    check::<ConcurrencyUsage>(data);
    check::<PartsUsage>(data);
}

fn check<U: Usage>(data: &[u8]) {
    let mut usage = U::default();
    for text in data.split(|byte| *byte == b'\n') {
        let Some(Effect::Change { version, expires_at, mut fields }) = Effect::read::<U>(text) else { continue };
        assert!((1..=LATEST_EXPIRY).contains(&expires_at), "no key without an expiry");
        let mut unread = fields;
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
