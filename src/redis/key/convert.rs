//! Conversion of a plain key to a composite one.

use super::super::guard;
use super::open::Key;
use super::takeover::put;
use super::value::Writable;
use ratelimit_core::PlainUsage;
use ratelimit_core::Timestamp;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::expiry::Expiry;

impl<U: PlainUsage> Key<'_, '_, U> {
    /// Converts the key to a composite one and applies `change` to it; returns the result of `change`. The usage is
    /// moved, not copied, and only the change is propagated, so that the cost does not depend on the size of the usage.
    pub fn convert<T>(mut self, now: Timestamp, change: impl FnOnce(&mut CompositeUsage) -> T) -> T {
        let (plain_expiry, before) = (self.expires_at(now), self.before.take());
        let (mut composite, result) = CompositeUsage::convert(self.usage_mut(), plain_expiry, now, |composite| {
            let result = change(composite);
            before.check_conversion(composite, plain_expiry);
            guard::panic_test_point();
            result
        });
        let expires_at = Expiry::of(now, composite.reset(now)).after_charge(None, false);
        let (redis, index) = self.close();
        redis.effects.record_conversion::<U>(index, &mut composite, plain_expiry, expires_at);
        redis.propagate();
        put(redis, index, composite, expires_at, now);
        result
    }
}
