//! Exchange of policies with the other primaries of a cluster, and the remaining work of the current batch.

use ratelimit_core::policy::{DigestOutcome, EarlyDigest, GROUPS, Gossip, Walk};
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Id of a node: 40 characters.
pub type Node = [u8; 40];

/// Exchange with the other primaries.
#[derive(Debug)]
pub struct Peers {
    gossip: RefCell<Gossip<Node>>,
    began: Instant,
    /// Number of records that may still be merged in this batch.
    pub budget: Cell<usize>,
    /// `true` while the timer of the next batch is armed.
    pub armed: Cell<bool>,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers { gossip: RefCell::default(), began: Instant::now(), budget: Cell::default(), armed: Cell::default() }
    }
}

impl Peers {
    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Returns `true` if the digest is to be sent now, in a cluster with this number of primaries.
    pub fn is_digest_due(&self, primaries: usize) -> bool {
        self.gossip.borrow_mut().is_digest_due(primaries, self.now(), random())
    }

    /// Decides about an early digest once its delay is over.
    pub fn early(&self, is_behind: bool) -> EarlyDigest {
        self.gossip.borrow_mut().early(is_behind, self.now())
    }

    /// Records the digest of a peer. Returns the groups to request from it and the delay of an early digest, if any.
    pub fn receive_digest(
        &self,
        from: Node,
        peer_digests: &[u64; GROUPS],
        own: &[u64; GROUPS],
        can_merge: bool,
    ) -> DigestOutcome {
        self.gossip.borrow_mut().receive_digest(from, peer_digests, own, can_merge, self.now(), random())
    }

    /// Records that a peer has sent records, which may be an answer.
    pub fn receive_records(&self, from: Node) {
        self.gossip.borrow_mut().receive_records(from, self.now());
    }

    /// Returns the number of primaries whose most recent digest differs from `own`. Old digests are ignored.
    pub fn differing(&self, own: u64) -> usize {
        self.gossip.borrow().differing(own, self.now())
    }

    /// Queues an answer to a peer with the records of these groups of names, a bit for each.
    pub fn answer(&self, to: Node, groups: u64) {
        self.gossip.borrow_mut().answer(to, groups);
    }

    /// Returns the peer whose answer is to be sent next, and the progress of the answer.
    pub fn next_answer(&self) -> Option<(Node, Walk)> {
        self.gossip.borrow_mut().next_answer()
    }

    /// Appends an unfinished answer to the queue again.
    pub fn requeue_answer(&self, to: Node, walk: Walk) {
        self.gossip.borrow_mut().requeue_answer(to, walk);
    }

    /// Resets the exchange, as this server no longer takes part in it.
    pub fn reset(&self) {
        self.gossip.take();
    }
}

/// Returns a random number.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
