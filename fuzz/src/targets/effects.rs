//! Effects from any bytes, one after another on one key of a kind: refused, or a state that a call could have made.

use crate::effect::Effect;
use crate::laws::assert_sound;
use crate::limiter::Usage;
use crate::limiter::bucket::BucketUsage;
use crate::limiter::expiry::LATEST_EXPIRY;
use crate::limiter::fixed_window::WindowUsage;
use crate::limiter::leases::LeasesUsage;
use crate::limiter::log::LogUsage;
use crate::limiter::sliding_window::SliderUsage;
use crate::limiter::strict_window::StrictUsage;

pub fn run(data: &[u8]) {
    check::<BucketUsage>(data);
    check::<WindowUsage>(data);
    check::<SliderUsage>(data);
    check::<StrictUsage>(data);
    check::<LogUsage>(data);
    check::<LeasesUsage>(data);
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
