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
    pub fn prepend(mut self, integer: u64) -> EncodedFields {
        self.0.push_front(Field::Integer(integer));
        self
    }

    /// Returns these fields with the field at a random index replaced by an integer.
    pub fn with_integer(&self, index: Index, value: u64) -> EncodedFields {
        let mut fields = self.clone();
        let index = index.index(fields.0.len());
        fields.0[index] = Field::Integer(value);
        fields
    }

    /// Returns these fields with the field at `index` replaced by an integer.
    pub fn with(&self, index: usize, value: u64) -> EncodedFields {
        let mut fields = self.clone();
        fields.0[index] = Field::Integer(value);
        fields
    }

    /// Returns the fields as integers, with 0 for each string.
    pub fn numbers(self) -> Vec<u64> {
        let number = |field| if let Field::Integer(value) = field { value } else { 0 };
        self.0.into_iter().map(number).collect()
    }

    /// Returns all proper prefixes of these fields.
    pub fn proper_prefixes(&self) -> impl Iterator<Item = EncodedFields> + '_ {
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

    fn bytes(&mut self, max_length: usize) -> Option<Box<[u8]>> {
        if let Field::Bytes(value) = self.0.pop_front()? { (value.len() <= max_length).then_some(value) } else { None }
    }
}

/// Returns the encoding of a usage.
pub fn encoded(usage: &impl Usage) -> EncodedFields {
    let mut fields = EncodedFields::default();
    usage.encode(&mut fields);
    fields
}

/// Decodes a usage, and asserts that all fields are decoded.
pub fn decoded<U: Usage>(fields: &EncodedFields) -> Option<U> {
    let mut fields = fields.clone();
    U::decode(&mut fields, U::VERSION)
        .inspect(|_| assert_eq!(fields, EncodedFields::default(), "all fields are decoded"))
}

/// Returns the effect that transfers the whole usage.
pub fn whole_effect(usage: &impl Usage) -> EncodedFields {
    let mut fields = EncodedFields::default();
    usage.encode_whole_effect(&mut fields);
    fields
}

/// Returns a copy of a usage to which an effect has been applied; `None` if the effect is rejected. Asserts that all
/// fields are decoded, and that the copy is unused or can be decoded.
pub fn applied<U: Usage>(usage: &U, effect: &EncodedFields) -> Option<U> {
    let (mut fields, mut after) = (effect.clone(), usage.clone());
    if !usage.accepts_effect(&mut fields, U::VERSION) {
        return None;
    }
    assert_eq!(fields, EncodedFields::default(), "all fields are decoded");
    after.apply_effect(&mut effect.clone(), U::VERSION);
    assert!(after.is_unused() || decoded::<U>(&encoded(&after)).is_some(), "{effect:?} gives an invalid state");
    Some(after)
}
