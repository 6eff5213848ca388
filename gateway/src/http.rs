//! The doors over HTTP: forward auth, and what operators ask.

mod check;
mod json;

use crate::listener::Ends;
use crate::rls::Rls;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::{any, get, post};
use metrics_exporter_prometheus::PrometheusHandle;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the doors share.
#[derive(Clone)]
pub struct HttpDoor {
    /// The files, the judge, and how ids are remembered.
    pub rls: Rls,
    /// What was counted.
    pub metrics: PrometheusHandle,
    /// Whether it is told that the gateway is ready.
    pub ready: Arc<AtomicBool>,
}

/// The routes.
pub fn router(http: HttpDoor) -> Router {
    Router::new()
        .route("/check", any(checked))
        .route("/json", post(asked))
        .route("/metrics", get(|State(http): State<HttpDoor>| async move { http.metrics.render() }))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(http)
}

/// Ready from the server's first answer to the end: an outage does not take that away, or all replicas would go at once.
async fn ready(State(http): State<HttpDoor>) -> (StatusCode, &'static str) {
    if http.ready.load(Ordering::Acquire) {
        (StatusCode::OK, "ok\n")
    } else if http.rls.judge.link.has_answered() {
        (StatusCode::SERVICE_UNAVAILABLE, "beginning or ending\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the server has not answered yet\n")
    }
}

async fn checked(
    State(http): State<HttpDoor>,
    ConnectInfo(ends): ConnectInfo<Ends>,
    request: Request,
) -> Response<Body> {
    let (head, _) = request.into_parts();
    check::answer(&http.rls, &head, ends.peer.ip()).await
}

/// Bodies are at most 2 MB, as axum has it.
async fn asked(State(http): State<HttpDoor>, body: Bytes) -> Response<Body> {
    json::answer(&http.rls, &body).await
}

/// An answer of text.
fn text(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
