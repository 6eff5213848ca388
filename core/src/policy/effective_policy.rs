//! Results of looking up a policy: for a call, and for an operator.

use super::counts::Counts;
use crate::number::{Amount, Span};
use crate::syntax::Policy;
use std::rc::Rc;

/// Policy that applies to a call: its limits with the current scale.
#[derive(Debug)]
pub struct EffectivePolicy {
    /// Name of the policy.
    pub name: Rc<[u8]>,
    /// Version of the definition, which increases with each change.
    pub version: u64,
    /// Limits, scaled by the current factor.
    pub limits: Policy,
    /// Counters of the outcomes of the policy's calls.
    pub counts: Rc<Counts>,
}

/// Result of looking up a name.
#[derive(Clone, Copy, Debug)]
pub enum PolicyLookup<'t> {
    /// Policy that applies.
    Found(&'t Rc<EffectivePolicy>),
    /// Policy whose definition only a later version of the module can parse.
    Unreadable,
    /// No policy with that name.
    Missing,
}

/// Description of a policy for operators.
#[derive(Clone, Debug)]
pub struct PolicyFacts {
    /// Name of the policy.
    pub name: Box<[u8]>,
    /// Version of the definition, which increases with each change: microseconds of its stamp.
    pub version: u64,
    /// Time of the last change of the definition, in milliseconds since the epoch.
    pub set_at: u64,
    /// Current factor of the limits.
    pub scale: Amount,
    /// Time until the scale ends; `None` if it has no end.
    pub scale_left: Option<Span>,
    /// Definition as the words of RL.POLICYSET, which may be of a later version of the module.
    pub specs: Box<[u8]>,
    /// Counters of the outcomes of the policy's calls on this server.
    pub counts: Rc<Counts>,
}
