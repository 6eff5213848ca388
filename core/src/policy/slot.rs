//! What is known by one name, and what that comes to for calls.

use super::counts::Counts;
use super::entry::{Definition, End, PolicyEntry, Scale};
use super::record_hash;
use super::ruling::{PolicyFacts, Ruling};
use super::scale_timing::{ScaleInstants, ScaleTiming};
use super::setting::Scaling;
use crate::number::steady::SharedSteadyClock;
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::Policy;
use crate::wire::args::Args;
use std::rc::Rc;

/// What is known by one name.
#[derive(Debug)]
pub(super) struct Slot {
    /// What the name stands for, here and on other servers.
    pub(super) entry: PolicyEntry,
    /// Instants of its scale.
    scale_instants: ScaleInstants,
    /// Number of its deletion among all; without meaning unless it is deleted.
    pub(super) deletion: u64,
    /// Of what the record says to all servers, if it is in the digest: else 0.
    pub(super) digest: u64,
    /// Counts of the outcomes of its calls, since there is such a policy.
    pub(super) counts: Rc<Counts>,
    /// What a call by the name finds.
    pub(super) standing: Standing,
}

/// What a call by the name finds.
#[derive(Debug)]
pub(super) enum Standing {
    Deleted,
    Unreadable,
    Ruling { defined: Rc<Ruling>, scaled: Option<ScaledRuling> },
}

/// A policy as it is while it is scaled.
#[derive(Debug)]
pub(super) struct ScaledRuling {
    /// Its limits, times the factor.
    pub(super) ruling: Rc<Ruling>,
    /// By the steady clock; `None`: never.
    ends: Option<Timestamp>,
}

impl ScaledRuling {
    /// Whether the scale has not ended yet.
    #[inline(always)]
    pub(super) fn holds(&self, clock: &SharedSteadyClock, now: Timestamp) -> bool {
        self.ends.is_none_or(|ends| clock.read(now) < ends)
    }
}

impl Slot {
    /// One whose calls are counted there.
    pub(super) fn of(entry: PolicyEntry, scale_instants: ScaleInstants, counts: Rc<Counts>) -> Slot {
        let mut slot = Slot { entry, scale_instants, deletion: 0, digest: 0, counts, standing: Standing::Deleted };
        slot.stand();
        slot
    }

    /// Has another entry stand, of the same name.
    pub(super) fn become_entry(&mut self, entry: PolicyEntry, scale_instants: ScaleInstants) {
        (self.entry, self.scale_instants) = (entry, scale_instants);
        if self.entry.is_deleted() {
            self.counts = Rc::default();
        }
        self.stand();
    }

    /// Replaces the instants of its scale.
    pub(super) fn set_scale_instants(&mut self, scale_instants: ScaleInstants) {
        self.scale_instants = scale_instants;
        if let Standing::Ruling { scaled: Some(scaled), .. } = &mut self.standing {
            scaled.ends = scale_instants.ends;
        }
    }

    /// What both registers come to.
    fn stand(&mut self) {
        (self.digest, self.standing) = (0, Standing::Deleted);
        if self.entry.is_deleted() {
            return;
        }
        self.digest = record_hash::of(self.entry.identity().as_bytes());
        let Some(policy) = read(&self.entry.definition.text) else {
            self.standing = Standing::Unreadable;
            return;
        };
        let (factor, ends) = (self.entry.scale().map_or(Amount::ONE, |scale| scale.factor), self.scale_instants.ends);
        let scaled = (factor != Amount::ONE).then(|| ScaledRuling { ruling: self.ruling(policy.scaled(factor)), ends });
        self.standing = Standing::Ruling { defined: self.ruling(policy), scaled };
    }

    fn ruling(&self, policy: Policy) -> Rc<Ruling> {
        let (name, version) = (Rc::from(&*self.entry.name), self.entry.definition.version());
        Rc::new(Ruling { name, version, policy, counts: Rc::clone(&self.counts) })
    }

    /// Returns the timing of the scale that was set last.
    pub(super) fn timing(&self, clock: &SharedSteadyClock, now: Timestamp) -> ScaleTiming {
        if self.entry.scale == Scale::NONE {
            return ScaleTiming::default();
        }
        self.scale_instants.timing(clock.read(now))
    }

    /// How much is left of the scale that was set last; `None`: it has no end.
    fn scale_left(&self, clock: &SharedSteadyClock, now: Timestamp) -> Option<Span> {
        self.timing(clock, now).left
    }

    /// The scale that holds at `now`: none if it has ended, or is of a policy before this one.
    pub(super) fn scale_at(&self, clock: &SharedSteadyClock, now: Timestamp) -> &Scale {
        let is_over = self.scale_left(clock, now) == Some(Span::ZERO);
        self.entry.scale().filter(|_| !is_over).unwrap_or(&Scale::NONE)
    }

    /// Whether a change of its scale comes too soon after the last one.
    pub(super) fn holds(&self, scaling: Scaling, clock: &SharedSteadyClock, now: Timestamp) -> bool {
        // One that has ended has forgotten both words.
        self.scale_at(clock, now).holds(scaling, self.timing(clock, now))
    }

    /// What this server tells of the name.
    pub(super) fn record(&self, clock: &SharedSteadyClock, now: Timestamp) -> Vec<u8> {
        self.entry.record(self.timing(clock, now)).as_bytes().to_vec()
    }

    /// What there is to know of the policy.
    pub(super) fn facts(&self, clock: &SharedSteadyClock, now: Timestamp) -> PolicyFacts {
        let definition @ Definition { set_at, text, .. } = &self.entry.definition;
        let scale = self.scale_at(clock, now);
        let scale_left = self.scale_left(clock, now).filter(|_| scale.end != End::Never);
        PolicyFacts {
            name: self.entry.name.clone(),
            version: definition.version(),
            set_at: *set_at,
            scale: scale.factor,
            scale_left,
            specs: text.clone(),
            counts: Rc::clone(&self.counts),
        }
    }
}

/// The policy that a definition's text says.
pub(super) fn read(text: &[u8]) -> Option<Policy> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(|byte| *byte == b' ')).collect();
    Policy::read(&mut Args::new(&words)).ok()
}
