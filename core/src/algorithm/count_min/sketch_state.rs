//! State of a sketch after its first charge (size, secret, mark and cells) and its encoding.

use super::cells::{CELLS_PER_PIECE, Cells};
use super::mark::WaterMark;
use super::secret::{ItemCells, Secret};
use super::size::{ROWS, SketchSize};
use crate::algorithm::bucket::Bucket;
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering::Relaxed;

/// Number of cells of an item, one in each row.
pub(super) const CELLS_PER_ITEM: usize = 4;

/// State of a sketch after its first charge.
#[derive(Clone)]
pub(super) struct SketchState {
    /// Size of the cells in memory.
    pub(super) size: SketchSize,
    /// Key of the hash that chooses an item's cells.
    pub(super) secret: Secret,
    /// Amount drained from every cell.
    pub(super) mark: WaterMark,
    /// Bucket of the last charge, for RL.INFO.
    pub(super) bucket: Bucket,
    /// Cells, which items share.
    pub(super) cells: Cells,
    /// Cells raised since the last effect was encoded.
    pub(super) raised: ArrayVec<u32, { CELLS_PER_ITEM }>,
    /// Usage of each raised cell, in millionths.
    pub(super) raised_usage: u64,
}

impl SketchState {
    /// Creates a sketch with unused cells.
    pub(super) fn new(size: SketchSize, secret: Secret, bucket: Bucket) -> SketchState {
        let cells = usize::try_from(size.columns().saturating_mul(ROWS)).unwrap_or(0);
        SketchState {
            size,
            secret,
            mark: WaterMark::default(),
            bucket,
            cells: Cells::new(cells),
            raised: ArrayVec::new(),
            raised_usage: 0,
        }
    }

    /// Returns `true` if items have the same cells in both sketches.
    pub(super) fn has_same_cells(&self, other: &SketchState) -> bool {
        (self.size, self.secret) == (other.size, other.secret)
    }

    /// Returns the usage of a cell in millionths, at the time up to which all cells have drained.
    #[inline(always)]
    pub(super) fn used(&self, cell: u32) -> u64 {
        self.cells.level(cell).map_or(0, |(level, era)| self.mark.usage(level, era))
    }

    /// Raises the cells of an item that are below `used`, the usage of the item's bucket. Records the raised cells for
    /// the effect.
    #[inline(always)]
    pub(super) fn raise(&mut self, cells: ItemCells, used: Amount) {
        let level = self.mark.level_of(used.millionths());
        self.raised.clear();
        self.raised_usage = used.millionths();
        for cell in cells {
            if self.cells.raise(cell, level, &self.mark) {
                // `raised` has room for one cell of each row.
                let _ = self.raised.try_push(cell);
            }
        }
    }

    /// Returns the number of cells.
    pub(super) fn cell_count(&self) -> u32 {
        self.size.columns().saturating_mul(ROWS)
    }

    /// Encodes the state without the cells.
    pub(super) fn encode_head(&self, drained_to: Timestamp, to: &mut impl Encoder) {
        to.integer(self.size.bytes());
        let [first, second] = self.secret.halves;
        for number in [first, second, self.mark.era, self.mark.level, drained_to.micros()] {
            to.integer(number);
        }
        for number in self.bucket.fields() {
            to.integer(number);
        }
    }

    /// Decodes the state without the cells, with the time up to which it has drained.
    pub(super) fn decode_head(from: &mut impl Decoder) -> Option<(SketchState, Timestamp)> {
        let size = SketchSize::from_stored(from.integer()?)?;
        let secret = Secret { halves: [from.integer()?, from.integer()?] };
        let mark = WaterMark::from_stored(from.integer()?, from.integer()?)?;
        let drained_to = Timestamp::from_micros(from.integer()?)?;
        let bucket = Bucket::from_fields([from.integer()?, from.integer()?, from.integer()?])?;
        Some((SketchState { mark, ..SketchState::new(size, secret, bucket) }, drained_to))
    }

    /// Encodes up to `max` used pieces from number `from` on. Returns the number of the next used piece, if there is
    /// one.
    pub(super) fn encode_pieces(&self, from: usize, max: usize, to: &mut impl Encoder) -> Option<usize> {
        let mut pieces = self.cells.pieces(from).filter_map(|(number, levels, era)| {
            let used = levels.iter().map(move |level| self.mark.usage(level.load(Relaxed), era));
            let length = used.clone().rposition(|used| used > 0)?.saturating_add(1);
            Some((number, used.take(length)))
        });
        let part: Vec<_> = pieces.by_ref().take(max).collect();
        to.integer(u64::try_from(part.len()).unwrap_or(0));
        let mut bytes = Vec::with_capacity(CELLS_PER_PIECE.saturating_mul(8));
        for (number, used) in part {
            to.integer(u64::try_from(number).unwrap_or(u64::MAX));
            bytes.clear();
            used.for_each(|used| bytes.extend(used.to_le_bytes()));
            to.bytes(&bytes);
        }
        pieces.next().map(|(number, _)| number)
    }

    /// Decodes used pieces, in ascending order, and adds them to the sketch. Returns the usage of their fullest cell,
    /// or `None` if the encoding is malformed.
    pub(super) fn decode_pieces(&mut self, from: &mut impl Decoder) -> Option<Amount> {
        let (mut fullest, mut min_number) = (0, 0_u64);
        let cells = u64::from(self.cell_count());
        for _ in 0..from.integer()? {
            let number = from.integer().filter(|number| *number >= min_number)?;
            min_number = number.checked_add(1)?;
            let bytes = from.bytes(CELLS_PER_PIECE.saturating_mul(8))?;
            let (used, rest) = bytes.as_chunks::<8>();
            let first_cell = number.checked_mul(u64::try_from(CELLS_PER_PIECE).ok()?)?;
            let end_cell = first_cell.checked_add(u64::try_from(used.len()).ok()?)?;
            let last = u64::from_le_bytes(*used.last()?);
            if !rest.is_empty() || last == 0 || end_cell > cells {
                return None;
            }
            let mark = self.mark;
            let levels = self.cells.levels_mut(usize::try_from(number).ok()?, &mark)?;
            for (level, used) in levels.iter_mut().zip(used) {
                let used = Amount::from_millionths(u64::from_le_bytes(*used))?.millionths();
                fullest = fullest.max(used);
                *level.get_mut() = mark.level_of(used);
            }
        }
        Amount::from_millionths(fullest)
    }
}
