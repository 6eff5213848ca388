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
const MAX_LEASE_MS: u32 = 3_600_000;
/// Maximum speed, in percent of real time.
const MAX_SPEED: u32 = 2000;
/// Start of the simulated clock in microseconds since the Unix epoch: 2026-01-01, a multiple of every window up to a day.
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
    /// Time for which a call holds a lease.
    lease_duration: Span,
    /// Speed of the clock in percent.
    speed: u32,
    now: Timestamp,
    /// Number of calls to send in the next step, in addition to the traffic.
    clicked: u32,
    /// Number of calls so far.
    serial: u64,
    /// `true` if the next step must report the state even if the clock is paused.
    must_report: bool,
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
            lease_duration: Span::ZERO,
            speed: 0,
            now,
            clicked: 0,
            serial: 0,
            must_report: true,
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

    /// Applies changes. A limit takes over the usage of the limit with the same index if the algorithm is the same.
    ///
    /// # Errors
    /// If a value is out of range or malformed. In this case nothing is changed.
    pub fn change(&mut self, change: SimulationChange) -> Result<(), String> {
        let limits = change.limits.as_deref().map(parse_limits).transpose()?;
        let traffic = change.traffic.map(Traffic::validated).transpose()?;
        if change.hold.is_some_and(|hold| hold > MAX_LEASE_MS) {
            return Err(format!("hold must be a number of milliseconds up to {MAX_LEASE_MS}"));
        }
        if change.others.is_some_and(|others| others > MAX_RATE) {
            return Err(format!("others must be a number of calls a second up to {MAX_RATE}"));
        }
        if change.speed.is_some_and(|speed| speed > MAX_SPEED) {
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
        if let Some(others) = change.others {
            self.others.set_rate(others, self.now);
        }
        self.lease_duration = change.hold.map_or(self.lease_duration, |hold| Span::MILLISECOND.times(hold.into()));
        self.speed = change.speed.unwrap_or(self.speed);
        self.clicked = self.clicked.saturating_add(change.calls).min(MAX_CALLS_PER_STEP);
        self.must_report = true;
        Ok(())
    }

    /// Advances the simulation by a span of real time. Returns the calls and the state of the limits as JSON, or `None`
    /// if nothing has happened.
    ///
    /// Instants are microseconds since the start. Each call has its instant, and the decision of each limit as
    /// [`SimulatedLimit::take`] returns it.
    pub fn step(&mut self, elapsed: Span) -> Option<Value> {
        if self.speed == 0 && self.clicked == 0 && !self.must_report {
            return None;
        }
        self.must_report = false;
        let end = self.now.plus(Span::from_micros(elapsed.micros().saturating_mul(self.speed.into()) / 100));
        let mut calls = std::iter::repeat_n(self.now, std::mem::take(&mut self.clicked) as usize).collect::<Vec<_>>();
        calls.extend(self.source.calls(self.now, end));
        calls.truncate(MAX_CALLS_PER_STEP as usize);
        let (cost, start) = (self.source.cost(), Timestamp::from_micros(START).unwrap_or_default());
        let lease_duration = self.lease_duration;
        let mut decided_calls = Vec::with_capacity(calls.len());
        self.others.start_step();
        for at in calls {
            self.others.call(&mut self.limits, at);
            self.serial += 1;
            let serial = self.serial;
            let decisions: Vec<Value> =
                self.limits.iter_mut().map(|limit| limit.take(serial, cost, lease_duration, at)).collect();
            decided_calls.push(json!([at.since(start).micros(), decisions]));
        }
        self.others.call(&mut self.limits, end);
        self.now = end;
        let limits: Vec<Value> = self.limits.iter_mut().map(|limit| limit.state(cost, start, end)).collect();
        Some(json!({ "now": end.since(start).micros(), "calls": decided_calls, "lanes": limits }))
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
    // A sketch needs much memory, and evaluates the calls of all other callers.
    if limits.iter().filter(|limit| limit.is_shared()).count() > 1 {
        return Err("limits must have one SKETCH at most".to_owned());
    }
    Ok(limits)
}

#[cfg(test)]
mod tests;
