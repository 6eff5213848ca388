//! What a sketch has from its first charge on: its size, secret, mark and cells, and how they are stored.

use super::cells::{CELLS_A_PIECE, Cells};
use super::mark::WaterMark;
use super::secret::{ItemCells, Secret};
use super::size::{ROWS, SketchSize};
use crate::algorithm::bucket::Bucket;
use crate::number::{Amount, Timestamp};
use crate::wire::codec::{Decoder, Encoder};
use arrayvec::ArrayVec;
use std::sync::atomic::Ordering::Relaxed;

/// How many cells an item has, one in each row.
pub(super) const ROWS_OF_CELLS: usize = 4;

/// What a sketch has from its first charge on.
#[derive(Clone)]
pub(super) struct MadeSketch {
    /// How much memory its cells take.
    pub(super) size: SketchSize,
    /// The key of the hash that picks an item's cells.
    pub(super) secret: Secret,
    /// What has drained of every cell up to the instant.
    pub(super) mark: WaterMark,
    /// The numbers that the last charge brought, for people.
    pub(super) numbers: Bucket,
    /// What is used, in cells that items share.
    pub(super) cells: Cells,
    /// The cells that have been raised since the last time that an effect was asked for.
    pub(super) raised: ArrayVec<u32, { ROWS_OF_CELLS }>,
    /// What is used of each of those, in millionths.
    pub(super) raised_to: u64,
}

impl MadeSketch {
    /// A sketch whose cells are all unused.
    pub(super) fn new(size: SketchSize, secret: Secret, numbers: Bucket) -> MadeSketch {
        let cells = usize::try_from(size.columns().saturating_mul(ROWS)).unwrap_or(0);
        MadeSketch {
            size,
            secret,
            mark: WaterMark::default(),
            numbers,
            cells: Cells::new(cells),
            raised: ArrayVec::new(),
            raised_to: 0,
        }
    }

    /// Whether items are found in the same cells of both.
    pub(super) fn is_same(&self, other: &MadeSketch) -> bool {
        (self.size, self.secret) == (other.size, other.secret)
    }

    /// What is used of a cell, in millionths, at the instant up to which all have drained.
    #[inline(always)]
    pub(super) fn used(&self, cell: u32) -> u64 {
        self.cells.level(cell).map_or(0, |(level, era)| self.mark.usage(level, era))
    }

    /// Raises those cells of an item that are below what is used of its bucket. Which were is kept if it is `told`.
    #[inline(always)]
    pub(super) fn raise(&mut self, cells: ItemCells, used: Amount, told: bool) {
        let level = self.mark.level_of(used.millionths());
        self.raised.clear();
        self.raised_to = used.millionths();
        for cell in cells {
            if self.cells.raise(cell, level, &self.mark) && told {
                // A row has one of them.
                let _ = self.raised.try_push(cell);
            }
        }
    }

    /// How many cells there can be.
    pub(super) fn count(&self) -> u32 {
        self.size.columns().saturating_mul(ROWS)
    }

    /// What is stored beside the cells.
    pub(super) fn encode_head(&self, drained_to: Timestamp, to: &mut impl Encoder) {
        to.integer(self.size.bytes());
        let [first, second] = self.secret.halves;
        for number in [first, second, self.mark.era(), self.mark.level(), drained_to.micros()] {
            to.integer(number);
        }
        for number in self.numbers.fields() {
            to.integer(number);
        }
    }

    /// Reads what stands before the cells, and until when it has drained; `None` for bytes that no head is written as.
    pub(super) fn decode_head(from: &mut impl Decoder) -> Option<(MadeSketch, Timestamp)> {
        let size = SketchSize::stored(from.integer()?)?;
        let secret = Secret { halves: [from.integer()?, from.integer()?] };
        let mark = WaterMark::stored(from.integer()?, from.integer()?)?;
        let drained_to = Timestamp::from_micros(from.integer()?)?;
        let numbers = Bucket::of_fields([from.integer()?, from.integer()?, from.integer()?])?;
        Some((MadeSketch { mark, ..MadeSketch::new(size, secret, numbers) }, drained_to))
    }

    /// Writes pieces from the one with the number `from` on, as many as `most`, those in use; the number of the next
    /// that there is.
    pub(super) fn encode_pieces(&self, from: usize, most: usize, to: &mut impl Encoder) -> Option<usize> {
        let mut pieces = self.cells.pieces(from).filter_map(|(number, levels, era)| {
            let used = levels.iter().map(move |level| self.mark.usage(level.load(Relaxed), era));
            let length = used.clone().rposition(|used| used > 0)?.saturating_add(1);
            Some((number, used.take(length)))
        });
        let part: Vec<_> = pieces.by_ref().take(most).collect();
        to.integer(u64::try_from(part.len()).unwrap_or(0));
        let mut bytes = Vec::with_capacity(CELLS_A_PIECE.saturating_mul(8));
        for (number, used) in part {
            to.integer(u64::try_from(number).unwrap_or(u64::MAX));
            bytes.clear();
            used.for_each(|used| bytes.extend(used.to_le_bytes()));
            to.bytes(&bytes);
        }
        pieces.next().map(|(number, _)| number)
    }

    /// Reads pieces into the sketch, each in use and once, in order; what is used of the fullest cell.
    pub(super) fn decode_pieces(&mut self, from: &mut impl Decoder) -> Option<Amount> {
        let (mut fullest, mut next) = (0, 0_u64);
        let cells = u64::from(self.count());
        for _ in 0..from.integer()? {
            let number = from.integer().filter(|number| *number >= next)?;
            next = number.checked_add(1)?;
            let bytes = from.bytes(CELLS_A_PIECE.saturating_mul(8))?;
            let (used, rest) = bytes.as_chunks::<8>();
            let first = number.checked_mul(u64::try_from(CELLS_A_PIECE).ok()?)?;
            let end = first.checked_add(u64::try_from(used.len()).ok()?)?;
            let last = u64::from_le_bytes(*used.last()?);
            if !rest.is_empty() || last == 0 || end > cells {
                return None;
            }
            let mark = self.mark;
            let levels = self.cells.piece_mut(usize::try_from(number).ok()?, &mark)?;
            for (level, used) in levels.iter_mut().zip(used) {
                let used = Amount::from_millionths(u64::from_le_bytes(*used))?.millionths();
                fullest = fullest.max(used);
                *level.get_mut() = mark.level_of(used);
            }
        }
        Amount::from_millionths(fullest)
    }
}
