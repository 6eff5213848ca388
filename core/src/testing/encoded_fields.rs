//! In-memory encoding of a usage or an effect, which tests can compare and corrupt.

use crate::limit::Usage;
use crate::wire::codec::{Decoder, Encoder};
use proptest::sample::Index;
use std::collections::VecDeque;

/// Encoded fields of a usage or an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EncodedFields(VecDeque<Field>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Field {
    Integer(u64),
    Bytes(Box<[u8]>),
}

impl EncodedFields {
    /// Creates fields from integers.
    pub fn integers(integers: impl IntoIterator<Item = u64>) -> EncodedFields {
        EncodedFields(integers.into_iter().map(Field::Integer).collect())
    }

    /// Returns these fields with integers appended.
    pub fn and(mut self, integers: impl IntoIterator<Item = u64>) -> EncodedFields {
        self.0.extend(EncodedFields::integers(integers).0);
        self
    }

    /// Returns these fields with a string and integers appended.
    pub fn then(mut self, string: &[u8], integers: impl IntoIterator<Item = u64>) -> EncodedFields {
        self.0.push_back(Field::Bytes(string.into()));
        self.and(integers)
    }

    /// Returns these fields with an integer prepended.
    pub fn behind(mut self, integer: u64) -> EncodedFields {
        self.0.push_front(Field::Integer(integer));
        self
    }

    /// Returns these fields with an integer replaced at a random place.
    pub fn with_integer(&self, place: Index, value: u64) -> EncodedFields {
        let mut fields = self.clone();
        let place = place.index(fields.0.len());
        fields.0[place] = Field::Integer(value);
        fields
    }

    /// Returns these fields with the integer at `place` replaced.
    pub fn with(&self, place: usize, value: u64) -> EncodedFields {
        let mut fields = self.clone();
        fields.0[place] = Field::Integer(value);
        fields
    }

    /// Returns the integers, with 0 in the places of strings.
    pub fn numbers(self) -> Vec<u64> {
        let number = |field| if let Field::Integer(value) = field { value } else { 0 };
        self.0.into_iter().map(number).collect()
    }

    /// Returns all proper prefixes of these fields.
    pub fn cut_short(&self) -> impl Iterator<Item = EncodedFields> + '_ {
        (0..self.0.len()).map(|length| EncodedFields(self.0.iter().take(length).cloned().collect()))
    }
}

impl Encoder for EncodedFields {
    fn integer(&mut self, value: u64) {
        self.0.push_back(Field::Integer(value));
    }

    fn bytes(&mut self, value: &[u8]) {
        self.0.push_back(Field::Bytes(value.into()));
    }
}

impl Decoder for EncodedFields {
    fn integer(&mut self) -> Option<u64> {
        if let Field::Integer(value) = self.0.pop_front()? { Some(value) } else { None }
    }

    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>> {
        if let Field::Bytes(value) = self.0.pop_front()? { (value.len() <= most).then_some(value) } else { None }
    }
}

/// Returns the encoding of a usage.
pub fn encoded(usage: &impl Usage) -> EncodedFields {
    let mut fields = EncodedFields::default();
    usage.encode(&mut fields);
    fields
}

/// Decodes a usage, and asserts that no fields are left over.
pub fn decoded<U: Usage>(fields: &EncodedFields) -> Option<U> {
    let mut fields = fields.clone();
    U::decode(&mut fields, U::VERSION).inspect(|_| assert_eq!(fields, EncodedFields::default(), "left over"))
}

/// Returns the effect that transfers the whole usage.
pub fn whole_effect(usage: &impl Usage) -> EncodedFields {
    let mut fields = EncodedFields::default();
    usage.encode_whole_effect(&mut fields);
    fields
}

/// Applies an effect to a copy of a usage and returns it, or `None` if the effect is rejected. Asserts that no fields
/// are left over, and that the result is unused or can be decoded.
pub fn applied<U: Usage>(usage: &U, effect: &EncodedFields) -> Option<U> {
    let (mut read, mut applied, mut after) = (effect.clone(), effect.clone(), usage.clone());
    if !usage.accepts_effect(&mut read, U::VERSION) {
        return None;
    }
    assert_eq!(read, EncodedFields::default(), "left over");
    after.apply_effect(&mut applied, U::VERSION);
    assert!(after.is_unused() || decoded::<U>(&encoded(&after)).is_some(), "{effect:?} gives an invalid state");
    Some(after)
}
