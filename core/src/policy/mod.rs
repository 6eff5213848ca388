//! The table of policies: what operators set by name, and what the members of a cluster agree on.
//!
//! A name has two registers, its definition and its scale, each stamped by whoever wrote it; the later stamp stands
//! (`entry.rs`). To merge a [`record`](Table::record) is therefore idempotent, commutative and associative: lost,
//! doubled and reordered messages do no harm, and servers that have heard the same have the same. Whether they have,
//! they compare by a [`digest`](Table::digests) of each of 64 groups of names, and send each other the records of those
//! that differ.
//!
//! That holds while clocks are less than a day apart. A stamp that is further ahead than a day of a server's own clock
//! is the oldest there is, wherever it is stored, and is not taken from peers (`stamp.rs`). So no record is the last
//! one for ever. A replica compares nothing: it takes what its primary says, and a load takes what the disk says
//! ([`Origin`]).
//!
//! A deletion is remembered for a day after it was learned, so that an older set, which comes late, does not undo it.
//! It is in no digest, else servers that forget it at different times would never agree. At most 65536 are remembered.
//!
//! A scale that is for a time ends after that time on every server, whatever its clock: a record says how much of it
//! the sender has left, and each server counts on from there by a clock that is never set back (`clock.rs`).
//!
//! A call finds its policy read and scaled: [`Table::find`] computes nothing but a hash, and allocates nothing. What
//! goes through all policies does so in pieces ([`Walk`]).

mod counts;
mod entry;
mod glob;
mod inbox;
mod record_hash;
mod slot;
mod stamp;
mod steady_clock;
mod walk;

use crate::number::{Amount, Period, Span, Timestamp};
use crate::syntax::Policy;
use crate::wire::args::{Args, whole};
use crate::wire::error::{Error, MustBe, Reason, Syntax};
pub use counts::{Counts, Outcome};
use entry::{Definition, End, PolicyEntry, Record, Scale};
pub use glob::Pattern;
use hashbrown::{HashTable, hash_table};
use inbox::Inbox;
use slot::{Slot, Standing};
pub use stamp::{Horizon, Stamp};
use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use steady_clock::SteadyClock;
pub use walk::{GROUPS, Walk};

/// What a call by a policy's name gets.
#[derive(Debug)]
pub struct Ruling {
    /// The name.
    pub name: Box<[u8]>,
    /// Its limits, scaled as they now are.
    pub policy: Policy,
    /// What has become of calls.
    pub counts: Rc<Counts>,
}

/// What a name finds.
#[derive(Clone, Copy, Debug)]
pub enum Found<'t> {
    /// A policy.
    Ruling(&'t Rc<Ruling>),
    /// One that only a later version can read.
    Unreadable,
    /// None.
    Missing,
}

/// What has to be so for a policy to be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// There is none of that name (`NX`): else it stays as it is.
    IfMissing,
    /// It has that version (`VERSION n`).
    OverVersion(u64),
}

/// By how much to scale a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scaling {
    /// From 0 to 1000.
    pub factor: Amount,
    /// For how long; `None`: for good.
    pub duration: Option<Period>,
}

/// What has become of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The version that now stands.
    pub version: u64,
    /// Whether that is the one that was to be set.
    pub changed: bool,
}

/// Where a record comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Another member of the cluster, or a client: what is later than what is known is taken over, and no stamp that is
    /// beyond the [`Horizon`].
    Peer,
    /// The primary of this replica: what it says holds.
    Primary,
    /// This server's own disk: what it says holds.
    Disk,
}

/// What has become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It said something later.
    Changed,
    /// It said nothing new.
    Unchanged,
    /// What it said is stamped too far ahead.
    Refused,
    /// No server can have written it.
    Invalid,
}

/// What there is to know of a policy.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its name.
    pub name: Box<[u8]>,
    /// The microseconds of the stamp of what it says: more with each set.
    pub version: u64,
    /// When that was, in milliseconds since the epoch.
    pub set_at: u64,
    /// What its limits are multiplied by.
    pub scale: Amount,
    /// For how much longer; `None`: for good.
    pub scale_left: Option<Span>,
    /// The words of its specs, as RL.POLICYSET takes them, of whatever version of the module.
    pub specs: Box<[u8]>,
    /// What has become of calls on this server.
    pub counts: Rc<Counts>,
}

/// The policies of a server.
///
/// ```
/// use ratelimit_core::wire::args::Args;
/// use ratelimit_core::policy::{Condition, Found, Merged, Origin, Table};
/// use ratelimit_core::syntax::Policy;
/// use ratelimit_core::Timestamp;
///
/// let words: [&[u8]; 5] = [b"RL.POLICYSET", b"TOKENBUCKET", b"60", b"60", b"1m"];
/// let policy = Policy::read(&mut Args::new(&words))?;
/// let now = Timestamp::from_clock(1_700_000_000_000_000);
///
/// let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
/// here.set(b"plan:pro", Condition::Always, &policy, now, 4096)?;
/// let record = here.record(b"plan:pro", now).unwrap();
/// assert_eq!(there.merge(&record, Origin::Peer, now), Merged::Changed);
/// assert!(matches!(there.find(b"plan:pro", now), Found::Ruling(_)));
/// assert_eq!(here.digests(), there.digests());
/// # Ok::<(), ratelimit_core::wire::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Table {
    /// Each behind the hash of its name, and in a box, so that little is moved and read when the table grows.
    slots: HashTable<(u64, Box<Slot>)>,
    /// The hashes of all names, in order.
    hashes: BTreeSet<u64>,
    /// Who stamps what is written here.
    node: u64,
    /// The latest time of any stamp that was seen and believed.
    latest: u64,
    /// How many policies there are, the deleted ones not among them.
    live: usize,
    /// Of each group of names the sum of the hashes of its live records.
    digests: [u64; GROUPS],
    /// The deletions that are remembered, as they were learned. Those of names that were set again may be among them.
    deletions: VecDeque<Deletion>,
    /// By which scales end, and deletions are forgotten.
    clock: SteadyClock,
    /// How many records had a stamp that was not believed.
    refused: u64,
    /// What has come from peers and is not taken over yet.
    inbox: Inbox,
}

/// For how long a deletion is remembered.
const REMEMBERED: Span = Span::SECOND.times(86_400);
/// And how many of them at most.
const MOST_DELETIONS: usize = 65_536;
/// How many deletions are forgotten in one go, at most.
const FORGOTTEN_AT_ONCE: usize = 256;

const FACTOR: MustBe = MustBe::number("a number", " from 0 to 1000", "0.5");
const VERSION: MustBe = MustBe::number("a whole number", " above 0", "1700000000000000");
const DURATION: MustBe = MustBe::duration("a duration", " from 1us to 3650d", "10m");
const BEHIND_VERSION: Syntax = Syntax { word: "VERSION", arguments: "version" };
const BEHIND_FOR: Syntax = Syntax { word: "FOR", arguments: "duration" };

#[derive(Debug)]
struct Deletion {
    /// By the steady clock.
    learned: Timestamp,
    name: Box<[u8]>,
    stamp: Stamp,
}

impl Condition {
    /// `[NX | VERSION n]`
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args) -> Result<Condition, Error> {
        if args.accept("NX") {
            return Ok(Condition::IfMissing);
        }
        if args.accept("VERSION") {
            let word = args.argument("version", &BEHIND_VERSION)?;
            let version = whole(word, u64::MAX).filter(|version| *version > 0);
            return version.map(Condition::OverVersion).ok_or_else(|| Error::out_of_range("version", &VERSION, word));
        }
        Ok(Condition::Always)
    }
}

impl Scaling {
    /// `factor [FOR duration]`, and no more.
    ///
    /// # Errors
    /// The first word that is wrong, or missing, as [`Error`] says it.
    pub fn read(args: &mut Args) -> Result<Scaling, Error> {
        let word = args.word()?;
        let in_range = Amount::parse_up(word).is_some_and(|factor| factor <= Scale::MOST);
        let factor = Amount::parse_down(word).filter(|_| in_range);
        let factor = factor.ok_or_else(|| Error::out_of_range("factor", &FACTOR, word))?;
        let duration = if args.accept("FOR") {
            let word = args.argument("duration", &BEHIND_FOR)?;
            Some(Period::parse(word).ok_or_else(|| Error::out_of_range("duration", &DURATION, word))?)
        } else {
            None
        };
        if let Some(word) = args.peek() {
            let reason = match duration {
                Some(_) if word.eq_ignore_ascii_case(b"FOR") => Reason::Again,
                None if Period::parse(word).is_some() => Reason::ForIsMissing,
                _ => Reason::OnlyFor,
            };
            return Err(Error::unexpected(word, reason));
        }
        Ok(Scaling { factor, duration })
    }
}

impl Default for Table {
    fn default() -> Table {
        Table::of_node(0)
    }
}

impl Table {
    /// None yet, of a server that stamps with that number.
    #[must_use]
    pub fn of_node(node: u64) -> Table {
        Table {
            slots: HashTable::new(),
            hashes: BTreeSet::new(),
            node,
            latest: 0,
            live: 0,
            digests: [0; GROUPS],
            deletions: VecDeque::new(),
            clock: SteadyClock::default(),
            refused: 0,
            inbox: Inbox::default(),
        }
    }

    /// Stamps with that number from now on: no other member of the cluster does.
    pub fn stamp_as(&mut self, node: u64) {
        self.node = node;
    }

    /// Notices what the clock shows, and whether it was set back. To be told about once a second.
    pub fn notice(&self, now: Timestamp) {
        self.clock.read(now);
    }

    /// The policy of a name, as it is at `now`.
    #[must_use]
    #[inline(always)]
    pub fn find(&self, name: &[u8], now: Timestamp) -> Found<'_> {
        match self.slot(name).map(|slot| &slot.standing) {
            None | Some(Standing::Deleted) => Found::Missing,
            Some(Standing::Unreadable) => Found::Unreadable,
            Some(Standing::Ruling { scaled: Some(scaled), .. }) if scaled.holds(&self.clock, now) => {
                Found::Ruling(&scaled.ruling)
            }
            Some(Standing::Ruling { defined, .. }) => Found::Ruling(defined),
        }
    }

    #[inline(always)]
    fn slot(&self, name: &[u8]) -> Option<&Slot> {
        self.slots.find(record_hash::of(name), |(_, slot)| *slot.entry.name == *name).map(|(_, slot)| &**slot)
    }

    fn live_slot(&self, name: &[u8]) -> Option<&Slot> {
        self.slot(name).filter(|slot| !slot.entry.is_deleted())
    }

    /// Sets the policy of a name, if the condition holds; its scale stays. A new one is refused if there are `most`.
    ///
    /// # Errors
    /// Why it is not set; a missing policy can be no condition's version.
    pub fn set(
        &mut self,
        name: &[u8],
        condition: Condition,
        policy: &Policy,
        now: Timestamp,
        most: usize,
    ) -> Result<Set, Error> {
        let stands = self.live_slot(name).map(|slot| &slot.entry.definition);
        let version = stands.map(Definition::version);
        match (condition, version) {
            (Condition::IfMissing, Some(version)) => return Ok(Set { version, changed: false }),
            (Condition::OverVersion(_), None) => return Err(Error::no_policy(std::iter::once(name))),
            (Condition::OverVersion(named), Some(version)) if named != version => {
                return Err(Error::other_version(name, version, named));
            }
            (_, None) if self.live >= most => return Err(Error::TooManyPolicies { most }),
            _ => {}
        }
        let (horizon, stamp) = (Horizon::of(now), self.next_stamp(name, now)?);
        let born = stands.map_or(stamp, |stands| stands.born_within(horizon));
        let text = policy.to_string().into_bytes().into();
        let definition = Definition { stamp, born, counted: stamp.at, set_at: now.floor_millis(), text };
        let (scale, left) = self.kept_scale(name, version.is_some(), horizon, now);
        self.put(PolicyEntry { name: name.into(), definition, scale }, left, None, now);
        Ok(Set { version: stamp.at, changed: true })
    }

    /// Scales the policy of a name, instead of what it was scaled by.
    ///
    /// # Errors
    /// There is no such policy.
    pub fn scale(&mut self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<Facts, Error> {
        let missing = || Error::no_policy(std::iter::once(name));
        let stands = &self.live_slot(name).ok_or_else(missing)?.entry.definition;
        let definition = Definition { born: stands.born_within(Horizon::of(now)), ..stands.clone() };
        let end = scaling.duration.map_or(End::Never, |duration| {
            let until = now.plus(duration.span()).min(Timestamp::MAX);
            End::For { duration, until }
        });
        let scale = Scale { stamp: self.next_stamp(name, now)?, factor: scaling.factor, end };
        self.put(PolicyEntry { name: name.into(), definition, scale }, scaling.duration.map(Period::span), None, now);
        self.get(name, now).ok_or_else(missing)
    }

    /// Deletes the policy of a name; whether there was one.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn delete(&mut self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        let Some(stands) = self.live_slot(name).map(|slot| &slot.entry.definition) else { return Ok(false) };
        let (horizon, stamp) = (Horizon::of(now), self.next_stamp(name, now)?);
        let definition = Definition {
            stamp,
            born: stands.born_within(horizon),
            counted: stamp.at,
            set_at: now.floor_millis(),
            text: Box::default(),
        };
        let (scale, left) = self.kept_scale(name, false, horizon, now);
        self.put(PolicyEntry { name: name.into(), definition, scale }, left, None, now);
        Ok(true)
    }

    /// The scale of a name and what is left of it, for an entry whose definition is another: one that is beyond the
    /// horizon stays only with a policy that stays.
    fn kept_scale(&self, name: &[u8], stays: bool, horizon: Horizon, now: Timestamp) -> (Scale, Option<Span>) {
        match self.slot(name) {
            Some(slot) if stays || horizon.covers(slot.entry.scale.stamp) => {
                (slot.entry.scale.clone(), slot.scale_left(&self.clock, now))
            }
            _ => (Scale::NONE, None),
        }
    }

    /// What there is to know of the policy of a name.
    #[must_use]
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<Facts> {
        self.live_slot(name).map(|slot| slot.facts(&self.clock, now))
    }

    /// What there is to know of all policies, or of those whose names match a pattern; by name.
    #[must_use]
    pub fn list(&self, pattern: Option<&Pattern>, now: Timestamp) -> Vec<Facts> {
        let listed =
            self.live_slots().filter(|slot| pattern.is_none_or(|pattern| pattern.matches(&slot.entry.name))).collect();
        self.by_name(listed, now)
    }

    /// What there is to know of the policies with the most calls, `most` of them; by name.
    #[must_use]
    pub fn busiest(&self, most: usize, now: Timestamp) -> Vec<Facts> {
        let live = self.slots.iter().filter(|(_, slot)| !slot.entry.is_deleted());
        // Of those with as many calls whichever it is, but always the same.
        let mut busiest: Vec<(u64, u64, &Slot)> =
            live.map(|(hash, slot)| (slot.counts.calls(), *hash, &**slot)).collect();
        if busiest.len() > most {
            busiest.select_nth_unstable_by_key(most, |(calls, hash, _)| Reverse((*calls, *hash)));
            busiest.truncate(most);
        }
        self.by_name(busiest.into_iter().map(|(_, _, slot)| slot).collect(), now)
    }

    fn live_slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter().map(|(_, slot)| &**slot).filter(|slot| !slot.entry.is_deleted())
    }

    fn by_name(&self, mut slots: Vec<&Slot>, now: Timestamp) -> Vec<Facts> {
        slots.sort_unstable_by(|one, other| one.entry.name.cmp(&other.entry.name));
        slots.into_iter().map(|slot| slot.facts(&self.clock, now)).collect()
    }

    /// How many policies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.live
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// How many records there are: of policies, and of those deleted not long ago.
    #[must_use]
    pub fn known(&self) -> usize {
        self.slots.len()
    }

    /// How many records from peers had a stamp that is further ahead than a day.
    #[must_use]
    pub fn stamps_refused(&self) -> u64 {
        self.refused
    }

    /// What is known by a name, or was deleted by it not long ago: for replicas, the disk, and other members of a
    /// cluster.
    #[must_use]
    pub fn record(&self, name: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        self.slot(name).map(|slot| slot.record(&self.clock, now))
    }

    /// All that is known, deletions too.
    pub fn records(&self, now: Timestamp) -> impl Iterator<Item = Vec<u8>> {
        self.slots.iter().map(move |(_, slot)| slot.record(&self.clock, now))
    }

    /// The next records that somebody meets who goes through them in pieces: not many more than `most`, nor than so
    /// many bytes.
    pub fn piece(&self, walk: &mut Walk, most: usize, bytes: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let (mut records, mut length) = (Vec::new(), 0_usize);
        while records.len() < most && length < bytes {
            let Some(hash) = walk.step(&self.hashes) else { break };
            // Two names may have one hash.
            for (_, slot) in self.slots.iter_hash(hash).filter(|(of, _)| *of == hash) {
                let record = slot.record(&self.clock, now);
                length = length.saturating_add(record.len());
                records.push(record);
            }
        }
        records
    }

    /// Of each group of names what is the same on servers that have the same policies by them.
    #[must_use]
    pub fn digests(&self) -> &[u64; GROUPS] {
        &self.digests
    }

    /// What is the same on servers that have the same policies.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digests.iter().fold(0, |sum, digest| sum.wrapping_add(*digest))
    }

    /// The name that a record is of, if a server can have written it.
    #[must_use]
    pub fn name_in(record: &[u8]) -> Option<Box<[u8]>> {
        Record::read(record).map(|record| record.entry.name)
    }

    /// Checks a record that a client brings.
    ///
    /// # Errors
    /// No server can have written it, or a stamp in it is further ahead than a day, which is counted.
    pub fn check(&mut self, record: &[u8], now: Timestamp) -> Result<(), Error> {
        let Record { entry, .. } = Record::read(record).ok_or(Error::InvalidEffect)?;
        let horizon = Horizon::of(now);
        if !horizon.covers(entry.definition.stamp) || !horizon.covers(entry.scale.stamp) {
            self.refused = self.refused.saturating_add(1);
            return Err(Error::StampAhead);
        }
        Ok(())
    }

    /// Takes over what a record says, as far as its origin lets it.
    pub fn merge(&mut self, record: &[u8], origin: Origin, now: Timestamp) -> Merged {
        match Record::read(record) {
            Some(record) if origin == Origin::Peer => self.merge_from_peer(record, now),
            Some(record) => self.take(record, origin, None, now),
            None => Merged::Invalid,
        }
    }

    /// Takes over what a record says that this server does not compare with what it knows.
    fn take(&mut self, record: Record, origin: Origin, counts: Option<Rc<Counts>>, now: Timestamp) -> Merged {
        let Record { entry, left } = record;
        let by_clock = entry.scale.left_by_clock(now);
        let left = if origin == Origin::Disk { by_clock } else { left.or(by_clock) };
        if self.put(entry, left, counts, now) { Merged::Changed } else { Merged::Unchanged }
    }

    /// Keeps what a peer's record says until [`Table::merge_kept`], once for each name; whether a server can have
    /// written it.
    pub fn keep(&mut self, record: &[u8], now: Timestamp) -> bool {
        let Some(record) = Record::read(record) else { return false };
        let left = record.left.or(record.entry.scale.left_by_clock(now));
        self.inbox.put(record, left, Horizon::of(now), self.clock.read(now));
        true
    }

    /// How many records are kept.
    #[must_use]
    pub fn kept(&self) -> usize {
        self.inbox.len()
    }

    /// Forgets the records that are kept.
    pub fn drop_kept(&mut self) {
        self.inbox.clear();
    }

    /// Takes over what one kept record says, as from a peer: its name, and what has become of it.
    pub fn merge_kept(&mut self, now: Timestamp) -> Option<(Box<[u8]>, Merged)> {
        let record = self.inbox.take(self.clock.read(now))?;
        let name = record.entry.name.clone();
        Some((name, self.merge_from_peer(record, now)))
    }

    fn merge_from_peer(&mut self, record: Record, now: Timestamp) -> Merged {
        let Record { mut entry, left } = record;
        let mut left = left.or(entry.scale.left_by_clock(now));
        let horizon = Horizon::of(now);
        let believed = (horizon.covers(entry.definition.stamp), horizon.covers(entry.scale.stamp));
        if believed != (true, true) {
            self.refused = self.refused.saturating_add(1);
        }
        if !believed.1 {
            (entry.scale, left) = (Scale::NONE, None);
        }
        let Some(slot) = self.slot(&entry.name) else {
            // A scale alone makes no policy.
            if !believed.0 {
                return Merged::Refused;
            }
            self.put(entry, left, None, now);
            return Merged::Changed;
        };
        let mut merged = slot.entry.clone();
        if !believed.0 {
            entry.definition = merged.definition.clone();
        }
        // A scale that stays is counted on as it was.
        let (definition, scale) = merged.merge(entry, horizon);
        if !definition && !scale {
            return if believed == (true, true) { Merged::Unchanged } else { Merged::Refused };
        }
        let left = if scale { left } else { slot.scale_left(&self.clock, now) };
        self.put(merged, left, None, now);
        Merged::Changed
    }

    /// Another table, which is to take this one's place when it has been filled with what the disk, or a primary, says.
    #[must_use]
    pub fn successor(&self) -> Table {
        Table { latest: self.latest, refused: self.refused, ..Table::of_node(self.node) }
    }

    /// Takes over what a record says into a table that is to take the place of `other`: calls on a policy that both
    /// have are counted on.
    pub fn take_beside(&mut self, other: &Table, record: &[u8], origin: Origin, now: Timestamp) -> Merged {
        let Some(record) = Record::read(record) else { return Merged::Invalid };
        let counts = other.live_slot(&record.entry.name).map(|slot| Rc::clone(&slot.counts));
        self.take(record, origin, counts, now)
    }

    /// What is left of a table that another has taken the place of.
    #[must_use]
    pub fn discard(self) -> Discarded {
        Discarded { slots: self.slots.into_iter() }
    }

    /// Forgets deletions that were learned a day ago, or that are too many: some of them, so that nothing takes long.
    pub fn forget(&mut self, now: Timestamp) {
        let now = self.clock.read(now);
        for _ in 0..FORGOTTEN_AT_ONCE {
            let Some(deletion) = self.deletions.front() else { break };
            let remembered = now.since(deletion.learned) < REMEMBERED && self.deletions.len() <= MOST_DELETIONS;
            if remembered {
                break;
            }
            let Some(Deletion { name, stamp, .. }) = self.deletions.pop_front() else { break };
            let hash = record_hash::of(&name);
            let stands =
                |PolicyEntry { name: of, definition, .. }: &PolicyEntry| *of == name && definition.stamp == stamp;
            let found = |slot: &Slot| slot.entry.is_deleted() && stands(&slot.entry);
            if let Ok(found) = self.slots.find_entry(hash, |(_, slot)| found(slot)) {
                found.remove();
                if !self.slots.iter_hash(hash).any(|(of, _)| *of == hash) {
                    self.hashes.remove(&hash);
                }
            }
        }
    }

    /// A stamp that is later than any that was seen, of any name and of this one, and believed.
    fn next_stamp(&self, name: &[u8], now: Timestamp) -> Result<Stamp, Error> {
        let horizon = Horizon::of(now);
        let of_name = self.slot(name).map_or(0, |slot| slot.entry.latest(horizon));
        let seen = horizon.or_first(self.latest).max(of_name);
        let at = now.micros().max(seen.saturating_add(1));
        // The last one is a day after the last instant.
        if at > Timestamp::MAX.micros() { Err(Error::NoLaterStamp) } else { Ok(Stamp { at, node: self.node }) }
    }

    /// Has an entry stand, of whose scale so much is left; whether it is another than before. Calls on one that is new
    /// are counted in `counts`. A deletion is learned at `now`.
    fn put(&mut self, entry: PolicyEntry, left: Option<Span>, counts: Option<Rc<Counts>>, now: Timestamp) -> bool {
        let (horizon, steady) = (Horizon::of(now), self.clock.read(now));
        self.latest = horizon.or_first(self.latest).max(entry.latest(horizon));
        let scale_ends = left.map(|left| steady.plus(left));
        let hash = record_hash::of(&entry.name);
        let (was_live, old_digest);
        let slot = if let Some((_, slot)) = self.slots.find_mut(hash, |(_, slot)| slot.entry.name == entry.name) {
            if slot.entry == entry {
                slot.ends_at(scale_ends);
                return false;
            }
            (was_live, old_digest) = (!slot.entry.is_deleted(), slot.digest);
            slot.become_entry(entry, scale_ends);
            slot
        } else {
            (was_live, old_digest) = (false, 0);
            self.hashes.insert(hash);
            let slot = Box::new(Slot::of(entry, scale_ends, counts.unwrap_or_default()));
            &mut self.slots.insert_unique(hash, (hash, slot), |(hash, _)| *hash).into_mut().1
        };
        let (new_digest, is_live) = (slot.digest, !slot.entry.is_deleted());
        let deletion = (!is_live).then(|| (slot.entry.name.clone(), slot.entry.definition.stamp));
        if let Some(digest) = self.digests.get_mut(walk::group_of(hash)) {
            *digest = digest.wrapping_sub(old_digest).wrapping_add(new_digest);
        }
        self.live = self.live.saturating_add(usize::from(is_live)).saturating_sub(usize::from(was_live));
        if let Some((name, stamp)) = deletion {
            self.deletions.push_back(Deletion { learned: steady, name, stamp });
            self.forget(now);
        }
        true
    }
}

/// What is left of a table that another has taken the place of, to be freed in pieces.
pub struct Discarded {
    slots: hash_table::IntoIter<(u64, Box<Slot>)>,
}

impl Discarded {
    /// Frees so many policies; whether any are left.
    pub fn free(&mut self, count: usize) -> bool {
        self.slots.by_ref().take(count).for_each(drop);
        self.slots.len() > 0
    }
}

#[cfg(test)]
mod tests;
