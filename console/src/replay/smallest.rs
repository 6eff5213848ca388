//! The smallest limits that deny no more than a share of the calls: all numbers go up and down together, and then each of
//! several limits is lowered by itself. The calls are judged anew under each that is tried. Limits in the shadow stay as
//! they are.
//!
//! The search halves what is left, which takes for granted that larger limits deny no more. That need not hold: a large
//! call that passes may push out several small ones. What is found keeps to the goal in any case, and one step less
//! does not.

use super::limits::{Limits, Scale};
use super::logged_calls::Calls;
use super::trial::{Trial, TrialOutcome};
use super::work::Work;
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

/// Calls, and the work that may be done on them.
struct Bounded<'c> {
    calls: &'c mut Calls,
    work: &'c Work,
}

/// The smallest; `None` if there are none. So many calls are denied by the limits as they are.
///
/// # Errors
/// The calls cannot be read, or the search is too much work.
pub fn smallest(
    limits: &Limits,
    calls: &mut Calls,
    denied: u64,
    goal: Goal,
    work: &Work,
) -> io::Result<Option<Smallest>> {
    let most = goal.of(calls.count);
    let calls = &mut Bounded { calls, work };
    let Some(scale) = limits.scale() else {
        return Ok((denied <= most).then(|| Smallest { limits: limits.clone(), denied }));
    };
    // What is known to deny too much, and what is known to keep to the goal.
    let (mut below, mut above) = (0, scale.steps);
    let mut found = if denied <= most { tried(&scale, above, calls, most)? } else { None };
    while found.is_none() {
        below = above;
        above = above.saturating_mul(2);
        if scale.at(above).is_none() {
            return Ok(None);
        }
        found = tried(&scale, above, calls, most)?;
    }
    let Some(mut found) = found else { return Ok(None) };
    lower(&mut found, &scale, (below, above), calls, most)?;
    let limits = found.limits.count();
    for limit in (0..limits).filter(|_| limits > 1) {
        if let Some(scale) = found.limits.scale_alone(limit) {
            let above = scale.steps;
            lower(&mut found, &scale, (0, above), calls, most)?;
        }
    }
    Ok(Some(found))
}

/// Lowers what is found, on a scale of which so many steps deny too much and so many do not.
fn lower(
    found: &mut Smallest,
    scale: &Scale,
    (mut below, mut above): (u64, u64),
    calls: &mut Bounded,
    most: u64,
) -> io::Result<()> {
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        match tried(scale, middle, calls, most)? {
            Some(smaller) => (above, *found) = (middle, smaller),
            None => below = middle,
        }
    }
    Ok(())
}

/// The limits at so many steps, if they keep to the goal.
fn tried(scale: &Scale, steps: u64, calls: &mut Bounded, most: u64) -> io::Result<Option<Smallest>> {
    let Some(limits) = scale.at(steps) else { return Ok(None) };
    Ok(denied_by(&limits, calls, most)?.map(|denied| Smallest { limits, denied }))
}

/// How many calls the limits deny; `None` if that is more than `most`.
fn denied_by(limits: &Limits, calls: &mut Bounded, most: u64) -> io::Result<Option<u64>> {
    let mut judge = Trial::new(limits, MOST_HELD).map_err(io::Error::other)?;
    let mut denied = 0;
    calls.calls.each(calls.work, |call| {
        denied += u64::from(judge.decide(call.key, call.at, call.cost) != TrialOutcome::Admitted);
        denied <= most
    })?;
    Ok((denied <= most).then_some(denied))
}
