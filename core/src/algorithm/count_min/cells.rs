//! Cells of a sketch, in pieces that are allocated on the first write. Copies of a sketch share pieces until one of
//! them writes (copy-on-write).

use super::mark::WaterMark;
use std::array;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of cells in a piece. With its era and the reference counts, a piece takes 4 KB.
pub(super) const CELLS_PER_PIECE: usize = 509;
/// Number of pieces in a chunk. Copying a sketch increments one reference count per chunk, at most 260.
const PIECES_PER_CHUNK: usize = 254;

const _: () = assert!(size_of::<Piece>() + ARC_COUNTS_SIZE == 4096 && size_of::<Chunk>() + ARC_COUNTS_SIZE == 2048);

/// Size of the reference counts of an `Arc`, in bytes.
const ARC_COUNTS_SIZE: usize = 16;

/// Adjacent cells. Their levels are relative to the beginning of an [era](super::mark). The next write converts them to
/// the current era.
struct Piece {
    /// Era of the levels.
    era: u64,
    /// Levels of the cells. Atomic, so that a sketch that owns the piece alone can write through a shared reference,
    /// without `Arc::make_mut` or `Arc::get_mut`. Their atomic operations would take more instructions than the rest of
    /// a charge.
    levels: [AtomicU64; CELLS_PER_PIECE],
}

impl Clone for Piece {
    fn clone(&self) -> Piece {
        let level = |cell: usize| self.levels.get(cell).map_or(0, |level| level.load(Relaxed));
        Piece { era: self.era, levels: array::from_fn(|cell| AtomicU64::new(level(cell))) }
    }
}

impl Piece {
    /// Converts the levels to the era of `mark`.
    #[cold]
    fn convert_to_era_of(&mut self, mark: &WaterMark) {
        for level in self.levels.iter_mut().map(AtomicU64::get_mut) {
            *level = mark.level_in_current_era(*level, self.era);
        }
        self.era = mark.era;
    }
}

/// Adjacent pieces.
#[derive(Clone)]
struct Chunk {
    pieces: [Option<Arc<Piece>>; PIECES_PER_CHUNK],
}

/// Cells of a sketch. Only pieces with a cell that has been written are allocated.
#[derive(Clone, Default)]
pub(super) struct Cells {
    chunks: Box<[Option<Arc<Chunk>>]>,
    /// Number of allocated chunks.
    allocated_chunks: usize,
    /// Number of allocated pieces.
    pub(super) allocated_pieces: usize,
}

/// Returns the indexes of a cell: its chunk, its piece in the chunk, and its position in the piece.
#[inline(always)]
fn position(cell: u32) -> (usize, usize, usize) {
    let cell = usize::try_from(cell).unwrap_or(usize::MAX);
    let (piece, offset) = (cell / CELLS_PER_PIECE, cell % CELLS_PER_PIECE);
    (piece / PIECES_PER_CHUNK, piece % PIECES_PER_CHUNK, offset)
}

impl Cells {
    /// Creates unused cells, without allocating a piece.
    pub(super) fn new(cells: usize) -> Cells {
        let chunks = cells.div_ceil(CELLS_PER_PIECE).div_ceil(PIECES_PER_CHUNK);
        Cells { chunks: vec![None; chunks].into(), allocated_chunks: 0, allocated_pieces: 0 }
    }

    /// Returns the level of a cell, and the era of the level. Returns `None` if no cell of its piece has been written.
    #[inline(always)]
    pub(super) fn level(&self, cell: u32) -> Option<(u64, u64)> {
        let (chunk, piece, offset) = position(cell);
        let piece = self.chunks.get(chunk)?.as_ref()?.pieces.get(piece)?.as_ref()?;
        Some((piece.levels.get(offset)?.load(Relaxed), piece.era))
    }

    /// Raises a cell to `level`, which is of the era of `mark`. Returns `true` if the cell was below it.
    #[inline(always)]
    pub(super) fn raise(&mut self, cell: u32, level: u64, mark: &WaterMark) -> bool {
        let Some(stored) = self.unshared_level(cell, mark) else {
            return self.prepare_piece_and_raise(cell, level, mark);
        };
        let is_below = stored.load(Relaxed) < level;
        if is_below {
            stored.store(level, Relaxed);
        }
        is_below
    }

    /// Returns the level of a cell in a piece that is not shared and is in the era of `mark`.
    #[inline(always)]
    fn unshared_level(&self, cell: u32, mark: &WaterMark) -> Option<&AtomicU64> {
        let (chunk, piece, offset) = position(cell);
        let piece = self.unshared_piece(chunk, piece)?;
        if piece.era == mark.era { piece.levels.get(offset) } else { None }
    }

    /// Returns a piece if it is allocated and not shared.
    #[inline(always)]
    fn unshared_piece(&self, chunk: usize, piece: usize) -> Option<&Piece> {
        let chunk = self.chunks.get(chunk)?.as_ref().filter(|chunk| Arc::strong_count(chunk) == 1)?;
        chunk.pieces.get(piece)?.as_ref().filter(|piece| Arc::strong_count(piece) == 1).map(|piece| &**piece)
    }

    /// Returns `true` if raising the cell allocates a piece, because it is missing or shared.
    #[inline(always)]
    pub(super) fn allocates(&self, cell: u32) -> bool {
        let (chunk, piece, _) = position(cell);
        self.unshared_piece(chunk, piece).is_none()
    }

    /// Raises a cell of a missing or shared piece, or of a piece in an earlier era.
    #[cold]
    fn prepare_piece_and_raise(&mut self, cell: u32, level: u64, mark: &WaterMark) -> bool {
        let cell = usize::try_from(cell).unwrap_or(usize::MAX);
        let levels = self.levels_mut(cell / CELLS_PER_PIECE, mark);
        let Some(stored) = levels.and_then(|levels| levels.get_mut(cell % CELLS_PER_PIECE)) else { return false };
        let before = *stored.get_mut();
        *stored.get_mut() = before.max(level);
        before < level
    }

    /// Returns the levels of a piece in the era of `mark`, or `None` if the number of the piece is out of range.
    /// Allocates the piece if it is missing, and copies it if it is shared.
    pub(super) fn levels_mut(&mut self, piece: usize, mark: &WaterMark) -> Option<&mut [AtomicU64; CELLS_PER_PIECE]> {
        let (chunk, piece) = (piece / PIECES_PER_CHUNK, piece % PIECES_PER_CHUNK);
        let chunk = self.chunks.get_mut(chunk)?;
        if chunk.is_none() {
            self.allocated_chunks = self.allocated_chunks.saturating_add(1);
        }
        let chunk = chunk.get_or_insert_with(|| Arc::new(Chunk { pieces: [const { None }; PIECES_PER_CHUNK] }));
        let piece = Arc::make_mut(chunk).pieces.get_mut(piece)?;
        if piece.is_none() {
            self.allocated_pieces = self.allocated_pieces.saturating_add(1);
        }
        let new_piece = || Arc::new(Piece { era: mark.era, levels: [const { AtomicU64::new(0) }; CELLS_PER_PIECE] });
        let piece = Arc::make_mut(piece.get_or_insert_with(new_piece));
        if piece.era != mark.era {
            piece.convert_to_era_of(mark);
        }
        Some(&mut piece.levels)
    }

    /// Iterates over the allocated pieces from number `from` on: the number of each, its levels and their era.
    pub(super) fn pieces(&self, from: usize) -> impl Iterator<Item = (usize, &[AtomicU64], u64)> {
        let chunks = self.chunks.iter().enumerate().skip(from / PIECES_PER_CHUNK);
        let chunks = chunks.filter_map(|(at, chunk)| Some((at.saturating_mul(PIECES_PER_CHUNK), chunk.as_ref()?)));
        let pieces = chunks.flat_map(|(first, chunk)| {
            let pieces = chunk.pieces.iter().enumerate();
            pieces.filter_map(move |(at, piece)| Some((first.saturating_add(at), piece.as_ref()?)))
        });
        let pieces = pieces.filter(move |(number, _)| *number >= from);
        pieces.map(|(number, piece)| (number, piece.levels.as_slice(), piece.era))
    }

    /// Moves pieces to new blocks, when the server defragments its memory: from number `from` on, as long as `has_time`
    /// returns `true`. Returns the number of the next piece, if there is one. The list of chunks and the chunks
    /// are moved too, without a check of the time. Shared chunks and pieces are left in place.
    pub(super) fn renew(&mut self, from: usize, has_time: &mut impl FnMut() -> bool) -> Option<usize> {
        if from == 0 {
            let mut chunks = Vec::with_capacity(self.chunks.len());
            chunks.append(&mut std::mem::take(&mut self.chunks).into_vec());
            self.chunks = chunks.into();
        }
        for (index, chunk) in self.chunks.iter_mut().enumerate().skip(from / PIECES_PER_CHUNK) {
            let first = index.saturating_mul(PIECES_PER_CHUNK);
            let Some(unshared) = chunk.as_mut().and_then(Arc::get_mut) else { continue };
            if from <= first {
                let pieces = std::mem::replace(&mut unshared.pieces, [const { None }; PIECES_PER_CHUNK]);
                *chunk = Some(Arc::new(Chunk { pieces }));
            }
            let pieces = chunk.as_mut().and_then(Arc::get_mut).into_iter().flat_map(|unshared| &mut unshared.pieces);
            for (number, piece) in (first..).zip(pieces).filter(|(number, _)| *number >= from) {
                let Some(unshared) = piece.as_mut().filter(|piece| Arc::strong_count(piece) == 1) else { continue };
                if number > from && !has_time() {
                    return Some(number);
                }
                *unshared = Arc::new(Piece::clone(unshared));
            }
        }
        None
    }

    /// Returns the addresses of the list of chunks and of all blocks: each chunk, followed by its pieces.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<usize> {
        let chunks = self.chunks.iter().flatten();
        let chunk_and_pieces = |chunk: &Arc<Chunk>| {
            let pieces = chunk.pieces.iter().flatten().map(|piece| Arc::as_ptr(piece).addr());
            std::iter::once(Arc::as_ptr(chunk).addr()).chain(pieces).collect::<Vec<_>>()
        };
        std::iter::once(self.chunks.as_ptr().addr()).chain(chunks.flat_map(chunk_and_pieces)).collect()
    }

    /// Returns the number of blocks, which are the allocated chunks and pieces. The list of chunks does not count.
    pub(super) fn blocks(&self) -> usize {
        self.allocated_chunks.saturating_add(self.allocated_pieces)
    }

    /// Returns the size of the list of chunks and of all blocks in bytes.
    pub(super) fn bytes(&self) -> usize {
        let list = self.chunks.len().saturating_mul(size_of::<Option<Arc<Chunk>>>());
        list.saturating_add(self.allocated_chunks.saturating_mul(size_of::<Chunk>().saturating_add(ARC_COUNTS_SIZE)))
            .saturating_add(self.allocated_pieces.saturating_mul(size_of::<Piece>().saturating_add(ARC_COUNTS_SIZE)))
    }
}
