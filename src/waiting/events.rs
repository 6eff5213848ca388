//! Events that may make room for a waiting call. Their handlers evaluate no call: they mark keys as changed and arm the
//! timer. The cron handler also notices what no event announces.

use super::timer::{self, TimerRun};
use crate::redis::server_entry::ServerEntry;
use crate::redis::{cluster_slots, now};
use std::ffi::c_int;

/// Number of keys whose owner is checked at each cron event of a cluster's node.
const KEYS_PER_CRON: usize = 100;

/// Handles a change of a key.
pub fn key_changed(entry: ServerEntry, db: c_int, name: &[u8]) {
    if entry.state.queues.mark_changed(db, name) {
        timer::arm(entry);
    }
}

/// Handles an event that may have changed every key: FLUSHALL, FLUSHDB, SWAPDB or a load.
pub fn all_keys_changed(entry: ServerEntry) {
    let queues = &entry.state.queues;
    if queues.has_waiters() {
        queues.mark_all_changed();
        timer::arm(entry);
    }
}

/// Handles the cron event, about ten times a second: the clock may have been set, a slot may have been migrated,
/// writes may be accepted again, and settings may have changed by which CLIENT UNBLOCK is offered.
pub fn cron(entry: ServerEntry) {
    let queues = &entry.state.queues;
    entry.state.schedule.allows_client_unblock.set(None);
    if queues.is_granting_paused.get() && TimerRun::new(entry).may_grant() {
        queues.resume_granting();
    }
    if queues.has_waiters() && cluster_slots::is_cluster() {
        for key in queues.next_keys(KEYS_PER_CRON) {
            // A key in a slot that this node no longer owns is marked, so that its waiters are redirected.
            match cluster_slots::owner_of(entry, key.db, &key.name) {
                Some(cluster_slots::SlotOwner::ThisNode | cluster_slots::SlotOwner::Unknown) | None => {}
                // The cluster is down, which concerns every key.
                Some(cluster_slots::SlotOwner::Down) => queues.mark_all_changed(),
                Some(cluster_slots::SlotOwner::OtherNode) => {
                    queues.mark_changed(key.db, &key.name);
                }
            }
        }
    }
    let now = now();
    queues.read_clock(now);
    timer::rearm(entry, now);
}
