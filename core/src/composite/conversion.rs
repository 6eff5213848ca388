//! A plain key that becomes one with components: what it remembered becomes a component, and a call changes that.
//!
//! What is propagated of it is the change alone, however much the plain key remembered: a replica has the same, and
//! makes the same component of it. So a conversion costs as much as the change, and what the key remembered is moved.

use super::component_head::TAGGED_CHANGE;
use super::{Component, CompositeUsage};
use crate::algorithm::any::Single;
use crate::effect::{Effect, Text};
use crate::expiry::LATEST_EXPIRY;
use crate::limit::{Recovery, Usage};
use crate::number::{Span, Timestamp};
use crate::readable::{self, Unreadable};
use crate::wire::codec::Decoder;
use crate::wire::codec::Discard;
use std::thread::panicking;

/// The serial number of the component that a plain key's usage becomes.
const SERIAL: u8 = 0;

impl CompositeUsage {
    /// Makes a component of what a plain key remembers, which expires at `expires_at` (in milliseconds since the
    /// epoch), as of `now`, and has `change` change it. What is left in `plain` is nothing; should the change panic, it
    /// is given back.
    pub fn convert<U: Single, T>(
        plain: &mut U,
        expires_at: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage) -> T,
    ) -> (CompositeUsage, T) {
        let components = CompositeUsage::of_plain(std::mem::take(plain), expires_at, now);
        let mut moved = Moved { from: plain, components };
        let told = change(&mut moved.components);
        (std::mem::take(&mut moved.components), told)
    }

    /// What a plain key remembered, as of `now`: if the clock has gone back, it has moved along.
    ///
    /// Its expiry has not: whether that was set before the clock went back, or since, by whoever brought the key here
    /// (MIGRATE, RESTORE), nobody knows. So the component may go later than it has to, by up to as much as the clock
    /// went back, and never sooner.
    pub(super) fn of_plain<U: Single>(mut usage: U, expires_at: Option<u64>, now: Timestamp) -> CompositeUsage {
        let moved = usage.is_after(now);
        if moved {
            usage.move_back(now);
            // It moves back as the key is converted, which is an effect by itself: no part of the next.
            usage.encode_effect(&mut Discard);
        }
        if usage.is_unused() {
            return CompositeUsage::default();
        }
        let recovers_at = recovers_at(&usage, moved, expires_at, now);
        CompositeUsage::of_one(usage, recovers_at, now)
    }

    fn of_one<U: Single>(usage: U, recovers_at: Timestamp, written: Timestamp) -> CompositeUsage {
        let component = Component::new(SERIAL, usage.into_any(), recovers_at);
        CompositeUsage { components: [component].into(), written, extras: None }
    }

    /// Takes back what a plain key remembered, as it is now.
    fn take_plain<U: Single>(&mut self) -> U {
        let mut components = self.components.iter_mut();
        let plain = components.find(|component| component.serial() == SERIAL);
        let plain = plain.and_then(|component| U::of_mut(&mut component.usage));
        plain.map(std::mem::take).unwrap_or_default()
    }

    /// Whether a call can have converted a plain key that remembers this, and expires at `plain_expiry`, by such a
    /// change.
    pub fn accepts_conversion<U: Single>(
        plain: &U,
        plain_expiry: Option<u64>,
        from: &mut impl Decoder,
        version: u32,
    ) -> bool {
        !U::KIND.stands_alone()
            && (1..=CompositeUsage::VERSION).contains(&version)
            && CompositeUsage::accepts_change_of(plain, plain_expiry, from).is_some()
    }

    fn accepts_change_of<U: Single>(plain: &U, plain_expiry: Option<u64>, from: &mut impl Decoder) -> Option<()> {
        let now = decode_head(from)?;
        let mut moved = None;
        if plain.is_after(now) {
            // Rare, and a copy is what shows where all would be.
            moved.insert(plain.clone()).move_back(now);
        }
        let usage = moved.as_ref().unwrap_or(plain);
        if usage.is_unused() {
            return CompositeUsage::default().accepts_conversion_at(now, None::<&U>, from);
        }
        // What it remembers may be large, and need not be copied to be looked at.
        let recovers_at = recovers_at(usage, moved.is_some(), plain_expiry, now);
        CompositeUsage::of_one(U::default(), recovers_at, now).accepts_conversion_at(now, Some(usage), from)
    }

    /// Makes the conversion that was accepted, of what a plain key remembers.
    pub fn apply_conversion<U: Single>(
        plain: &mut U,
        plain_expiry: Option<u64>,
        from: &mut impl Decoder,
    ) -> CompositeUsage {
        let now = decode_head(from).unwrap_or_default();
        CompositeUsage::convert(plain, plain_expiry, now, |components| components.change_at(now, from)).0
    }

    /// Whether the effect of a conversion, which has made `after` of what a plain key remembered `before`, does the
    /// same where it is applied.
    ///
    /// # Errors
    /// The effect.
    pub fn propagated_conversion<U: Single>(
        before: &U,
        effect: &Text,
        after: &CompositeUsage,
    ) -> Result<(), Unreadable> {
        let refused = || Unreadable::because("a conversion is refused", effect);
        let Some(Effect::Conversion { version, plain_expiry, fields, .. }) = Effect::read::<U>(effect.as_bytes())
        else {
            return Err(refused());
        };
        let (mut checked, mut applied, mut plain) = (fields, fields, before.clone());
        if !CompositeUsage::accepts_conversion(before, plain_expiry, &mut checked, version) || !checked.end() {
            return Err(refused());
        }
        let elsewhere = CompositeUsage::apply_conversion(&mut plain, plain_expiry, &mut applied);
        readable::alike(&elsewhere, after, effect)
    }
}

/// When a plain key's usage will have recovered, by when the key expires; it may have `moved` back with the clock.
fn recovers_at<U: Single>(usage: &U, moved: bool, expires_at: Option<u64>, now: Timestamp) -> Timestamp {
    let expires_at = expires_at.filter(|at| *at <= LATEST_EXPIRY);
    let left = expires_at
        .map_or(Span::MAX_ARGUMENT, |at| Span::from_micros(at.saturating_sub(now.floor_millis()).saturating_mul(1000)));
    // Of what knows by itself when it recovers, the step may have made that later still.
    let is_told = moved && usage.recovery() == Recovery::IsTold;
    let left = if is_told { left.max(usage.time_to_recovery(now)) } else { left };
    now.plus(left).min(Timestamp::MAX)
}

/// Reads the beginning of the change of a conversion, and returns when it was made.
fn decode_head(from: &mut impl Decoder) -> Option<Timestamp> {
    from.integer().filter(|tag| *tag == TAGGED_CHANGE)?;
    Timestamp::from_micros(from.integer()?)
}

/// A plain key's usage that was made a component. A change that panics gives it back to the key.
struct Moved<'k, U: Single> {
    from: &'k mut U,
    components: CompositeUsage,
}

impl<U: Single> Drop for Moved<'_, U> {
    fn drop(&mut self) {
        if panicking() {
            *self.from = self.components.take_plain();
        }
    }
}
