mod aimd_tests;
mod cluster;
mod deletions;
mod duration;
mod gossip_network;
mod merging;
mod scales;
mod setting_words;
mod stamps;
mod versions;

use super::entry::StepTimes;
use super::entry::{Definition, End, PolicyEntry, Record, Scale};
use super::scale_timing::ScaleTiming;
use super::slot::{Slot, SlotState};
use super::slots::{Deletion, MAX_DELETIONS};
use super::*;
use crate::number::{Amount, Period, Span, Timestamp};
use crate::syntax::Policy;
use crate::wire::args::Args;
use crate::wire::error::Error;
use proptest::prelude::*;
use std::rc::Rc;

/// Parses the specs of a policy.
pub(super) fn policy(text: &str) -> Policy {
    slot::parse_definition(text.as_bytes()).unwrap()
}

/// Returns the timestamp `seconds` after the start of the test, which is fixed.
pub(super) fn at(seconds: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000).unwrap().plus(Span::SECOND.times(seconds))
}

/// Returns the version of a policy that is set `seconds` after the start.
fn version_of(seconds: u64) -> u64 {
    at(seconds).micros()
}

pub(super) const MAX_POLICIES: usize = 4096;

const MINUTE_LIMIT: &str = "TOKENBUCKET 60 60 1m";

const HOUR_LIMIT: &str = "FIXED 1000 1h";

const ADMITTED_CALL: CountedOutcome =
    CountedOutcome { charges: true, admitted: true, near: false, shadow_denied: false, banned: false, repeated: false };

fn factor(text: &str) -> Amount {
    Amount::parse_down(text.as_bytes()).unwrap()
}

fn scaling_to(text: &str, duration: Option<Period>) -> Scaling {
    Scaling { step: ScaleStep::Set(factor(text)), every: None, duration }
}

impl Table {
    fn must_set(&mut self, name: &str, text: &str, now: Timestamp) -> u64 {
        let set = self.set(name.as_bytes(), Condition::Always, &policy(text), now, MAX_POLICIES).unwrap();
        assert!(set.changed);
        set.version
    }

    fn must_scale(&mut self, name: &str, factor: &str, seconds: Option<u64>, now: Timestamp) {
        let duration = seconds.map(|seconds| Period::new(Span::SECOND.times(seconds)).unwrap());
        self.scale(name.as_bytes(), scaling_to(factor, duration), now).unwrap();
    }

    /// Returns the limits that a call finds by the name, or the reason why it finds none.
    fn policy(&self, name: &str, now: Timestamp) -> Result<String, &'static str> {
        match self.find(name.as_bytes(), now) {
            PolicyLookup::Found(policy) => {
                assert_eq!(&*policy.name, name.as_bytes());
                Ok(policy.limits.to_string())
            }
            PolicyLookup::Unreadable => Err("unreadable"),
            PolicyLookup::Missing => Err("missing"),
        }
    }

    /// Returns the record of a name, with the timing at the start of the test.
    pub(super) fn initial_record(&self, name: &str) -> Option<Vec<u8>> {
        self.record(name.as_bytes(), at(0))
    }

    /// Returns the records of a group.
    pub(super) fn records_of_group(&self, group: usize, now: Timestamp) -> Vec<Vec<u8>> {
        let mut walk = Walk::default();
        walk.include(1 << group);
        self.next_batch(&mut walk, usize::MAX, usize::MAX, now)
    }

    /// Replaces the table by a new one with `records`.
    fn replace(&mut self, records: &[Vec<u8>], origin: Origin, now: Timestamp) {
        let mut successor = self.successor();
        for record in records {
            assert_ne!(successor.load_record(self, record, origin, now), MergeOutcome::Malformed);
        }
        let mut discarded = std::mem::replace(self, successor).discard();
        while discarded.free(1) {}
    }

    /// Merges a record from a peer.
    pub(super) fn receive(&mut self, record: &[u8], now: Timestamp) -> MergeOutcome {
        self.merge(record, Origin::Peer, now)
    }

    fn version(&self, name: &str) -> Option<u64> {
        self.get(name.as_bytes(), at(0)).map(|facts| facts.version)
    }

    /// Returns the shared fields of all live records, sorted.
    pub(super) fn live_records(&self) -> Vec<Vec<u8>> {
        let mut live: Vec<_> = self.slots.iter_live().map(|slot| slot.entry.identity().as_bytes().to_vec()).collect();
        live.sort_unstable();
        live
    }

    /// Asserts that the derived data equals the data computed from all slots.
    pub(super) fn assert_consistent(&self) {
        let (mut live, mut digests) = (0, [0_u64; GROUPS]);
        for (hash, slot) in &self.slots.by_hash {
            let Slot { entry, digest, state, .. } = &**slot;
            assert_eq!(*hash, record_hash::of(&entry.name));
            assert!(self.slots.hashes.contains(hash));
            assert_eq!(entry.is_deleted(), matches!(state, SlotState::Deleted));
            if entry.is_deleted() {
                assert_eq!(*digest, 0);
                let is_stored =
                    |deletion: &Deletion| deletion.name == entry.name && deletion.number == slot.deletion_number;
                assert!(
                    self.slots.deletions.iter().any(is_stored),
                    "a deletion that is not listed would never be dropped"
                );
                continue;
            }
            live += 1;
            let group = &mut digests[walk::group_of(*hash)];
            *group = group.wrapping_add(record_hash::of(entry.identity().as_bytes()));
            assert_eq!(
                matches!(state, SlotState::Unreadable),
                slot::parse_definition(&entry.definition.text).is_none()
            );
        }
        assert_eq!((self.len(), self.is_empty(), self.digests()), (live, live == 0, &digests));
        assert_eq!(
            (self.record_count(), self.slots.hashes.len()),
            (self.slots.by_hash.len(), self.slots.by_hash.len())
        );
    }
}

fn words(text: &str) -> Vec<&[u8]> {
    std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(' ').map(str::as_bytes)).collect()
}

/// Record with specs that only a later version of the module can parse.
const LATER_VERSION_RECORD: &str = "rl-policy 1 4:gold 1700000000000000 7 1700000000000000 7 2 1700000000000 \
                     12:QUOTA 60 PER 0 0 1000000 0";

#[test]
fn policy_of_a_later_version_is_kept_and_replicated() {
    let mut table = Table::of_node(1);
    assert_eq!(table.receive(LATER_VERSION_RECORD.as_bytes(), at(0)), MergeOutcome::Changed);
    assert_eq!((table.policy("gold", at(0)), table.len()), (Err("unreadable"), 1));
    assert_ne!(table.digest(), 0);
    assert_eq!(table.initial_record("gold").unwrap(), LATER_VERSION_RECORD.as_bytes());
    let facts = table.get(b"gold", at(0)).unwrap();
    assert_eq!((facts.version, &*facts.specs), (version_of(0), &b"QUOTA 60 PER"[..]));
    // NX does not replace the policy, but it can be scaled, deleted and replaced.
    let nx = table.set(b"gold", Condition::IfMissing, &policy(HOUR_LIMIT), at(1), MAX_POLICIES).unwrap();
    assert_eq!(nx, SetOutcome { version: version_of(0), changed: false });
    table.must_scale("gold", "0.5", None, at(1));
    assert_eq!(table.policy("gold", at(1)), Err("unreadable"));
    table.must_set("gold", HOUR_LIMIT, at(2));
    assert_eq!(table.policy("gold", at(2)), Ok("FIXED 500 1h".to_owned()));
    // An unreadable policy replaces a readable one.
    let record = LATER_VERSION_RECORD.replacen("1700000000000000", "1700000009000000", 1);
    assert_eq!(table.receive(record.as_bytes(), at(9)), MergeOutcome::Changed);
    assert_eq!(table.policy("gold", at(9)), Err("unreadable"));
    assert!(table.delete(b"gold", at(10)).unwrap());
    assert_eq!(table.policy("gold", at(10)), Err("missing"));
    table.assert_consistent();
}

/// Generates well-formed records. Stamps are close to each other, so that there are ties.
fn records() -> impl Strategy<Value = Vec<u8>> {
    let stamp = || (0_u64..4, 0_u64..3).prop_map(|(at, node)| Stamp { at, node });
    let text = proptest::sample::select(vec!["", MINUTE_LIMIT, HOUR_LIMIT, "QUOTA 60 PER"]);
    let name = proptest::sample::select(vec!["a", "b", "c"]);
    let scale_factor = proptest::sample::select(vec!["0", "0.5", "1"]);
    let (duration, until) = (Period::parse(b"1s").unwrap(), Timestamp::EPOCH.plus(Span::SECOND));
    let end = proptest::sample::select(vec![End::Never, End::For { duration, until }]);
    let added = proptest::sample::select(vec![Timestamp::EPOCH, until]);
    (name, stamp(), stamp(), stamp(), 1_u64..3, text, scale_factor, (end, added)).prop_map(
        |(name, one, other, scale_stamp, legacy_version, text, scale_factor, (end, added))| {
            let definition = Definition {
                stamp: one.max(other),
                created: one.min(other),
                legacy_version,
                set_at: 0,
                text: text.as_bytes().into(),
            };
            let scale = Scale {
                stamp: scale_stamp,
                factor: factor(scale_factor),
                end,
                times: StepTimes { added, ..StepTimes::NEVER },
            };
            PolicyEntry { name: name.as_bytes().into(), definition, scale }
                .record(ScaleTiming::default())
                .as_bytes()
                .to_vec()
        },
    )
}
