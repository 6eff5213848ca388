//! Exchange of policies with the other primaries of a cluster, and the work that remains before the next round.

use ratelimit_core::policy::Gossip;
use std::cell::{Cell, RefCell};
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

/// Id of a node: 40 characters.
pub type Node = [u8; 40];

/// Exchange with the other primaries.
#[derive(Debug)]
pub struct Peers {
    gossip: RefCell<Gossip<Node>>,
    start: Instant,
    /// Number of records that may still be merged before the next round.
    pub merge_budget: Cell<usize>,
    /// `true` while the timer of the next round is running.
    pub is_round_scheduled: Cell<bool>,
}

impl Default for Peers {
    fn default() -> Peers {
        Peers {
            gossip: RefCell::default(),
            start: Instant::now(),
            merge_budget: Cell::default(),
            is_round_scheduled: Cell::default(),
        }
    }
}

impl Peers {
    /// Runs `run` on the state of the exchange, at the time since this server started.
    pub fn with<T>(&self, run: impl FnOnce(&mut Gossip<Node>, Duration) -> T) -> T {
        run(&mut self.gossip.borrow_mut(), self.start.elapsed())
    }

    /// Resets the exchange, as this server no longer takes part in it.
    pub fn reset(&self) {
        self.gossip.take();
    }
}

/// Returns a random number.
pub fn random() -> u64 {
    RandomState::new().hash_one(())
}
