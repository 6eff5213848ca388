//! The table of policies: what operators set by name, and what the members of a cluster agree on.
//!
//! A name has two registers, its definition and its scale, each stamped by whoever wrote it; the later stamp stands
//! (`policy/entry.rs`). To merge a [`record`](Table::record) is therefore idempotent, commutative and associative: lost,
//! doubled and reordered messages do no harm, and servers that have heard the same have the same. Whether they have,
//! they compare by a [`digest`](Table::digests) of each of 64 groups of names, and send each other the records of those
//! that differ.
//!
//! A deletion is remembered for a day after it was learned, so that an older set, which comes late, does not undo it. It
//! is in no digest, else servers that forget it at different times would never agree.
//!
//! A call finds its policy read and scaled: [`Table::find`] computes nothing but a hash, and allocates nothing.

mod counts;
mod entry;
mod glob;
mod hash;

use crate::args::{Args, whole};
use crate::error::{Error, MustBe};
use crate::spec::Policy;
use crate::{Amount, Period, Span, Timestamp};
pub use counts::{Counts, Outcome};
use entry::{Definition, Entry, Scale};
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::rc::Rc;

/// When something was written, and by whom. Later ones stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    /// Microseconds since the epoch, by the writer's clock; later than any that it had heard of.
    pub at: u64,
    /// The writer: of two at the same time the higher stands.
    pub node: u64,
}

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
    /// It stands at that version (`VERSION n`).
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

/// What has become of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Merged {
    /// It said something later.
    Changed,
    /// It said nothing new.
    Unchanged,
    /// No server can have written it.
    Invalid,
}

/// What there is to know of a policy.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Its name.
    pub name: Box<[u8]>,
    /// One more with each set.
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
/// use ratelimit_core::args::Args;
/// use ratelimit_core::policy::{Condition, Found, Merged, Table};
/// use ratelimit_core::spec::Policy;
/// use ratelimit_core::Timestamp;
///
/// let words: [&[u8]; 5] = [b"RL.POLICYSET", b"TOKENBUCKET", b"60", b"60", b"1m"];
/// let policy = Policy::read(&mut Args::new(&words))?;
/// let now = Timestamp::from_clock(1_700_000_000_000_000);
///
/// let (mut here, mut there) = (Table::of_node(1), Table::of_node(2));
/// here.set(b"plan:pro", Condition::Always, &policy, now, 4096)?;
/// assert_eq!(there.merge(&here.record(b"plan:pro").unwrap(), now), Merged::Changed);
/// assert!(matches!(there.find(b"plan:pro", now), Found::Ruling(_)));
/// assert_eq!(here.digests(), there.digests());
/// # Ok::<(), ratelimit_core::error::Error>(())
/// ```
#[derive(Debug)]
pub struct Table {
    slots: HashTable<Slot>,
    /// Who stamps what is written here.
    node: u64,
    /// The latest time of any stamp that was seen.
    latest: u64,
    /// How many policies there are, the deleted ones not among them.
    live: usize,
    /// Of each group of names the sum of the hashes of its live records.
    digests: [u64; GROUPS],
    /// The deletions that are remembered, as they were learned. Those of names that were set again may be among them.
    deletions: VecDeque<Deletion>,
}

/// How many groups of names the digest has.
pub const GROUPS: usize = 64;

/// For how long a deletion is remembered.
const REMEMBERED: Span = Span::SECOND.times(86_400);
/// And how many of them at most.
const MOST_DELETIONS: usize = 65_536;

const FACTOR: MustBe = MustBe { what: "a number from 0 to 1000", example: "0.5" };
const VERSION: MustBe = MustBe { what: "a whole number above 0", example: "3" };
const DURATION: MustBe = MustBe { what: "a duration from 1us to 3650d", example: "10m" };

/// What is known by a name, and what that comes to.
#[derive(Debug)]
struct Slot {
    entry: Entry,
    /// Of the name.
    hash: u64,
    /// Of the record, if it is in the digest: else 0.
    digest: u64,
    /// What has become of calls since there is such a policy.
    counts: Rc<Counts>,
    standing: Standing,
}

#[derive(Debug)]
enum Standing {
    Deleted,
    Unreadable,
    Ruling { defined: Rc<Ruling>, scaled: Option<Scaled> },
}

#[derive(Debug)]
struct Scaled {
    ruling: Rc<Ruling>,
    /// From then on it is as it was defined.
    until: Timestamp,
}

#[derive(Debug)]
struct Deletion {
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
            let version = whole(args.word()?, u64::MAX).filter(|version| *version > 0);
            return version.map(Condition::OverVersion).ok_or_else(|| Error::out_of_range("version", VERSION));
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
        let factor = factor.ok_or_else(|| Error::out_of_range("factor", FACTOR))?;
        let duration = if args.accept("FOR") {
            Some(Period::parse(args.word()?).ok_or_else(|| Error::out_of_range("duration", DURATION))?)
        } else {
            None
        };
        if let Some(word) = args.peek() {
            return Err(Error::unexpected_where(word, ", where FOR is all that can be"));
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
        Table { slots: HashTable::new(), node, latest: 0, live: 0, digests: [0; GROUPS], deletions: VecDeque::new() }
    }

    /// Stamps with that number from now on: no other member of the cluster does.
    pub fn stamp_as(&mut self, node: u64) {
        self.node = node;
    }

    /// The policy of a name, as it is at `now`.
    #[must_use]
    #[inline(always)]
    pub fn find(&self, name: &[u8], now: Timestamp) -> Found<'_> {
        match self.slot(name).map(|slot| &slot.standing) {
            None | Some(Standing::Deleted) => Found::Missing,
            Some(Standing::Unreadable) => Found::Unreadable,
            Some(Standing::Ruling { scaled: Some(Scaled { ruling, until }), .. }) if now < *until => {
                Found::Ruling(ruling)
            }
            Some(Standing::Ruling { defined, .. }) => Found::Ruling(defined),
        }
    }

    #[inline(always)]
    fn slot(&self, name: &[u8]) -> Option<&Slot> {
        self.slots.find(hash::of(name), |slot| *slot.entry.name == *name)
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
        let before = self.slot(name).map(|slot| &slot.entry.definition);
        let stands = self.live_slot(name).map(|slot| &slot.entry.definition);
        match (condition, stands) {
            (Condition::IfMissing, Some(stands)) => return Ok(Set { version: stands.version, changed: false }),
            (Condition::OverVersion(_), None) => return Err(Error::no_policy(std::iter::once(name))),
            (Condition::OverVersion(version), Some(stands)) if version != stands.version => {
                return Err(Error::other_version(name, stands.version, version));
            }
            (_, None) if self.live >= most => return Err(Error::TooManyPolicies { most }),
            _ => {}
        }
        let stamp = self.next_stamp(now)?;
        let version = before.map_or(1, |before| before.version.saturating_add(1));
        let born = stands.map_or(stamp, |stands| stands.born);
        let text = policy.to_string().into_bytes().into();
        let definition = Definition { stamp, born, version, set_at: now.floor_millis(), text };
        let scale = self.slot(name).map_or(Scale::NONE, |slot| slot.entry.scale.clone());
        self.put(Entry { name: name.into(), definition, scale }, now);
        Ok(Set { version, changed: true })
    }

    /// Scales the policy of a name, instead of what it was scaled by.
    ///
    /// # Errors
    /// There is no such policy.
    pub fn scale(&mut self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<Facts, Error> {
        let missing = || Error::no_policy(std::iter::once(name));
        let definition = self.live_slot(name).ok_or_else(missing)?.entry.definition.clone();
        let until = scaling.duration.map_or(Timestamp::EPOCH, |duration| now.plus(duration.span()).min(Timestamp::MAX));
        let scale = Scale { stamp: self.next_stamp(now)?, factor: scaling.factor, until };
        self.put(Entry { name: name.into(), definition, scale }, now);
        self.get(name, now).ok_or_else(missing)
    }

    /// Deletes the policy of a name; whether there was one.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn delete(&mut self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        let Some(Entry { definition, scale, .. }) = self.live_slot(name).map(|slot| slot.entry.clone()) else {
            return Ok(false);
        };
        let (stamp, set_at) = (self.next_stamp(now)?, now.floor_millis());
        let definition = Definition { stamp, set_at, text: Box::default(), ..definition };
        self.put(Entry { name: name.into(), definition, scale }, now);
        Ok(true)
    }

    /// What there is to know of the policy of a name.
    #[must_use]
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<Facts> {
        self.live_slot(name).map(|slot| slot.facts(now))
    }

    /// The same of all policies whose names are what a pattern, as KEYS has them, says; by name.
    #[must_use]
    pub fn list(&self, pattern: Option<&[u8]>, now: Timestamp) -> Vec<Facts> {
        let listed = |slot: &&Slot| {
            !slot.entry.is_deleted() && pattern.is_none_or(|pattern| glob::matches(pattern, &slot.entry.name))
        };
        let mut facts: Vec<Facts> = self.slots.iter().filter(listed).map(|slot| slot.facts(now)).collect();
        facts.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        facts
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

    /// What is known by a name, or was deleted by it not long ago: for replicas, the disk, and other members of a cluster.
    #[must_use]
    pub fn record(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.slot(name).map(Slot::record)
    }

    /// All that is known, deletions too.
    pub fn records(&self) -> impl Iterator<Item = Vec<u8>> {
        self.slots.iter().map(Slot::record)
    }

    /// The same of one of the [`GROUPS`] of names.
    pub fn records_of_group(&self, group: usize) -> impl Iterator<Item = Vec<u8>> {
        self.slots.iter().filter(move |slot| slot.group() == group).map(Slot::record)
    }

    /// Of each group of names what is the same on servers that have the same policies by them.
    #[must_use]
    pub fn digests(&self) -> &[u64; GROUPS] {
        &self.digests
    }

    /// The same of all names.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.digests.iter().fold(0, |sum, digest| sum.wrapping_add(*digest))
    }

    /// Whether a server can have written that record.
    #[must_use]
    pub fn check(record: &[u8]) -> bool {
        Entry::read(record).is_some()
    }

    /// Takes over what another server knows later, and learns that now.
    pub fn merge(&mut self, record: &[u8], learned: Timestamp) -> Merged {
        let Some(entry) = Entry::read(record) else { return Merged::Invalid };
        if self.put(entry, learned) { Merged::Changed } else { Merged::Unchanged }
    }

    /// Takes over what another server knows, and forgets all else. What has become of calls stays known.
    pub fn replace<'r>(&mut self, records: impl Iterator<Item = &'r [u8]>, learned: Timestamp) {
        let before = std::mem::replace(self, Table::of_node(self.node));
        self.latest = before.latest;
        for record in records {
            self.merge(record, learned);
        }
        for slot in &mut self.slots {
            let same = before.slot(&slot.entry.name);
            if let Some(counts) = same.filter(|_| !slot.entry.is_deleted()).map(|same| Rc::clone(&same.counts)) {
                slot.counts = counts;
                slot.stand();
            }
        }
    }

    /// Forgets deletions that were learned a day ago, or that are too many.
    pub fn forget(&mut self, now: Timestamp) {
        while let Some(deletion) = self.deletions.front_mut() {
            // By a clock that has gone back it was learned now.
            deletion.learned = deletion.learned.min(now);
            let remembered = now.since(deletion.learned) < REMEMBERED && self.deletions.len() <= MOST_DELETIONS;
            if remembered {
                break;
            }
            let Some(Deletion { name, stamp, .. }) = self.deletions.pop_front() else { break };
            let stands = |slot: &Slot| slot.entry.name == name && slot.entry.definition.stamp == stamp;
            let found = self.slots.find_entry(hash::of(&name), |slot| stands(slot) && slot.entry.is_deleted());
            if let Ok(found) = found {
                found.remove();
            }
        }
    }

    /// A stamp that is later than any that was seen.
    fn next_stamp(&self, now: Timestamp) -> Result<Stamp, Error> {
        let at = now.micros().max(self.latest.saturating_add(1));
        // Only a record that somebody has made up can have the last one.
        if at > Timestamp::MAX.micros() { Err(Error::NoLaterStamp) } else { Ok(Stamp { at, node: self.node }) }
    }

    /// Takes an entry over as far as it is later; whether it is. A deletion was learned at `learned`.
    fn put(&mut self, entry: Entry, learned: Timestamp) -> bool {
        self.latest = self.latest.max(entry.latest().at);
        let hash = hash::of(&entry.name);
        let (was_live, old_digest);
        let slot = if let Some(slot) = self.slots.find_mut(hash, |slot| slot.entry.name == entry.name) {
            (was_live, old_digest) = (!slot.entry.is_deleted(), slot.digest);
            if !slot.merge(entry) {
                return false;
            }
            slot
        } else {
            (was_live, old_digest) = (false, 0);
            self.slots.insert_unique(hash, Slot::of(entry, hash), |slot| slot.hash).into_mut()
        };
        let (group, new_digest, is_live) = (slot.group(), slot.digest, !slot.entry.is_deleted());
        let deletion = (!is_live).then(|| (slot.entry.name.clone(), slot.entry.definition.stamp));
        if let Some(digest) = self.digests.get_mut(group) {
            *digest = digest.wrapping_sub(old_digest).wrapping_add(new_digest);
        }
        self.live = self.live.saturating_add(usize::from(is_live)).saturating_sub(usize::from(was_live));
        if let Some((name, stamp)) = deletion {
            self.deletions.push_back(Deletion { learned, name, stamp });
            self.forget(learned);
        }
        true
    }
}

impl Slot {
    fn of(entry: Entry, hash: u64) -> Slot {
        let mut slot = Slot { entry, hash, digest: 0, counts: Rc::default(), standing: Standing::Deleted };
        slot.stand();
        slot
    }

    /// Takes over what is later; whether anything is.
    fn merge(&mut self, entry: Entry) -> bool {
        if !self.entry.merge(entry) {
            return false;
        }
        if self.entry.is_deleted() {
            self.counts = Rc::default();
        }
        self.stand();
        true
    }

    /// What both registers come to.
    fn stand(&mut self) {
        (self.digest, self.standing) = (0, Standing::Deleted);
        if self.entry.is_deleted() {
            return;
        }
        self.digest = hash::of(self.entry.record().as_bytes());
        let Some(policy) = read(&self.entry.definition.text) else {
            self.standing = Standing::Unreadable;
            return;
        };
        let Scale { factor, until, .. } = *self.entry.scale();
        let scaled = (factor != Amount::ONE).then(|| Scaled {
            ruling: self.ruling(policy.scaled(factor)),
            // For good: later than any clock.
            until: if until == Timestamp::EPOCH { Timestamp::MAX.plus(Span::SECOND) } else { until },
        });
        self.standing = Standing::Ruling { defined: self.ruling(policy), scaled };
    }

    fn ruling(&self, policy: Policy) -> Rc<Ruling> {
        Rc::new(Ruling { name: self.entry.name.clone(), policy, counts: Rc::clone(&self.counts) })
    }

    fn record(&self) -> Vec<u8> {
        self.entry.record().as_bytes().to_vec()
    }

    /// By its highest bits: the lowest say where it is in the table.
    fn group(&self) -> usize {
        usize::try_from(self.hash >> 58).unwrap_or_default()
    }

    fn facts(&self, now: Timestamp) -> Facts {
        let Definition { version, set_at, ref text, .. } = self.entry.definition;
        let Scale { factor, until, .. } = *self.entry.scale();
        let (scale, scale_left) = match until {
            Timestamp::EPOCH => (factor, None),
            until if now < until => (factor, Some(until.since(now))),
            _ => (Amount::ONE, None),
        };
        let counts = Rc::clone(&self.counts);
        Facts { name: self.entry.name.clone(), version, set_at, scale, scale_left, specs: text.clone(), counts }
    }
}

/// The policy that a definition's text says.
fn read(text: &[u8]) -> Option<Policy> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(|byte| *byte == b' ')).collect();
    Policy::read(&mut Args::new(&words)).ok()
}

#[cfg(test)]
mod tests;
