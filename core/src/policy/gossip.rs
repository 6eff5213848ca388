//! Exchange of digests among the primaries of a cluster: when this primary sends a digest, which peer it requests
//! records from, and which peers it sends records to.
//!
//! A digest goes to every primary, so its cost grows with the square of their number. Each primary therefore sends its
//! digest at intervals that grow with that number. Whatever the size of the cluster, a primary receives about
//! [`DIGESTS_PER_SECOND`], and soon detects that its policies differ.
//!
//! Records that only one primary has would wait for its next digest. So a primary that receives a digest other than its
//! own sends an early digest after a random delay. It cancels the early digest if it receives one equal to its own in
//! the meantime: then another primary has sent the same digest, or this one has caught up. Of many primaries that
//! differ from one, few send an early digest. While a primary keeps differing, its delays double (Trickle, RFC 6206).

use super::walk::{GROUPS, Walk, sum};
use std::collections::BTreeMap;
use std::time::Duration;

/// Approximate number of digests that a primary receives per second: at most this many while all are equal. Early
/// digests come on top.
pub const DIGESTS_PER_SECOND: usize = 16;

/// Minimum interval between the digests of a primary.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Number of differing digests, received since an early one was scheduled, that cancels it. Bounds the load of the bus.
const CANCELLING_DIGESTS: u32 = 32;

/// Age up to which the digest of another primary counts as differing.
const DIGEST_LIFETIME: Duration = Duration::from_secs(5);

/// Timeout for the first records of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);

/// Time without records after which an answer, which is sent in batches, counts as complete.
const ANSWER_IDLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Maximum duration of an answer. Needed because other records from the peer look like more of the answer.
const MAX_ANSWER_DURATION: Duration = Duration::from_secs(5);

/// Returns the interval between digests in a cluster with this number of primaries: a second for every 16 of them.
#[must_use]
pub fn interval(primaries: usize) -> Duration {
    MIN_INTERVAL
        .saturating_mul(u32::try_from(primaries.div_ceil(DIGESTS_PER_SECOND)).unwrap_or(u32::MAX))
        .max(MIN_INTERVAL)
}

/// State of the exchange at one primary. `now` is the time since any fixed instant, and `random` an unpredictable
/// number.
#[derive(Debug)]
pub struct Gossip<Node> {
    /// Peers that have sent a digest.
    peers: BTreeMap<Node, Peer>,
    /// Last request for records.
    request: Option<RecordRequest<Node>>,
    /// Peers that have requested records, with the progress of each answer. The first peer is served next.
    answers: Vec<(Node, Walk)>,
    interval: Duration,
    /// Time of the next digest, once it has been chosen (at random).
    next: Option<Duration>,
    early: Option<Early>,
    /// Maximum delay of the next early digest.
    max_early_delay: Duration,
}

/// Another primary.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Time at which its last digest was received.
    received_at: Duration,
    /// Sum of that digest.
    digest: u64,
    /// `true` if the digest differed from that of this primary when it was received.
    differed: bool,
    /// Time at which records were last requested from it.
    requested_at: Option<Duration>,
}

/// Request for records that was sent to a peer.
#[derive(Clone, Copy, Debug)]
struct RecordRequest<Node> {
    to: Node,
    requested_at: Duration,
    /// Time at which records from the peer were last received; equal to `requested_at` until then.
    answered_at: Duration,
}

/// Scheduled early digest.
#[derive(Clone, Copy, Debug)]
struct Early {
    due: Duration,
    /// Number of digests received since it was scheduled.
    digests: u32,
}

/// Outcome of a received digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestOutcome {
    /// Groups to request from the sender, a bit for each.
    pub request_groups: Option<u64>,
    /// Delay after which [`Gossip::early`] must be called.
    pub early_digest: Option<Duration>,
}

/// Decision about an early digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyDigest {
    /// Due now.
    Send,
    /// Due once this time has passed.
    Wait(Duration),
    /// Not needed any more.
    Cancelled,
}

impl<Node> Default for Gossip<Node> {
    fn default() -> Self {
        Gossip {
            peers: BTreeMap::new(),
            request: None,
            answers: Vec::new(),
            interval: MIN_INTERVAL,
            next: None,
            early: None,
            max_early_delay: MIN_INTERVAL,
        }
    }
}

impl<Node: Copy + Ord> Gossip<Node> {
    /// Returns `true` if the digest must be sent now. Called about once a second.
    pub fn is_digest_due(&mut self, primaries: usize, now: Duration, random: u64) -> bool {
        let interval = interval(primaries);
        // Random, because primaries that were started together would send their digests together.
        let spread = interval.saturating_sub(MIN_INTERVAL);
        let first = now.saturating_add(part_of(spread, random));
        let next = match self.next {
            Some(next) if interval == self.interval => next,
            Some(next) => next.min(first),
            None => first,
        };
        self.interval = interval;
        // The longest time between two digests of a peer is twice the interval.
        let retention = DIGEST_LIFETIME.max(interval.saturating_mul(3));
        self.peers.retain(|_, peer| now.saturating_sub(peer.received_at) < retention);
        let is_due = next <= now;
        let after = now.saturating_add(half(MIN_INTERVAL)).saturating_add(part_of(spread.saturating_mul(2), random));
        self.next = Some(if is_due { after } else { next });
        is_due
    }

    /// Records the digest of a peer. `can_merge` is `true` if this primary can merge records now.
    pub fn receive_digest(
        &mut self,
        from: Node,
        peer_digests: &[u64; GROUPS],
        own_digests: &[u64; GROUPS],
        can_merge: bool,
        now: Duration,
        random: u64,
    ) -> DigestOutcome {
        let differing = differing_groups(peer_digests, own_digests);
        let (digest, differed) = (sum(peer_digests), differing != 0);
        let requested_at = self.peers.get(&from).and_then(|peer| peer.requested_at);
        self.peers.insert(from, Peer { received_at: now, digest, differed, requested_at });
        let early_digest = self.schedule(differed, now, random);
        let request_groups =
            (differed && can_merge && self.should_request_from(from, sum(own_digests), now)).then_some(differing);
        DigestOutcome { request_groups, early_digest }
    }

    /// Schedules or cancels the early digest after a received one. Returns the delay if it is scheduled now.
    fn schedule(&mut self, differed: bool, now: Duration, random: u64) -> Option<Duration> {
        if !differed {
            (self.early, self.max_early_delay) = (None, MIN_INTERVAL);
            return None;
        }
        if let Some(early) = &mut self.early {
            early.digests = early.digests.saturating_add(1);
            if early.digests >= CANCELLING_DIGESTS {
                self.early = None;
            }
            return None;
        }
        // In a small cluster, the next regular digest comes as soon as an early one would, so none is needed.
        if self.interval == MIN_INTERVAL {
            return None;
        }
        let min = half(self.max_early_delay);
        let delay = min.saturating_add(part_of(min, random));
        self.max_early_delay = self.max_early_delay.saturating_mul(2).min(self.interval);
        self.early = Some(Early { due: now.saturating_add(delay), digests: 0 });
        Some(delay)
    }

    /// Decides about the early digest once its delay is over. The digest is deferred while this primary still has
    /// records to merge (`is_behind`) or receives more, because they may be the only difference.
    pub fn early(&mut self, is_behind: bool, now: Duration) -> EarlyDigest {
        let Some(early) = &mut self.early else { return EarlyDigest::Cancelled };
        if is_behind || self.request.as_ref().is_some_and(|request| request.is_being_answered(now)) {
            early.due = now.saturating_add(ANSWER_IDLE_TIMEOUT);
        }
        let left = early.due.saturating_sub(now);
        if !left.is_zero() {
            return EarlyDigest::Wait(left);
        }
        self.early = None;
        EarlyDigest::Send
    }

    /// Records that a peer has sent records, which may be part of an answer.
    pub fn receive_records(&mut self, from: Node, now: Duration) {
        if let Some(request) = self.request.as_mut().filter(|request| request.to == from) {
            request.answered_at = now;
        }
    }

    /// Returns the number of peers whose recent digest differs from `own`, the sum of the digest of this primary.
    #[must_use]
    pub fn differing(&self, own: u64, now: Duration) -> usize {
        self.differing_peers(own, now).count()
    }

    fn differing_peers(&self, own: u64, now: Duration) -> impl Iterator<Item = &Peer> {
        let is_recent = move |peer: &&Peer| now.saturating_sub(peer.received_at) < DIGEST_LIFETIME;
        self.peers.values().filter(move |peer| peer.differed && peer.digest != own).filter(is_recent)
    }

    /// Returns `true` if records must be requested from a peer that differs, and records the request. One peer is asked
    /// at a time, the one whose last request is the oldest: most differing peers have the same records.
    fn should_request_from(&mut self, node: Node, own: u64, now: Duration) -> bool {
        if self.request.as_ref().is_some_and(|request| request.is_open(now)) {
            return false;
        }
        let requested_at = self.peers.get(&node).and_then(|peer| peer.requested_at);
        if self.differing_peers(own, now).any(|peer| peer.requested_at < requested_at) {
            return false;
        }
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.requested_at = Some(now);
        }
        self.request = Some(RecordRequest { to: node, requested_at: now, answered_at: now });
        true
    }

    /// Queues an answer to a peer with the records of these groups, a bit for each.
    pub fn answer(&mut self, to: Node, groups: u64) {
        if let Some((_, walk)) = self.answers.iter_mut().find(|(node, _)| *node == to) {
            walk.include(groups);
        } else {
            let mut walk = Walk::default();
            walk.include(groups);
            self.answers.push((to, walk));
        }
    }

    /// Removes and returns the peer to be served next, with the progress of its answer.
    pub fn next_answer(&mut self) -> Option<(Node, Walk)> {
        (!self.answers.is_empty()).then(|| self.answers.remove(0))
    }

    /// Queues an unfinished answer again, behind the others.
    pub fn requeue_answer(&mut self, to: Node, walk: Walk) {
        if !walk.is_over() {
            self.answers.push((to, walk));
        }
    }
}

impl<Node> RecordRequest<Node> {
    /// Returns `true` while records must not be requested from another peer.
    fn is_open(&self, now: Duration) -> bool {
        let since = now.saturating_sub(self.requested_at);
        let is_unanswered = self.answered_at == self.requested_at && since < ANSWER_TIMEOUT;
        is_unanswered || (since < MAX_ANSWER_DURATION && self.is_being_answered(now))
    }

    /// Returns `true` while the peer may send further records of its answer.
    fn is_being_answered(&self, now: Duration) -> bool {
        now.saturating_sub(self.answered_at) < ANSWER_IDLE_TIMEOUT
    }
}

/// Returns the groups in which two digests differ, a bit for each.
fn differing_groups(one: &[u64; GROUPS], other: &[u64; GROUPS]) -> u64 {
    one.iter().zip(other).rev().fold(0, |groups, (one, other)| groups << 1 | u64::from(one != other))
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or_default()
}

/// Returns a random part of a time, in milliseconds.
fn part_of(time: Duration, random: u64) -> Duration {
    let max = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_millis(random.checked_rem(max).unwrap_or_default())
}
