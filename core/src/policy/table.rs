//! The table itself: what is set, scaled, deleted, merged and found by name.

use super::counts::Counts;
use super::entry::{Definition, End, PolicyEntry, Record, Scale};
use super::glob::Pattern;
use super::inbox::Inbox;
use super::merged::{Merged, Origin};
use super::ruling::{PolicyFacts, PolicyLookup};
use super::scale_timing::ScaleTiming;
use super::setting::{Condition, ScaleOutcome, Scaling, Set, must_stand};
use super::slot::{Slot, Standing};
use super::slots::{Discarded, Slots};
use super::stamp::{Horizon, Stamp};
use super::walk::{GROUPS, Walk};
use crate::number::steady::SharedSteadyClock;
use crate::number::{Period, Timestamp};
use crate::syntax::Policy;
use crate::wire::error::Error;
use std::rc::Rc;

/// The policies of a server.
#[derive(Debug)]
pub struct Table {
    /// What is known by each name.
    pub(super) slots: Slots,
    /// The node whose name is in the stamps of what is written here.
    pub(super) node: u64,
    /// The latest time of any stamp that was seen and believed.
    pub(super) latest: u64,
    /// By which scales end, and deletions are forgotten.
    clock: SharedSteadyClock,
    /// How many records had a stamp that was not believed.
    refused: u64,
    /// What has come from peers and is not taken over yet.
    inbox: Inbox,
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
            slots: Slots::default(),
            node,
            latest: 0,
            clock: SharedSteadyClock::default(),
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
    pub fn find(&self, name: &[u8], now: Timestamp) -> PolicyLookup<'_> {
        match self.slots.get(name).map(|slot| &slot.standing) {
            None | Some(Standing::Deleted) => PolicyLookup::Missing,
            Some(Standing::Unreadable) => PolicyLookup::Unreadable,
            Some(Standing::Ruling { scaled: Some(scaled), .. }) if scaled.holds(&self.clock, now) => {
                PolicyLookup::Ruling(&scaled.ruling)
            }
            Some(Standing::Ruling { defined, .. }) => PolicyLookup::Ruling(defined),
        }
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
        let stands = self.slots.get_live(name).map(|slot| &slot.entry);
        let version = stands.map(|stands| stands.definition.version());
        match (condition, version) {
            (Condition::IfMissing, Some(version)) => return Ok(Set { version, changed: false }),
            (Condition::OverVersion(named), version) => must_stand(name, named, version)?,
            (_, None) if self.slots.live() >= most => return Err(Error::TooManyPolicies { most }),
            _ => {}
        }
        let (horizon, stamp) = (Horizon::of(now), self.next_stamp(name, now)?);
        let born = stands.map_or(stamp, |stands| stands.born_within(horizon));
        let text = policy.to_string().into_bytes().into();
        let definition = Definition { stamp, born, counted: stamp.at, set_at: now.floor_millis(), text };
        let (scale, timing) = self.kept_scale(name, version.is_some(), horizon, now);
        self.put(PolicyEntry { name: name.into(), definition, scale }, timing, None, now);
        Ok(Set { version: stamp.at, changed: true })
    }

    /// Scales the policy of a name: instead of what it was scaled by, or relative to that.
    ///
    /// # Errors
    /// There is no such policy.
    pub fn scale(&mut self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<ScaleOutcome, Error> {
        let missing = || Error::no_policy(std::iter::once(name));
        let slot = self.slots.get_live(name).ok_or_else(missing)?;
        let born = slot.entry.born_within(Horizon::of(now));
        let definition = Definition { born, ..slot.entry.definition.clone() };
        let changed = !slot.holds(scaling, &self.clock, now);
        if changed {
            let scale = slot.scale_at(&self.clock, now).followed_by(scaling, self.next_stamp(name, now)?, now);
            let timing = slot.timing(&self.clock, now);
            let left = scaling.duration.map(Period::span).or(timing.left);
            let timing = timing.followed_by(scaling, left.filter(|_| scale.end != End::Never));
            self.put(PolicyEntry { name: name.into(), definition, scale }, timing, None, now);
        }
        let facts = self.get(name, now).ok_or_else(missing)?;
        Ok(ScaleOutcome { facts, changed })
    }

    /// Deletes the policy of a name; whether there was one.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn delete(&mut self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        let Some(stands) = self.slots.get_live(name).map(|slot| &slot.entry) else { return Ok(false) };
        let (horizon, stamp) = (Horizon::of(now), self.next_stamp(name, now)?);
        let definition = Definition {
            stamp,
            born: stands.born_within(horizon),
            counted: stamp.at,
            set_at: now.floor_millis(),
            text: Box::default(),
        };
        let (scale, timing) = self.kept_scale(name, false, horizon, now);
        self.put(PolicyEntry { name: name.into(), definition, scale }, timing, None, now);
        Ok(true)
    }

    /// Deletes the policy of a name if it has that version.
    ///
    /// # Errors
    /// There is none, or it has another version.
    pub fn delete_version(&mut self, name: &[u8], version: u64, now: Timestamp) -> Result<(), Error> {
        must_stand(name, version, self.slots.get_live(name).map(|slot| slot.entry.definition.version()))?;
        self.delete(name, now).map(|_| ())
    }

    /// The scale of a name and its timing, for an entry whose definition is another: one that is beyond the horizon
    /// stays only with a policy that stays, and only if it is that policy's.
    fn kept_scale(&self, name: &[u8], stays: bool, horizon: Horizon, now: Timestamp) -> (Scale, ScaleTiming) {
        let is_kept = |entry: &PolicyEntry| (stays && entry.scale().is_some()) || horizon.covers(entry.scale.stamp);
        match self.slots.get(name) {
            Some(slot) if is_kept(&slot.entry) => (slot.entry.scale.clone(), slot.timing(&self.clock, now)),
            _ => (Scale::NONE, ScaleTiming::default()),
        }
    }

    /// What there is to know of the policy of a name.
    #[must_use]
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<PolicyFacts> {
        self.slots.get_live(name).map(|slot| slot.facts(&self.clock, now))
    }

    /// What there is to know of all policies, or of those whose names match a pattern; by name.
    #[must_use]
    pub fn list(&self, pattern: Option<&Pattern>, now: Timestamp) -> Vec<PolicyFacts> {
        let listed = self
            .slots
            .iter_live()
            .filter(|slot| pattern.is_none_or(|pattern| pattern.matches(&slot.entry.name)))
            .collect();
        self.by_name(listed, now)
    }

    /// What there is to know of the policies with the most calls, `most` of them; by name.
    #[must_use]
    pub fn busiest(&self, most: usize, now: Timestamp) -> Vec<PolicyFacts> {
        self.by_name(self.slots.busiest(most), now)
    }

    fn by_name(&self, mut slots: Vec<&Slot>, now: Timestamp) -> Vec<PolicyFacts> {
        slots.sort_unstable_by(|one, other| one.entry.name.cmp(&other.entry.name));
        slots.into_iter().map(|slot| slot.facts(&self.clock, now)).collect()
    }

    /// How many policies there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.live()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.live() == 0
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
        self.slots.get(name).map(|slot| slot.record(&self.clock, now))
    }

    /// All that is known, deletions too.
    pub fn records(&self, now: Timestamp) -> impl Iterator<Item = Vec<u8>> {
        self.slots.iter().map(move |slot| slot.record(&self.clock, now))
    }

    /// The next records that somebody meets who goes through them in pieces: not many more than `most`, nor than so
    /// many bytes.
    pub fn piece(&self, walk: &mut Walk, most: usize, bytes: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let (mut records, mut length) = (Vec::new(), 0_usize);
        while records.len() < most && length < bytes {
            let Some(slots) = self.slots.step(walk) else { break };
            for slot in slots {
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
        self.slots.digests()
    }

    /// What is the same on servers that have the same policies.
    #[must_use]
    pub fn digest(&self) -> u64 {
        self.slots.digests().iter().fold(0, |sum, digest| sum.wrapping_add(*digest))
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
        let Record { entry, timing } = record;
        let is_stored = origin == Origin::Disk;
        let timing = if is_stored { timing.loaded(&entry.scale, now) } else { timing.told(&entry.scale, now) };
        if self.put(entry, timing, counts, now) { Merged::Changed } else { Merged::Unchanged }
    }

    /// Keeps what a peer's record says until [`Table::merge_kept`], once for each name; whether a server can have
    /// written it.
    pub fn keep(&mut self, record: &[u8], now: Timestamp) -> bool {
        let Some(mut record) = Record::read(record) else { return false };
        record.timing = record.timing.told(&record.entry.scale, now);
        self.inbox.put(record, Horizon::of(now), self.clock.read(now));
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

    /// Takes over what one kept record says, as from a peer: its name, and the outcome.
    pub fn merge_kept(&mut self, now: Timestamp) -> Option<(Box<[u8]>, Merged)> {
        let record = self.inbox.take(self.clock.read(now))?;
        let name = record.entry.name.clone();
        Some((name, self.merge_from_peer(record, now)))
    }

    fn merge_from_peer(&mut self, record: Record, now: Timestamp) -> Merged {
        let Record { mut entry, timing } = record;
        let mut timing = timing.told(&entry.scale, now);
        let horizon = Horizon::of(now);
        let believed = (horizon.covers(entry.definition.stamp), horizon.covers(entry.scale.stamp));
        if believed != (true, true) {
            self.refused = self.refused.saturating_add(1);
        }
        if !believed.1 {
            (entry.scale, timing) = (Scale::NONE, ScaleTiming::default());
        }
        let Some(slot) = self.slots.get(&entry.name) else {
            // A scale alone makes no policy.
            if !believed.0 {
                return Merged::Refused;
            }
            self.put(entry, timing, None, now);
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
        let timing = if scale { timing } else { slot.timing(&self.clock, now) };
        self.put(merged, timing, None, now);
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
        let counts = other.slots.get_live(&record.entry.name).map(|slot| Rc::clone(&slot.counts));
        self.take(record, origin, counts, now)
    }

    /// What is left of a table that another has taken the place of.
    #[must_use]
    pub fn discard(self) -> Discarded {
        self.slots.discard()
    }

    /// Forgets deletions that were learned a day ago, or that are too many: some of them, so that nothing takes long.
    pub fn forget(&mut self, now: Timestamp) {
        self.slots.forget(self.clock.read(now));
    }

    /// A stamp that is later than any that was seen, of any name and of this one, and believed.
    fn next_stamp(&self, name: &[u8], now: Timestamp) -> Result<Stamp, Error> {
        let horizon = Horizon::of(now);
        let of_name = self.slots.get(name).map_or(0, |slot| slot.entry.latest(horizon));
        let seen = horizon.or_first(self.latest).max(of_name);
        let at = now.micros().max(seen.saturating_add(1));
        // The last one is a day after the last instant.
        if at > Timestamp::MAX.micros() { Err(Error::NoLaterStamp) } else { Ok(Stamp { at, node: self.node }) }
    }

    /// Has an entry stand, whose scale has this timing; whether it is another than before. Calls on one that is new are
    /// counted in `counts`. A deletion is learned at `now`.
    fn put(&mut self, entry: PolicyEntry, timing: ScaleTiming, counts: Option<Rc<Counts>>, now: Timestamp) -> bool {
        let (horizon, steady) = (Horizon::of(now), self.clock.read(now));
        self.latest = horizon.or_first(self.latest).max(entry.latest(horizon));
        self.slots.put(entry, timing.instants(steady), counts, steady)
    }
}
