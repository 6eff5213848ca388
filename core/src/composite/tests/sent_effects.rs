//! Effects from any client: an accepted effect leaves a state that can be decoded.

use crate::algorithm::any::PlainUsage;
use crate::composite::CompositeUsage;
use crate::limit::Usage;
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};

/// Returns the composite key after the effect of a conversion; `None` if the effect is rejected. Asserts that the state
/// after an accepted effect can be decoded or is unused.
pub fn converted<U: PlainUsage>(
    plain: &U,
    plain_expiry: Option<u64>,
    effect: &EncodedFields,
) -> Option<CompositeUsage> {
    let mut read = effect.clone();
    let accepted = CompositeUsage::accepts_conversion(plain, plain_expiry, &mut read, CompositeUsage::VERSION);
    // A server rejects an effect with trailing fields.
    if !accepted || read != EncodedFields::default() {
        return None;
    }
    let after = CompositeUsage::apply_conversion(&mut plain.clone(), plain_expiry, &mut effect.clone());
    let readable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
    assert!(readable, "{effect:?} leaves a state that cannot be decoded: {after:#?}");
    Some(after)
}

/// Asserts that an effect is rejected or leaves a state that can be decoded or is unused.
pub fn check_any(usage: &CompositeUsage, effect: &EncodedFields) {
    let (mut read, mut after) = (effect.clone(), usage.clone());
    if usage.accepts_effect(&mut read, CompositeUsage::VERSION) && read == EncodedFields::default() {
        after.apply_effect(&mut effect.clone(), CompositeUsage::VERSION);
        let readable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
        assert!(readable, "{effect:?} turns {usage:#?} into a state that cannot be decoded: {after:#?}");
    }
}

/// Checks variants of an effect with one number replaced: by another number of the effect, a neighbour, or a small
/// number.
pub fn check_each_number(usage: &CompositeUsage, effect: &EncodedFields) {
    let numbers = effect.clone().numbers();
    for (place, number) in numbers.iter().enumerate() {
        // Variants of a component tag: another kind, another component, and a component out of range.
        let tags = [number ^ 16, number ^ 128, number & 127 | 24 << 7];
        let near = [number.wrapping_sub(1), number.wrapping_add(1)].into_iter().chain(tags);
        for value in numbers.iter().copied().chain(near).chain(0..32) {
            check_any(usage, &effect.with(place, value));
        }
    }
}
