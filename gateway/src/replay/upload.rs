//! Replay over HTTP: the log is the body of the request, the rest its query.

use super::{Goal, Replay};
use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest as _, Query, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use serde::Deserialize;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The longest log, in bytes: longer ones are for the command line.
const LONGEST: usize = 16 * 1024 * 1024;
/// The longest log as it is without gzip, in bytes: a small file can become a very large one.
const LONGEST_UNZIPPED: u64 = 16 * LONGEST as u64;
/// How many logs are replayed at once; more wait.
const AT_ONCE: usize = 2;

/// `POST api/replay?limit=FIXED 100 1m&goal=1%`.
pub fn routes() -> Router {
    in_turn(Arc::new(Semaphore::new(AT_ONCE)))
}

fn in_turn(at_once: Arc<Semaphore>) -> Router {
    Router::new().route("/api/replay", post(replay)).layer(DefaultBodyLimit::max(LONGEST)).with_state(at_once)
}

#[derive(Deserialize)]
struct ReplayQuery {
    limit: String,
    goal: Option<String>,
    late: Option<String>,
    key: Option<String>,
    time: Option<String>,
    cost: Option<String>,
}

impl ReplayQuery {
    fn read(self) -> Result<Replay, String> {
        Ok(Replay {
            log: PathBuf::from("the log"),
            limit: self.limit,
            goal: Goal::read(self.goal.as_deref().unwrap_or("1%")).map_err(|told| format!("goal {told}"))?,
            json: true,
            top: 100,
            late: super::span(self.late.as_deref().unwrap_or("0")).map_err(|told| format!("late {told}"))?,
            max_keys: 100_000,
            key: self.key.filter(|field| !field.is_empty()),
            time: self.time.filter(|field| !field.is_empty()),
            cost: self.cost.filter(|field| !field.is_empty()),
            longest: LONGEST_UNZIPPED,
        })
    }
}

async fn replay(State(at_once): State<Arc<Semaphore>>, Query(asked): Query<ReplayQuery>, request: Request) -> Response {
    // Before the log is read: the logs of those who wait are not kept in memory.
    let Ok(_turn) = at_once.acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let log = match Bytes::from_request(request, &()).await {
        Ok(log) => log,
        Err(refused) => return refused.into_response(),
    };
    // It takes a while, and no other request is to wait for it.
    let report = tokio::task::spawn_blocking(move || asked.read()?.over(&*log).map(|report| report.json())).await;
    match report {
        Ok(Ok(report)) => axum::Json(report).into_response(),
        Ok(Err(told)) => refused(StatusCode::BAD_REQUEST, &told),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the replay ended unexpectedly"),
    }
}

fn refused(status: StatusCode, told: &str) -> Response {
    (status, axum::Json(json!({ "error": told }))).into_response()
}

#[cfg(test)]
mod tests {
    use super::in_turn;
    use axum::body::{Body, Bytes};
    use axum::http::{Request, StatusCode};
    use futures_util::stream;
    use std::convert::Infallible;
    use std::future::poll_fn;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Poll;
    use tokio::sync::Semaphore;
    use tower::ServiceExt as _;

    #[tokio::test]
    async fn a_log_is_read_once_it_is_its_turn() {
        let at_once = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&at_once).acquire_owned().await.unwrap();
        let read = Arc::new(AtomicBool::new(false));
        let reads = Arc::clone(&read);
        let log = stream::once(async move {
            reads.store(true, Ordering::Relaxed);
            Ok::<_, Infallible>(Bytes::from_static(b"1700000000 a 1\n"))
        });
        let request = Request::post("/api/replay?limit=FIXED%201%201s").body(Body::from_stream(log)).unwrap();
        let mut answered = Box::pin(in_turn(at_once).oneshot(request));
        assert!(poll_fn(|context| Poll::Ready(answered.as_mut().poll(context).is_pending())).await);
        assert!(!read.load(Ordering::Relaxed));
        drop(turn);
        assert_eq!(answered.await.unwrap().status(), StatusCode::OK);
        assert!(read.load(Ordering::Relaxed));
    }
}
