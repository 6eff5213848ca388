//! The doors over HTTP: forward auth, and what operators ask.

mod check;
mod json;
mod metrics;

use crate::listener::Endpoints;
use crate::rls::Rls;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{any, get, post};
pub use metrics::MetricsPage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum size of a body that is passed on by a proxy and never read.
const MAX_CHECK_BODY: u64 = 64 << 10;
/// Maximum size of a request in JSON.
const MAX_JSON_BODY: usize = 1 << 20;

/// What the doors share.
#[derive(Clone)]
pub struct HttpDoor {
    /// The files, the judge, and how ids are remembered.
    pub rls: Rls,
    /// Page of the metrics.
    pub metrics: MetricsPage,
    /// Whether it is told that the gateway is ready.
    pub ready: Arc<AtomicBool>,
}

/// The routes.
pub fn router(http: HttpDoor) -> Router {
    Router::new()
        .route("/check", any(checked))
        .route("/json", post(asked).layer(DefaultBodyLimit::max(MAX_JSON_BODY)))
        .route("/metrics", get(metrics_page))
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

async fn metrics_page(State(http): State<HttpDoor>) -> Response<Body> {
    match http.metrics.page().await {
        Some(page) => text(StatusCode::OK, "text/plain; charset=utf-8", page),
        None => text(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "the metrics could not be rendered\n"),
    }
}

async fn checked(
    State(http): State<HttpDoor>,
    ConnectInfo(ends): ConnectInfo<Endpoints>,
    request: Request,
) -> Response<Body> {
    if request.body().size_hint().lower() > MAX_CHECK_BODY {
        return text(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", "the body is too large\n");
    }
    let (head, _) = request.into_parts();
    // A proxy copies the headers of its client, and says what the request is.
    if is_cross_site(&head.headers) && !head.headers.contains_key("x-forwarded-uri") {
        return cross_site();
    }
    check::answer(&http.rls, &head, ends.peer.ip()).await
}

async fn asked(State(http): State<HttpDoor>, request: Request) -> Response<Body> {
    if is_cross_site(request.headers()) {
        return cross_site();
    }
    match Bytes::from_request(request, &()).await {
        Ok(body) => json::answer(&http.rls, &body).await,
        Err(rejection) => rejection.into_response(),
    }
}

/// Returns `true` if a browser sent the request for a page of another site. No page of the gateway asks these routes, so
/// that any `Origin` is another one.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    headers.contains_key(header::ORIGIN) || matches!(site, Some(b"cross-site" | b"same-site"))
}

fn cross_site() -> Response<Body> {
    text(StatusCode::FORBIDDEN, "text/plain", "requests of web pages are refused\n")
}

/// An answer of text.
fn text(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
