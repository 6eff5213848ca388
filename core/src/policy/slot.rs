//! State of one name in the table: its entry, and the policy that results from it for calls.

use super::counts::Counts;
use super::effective_policy::{EffectivePolicy, PolicyFacts};
use super::entry::{Definition, End, PolicyEntry, Scale};
use super::record_hash;
use super::scale_timing::{ScaleInstants, ScaleTiming};
use crate::number::steady::SharedSteadyClock;
use crate::number::{Amount, Span, Timestamp};
use crate::syntax::Policy;
use crate::wire::args::Args;
use std::rc::Rc;

/// State of one name in the table.
#[derive(Debug)]
pub(super) struct Slot {
    /// Entry, which is replicated to other servers.
    pub(super) entry: PolicyEntry,
    /// Instants of the scale in steady time.
    scale_instants: ScaleInstants,
    /// Sequence number of the deletion. Meaningless unless the policy is deleted.
    pub(super) deletion_number: u64,
    /// Hash of the entry in the digest, or 0 if it is not in the digest.
    pub(super) digest: u64,
    /// Counters of the outcomes of the policy's calls since it was created.
    pub(super) counts: Rc<Counts>,
    /// Result of a lookup by a call.
    pub(super) state: SlotState,
}

/// Result of a lookup by a call.
#[derive(Debug)]
pub(super) enum SlotState {
    Deleted,
    Unreadable,
    Live { unscaled: Rc<EffectivePolicy>, scaled: Option<ScaledPolicy> },
}

/// Scaled form of a policy.
#[derive(Debug)]
pub(super) struct ScaledPolicy {
    /// Policy with its limits multiplied by the factor.
    pub(super) policy: Rc<EffectivePolicy>,
    /// End of the scale in steady time; `None` if it has no end.
    end: Option<Timestamp>,
}

impl ScaledPolicy {
    /// Returns `true` if the scale has not ended.
    #[inline(always)]
    pub(super) fn is_active(&self, clock: &SharedSteadyClock, now: Timestamp) -> bool {
        self.end.is_none_or(|end| clock.read(now) < end)
    }
}

impl Slot {
    /// Creates the state of a new name. Its calls are counted in `counts`.
    pub(super) fn of(entry: PolicyEntry, scale_instants: ScaleInstants, counts: Rc<Counts>) -> Slot {
        let mut slot = Slot { entry, scale_instants, deletion_number: 0, digest: 0, counts, state: SlotState::Deleted };
        slot.update_state();
        slot
    }

    /// Replaces the entry by another one of the same name.
    pub(super) fn set_entry(&mut self, entry: PolicyEntry, scale_instants: ScaleInstants) {
        (self.entry, self.scale_instants) = (entry, scale_instants);
        if self.entry.is_deleted() {
            self.counts = Rc::default();
        }
        self.update_state();
    }

    /// Replaces the instants of the scale.
    pub(super) fn set_scale_instants(&mut self, scale_instants: ScaleInstants) {
        self.scale_instants = scale_instants;
        if let SlotState::Live { scaled: Some(scaled), .. } = &mut self.state {
            scaled.end = scale_instants.end;
        }
    }

    /// Recomputes the digest and the result of lookups from the entry.
    fn update_state(&mut self) {
        (self.digest, self.state) = (0, SlotState::Deleted);
        if self.entry.is_deleted() {
            return;
        }
        self.digest = record_hash::of(self.entry.identity().as_bytes());
        let Some(policy) = parse_definition(&self.entry.definition.text) else {
            self.state = SlotState::Unreadable;
            return;
        };
        let factor = self.entry.current_scale().map_or(Amount::ONE, |scale| scale.factor);
        let end = self.scale_instants.end;
        let scaled =
            (factor != Amount::ONE).then(|| ScaledPolicy { policy: self.effective_policy(policy.scaled(factor)), end });
        self.state = SlotState::Live { unscaled: self.effective_policy(policy), scaled };
    }

    /// Creates the policy that calls find, with the given limits.
    fn effective_policy(&self, limits: Policy) -> Rc<EffectivePolicy> {
        let (name, version) = (Rc::from(&*self.entry.name), self.entry.definition.version());
        Rc::new(EffectivePolicy { name, version, limits, counts: Rc::clone(&self.counts) })
    }

    /// Returns the timing of the last scale.
    pub(super) fn timing(&self, clock: &SharedSteadyClock, now: Timestamp) -> ScaleTiming {
        if self.entry.scale == Scale::NONE {
            return ScaleTiming::default();
        }
        self.scale_instants.timing(clock.read(now))
    }

    /// Returns the scale that applies at `now`: [`Scale::NONE`] if it has ended or belongs to a former policy.
    pub(super) fn scale_at(&self, clock: &SharedSteadyClock, now: Timestamp) -> &Scale {
        let is_over = self.timing(clock, now).time_left == Some(Span::ZERO);
        self.entry.current_scale().filter(|_| !is_over).unwrap_or(&Scale::NONE)
    }

    /// Encodes the record of the name as this server sends it.
    pub(super) fn record(&self, clock: &SharedSteadyClock, now: Timestamp) -> Vec<u8> {
        self.entry.record(self.timing(clock, now)).as_bytes().to_vec()
    }

    /// Returns the description of the policy for operators.
    pub(super) fn facts(&self, clock: &SharedSteadyClock, now: Timestamp) -> PolicyFacts {
        let definition @ Definition { set_at, text, .. } = &self.entry.definition;
        let scale = self.scale_at(clock, now);
        let scale_left = self.timing(clock, now).time_left.filter(|_| scale.end != End::Never);
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

/// Parses the text of a definition.
pub(super) fn parse_definition(text: &[u8]) -> Option<Policy> {
    let words: Vec<&[u8]> = std::iter::once(&b"RL.POLICYSET"[..]).chain(text.split(|byte| *byte == b' ')).collect();
    Policy::parse(&mut Args::new(&words)).ok()
}
