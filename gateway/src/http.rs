//! HTTP service: forward auth (`/check`), the rate limit service in JSON (`/json`), metrics and health; and the service
//! for operators, with the limits of the configuration (`/rlconfig`).

mod forward_auth;
mod json;
mod metrics_page;

use crate::evaluation::Caller;
use crate::listener::Endpoints;
use crate::rls::Rls;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest as _, Request, State};
use axum::http::{Extensions, HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::response::IntoResponse as _;
use axum::routing::{any, get, post};
pub use metrics_page::MetricsPage;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Maximum size of the body of a forward auth request, in bytes. The body is never read.
const MAX_CHECK_BODY: u64 = 64 << 10;
/// Maximum size of a JSON request, in bytes.
const MAX_JSON_BODY: usize = 1 << 20;

/// State that the routes share.
#[derive(Clone)]
pub struct HttpState {
    /// Rate limit service, with the configuration and the evaluator.
    pub rls: Rls,
    /// Page of the metrics.
    pub metrics: MetricsPage,
    /// Path of the metrics.
    pub metrics_path: String,
    /// `true` while `/readyz` reports that the gateway is ready.
    pub ready: Arc<AtomicBool>,
}

impl HttpState {
    /// Returns the caller of a request, with the span of the request if it is traced.
    fn caller(&self, headers: &HeaderMap, extensions: &Extensions, method: &Method, route: &'static str) -> Caller {
        let traces = self.rls.traces.as_ref();
        let span = traces.and_then(|traces| traces.start_http(headers, extensions, method.as_str(), route));
        Caller { timeout: None, span: span.map(Arc::new) }
    }
}

/// Returns the routes of the HTTP service.
pub fn router(state: HttpState) -> Router {
    let routes = Router::new()
        .route("/check", any(check))
        .route("/json", post(rate_limit_json).layer(DefaultBodyLimit::max(MAX_JSON_BODY)));
    routes.merge(health_and_metrics(&state.metrics_path)).with_state(state)
}

/// Returns the routes of the service for operators.
pub fn debug_router(state: HttpState) -> Router {
    let index = format!("/healthz\n/readyz\n/healthcheck\n{}\n/rlconfig\n", state.metrics_path);
    let routes = Router::new().route("/", get(async || index)).route("/rlconfig", get(configuration));
    routes.merge(health_and_metrics(&state.metrics_path)).with_state(state)
}

fn health_and_metrics(metrics_path: &str) -> Router<HttpState> {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/healthcheck", get(healthcheck))
        .route(metrics_path, get(metrics_page))
}

/// Answers `/healthcheck` like envoyproxy/ratelimit: with the same readiness as `/readyz`.
async fn healthcheck(State(state): State<HttpState>) -> (StatusCode, &'static str) {
    if state.ready.load(Ordering::Acquire) { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") }
}

/// Answers `/rlconfig` with the limits of the configuration.
async fn configuration(State(state): State<HttpState>) -> String {
    state.rls.config.load().to_text()
}

/// Answers `/readyz`. The gateway is ready once the server has replied and a configured control plane has sent its
/// configuration, until the drain begins. It stays ready in later outages, which would otherwise take all replicas of
/// the gateway out of service at once.
async fn ready(State(state): State<HttpState>) -> (StatusCode, &'static str) {
    if state.ready.load(Ordering::Acquire) {
        (StatusCode::OK, "ok\n")
    } else if state.rls.evaluator.upstream.has_replied() {
        (StatusCode::SERVICE_UNAVAILABLE, "beginning, without a configuration of the control plane, or ending\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the server has not answered yet\n")
    }
}

async fn metrics_page(State(state): State<HttpState>) -> Response<Body> {
    match state.metrics.page().await {
        Some(page) => response_with_body(StatusCode::OK, "text/plain; charset=utf-8", page),
        None => {
            response_with_body(StatusCode::INTERNAL_SERVER_ERROR, "text/plain", "the metrics could not be rendered\n")
        }
    }
}

async fn check(
    State(state): State<HttpState>,
    ConnectInfo(endpoints): ConnectInfo<Endpoints>,
    request: Request,
) -> Response<Body> {
    if request.body().size_hint().lower() > MAX_CHECK_BODY {
        return response_with_body(StatusCode::PAYLOAD_TOO_LARGE, "text/plain", "the body is too large\n");
    }
    let (head, _) = request.into_parts();
    // A request with `X-Forwarded-Uri` comes from a proxy, which copies the headers of its client.
    if is_cross_site(&head.headers) && !head.headers.contains_key("x-forwarded-uri") {
        return reject_cross_site();
    }
    let caller = state.caller(&head.headers, &head.extensions, &head.method, "/check");
    let response = forward_auth::respond(&state.rls, &head, endpoints.peer.ip(), caller.clone()).await;
    end_span(&caller, &response);
    response
}

async fn rate_limit_json(State(state): State<HttpState>, request: Request) -> Response<Body> {
    if is_cross_site(request.headers()) {
        return reject_cross_site();
    }
    let caller = state.caller(request.headers(), request.extensions(), request.method(), "/json");
    let response = match Bytes::from_request(request, &()).await {
        Ok(body) => json::respond(&state.rls, &body, caller.clone()).await,
        Err(rejection) => rejection.into_response(),
    };
    end_span(&caller, &response);
    response
}

fn end_span(caller: &Caller, response: &Response<Body>) {
    if let Some(span) = &caller.span {
        span.end_http(response.status().as_u16());
    }
}

/// Returns `true` if a browser sent the request on behalf of a web page. The gateway has no pages, so any `Origin`
/// belongs to another site.
fn is_cross_site(headers: &HeaderMap) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    headers.contains_key(header::ORIGIN) || matches!(site, Some(b"cross-site" | b"same-site"))
}

fn reject_cross_site() -> Response<Body> {
    response_with_body(StatusCode::FORBIDDEN, "text/plain", "requests of web pages are refused\n")
}

/// Returns a response with this status, content type and body.
fn response_with_body(status: StatusCode, content_type: &'static str, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
