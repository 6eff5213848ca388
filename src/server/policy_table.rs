//! Policies of this server: the table of the core in a `RefCell`.
//!
//! A policy is returned as an `Rc`, never borrowed: during a call the server notifies other modules of its events, and
//! they may set policies.

use ratelimit_core::Timestamp;
use ratelimit_core::policy::{
    Condition, Discarded, GROUPS, MergeOutcome, Origin, Pattern, PolicyFacts, PolicyLookup, ScaleOutcome, Scaling, Set,
    Table, Walk,
};
use ratelimit_core::syntax::{KeyRequest, ManyKeysRequest, Policy, PolicyRequest};
use ratelimit_core::wire::error::Error;
use std::cell::RefCell;
use std::rc::Rc;

pub use ratelimit_core::policy::EffectivePolicy;

/// Policies of this server.
#[derive(Debug, Default)]
pub struct Policies(RefCell<Table>);

/// Maximum size of a record in bytes: it fits a message of the cluster bus.
pub const MAX_RECORD: usize = 60_000;

/// Maximum number of records in a batch. Merging that many records of a peer takes about 3 ms.
pub const BATCH_SIZE: usize = 200;

/// Approximate maximum size of a batch of records in bytes: it fits a message of the cluster bus.
const BATCH_BYTES: usize = 32_768;

impl Policies {
    /// Returns the policy with this name.
    ///
    /// # Errors
    /// The policy does not exist or cannot be read.
    #[inline(always)]
    pub fn named(&self, name: &[u8], now: Timestamp) -> Result<Rc<EffectivePolicy>, Error> {
        match self.0.borrow().find(name, now) {
            PolicyLookup::Found(policy) => Ok(Rc::clone(policy)),
            PolicyLookup::Unreadable => Err(Error::UnreadablePolicy),
            PolicyLookup::Missing => Err(Error::no_policy(std::iter::once(name))),
        }
    }

    /// Appends the policy of each key of a call to `policies`, and `None` for a key without one. Appends nothing if no
    /// key has a policy.
    ///
    /// # Errors
    /// A key's policy does not exist or cannot be read.
    pub fn of_keys(
        &self,
        request: &ManyKeysRequest,
        policies: &mut Vec<Option<Rc<EffectivePolicy>>>,
        now: Timestamp,
    ) -> Result<(), Error> {
        if request.keys.iter().any(|(_, key_request)| matches!(key_request, KeyRequest::Policy(_))) {
            for (_, key_request) in &request.keys {
                policies.push(match key_request {
                    KeyRequest::Policy(by) => Some(self.find(by, now)?),
                    KeyRequest::One(_) | KeyRequest::Composite(_) => None,
                });
            }
        }
        Ok(())
    }

    /// Returns the first existing policy of those that a call names.
    ///
    /// # Errors
    /// No such policy exists, or the first cannot be read.
    pub fn find(&self, by: &PolicyRequest, now: Timestamp) -> Result<Rc<EffectivePolicy>, Error> {
        let table = self.0.borrow();
        for name in by.names() {
            match table.find(name, now) {
                PolicyLookup::Found(policy) => return Ok(Rc::clone(policy)),
                PolicyLookup::Unreadable => return Err(Error::UnreadablePolicy),
                PolicyLookup::Missing => {}
            }
        }
        Err(by.missing())
    }

    /// Sets the node number in the stamps of subsequent changes.
    pub fn set_node(&self, node: u64) {
        self.0.borrow_mut().set_node(node);
    }

    /// Sets a policy, if there are fewer than `max_policies`.
    ///
    /// # Errors
    /// The condition names another version or a missing policy, or there are already `max_policies` policies.
    pub fn set(
        &self,
        name: &[u8],
        condition: Condition,
        policy: &Policy,
        now: Timestamp,
        max_policies: usize,
    ) -> Result<Set, Error> {
        self.0.borrow_mut().set(name, condition, policy, now, max_policies)
    }

    /// Scales a policy and returns the outcome.
    ///
    /// # Errors
    /// The policy does not exist.
    pub fn scale(&self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<ScaleOutcome, Error> {
        self.0.borrow_mut().scale(name, scaling, now)
    }

    /// Deletes a policy. Returns `true` if it existed.
    ///
    /// # Errors
    /// No later stamp exists.
    pub fn delete(&self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        self.0.borrow_mut().delete(name, now)
    }

    /// Deletes a policy if it has this version.
    ///
    /// # Errors
    /// The policy does not exist or has another version.
    pub fn delete_version(&self, name: &[u8], version: u64, now: Timestamp) -> Result<(), Error> {
        self.0.borrow_mut().delete_version(name, version, now)
    }

    /// Returns the description of a policy.
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<PolicyFacts> {
        self.0.borrow().get(name, now)
    }

    /// Returns the descriptions of the policies whose names match a pattern, or of all policies without a pattern.
    pub fn list(&self, pattern: Option<&Pattern>, now: Timestamp) -> Vec<PolicyFacts> {
        self.0.borrow().list(pattern, now)
    }

    /// Returns the descriptions of the policies with the most calls, at most `count`.
    pub fn busiest(&self, count: usize, now: Timestamp) -> Vec<PolicyFacts> {
        self.0.borrow().busiest(count, now)
    }

    /// Returns the record of a policy or of its deletion.
    pub fn record(&self, name: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        self.0.borrow().record(name, now)
    }

    /// Returns `true` if the table has no records, not even of deletions.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().record_count() == 0
    }

    /// Returns the number of policies.
    pub fn count(&self) -> u64 {
        u64::try_from(self.0.borrow().len()).unwrap_or(u64::MAX)
    }

    /// Returns the number of records that were rejected because their stamps were too far ahead.
    pub fn stamps_refused(&self) -> u64 {
        self.0.borrow().stamps_refused()
    }

    /// Returns all records, including those of deletions, for a forked child and for SAVE.
    pub fn records(&self, now: Timestamp) -> Vec<Vec<u8>> {
        self.0.borrow().records(now).collect()
    }

    /// Returns the next batch of records, [`BATCH_SIZE`] at most.
    pub fn next_batch(&self, walk: &mut Walk, now: Timestamp) -> Vec<Vec<u8>> {
        self.0.borrow().next_batch(walk, BATCH_SIZE, BATCH_BYTES, now)
    }

    /// Checks a record sent by a client.
    ///
    /// # Errors
    /// The record is malformed, or its stamp is too far ahead.
    pub fn check(&self, record: &[u8], now: Timestamp) -> Result<(), Error> {
        self.0.borrow_mut().check(record, now)
    }

    /// Merges a record according to its origin, and returns the outcome.
    pub fn merge(&self, record: &[u8], origin: Origin, now: Timestamp) -> MergeOutcome {
        self.0.borrow_mut().merge(record, origin, now)
    }

    /// Buffers a record of a peer until it can be merged.
    pub fn buffer(&self, record: &[u8], now: Timestamp) {
        self.0.borrow_mut().buffer(record, now);
    }

    /// Returns `true` if records are buffered.
    pub fn has_buffered(&self) -> bool {
        self.0.borrow().buffered() > 0
    }

    /// Clears the buffered records.
    pub fn clear_buffer(&self) {
        if self.has_buffered() {
            self.0.borrow_mut().clear_buffer();
        }
    }

    /// Merges one buffered record; returns the name of its policy and the outcome.
    pub fn merge_buffered(&self, now: Timestamp) -> Option<(Box<[u8]>, MergeOutcome)> {
        self.0.borrow_mut().merge_buffered(now)
    }

    /// Creates a table that replaces this one once it is filled.
    pub fn successor(&self) -> Table {
        self.0.borrow().successor()
    }

    /// Adds a record to a successor table.
    pub fn load_record(&self, successor: &mut Table, record: &[u8], origin: Origin, now: Timestamp) -> MergeOutcome {
        successor.load_record(&self.0.borrow(), record, origin, now)
    }

    /// Replaces this table by its successor; returns the discarded contents.
    pub fn replace(&self, successor: Table) -> Discarded {
        self.0.replace(successor).discard()
    }

    /// Returns the digest of each group of names. Servers with the same policies have the same digests.
    pub fn digests(&self) -> [u64; GROUPS] {
        *self.0.borrow().digests()
    }

    /// Returns the digest of all policies. Servers with the same policies have the same digest.
    pub fn digest(&self) -> u64 {
        self.0.borrow().digest()
    }

    /// Checks if the clock moved backwards, and drops old records of deletions.
    pub fn tick(&self, now: Timestamp) {
        let mut table = self.0.borrow_mut();
        table.read_clock(now);
        table.drop_old_deletions(now);
    }
}
