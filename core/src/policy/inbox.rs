//! Queue of records from peers that have not been merged yet, with at most one entry per name.

use super::entry::{PolicyEntry, Record};
use super::scale_timing::ScaleInstants;
use super::stamp::Horizon;
use crate::number::Timestamp;
use std::collections::BTreeMap;

/// Maximum size of the queue, in bytes of records. Further records are dropped, and requested again after the next
/// digest, which still differs.
const MAX_BYTES: usize = 32 << 20;

/// Approximate memory of an entry besides its name and text, in bytes.
const OVERHEAD: usize = 256;

/// Queued records by name.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    pub(super) entries: BTreeMap<Box<[u8]>, QueuedEntry>,
    bytes: usize,
}

/// Queued entry, with the instants of its scale in steady time.
#[derive(Debug)]
pub(super) struct QueuedEntry {
    entry: PolicyEntry,
    scale_instants: ScaleInstants,
}

impl Inbox {
    /// Adds a record with its timing at `now` in steady time. If the name is queued already, keeps the later registers.
    pub(super) fn put(&mut self, record: Record, horizon: Horizon, now: Timestamp) {
        let scale_instants = record.timing.instants(now);
        let size = size_of_entry(&record.entry);
        if let Some(queued) = self.entries.get_mut(&record.entry.name) {
            let before = size_of_entry(&queued.entry);
            let (_, scale_changed) = queued.entry.merge(record.entry, horizon);
            if scale_changed {
                queued.scale_instants = scale_instants;
            }
            self.bytes = self.bytes.saturating_sub(before).saturating_add(size_of_entry(&queued.entry));
        } else if self.bytes.saturating_add(size) <= MAX_BYTES {
            self.bytes = self.bytes.saturating_add(size);
            self.entries.insert(record.entry.name.clone(), QueuedEntry { entry: record.entry, scale_instants });
        }
    }

    /// Removes the first record and returns it with its timing at `now` in steady time.
    pub(super) fn take(&mut self, now: Timestamp) -> Option<Record> {
        let (_, QueuedEntry { entry, scale_instants }) = self.entries.pop_first()?;
        self.bytes = self.bytes.saturating_sub(size_of_entry(&entry));
        Some(Record { entry, timing: scale_instants.timing(now) })
    }
}

fn size_of_entry(entry: &PolicyEntry) -> usize {
    entry.name.len().saturating_mul(2).saturating_add(entry.definition.text.len()).saturating_add(OVERHEAD)
}
