//! What a call finds by a policy's name, and what an operator is told of a policy.

use super::counts::Counts;
use crate::number::{Amount, Span};
use crate::syntax::Policy;
use std::rc::Rc;

/// What a call by a policy's name gets.
#[derive(Debug)]
pub struct Ruling {
    /// The name.
    pub name: Rc<[u8]>,
    /// Version of the definition: more with each set.
    pub version: u64,
    /// Its limits, scaled as they now are.
    pub policy: Policy,
    /// Counts of the outcomes of its calls.
    pub counts: Rc<Counts>,
}

/// What a name finds.
#[derive(Clone, Copy, Debug)]
pub enum PolicyLookup<'t> {
    /// A policy.
    Ruling(&'t Rc<Ruling>),
    /// One that only a later version can read.
    Unreadable,
    /// None.
    Missing,
}

/// What there is to know of a policy.
#[derive(Clone, Debug)]
pub struct PolicyFacts {
    /// Its name.
    pub name: Box<[u8]>,
    /// The microseconds of the stamp of what it says: more with each set.
    pub version: u64,
    /// When that was, in milliseconds since the epoch.
    pub set_at: u64,
    /// What its limits are multiplied by.
    pub scale: Amount,
    /// For how much longer; `None`: for good.
    pub scale_left: Option<Span>,
    /// The words of its specs, as RL.POLICYSET takes them, of whatever version of the module.
    pub specs: Box<[u8]>,
    /// Counts of the outcomes of its calls on this server.
    pub counts: Rc<Counts>,
}
