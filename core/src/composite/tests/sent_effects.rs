//! Effects from arbitrary clients: an accepted effect leaves a state that can be decoded.

use crate::algorithm::any::PlainUsage;
use crate::composite::CompositeUsage;
use crate::limit::Usage;
use crate::testing::encoded_fields::{EncodedFields, decoded, encoded};

/// Returns the composite key after the effect of a conversion; `None` if the effect is rejected. Asserts that the state
/// after an accepted effect can be decoded or is unused.
pub fn after_conversion<U: PlainUsage>(
    plain: &U,
    plain_expiry: Option<u64>,
    effect: &EncodedFields,
) -> Option<CompositeUsage> {
    let mut fields = effect.clone();
    let accepted = CompositeUsage::accepts_conversion(plain, plain_expiry, &mut fields, CompositeUsage::VERSION);
    // A server rejects an effect with trailing fields.
    if !accepted || fields != EncodedFields::default() {
        return None;
    }
    let after = CompositeUsage::apply_conversion(&mut plain.clone(), plain_expiry, &mut effect.clone());
    let is_decodable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
    assert!(is_decodable, "{effect:?} leaves a state that cannot be decoded: {after:#?}");
    Some(after)
}

/// Asserts that an effect is rejected or leaves a state that can be decoded or is unused.
pub fn check_effect(usage: &CompositeUsage, effect: &EncodedFields) {
    let (mut fields, mut after) = (effect.clone(), usage.clone());
    if usage.accepts_effect(&mut fields, CompositeUsage::VERSION) && fields == EncodedFields::default() {
        after.apply_effect(&mut effect.clone(), CompositeUsage::VERSION);
        let is_decodable = after.is_unused() || decoded::<CompositeUsage>(&encoded(&after)).is_some();
        assert!(is_decodable, "{effect:?} turns {usage:#?} into a state that cannot be decoded: {after:#?}");
    }
}

/// Checks variants of an effect with one number replaced: by another number of the effect, a neighbour, or a small
/// number.
pub fn check_each_number(usage: &CompositeUsage, effect: &EncodedFields) {
    let numbers = effect.clone().numbers();
    for (field, number) in numbers.iter().enumerate() {
        // Variants of a component tag: another kind, another component, and a component out of range.
        let tags = [number ^ 16, number ^ 128, number & 127 | 24 << 7];
        let near = [number.wrapping_sub(1), number.wrapping_add(1)].into_iter().chain(tags);
        for value in numbers.iter().copied().chain(near).chain(0..32) {
            check_effect(usage, &effect.with(field, value));
        }
    }
}
