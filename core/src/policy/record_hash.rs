//! Hash of names and records: fast, and stable across servers, because members of a cluster compare sums of it.
//!
//! Only operators add names to the table, while callers only look them up. So collisions cannot be exploited. Like
//! wyhash (Wang Yi, 2019), it multiplies eight bytes at a time to 128 bits and folds the product, which takes about
//! four instructions for each eight.

/// Odd multipliers with balanced bits: the fractions of the golden ratio and of the square root of 2.
const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// Returns the hash of `text`.
#[inline(always)]
pub fn of(text: &[u8]) -> u64 {
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    // The length is spread over all bits, so that bytes cannot compensate for a different length.
    let mut hash = length.wrapping_mul(KEYS[0]);
    if let Some(last) = text.last_chunk() {
        // The last eight bytes may overlap the preceding ones.
        let (eights, _) = text.as_chunks();
        for eight in eights {
            hash = fold(hash ^ u64::from_le_bytes(*eight), KEYS[1]);
        }
        hash = fold(hash ^ u64::from_le_bytes(*last), KEYS[1]);
    } else if let (Some(first), Some(last)) = (text.first_chunk(), text.last_chunk()) {
        let (first, last) = (u32::from_le_bytes(*first), u32::from_le_bytes(*last));
        hash = fold(hash ^ (u64::from(first) << 32 | u64::from(last)), KEYS[1]);
    } else {
        let word = text.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        hash = fold(hash ^ word, KEYS[1]);
    }
    fold(hash, KEYS[0])
}

/// Multiplies to 128 bits, and combines both halves of the product.
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one).wrapping_mul(u128::from(other));
    u64::try_from((product >> 64) ^ (product & u128::from(u64::MAX))).unwrap_or_default()
}

#[cfg(test)]
mod tests;
