//! The policies that this server keeps: the table of the core, where calls find it.
//!
//! Everything of ours runs on the server's main thread. A ruling is held by its count, never borrowed: inside of a call
//! others may run who hear of its events, and they may set policies too.

use ratelimit_core::Timestamp;
use ratelimit_core::error::Error;
use ratelimit_core::policy::{Condition, Facts, Found, GROUPS, Merged, Scaling, Set, Table};
use ratelimit_core::spec::{ByPolicy, CallOnKeys, KeySpec, OnKey, Policy};
use std::cell::RefCell;
use std::rc::Rc;

pub use ratelimit_core::policy::Ruling;

thread_local! {
    static TABLE: RefCell<Table> = RefCell::new(Table::default());
}

/// The policy of that name.
///
/// # Errors
/// There is none, or it cannot be read.
#[inline(always)]
pub fn named(name: &[u8], now: Timestamp) -> Result<Rc<Ruling>, Error> {
    TABLE.with_borrow(|table| match table.find(name, now) {
        Found::Ruling(ruling) => Ok(Rc::clone(ruling)),
        Found::Unreadable => Err(Error::UnreadablePolicy),
        Found::Missing => Err(Error::no_policy(std::iter::once(name))),
    })
}

/// Those of the keys of a call that are ruled by policies; none at all if no key is.
///
/// # Errors
/// There is none for a key, or it cannot be read.
pub fn of_keys(call: &CallOnKeys, now: Timestamp) -> Result<Vec<Option<Rc<Ruling>>>, Error> {
    if !call.specs.iter().any(|(_, on_key)| matches!(on_key, OnKey::Policy(_))) {
        return Ok(Vec::new());
    }
    let of_key = |(_, on_key): &KeySpec| match on_key {
        OnKey::Policy(by) => find(by, now).map(Some),
        OnKey::Spec(_) | OnKey::Call(_) => Ok(None),
    };
    call.specs.iter().map(of_key).collect()
}

/// The first that there is of those that a call names.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn find(by: &ByPolicy, now: Timestamp) -> Result<Rc<Ruling>, Error> {
    TABLE.with_borrow(|table| {
        for name in by.names() {
            match table.find(name, now) {
                Found::Ruling(ruling) => return Ok(Rc::clone(ruling)),
                Found::Unreadable => return Err(Error::UnreadablePolicy),
                Found::Missing => {}
            }
        }
        Err(by.missing())
    })
}

/// Stamps with that number what is written here from now on.
pub fn stamp_as(node: u64) {
    write(|table| table.stamp_as(node));
}

/// Sets a policy, if there are fewer than `most`.
///
/// # Errors
/// Why it is not set.
pub fn set(name: &[u8], condition: Condition, policy: &Policy, now: Timestamp, most: usize) -> Result<Set, Error> {
    write(|table| table.set(name, condition, policy, now, most))
}

/// Scales a policy; what there is to know of it then.
///
/// # Errors
/// There is none.
pub fn scale(name: &[u8], scaling: Scaling, now: Timestamp) -> Result<Facts, Error> {
    write(|table| table.scale(name, scaling, now))
}

/// Deletes a policy; whether there was one.
///
/// # Errors
/// Why it cannot be.
pub fn delete(name: &[u8], now: Timestamp) -> Result<bool, Error> {
    write(|table| table.delete(name, now))
}

fn write<T>(run: impl FnOnce(&mut Table) -> T) -> T {
    TABLE.with_borrow_mut(run)
}

/// What there is to know of a policy.
pub fn get(name: &[u8], now: Timestamp) -> Option<Facts> {
    TABLE.with_borrow(|table| table.get(name, now))
}

/// The same of those whose names match a pattern; of all, without one.
pub fn list(pattern: Option<&[u8]>, now: Timestamp) -> Vec<Facts> {
    TABLE.with_borrow(|table| table.list(pattern, now))
}

/// What is known by a name.
pub fn record(name: &[u8]) -> Option<Vec<u8>> {
    TABLE.with_borrow(|table| table.record(name))
}

/// The longest record, in bytes: it fits a message of a cluster's bus.
pub const MAX_RECORD: usize = 60_000;

/// Whether nothing is known, not even a deletion.
pub fn is_empty() -> bool {
    TABLE.with_borrow(|table| table.records().next().is_none())
}

/// How many there are.
pub fn count() -> u64 {
    TABLE.with_borrow(|table| u64::try_from(table.len()).unwrap_or(u64::MAX))
}

/// All that is known, deletions too.
pub fn records() -> Vec<Vec<u8>> {
    TABLE.with_borrow(|table| table.records().collect())
}

/// The same of the groups of names whose bits are set.
pub fn records_of(groups: u64) -> Vec<Vec<u8>> {
    let is_asked =
        |group: &usize| u32::try_from(*group).is_ok_and(|group| groups.checked_shr(group).unwrap_or(0) & 1 != 0);
    TABLE.with_borrow(|table| (0..GROUPS).filter(is_asked).flat_map(|group| table.records_of_group(group)).collect())
}

/// Whether bytes are a record.
pub fn is_record(record: &[u8]) -> bool {
    Table::check(record)
}

/// Takes over what another server knows later; whether it does.
pub fn merge(record: &[u8], now: Timestamp) -> bool {
    TABLE.with_borrow_mut(|table| table.merge(record, now) == Merged::Changed)
}

/// Takes over what another server knows, and forgets all else. What has become of calls stays known.
pub fn replace(records: &[Box<[u8]>], now: Timestamp) {
    TABLE.with_borrow_mut(|table| table.replace(records.iter().map(|record| &**record), now));
}

/// What is the same on servers that have the same policies, of each group of names.
pub fn digests() -> [u64; GROUPS] {
    TABLE.with_borrow(|table| *table.digests())
}

/// The same of all.
pub fn digest() -> u64 {
    TABLE.with_borrow(Table::digest)
}

/// Forgets deletions that were learned long ago.
pub fn forget(now: Timestamp) {
    TABLE.with_borrow_mut(|table| table.forget(now));
}
