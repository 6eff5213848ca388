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

/// Smallest limits found that meet the goal.
#[derive(Debug)]
pub struct SmallestLimits {
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
) -> io::Result<Option<SmallestLimits>> {
    let max_denied = goal.max_denied(calls.count);
    let calls = &mut BoundedCalls { calls, work };
    let Some(scale) = limits.scale() else {
        return Ok((denied <= max_denied).then(|| SmallestLimits { limits: limits.clone(), denied }));
    };
    // `failing_steps` are too few to meet the goal. `sufficient_steps` meet it once `found` is set.
    let (mut failing_steps, mut sufficient_steps) = (0, scale.steps);
    let mut found = if denied <= max_denied { try_steps(&scale, sufficient_steps, calls, max_denied)? } else { None };
    while found.is_none() {
        failing_steps = sufficient_steps;
        sufficient_steps = sufficient_steps.saturating_mul(2);
        if scale.at(sufficient_steps).is_none() {
            return Ok(None);
        }
        found = try_steps(&scale, sufficient_steps, calls, max_denied)?;
    }
    let Some(mut found) = found else { return Ok(None) };
    lower(&mut found, &scale, (failing_steps, sufficient_steps), calls, max_denied)?;
    let limits = found.limits.count();
    for limit in (0..limits).filter(|_| limits > 1) {
        if let Some(scale) = found.limits.scale_of_limit(limit) {
            let sufficient_steps = scale.steps;
            lower(&mut found, &scale, (0, sufficient_steps), calls, max_denied)?;
        }
    }
    Ok(Some(found))
}

/// Lowers limits by binary search on a scale, between steps that are too few to meet the goal and steps that meet it.
fn lower(
    found: &mut SmallestLimits,
    scale: &Scale,
    (mut failing_steps, mut sufficient_steps): (u64, u64),
    calls: &mut BoundedCalls,
    max_denied: u64,
) -> io::Result<()> {
    while sufficient_steps - failing_steps > 1 {
        let middle = failing_steps + (sufficient_steps - failing_steps) / 2;
        match try_steps(scale, middle, calls, max_denied)? {
            Some(smaller) => (sufficient_steps, *found) = (middle, smaller),
            None => failing_steps = middle,
        }
    }
    Ok(())
}

/// Returns the limits that are scaled to `steps` if they meet the goal.
fn try_steps(
    scale: &Scale,
    steps: u64,
    calls: &mut BoundedCalls,
    max_denied: u64,
) -> io::Result<Option<SmallestLimits>> {
    let Some(limits) = scale.at(steps) else { return Ok(None) };
    Ok(count_denied(&limits, calls, max_denied)?.map(|denied| SmallestLimits { limits, denied }))
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
