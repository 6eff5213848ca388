//! Replay over HTTP: the log is the body of the request, the rest its query.

use super::work::Work;
use super::{Goal, Replay};
use axum::Router;
use axum::body::Body;
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

/// Bounds on uploads: the console runs beside the service for proxies.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// Longest time between two parts of a log.
    pause: Duration,
    /// Longest time until a log is there.
    upload: Duration,
    /// Longest log, in bytes: longer ones are for the command line.
    log: usize,
    /// Longest log as it is without gzip, in bytes: a small file can become a very large one.
    unzipped: u64,
    /// Most bytes of all logs together.
    all: usize,
    /// Most lines and decisions of one replay.
    work: u64,
}

const MB: usize = 1024 * 1024;
const BOUNDS: Bounds = Bounds {
    pause: Duration::from_secs(10),
    upload: Duration::from_mins(1),
    log: 16 * MB,
    unzipped: 64 * MB as u64,
    all: 128 * MB,
    work: 50_000_000,
};

/// Uploads that are under way.
struct Uploads {
    bounds: Bounds,
    /// Bytes that more logs may have.
    bytes: Arc<Semaphore>,
    /// One log is replayed at a time, so that the others of the machine's cores are left to proxies.
    turn: Arc<Semaphore>,
}

/// Returns the routes: `POST api/replay?limit=FIXED 100 1m&goal=1%`.
pub fn routes() -> Router {
    bounded(BOUNDS)
}

fn bounded(bounds: Bounds) -> Router {
    let (bytes, turn) = (Arc::new(Semaphore::new(bounds.all)), Arc::new(Semaphore::new(1)));
    Router::new().route("/api/replay", post(replay)).with_state(Arc::new(Uploads { bounds, bytes, turn }))
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
    fn read(self, bounds: Bounds, work: Work) -> Result<Replay, String> {
        let trusted = self.trusted.as_deref().filter(|trusted| !trusted.is_empty()).unwrap_or("127.0.0.1,::1");
        let trusted = trusted.split(',').map(|one| super::trusted(one.trim())).collect::<Result<_, _>>();
        let ipv6_prefix = self.ipv6_prefix.as_deref().unwrap_or("64");
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
            trusted: trusted.map_err(|told| format!("trusted {told}"))?,
            ipv6_prefix: ipv6_prefix.parse().map_err(|told| format!("ipv6_prefix {told}"))?,
            longest: bounds.unzipped,
            work,
        })
    }
}

async fn replay(State(uploads): State<Arc<Uploads>>, Query(asked): Query<ReplayQuery>, request: Request) -> Response {
    // Only whole logs wait for their turn: an upload that stalls holds up no other.
    let (log, bytes) = match uploads.received(request.into_body()).await {
        Ok(received) => received,
        Err(refused) => return refused,
    };
    let Ok(turn) = Arc::clone(&uploads.turn).acquire_owned().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let (bounds, work) = (uploads.bounds, Work::new(uploads.bounds.work));
    // A client that hangs up drops this future.
    let _cancel = work.cancel_on_drop();
    // It takes a while, and no other request is to wait for it.
    let report = tokio::task::spawn_blocking(move || {
        let _until_the_end = (turn, bytes);
        asked.read(bounds, work)?.over(&*log).map(|report| report.json())
    });
    match report.await {
        Ok(Ok(report)) => axum::Json(report).into_response(),
        Ok(Err(told)) => refused(StatusCode::BAD_REQUEST, &told),
        Err(_) => refused(StatusCode::INTERNAL_SERVER_ERROR, "the replay ended unexpectedly"),
    }
}

impl Uploads {
    /// Receives a log, and the bytes that it holds of those that all logs may have.
    async fn received(&self, body: Body) -> Result<(Vec<u8>, Option<OwnedSemaphorePermit>), Response> {
        let deadline = Instant::now() + self.bounds.upload;
        let (mut log, mut bytes) = (vec![], None::<OwnedSemaphorePermit>);
        let mut parts = body.into_data_stream();
        loop {
            let part = match timeout_at(deadline.min(Instant::now() + self.bounds.pause), parts.next()).await {
                Ok(None) => return Ok((log, bytes)),
                Ok(Some(Ok(part))) => part,
                Ok(Some(Err(_))) => return Err(refused(StatusCode::BAD_REQUEST, "the upload broke off")),
                Err(_) => return Err(refused(StatusCode::REQUEST_TIMEOUT, "the upload took too long")),
            };
            if log.len() + part.len() > self.bounds.log {
                let told = format!("the log is longer than {} MB: use ratelimit-console replay", self.bounds.log / MB);
                return Err(refused(StatusCode::PAYLOAD_TOO_LARGE, &told));
            }
            let size = u32::try_from(part.len()).unwrap_or(u32::MAX);
            let Ok(held) = Arc::clone(&self.bytes).try_acquire_many_owned(size) else {
                let mut full = refused(StatusCode::SERVICE_UNAVAILABLE, "too many logs are being replayed");
                full.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
                return Err(full);
            };
            // One permit, or a log that comes byte by byte would take many times its size.
            match &mut bytes {
                Some(bytes) => bytes.merge(held),
                None => bytes = Some(held),
            }
            log.extend_from_slice(&part);
        }
    }
}

fn refused(status: StatusCode, told: &str) -> Response {
    (status, axum::Json(json!({ "error": told }))).into_response()
}

#[cfg(test)]
mod tests;
