//! Search for the smallest limits that deny at most a given share of the calls. All numbers are scaled together first,
//! and then each of several limits is lowered alone. The calls are evaluated anew under each candidate. Limits in
//! shadow mode are not changed.
//!
//! The binary search assumes that larger limits never deny more. There are exceptions: a large call that passes may
//! displace several small ones. The result always meets the goal, and limits that are one step smaller do not.

use super::limits::{Limits, Scale};
use super::logged_calls::Calls;
use super::trial::{Trial, TrialOutcome};
use super::work_budget::WorkBudget;
use super::{Goal, MAX_USAGE_BYTES};
use std::io;

/// Limits that meet the goal.
#[derive(Debug)]
pub struct Smallest {
    pub limits: Limits,
    /// Number of calls that the limits deny.
    pub denied: u64,
}

/// Calls, and the bound on the work of their evaluation.
struct BoundedCalls<'c> {
    calls: &'c mut Calls,
    work: &'c WorkBudget,
}

/// Finds the smallest limits that meet the goal, or returns `None` if there are none. `denied` is the number of calls
/// that the unscaled limits deny.
///
/// # Errors
/// If the calls cannot be read, or if the search exceeds the bound on its work.
pub fn find_smallest(
    limits: &Limits,
    calls: &mut Calls,
    denied: u64,
    goal: Goal,
    work: &WorkBudget,
) -> io::Result<Option<Smallest>> {
    let max_denied = goal.share_of(calls.count);
    let calls = &mut BoundedCalls { calls, work };
    let Some(scale) = limits.scale() else {
        return Ok((denied <= max_denied).then(|| Smallest { limits: limits.clone(), denied }));
    };
    // Limits of `below` steps deny too many calls. Limits of `above` steps meet the goal once `found` is set.
    let (mut below, mut above) = (0, scale.steps);
    let mut found = if denied <= max_denied { try_steps(&scale, above, calls, max_denied)? } else { None };
    while found.is_none() {
        below = above;
        above = above.saturating_mul(2);
        if scale.at(above).is_none() {
            return Ok(None);
        }
        found = try_steps(&scale, above, calls, max_denied)?;
    }
    let Some(mut found) = found else { return Ok(None) };
    lower(&mut found, &scale, (below, above), calls, max_denied)?;
    let limits = found.limits.count();
    for limit in (0..limits).filter(|_| limits > 1) {
        if let Some(scale) = found.limits.scale_one(limit) {
            let above = scale.steps;
            lower(&mut found, &scale, (0, above), calls, max_denied)?;
        }
    }
    Ok(Some(found))
}

/// Lowers limits by binary search on a scale. Limits of `below` steps deny too many calls, and limits of `above` steps
/// meet the goal.
fn lower(
    found: &mut Smallest,
    scale: &Scale,
    (mut below, mut above): (u64, u64),
    calls: &mut BoundedCalls,
    max_denied: u64,
) -> io::Result<()> {
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        match try_steps(scale, middle, calls, max_denied)? {
            Some(smaller) => (above, *found) = (middle, smaller),
            None => below = middle,
        }
    }
    Ok(())
}

/// Returns the limits at `steps` if they meet the goal.
fn try_steps(scale: &Scale, steps: u64, calls: &mut BoundedCalls, max_denied: u64) -> io::Result<Option<Smallest>> {
    let Some(limits) = scale.at(steps) else { return Ok(None) };
    Ok(count_denied(&limits, calls, max_denied)?.map(|denied| Smallest { limits, denied }))
}

/// Returns the number of calls that the limits deny, or `None` if it exceeds `max_denied`.
fn count_denied(limits: &Limits, calls: &mut BoundedCalls, max_denied: u64) -> io::Result<Option<u64>> {
    let mut trial = Trial::new(limits, MAX_USAGE_BYTES).map_err(io::Error::other)?;
    let mut denied = 0;
    calls.calls.for_each(calls.work, |call| {
        denied += u64::from(trial.decide(call.key, call.at, call.cost) != TrialOutcome::Admitted);
        denied <= max_denied
    })?;
    Ok((denied <= max_denied).then_some(denied))
}
