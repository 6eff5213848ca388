//! Usage of a sketch, with its encoding and effects.

use super::estimate;
use super::made_sketch::MadeSketch;
use super::secret::{ItemCells, Secret};
use super::size::SketchSize;
use super::sketch_change::SketchChange;
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
    made: Option<MadeSketch>,
    /// Usage of the fullest cell, with the time up to which all cells have drained.
    fullest: BucketUsage,
}

impl fmt::Debug for SketchUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("SketchUsage");
        shown.field("fullest", &self.fullest);
        if let Some(made) = &self.made {
            shown.field("size", &made.size).field("mark", &made.mark).field("numbers", &made.numbers);
            let used = (0..made.count()).map(|cell| (cell, made.used(cell))).filter(|(_, used)| *used > 0);
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
        self.made.as_ref().map(|made| (made.size, made.secret))
    }

    /// Initializes an unused sketch.
    #[cold]
    pub(super) fn make(&mut self, size: SketchSize, secret: Secret, numbers: Bucket, now: Timestamp) {
        self.fullest = BucketUsage::at(Amount::ZERO, now);
        self.made = Some(MadeSketch::new(size, secret, numbers));
    }

    /// Returns the usage of the fullest cell: when it has drained, all have.
    #[inline(always)]
    pub(super) fn fullest(&self) -> BucketUsage {
        self.fullest
    }

    /// Returns the usage of the bucket with these cells.
    #[inline(always)]
    pub(super) fn bucket_of(&self, cells: Option<ItemCells>) -> BucketUsage {
        let used = match (&self.made, cells) {
            (Some(made), Some([first, second, third, fourth])) => {
                let used = |cell| made.used(cell);
                used(first).min(used(second)).min(used(third)).min(used(fourth))
            }
            _ => 0,
        };
        BucketUsage::at(Amount::saturating(used), self.fullest.drained_to())
    }

    /// Drains all cells until `now`, and raises those of an item to the usage of its bucket at that time.
    #[inline]
    pub(super) fn charge(&mut self, bucket: &Bucket, whole: Amount, now: Timestamp, cells: ItemCells, used: Amount) {
        let Some(made) = &mut self.made else { return };
        let before = self.fullest.used();
        bucket.advance(&mut self.fullest, now);
        made.mark.advance(before.minus(self.fullest.used()).millionths());
        made.numbers = bucket.limited_to(whole);
        made.raise(cells, used);
        self.fullest = BucketUsage::at(self.fullest.used().max(used), self.fullest.drained_to());
    }

    /// Returns the number of cells whose raise allocates a piece.
    #[inline(always)]
    pub(super) fn allocations(&self, cells: ItemCells) -> usize {
        self.made.as_ref().map_or(0, |made| cells.into_iter().filter(|cell| made.cells.allocates(*cell)).count())
    }

    /// Returns the addresses of all blocks.
    #[cfg(test)]
    pub(super) fn places(&self) -> Vec<usize> {
        self.made.as_ref().map_or_else(Vec::new, |made| made.cells.places())
    }

    /// Returns the shares of used cells at `now`, estimated from a sample.
    fn shares(&self, made: &MadeSketch, now: Timestamp) -> estimate::Shares {
        let drained = made.numbers.drained(now.since(self.fullest.drained_to()));
        estimate::shares(made.size, made.numbers.limit(), |cell| made.used(cell).saturating_sub(drained.millionths()))
    }
}

impl SketchUsage {
    /// Applies the state without the cells, and initializes an unused sketch.
    fn follow(&mut self, head: &MadeSketch, drained_to: Timestamp) -> &mut MadeSketch {
        let made = self.made.get_or_insert_with(|| MadeSketch::new(head.size, head.secret, head.numbers));
        let drained = head.mark.since(&made.mark).unwrap_or(0);
        (made.mark, made.numbers) = (head.mark, head.numbers);
        self.fullest = BucketUsage::at(self.fullest.used().minus(Amount::saturating(drained)), drained_to);
        made
    }

    fn raise_fullest(&mut self, used: Amount) {
        self.fullest = BucketUsage::at(self.fullest.used().max(used), self.fullest.drained_to());
    }

    fn apply(&mut self, SketchChange { head, drained_to, raised }: SketchChange) {
        let made = self.follow(&head, drained_to);
        for (cell, used) in &raised {
            made.cells.raise(*cell, made.mark.level_of(used.millionths()), &made.mark);
        }
        raised.into_iter().for_each(|(_, used)| self.raise_fullest(used));
    }

    fn decode_whole(from: &mut impl Decoder) -> Option<SketchUsage> {
        let (mut made, drained_to) = MadeSketch::decode_head(from)?;
        let fullest = made.decode_pieces(from)?;
        let used = fullest != Amount::ZERO;
        used.then(|| SketchUsage { made: Some(made), fullest: BucketUsage::at(fullest, drained_to) })
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
        if let Some(made) = &self.made {
            made.encode_head(self.fullest.drained_to(), to);
            made.encode_pieces(0, usize::MAX, to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<SketchUsage> {
        SketchUsage::decode_whole(from)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let Some(made) = &mut self.made else { return };
        to.integer(CHANGE);
        made.encode_head(self.fullest.drained_to(), to);
        to.integer(u64::try_from(made.raised.len()).unwrap_or(0));
        for cell in made.raised.drain(..) {
            to.integer(u64::from(cell));
            to.integer(made.raised_to);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn encode_part_of_whole(&self, from: usize, to: &mut impl Encoder) -> Option<usize> {
        let made = self.made.as_ref()?;
        to.integer(if from == 0 { WHOLE } else { PART });
        made.encode_head(self.fullest.drained_to(), to);
        made.encode_pieces(from, PIECES_PER_PART, to)
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, _version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => SketchUsage::decode_whole(from).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => SketchChange::decode(from)
                .is_some_and(|change| change.drained_to <= latest && change.fits(self.made.as_ref())),
            // A part must have the same time as the earlier parts.
            Some(PART) => SketchUsage::decode_whole(from).is_some_and(|part| match (&self.made, &part.made) {
                (Some(made), Some(part_made)) => {
                    let as_of_one_instant = self.fullest.drained_to() == part.fullest.drained_to();
                    made.is_same(part_made) && made.mark == part_made.mark && as_of_one_instant
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
                let Some((head, drained_to)) = MadeSketch::decode_head(from) else { return };
                let fullest = self.follow(&head, drained_to).decode_pieces(from);
                self.raise_fullest(fullest.unwrap_or_default());
            }
        }
    }

    fn entries(&self) -> usize {
        self.made.as_ref().map_or(0, |made| made.cells.pieces_made())
    }

    fn heap_size(&self) -> usize {
        self.made.as_ref().map_or(0, |made| made.cells.bytes())
    }

    fn free_effort(&self) -> usize {
        self.made.as_ref().map_or(1, |made| made.cells.blocks().saturating_add(1))
    }

    fn renew_pieces(&mut self, from: usize, may_go_on: &mut impl FnMut() -> bool) -> Option<usize> {
        self.made.as_mut().and_then(|made| made.cells.renew(from, may_go_on))
    }

    fn describe(&self, now: Timestamp, _recovers_at: Option<Timestamp>) -> Vec<(&'static str, InfoField)> {
        let Some(made) = &self.made else { return Vec::new() };
        let shares = self.shares(made, now);
        vec![
            ("size", InfoField::Count(made.size.bytes())),
            ("numbers", InfoField::Text(made.numbers.numbers().to_string())),
            ("filled", InfoField::Text(estimate::text(shares.filled))),
            ("unseen_denied", InfoField::Text(estimate::text(shares.unseen_denied))),
        ]
    }
}
