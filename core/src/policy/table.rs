//! Table of policies: setting, scaling, deleting, merging and finding them by name.

use super::counts::Counts;
use super::effective_policy::{PolicyFacts, PolicyLookup};
use super::entry::{Definition, End, PolicyEntry, Record, Scale};
use super::glob::Pattern;
use super::inbox::Inbox;
use super::merge_outcome::{MergeOutcome, Origin};
use super::scale_timing::ScaleTiming;
use super::setting::{Condition, ScaleOutcome, Scaling, SetOutcome, check_version};
use super::slot::{Slot, SlotState};
use super::slots::{Discarded, Slots};
use super::stamp::{Horizon, Stamp};
use super::walk::{self, GROUPS, Walk};
use crate::number::steady::SharedSteadyClock;
use crate::number::{Period, Timestamp};
use crate::syntax::Policy;
use crate::wire::error::Error;
use std::rc::Rc;

/// Policies of a server.
#[derive(Debug, Default)]
pub struct Table {
    /// All names with their state.
    pub(super) slots: Slots,
    /// Node id in the stamps that this server writes.
    pub(super) node: u64,
    /// Latest time of any accepted stamp.
    pub(super) latest: u64,
    /// Clock by which scales end and deletions expire.
    clock: SharedSteadyClock,
    /// Number of records that were rejected because of their stamps.
    refused: u64,
    /// Records from peers that have not been merged yet.
    inbox: Inbox,
}

impl Table {
    /// Creates an empty table whose stamps have the node id `node`.
    #[must_use]
    pub fn of_node(node: u64) -> Table {
        Table { node, ..Table::default() }
    }

    /// Sets the node id of stamps, which must be unique in the cluster.
    pub fn set_node(&mut self, node: u64) {
        self.node = node;
    }

    /// Reads the clock, to detect that it was set back. Called about once a second.
    pub fn read_clock(&self, now: Timestamp) {
        self.clock.read(now);
    }

    /// Returns the policy of a name as it applies at `now`.
    #[must_use]
    #[inline(always)]
    pub fn find(&self, name: &[u8], now: Timestamp) -> PolicyLookup<'_> {
        match self.slots.get(name).map(|slot| &slot.state) {
            None | Some(SlotState::Deleted) => PolicyLookup::Missing,
            Some(SlotState::Unreadable) => PolicyLookup::Unreadable,
            Some(SlotState::Live { scaled: Some(scaled), .. }) if scaled.is_active(&self.clock, now) => {
                PolicyLookup::Found(&scaled.policy)
            }
            Some(SlotState::Live { unscaled, .. }) => PolicyLookup::Found(unscaled),
        }
    }

    /// Sets the policy of a name if the condition is met, and keeps its scale.
    ///
    /// # Errors
    /// Returns an error if the condition names another version or a missing policy, or if there are already `max`
    /// policies.
    pub fn set(
        &mut self,
        name: &[u8],
        condition: Condition,
        policy: &Policy,
        now: Timestamp,
        max: usize,
    ) -> Result<SetOutcome, Error> {
        let version = self.current_version(name);
        match (condition, version) {
            (Condition::IfMissing, Some(version)) => return Ok(SetOutcome { version, changed: false }),
            (Condition::OverVersion(expected), version) => check_version(name, expected, version)?,
            (_, None) if self.slots.live_count >= max => return Err(Error::TooManyPolicies { max }),
            _ => {}
        }
        let version = self.define(name, policy.to_string().into_bytes().into(), now)?;
        Ok(SetOutcome { version, changed: true })
    }

    /// Returns the version of the policy of a name.
    fn current_version(&self, name: &[u8]) -> Option<u64> {
        self.slots.get_live(name).map(|slot| slot.entry.definition.version())
    }

    /// Stores a new definition, or a deletion if `text` is empty. Returns its version.
    fn define(&mut self, name: &[u8], text: Box<[u8]>, now: Timestamp) -> Result<u64, Error> {
        let (horizon, stamp) = (Horizon::of(now), self.next_stamp(name, now)?);
        let current = self.slots.get_live(name).map(|slot| &slot.entry);
        let created = current.map_or(stamp, |entry| entry.created_within(horizon));
        let redefines = current.is_some() && !text.is_empty();
        let definition = Definition { stamp, created, legacy_version: stamp.at, set_at: now.floor_millis(), text };
        let (scale, timing) = self.retained_scale(name, redefines, horizon, now);
        self.put(PolicyEntry { name: name.into(), definition, scale }, timing, None, now);
        Ok(stamp.at)
    }

    /// Sets or changes the scale of a policy, unless the last change is too recent (`EVERY`), which
    /// [`ScaleOutcome::changed`] tells.
    ///
    /// # Errors
    /// Returns an error if there is no such policy.
    pub fn scale(&mut self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<ScaleOutcome, Error> {
        let missing = || Error::no_policy(std::iter::once(name));
        let slot = self.slots.get_live(name).ok_or_else(missing)?;
        let created = slot.entry.created_within(Horizon::of(now));
        let definition = Definition { created, ..slot.entry.definition.clone() };
        // A scale that has ended also drops the times of its changes.
        let (scale, timing) = (slot.scale_at(&self.clock, now), slot.timing(&self.clock, now));
        let changed = !scale.is_too_soon(scaling, timing);
        if changed {
            let scale = scale.followed_by(scaling, self.next_stamp(name, now)?, now);
            let time_left = scaling.duration.map(Period::span).or(timing.time_left);
            let timing = timing.followed_by(scaling, time_left.filter(|_| scale.end != End::Never));
            self.put(PolicyEntry { name: name.into(), definition, scale }, timing, None, now);
        }
        let facts = self.get(name, now).ok_or_else(missing)?;
        Ok(ScaleOutcome { facts, changed })
    }

    /// Deletes the policy of a name. Returns `true` if there was one.
    ///
    /// # Errors
    /// Returns an error if no later stamp exists.
    pub fn delete(&mut self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        let is_live = self.slots.get_live(name).is_some();
        if is_live {
            self.define(name, Box::default(), now)?;
        }
        Ok(is_live)
    }

    /// Deletes the policy of a name if it has the version `version`.
    ///
    /// # Errors
    /// Returns an error if there is no such policy, or it has another version.
    pub fn delete_version(&mut self, name: &[u8], version: u64, now: Timestamp) -> Result<(), Error> {
        check_version(name, version, self.current_version(name))?;
        self.delete(name, now).map(|_| ())
    }

    /// Returns the scale to keep beside a new definition, with its timing. A scale with a stamp beyond the horizon (a
    /// day ahead of the clock) is kept only if it belongs to a policy that remains (`redefines`).
    fn retained_scale(&self, name: &[u8], redefines: bool, horizon: Horizon, now: Timestamp) -> (Scale, ScaleTiming) {
        let is_kept =
            |entry: &PolicyEntry| (redefines && entry.current_scale().is_some()) || horizon.covers(entry.scale.stamp);
        match self.slots.get(name) {
            Some(slot) if is_kept(&slot.entry) => (slot.entry.scale.clone(), slot.timing(&self.clock, now)),
            _ => (Scale::NONE, ScaleTiming::default()),
        }
    }

    /// Returns the description of the policy of a name.
    #[must_use]
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<PolicyFacts> {
        self.slots.get_live(name).map(|slot| slot.facts(&self.clock, now))
    }

    /// Returns the descriptions of all policies, or of those whose names match the pattern, sorted by name.
    #[must_use]
    pub fn list(&self, pattern: Option<&Pattern>, now: Timestamp) -> Vec<PolicyFacts> {
        let matching = self
            .slots
            .iter_live()
            .filter(|slot| pattern.is_none_or(|pattern| pattern.matches(&slot.entry.name)))
            .collect();
        self.sorted_facts(matching, now)
    }

    /// Returns the descriptions of the `max` policies with the most calls, sorted by name.
    #[must_use]
    pub fn busiest(&self, max: usize, now: Timestamp) -> Vec<PolicyFacts> {
        self.sorted_facts(self.slots.busiest(max), now)
    }

    fn sorted_facts(&self, mut slots: Vec<&Slot>, now: Timestamp) -> Vec<PolicyFacts> {
        slots.sort_unstable_by(|one, other| one.entry.name.cmp(&other.entry.name));
        slots.into_iter().map(|slot| slot.facts(&self.clock, now)).collect()
    }

    /// Returns the number of policies.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.live_count
    }

    /// Returns `true` if there are no policies.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.live_count == 0
    }

    /// Returns the number of records: policies and stored deletions.
    #[must_use]
    pub fn record_count(&self) -> usize {
        self.slots.by_hash.len()
    }

    /// Returns the number of records from peers that were rejected because of their stamps.
    #[must_use]
    pub fn stamps_refused(&self) -> u64 {
        self.refused
    }

    /// Returns the record of a name, which may be a stored deletion, for replicas, the disk and other members of a
    /// cluster.
    #[must_use]
    pub fn record(&self, name: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        self.slots.get(name).map(|slot| slot.record(&self.clock, now))
    }

    /// Iterates over all records, including deletions.
    pub fn records(&self, now: Timestamp) -> impl Iterator<Item = Vec<u8>> {
        self.slots.iter().map(move |slot| slot.record(&self.clock, now))
    }

    /// Returns the next batch of an iteration over records: about `max` records or `bytes` bytes, whichever is reached
    /// first.
    pub fn next_batch(&self, walk: &mut Walk, max: usize, bytes: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let (mut records, mut length) = (Vec::new(), 0_usize);
        while records.len() < max && length < bytes {
            let Some(slots) = self.slots.step(walk) else { break };
            for slot in slots {
                let record = slot.record(&self.clock, now);
                length = length.saturating_add(record.len());
                records.push(record);
            }
        }
        records
    }

    /// Returns the digest of each group of names. Servers with the same policies in a group have the same digest of it.
    #[must_use]
    pub fn digests(&self) -> &[u64; GROUPS] {
        &self.slots.digests
    }

    /// Returns the digest of all names, which servers with the same policies share.
    #[must_use]
    pub fn digest(&self) -> u64 {
        walk::sum(&self.slots.digests)
    }

    /// Returns the name in a record, or `None` if the record is malformed.
    #[must_use]
    pub fn name_in(record: &[u8]) -> Option<Box<[u8]>> {
        Record::read(record).map(|record| record.entry.name)
    }

    /// Validates a record received from a client.
    ///
    /// # Errors
    /// Returns an error if the record is malformed, or if a stamp in it is more than a day ahead. Such stamps are
    /// counted.
    pub fn check(&mut self, record: &[u8], now: Timestamp) -> Result<(), Error> {
        let Record { entry, .. } = Record::read(record).ok_or(Error::InvalidEffect)?;
        let horizon = Horizon::of(now);
        if !horizon.covers(entry.definition.stamp) || !horizon.covers(entry.scale.stamp) {
            self.refused = self.refused.saturating_add(1);
            return Err(Error::StampAhead);
        }
        Ok(())
    }

    /// Merges a record, as far as its origin permits.
    pub fn merge(&mut self, record: &[u8], origin: Origin, now: Timestamp) -> MergeOutcome {
        match Record::read(record) {
            Some(record) if origin == Origin::Peer => self.merge_from_peer(record, now),
            Some(record) => self.store(record, origin, None, now),
            None => MergeOutcome::Malformed,
        }
    }

    /// Stores a record without comparing it with the known one.
    fn store(&mut self, record: Record, origin: Origin, counts: Option<Rc<Counts>>, now: Timestamp) -> MergeOutcome {
        let Record { entry, timing } = record;
        let timing = if origin == Origin::Disk { entry.scale.loaded_timing(timing, now) } else { timing };
        if self.put(entry, timing, counts, now) { MergeOutcome::Changed } else { MergeOutcome::Unchanged }
    }

    /// Queues a record from a peer for [`Table::merge_buffered`], at most one per name. Returns `false` if the record is
    /// malformed.
    pub fn buffer(&mut self, record: &[u8], now: Timestamp) -> bool {
        let Some(record) = Record::read(record) else { return false };
        self.inbox.put(record, Horizon::of(now), self.clock.read(now));
        true
    }

    /// Returns the number of queued records.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.inbox.entries.len()
    }

    /// Drops the queued records.
    pub fn clear_buffer(&mut self) {
        self.inbox = Inbox::default();
    }

    /// Merges the next queued record. Returns its name and the outcome.
    pub fn merge_buffered(&mut self, now: Timestamp) -> Option<(Box<[u8]>, MergeOutcome)> {
        let record = self.inbox.take(self.clock.read(now))?;
        let name = record.entry.name.clone();
        Some((name, self.merge_from_peer(record, now)))
    }

    fn merge_from_peer(&mut self, record: Record, now: Timestamp) -> MergeOutcome {
        let Record { mut entry, mut timing } = record;
        let horizon = Horizon::of(now);
        let is_definition_valid = horizon.covers(entry.definition.stamp);
        let is_scale_valid = horizon.covers(entry.scale.stamp);
        if !is_definition_valid || !is_scale_valid {
            self.refused = self.refused.saturating_add(1);
        }
        if !is_scale_valid {
            (entry.scale, timing) = (Scale::NONE, ScaleTiming::default());
        }
        let Some(slot) = self.slots.get(&entry.name) else {
            // A scale alone does not create a policy.
            if !is_definition_valid {
                return MergeOutcome::Rejected;
            }
            self.put(entry, timing, None, now);
            return MergeOutcome::Changed;
        };
        let mut merged = slot.entry.clone();
        if !is_definition_valid {
            entry.definition = merged.definition.clone();
        }
        let (definition_changed, scale_changed) = merged.merge(entry, horizon);
        if !definition_changed && !scale_changed {
            let is_valid = is_definition_valid && is_scale_valid;
            return if is_valid { MergeOutcome::Unchanged } else { MergeOutcome::Rejected };
        }
        // An unchanged scale keeps its timing.
        let timing = if scale_changed { timing } else { slot.timing(&self.clock, now) };
        self.put(merged, timing, None, now);
        MergeOutcome::Changed
    }

    /// Returns an empty table that will replace this one once it is filled from disk or by a primary.
    #[must_use]
    pub fn successor(&self) -> Table {
        Table { latest: self.latest, refused: self.refused, ..Table::of_node(self.node) }
    }

    /// Stores a record into a table that will replace `other`. Policies in both tables share their counters.
    pub fn load_record(&mut self, other: &Table, record: &[u8], origin: Origin, now: Timestamp) -> MergeOutcome {
        let Some(record) = Record::read(record) else { return MergeOutcome::Malformed };
        let counts = other.slots.get_live(&record.entry.name).map(|slot| Rc::clone(&slot.counts));
        self.store(record, origin, counts, now)
    }

    /// Returns the remaining slots of a table that was replaced, to be freed in batches.
    #[must_use]
    pub fn discard(self) -> Discarded {
        self.slots.discard()
    }

    /// Drops deletions that arrived a day ago or exceed the maximum number, but only so many that no call takes long.
    pub fn drop_old_deletions(&mut self, now: Timestamp) {
        self.slots.drop_old_deletions(self.clock.read(now));
    }

    /// Returns a stamp that is later than every known stamp of this name within the horizon. It is also later than the
    /// stamps of all other names, unless the latest of them is beyond the horizon because the clock moved backwards.
    fn next_stamp(&self, name: &[u8], now: Timestamp) -> Result<Stamp, Error> {
        let horizon = Horizon::of(now);
        let latest_of_name = self.slots.get(name).map_or(0, |slot| slot.entry.latest(horizon));
        let latest = horizon.zero_if_beyond(self.latest).max(latest_of_name);
        let at = now.micros().max(latest.saturating_add(1));
        // Records cannot hold a stamp after the latest timestamp. Only a clock within a day of it leads to such a
        // stamp.
        if at > Timestamp::MAX.micros() { Err(Error::NoLaterStamp) } else { Ok(Stamp { at, node: self.node }) }
    }

    /// Stores an entry with the timing of its scale. Returns `true` if it differs from the stored one. A new slot uses
    /// `counts`. A deletion is stored for a day from `now`.
    fn put(&mut self, entry: PolicyEntry, timing: ScaleTiming, counts: Option<Rc<Counts>>, now: Timestamp) -> bool {
        let (horizon, steady) = (Horizon::of(now), self.clock.read(now));
        self.latest = horizon.zero_if_beyond(self.latest).max(entry.latest(horizon));
        self.slots.put(entry, timing.instants(steady), counts, steady)
    }
}
