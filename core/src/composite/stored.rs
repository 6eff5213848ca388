//! A key with several limits as a usage: what is stored of it, and what is propagated of a call.

use super::{Beside, Changed, Delta, KnownBy, MAX_PARTS, Part, PartsUsage, forget};
use crate::algorithm::any::{AnyUsage, Single, with_usage};
use crate::algorithm::bucket::BucketUsage;
use crate::algorithm::fixed_window::FixedWindow;
use crate::ban::Ban;
use crate::composite::once::{Charge, IdChange, Ids, Track};
use crate::effect::Nobody;
use crate::kind::Kind;
use crate::limit::{Fact, Known, Usage};
use crate::number::{Span, Timestamp};
use crate::syntax::{MAX_NAME, is_name};
use crate::wire::codec::{CHANGE, Decoder, Encoder, WHOLE};

/// What a part is known by, as it is stored.
const NOTHING: u64 = 0;
const WINDOW: u64 = 1;
const NAME: u64 = 2;

/// The most parts that one call can change.
const MOST_CHANGED: u64 = 8;

/// [`MAX_PARTS`], as it is read.
const MOST_PARTS: u64 = 16;

/// How many parts there can be at once, while a call goes on: those that there were, and those that it makes.
const MOST_SERIALS: u32 = 24;

impl KnownBy {
    fn encode(&self, to: &mut impl Encoder) {
        match self {
            KnownBy::Nothing => to.integer(NOTHING),
            KnownBy::Window(known) => {
                to.integer(WINDOW);
                to.integer(known.micros);
                to.integer(u64::from(known.words));
            }
            KnownBy::Name(name) => {
                to.integer(NAME);
                to.bytes(name);
            }
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<KnownBy> {
        Some(match from.integer()? {
            NOTHING => KnownBy::Nothing,
            WINDOW => KnownBy::Window(Known { micros: from.integer()?, words: u32::try_from(from.integer()?).ok()? }),
            NAME => KnownBy::Name(from.bytes(MAX_NAME).filter(|name| is_name(name))?),
            _ => return None,
        })
    }
}

/// The number of a kind in what is stored: its place among the kinds, which never changes.
fn encode_kind(kind: Kind, to: &mut impl Encoder) {
    to.integer(u64::try_from(kind.index()).unwrap_or(u64::MAX));
}

fn decode_kind(from: &mut impl Decoder) -> Option<Kind> {
    let index = usize::try_from(from.integer()?).ok()?;
    Kind::ALL.get(index).copied().filter(|kind| *kind != Kind::Limits)
}

impl AnyUsage {
    fn decode(kind: Kind, from: &mut impl Decoder) -> Option<AnyUsage> {
        let mut any = AnyUsage::unused(kind)?;
        with_usage!(&mut any, mut usage => decode_into(usage, from))?;
        Some(any)
    }
}

fn decode_into<U: Usage>(usage: &mut U, from: &mut impl Decoder) -> Option<()> {
    let version = u32::try_from(from.integer()?).ok().filter(|version| (1..=U::VERSION).contains(version))?;
    *usage = match from.integer()? {
        0 => U::default(),
        1 => U::decode(from, version)?,
        _ => return None,
    };
    Some(())
}

fn encode_usage<U: Usage>(usage: &U, to: &mut impl Encoder) {
    to.integer(u64::from(U::VERSION));
    // One that nothing is used of may have to stay, for charges that may be settled.
    to.integer(u64::from(!usage.is_unused()));
    if !usage.is_unused() {
        usage.encode(to);
    }
}

impl Part {
    fn encode(&self, to: &mut impl Encoder) {
        to.integer(u64::from(self.serial));
        self.known_by.encode(to);
        encode_kind(self.usage.kind(), to);
        with_usage!(&self.usage, usage => encode_usage(usage, to));
        to.integer(self.recovers_at.micros());
        // One that is idle is as good as none.
        let track = self.track.as_ref().filter(|track| !track.is_idle());
        to.integer(u64::from(track.is_some()));
        if let Some(track) = track {
            track.encode(to);
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<Part> {
        let serial = u32::try_from(from.integer()?).ok()?;
        let known_by = KnownBy::decode(from)?;
        let usage = AnyUsage::decode(decode_kind(from)?, from)?;
        let recovers_at = Timestamp::from_micros(from.integer()?)?;
        let track = if decode_flag(from)? { Some(Box::new(Track::decode(from)?)) } else { None };
        Some(Part { serial, known_by, usage, recovers_at, track })
    }
}

impl PartsUsage {
    /// Whether no two parts could be found by one limit, and every charge that may be settled is in the track of its
    /// part.
    fn is_sound(&mut self) -> bool {
        let alike = |one: &Part, other: &Part| {
            one.serial == other.serial
                || one.usage.kind() == other.usage.kind()
                    && (one.known_by == other.known_by || one.usage.kind() == Kind::Concurrency)
        };
        let mut parts = self.parts.iter().enumerate();
        let differ = parts.all(|(place, part)| self.parts.iter().take(place).all(|before| !alike(before, part)));
        let parts = &mut self.parts;
        let counted = self.beside.iter().flat_map(|beside| beside.ids.charges()).all(|charge| {
            let part = parts.iter_mut().find(|part| part.serial == charge.part);
            part.and_then(|part| part.track.as_mut()).is_some_and(|track| track.count(charge))
        });
        // Now it is known which may be settled.
        let stay = self.parts.iter().all(|part| part.is_sound(self.written));
        let tracks = self.parts.iter().filter_map(|part| part.track.as_ref());
        let sound = tracks.into_iter().all(|track| track.is_sound() && !track.is_idle());
        differ && stay && counted && sound
    }
}

/// What the effect of a call on a part says before what its usage reads.
struct PartHead {
    serial: u32,
    kind: Kind,
    /// What it is known by from now on, if that is new.
    known_by: Option<KnownBy>,
    recovers_at: Timestamp,
    /// The version of its usage's encoding.
    version: u32,
    /// Whether anything is used; if not, nothing of the usage follows.
    used: bool,
}

impl PartHead {
    /// Whether the part has not recovered yet.
    fn stays(&self, now: Timestamp) -> bool {
        self.used && now < self.recovers_at
    }

    /// Of a part that the call has left nothing of.
    fn encode_gone(serial: u32, kind: Kind, to: &mut impl Encoder) {
        to.integer(u64::from(serial));
        encode_kind(kind, to);
        // Known by what it was, recovered, in any version, not used, with no track.
        for field in [0, 0, 1, 0, 0] {
            to.integer(field);
        }
    }

    fn decode(from: &mut impl Decoder) -> Option<PartHead> {
        Some(PartHead {
            serial: u32::try_from(from.integer()?).ok()?,
            kind: decode_kind(from)?,
            known_by: if decode_flag(from)? { Some(KnownBy::decode(from)?) } else { None },
            recovers_at: Timestamp::from_micros(from.integer()?)?,
            version: u32::try_from(from.integer()?).ok()?,
            used: decode_flag(from)?,
        })
    }
}

fn decode_flag(from: &mut impl Decoder) -> Option<bool> {
    match from.integer()? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

/// Of a call at `now`.
fn accepts_usage<U: Usage>(usage: &U, from: &mut impl Decoder, head: &PartHead, now: Timestamp) -> bool {
    (1..=U::VERSION).contains(&head.version) && (!head.used || usage.accepts_effect_until(from, head.version, now))
}

/// `None` if it cannot be read.
fn accepts_track(track: Option<&Track>, from: &mut impl Decoder, settled: Option<&Charge>) -> Option<bool> {
    let unused = Track::default();
    Some(!decode_flag(from)? || track.unwrap_or(&unused).accepts_effect(from, settled))
}

fn apply_usage<U: Usage>(usage: &mut U, from: &mut impl Decoder, head: &PartHead) {
    if head.used {
        usage.apply_effect(from, head.version);
    } else {
        *usage = U::default();
    }
}

impl PartsUsage {
    /// Whether what follows is a change that some call on this can have made.
    fn accepts_change(&self, from: &mut impl Decoder, latest: Timestamp) -> Option<()> {
        let written = Timestamp::from_micros(from.integer()?).filter(|written| *written <= latest)?;
        let moved_back = Span::from_micros(from.integer()?);
        if moved_back != Span::ZERO {
            if written.plus(moved_back) != self.written {
                return None;
            }
            // Rare, and a copy is what shows where all would be.
            let mut moved = self.clone();
            moved.move_back(written);
            return moved.accepts_rest(from, written);
        }
        if written < self.written { None } else { self.accepts_rest(from, written) }
    }

    /// Whether what follows is a change that some call can have made of a plain key, which was `plain`, as it converted
    /// it to this at `now`.
    pub(super) fn accepts_conversion_at<U: Single>(
        &self,
        now: Timestamp,
        plain: Option<&U>,
        from: &mut impl Decoder,
    ) -> Option<()> {
        // With the clock all of it has moved before, and no call converts a key to change nothing.
        let moved_back = Span::from_micros(from.integer()?);
        let changes = moved_back == Span::ZERO && decode_flag(from)?;
        if changes { self.accepts_begun(from, now, plain) } else { None }
    }

    fn accepts_rest(&self, from: &mut impl Decoder, written: Timestamp) -> Option<()> {
        if decode_flag(from)? { self.accepts_begun(from, written, None::<&BucketUsage>) } else { Some(()) }
    }

    /// The same of a change that more is told of than that the clock has gone back. What its first part remembers is in
    /// `plain`, if that is there.
    fn accepts_begun<U: Single>(&self, from: &mut impl Decoder, written: Timestamp, plain: Option<&U>) -> Option<()> {
        let id_change = IdChange::decode(from, written)?;
        let no_ids = Ids::default();
        let ids = self.beside.as_ref().map_or(&no_ids, |beside| &beside.ids);
        if !ids.accepts(&id_change, written, Span::ZERO) {
            return None;
        }
        let settled = match &id_change {
            IdChange::Settled(id) => ids.find(id, written)?.charges,
            IdChange::Nothing | IdChange::Remembered(..) => &[],
        };
        let mut changed: Vec<PartHead> = Vec::new();
        for _ in 0..from.integer().filter(|parts| *parts <= MOST_CHANGED)? {
            let head = PartHead::decode(from)?;
            let charge = settled.iter().find(|charge| charge.part == head.serial);
            let accepted = match self.part(head.serial) {
                Some(part) if part.usage.kind() == head.kind => {
                    (head.known_by.is_none() || part.known_by == KnownBy::Nothing)
                        && match plain {
                            Some(plain) => accepts_usage(plain, from, &head, written),
                            None => with_usage!(&part.usage, usage => accepts_usage(usage, from, &head, written)),
                        }
                        && accepts_track(part.track.as_deref(), from, charge)?
                }
                None if self.is_free(head.serial) && head.known_by.is_some() => {
                    let unused = AnyUsage::unused(head.kind)?;
                    with_usage!(&unused, usage => accepts_usage(usage, from, &head, written))
                        && accepts_track(None, from, None)?
                }
                _ => false,
            };
            if !accepted || !self.is_first(&head, &changed) {
                return None;
            }
            changed.push(head);
        }
        let new = changed.iter().filter(|head| self.part(head.serial).is_none()).count();
        let stays = |_, part: &Part| changed.iter().any(|head| head.serial == part.serial && head.stays(written));
        if new > 0 && self.parts_with(new, stays, written) > MAX_PARTS {
            return None;
        }
        if let IdChange::Remembered(_, call) = &id_change {
            let is_charged = |part: u32| {
                changed.iter().any(|head| head.serial == part && head.kind != Kind::Concurrency && head.used)
            };
            call.charges.iter().all(|(part, _)| is_charged(*part)).then_some(())?;
        }
        if decode_flag(from)? { Ban::decode(from, written).map(|_| ()) } else { Some(()) }
    }

    /// Whether its serial number is one that a new part can get. It need not be the smallest that is free here: of parts
    /// that the call has made and that have gone at once, nothing is told.
    fn is_free(&self, serial: u32) -> bool {
        self.part(serial).is_none() && serial < MOST_SERIALS
    }

    /// Whether no other part, and none that the effect has named before, is known by the same.
    fn is_first(&self, head: &PartHead, before: &[PartHead]) -> bool {
        let alike = |kind: Kind, known_by: &KnownBy| {
            let own = head.known_by.as_ref();
            own.is_some_and(|own| kind == head.kind && (own == known_by || kind == Kind::Concurrency))
        };
        let others = self.parts.iter().filter(|part| part.serial != head.serial);
        others.into_iter().all(|part| !alike(part.usage.kind(), &part.known_by))
            && before.iter().all(|other| {
                other.serial != head.serial
                    && other.known_by.as_ref().is_none_or(|known_by| !alike(other.kind, known_by))
            })
    }

    /// Makes a change that was accepted.
    fn change(&mut self, from: &mut impl Decoder) -> Option<()> {
        let written = Timestamp::from_micros(from.integer()?)?;
        self.change_at(written, from)
    }

    /// Makes the change of an effect that was written at `written`, from its flags on; `None` if it is cut short.
    pub(super) fn change_at(&mut self, written: Timestamp, from: &mut impl Decoder) -> Option<()> {
        if from.integer()? != 0 {
            self.move_back(written);
        }
        if !decode_flag(from)? {
            self.encode_effect(&mut Nobody);
            return Some(());
        }
        let id_change = IdChange::decode(from, written)?;
        let coming = if let IdChange::Remembered(id, _) = &id_change { Some(&**id) } else { None };
        self.begin(written, coming);
        let settled = match &id_change {
            IdChange::Settled(id) => self.beside.as_mut().and_then(|beside| beside.ids.settle(id, written)),
            IdChange::Nothing | IdChange::Remembered(..) => None,
        };
        let settled = settled.unwrap_or_default();
        let mut tracked = Vec::new();
        for _ in 0..from.integer()? {
            self.change_part(from, &settled, &mut tracked)?;
        }
        // Of some charges nothing was settled, or nothing is left.
        for charge in settled.iter().filter(|charge| !tracked.contains(&charge.part)) {
            forget(&mut self.parts, charge);
        }
        if let IdChange::Remembered(id, call) = id_change {
            let mut charges = Vec::with_capacity(call.charges.len());
            for (serial, cost) in call.charges.iter().copied() {
                let part = self.part_mut(serial)?;
                let track = part.track.get_or_insert_default();
                charges.extend(with_usage!(&part.usage, usage => track.charge(usage, serial, cost)));
            }
            self.beside.get_or_insert_default().ids.remember(&id, call.with(charges.into()));
        }
        if decode_flag(from)? {
            self.beside.get_or_insert_default().ban = Ban::decode(from, written)?;
        }
        self.end(written);
        // Nothing of it is to be propagated.
        self.encode_effect(&mut Nobody);
        Some(())
    }

    /// A part is `tracked` if its track changes, too.
    fn change_part(&mut self, from: &mut impl Decoder, settled: &[Charge], tracked: &mut Vec<u32>) -> Option<()> {
        let mut head = PartHead::decode(from)?;
        if self.part(head.serial).is_none() {
            let serial = head.serial;
            let usage = AnyUsage::unused(head.kind)?;
            let part = Part { serial, known_by: KnownBy::Nothing, usage, recovers_at: Timestamp::EPOCH, track: None };
            self.push(part);
        }
        let part = self.part_mut(head.serial)?;
        if let Some(known_by) = head.known_by.take() {
            part.known_by = known_by;
        }
        part.recovers_at = head.recovers_at;
        with_usage!(&mut part.usage, mut usage => apply_usage(usage, from, &head));
        if decode_flag(from)? {
            tracked.push(head.serial);
            let charge = settled.iter().find(|charge| charge.part == head.serial);
            part.track.get_or_insert_default().apply_effect(from, charge);
        }
        Some(())
    }
}

fn encode_effect_of<U: Usage>(usage: &mut U, to: &mut impl Encoder) {
    to.integer(u64::from(U::VERSION));
    to.integer(u64::from(!usage.is_unused()));
    if usage.is_unused() {
        usage.encode_effect(&mut Nobody);
    } else {
        usage.encode_effect(to);
    }
}

impl Usage for PartsUsage {
    const KIND: Kind = Kind::Limits;
    const GROWS: bool = true;

    fn is_unused(&self) -> bool {
        self.parts.is_empty() && self.beside.is_none()
    }

    fn ahead(&self, now: Timestamp) -> Span {
        self.written.since(now)
    }

    fn move_back(&mut self, now: Timestamp) {
        let back = self.ahead(now);
        for part in &mut self.parts {
            part.move_back(self.beside.as_mut().map(|beside| &mut beside.ids), now);
        }
        if let Some(beside) = &mut self.beside {
            beside.ids.move_back(back);
            beside.ban.move_back(back);
        }
        // Of a ban that was over, nothing may be left before the epoch.
        self.beside.take_if(|beside| beside.is_empty());
        self.written = now;
        self.delta.moved_back = back;
    }

    fn encode(&self, to: &mut impl Encoder) {
        to.integer(self.written.micros());
        to.integer(u64::try_from(self.parts.len()).unwrap_or(0));
        for part in &self.parts {
            part.encode(to);
        }
        to.integer(u64::from(self.beside.is_some()));
        if let Some(beside) = &self.beside {
            beside.ids.encode(to);
            beside.ban.encode(to);
        }
    }

    fn decode(from: &mut impl Decoder, _version: u32) -> Option<PartsUsage> {
        let written = Timestamp::from_micros(from.integer()?)?;
        let mut usage = PartsUsage { written, ..PartsUsage::default() };
        for _ in 0..from.integer().filter(|parts| *parts <= MOST_PARTS)? {
            usage.push(Part::decode(from)?);
        }
        usage.beside = match from.integer()? {
            0 => None,
            1 => {
                let beside = Beside { ids: Ids::decode(from, written)?, ban: Ban::decode(from, written)? };
                Some(Box::new(beside)).filter(|beside| !beside.is_empty())?.into()
            }
            _ => return None,
        };
        (usage.is_sound() && !usage.is_unused()).then_some(usage)
    }

    fn encode_effect(&mut self, to: &mut impl Encoder) {
        let Delta { moved_back, begun, changed, ban } = std::mem::take(&mut self.delta);
        to.integer(CHANGE);
        to.integer(self.written.micros());
        to.integer(moved_back.micros());
        to.integer(u64::from(begun));
        if !begun {
            return;
        }
        match &mut self.beside {
            Some(beside) => beside.ids.encode_effect(to),
            None => Ids::encode_no_effect(to),
        }
        let of_others = |change: &&Changed| !change.is_new || self.part(change.serial).is_some();
        to.integer(u64::try_from(changed.iter().filter(of_others).count()).unwrap_or(0));
        for Changed { serial, kind, is_new, named } in changed {
            let Some(part) = self.part_mut(serial) else {
                if !is_new {
                    PartHead::encode_gone(serial, kind, to);
                }
                continue;
            };
            to.integer(u64::from(serial));
            encode_kind(kind, to);
            to.integer(u64::from(named));
            if named {
                part.known_by.encode(to);
            }
            to.integer(part.recovers_at.micros());
            with_usage!(&mut part.usage, mut usage => encode_effect_of(usage, to));
            to.integer(u64::from(part.track.is_some()));
            if let Some(track) = &mut part.track {
                track.encode_effect(to);
            }
        }
        to.integer(u64::from(ban));
        if ban {
            self.beside.as_ref().map_or(Ban::default(), |beside| beside.ban).encode(to);
        }
    }

    fn encode_whole_effect(&self, to: &mut impl Encoder) {
        to.integer(WHOLE);
        self.encode(to);
    }

    fn accepts_effect_until(&self, from: &mut impl Decoder, version: u32, latest: Timestamp) -> bool {
        match from.integer() {
            Some(WHOLE) => PartsUsage::decode(from, version).is_some_and(|usage| !usage.is_after(latest)),
            Some(CHANGE) => self.accepts_change(from, latest).is_some(),
            _ => false,
        }
    }

    fn apply_effect(&mut self, from: &mut impl Decoder, version: u32) {
        match from.integer() {
            Some(WHOLE) => *self = PartsUsage::decode(from, version).unwrap_or_default(),
            _ => {
                self.change(from);
            }
        }
    }

    fn entries(&self) -> usize {
        self.beside.as_ref().map_or(0, |beside| beside.ids.len())
    }

    fn heap_size(&self) -> usize {
        let parts = self.parts.capacity().saturating_mul(size_of::<Part>());
        let of_parts = self.parts.iter().map(Part::heap_size).fold(0, usize::saturating_add);
        let beside =
            self.beside.as_ref().map_or(0, |beside| beside.ids.heap_size().saturating_add(size_of::<Beside>()));
        parts.saturating_add(of_parts).saturating_add(beside)
    }

    fn effort(&self) -> usize {
        let of_parts = self.parts.iter().map(|part| with_usage!(&part.usage, usage => usage.effort()));
        let ids = self.beside.as_ref().map_or(0, |beside| beside.ids.len());
        of_parts.fold(ids.saturating_add(1), usize::saturating_add)
    }

    fn describe(&self, now: Timestamp) -> Vec<(&'static str, Fact)> {
        // As of when it was written, if the clock has gone back.
        let at = now.max(self.written);
        let mut facts = vec![("written", Fact::Instant(self.written))];
        if !self.parts.is_empty() {
            facts.push(("parts", Fact::Parts(self.parts.iter().map(|part| part.describe(now)).collect())));
        }
        if let Some(beside) = &self.beside {
            if !beside.ids.is_empty() {
                facts.push(("ids", Fact::Count(u64::try_from(beside.ids.len()).unwrap_or(u64::MAX))));
            }
            if beside.ban.until() > at {
                facts.push(("banned_until", Fact::Instant(beside.ban.until())));
            }
            if let Some((strikes, since)) = beside.ban.strikes(at) {
                facts.push(("strikes", Fact::Count(u64::from(strikes))));
                facts.push(("first_strike", Fact::Instant(since)));
            }
        }
        facts
    }
}

impl Part {
    fn heap_size(&self) -> usize {
        let name = if let KnownBy::Name(name) = &self.known_by { name.len() } else { 0 };
        let beside = with_usage!(&self.usage, usage => usage.heap_size());
        let track = self.track.as_ref().map_or(0, |track| track.heap_size().saturating_add(size_of::<Track>()));
        [name, self.usage.boxed_size(), beside, track].into_iter().fold(0, usize::saturating_add)
    }

    fn describe(&self, now: Timestamp) -> Vec<(&'static str, Fact)> {
        let mut facts = vec![("kind", Fact::Word(self.usage.kind().name()))];
        match &self.known_by {
            KnownBy::Nothing => {}
            KnownBy::Window(known) => facts.extend(describe_window(*known)),
            KnownBy::Name(name) => facts.push(("name", Fact::Name(name.clone()))),
        }
        facts.push(("recovers_at", Fact::Instant(self.recovers_at)));
        facts.extend(with_usage!(&self.usage, usage => usage.describe(now)));
        facts
    }
}

/// What a window is known by, in the words of a call.
fn describe_window(known: Known) -> Option<(&'static str, Fact)> {
    let length = (known.micros != 0).then(|| Fact::Span(Span::from_micros(known.micros)));
    FixedWindow::words_of(known).map(Fact::Text).or(length).map(|window| ("window", window))
}
