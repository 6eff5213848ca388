//! Usage of a sketch, with its encoding and effects.

use super::estimate;
use super::secret::{ItemCells, Secret};
use super::size::SketchSize;
use super::sketch_change::SketchChange;
use super::sketch_state::SketchState;
use crate::algorithm::bucket::{Bucket, BucketUsage};
use crate::limit::{InfoField, Limit, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::usage_kind::UsageKind;
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};
use std::fmt;

/// First field of an effect that adds pieces to an earlier part.
const PART: u64 = 2;

/// Number of pieces in one part: 256 KB of cells.
const PIECES_PER_PART: usize = 64;

/// Usage of a sketch.
#[derive(Clone, Default)]
pub struct SketchUsage {
    state: Option<SketchState>,
    /// Usage of the fullest cell, with the time up to which all cells have drained.
    fullest: BucketUsage,
}

impl fmt::Debug for SketchUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SketchUsage");
        shown.field("fullest", &self.fullest);
        if let Some(state) = &self.state {
            shown.field("size", &state.size).field("mark", &state.mark).field("numbers", &state.numbers);
            let used = (0..state.count()).map(|cell| (cell, state.used(cell))).filter(|(_, used)| *used > 0);
            let used: Vec<(u32, u64)> = used.take(64).collect();
            shown.field("used", &used);
        }
        shown.finish_non_exhaustive()
    }
}

impl SketchUsage {
    /// Returns the size and the secret for hashing items, or `None` for an unused sketch.
    #[inline(always)]
    pub(super) fn hashing(&self) -> Option<(SketchSize, Secret)> {
        self.state.as_ref().map(|state| (state.size, state.secret))
    }

    /// Initializes an unused sketch.
    #[cold]
    pub(super) fn initialize(&mut self, size: SketchSize, secret: Secret, numbers: Bucket, now: Timestamp) {
        self.fullest = BucketUsage::at(Amount::ZERO, now);
        self.state = Some(SketchState::new(size, secret, numbers));
    }

    /// Returns the usage of the fullest cell: when it has drained, all have.
    #[inline(always)]
    pub(super) fn fullest(&self) -> BucketUsage {
        self.fullest
    }

    /// Returns the usage of the bucket with these cells.
    #[inline(always)]
    pub(super) fn bucket_of(&self, cells: Option<ItemCells>) -> BucketUsage {
        let used = match (&self.state, cells) {
            (Some(state), Some([first, second, third, fourth])) => {
                let used = |cell| state.used(cell);
                used(first).min(used(second)).min(used(third)).min(used(fourth))
            }
            _ => 0,
        };
        BucketUsage::at(Amount::saturating(used), self.fullest.drained_to())
    }

    /// Drains all cells until `now`, and raises those of an item to the usage of its bucket at that time.
    #[inline]
    pub(super) fn charge(&mut self, bucket: &Bucket, whole: Amount, now: Timestamp, cells: ItemCells, used: Amount) {
        let Some(state) = &mut self.state else { return };
        let before = self.fullest.used();
        bucket.advance(&mut self.fullest, now);
        state.mark.advance(before.minus(self.fullest.used()).millionths());
        state.numbers = bucket.limited_to(whole);
        state.raise(cells, used);
        self.fullest = BucketUsage::at(self.fullest.used().max(used), self.fullest.drained_to());
    }

    /// Returns the number of cells whose raise allocates a piece.
    #[inline(always)]
    pub(super) fn allocations(&self, cells: ItemCells) -> usize {
        self.state.as_ref().map_or(0, |state| cells.into_iter().filter(|cell| state.cells.allocates(*cell)).count())
    }

    /// Returns the addresses of all blocks.
    #[cfg(test)]
    pub(super) fn places(&self) -> Vec<usize> {
        self.state.as_ref().map_or_else(Vec::new, |state| state.cells.places())
    }

    /// Returns the shares of used cells at `now`, estimated from a sample.
    fn shares(&self, state: &SketchState, now: Timestamp) -> estimate::Shares {
        let drained = state.numbers.drained(now.since(self.fullest.drained_to()));
        estimate::shares(state.size, state.numbers.limit(), |cell| {
            state.used(cell).saturating_sub(drained.millionths())
        })
    }
}

impl SketchUsage {
    /// Applies the state without the cells, and initializes an unused sketch.
    fn follow(&mut self, head: &SketchState, drained_to: Timestamp) -> &mut SketchState {
        let state = self.state.get_or_insert_with(|| SketchState::new(head.size, head.secret, head.numbers));
        let drained = head.mark.since(&state.mark).unwrap_or(0);
        (state.mark, state.numbers) = (head.mark, head.numbers);
        self.fullest = BucketUsage::at(self.fullest.used().minus(Amount::saturating(drained)), drained_to);
        state
    }

    fn raise_fullest(&mut self, used: Amount) {
        self.fullest = BucketUsage::at(self.fullest.used().max(used), self.fullest.drained_to());
    }

    fn apply(&mut self, SketchChange { head, drained_to, raised }: SketchChange) {
        let state = self.follow(&head, drained_to);
        for (cell, used) in &raised {
            state.cells.raise(*cell, state.mark.level_of(used.millionths()), &state.mark);
        }
        raised.into_iter().for_each(|(_, used)| self.raise_fullest(used));
    }

    fn decode_whole(from: &mut impl Decoder) -> Option<SketchUsage> {
        let (mut state, drained_to) = SketchState::decode_head(from)?;
        let fullest = state.decode_pieces(from)?;
        let used = fullest != Amount::ZERO;
        used.then(|| SketchUsage { state: Some(state), fullest: BucketUsage::at(fullest, drained_to) })
    }
}

impl Usage for SketchUsage {
    const KIND: UsageKind = UsageKind::Sketch;
    const HAS_PIECES: bool = true;

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
            state.encode_head(self.fullest.drained_to(), to);
            state.encode_pieces(0, usize::MAX, to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SketchUsage> {
        SketchUsage::decode_whole(from)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let Some(state) = &mut self.state else { return };
        to.integer(CHANGE);
        state.encode_head(self.fullest.drained_to(), to);
        to.integer(u64::try_from(state.raised.len()).unwrap_or(0));
        for cell in state.raised.drain(..) {
            to.integer(u64::from(cell));
            to.integer(state.raised_to);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn encode_part_of_whole(&self, from: usize, to: &mut impl Encoder) -> Option<usize> {
        let state = self.state.as_ref()?;
        to.integer(if from == 0 { WHOLE } else { PART });
        state.encode_head(self.fullest.drained_to(), to);
        state.encode_pieces(from, PIECES_PER_PART, to)
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, _version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => SketchUsage::decode_whole(from).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => SketchChange::decode(from)
                .is_some_and(|change| change.drained_to <= latest && change.fits(self.state.as_ref())),
            // A part must have the same time as the earlier parts.
            Some(PART) => SketchUsage::decode_whole(from).is_some_and(|part| match (&self.state, &part.state) {
                (Some(state), Some(part_state)) => {
                    let as_of_one_instant = self.fullest.drained_to() == part.fullest.drained_to();
                    state.is_same(part_state) && state.mark == part_state.mark && as_of_one_instant
                }
                _ => false,
            }),
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = SketchUsage::decode(from, version).unwrap_or_default(),
            Some(CHANGE) => {
                if let Some(change) = SketchChange::decode(from) {
                    self.apply(change);
                }
            }
            _ => {
                let Some((head, drained_to)) = SketchState::decode_head(from) else { return };
                let fullest = self.follow(&head, drained_to).decode_pieces(from);
                self.raise_fullest(fullest.unwrap_or_default());
            }
        }
    }

    fn entries(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.cells.allocated_pieces())
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
            ("numbers", InfoField::Text(state.numbers.numbers().to_string())),
            ("filled", InfoField::Text(estimate::text(shares.filled))),
            ("unseen_denied", InfoField::Text(estimate::text(shares.unseen_denied))),
        ]
    }
}
