//! Replay over HTTP: the log is the body of the request, and the options are its query.

use super::work_budget::WorkBudget;
use super::{Goal, Replay};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// Bounds on uploads, because the console may run on the machine of the gateway.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Maximum time between two parts of a log.
    pause: Duration,
    /// Maximum time for a whole upload.
    upload: Duration,
    /// Maximum size of a log in bytes, as sent. Larger logs are for the command line.
    log: usize,
    /// Maximum size of a log in bytes, uncompressed.
    uncompressed: u64,
    /// Maximum size of all logs together, in bytes.
    all_logs: usize,
    /// Maximum work of one replay: the sum of its lines and its evaluations.
    work: u64,
}

const MB: usize = 1024 * 1024;
/// Bounds of the console.
const BOUNDS: Bounds = Bounds {
    pause: Duration::from_secs(10),
    upload: Duration::from_mins(1),
    log: 16 * MB,
    uncompressed: 64 * MB as u64,
    all_logs: 128 * MB,
    work: 50_000_000,
};

/// Bounds, and the permits that uploads and replays hold.
struct Uploads {
    bounds: Bounds,
    /// Permits for the bytes of all logs.
    bytes: Arc<Semaphore>,
    /// Permit to replay: one log at a time, so that other cores remain free for proxies.
    replay: Arc<Semaphore>,
}

/// Returns the routes: `POST api/replay?limit=FIXED 100 1m&goal=1%`.
pub fn routes() -> Router {
    bounded_routes(BOUNDS)
}

fn bounded_routes(bounds: Bounds) -> Router {
    let (bytes, replay_permit) = (Arc::new(Semaphore::new(bounds.all_logs)), Arc::new(Semaphore::new(1)));
    Router::new().route("/api/replay", post(replay)).with_state(Arc::new(Uploads {
        bounds,
        bytes,
        replay: replay_permit,
    }))
}

#[derive(Deserialize)]
struct ReplayQuery {
    limit: String,
    goal: Option<String>,
    late: Option<String>,
    key: Option<String>,
    time: Option<String>,
    cost: Option<String>,
    trusted: Option<String>,
    ipv6_prefix: Option<String>,
}

impl ReplayQuery {
    fn parse(self, bounds: Bounds, work: WorkBudget) -> Result<Replay, String> {
        let non_empty = |option: Option<String>| option.filter(|text| !text.is_empty());
        let or_default = |option, default: &str| non_empty(option).unwrap_or_else(|| default.to_owned());
        let trusted = or_default(self.trusted, "127.0.0.1,::1");
        let trusted = trusted.split(',').map(|network| super::parse_trusted(network.trim())).collect::<Result<_, _>>();
        let ipv6_prefix = or_default(self.ipv6_prefix, "64").parse();
        Ok(Replay {
            // Not a file name: errors begin with it.
            log: PathBuf::from("the log"),
            limit: self.limit,
            goal: Goal::parse(&or_default(self.goal, "1%")).map_err(|error| format!("goal {error}"))?,
            json: true,
            top: 100,
            late: super::parse_span(&or_default(self.late, "0")).map_err(|error| format!("late {error}"))?,
            max_keys: 100_000,
            key: non_empty(self.key),
            time: non_empty(self.time),
            cost: non_empty(self.cost),
            trusted: trusted.map_err(|error| format!("trusted {error}"))?,
            ipv6_prefix: ipv6_prefix.map_err(|error| format!("ipv6_prefix {error}"))?,
            max_bytes: bounds.uncompressed,
            work,
        })
    }
}

async fn replay(
    State(uploads): State<Arc<Uploads>>,
    query: Result<Query<ReplayQuery>, QueryRejection>,
    request: Request,
) -> Response {
    let query = match query {
        Ok(Query(query)) => query,
        Err(rejection) => return error_response(rejection.status(), &rejection.body_text()),
    };
    // A log is received before the permit is acquired, so that a stalled upload blocks no other replay.
    let (log, bytes) = match uploads.receive(request.into_body()).await {
        Ok(received) => received,
        Err(response) => return response,
    };
    let Ok(permit) = Arc::clone(&uploads.replay).acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (bounds, work) = (uploads.bounds, WorkBudget::new(uploads.bounds.work));
    // A client that disconnects drops this future, which ends the replay.
    let _cancel = work.cancel_on_drop();
    // A blocking thread, because a replay may take seconds.
    let report = tokio::task::spawn_blocking(move || {
        let _permits = (permit, bytes);
        // Parsed only after the upload: an earlier error would close the connection before the client receives it.
        query.parse(bounds, work)?.replay(&*log).map(|report| report.json())
    });
    match report.await {
        Ok(Ok(report)) => axum::Json(report).into_response(),
        Ok(Err(error)) => error_response(StatusCode::BAD_REQUEST, &error),
        Err(_) => error_response(StatusCode::INTERNAL_SERVER_ERROR, "the replay ended unexpectedly"),
    }
}

impl Uploads {
    /// Receives a log, and returns it with the permits for its bytes.
    async fn receive(&self, body: Body) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Response> {
        let deadline = Instant::now() + self.bounds.upload;
        let (mut log, mut bytes) = (vec![], None::<OwnedSemaphorePermit>);
        let mut parts = body.into_data_stream();
        loop {
            let part = match timeout_at(deadline.min(Instant::now() + self.bounds.pause), parts.next()).await {
                Ok(None) => return Ok((log, bytes)),
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(_))) => return Err(error_response(StatusCode::BAD_REQUEST, "the upload broke off")),
                Err(_) => return Err(error_response(StatusCode::REQUEST_TIMEOUT, "the upload took too long")),
            };
            if log.len() + part.len() > self.bounds.log {
                let error = format!("the log is longer than {} MB: use ratelimit-console replay", self.bounds.log / MB);
                return Err(error_response(StatusCode::PAYLOAD_TOO_LARGE, &error));
            }
            let size = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let Ok(permit) = Arc::clone(&self.bytes).try_acquire_many_owned(size) else {
                let mut full = error_response(StatusCode::SERVICE_UNAVAILABLE, "too many logs are being replayed");
                full.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
                return Err(full);
            };
            // Merged into one permit: many permits would take several times the size of a log that arrives byte by
            // byte.
            match &mut bytes {
                Some(bytes) => bytes.merge(permit),
                None => bytes = Some(permit),
            }
            log.extend_from_slice(&part);
        }
    }
}

fn error_response(status: StatusCode, error: &str) -> Response {
    (status, axum::Json(json!({ "error": error }))).into_response()
}

#[cfg(test)]
mod tests;
