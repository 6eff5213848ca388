//! The exchange of policies with the other primaries of a cluster, and how much of it this turn may still do.

use ratelimit_core::policy::{EarlyDigest, GROUPS, Gossip, Heard, Walk};
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// A node's id: 40 letters.
pub type Node = [u8; 40];

/// Exchange with the other primaries.
#[derive(Debug)]
pub struct Peers {
    gossip: RefCell<Gossip<Node>>,
    began: Instant,
    /// Records that may still be taken over in this turn.
    pub budget: Cell<usize>,
    /// Set while the timer is armed that begins the next turn.
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

    /// Returns whether to send the digest now, in a cluster with so many primaries.
    pub fn is_digest_due(&self, primaries: usize) -> bool {
        self.gossip.borrow_mut().is_digest_due(primaries, self.now(), random())
    }

    /// Decides about an early digest once its delay is over.
    pub fn early(&self, is_behind: bool) -> EarlyDigest {
        self.gossip.borrow_mut().early(is_behind, self.now())
    }

    /// Hears a peer's digest.
    pub fn hear_digest(&self, from: Node, theirs: &[u64; GROUPS], own: &[u64; GROUPS], can_take: bool) -> Heard {
        self.gossip.borrow_mut().hear_digest(from, theirs, own, can_take, self.now(), random())
    }

    /// Hears that a peer has sent records, perhaps to answer.
    pub fn hear_records(&self, from: Node) {
        self.gossip.borrow_mut().hear_records(from, self.now());
    }

    /// Returns how many primaries, of those heard of lately, have another digest than this one.
    pub fn differing(&self, own: u64) -> usize {
        self.gossip.borrow().differing(own, self.now())
    }

    /// Has a peer be sent the records of these groups of names, a bit for each.
    pub fn answer(&self, to: Node, groups: u64) {
        self.gossip.borrow_mut().answer(to, groups);
    }

    /// Returns the peer that is to be sent something next, and how far its answer is.
    pub fn next_answer(&self) -> Option<(Node, Walk)> {
        self.gossip.borrow_mut().next_answer()
    }

    /// Puts an answer back that is not over, behind the others.
    pub fn go_on_answering(&self, to: Node, walk: Walk) {
        self.gossip.borrow_mut().go_on_answering(to, walk);
    }

    /// Forgets the exchange, as a server does that takes no part in it any more.
    pub fn reset(&self) {
        self.gossip.take();
    }
}

/// Returns a number that nobody can foresee.
fn random() -> u64 {
    RandomState::new().hash_one(())
}
