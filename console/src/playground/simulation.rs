//! Simulation: several limits under the same traffic, on a simulated clock.

use super::other_callers::{MAX_RATE, OtherCallers};
use super::simulated_limit::SimulatedLimit;
use super::traffic::{MAX_CALLS_PER_STEP, Traffic, TrafficSource};
use ratelimit_core::{Span, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

/// Maximum number of limits in a simulation.
const MAX_LIMITS: usize = 8;
/// Maximum time for which a call holds a lease, in milliseconds.
const MAX_HOLD_MS: u32 = 3_600_000;
/// Maximum speed, in percent of real time.
const MAX_SPEED: u32 = 2000;
/// Start of the simulated clock: 2026-01-01, a multiple of every window up to a day.
const START: u64 = 1_767_225_600_000_000;

/// Request of a page for a simulation.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SimulationRequest {
    /// Limits, each an algorithm with its numbers.
    pub limits: Vec<String>,
    #[serde(default)]
    pub traffic: Traffic,
    /// Time for which a call holds a lease, in milliseconds.
    #[serde(default)]
    pub hold: u32,
    /// Number of other callers a second, each of whom calls once. They share the key of a sketch.
    #[serde(default)]
    pub others: u32,
    /// Speed of the clock in percent. 0 pauses it.
    #[serde(default = "default_speed")]
    pub speed: u32,
    /// Seed of the random numbers.
    #[serde(default)]
    pub seed: u64,
}

fn default_speed() -> u32 {
    100
}

/// Changes to a running simulation. The fields have the same meaning as in [`SimulationRequest`].
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SimulationChange {
    pub limits: Option<Vec<String>>,
    pub traffic: Option<Traffic>,
    pub hold: Option<u32>,
    pub others: Option<u32>,
    pub speed: Option<u32>,
    /// Number of calls to send at once, for example after a click.
    pub calls: u32,
}

/// Several limits under the same traffic.
pub struct Simulation {
    limits: Vec<SimulatedLimit>,
    source: TrafficSource,
    others: OtherCallers,
    hold: Span,
    speed: u32,
    now: Timestamp,
    /// Number of calls to send in the next step, in addition to the traffic.
    clicked: u32,
    /// Number of calls so far.
    serial: u64,
    /// `true` if the next step must report the state even if the clock is paused.
    changed: bool,
}

impl Simulation {
    /// Creates a simulation.
    ///
    /// # Errors
    /// If a value of the request is out of range or malformed.
    pub fn new(request: SimulationRequest) -> Result<Simulation, String> {
        let now = Timestamp::from_micros(START).unwrap_or_default();
        let mut simulation = Simulation {
            limits: vec![],
            source: TrafficSource::new(Traffic::default(), request.seed, now),
            others: OtherCallers::new(now),
            hold: Span::ZERO,
            speed: 0,
            now,
            clicked: 0,
            serial: 0,
            changed: true,
        };
        let SimulationRequest { limits, traffic, hold, others, speed, .. } = request;
        simulation.change(SimulationChange {
            limits: Some(limits),
            traffic: Some(traffic),
            hold: Some(hold),
            others: Some(others),
            speed: Some(speed),
            calls: 0,
        })?;
        Ok(simulation)
    }

    /// Applies changes. A limit keeps the usage at its position if the algorithm is the same.
    ///
    /// # Errors
    /// If a value is out of range or malformed. Nothing is changed then.
    pub fn change(&mut self, to: SimulationChange) -> Result<(), String> {
        let limits = to.limits.as_deref().map(parse_limits).transpose()?;
        let traffic = to.traffic.map(Traffic::validated).transpose()?;
        if to.hold.is_some_and(|hold| hold > MAX_HOLD_MS) {
            return Err(format!("hold must be a number of milliseconds up to {MAX_HOLD_MS}"));
        }
        if to.others.is_some_and(|others| others > MAX_RATE) {
            return Err(format!("others must be a number of calls a second up to {MAX_RATE}"));
        }
        if to.speed.is_some_and(|speed| speed > MAX_SPEED) {
            return Err(format!("speed must be a number of percent up to {MAX_SPEED}"));
        }
        if let Some(limits) = limits {
            self.limits.truncate(limits.len());
            for (index, limit) in limits.into_iter().enumerate() {
                match self.limits.get_mut(index) {
                    Some(old) => old.change(limit),
                    None => self.limits.push(limit),
                }
            }
        }
        if let Some(traffic) = traffic {
            self.source.change(traffic, self.now);
        }
        if let Some(others) = to.others {
            self.others.set_rate(others, self.now);
        }
        self.hold = to.hold.map_or(self.hold, |hold| Span::MILLISECOND.times(hold.into()));
        self.speed = to.speed.unwrap_or(self.speed);
        self.clicked = self.clicked.saturating_add(to.calls).min(MAX_CALLS_PER_STEP);
        self.changed = true;
        Ok(())
    }

    /// Advances the simulation by a span of real time. Returns the calls and the state of the limits as JSON, or `None`
    /// if nothing has happened.
    ///
    /// Instants are microseconds since the start. Each call has its instant and the decision of each limit, encoded as
    /// by [`SimulatedLimit::take`].
    pub fn step(&mut self, real: Span) -> Option<Value> {
        if self.speed == 0 && self.clicked == 0 && !self.changed {
            return None;
        }
        self.changed = false;
        let to = self.now.plus(Span::from_micros(real.micros().saturating_mul(self.speed.into()) / 100));
        let mut calls = std::iter::repeat_n(self.now, std::mem::take(&mut self.clicked) as usize).collect::<Vec<_>>();
        calls.extend(self.source.calls(self.now, to));
        calls.truncate(MAX_CALLS_PER_STEP as usize);
        let (cost, hold, start) = (self.source.cost(), self.hold, Timestamp::from_micros(START).unwrap_or_default());
        let mut decided = Vec::with_capacity(calls.len());
        self.others.start_step();
        for at in calls {
            self.others.call(&mut self.limits, at);
            self.serial += 1;
            let serial = self.serial;
            let decisions: Vec<Value> =
                self.limits.iter_mut().map(|limit| limit.take(serial, cost, hold, at)).collect();
            decided.push(json!([at.since(start).micros(), decisions]));
        }
        self.others.call(&mut self.limits, to);
        self.now = to;
        let limits: Vec<Value> = self.limits.iter_mut().map(|limit| limit.state(cost, start, to)).collect();
        Some(json!({ "now": to.since(start).micros(), "calls": decided, "lanes": limits }))
    }

    /// Returns the limits in the server's canonical form.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.limits.iter().map(SimulatedLimit::to_string).collect()
    }
}

fn parse_limits(limits: &[String]) -> Result<Vec<SimulatedLimit>, String> {
    if !(1..=MAX_LIMITS).contains(&limits.len()) {
        return Err(format!("limits must be 1 to {MAX_LIMITS}"));
    }
    let limits = limits.iter().map(|words| SimulatedLimit::parse(words).map_err(|error| format!("{words}: {error}")));
    let limits = limits.collect::<Result<Vec<SimulatedLimit>, String>>()?;
    // A sketch takes memory, and evaluates the calls of all other callers.
    if limits.iter().filter(|limit| limit.is_shared()).count() > 1 {
        return Err("limits must have one SKETCH at most".to_owned());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
