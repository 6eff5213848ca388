//! Comparison of short words and names without calling the C library, whose comparison takes more instructions than the
//! rest of a lookup.

/// Maximum length that is compared as two numbers, in bytes.
pub const MAX_SHORT: usize = 16;

/// Returns a word of 1 to [`MAX_SHORT`] bytes as two numbers: its first and its last bytes, which may overlap. Two such
/// words of equal length are equal if their numbers are. Returns `None` for an empty word.
#[inline(always)]
pub fn halves(word: &[u8]) -> Option<(u64, u64)> {
    if let (Some(head), Some(tail)) = (word.first_chunk(), word.last_chunk()) {
        return Some((u64::from_le_bytes(*head), u64::from_le_bytes(*tail)));
    }
    if let (Some(head), Some(tail)) = (word.first_chunk(), word.last_chunk()) {
        return Some((u32::from_le_bytes(*head).into(), u32::from_le_bytes(*tail).into()));
    }
    match word {
        [one] => Some(((*one).into(), 0)),
        [one, two] => Some(((*one).into(), (*two).into())),
        [one, two, three] => Some((u16::from_le_bytes([*one, *two]).into(), (*three).into())),
        _ => None,
    }
}

/// Returns `true` if both byte strings are equal.
#[inline(always)]
pub fn are_equal(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    if one.len() <= MAX_SHORT { halves(one) == halves(other) } else { one == other }
}

#[cfg(test)]
mod tests {
    use super::are_equal;

    #[test]
    fn equal_bytes_are_distinguished_from_different_ones() {
        let text: Vec<u8> = (0..40).collect();
        for length in 0..=text.len() {
            let (one, mut other) = (text.get(..length).unwrap(), text.get(..length).unwrap().to_vec());
            assert!(are_equal(one, &other));
            assert!(!are_equal(one, text.get(..length + 1).unwrap_or(b"")));
            for index in 0..length {
                *other.get_mut(index).unwrap() ^= 0x80;
                assert!(!are_equal(one, &other), "{length} bytes that differ at {index}");
                *other.get_mut(index).unwrap() ^= 0x80;
            }
        }
    }
}
