//! Encoding of a usage as a sequence of integers and strings, independent of the carrier (an RDB payload, an effect, a
//! digest).

/// Receiver of the fields of a usage, in order.
pub trait Encoder {
    /// Encodes an integer.
    fn integer(&mut self, value: u64);

    /// Encodes a string of bytes.
    fn bytes(&mut self, value: &[u8]);
}

/// Encoder that discards all fields.
pub struct Discard;

impl Encoder for Discard {
    fn integer(&mut self, _value: u64) {}

    fn bytes(&mut self, _value: &[u8]) {}
}

/// Source of the fields of a usage, in order.
pub trait Decoder {
    /// Decodes an integer. Returns `None` if no field is left or the next one is malformed.
    fn integer(&mut self) -> Option<u64>;

    /// Decodes a flag. Returns `None` if the next integer is neither 0 nor 1.
    fn flag(&mut self) -> Option<bool> {
        self.integer().filter(|flag| *flag <= 1).map(|flag| flag == 1)
    }

    /// Decodes a string. Returns `None` if no field is left, or the next one is malformed or longer than `max` bytes.
    fn bytes(&mut self, max: usize) -> Option<Box<[u8]>>;
}

/// Tag of an effect that contains the whole usage.
pub const WHOLE: u64 = 0;
/// Tag of an effect that contains the change by one call.
pub const CHANGE: u64 = 1;
