//! Size of a sketch as an argument and a setting.

use crate::number::decimal::MAX_NUMBER;
use crate::wire::args::whole;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Number of rows: an item has one cell in each.
pub(crate) const ROWS: u32 = 4;

/// Size of a column in bytes: one cell of each row.
const COLUMN_BYTES: u64 = 32;

/// Memory limit of a sketch's cells: a whole number of columns, each of which consists of one cell per row.
///
/// ```
/// use ratelimit_core::algorithm::count_min::SketchSize;
///
/// assert_eq!(SketchSize::parse(b"1MB").map(SketchSize::bytes), Some(1_048_576));
/// assert_eq!(SketchSize::parse(b"65567").map(SketchSize::bytes), Some(65_536), "down to a multiple of 32 bytes");
/// assert_eq!(SketchSize::parse(b"1gb"), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SketchSize {
    /// Number of cells per row, from 1 to 2^23.
    columns: u32,
}

/// Number of columns of new sketches without SIZE.
static DEFAULT_COLUMNS: AtomicU32 = AtomicU32::new(32_768);

impl SketchSize {
    /// Minimum size in bytes: 64 KB.
    pub const MIN_BYTES: u64 = 65_536;
    /// Maximum size in bytes: 256 MB.
    pub const MAX_BYTES: u64 = 268_435_456;

    /// Creates a size, rounded down to whole columns. Returns `None` unless `bytes` is from 64 KB to 256 MB.
    #[must_use]
    pub fn new(bytes: u64) -> Option<SketchSize> {
        let columns = u32::try_from(bytes / COLUMN_BYTES).ok()?;
        (SketchSize::MIN_BYTES..=SketchSize::MAX_BYTES).contains(&bytes).then_some(SketchSize { columns })
    }

    /// Parses an argument such as `65536`, `64KB` or `1mb`, with the units of the server's memory settings: `k`, `m`
    /// and `g` are powers of 1000, and `kb`, `mb` and `gb` of 1024. Returns `None` unless the size is from 64 KB to 256
    /// MB.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<SketchSize> {
        if text.len() > MAX_NUMBER {
            return None;
        }
        let digits = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
        let (count, unit) = text.split_at_checked(digits)?;
        let factor: u64 = match unit.to_ascii_lowercase().as_slice() {
            b"" | b"b" => 1,
            b"k" => 1_000,
            b"kb" => 1 << 10,
            b"m" => 1_000_000,
            b"mb" => 1 << 20,
            // Even one of `g` or `gb` is above the maximum.
            _ => return None,
        };
        SketchSize::new(whole(count, u64::MAX)?.checked_mul(factor)?)
    }

    /// Returns the size of a new sketch without SIZE.
    #[must_use]
    pub fn default_for_new_keys() -> SketchSize {
        SketchSize { columns: DEFAULT_COLUMNS.load(Relaxed) }
    }

    /// Sets the size of new sketches without SIZE.
    pub fn set_as_default(self) {
        DEFAULT_COLUMNS.store(self.columns, Relaxed);
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.columns).saturating_mul(COLUMN_BYTES)
    }

    /// Returns the number of cells per row.
    #[inline(always)]
    pub(super) fn columns(self) -> u32 {
        self.columns
    }

    /// Creates a size with few columns, so that items collide.
    #[cfg(test)]
    pub(crate) const fn of_columns(columns: u32) -> SketchSize {
        SketchSize { columns }
    }

    /// Creates a size from its stored value. Returns `None` if no sketch can have this size.
    pub(super) fn from_stored(bytes: u64) -> Option<SketchSize> {
        let columns = u32::try_from(bytes / COLUMN_BYTES).ok()?;
        // Tests use small sketches in which items collide.
        let min_bytes = if cfg!(test) { COLUMN_BYTES } else { SketchSize::MIN_BYTES };
        let is_valid = bytes.is_multiple_of(COLUMN_BYTES) && (min_bytes..=SketchSize::MAX_BYTES).contains(&bytes);
        is_valid.then_some(SketchSize { columns })
    }
}

impl fmt::Display for SketchSize {
    /// Formats the size like an argument, in the largest unit that divides it: `1mb`, `65568`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.bytes();
        let units = [(20_u32, "mb"), (10, "kb")].into_iter();
        let mut in_whole_units = units.filter_map(|(shift, unit)| {
            let count = bytes >> shift;
            (count << shift == bytes).then_some((count, unit))
        });
        let (count, unit) = in_whole_units.next().unwrap_or((bytes, ""));
        write!(f, "{count}{unit}")
    }
}
