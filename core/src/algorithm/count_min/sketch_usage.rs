//! Usage of a sketch, with its encoding and effects.
//!
//! The words of an effect are: the tag (1: the change of a call; 0 and 2: the first and a further part of the whole
//! sketch); the size; the two halves of the secret; the water mark, as completed eras of 2^62 millionths and millionths
//! of the current era; the microsecond up to which the sketch has drained; the numbers of the last charge, which are
//! the millionths of capacity and refill and the microseconds of the period. In a change, the number of raised cells
//! follows, each with its index and the millionths used. In a part, the number of pieces follows, each with its index
//! and eight bytes per cell. Applying an effect twice gives the same sketch as applying it once.

use super::estimate;
use super::secret::{ItemCells, Secret};
use super::size::SketchSize;
use super::sketch_state::{CELLS_PER_ITEM, SketchState};
use crate::algorithm::bucket::{Bucket, BucketUsage};
use crate::limit::{InfoField, Limit, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};
use arrayvec::ArrayVec;
use std::fmt;

/// First field of an effect that adds pieces to an earlier part.
const PART: u64 = 2;

/// Number of pieces in one part: 256 KB of cells.
const PIECES_PER_PART: usize = 64;

/// Usage of a sketch.
#[derive(Clone, Default)]
pub struct SketchUsage {
    state: Option<SketchState>,
    /// Usage of the fullest cell, with the time up to which all cells have drained. Once the fullest cell has drained,
    /// all cells have.
    pub(super) fullest: BucketUsage,
}

impl fmt::Debug for SketchUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut output = f.debug_struct("SketchUsage");
        output.field("fullest", &self.fullest);
        if let Some(state) = &self.state {
            output.field("size", &state.size).field("mark", &state.mark).field("bucket", &state.bucket);
            let used = (0..state.cell_count()).map(|cell| (cell, state.used(cell))).filter(|(_, used)| *used > 0);
            let used: Vec<(u32, u64)> = used.take(64).collect();
            output.field("used", &used);
        }
        output.finish_non_exhaustive()
    }
}

impl SketchUsage {
    /// Returns the size and the secret for hashing items, or `None` for an unused sketch.
    #[inline(always)]
    pub(super) fn hash_parameters(&self) -> Option<(SketchSize, Secret)> {
        self.state.as_ref().map(|state| (state.size, state.secret))
    }

    /// Initializes an unused sketch.
    #[cold]
    pub(super) fn initialize(&mut self, size: SketchSize, secret: Secret, bucket: Bucket, now: Timestamp) {
        self.fullest = BucketUsage { used: Amount::ZERO, drained_to: now };
        self.state = Some(SketchState::new(size, secret, bucket));
    }

    /// Returns the usage of an item's bucket from the item's cells.
    #[inline(always)]
    pub(super) fn usage_of_cells(&self, cells: Option<ItemCells>) -> BucketUsage {
        let used = match (&self.state, cells) {
            (Some(state), Some([first, second, third, fourth])) => {
                let used = |cell| state.used(cell);
                used(first).min(used(second)).min(used(third)).min(used(fourth))
            }
            _ => 0,
        };
        BucketUsage { used: Amount::saturating(used), ..self.fullest }
    }

    /// Drains all cells until `now`, and raises the `cells` of an item to `used`, the usage of the item's bucket after
    /// the charge. Stores the bucket with the displayed `capacity`.
    #[inline]
    pub(super) fn charge(&mut self, bucket: &Bucket, capacity: Amount, now: Timestamp, cells: ItemCells, used: Amount) {
        let Some(state) = &mut self.state else { return };
        let before = self.fullest.used;
        bucket.advance(&mut self.fullest, now);
        state.mark.advance(before.minus(self.fullest.used).millionths());
        state.bucket = bucket.limited_to(capacity);
        state.raise(cells, used);
        self.raise_fullest(used);
    }

    /// Returns the number of these cells that allocate a piece when they are raised.
    #[inline(always)]
    pub(super) fn allocations(&self, cells: ItemCells) -> usize {
        self.state.as_ref().map_or(0, |state| cells.into_iter().filter(|cell| state.cells.allocates(*cell)).count())
    }

    /// Returns the addresses of all blocks.
    #[cfg(test)]
    pub(super) fn addresses(&self) -> Vec<usize> {
        self.state.as_ref().map_or_else(Vec::new, |state| state.cells.addresses())
    }

    /// Returns the shares for RL.INFO at `now`, estimated from a sample of the cells.
    fn shares(&self, state: &SketchState, now: Timestamp) -> estimate::Shares {
        let drained = state.bucket.drained_rounded_down(now.since(self.fullest.drained_to));
        estimate::shares(state.size, state.bucket.limit(), |cell| state.used(cell).saturating_sub(drained.millionths()))
    }

    /// Applies the state without the cells to this sketch, and initializes an unused sketch.
    fn apply_head(&mut self, head: &SketchState, drained_to: Timestamp) -> &mut SketchState {
        let state = self.state.get_or_insert_with(|| SketchState::new(head.size, head.secret, head.bucket));
        let drained = head.mark.since(&state.mark).unwrap_or(0);
        (state.mark, state.bucket) = (head.mark, head.bucket);
        self.fullest = BucketUsage { used: self.fullest.used.minus(Amount::saturating(drained)), drained_to };
        state
    }

    fn raise_fullest(&mut self, used: Amount) {
        self.fullest.used = self.fullest.used.max(used);
    }

    fn apply(&mut self, SketchChange { head, drained_to, raised }: SketchChange) {
        let state = self.apply_head(&head, drained_to);
        for (cell, used) in &raised {
            state.cells.raise(*cell, state.mark.level_of(used.millionths()), &state.mark);
        }
        raised.into_iter().for_each(|(_, used)| self.raise_fullest(used));
    }
}

/// Change of a sketch by a call.
struct SketchChange {
    /// State without the cells.
    head: SketchState,
    /// Time up to which the sketch has drained.
    drained_to: Timestamp,
    /// Raised cells with their usage.
    raised: ArrayVec<(u32, Amount), { CELLS_PER_ITEM }>,
}

impl SketchChange {
    /// Decodes a change from an effect. Returns `None` if it is malformed.
    fn decode(from: &mut impl Decoder) -> Option<SketchChange> {
        let (head, drained_to) = SketchState::decode_head(from)?;
        let mut raised = ArrayVec::new();
        for _ in 0..from.integer()? {
            let cell = u32::try_from(from.integer()?).ok().filter(|cell| *cell < head.cell_count())?;
            let used = Amount::from_millionths(from.integer()?).filter(|used| *used != Amount::ZERO)?;
            raised.try_push((cell, used)).ok()?;
        }
        Some(SketchChange { head, drained_to, raised })
    }

    /// Returns `true` if the change can have happened to the sketch.
    fn fits(&self, state: Option<&SketchState>) -> bool {
        match state {
            Some(state) => state.has_same_cells(&self.head) && self.head.mark.since(&state.mark).is_some(),
            None => !self.raised.is_empty(),
        }
    }
}

impl Usage for SketchUsage {
    const KIND: UsageKind = UsageKind::Sketch;
    const HAS_PIECES: bool = true;
    const PROPAGATES_CHANGES: bool = true;

    fn is_unused(&self) -> bool {
        self.fullest.is_unused()
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.fullest.ahead(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        self.fullest.move_back(now);
    }

    fn encode(&self, to: &mut impl Encoder) {
        if let Some(state) = &self.state {
            state.encode_head(self.fullest.drained_to, to);
            state.encode_pieces(0, usize::MAX, to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SketchUsage> {
        let (mut state, drained_to) = SketchState::decode_head(from)?;
        let used = state.decode_pieces(from).filter(|used| *used != Amount::ZERO)?;
        Some(SketchUsage { state: Some(state), fullest: BucketUsage { used, drained_to } })
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let Some(state) = &mut self.state else { return };
        to.integer(CHANGE);
        state.encode_head(self.fullest.drained_to, to);
        to.integer(u64::try_from(state.raised.len()).unwrap_or(0));
        for cell in state.raised.drain(..) {
            to.integer(u64::from(cell));
            to.integer(state.raised_usage);
        }
    }

    fn encode_part_of_whole(&self, from: usize, to: &mut impl Encoder) -> Option<usize> {
        let state = self.state.as_ref()?;
        to.integer(if from == 0 { WHOLE } else { PART });
        state.encode_head(self.fullest.drained_to, to);
        state.encode_pieces(from, PIECES_PER_PART, to)
    }

    fn accepts_change(&self, tag: u64, from: &mut impl Decoder, latest: Timestamp) -> bool {
        match tag {
            CHANGE => SketchChange::decode(from)
                .is_some_and(|change| change.drained_to <= latest && change.fits(self.state.as_ref())),
            // A part must have the same time as the earlier parts.
            PART => {
                SketchUsage::decode(from, SketchUsage::VERSION).is_some_and(|part| match (&self.state, &part.state) {
                    (Some(state), Some(part_state)) => {
                        let has_same_time = self.fullest.drained_to == part.fullest.drained_to;
                        state.has_same_cells(part_state) && state.mark == part_state.mark && has_same_time
                    }
                    _ => false,
                })
            }
            _ => false,
        }
    }

    fn apply_change(&mut self, tag: u64, from: &mut impl Decoder) {
        if tag == CHANGE {
            if let Some(change) = SketchChange::decode(from) {
                self.apply(change);
            }
        } else if let Some((head, drained_to)) = SketchState::decode_head(from) {
            let fullest = self.apply_head(&head, drained_to).decode_pieces(from);
            self.raise_fullest(fullest.unwrap_or_default());
        }
    }

    fn entries(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.cells.allocated_pieces)
    }

    fn heap_size(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.cells.bytes())
    }

    fn free_effort(&self) -> usize {
        self.state.as_ref().map_or(1, |state| state.cells.blocks().saturating_add(1))
    }

    fn renew_pieces(&mut self, from: usize, has_time: &mut impl FnMut() -> bool) -> Option<usize> {
        self.state.as_mut().and_then(|state| state.cells.renew(from, has_time))
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let Some(state) = &self.state else { return Vec::new() };
        let shares = self.shares(state, now);
        vec![
            ("size", InfoField::Count(state.size.bytes())),
            ("numbers", InfoField::Text(state.bucket.arguments())),
            ("filled", InfoField::Text(estimate::format_share(shares.filled))),
            ("unseen_denied", InfoField::Text(estimate::format_share(shares.unseen_denied))),
        ]
    }
}
