//! Exchange of policies with the other primaries of a cluster, and how many
//! records may still be merged before the next round, in which `src/redis/bus.rs` answers requests.

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
    /// Calls `run` with the state of the exchange and the time since the module was loaded.
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
