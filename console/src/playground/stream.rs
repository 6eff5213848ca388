//! The playground over HTTP: a scene is streamed as server-sent events, and changed by requests that name it. It ends
//! with its stream.

use super::scene::{Changed, Scene, SceneRequest};
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

/// How many scenes are played at once.
const MOST_SCENES: usize = 64;
/// The longest that a scene goes on.
const LONGEST: Duration = Duration::from_mins(30);
/// How often a scene is told.
const TICK: Duration = Duration::from_millis(50);
/// The most that a request may say, in bytes.
const LONGEST_REQUEST: usize = 16 * 1024;

type SharedScene = Arc<Mutex<Scene>>;
type Scenes = Arc<Mutex<HashMap<String, SharedScene>>>;

/// `POST api/playground` begins a scene and streams it; `POST api/playground/{id}` changes it.
pub fn routes() -> Router {
    Router::new()
        .route("/api/playground", post(begin))
        .route("/api/playground/{id}", post(change))
        .layer(DefaultBodyLimit::max(LONGEST_REQUEST))
        .with_state(Scenes::default())
}

/// A scene that is being streamed. It is forgotten with its stream.
struct Running {
    id: String,
    scene: SharedScene,
    scenes: Scenes,
    ticks: Interval,
    last: Instant,
    end: Instant,
    begun: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        locked(&self.scenes).remove(&self.id);
    }
}

async fn begin(State(scenes): State<Scenes>, asked: Result<Json<SceneRequest>, JsonRejection>) -> Response {
    let scene = match asked.map_err(|told| told.body_text()).and_then(|Json(asked)| Scene::new(asked)) {
        Ok(scene) => Arc::new(Mutex::new(scene)),
        Err(told) => return refused(StatusCode::BAD_REQUEST, &told),
    };
    let mut random = [0_u8; 16];
    if getrandom::fill(&mut random).is_err() {
        return refused(StatusCode::INTERNAL_SERVER_ERROR, "there is no chance to be had");
    }
    let id = format!("{:032x}", u128::from_be_bytes(random));
    {
        let mut all = locked(&scenes);
        if all.len() >= MOST_SCENES {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "too many playgrounds are open: try again later");
        }
        all.insert(id.clone(), Arc::clone(&scene));
    }
    let mut ticks = interval(TICK);
    // A page that is slow, or away, makes its scene slow: nothing piles up.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let now = Instant::now();
    let running = Running { id, scene, scenes, ticks, last: now, end: now + LONGEST, begun: false };
    let events = stream::unfold(running, |mut running| async move {
        let event = running.next().await?;
        Some((Ok::<_, Infallible>(event), running))
    });
    Sse::new(events).keep_alive(KeepAlive::default()).into_response()
}

impl Running {
    async fn next(&mut self) -> Option<Event> {
        if !self.begun {
            self.begun = true;
            let told = json!({ "id": self.id, "limits": locked(&self.scene).limits() });
            return Some(Event::default().event("scene").data(told.to_string()));
        }
        loop {
            let now = self.ticks.tick().await;
            if now > self.end {
                return None;
            }
            // At most two ticks: a scene does not jump.
            let real = now.saturating_duration_since(self.last).min(TICK * 2);
            self.last = now;
            let micros = u64::try_from(real.as_micros()).unwrap_or_default();
            if let Some(told) = locked(&self.scene).step(Span::from_micros(micros)) {
                return Some(Event::default().data(told.to_string()));
            }
        }
    }
}

async fn change(
    State(scenes): State<Scenes>,
    Path(id): Path<String>,
    changed: Result<Json<Changed>, JsonRejection>,
) -> Response {
    let Some(scene) = locked(&scenes).get(&id).cloned() else {
        return refused(StatusCode::NOT_FOUND, "this playground has ended");
    };
    let done = changed.map_err(|told| told.body_text()).and_then(|Json(changed)| {
        let mut scene = locked(&scene);
        scene.change(changed).map(|()| scene.limits())
    });
    match done {
        Ok(limits) => Json(json!({ "limits": limits })).into_response(),
        Err(told) => refused(StatusCode::BAD_REQUEST, &told),
    }
}

fn refused(status: StatusCode, told: &str) -> Response {
    (status, Json(json!({ "error": told }))).into_response()
}

/// Locks a mutex even if a thread has panicked with it: each change is made at once, so the state is whole.
fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
