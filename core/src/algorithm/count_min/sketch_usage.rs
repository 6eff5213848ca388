//! A sketch as a usage: what is stored of it, and what is propagated of a call.

use super::Sketch;
use super::cells::{CELLS_A_PIECE, Cells};
use super::estimate;
use super::item_at_once::ItemCharge;
use super::mark::Mark;
use super::secret::{ItemCells, Secret};
use super::size::{ROWS, SketchSize};
use super::sketch_change::SketchChange;
use crate::algorithm::bucket::{Bucket, BucketUsage};
use crate::kind::Kind;
use crate::limit::{InfoField, Limit, Usage};
use crate::number::{Amount, Span, Timestamp};
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};
use arrayvec::ArrayVec;
use std::fmt;
use std::sync::atomic::Ordering::Relaxed;

/// What the effect begins with that adds pieces to those that were told before.
const PART: u64 = 2;

/// How many pieces are written in one part: 256 KB of cells.
const PIECES_A_PART: usize = 64;

/// What a sketch's key remembers.
#[derive(Clone, Default)]
pub struct SketchUsage {
    made: Option<Made>,
    /// What is used of the fullest cell, and the instant up to which all have drained.
    fullest: BucketUsage,
}

/// What a sketch has from its first charge on.
#[derive(Clone)]
pub(super) struct Made {
    size: SketchSize,
    secret: Secret,
    /// What has drained of every cell up to the instant.
    pub(super) mark: Mark,
    /// The numbers that the last charge brought, for people.
    numbers: Bucket,
    cells: Cells,
    /// The cells that have been raised since the last time that an effect was asked for.
    raised: ArrayVec<u32, { ROWS_OF_CELLS }>,
    /// What is used of each of those, in millionths.
    raised_to: u64,
}

/// How many cells an item has, one in each row.
pub(super) const ROWS_OF_CELLS: usize = 4;

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
    /// What items are hashed by; `None` of a sketch that is not made.
    #[inline(always)]
    pub(super) fn hashing(&self) -> Option<(SketchSize, Secret)> {
        self.made.as_ref().map(|made| (made.size, made.secret))
    }

    /// Makes the sketch.
    #[cold]
    pub(super) fn make(&mut self, size: SketchSize, secret: Secret, numbers: Bucket, now: Timestamp) {
        self.fullest = BucketUsage::at(Amount::ZERO, now);
        self.made = Some(Made::new(size, secret, numbers));
    }

    /// What is used of the fullest cell: when that has drained, all have.
    #[inline(always)]
    pub(super) fn fullest(&self) -> BucketUsage {
        self.fullest
    }

    /// What is used of the bucket that has these cells.
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

    /// Has all cells drain until `now`, and raises those of an item to what is used of its bucket then.
    #[inline]
    pub(super) fn charge(&mut self, bucket: &Bucket, whole: Amount, now: Timestamp, cells: ItemCells, used: Amount) {
        let Some(made) = &mut self.made else { return };
        let before = self.fullest.used();
        bucket.advance(&mut self.fullest, now);
        made.mark.advance(before.minus(self.fullest.used()).millionths());
        made.numbers = bucket.limited_to(whole);
        made.raise(cells, used, true);
        self.fullest = BucketUsage::at(self.fullest.used().max(used), self.fullest.drained_to());
    }

    /// Makes a change that was worked out at this usage. Its effect is asked for next if it is `told`.
    #[inline(always)]
    pub fn apply_charge(&mut self, charge: &ItemCharge, sketch: &Sketch, told: bool) {
        let Some(made) = &mut self.made else { return };
        made.mark.advance(charge.drained.millionths());
        made.numbers = sketch.shown();
        made.raise(charge.cells, charge.used, told);
        self.fullest = BucketUsage::at(charge.fullest.used().max(charge.used), charge.fullest.drained_to());
    }

    /// Where each of its blocks lies.
    #[cfg(test)]
    pub(super) fn places(&self) -> Vec<usize> {
        self.made.as_ref().map_or_else(Vec::new, |made| made.cells.places())
    }

    /// How much of the cells is in use at `now`, as far as a constant number of them tells.
    fn shares(&self, made: &Made, now: Timestamp) -> estimate::Shares {
        let drained = made.numbers.drained(now.since(self.fullest.drained_to()));
        estimate::shares(made.size, made.numbers.limit(), |cell| made.used(cell).saturating_sub(drained.millionths()))
    }
}

impl Made {
    fn new(size: SketchSize, secret: Secret, numbers: Bucket) -> Made {
        let cells = usize::try_from(size.columns().saturating_mul(ROWS)).unwrap_or(0);
        Made {
            size,
            secret,
            mark: Mark::default(),
            numbers,
            cells: Cells::new(cells),
            raised: ArrayVec::new(),
            raised_to: 0,
        }
    }

    /// Whether items are found in the same cells of both.
    pub(super) fn is_same(&self, other: &Made) -> bool {
        (self.size, self.secret) == (other.size, other.secret)
    }

    /// What is used of a cell, in millionths, at the instant up to which all have drained.
    #[inline(always)]
    fn used(&self, cell: u32) -> u64 {
        self.cells.level(cell).map_or(0, |(level, era)| self.mark.usage(level, era))
    }

    /// Raises those cells of an item that are below what is used of its bucket. Which were is kept if it is `told`.
    #[inline(always)]
    fn raise(&mut self, cells: ItemCells, used: Amount, told: bool) {
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
    fn encode_head(&self, drained_to: Timestamp, to: &mut impl Encoder) {
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
    pub(super) fn decode_head(from: &mut impl Decoder) -> Option<(Made, Timestamp)> {
        let size = SketchSize::stored(from.integer()?)?;
        let secret = Secret { halves: [from.integer()?, from.integer()?] };
        let mark = Mark::stored(from.integer()?, from.integer()?)?;
        let drained_to = Timestamp::from_micros(from.integer()?)?;
        let numbers = Bucket::of_fields([from.integer()?, from.integer()?, from.integer()?])?;
        Some((Made { mark, ..Made::new(size, secret, numbers) }, drained_to))
    }

    /// Writes pieces from the one with the number `from` on, as many as `most`, those in use; the number of the next
    /// that there is.
    fn encode_pieces(&self, from: usize, most: usize, to: &mut impl Encoder) -> Option<usize> {
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
    fn decode_pieces(&mut self, from: &mut impl Decoder) -> Option<Amount> {
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

impl SketchUsage {
    /// Takes over what is told beside the cells; the sketch, if it is made.
    fn follow(&mut self, head: &Made, drained_to: Timestamp) -> &mut Made {
        let made = self.made.get_or_insert_with(|| Made::new(head.size, head.secret, head.numbers));
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
        let (mut made, drained_to) = Made::decode_head(from)?;
        let fullest = made.decode_pieces(from)?;
        let used = fullest != Amount::ZERO;
        used.then(|| SketchUsage { made: Some(made), fullest: BucketUsage::at(fullest, drained_to) })
    }
}

impl Usage for SketchUsage {
    const KIND: Kind = Kind::Sketch;
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
        made.encode_pieces(from, PIECES_A_PART, to)
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, _version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => SketchUsage::decode_whole(from).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => SketchChange::decode(from)
                .is_some_and(|told| told.drained_to <= latest && told.fits(self.made.as_ref())),
            // A part of what was told before, as of the same instant.
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
                if let Some(told) = SketchChange::decode(from) {
                    self.apply(told);
                }
            }
            _ => {
                let Some((head, drained_to)) = Made::decode_head(from) else { return };
                let fullest = self.follow(&head, drained_to).decode_pieces(from);
                self.raise_fullest(fullest.unwrap_or_default());
            }
        }
    }

    fn heap_size(&self) -> usize {
        self.made.as_ref().map_or(0, |made| made.cells.bytes())
    }

    fn effort(&self) -> usize {
        self.made.as_ref().map_or(1, |made| made.cells.blocks().saturating_add(1))
    }

    fn renew_pieces(&mut self, from: usize, may_go_on: &mut impl FnMut() -> bool) -> Option<usize> {
        self.made.as_mut().and_then(|made| made.cells.renew(from, may_go_on))
    }

    fn describe(&self, now: Timestamp) -> Vec<(&'static str, InfoField)> {
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
