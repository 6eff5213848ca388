//! What the other primaries of a cluster have told of their policies, and what they are still to be told.

use ratelimit_core::policy::Walk;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A node's id: 40 letters.
pub type Node = [u8; 40];

/// A primary that has not been heard of for so long is forgotten.
const GONE: Duration = Duration::from_secs(5);

/// The least time from one question to the next: a little less than from one digest to the next.
const BETWEEN_QUESTIONS: Duration = Duration::from_millis(900);

/// An answer comes in pieces, and is taken to be over when none has come for so long.
const ANSWERED: Duration = Duration::from_millis(300);

/// An answer is over after this time at the latest: whoever answers may have other things to say all the time.
const LONGEST_ANSWER: Duration = Duration::from_secs(5);

/// What is known of the other primaries, and which of them have asked for records.
#[derive(Debug, Default)]
pub struct Peers {
    heard: RefCell<HashMap<Node, Peer>>,
    /// The peer that was asked last, when, and when it last sent anything.
    question: Cell<Option<Question>>,
    /// The peers that have asked, and how far the answers are. The first is the next to be sent something.
    pub answers: RefCell<Vec<(Node, Walk)>>,
    /// How many records may still be taken over in this turn.
    pub budget: Cell<usize>,
    /// Whether the timer is armed that begins the next turn.
    pub armed: Cell<bool>,
}

/// What is known of another primary.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// When it last sent its digest, and what that came to.
    heard: Instant,
    digest: u64,
    /// When it was last asked for what differs.
    asked: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Question {
    to: Node,
    asked: Instant,
    answered: Instant,
}

impl Peers {
    /// Hears a peer's digest.
    pub fn hear(&self, node: Node, digest: u64) {
        let mut heard = self.heard.borrow_mut();
        heard.retain(|_, peer| peer.heard.elapsed() < GONE);
        let now = Instant::now();
        heard.entry(node).and_modify(|peer| (peer.heard, peer.digest) = (now, digest)).or_insert(Peer {
            heard: now,
            digest,
            asked: None,
        });
    }

    /// Hears that a peer has sent records, perhaps to answer.
    pub fn hear_records(&self, node: Node) {
        if let Some(question) = self.question.get().filter(|question| question.to == node) {
            self.question.set(Some(Question { answered: Instant::now(), ..question }));
        }
    }

    /// How many primaries, of those heard of lately, have another digest than this one.
    pub fn differing(&self, own: u64) -> usize {
        let heard = self.heard.borrow();
        heard.values().filter(|peer| peer.heard.elapsed() < GONE && peer.digest != own).count()
    }

    /// Whether to ask a peer that differs for what it has: one at a time, and of those that differ the one that was
    /// asked longest ago. Most of them have the same, which need not come from each.
    pub fn is_to_be_asked(&self, node: Node, own: u64) -> bool {
        let is_answering = |question: Question| {
            let since = question.asked.elapsed();
            since < BETWEEN_QUESTIONS || (since < LONGEST_ANSWER && question.answered.elapsed() < ANSWERED)
        };
        if self.question.get().is_some_and(is_answering) {
            return false;
        }
        let mut heard = self.heard.borrow_mut();
        let asked_at = heard.get(&node).and_then(|peer| peer.asked);
        let others = heard.values().filter(|peer| peer.heard.elapsed() < GONE && peer.digest != own);
        if others.map(|peer| peer.asked).min().is_some_and(|first| first < asked_at) {
            return false;
        }
        let now = Instant::now();
        if let Some(peer) = heard.get_mut(&node) {
            peer.asked = Some(now);
        }
        self.question.set(Some(Question { to: node, asked: now, answered: now }));
        true
    }

    /// Has a peer be sent the records of these groups of names, a bit for each.
    pub fn answer(&self, node: Node, groups: u64) {
        let mut answers = self.answers.borrow_mut();
        if let Some((_, walk)) = answers.iter_mut().find(|(to, _)| *to == node) {
            walk.include(groups);
        } else {
            let mut walk = Walk::default();
            walk.include(groups);
            answers.push((node, walk));
        }
    }

    /// The peer that is to be sent something next, and how far its answer is.
    pub fn next_answer(&self) -> Option<(Node, Walk)> {
        let mut answers = self.answers.borrow_mut();
        (!answers.is_empty()).then(|| answers.remove(0))
    }

    /// Puts an answer back that is not over, behind the others.
    pub fn go_on_answering(&self, node: Node, walk: Walk) {
        if !walk.is_over() {
            self.answers.borrow_mut().push((node, walk));
        }
    }
}
