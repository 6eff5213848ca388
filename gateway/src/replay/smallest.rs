//! The smallest limits that deny no more than a share of the calls: all numbers go up and down together, and the
//! calls are judged anew under each that is tried.
//!
//! The search halves what is left, which takes for granted that larger limits deny no more. That need not hold: a large
//! call that passes may push out several small ones. What is found keeps to the goal in any case, and one step less
//! does not.

use super::calls::Calls;
use super::judge::{Judge, Outcome};
use super::limits::Limits;
use super::{Goal, MOST_HELD};
use std::io;

/// Limits that keep to the goal.
#[derive(Debug)]
pub struct Smallest {
    /// Their words.
    pub limits: Limits,
    /// How many calls they deny.
    pub denied: u64,
}

/// The smallest; `None` if there are none. So many calls are denied by the limits as they are.
///
/// # Errors
/// The calls cannot be read.
pub fn smallest(limits: &Limits, calls: &mut Calls, denied: u64, goal: Goal) -> io::Result<Option<Smallest>> {
    let Some(scale) = limits.scale() else { return Ok(None) };
    let most = goal.of(calls.count);
    let mut tried = |steps: u64| -> io::Result<Option<Smallest>> {
        let Some(limits) = scale.at(steps) else { return Ok(None) };
        let denied = denied_by(&limits, calls, most)?;
        Ok(denied.map(|denied| Smallest { limits, denied }))
    };
    // What is known to deny too much, and what is known to keep to the goal.
    let (mut below, mut found) = if denied <= most { (0, tried(scale.steps)?) } else { (scale.steps, None) };
    let mut above = scale.steps;
    while found.is_none() {
        below = above;
        above = above.saturating_mul(2);
        if scale.at(above).is_none() {
            return Ok(None);
        }
        found = tried(above)?;
    }
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        match tried(middle)? {
            Some(smaller) => (above, found) = (middle, Some(smaller)),
            None => below = middle,
        }
    }
    Ok(found)
}

/// How many calls the limits deny; `None` if that is more than `most`.
fn denied_by(limits: &Limits, calls: &mut Calls, most: u64) -> io::Result<Option<u64>> {
    let mut judge = Judge::new(limits, MOST_HELD).map_err(io::Error::other)?;
    let mut denied = 0;
    calls.each(|call| {
        denied += u64::from(judge.decide(call.key, call.at, call.cost) != Outcome::Admitted);
        denied <= most
    })?;
    Ok((denied <= most).then_some(denied))
}
