//! Policies of this server: the table of the core in a `RefCell`.
//!
//! A policy is returned as an `Rc`, never borrowed: during a call the server notifies other modules of its events, and
//! they may set policies.

use ratelimit_core::Timestamp;
use ratelimit_core::policy::{PolicyLookup, Table, Walk};
use ratelimit_core::syntax::{KeyRequest, ManyKeysRequest, PolicyRequest};
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
    /// Returns an error if the policy does not exist or cannot be read.
    #[inline(always)]
    pub fn find_by_name(&self, name: &[u8], now: Timestamp) -> Result<Rc<EffectivePolicy>, Error> {
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
    /// Returns an error if a key's policy does not exist or cannot be read.
    pub fn collect(
        &self,
        request: &ManyKeysRequest,
        policies: &mut Vec<Option<Rc<EffectivePolicy>>>,
        now: Timestamp,
    ) -> Result<(), Error> {
        if request.keys.iter().any(|(_, key_request)| matches!(key_request, KeyRequest::Policy(_))) {
            for (_, key_request) in &request.keys {
                policies.push(match key_request {
                    KeyRequest::Policy(policy_request) => Some(self.find_first(policy_request, now)?),
                    KeyRequest::One(_) | KeyRequest::Composite(_) => None,
                });
            }
        }
        Ok(())
    }

    /// Returns the first existing policy of those that a call names.
    ///
    /// # Errors
    /// Returns an error if none of these policies exists, or the first existing one cannot be read.
    pub fn find_first(&self, request: &PolicyRequest, now: Timestamp) -> Result<Rc<EffectivePolicy>, Error> {
        let table = self.0.borrow();
        for name in request.names() {
            match table.find(name, now) {
                PolicyLookup::Found(policy) => return Ok(Rc::clone(policy)),
                PolicyLookup::Unreadable => return Err(Error::UnreadablePolicy),
                PolicyLookup::Missing => {}
            }
        }
        Err(request.no_such_policy())
    }

    /// Runs `run` on the table. The table is borrowed meanwhile, so `run` calls nothing that may let other modules run.
    pub fn with<T>(&self, run: impl FnOnce(&mut Table) -> T) -> T {
        run(&mut self.0.borrow_mut())
    }

    /// Returns the record of a policy or of its deletion.
    pub fn record(&self, name: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        self.0.borrow().record(name, now)
    }

    /// Returns `true` if the table has no records, not even of deletions.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().record_count() == 0
    }

    /// Returns the next batch of records, [`BATCH_SIZE`] at most.
    pub fn next_batch(&self, walk: &mut Walk, now: Timestamp) -> Vec<Vec<u8>> {
        self.0.borrow().next_batch(walk, BATCH_SIZE, BATCH_BYTES, now)
    }

    /// Returns `true` if records of peers are buffered until they can be merged.
    pub fn has_buffered(&self) -> bool {
        self.0.borrow().buffered() > 0
    }

    /// Detects whether the clock moved backwards, and drops old records of deletions.
    pub fn tick(&self, now: Timestamp) {
        self.with(|table| {
            table.read_clock(now);
            table.drop_old_deletions(now);
        });
    }
}
