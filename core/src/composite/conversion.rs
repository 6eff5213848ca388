//! Conversion of a plain key to a composite key: its usage becomes a component, and a call changes the composite key.
//!
//! Only the change is propagated, because a replica has the same plain key and converts it in the same way. The usage
//! is moved, not copied. So the cost of a conversion does not depend on the size of the plain key.

use super::component_head::TAGGED_CHANGE;
use super::{Component, CompositeUsage};
use crate::algorithm::any::PlainUsage;
use crate::effect::{Effect, EncodedText};
use crate::expiry::LATEST_EXPIRY;
use crate::limit::{RecoverySource, Usage};
use crate::number::{Span, Timestamp};
use crate::round_trip::{self, RoundTripError};
use crate::wire::codec::Decoder;
use crate::wire::codec::Discard;
use std::thread::panicking;

/// Serial number of the component that the usage of a plain key becomes.
const SERIAL: u8 = 0;

impl CompositeUsage {
    /// Converts the usage of a plain key that expires at `expires_at` (in milliseconds since the epoch) to a component,
    /// as of `now`, and calls `change` on the composite key. Leaves an unused usage in `plain`; if `change` panics, the
    /// usage is moved back.
    pub fn convert<U: PlainUsage, T>(
        plain: &mut U,
        expires_at: Option<u64>,
        now: Timestamp,
        change: impl FnOnce(&mut CompositeUsage) -> T,
    ) -> (CompositeUsage, T) {
        let components = CompositeUsage::of_plain(std::mem::take(plain), expires_at, now);
        let mut moved = Moved { plain, components };
        let result = change(&mut moved.components);
        (std::mem::take(&mut moved.components), result)
    }

    /// Converts the usage of a plain key as of `now`, moved back if the clock moved backwards.
    ///
    /// The expiry is not moved back: it is unknown whether the expiry was set before the clock moved backwards or after
    /// it, by MIGRATE or RESTORE. So the component may be removed later than necessary, by up to the span of the move
    /// back, and never earlier.
    pub(super) fn of_plain<U: PlainUsage>(mut usage: U, expires_at: Option<u64>, now: Timestamp) -> CompositeUsage {
        let was_moved_back = usage.is_after(now);
        if was_moved_back {
            usage.move_back(now);
            // The move back is part of the effect of the conversion, not of the next effect.
            usage.encode_effect(&mut Discard);
        }
        if usage.is_unused() {
            return CompositeUsage::default();
        }
        let recovers_at = recovers_at(&usage, was_moved_back, expires_at, now);
        CompositeUsage::of_one(usage, recovers_at, now)
    }

    fn of_one<U: PlainUsage>(usage: U, recovers_at: Timestamp, written: Timestamp) -> CompositeUsage {
        let component = Component::new(SERIAL, usage.into_any(), recovers_at);
        CompositeUsage { components: [component].into(), written, extras: None }
    }

    /// Returns `true` if a call can have converted the plain key, which expires at `plain_expiry`, with the encoded
    /// change.
    pub fn accepts_conversion<U: PlainUsage>(
        plain: &U,
        plain_expiry: Option<u64>,
        from: &mut impl Decoder,
        version: u32,
    ) -> bool {
        !U::KIND.stands_alone()
            && (1..=CompositeUsage::VERSION).contains(&version)
            && CompositeUsage::accepts_change_of(plain, plain_expiry, from).is_some()
    }

    fn accepts_change_of<U: PlainUsage>(plain: &U, plain_expiry: Option<u64>, from: &mut impl Decoder) -> Option<()> {
        let now = decode_head(from)?;
        let mut moved = None;
        if plain.is_after(now) {
            // A copy is acceptable because clocks rarely move backwards.
            moved.insert(plain.clone()).move_back(now);
        }
        let usage = moved.as_ref().unwrap_or(plain);
        if usage.is_unused() {
            return CompositeUsage::default().accepts_conversion_at(now, None::<&U>, from);
        }
        // The usage may be large, so it is not copied.
        let recovers_at = recovers_at(usage, moved.is_some(), plain_expiry, now);
        CompositeUsage::of_one(U::default(), recovers_at, now).accepts_conversion_at(now, Some(usage), from)
    }

    /// Applies an accepted conversion to the usage of a plain key.
    pub fn apply_conversion<U: PlainUsage>(
        plain: &mut U,
        plain_expiry: Option<u64>,
        from: &mut impl Decoder,
    ) -> CompositeUsage {
        let now = decode_head(from).unwrap_or_default();
        CompositeUsage::convert(plain, plain_expiry, now, |components| components.apply_change_at(now, from)).0
    }

    /// Checks that the effect of a conversion from `before` to `after` leads to the same state on a replica.
    ///
    /// # Errors
    /// Returns an error with the effect if it is rejected or leads to another state.
    pub fn check_conversion<U: PlainUsage>(
        before: &U,
        effect: &EncodedText,
        after: &CompositeUsage,
    ) -> Result<(), RoundTripError> {
        let rejected = || RoundTripError::new("the conversion is rejected", effect);
        let Some(Effect::Conversion { version, plain_expiry, fields, .. }) = Effect::decode::<U>(effect.as_bytes())
        else {
            return Err(rejected());
        };
        let (mut checked, mut applied, mut plain) = (fields, fields, before.clone());
        if !CompositeUsage::accepts_conversion(before, plain_expiry, &mut checked, version) || !checked.is_at_end() {
            return Err(rejected());
        }
        let replica = CompositeUsage::apply_conversion(&mut plain, plain_expiry, &mut applied);
        round_trip::check_equal(&replica, after, effect)
    }
}

/// Returns the time of full recovery of the usage of a plain key, from the expiry of the key. `was_moved_back` is
/// `true` if the clock moved backwards.
fn recovers_at<U: PlainUsage>(usage: &U, was_moved_back: bool, expires_at: Option<u64>, now: Timestamp) -> Timestamp {
    let expires_at = expires_at.filter(|at| *at <= LATEST_EXPIRY);
    let time_left = expires_at
        .map_or(Span::MAX_ARGUMENT, |at| Span::from_micros(at.saturating_sub(now.floor_millis()).saturating_mul(1000)));
    // The move back may have delayed the recovery of a usage that stores its recovery.
    let may_be_later = was_moved_back && usage.recovery_source() == RecoverySource::Usage;
    let time_left = if may_be_later { time_left.max(usage.time_to_recovery(now)) } else { time_left };
    now.plus(time_left).min(Timestamp::MAX)
}

/// Decodes the tag and the time of a conversion, and returns the time.
fn decode_head(from: &mut impl Decoder) -> Option<Timestamp> {
    from.integer().filter(|tag| *tag == TAGGED_CHANGE)?;
    Timestamp::from_micros(from.integer()?)
}

/// Usage of a plain key during its conversion. Dropping it in a panic moves the usage back to the key.
struct Moved<'k, U: PlainUsage> {
    plain: &'k mut U,
    components: CompositeUsage,
}

impl<U: PlainUsage> Drop for Moved<'_, U> {
    fn drop(&mut self) {
        if panicking() {
            let component = self.components.components.iter_mut().find(|component| component.serial() == SERIAL);
            let usage = component.and_then(|component| U::of_mut(&mut component.usage));
            *self.plain = usage.map(std::mem::take).unwrap_or_default();
        }
    }
}
