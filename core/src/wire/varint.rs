//! Encoding of integers with seven bits in each byte, the lowest first (LEB128).

/// Writes an integer.
#[inline]
pub fn write(mut value: u64, mut push: impl FnMut(u8)) {
    while value >= 0x80 {
        push(low_byte(value) | 0x80);
        value >>= 7;
    }
    push(low_byte(value));
}

/// Returns the lowest byte.
#[inline]
pub fn low_byte(value: u64) -> u8 {
    let [byte, ..] = value.to_le_bytes();
    byte
}

/// Reads an integer written by [`write()`], and advances `bytes` past it.
#[inline]
pub fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Returns the distance from `anchor` to `value`, with its sign in the lowest bit.
#[inline]
pub fn distance(value: u64, anchor: u64) -> u64 {
    let distance = value.wrapping_sub(anchor).cast_signed();
    (distance.wrapping_shl(1) ^ distance.wrapping_shr(63)).cast_unsigned()
}

/// Returns the value at a [`distance()`] from `anchor`.
#[inline]
pub fn at_distance(distance: u64, anchor: u64) -> u64 {
    anchor.wrapping_add((distance >> 1) ^ (distance & 1).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::{at_distance, distance, read, write};

    #[test]
    fn distance_is_small_between_neighbours_and_restores_the_value() {
        for (value, anchor, expected) in [(7, 7, 0), (6, 7, 1), (8, 7, 2), (0, u64::MAX, 2), (1 << 63, 0, u64::MAX)] {
            assert_eq!(distance(value, anchor), expected);
            assert_eq!(at_distance(expected, anchor), value);
        }
    }

    #[test]
    fn encoded_integer_is_decoded_to_the_same() {
        for (value, length) in [(0, 1), (127, 1), (128, 2), (1 << 56, 9), (u64::MAX, 10)] {
            let mut bytes = Vec::new();
            write(value, |byte| bytes.push(byte));
            assert_eq!(bytes.len(), length);
            let mut input = [&bytes[..], &[7]].concat();
            let mut rest = &input[..];
            assert_eq!((read(&mut rest), rest), (Some(value), &[7][..]));
            input.truncate(length - 1);
            assert_eq!(read(&mut &input[..]), None);
        }
    }
}
