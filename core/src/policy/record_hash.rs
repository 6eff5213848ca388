//! A hash of names and records: quick, and the same on every server, since members of a cluster compare sums of it.
//!
//! Only operators put names into the table, callers merely ask for them, so that nobody can gain by names that collide.
//! Eight bytes at a time are multiplied to twice their width and folded, as wyhash does (Wang Yi, 2019): some four
//! instructions each.

/// Odd, with as many ones as zeros, in no order: the fraction of the golden ratio, and of the square root of 2.
const KEYS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0x6a09_e667_f3bc_c909];

/// What `text` is known by.
#[inline(always)]
pub fn of(text: &[u8]) -> u64 {
    let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
    // In all bits: bytes that differ by as much as lengths must not make up for them.
    let mut hash = length.wrapping_mul(KEYS[0]);
    if let Some(last) = text.last_chunk() {
        // The last eight bytes may overlap those before them.
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

/// The product's two halves, in one.
#[inline(always)]
fn fold(one: u64, other: u64) -> u64 {
    let product = u128::from(one).wrapping_mul(u128::from(other));
    u64::try_from((product >> 64) ^ (product & u128::from(u64::MAX))).unwrap_or_default()
}

#[cfg(test)]
mod tests;
