//! Effects as any client might send them: what is accepted of a key with components makes what can be read back.

use crate::algorithm::any::Single;
use crate::composite::CompositeUsage;
use crate::limit::Usage;
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};

/// What a plain key becomes by the effect of a conversion; `None` if the effect is refused. What an accepted effect
/// makes can be read back, or is nothing.
pub fn converted<U: Single>(plain: &U, plain_expiry: Option<u64>, effect: &EncodedFields) -> Option<CompositeUsage> {
    let mut read = effect.clone();
    let accepted = CompositeUsage::accepts_conversion(plain, plain_expiry, &mut read, CompositeUsage::VERSION);
    // As a server does, which refuses an effect with something left over.
    if !accepted || read != EncodedFields::default() {
        return None;
    }
    let after = CompositeUsage::apply_conversion(&mut plain.clone(), plain_expiry, &mut effect.clone());
    let readable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
    assert!(readable, "{effect:?} makes what cannot be read: {after:#?}");
    Some(after)
}

/// Any effect is refused, or makes what can be read back, or nothing.
pub fn check_any(usage: &CompositeUsage, effect: &EncodedFields) {
    let (mut read, mut after) = (effect.clone(), usage.clone());
    if usage.accepts_effect(&mut read, CompositeUsage::VERSION) && read == EncodedFields::default() {
        after.apply_effect(&mut effect.clone(), CompositeUsage::VERSION);
        let readable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
        assert!(readable, "{effect:?} makes of {usage:#?} what cannot be read: {after:#?}");
    }
}

/// An effect in which one number is another is refused, or makes what can be read back, or nothing: one that is there
/// too, a neighbour, or a small one.
pub fn check_each_number(usage: &CompositeUsage, effect: &EncodedFields) {
    let numbers = effect.clone().numbers();
    for (place, number) in numbers.iter().enumerate() {
        // If it says which component and of which kind: another kind, another component, and one that none can be.
        let tags = [number ^ 16, number ^ 128, number & 127 | 24 << 7];
        let near = [number.wrapping_sub(1), number.wrapping_add(1)].into_iter().chain(tags);
        for value in numbers.iter().copied().chain(near).chain(0..32) {
            check_any(usage, &effect.with(place, value));
        }
    }
}
