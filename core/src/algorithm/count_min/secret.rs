//! Keyed hash that chooses the cells of an item, so that clients cannot compute items that share cells.

use super::size::{ROWS, SketchSize};
use siphasher::sip128::SipHasher13;
use std::hash::{BuildHasher, RandomState};

/// Indexes of an item's cells, one in each row. Cells are numbered through all rows.
pub(super) type ItemCells = [u32; 4];

const _: () = assert!(ROWS == 4, "an item has a cell in each row");

/// Random key of a sketch's hash. Created with the key and stored in it, so that replicas, the AOF and snapshots agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Secret {
    /// Halves of the 128-bit key.
    pub(super) halves: [u64; 2],
}

impl Secret {
    /// Creates a random secret.
    pub(super) fn random() -> Secret {
        let random = RandomState::new();
        Secret { halves: ["first", "second"].map(|half| random.hash_one(half)) }
    }

    /// Returns the cells of an item: each row uses 32 bits of a 128-bit hash (SipHash-1-3, like the standard library's
    /// tables).
    #[inline]
    pub(super) fn cells(&self, size: SketchSize, item: &[u8]) -> ItemCells {
        const LOW: u64 = 0xffff_ffff;
        let [first, second] = self.halves;
        let hash = SipHasher13::new_with_keys(first, second).hash(item);
        let columns = size.columns();
        // Scales 32 bits to the number of columns (Lemire, "Fast Random Integer Generation in an Interval").
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
    fn cells_are_distributed_over_all_columns_of_each_row() {
        let size = SketchSize::of_columns(8);
        let (secret, mut counts) = (Secret { halves: [1, 2] }, [0; 32]);
        for item in 0..1000_u32 {
            for (row, cell) in secret.cells(size, &item.to_be_bytes()).into_iter().enumerate() {
                assert_eq!(usize::try_from(cell).unwrap() / 8, row);
                counts[usize::try_from(cell).unwrap()] += 1;
            }
        }
        assert!(counts.iter().all(|count| (60..200).contains(count)), "{counts:?}");
    }

    #[test]
    fn cells_of_an_item_are_stable_across_versions() {
        // Stored sketches depend on these values.
        let secret = Secret { halves: [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908] };
        let cells = |item: &[u8]| secret.cells(SketchSize::of_columns(1 << 20), item);
        assert_eq!(cells(b""), CELLS_OF_EMPTY_ITEM);
        assert_eq!(cells(b"203.0.113.7"), CELLS_OF_AN_ADDRESS);
    }

    const CELLS_OF_EMPTY_ITEM: ItemCells = [732_103, 1_829_464, 2_534_838, 3_150_595];
    const CELLS_OF_AN_ADDRESS: ItemCells = [404_805, 1_155_635, 2_323_900, 4_029_343];

    #[test]
    fn random_secrets_differ() {
        let [one, other] = [Secret::random(), Secret::random()];
        assert_ne!(one, other);
        assert_ne!(one.halves[0], one.halves[1]);
    }
}
