//! Effects from any bytes, one after another on one key of a kind: refused, or a state that a call could have made.

use crate::laws::assert_sound;
use ratelimit_core::composite::CompositeUsage;
use ratelimit_core::effect::Effect;
use ratelimit_core::expiry::LATEST_EXPIRY;
use ratelimit_core::{PlainUsage, Usage};

/// Checks every kind.
macro_rules! check_all {
    (
        {$data:expr}
        $($(#[doc = $doc:literal])+ $kind:ident = $name:literal, $limit:ty: $selector:ident, $usage:ty: $stored:ident, $words:tt;)+
    ) => {
        $(check_plain::<$usage>($data);)+
    };
}

pub fn run(data: &[u8]) {
    ratelimit_core::algorithms!(check_all, { data });
    check::<CompositeUsage>(data);
}

/// The first conversion that a plain key accepts makes one with components of it, on which the others are effects, too.
fn check_plain<U: PlainUsage>(data: &[u8]) {
    let mut usage = U::default();
    let mut texts = data.split(|byte| *byte == b'\n');
    while let Some(text) = texts.next() {
        let Some(Effect::Conversion { version, expires_at, plain_expiry, mut fields }) = Effect::decode::<U>(text)
        else {
            follow(&mut usage, text);
            continue;
        };
        assert!((1..=LATEST_EXPIRY).contains(&expires_at), "no key without an expiry");
        let mut unread = fields;
        // A missing key is not converted.
        if usage.is_unused()
            || !CompositeUsage::accepts_conversion(&usage, plain_expiry, &mut unread, version)
            || !unread.end()
        {
            continue;
        }
        let mut components = CompositeUsage::apply_conversion(&mut usage, plain_expiry, &mut fields);
        if !components.is_unused() {
            assert_sound(&components);
            texts.for_each(|text| follow(&mut components, text));
            return;
        }
    }
}

fn check<U: Usage>(data: &[u8]) {
    let mut usage = U::default();
    data.split(|byte| *byte == b'\n').for_each(|text| follow(&mut usage, text));
}

fn follow<U: Usage>(usage: &mut U, text: &[u8]) {
    let Some(Effect::Change { version, expires_at, mut fields }) = Effect::decode::<U>(text) else { return };
    assert!((1..=LATEST_EXPIRY).contains(&expires_at), "no key without an expiry");
    let mut unread = fields;
    if !usage.accepts_effect(&mut unread, version) || !unread.end() {
        return;
    }
    usage.apply_effect(&mut fields, version);
    if usage.is_unused() {
        *usage = U::default(); // the key is deleted
    } else {
        assert_sound(usage);
    }
}
