//! The policies that this server keeps: the table of the core, where calls find it.
//!
//! A ruling is held by its count, never borrowed: inside a call other modules may hear of its events, and set policies
//! too.

use ratelimit_core::Timestamp;
use ratelimit_core::policy::{
    Condition, Discarded, GROUPS, Merged, Origin, Pattern, PolicyFacts, PolicyLookup, ScaleOutcome, Scaling, Set,
    Table, Walk,
};
use ratelimit_core::syntax::{ByPolicy, KeyRequest, ManyKeysRequest, Policy};
use ratelimit_core::wire::error::Error;
use std::cell::RefCell;
use std::rc::Rc;

pub use ratelimit_core::policy::Ruling;

/// The policies of this server.
#[derive(Debug, Default)]
pub struct Policies(RefCell<Table>);

/// The longest record, in bytes: it fits a message of a cluster's bus.
pub const MAX_RECORD: usize = 60_000;

/// How many records are gone through in one go: with each of them taken over from a peer, about 3 ms.
pub const AT_ONCE: usize = 200;

/// About how many bytes of records are gone through in one go: that many fit a message of a cluster's bus.
const BYTES_AT_ONCE: usize = 32_768;

impl Policies {
    /// The policy of that name.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    #[inline(always)]
    pub fn named(&self, name: &[u8], now: Timestamp) -> Result<Rc<Ruling>, Error> {
        match self.0.borrow().find(name, now) {
            PolicyLookup::Ruling(ruling) => Ok(Rc::clone(ruling)),
            PolicyLookup::Unreadable => Err(Error::UnreadablePolicy),
            PolicyLookup::Missing => Err(Error::no_policy(std::iter::once(name))),
        }
    }

    /// Adds the policy of each key of a call to `rulings`, `None` for a key without one; nothing if no key has one.
    ///
    /// # Errors
    /// A key's policy does not exist or cannot be read.
    pub fn of_keys(
        &self,
        request: &ManyKeysRequest,
        rulings: &mut Vec<Option<Rc<Ruling>>>,
        now: Timestamp,
    ) -> Result<(), Error> {
        if request.keys.iter().any(|(_, of_key)| matches!(of_key, KeyRequest::Policy(_))) {
            for (_, of_key) in &request.keys {
                rulings.push(match of_key {
                    KeyRequest::Policy(by) => Some(self.find(by, now)?),
                    KeyRequest::One(_) | KeyRequest::Composite(_) => None,
                });
            }
        }
        Ok(())
    }

    /// The first policy that there is of those that a call names.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn find(&self, by: &ByPolicy, now: Timestamp) -> Result<Rc<Ruling>, Error> {
        let table = self.0.borrow();
        for name in by.names() {
            match table.find(name, now) {
                PolicyLookup::Ruling(ruling) => return Ok(Rc::clone(ruling)),
                PolicyLookup::Unreadable => return Err(Error::UnreadablePolicy),
                PolicyLookup::Missing => {}
            }
        }
        Err(by.missing())
    }

    /// Stamps with that number what is written here from now on.
    pub fn stamp_as(&self, node: u64) {
        self.0.borrow_mut().stamp_as(node);
    }

    /// Sets a policy, if there are fewer than `most`.
    ///
    /// # Errors
    /// Why it is not set.
    pub fn set(
        &self,
        name: &[u8],
        condition: Condition,
        policy: &Policy,
        now: Timestamp,
        most: usize,
    ) -> Result<Set, Error> {
        self.0.borrow_mut().set(name, condition, policy, now, most)
    }

    /// Scales a policy; what there is to know of it then.
    ///
    /// # Errors
    /// There is none.
    pub fn scale(&self, name: &[u8], scaling: Scaling, now: Timestamp) -> Result<ScaleOutcome, Error> {
        self.0.borrow_mut().scale(name, scaling, now)
    }

    /// Deletes a policy; whether there was one.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn delete(&self, name: &[u8], now: Timestamp) -> Result<bool, Error> {
        self.0.borrow_mut().delete(name, now)
    }

    /// Deletes a policy if it has that version.
    ///
    /// # Errors
    /// There is none, or it has another version.
    pub fn delete_version(&self, name: &[u8], version: u64, now: Timestamp) -> Result<(), Error> {
        self.0.borrow_mut().delete_version(name, version, now)
    }

    /// What there is to know of a policy.
    pub fn get(&self, name: &[u8], now: Timestamp) -> Option<PolicyFacts> {
        self.0.borrow().get(name, now)
    }

    /// What there is to know of those whose names match a pattern; of all, without one.
    pub fn list(&self, pattern: Option<&Pattern>, now: Timestamp) -> Vec<PolicyFacts> {
        self.0.borrow().list(pattern, now)
    }

    /// What there is to know of the `most` with most calls.
    pub fn busiest(&self, most: usize, now: Timestamp) -> Vec<PolicyFacts> {
        self.0.borrow().busiest(most, now)
    }

    /// What is known by a name.
    pub fn record(&self, name: &[u8], now: Timestamp) -> Option<Vec<u8>> {
        self.0.borrow().record(name, now)
    }

    /// Whether nothing is known, not even a deletion.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().known() == 0
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        u64::try_from(self.0.borrow().len()).unwrap_or(u64::MAX)
    }

    /// How many records had a stamp that was too far ahead.
    pub fn stamps_refused(&self) -> u64 {
        self.0.borrow().stamps_refused()
    }

    /// All that is known, deletions too: for a child, and for SAVE.
    pub fn records(&self, now: Timestamp) -> Vec<Vec<u8>> {
        self.0.borrow().records(now).collect()
    }

    /// The next of them, [`AT_ONCE`] at most.
    pub fn piece(&self, walk: &mut Walk, now: Timestamp) -> Vec<Vec<u8>> {
        self.0.borrow().piece(walk, AT_ONCE, BYTES_AT_ONCE, now)
    }

    /// Checks a record that a client brings.
    ///
    /// # Errors
    /// No server can have written it, or its stamp is too far ahead.
    pub fn check(&self, record: &[u8], now: Timestamp) -> Result<(), Error> {
        self.0.borrow_mut().check(record, now)
    }

    /// Takes over what a record says, as far as its origin lets it; the outcome.
    pub fn merge(&self, record: &[u8], origin: Origin, now: Timestamp) -> Merged {
        self.0.borrow_mut().merge(record, origin, now)
    }

    /// Keeps what a peer says until it can be taken over.
    pub fn keep(&self, record: &[u8], now: Timestamp) {
        self.0.borrow_mut().keep(record, now);
    }

    /// Whether anything is kept.
    pub fn keeps_any(&self) -> bool {
        self.0.borrow().kept() > 0
    }

    /// Forgets what is kept.
    pub fn drop_kept(&self) {
        if self.keeps_any() {
            self.0.borrow_mut().drop_kept();
        }
    }

    /// Takes over what one kept record says: its name, and the outcome.
    pub fn merge_kept(&self, now: Timestamp) -> Option<(Box<[u8]>, Merged)> {
        self.0.borrow_mut().merge_kept(now)
    }

    /// A table that is to take the place of this one once it is filled.
    pub fn successor(&self) -> Table {
        self.0.borrow().successor()
    }

    /// Puts into such a table what a record says.
    pub fn take_beside(&self, successor: &mut Table, record: &[u8], origin: Origin, now: Timestamp) -> Merged {
        successor.take_beside(&self.0.borrow(), record, origin, now)
    }

    /// Has a table take the place of this one; what is left of this one.
    pub fn succeed(&self, successor: Table) -> Discarded {
        self.0.replace(successor).discard()
    }

    /// What is the same on servers that have the same policies, of each group of names.
    pub fn digests(&self) -> [u64; GROUPS] {
        *self.0.borrow().digests()
    }

    /// What is the same on servers that have the same policies.
    pub fn digest(&self) -> u64 {
        self.0.borrow().digest()
    }

    /// Notices whether the clock was set back, and forgets deletions that were learned long ago.
    pub fn tick(&self, now: Timestamp) {
        let mut table = self.0.borrow_mut();
        table.notice(now);
        table.forget(now);
    }
}
