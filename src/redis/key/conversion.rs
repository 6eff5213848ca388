//! A plain key that becomes one with parts.

use super::super::{Redis, guard};
use super::Key;
use ratelimit_core::Timestamp;
use ratelimit_core::args::KeyName;
use ratelimit_core::composite::{PartsUsage, Single};
use ratelimit_core::expiry::Expiry;
use std::marker::PhantomData;

/// What becomes of a plain key, to be put into its place ([`Redis::convert`]): nobody is to look at the key before.
pub struct Converted<U> {
    parts: PartsUsage,
    /// When the plain key expired, if it did.
    plain_expiry: Option<u64>,
    plain: PhantomData<U>,
}

impl<U: Single> Key<'_, '_, U> {
    /// What becomes of it as a key with parts, after a change; and what the change has to tell. What the key held is
    /// moved, however large it is.
    pub fn converted<T>(mut self, now: Timestamp, change: impl FnOnce(&mut PartsUsage) -> T) -> (Converted<U>, T) {
        let (plain_expiry, before) = (self.expires_at(now), self.before.take());
        let (parts, told) = PartsUsage::convert(self.usage_mut(), plain_expiry, now, |parts| {
            let told = change(parts);
            before.check_conversion(parts, plain_expiry);
            guard::point();
            told
        });
        (Converted { parts, plain_expiry, plain: PhantomData }, told)
    }
}

impl Redis<'_> {
    /// Puts what a plain key has become into its place. What is propagated is what has changed, which is no more of a
    /// large key than of a small one.
    pub fn convert<U: Single>(&mut self, name: KeyName, converted: Converted<U>, now: Timestamp) {
        let Converted { mut parts, plain_expiry, .. } = converted;
        let expires_at = Expiry::of(now, parts.reset(now)).after_charge(None, false);
        self.changes.conversion::<U>(name, &mut parts, plain_expiry, expires_at);
        self.propagate();
        self.put(name, parts, expires_at, now);
    }
}
