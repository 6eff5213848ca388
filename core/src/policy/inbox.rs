//! Records that have come from peers and wait to be taken over: one of each name, however often it comes.

use super::entry::{PolicyEntry, Record};
use super::scale_timing::ScaleInstants;
use super::stamp::Horizon;
use crate::number::Timestamp;
use std::collections::BTreeMap;

/// The most that waits, in bytes of records. What comes beyond that is dropped: the digests still differ, so it is
/// asked for again.
const MOST_BYTES: usize = 32 << 20;

/// What an entry takes beside its name and its text, about.
const OVERHEAD: usize = 256;

/// Records that wait, by name.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    entries: BTreeMap<Box<[u8]>, Waiting>,
    bytes: usize,
}

/// What is known of one name, and the instants of its scale by the steady clock.
#[derive(Debug)]
struct Waiting {
    entry: PolicyEntry,
    scale_instants: ScaleInstants,
}

impl Inbox {
    /// Puts a record in, whose timing is that at `now` by the steady clock; beside what waits of the same name the later
    /// registers are kept.
    pub(super) fn put(&mut self, record: Record, horizon: Horizon, now: Timestamp) {
        let scale_instants = record.timing.instants(now);
        let size = size_of_entry(&record.entry);
        if let Some(waiting) = self.entries.get_mut(&record.entry.name) {
            let before = size_of_entry(&waiting.entry);
            if waiting.entry.merge(record.entry, horizon).1 {
                waiting.scale_instants = scale_instants;
            }
            self.bytes = self.bytes.saturating_sub(before).saturating_add(size_of_entry(&waiting.entry));
        } else if self.bytes.saturating_add(size) <= MOST_BYTES {
            self.bytes = self.bytes.saturating_add(size);
            self.entries.insert(record.entry.name.clone(), Waiting { entry: record.entry, scale_instants });
        }
    }

    /// Takes the first one out, as it would have come at `now` by the steady clock.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Record> {
        let (_, Waiting { entry, scale_instants }) = self.entries.pop_first()?;
        self.bytes = self.bytes.saturating_sub(size_of_entry(&entry));
        Some(Record { entry, timing: scale_instants.timing(now) })
    }

    /// How many names there are.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Forgets them all.
    pub(super) fn clear(&mut self) {
        *self = Inbox::default();
    }
}

fn size_of_entry(entry: &PolicyEntry) -> usize {
    entry.name.len().saturating_mul(2).saturating_add(entry.definition.text.len()).saturating_add(OVERHEAD)
}
