//! What may make room for a call that waits: it marks the key and arms the timer, and changes nothing else.

use super::timer;
use super::turn::Turn;
use crate::redis::server_entry::ServerEntry;
use crate::redis::{cluster_slots, now};
use std::ffi::c_int;

/// Number of keys whose owner is checked at each cron event of a cluster's node.
const ASKED_AFTER: usize = 100;

/// Something has happened to a key.
pub fn key_changed(entry: ServerEntry, db: c_int, name: &[u8]) {
    if entry.global.queues.touch(db, name) {
        timer::arm(entry);
    }
}

/// Something may have happened to every key: FLUSHALL, SWAPDB, a load.
pub fn all_keys_changed(entry: ServerEntry) {
    let queues = &entry.global.queues;
    if queues.any() {
        queues.touch_all();
        timer::arm(entry);
    }
}

/// Some ten times a second: the clock may have been set, a slot may have moved away, and writes may be taken again.
pub fn cron(entry: ServerEntry) {
    let queues = &entry.global.queues;
    entry.global.schedule.unblockable.set(None);
    if queues.is_held_up() && Turn::new(entry).may_grant() {
        queues.go_on();
    }
    if queues.any() && cluster_slots::are_used() {
        for key in queues.next_few(ASKED_AFTER) {
            // A key that is not this node's any more is looked at.
            match cluster_slots::place_of(entry, key.db, &key.name) {
                Some(cluster_slots::SlotPlace::Here | cluster_slots::SlotPlace::Unknown) | None => {}
                // So is every other key.
                Some(cluster_slots::SlotPlace::Down) => queues.touch_all(),
                Some(cluster_slots::SlotPlace::Elsewhere) => {
                    queues.touch(key.db, &key.name);
                }
            }
        }
    }
    let now = now();
    queues.see(now);
    timer::arm_anew(entry, now);
}
