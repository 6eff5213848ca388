//! How a usage is written out and read back: as a sequence of integers and strings, whatever carries them (an RDB
//! payload, an effect on the wire, a digest).

/// Takes the fields of a usage, in order.
pub trait Encoder {
    /// One integer.
    fn integer(&mut self, value: u64);

    /// A string of bytes.
    fn bytes(&mut self, value: &[u8]);
}

/// Takes the fields of a usage to nowhere.
pub struct Discard;

impl Encoder for Discard {
    fn integer(&mut self, _value: u64) {}

    fn bytes(&mut self, _value: &[u8]) {}
}

/// Gives the fields of a usage back, in order.
pub trait Decoder {
    /// One integer; `None` if there is none left or it cannot be read.
    fn integer(&mut self) -> Option<u64>;

    /// A string of at most `most` bytes; `None` if there is none left or it is longer.
    fn bytes(&mut self, most: usize) -> Option<Box<[u8]>>;
}

/// What the effect of a kind that may be large begins with: all that the key remembers follows.
pub const WHOLE: u64 = 0;
/// Or what one call has changed in it.
pub const CHANGE: u64 = 1;
