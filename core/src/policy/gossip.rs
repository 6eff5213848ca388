//! Exchange of digests among the primaries of a cluster: when this primary sends a digest, which peer it requests
//! records from, and which peers it sends records to.
//!
//! A digest goes to every primary, so its cost grows with the square of their number. Each primary therefore sends its
//! digest at intervals that grow with that number. In a cluster of any size, a primary receives at most about
//! [`DIGESTS_PER_SECOND`], and soon detects that its policies differ.
//!
//! Records that only one primary has would wait for its next digest. So a primary that receives a digest other than its
//! own sends an early digest after a random delay. It cancels the early digest if it receives a digest equal to its own
//! in the meantime: another primary has sent the same digest, or this primary has caught up. If many primaries differ
//! from one, few of them send an early digest. While a primary keeps differing, its delays double (Trickle, RFC 6206).

use super::walk::{GROUPS, Walk, sum};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum number of regular digests that a primary receives per second on average. Early digests come on top.
pub const DIGESTS_PER_SECOND: usize = 16;

/// Minimum interval between the digests of a primary.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);

/// Number of differing digests that cancels an early digest, counted since that was scheduled. Bounds the load of the
/// bus.
const CANCELLING_DIGESTS: u32 = 32;

/// Age up to which the digest of another primary counts as differing.
const DIGEST_LIFETIME: Duration = Duration::from_secs(5);

/// Timeout for the first records of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(900);

/// Time without records after which an answer, which is sent in batches, counts as complete.
const ANSWER_IDLE_TIMEOUT: Duration = Duration::from_millis(300);

/// Maximum duration of an answer. Needed because other records from the same peer look like a part of the answer.
const MAX_ANSWER_DURATION: Duration = Duration::from_secs(5);

/// Returns the interval between digests in a cluster of `primaries`: a second for every 16 of them.
#[must_use]
pub fn interval(primaries: usize) -> Duration {
    MIN_INTERVAL
        .saturating_mul(u32::try_from(primaries.div_ceil(DIGESTS_PER_SECOND)).unwrap_or(u32::MAX))
        .max(MIN_INTERVAL)
}

/// State of the exchange at one primary. In its methods, `now` is the time since any fixed instant, and `random` an
/// unpredictable number.
#[derive(Debug)]
pub struct Gossip<Node> {
    /// Peers that have sent a digest.
    peers: BTreeMap<Node, Peer>,
    /// Last request for records.
    request: Option<RecordRequest<Node>>,
    /// Peers that have requested records, with the progress of each answer. The first peer is served next.
    answers: Vec<(Node, Walk)>,
    interval: Duration,
    /// Time of the next digest, chosen at random. `None` before the first choice.
    next_digest: Option<Duration>,
    early_digest: Option<ScheduledDigest>,
    /// Maximum delay of the next early digest.
    max_early_delay: Duration,
}

/// Another primary.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Time at which the peer's last digest was received.
    received_at: Duration,
    /// Sum of that digest.
    digest: u64,
    /// `true` if the digest differed from that of this primary when it was received.
    differed: bool,
    /// Time at which records were last requested from the peer.
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

/// Early digest that has been scheduled.
#[derive(Clone, Copy, Debug)]
struct ScheduledDigest {
    due_at: Duration,
    /// Number of differing digests received since this one was scheduled.
    received: u32,
}

/// Outcome of a received digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DigestOutcome {
    /// Groups to request from the sender, a bit for each.
    pub request_groups: Option<u64>,
    /// Delay after which [`Gossip::decide_early_digest`] must be called.
    pub early_digest: Option<Duration>,
}

/// Decision about an early digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyDigest {
    /// The digest must be sent now.
    Send,
    /// The decision must be repeated after this time.
    Wait(Duration),
    /// The digest is not needed.
    Cancelled,
}

impl<Node> Default for Gossip<Node> {
    fn default() -> Self {
        Gossip {
            peers: BTreeMap::new(),
            request: None,
            answers: Vec::new(),
            interval: MIN_INTERVAL,
            next_digest: None,
            early_digest: None,
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
        let random_time = now.saturating_add(part_of(spread, random));
        let next = match self.next_digest {
            Some(next) if interval == self.interval => next,
            Some(next) => next.min(random_time),
            None => random_time,
        };
        self.interval = interval;
        // The longest time between two digests of a peer is twice the interval.
        let retention = DIGEST_LIFETIME.max(interval.saturating_mul(3));
        self.peers.retain(|_, peer| now.saturating_sub(peer.received_at) < retention);
        let is_due = next <= now;
        let following =
            now.saturating_add(half(MIN_INTERVAL)).saturating_add(part_of(spread.saturating_mul(2), random));
        self.next_digest = Some(if is_due { following } else { next });
        is_due
    }

    /// Stores the digest of a peer. `can_merge` is `true` if this primary can merge records now.
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

    /// Schedules or cancels the early digest after a received digest. Returns the delay if it is scheduled now.
    fn schedule(&mut self, differed: bool, now: Duration, random: u64) -> Option<Duration> {
        if !differed {
            (self.early_digest, self.max_early_delay) = (None, MIN_INTERVAL);
            return None;
        }
        if let Some(early) = &mut self.early_digest {
            early.received = early.received.saturating_add(1);
            if early.received >= CANCELLING_DIGESTS {
                self.early_digest = None;
            }
            return None;
        }
        // In a small cluster, the next regular digest comes as soon as an early one would.
        if self.interval == MIN_INTERVAL {
            return None;
        }
        let min = half(self.max_early_delay);
        let delay = min.saturating_add(part_of(min, random));
        self.max_early_delay = self.max_early_delay.saturating_mul(2).min(self.interval);
        self.early_digest = Some(ScheduledDigest { due_at: now.saturating_add(delay), received: 0 });
        Some(delay)
    }

    /// Decides about the early digest once its delay is over. The digest is deferred while this primary still has
    /// records to merge (`is_behind`) or receives more, because they may be the only difference.
    pub fn decide_early_digest(&mut self, is_behind: bool, now: Duration) -> EarlyDigest {
        let Some(early) = &mut self.early_digest else { return EarlyDigest::Cancelled };
        if is_behind || self.request.as_ref().is_some_and(|request| request.is_being_answered(now)) {
            early.due_at = now.saturating_add(ANSWER_IDLE_TIMEOUT);
        }
        let wait = early.due_at.saturating_sub(now);
        if !wait.is_zero() {
            return EarlyDigest::Wait(wait);
        }
        self.early_digest = None;
        EarlyDigest::Send
    }

    /// Notes that a peer has sent records, which may be part of an answer.
    pub fn receive_records(&mut self, from: Node, now: Duration) {
        if let Some(request) = self.request.as_mut().filter(|request| request.to == from) {
            request.answered_at = now;
        }
    }

    /// Returns the number of peers whose recent digest differs from `own_digest`, that of all names on this primary.
    #[must_use]
    pub fn differing_peer_count(&self, own_digest: u64, now: Duration) -> usize {
        self.differing_peers(own_digest, now).count()
    }

    fn differing_peers(&self, own_digest: u64, now: Duration) -> impl Iterator<Item = &Peer> {
        let is_recent = move |peer: &&Peer| now.saturating_sub(peer.received_at) < DIGEST_LIFETIME;
        self.peers.values().filter(move |peer| peer.differed && peer.digest != own_digest).filter(is_recent)
    }

    /// Returns `true` if records must be requested from a peer that differs, and notes the request. Only one peer is
    /// asked at a time, because most differing peers have the same records: the peer that was asked least recently.
    fn should_request_from(&mut self, node: Node, own_digest: u64, now: Duration) -> bool {
        if self.request.as_ref().is_some_and(|request| request.is_open(now)) {
            return false;
        }
        let requested_at = self.peers.get(&node).and_then(|peer| peer.requested_at);
        if self.differing_peers(own_digest, now).any(|peer| peer.requested_at < requested_at) {
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

    /// Queues an answer again behind the others, unless it is complete.
    pub fn requeue_answer(&mut self, to: Node, walk: Walk) {
        if !walk.is_over() {
            self.answers.push((to, walk));
        }
    }
}

impl<Node> RecordRequest<Node> {
    /// Returns `true` while no other peer may be asked for records.
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

/// Returns a random part of a time, in whole milliseconds.
fn part_of(time: Duration, random: u64) -> Duration {
    let max = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_millis(random.checked_rem(max).unwrap_or_default())
}
