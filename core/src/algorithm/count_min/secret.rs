//! Which cells an item is found in: chosen by a keyed hash, so that nobody who has not read the key can compute items
//! that share cells.

use super::size::{ROWS, SketchSize};
use siphasher::sip128::SipHasher13;
use std::hash::{BuildHasher, RandomState};

/// The cells of one item: one in each row. Cells are counted through all rows.
pub(super) type ItemCells = [u32; 4];

const _: () = assert!(ROWS == 4, "an item has a cell in each row");

/// The random numbers that a sketch hashes items with. They are made with the key and stored in it, so that replicas,
/// the AOF and snapshots agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Secret {
    /// The key of the hash.
    pub(super) halves: [u64; 2],
}

impl Secret {
    /// A secret that nobody knows, and no other key has.
    pub(super) fn random() -> Secret {
        let random = RandomState::new();
        Secret { halves: ["first", "second"].map(|half| random.hash_one(half)) }
    }

    /// The cells of an item, by 32 bits of a hash of 128 a row (SipHash-1-3, as the standard library's tables have).
    #[inline]
    pub(super) fn cells(&self, size: SketchSize, item: &[u8]) -> ItemCells {
        const LOW: u64 = 0xffff_ffff;
        let [first, second] = self.halves;
        let hash = SipHasher13::new_with_keys(first, second).hash(item);
        let columns = size.columns();
        // A share of 2^32 is that share of the columns (Lemire, "Fast Random Integer Generation in an Interval").
        let cell = |row: u32, bits: u64| {
            let column = u32::try_from(bits.wrapping_mul(u64::from(columns)) >> 32).unwrap_or(0);
            row.wrapping_mul(columns).wrapping_add(column)
        };
        [cell(0, hash.h1 & LOW), cell(1, hash.h1 >> 32), cell(2, hash.h2 & LOW), cell(3, hash.h2 >> 32)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_has_one_of_the_cells_and_all_columns_are_found() {
        let size = SketchSize::of_columns(8);
        let (secret, mut found) = (Secret { halves: [1, 2] }, [0; 32]);
        for item in 0..1000_u32 {
            for (row, cell) in secret.cells(size, &item.to_be_bytes()).into_iter().enumerate() {
                assert_eq!(usize::try_from(cell).unwrap() / 8, row);
                found[usize::try_from(cell).unwrap()] += 1;
            }
        }
        assert!(found.iter().all(|times| (60..200).contains(times)), "{found:?}");
    }

    #[test]
    fn cells_are_what_they_have_always_been() {
        // Stored sketches depend on it.
        let secret = Secret { halves: [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908] };
        let cells = |item: &[u8]| secret.cells(SketchSize::of_columns(1 << 20), item);
        assert_eq!(cells(b""), CELLS_OF_NOTHING);
        assert_eq!(cells(b"203.0.113.7"), CELLS_OF_AN_ADDRESS);
    }

    const CELLS_OF_NOTHING: ItemCells = [732_103, 1_829_464, 2_534_838, 3_150_595];
    const CELLS_OF_AN_ADDRESS: ItemCells = [404_805, 1_155_635, 2_323_900, 4_029_343];

    #[test]
    fn no_two_secrets_are_the_same() {
        let [one, other] = [Secret::random(), Secret::random()];
        assert_ne!(one, other);
        assert_ne!(one.halves[0], one.halves[1]);
    }
}
