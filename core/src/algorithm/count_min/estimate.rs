//! Shares of a sketch's cells and items for RL.INFO, estimated in constant time from a sample of the cells.

use super::size::{ROWS, SketchSize};
use crate::number::Amount;

/// Maximum number of sampled cells per row.
const SAMPLE_COLUMNS: u32 = 4096;

/// Share of 1: shares are in ten-thousandths.
const WHOLE: u64 = 10_000;

/// Shares for RL.INFO, in ten-thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    /// Share of cells in use.
    pub(super) filled: u64,
    /// Share of new items for which one unit would be denied.
    pub(super) unseen_denied: u64,
}

/// Returns the shares of a sketch of this size and capacity. `cell_usage` returns the usage of a cell in millionths.
///
/// A new item has a random cell in each row, and is denied if none of the four has room. So the probability of
/// a denial is the product, over the rows, of the shares of full cells.
pub(super) fn shares(size: SketchSize, capacity: Amount, cell_usage: impl Fn(u32) -> u64) -> Shares {
    let columns = size.columns();
    let sampled = columns.min(SAMPLE_COLUMNS);
    let (mut filled, mut combinations, mut denied_combinations) = (0_u64, 1_u64, 1_u64);
    for row in 0..ROWS {
        let mut without_room = 0_u64;
        for sample in 0..sampled {
            let column = u64::from(sample).saturating_mul(columns.into()).checked_div(sampled.into());
            let column = column.and_then(|column| u32::try_from(column).ok()).unwrap_or(0);
            let used = Amount::saturating(cell_usage(row.saturating_mul(columns).saturating_add(column)));
            filled = filled.saturating_add(u64::from(used != Amount::ZERO));
            let is_full = used.excess(Amount::ONE, capacity) != Amount::ZERO;
            without_room = without_room.saturating_add(u64::from(is_full));
        }
        // Each factor is at most 2^12, so the products are at most 2^48.
        denied_combinations = denied_combinations.saturating_mul(without_room);
        combinations = combinations.saturating_mul(sampled.into());
    }
    let cells = u64::from(sampled).saturating_mul(ROWS.into());
    Shares { filled: rounded_share(filled, cells), unseen_denied: rounded_share(denied_combinations, combinations) }
}

/// Returns `part / whole` in ten-thousandths, rounded to the nearest.
fn rounded_share(part: u64, whole: u64) -> u64 {
    let doubled = part.saturating_mul(WHOLE).saturating_mul(2).saturating_add(whole);
    doubled.checked_div(whole.saturating_mul(2)).unwrap_or(0)
}

/// Formats a share for RL.INFO: `0.0312`.
pub(super) fn format_share(share: u64) -> String {
    format!("{}.{:04}", share / WHOLE, share % WHOLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares_of_columns(columns: u32, capacity: u64, used: impl Fn(u32) -> u64) -> Shares {
        shares(SketchSize::of_columns(columns), Amount::saturating(capacity * 1_000_000), used)
    }

    #[test]
    fn shares_of_a_small_sketch_are_exact() {
        let empty = shares_of_columns(10, 5, |_| 0);
        assert_eq!(empty, Shares { filled: 0, unseen_denied: 0 });
        // Half of each row is in use, and only cells above 4 units have no room for another unit.
        let half = shares_of_columns(10, 5, |cell| if cell % 2 == 0 { 4_000_001 } else { 0 });
        assert_eq!(half, Shares { filled: 5000, unseen_denied: 625 });
        let with_room = shares_of_columns(10, 5, |cell| if cell % 2 == 0 { 4_000_000 } else { 0 });
        assert_eq!(with_room, Shares { filled: 5000, unseen_denied: 0 });
        // One row with room is sufficient.
        let one_row = shares_of_columns(10, 5, |cell| if cell < 10 { 0 } else { 5_000_000 });
        assert_eq!(one_row, Shares { filled: 7500, unseen_denied: 0 });
        assert_eq!(shares_of_columns(10, 0, |_| 0), Shares { filled: 0, unseen_denied: WHOLE });
    }

    #[test]
    fn shares_of_a_large_sketch_are_estimated_from_a_sample() {
        // Every third cell is full. The sampled shares may differ slightly.
        let third = shares_of_columns(1 << 23, 1, |cell| if cell % 3 == 0 { 1_000_000 } else { 0 });
        assert!((3330..=3337).contains(&third.filled), "{third:?}");
        assert!((122..=125).contains(&third.unseen_denied), "{third:?}");
        let all = shares_of_columns(1 << 23, 1, |_| u64::MAX >> 1);
        assert_eq!(all, Shares { filled: WHOLE, unseen_denied: WHOLE });
    }

    #[test]
    fn share_is_formatted_with_four_decimals() {
        assert_eq!([0, 7, 312, 9999, WHOLE].map(format_share), ["0.0000", "0.0007", "0.0312", "0.9999", "1.0000"]);
    }
}
