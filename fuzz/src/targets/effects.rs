//! Sequences of effects from any bytes on a key of each kind: each is rejected, or leads to a possible state.

use crate::laws::assert_sound;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::Effect;
use ratelimit_core::expiry::LATEST_EXPIRY;
use ratelimit_core::{PlainUsage, Usage};

/// Checks plain keys of every kind.
macro_rules! check_all {
    (
        {$data:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $storage:ident, $words:tt;)+
    ) => {
        $(check_plain::<$usage>($data);)+
    };
}

pub fn run(data: &[u8]) {
    ratelimit_core::algorithms!(check_all, { data });
    check::<CompositeUsage>(data);
}

/// Applies effects to a plain key. The first accepted conversion makes it composite, and the remaining effects follow
/// on the composite key.
fn check_plain<U: PlainUsage>(data: &[u8]) {
    let mut usage = U::default();
    let mut texts = data.split(|byte| *byte == b'\n');
    while let Some(text) = texts.next() {
        let Some(Effect::Conversion { version, expires_at, plain_expiry, mut fields }) = Effect::decode::<U>(text)
        else {
            apply_change(&mut usage, text);
            continue;
        };
        assert!((1..=LATEST_EXPIRY).contains(&expires_at), "every key has an expiry");
        let mut checked_fields = fields;
        // A missing key is not converted.
        if usage.is_unused()
            || !CompositeUsage::accepts_conversion(&usage, plain_expiry, &mut checked_fields, version)
            || !checked_fields.is_at_end()
        {
            continue;
        }
        let mut components = CompositeUsage::apply_conversion(&mut usage, plain_expiry, &mut fields);
        if !components.is_unused() {
            assert_sound(&components);
            texts.for_each(|text| apply_change(&mut components, text));
            return;
        }
    }
}

fn check<U: Usage>(data: &[u8]) {
    let mut usage = U::default();
    data.split(|byte| *byte == b'\n').for_each(|text| apply_change(&mut usage, text));
}

/// Applies an effect, unless it is rejected.
fn apply_change<U: Usage>(usage: &mut U, text: &[u8]) {
    let Some(Effect::Change { version, expires_at, mut fields }) = Effect::decode::<U>(text) else { return };
    assert!((1..=LATEST_EXPIRY).contains(&expires_at), "every key has an expiry");
    let mut checked_fields = fields;
    if !usage.accepts_effect(&mut checked_fields, version) || !checked_fields.is_at_end() {
        return;
    }
    usage.apply_effect(&mut fields, version);
    if usage.is_unused() {
        *usage = U::default(); // The key is deleted.
    } else {
        assert_sound(usage);
    }
}
