//! Exchange of digests among the primaries of a cluster: when one is sent, who is asked for records, and who is sent
//! them.
//!
//! A digest goes to every primary, so its cost grows with the square of their number. Each primary therefore sends its
//! own at intervals that grow with that number: whatever the size of the cluster, a primary hears about [`HEARD`]
//! digests a second, and is soon told that it differs.
//!
//! Records that only one primary has would wait for its next digest. A primary that hears another digest than its own
//! answers with an early one after a random delay, unless it hears its own in the meantime: then somebody else has said
//! the same, or it has caught up. Of many primaries that differ from one, few answer. The delays of a primary that goes
//! on to differ double (the algorithm is Trickle, RFC 6206).

use super::walk::{GROUPS, Walk};
use std::collections::BTreeMap;
use std::time::Duration;

/// Digests that a primary hears in a second, about, and at most where all have the same.
pub const HEARD: usize = 16;

/// Shortest interval of a primary's digests.
pub const EVERY: Duration = Duration::from_secs(1);

/// Digests heard since an early one was scheduled that make it superfluous: the bus is busy enough.
const ENOUGH: u32 = 32;

/// Age up to which the digest of another primary counts.
const LATELY: Duration = Duration::from_secs(5);

/// Time after which a peer that has been asked is taken not to answer.
const UNANSWERED: Duration = Duration::from_millis(900);

/// Time without records after which an answer, which comes in pieces, is taken to be over.
const ANSWERED: Duration = Duration::from_millis(300);

/// Time after which an answer is over at the latest: the peer may have other things to say all the time.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// Interval of a primary's digests in a cluster with so many primaries: a second for each 16 of them.
#[must_use]
pub fn interval(primaries: usize) -> Duration {
    EVERY.saturating_mul(u32::try_from(primaries.div_ceil(HEARD)).unwrap_or(u32::MAX)).max(EVERY)
}

/// State of the exchange at one primary. `now` is the time since any fixed instant, and `random` a number that nobody
/// can foresee.
#[derive(Debug)]
pub struct Gossip<Node> {
    heard: BTreeMap<Node, Peer>,
    question: Option<Question<Node>>,
    /// Peers that have asked, and how far the answers are. The first is the next to be sent something.
    answers: Vec<(Node, Walk)>,
    interval: Duration,
    /// Time of the next digest, once one was drawn.
    next: Option<Duration>,
    early: Option<Early>,
    /// Longest delay of the next early digest.
    patience: Duration,
}

/// Another primary.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// When it last sent its digest, and the sum of that.
    heard: Duration,
    digest: u64,
    /// Set if the digest was another than this primary's when it came.
    differed: bool,
    /// When it was last asked for what differs.
    asked: Option<Duration>,
}

#[derive(Clone, Copy, Debug)]
struct Question<Node> {
    to: Node,
    asked: Duration,
    answered: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Early {
    due: Duration,
    /// Digests heard since it was scheduled.
    heard: u32,
}

/// Outcome of hearing a digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heard {
    /// Groups to ask the sender for, a bit for each.
    pub ask: Option<u64>,
    /// Delay after which [`Gossip::early`] is to be called.
    pub early: Option<Duration>,
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
            heard: BTreeMap::new(),
            question: None,
            answers: Vec::new(),
            interval: EVERY,
            next: None,
            early: None,
            patience: EVERY,
        }
    }
}

impl<Node: Copy + Ord> Gossip<Node> {
    /// Returns whether to send the digest now. To be called about once a second.
    pub fn is_digest_due(&mut self, primaries: usize, now: Duration, random: u64) -> bool {
        let interval = interval(primaries);
        // Primaries that were started together would send theirs together: each draws its own times.
        let spread = interval.saturating_sub(EVERY);
        let first = now.saturating_add(part_of(spread, random));
        let next = match self.next {
            Some(next) if interval == self.interval => next,
            Some(next) => next.min(first),
            None => first,
        };
        self.interval = interval;
        // The longest time between two digests of a peer is twice the interval.
        let gone = LATELY.max(interval.saturating_mul(3));
        self.heard.retain(|_, peer| now.saturating_sub(peer.heard) < gone);
        let is_due = next <= now;
        let after = now.saturating_add(half(EVERY)).saturating_add(part_of(spread.saturating_mul(2), random));
        self.next = Some(if is_due { after } else { next });
        is_due
    }

    /// Hears a peer's digest. `can_take` is whether this primary could take over records now.
    pub fn hear_digest(
        &mut self,
        from: Node,
        theirs: &[u64; GROUPS],
        own: &[u64; GROUPS],
        can_take: bool,
        now: Duration,
        random: u64,
    ) -> Heard {
        let differing = differing_groups(theirs, own);
        let (digest, differed) = (sum(theirs), differing != 0);
        let asked = self.heard.get(&from).and_then(|peer| peer.asked);
        self.heard.insert(from, Peer { heard: now, digest, differed, asked });
        let early = self.schedule(differed, now, random);
        let ask = (differed && can_take && self.is_to_be_asked(from, sum(own), now)).then_some(differing);
        Heard { ask, early }
    }

    /// Schedules or cancels an early digest as another one is heard; returns the delay of one that is new.
    fn schedule(&mut self, differed: bool, now: Duration, random: u64) -> Option<Duration> {
        if !differed {
            (self.early, self.patience) = (None, EVERY);
            return None;
        }
        if let Some(early) = &mut self.early {
            early.heard = early.heard.saturating_add(1);
            if early.heard >= ENOUGH {
                self.early = None;
            }
            return None;
        }
        // In a small cluster the next digest is as early.
        if self.interval == EVERY {
            return None;
        }
        let least = half(self.patience);
        let delay = least.saturating_add(part_of(least, random));
        self.patience = self.patience.saturating_mul(2).min(self.interval);
        self.early = Some(Early { due: now.saturating_add(delay), heard: 0 });
        Some(delay)
    }

    /// Decides about the early digest once its delay is over. A primary that is about to take over records waits, as
    /// they may be all that it differs in.
    pub fn early(&mut self, is_behind: bool, now: Duration) -> EarlyDigest {
        let Some(early) = &mut self.early else { return EarlyDigest::Cancelled };
        if is_behind || self.question.as_ref().is_some_and(|question| question.is_being_answered(now)) {
            early.due = now.saturating_add(ANSWERED);
        }
        let left = early.due.saturating_sub(now);
        if !left.is_zero() {
            return EarlyDigest::Wait(left);
        }
        self.early = None;
        EarlyDigest::Send
    }

    /// Hears that a peer has sent records, perhaps to answer.
    pub fn hear_records(&mut self, from: Node, now: Duration) {
        if let Some(question) = self.question.as_mut().filter(|question| question.to == from) {
            question.answered = now;
        }
    }

    /// Returns how many primaries, of those heard of lately, have another digest. `own` is the sum of this primary's.
    #[must_use]
    pub fn differing(&self, own: u64, now: Duration) -> usize {
        self.differing_peers(own, now).count()
    }

    fn differing_peers(&self, own: u64, now: Duration) -> impl Iterator<Item = &Peer> {
        let is_late = move |peer: &&Peer| now.saturating_sub(peer.heard) < LATELY;
        self.heard.values().filter(move |peer| peer.differed && peer.digest != own).filter(is_late)
    }

    /// Returns whether to ask a peer that differs for its records: one at a time, and of those that differ the one that
    /// was asked longest ago. Most of them have the same, which need not come from each.
    fn is_to_be_asked(&mut self, node: Node, own: u64, now: Duration) -> bool {
        if self.question.as_ref().is_some_and(|question| question.is_open(now)) {
            return false;
        }
        let asked = self.heard.get(&node).and_then(|peer| peer.asked);
        if self.differing_peers(own, now).any(|peer| peer.asked < asked) {
            return false;
        }
        if let Some(peer) = self.heard.get_mut(&node) {
            peer.asked = Some(now);
        }
        self.question = Some(Question { to: node, asked: now, answered: now });
        true
    }

    /// Has a peer be sent the records of these groups, a bit for each.
    pub fn answer(&mut self, to: Node, groups: u64) {
        if let Some((_, walk)) = self.answers.iter_mut().find(|(node, _)| *node == to) {
            walk.include(groups);
        } else {
            let mut walk = Walk::default();
            walk.include(groups);
            self.answers.push((to, walk));
        }
    }

    /// Returns the peer that is to be sent something next, and how far its answer is.
    pub fn next_answer(&mut self) -> Option<(Node, Walk)> {
        (!self.answers.is_empty()).then(|| self.answers.remove(0))
    }

    /// Puts an answer back that is not over, behind the others.
    pub fn go_on_answering(&mut self, to: Node, walk: Walk) {
        if !walk.is_over() {
            self.answers.push((to, walk));
        }
    }
}

impl<Node> Question<Node> {
    /// Returns whether no other peer may be asked yet.
    fn is_open(&self, now: Duration) -> bool {
        let since = now.saturating_sub(self.asked);
        let is_unanswered = self.answered == self.asked && since < UNANSWERED;
        is_unanswered || (since < LONGEST_ANSWER && self.is_being_answered(now))
    }

    /// Returns whether the peer may be about to send more.
    fn is_being_answered(&self, now: Duration) -> bool {
        now.saturating_sub(self.answered) < ANSWERED
    }
}

/// Returns the groups in which two digests differ, a bit for each.
fn differing_groups(one: &[u64; GROUPS], other: &[u64; GROUPS]) -> u64 {
    one.iter().zip(other).rev().fold(0, |groups, (one, other)| groups << 1 | u64::from(one != other))
}

/// Sum of a digest.
fn sum(digest: &[u64; GROUPS]) -> u64 {
    digest.iter().fold(0, |sum, group| sum.wrapping_add(*group))
}

fn half(time: Duration) -> Duration {
    time.checked_div(2).unwrap_or_default()
}

/// Returns a random part of a time, in milliseconds.
fn part_of(time: Duration, random: u64) -> Duration {
    let most = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
    Duration::from_millis(random.checked_rem(most).unwrap_or_default())
}
