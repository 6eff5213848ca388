//! A scene: limits side by side under the same traffic, on a clock of its own.

use super::crowd::{Crowd, MOST_CALLS};
use super::lane::Lane;
use super::traffic::{MOST_AT_ONCE, Traffic, TrafficSource};
use ratelimit_core::{Span, Timestamp};
use serde::Deserialize;
use serde_json::{Value, json};

/// How many limits a scene has at most.
const MOST_LANES: usize = 8;
/// How long a call may hold a lease, in milliseconds.
const LONGEST_HOLD: u32 = 3_600_000;
/// The fastest, in percent of the real time.
const FASTEST: u32 = 2000;
/// When every scene begins: 2026-01-01, a multiple of every window up to a day.
const START: u64 = 1_767_225_600_000_000;

/// A scene, as a page asks for it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SceneRequest {
    /// The limits: each an algorithm and its numbers.
    pub limits: Vec<String>,
    /// The traffic.
    #[serde(default)]
    pub traffic: Traffic,
    /// How long a call holds a lease, in milliseconds.
    #[serde(default)]
    pub hold: u32,
    /// How many others call in a second, each once: a sketch has all of them in one key.
    #[serde(default)]
    pub others: u32,
    /// How fast its clock goes, in percent; 0: it stands.
    #[serde(default = "as_fast")]
    pub speed: u32,
    /// What chance begins with.
    #[serde(default)]
    pub seed: u64,
}

fn as_fast() -> u32 {
    100
}

/// What a page changes in a scene that goes on.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Changed {
    /// Other limits.
    pub limits: Option<Vec<String>>,
    /// Other traffic.
    pub traffic: Option<Traffic>,
    /// Calls hold leases longer or shorter.
    pub hold: Option<u32>,
    /// More or fewer others call.
    pub others: Option<u32>,
    /// Its clock goes faster or slower.
    pub speed: Option<u32>,
    /// How many calls come at once: a click.
    pub calls: u32,
}

/// Limits side by side under the same traffic.
pub struct Scene {
    lanes: Vec<Lane>,
    source: TrafficSource,
    crowd: Crowd,
    hold: Span,
    speed: u32,
    now: Timestamp,
    /// Calls that are due at once.
    clicked: u32,
    /// How many calls there have been.
    serial: u64,
    /// Whether something is to be told though the clock stands.
    changed: bool,
}

impl Scene {
    /// As it is asked for.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(asked: SceneRequest) -> Result<Scene, String> {
        let now = Timestamp::from_micros(START).unwrap_or_default();
        let mut scene = Scene {
            lanes: vec![],
            source: TrafficSource::new(Traffic::default(), asked.seed, now),
            crowd: Crowd::new(now),
            hold: Span::ZERO,
            speed: 0,
            now,
            clicked: 0,
            serial: 0,
            changed: true,
        };
        let SceneRequest { limits, traffic, hold, others, speed, .. } = asked;
        scene.change(Changed {
            limits: Some(limits),
            traffic: Some(traffic),
            hold: Some(hold),
            others: Some(others),
            speed: Some(speed),
            calls: 0,
        })?;
        Ok(scene)
    }

    /// Changes what it goes on with. Limits keep what was used, those of the same algorithm in the same place.
    ///
    /// # Errors
    /// What is wrong; then nothing is changed.
    pub fn change(&mut self, to: Changed) -> Result<(), String> {
        let lanes = to.limits.as_deref().map(lanes).transpose()?;
        let traffic = to.traffic.map(Traffic::checked).transpose()?;
        if to.hold.is_some_and(|hold| hold > LONGEST_HOLD) {
            return Err(format!("hold must be a number of milliseconds up to {LONGEST_HOLD}"));
        }
        if to.others.is_some_and(|others| others > MOST_CALLS) {
            return Err(format!("others must be a number of calls a second up to {MOST_CALLS}"));
        }
        if to.speed.is_some_and(|speed| speed > FASTEST) {
            return Err(format!("speed must be a number of percent up to {FASTEST}"));
        }
        if let Some(lanes) = lanes {
            self.lanes.truncate(lanes.len());
            for (place, lane) in lanes.into_iter().enumerate() {
                match self.lanes.get_mut(place) {
                    Some(old) => old.change(lane),
                    None => self.lanes.push(lane),
                }
            }
        }
        if let Some(traffic) = traffic {
            self.source.change(traffic, self.now);
        }
        if let Some(others) = to.others {
            self.crowd.change(others, self.now);
        }
        self.hold = to.hold.map_or(self.hold, |hold| Span::MILLISECOND.times(hold.into()));
        self.speed = to.speed.unwrap_or(self.speed);
        self.clicked = self.clicked.saturating_add(to.calls).min(MOST_AT_ONCE);
        self.changed = true;
        Ok(())
    }

    /// Goes on by so much of the real time. What has happened, and how the limits stand; `None` if nothing has.
    ///
    /// Instants are microseconds since the scene began. Of each call: its instant, and what each limit said of it, as
    /// [`Lane::take`] tells.
    pub fn step(&mut self, real: Span) -> Option<Value> {
        if self.speed == 0 && self.clicked == 0 && !self.changed {
            return None;
        }
        self.changed = false;
        let to = self.now.plus(Span::from_micros(real.micros().saturating_mul(self.speed.into()) / 100));
        let mut calls = std::iter::repeat_n(self.now, std::mem::take(&mut self.clicked) as usize).collect::<Vec<_>>();
        calls.extend(self.source.calls(self.now, to));
        calls.truncate(MOST_AT_ONCE as usize);
        let (cost, hold, start) = (self.source.cost(), self.hold, Timestamp::from_micros(START).unwrap_or_default());
        let mut told = Vec::with_capacity(calls.len());
        self.crowd.begin();
        for at in calls {
            self.crowd.call(&mut self.lanes, at);
            self.serial += 1;
            let serial = self.serial;
            let answers: Vec<Value> = self.lanes.iter_mut().map(|lane| lane.take(serial, cost, hold, at)).collect();
            told.push(json!([at.since(start).micros(), answers]));
        }
        self.crowd.call(&mut self.lanes, to);
        self.now = to;
        let lanes: Vec<Value> = self.lanes.iter_mut().map(|lane| lane.state(cost, start, to)).collect();
        Some(json!({ "now": to.since(start).micros(), "calls": told, "lanes": lanes }))
    }

    /// Its limits, as the server writes them.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.lanes.iter().map(Lane::to_string).collect()
    }
}

fn lanes(limits: &[String]) -> Result<Vec<Lane>, String> {
    if !(1..=MOST_LANES).contains(&limits.len()) {
        return Err(format!("limits must be 1 to {MOST_LANES}"));
    }
    let lanes = limits.iter().map(|words| Lane::read(words).map_err(|told| format!("{words}: {told}")));
    let lanes = lanes.collect::<Result<Vec<Lane>, String>>()?;
    // Each takes memory, and the time of all others' calls.
    if lanes.iter().filter(|lane| lane.is_shared()).count() > 1 {
        return Err("limits must have one SKETCH at most".to_owned());
    }
    Ok(lanes)
}

#[cfg(test)]
mod tests;
