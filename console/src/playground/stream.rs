//! Playground over HTTP: a simulation is streamed as server-sent events, and changed by requests with its id. The
//! simulation ends with its stream.

use super::simulation::{Simulation, SimulationChange, SimulationRequest};
use axum::extract::rejection::JsonRejection;
use axum::extract::{DefaultBodyLimit, Path, State};
use axum::http::StatusCode;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::stream;
use ratelimit_core::Span;
use serde_json::json;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Maximum number of simulations that run at once.
const MAX_SIMULATIONS: usize = 64;
/// Maximum duration of a simulation.
const MAX_DURATION: Duration = Duration::from_mins(30);
/// Interval between two events.
const TICK: Duration = Duration::from_millis(50);
/// Maximum size of a request, in bytes.
const MAX_REQUEST: usize = 16 * 1024;

type SharedSimulation = Arc<Mutex<Simulation>>;
/// Running simulations by id.
type Simulations = Arc<Mutex<HashMap<String, SharedSimulation>>>;

/// Returns the routes: `POST api/playground` starts a simulation and streams it; `POST api/playground/{id}` changes it.
pub fn routes() -> Router {
    Router::new()
        .route("/api/playground", post(start))
        .route("/api/playground/{id}", post(change))
        .layer(DefaultBodyLimit::max(MAX_REQUEST))
        .with_state(Simulations::default())
}

/// Stream of a simulation. Dropping it ends the simulation.
struct SimulationStream {
    id: String,
    simulation: SharedSimulation,
    simulations: Simulations,
    ticks: Interval,
    /// Time of the last tick.
    last: Instant,
    end: Instant,
    has_started: bool,
}

impl Drop for SimulationStream {
    fn drop(&mut self) {
        lock(&self.simulations).remove(&self.id);
    }
}

async fn start(
    State(simulations): State<Simulations>,
    request: Result<Json<SimulationRequest>, JsonRejection>,
) -> Response {
    let simulation = request.map_err(|error| error.body_text()).and_then(|Json(request)| Simulation::new(request));
    let simulation = match simulation {
        Ok(simulation) => Arc::new(Mutex::new(simulation)),
        Err(error) => return error_response(StatusCode::BAD_REQUEST, &error),
    };
    let mut random = [0_u8; 16];
    if getrandom::fill(&mut random).is_err() {
        return error_response(StatusCode::INTERNAL_SERVER_ERROR, "no random numbers are available");
    }
    let id = format!("{:032x}", u128::from_be_bytes(random));
    {
        let mut running = lock(&simulations);
        if running.len() >= MAX_SIMULATIONS {
            return error_response(StatusCode::SERVICE_UNAVAILABLE, "too many playgrounds are open: try again later");
        }
        running.insert(id.clone(), Arc::clone(&simulation));
    }
    let mut ticks = interval(TICK);
    // A client that reads slowly slows its simulation down instead of accumulating events.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let now = Instant::now();
    let end = now + MAX_DURATION;
    let source = SimulationStream { id, simulation, simulations, ticks, last: now, end, has_started: false };
    let events = stream::unfold(source, |mut source| async move {
        let event = source.next().await?;
        Some((Ok::<_, Infallible>(event), source))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl SimulationStream {
    /// Returns the next event, or `None` at the end. The first event has the id and the limits.
    async fn next(&mut self) -> Option<Event> {
        if !self.has_started {
            self.has_started = true;
            let head = json!({ "id": self.id, "limits": lock(&self.simulation).limits() });
            return Some(Event::default().event("scene").data(head.to_string()));
        }
        loop {
            let now = self.ticks.tick().await;
            if now > self.end {
                return None;
            }
            // At most two ticks, so that the simulated clock does not jump after a pause.
            let elapsed = now.saturating_duration_since(self.last).min(TICK * 2);
            self.last = now;
            let micros = u64::try_from(elapsed.as_micros()).unwrap_or_default();
            if let Some(step) = lock(&self.simulation).step(Span::from_micros(micros)) {
                return Some(Event::default().data(step.to_string()));
            }
        }
    }
}

async fn change(
    State(simulations): State<Simulations>,
    Path(id): Path<String>,
    change: Result<Json<SimulationChange>, JsonRejection>,
) -> Response {
    let Some(simulation) = lock(&simulations).get(&id).cloned() else {
        return error_response(StatusCode::NOT_FOUND, "this playground has ended");
    };
    let limits = change.map_err(|error| error.body_text()).and_then(|Json(change)| {
        let mut simulation = lock(&simulation);
        simulation.change(change).map(|()| simulation.limits())
    });
    match limits {
        Ok(limits) => Json(json!({ "limits": limits })).into_response(),
        Err(error) => error_response(StatusCode::BAD_REQUEST, &error),
    }
}

fn error_response(status: StatusCode, error: &str) -> Response {
    (status, Json(json!({ "error": error }))).into_response()
}

/// Locks a mutex even if a thread has panicked while it held it. No change leaves the state inconsistent.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
