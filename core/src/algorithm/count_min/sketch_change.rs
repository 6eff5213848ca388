//! Change of a sketch by a call, as encoded in the effect.
//!
//! The words of an effect are: 1 (2: a further part of the whole sketch, in a rewritten AOF); the size; the two halves
//! of the secret; the water mark, as completed eras of 2^62 millionths and millionths of the current one; the
//! microsecond up to which the sketch has drained; the numbers of the last charge, which are the millionths of capacity
//! and refill and the microseconds of the period; then the number of cells, each with its index and the millionths
//! used, or the number of pieces, each with its index and eight bytes per cell. Applying an effect twice has no further
//! effect.

use super::sketch_state::{ROWS_OF_CELLS, SketchState};
use crate::number::{Amount, Timestamp};
use crate::wire::codec::Decoder;
use arrayvec::ArrayVec;

/// Change of a sketch by a call.
pub(super) struct SketchChange {
    /// State without the cells.
    pub(super) head: SketchState,
    /// Time up to which the sketch has drained.
    pub(super) drained_to: Timestamp,
    /// Raised cells with their usage.
    pub(super) raised: ArrayVec<(u32, Amount), { ROWS_OF_CELLS }>,
}

impl SketchChange {
    /// Decodes a change from an effect. Returns `None` if it is malformed.
    pub(super) fn decode(from: &mut impl Decoder) -> Option<SketchChange> {
        let (head, drained_to) = SketchState::decode_head(from)?;
        let mut raised = ArrayVec::new();
        for _ in 0..from.integer()? {
            let cell = u32::try_from(from.integer()?).ok().filter(|cell| *cell < head.count())?;
            let used = Amount::from_millionths(from.integer()?).filter(|used| *used != Amount::ZERO)?;
            raised.try_push((cell, used)).ok()?;
        }
        Some(SketchChange { head, drained_to, raised })
    }

    /// Returns `true` if the change can have happened to the sketch.
    pub(super) fn fits(&self, state: Option<&SketchState>) -> bool {
        match state {
            Some(state) => state.is_same(&self.head) && self.head.mark.since(&state.mark).is_some(),
            None => !self.raised.is_empty(),
        }
    }
}
