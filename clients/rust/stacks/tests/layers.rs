//! Applications of axum and tonic behind the layers.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Extension;
use axum::routing::get;
use http::request::Parts;
use http::{Request, Response, StatusCode};
use redis::aio::ConnectionManager;
use redis_ratelimit_client::{Charge, LeaseLayer, Limit, RateLimitLayer, Take};
use support::{Server, long_timeout};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt, service_fn};

fn user(parts: &Parts) -> Option<String> {
    parts.headers.get("x-user")?.to_str().ok().map(str::to_owned)
}

fn request(user: Option<&str>) -> Request<Body> {
    let request = Request::get("/");
    user.map_or(Request::get("/"), |user| request.header("x-user", user)).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn axum_is_limited_by_one_layer() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(2, "1h")]).unwrap();
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(api, user));
    let mut answers = Vec::new();
    for _ in 0..3 {
        answers.push(app.clone().oneshot(request(Some("alice"))).await.unwrap());
    }
    let statuses: Vec<_> = answers.iter().map(|one| one.status().as_u16()).collect();
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(answers[0].headers()["x-ratelimit-remaining"], "1");
    assert_eq!(answers[0].headers()["ratelimit-policy"], "\"api\";q=2;w=3600");
    let denied = answers.pop().unwrap();
    assert_eq!(denied.headers()["retry-after"], "3600");
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    let body = to_bytes(denied.into_body(), 10_000).await.unwrap();
    let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(body["status"], 429);
    // Other users have limits of their own. Requests without a user and an address share one limit.
    assert_eq!(app.clone().oneshot(request(Some("bob"))).await.unwrap().status(), StatusCode::OK);
    for status in [200, 200, 429] {
        assert_eq!(app.clone().oneshot(request(None)).await.unwrap().status().as_u16(), status);
    }
}

#[tokio::test]
async fn handler_settles_the_charge_of_its_request() {
    async fn answer(Extension(charge): Extension<Charge<ConnectionManager>>) -> String {
        format!("{:?}", charge.settle(100).await.unwrap().remaining)
    }
    let server = Server::start();
    let tokens = server.limiter(long_timeout()).await.limit("llm", [Limit::fixed(1000, "1h")]).unwrap();
    let layer = RateLimitLayer::new(tokens, user).taking(Take::units(600));
    let app = Router::new().route("/", get(answer)).layer(layer);
    for remaining in ["Some(900)", "Some(800)"] {
        let answer = app.clone().oneshot(request(Some("alice"))).await.unwrap();
        assert_eq!(to_bytes(answer.into_body(), 100).await.unwrap(), remaining);
    }
}

#[tokio::test]
async fn invalid_limit_is_a_server_error() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::policy(["missing"])]).unwrap();
    let app = Router::new().route("/", get(async || "hello")).layer(RateLimitLayer::new(api, user));
    let answer = app.oneshot(request(Some("alice"))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
}

#[tokio::test]
async fn lease_is_held_until_the_service_has_responded() {
    let server = Server::start();
    let pool = server.limiter(long_timeout()).await.limit("pool", [Limit::concurrency(1, "1h")]).unwrap();
    let (entered, leave) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let service = LeaseLayer::new(pool, user).layer(service_fn({
        let (entered, leave) = (entered.clone(), leave.clone());
        move |_: Request<Body>| {
            let (entered, leave) = (entered.clone(), leave.clone());
            async move {
                entered.notify_one();
                leave.notified().await;
                Ok::<_, Infallible>(Response::new(Body::empty()))
            }
        }
    }));
    let first = tokio::spawn(service.clone().oneshot(request(Some("alice"))));
    entered.notified().await;
    let denied = service.clone().oneshot(request(Some("alice"))).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    leave.notify_one();
    assert_eq!(first.await.unwrap().unwrap().status(), StatusCode::OK);
    leave.notify_one();
    assert_eq!(service.oneshot(request(Some("alice"))).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn tonic_gets_a_grpc_status() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(1, "1h")]).unwrap();
    let service = RateLimitLayer::new(api, user).grpc().layer(service_fn(|_: Request<tonic::body::Body>| async {
        Ok::<_, Infallible>(Response::new(tonic::body::Body::empty()))
    }));
    let ask = || {
        let request = Request::post("/service/Method").header("x-user", "alice");
        service.clone().oneshot(request.body(tonic::body::Body::empty()).unwrap())
    };
    assert!(!ask().await.unwrap().headers().contains_key("grpc-status"));
    let denied = ask().await.unwrap();
    assert_eq!(denied.status(), StatusCode::OK);
    let status = tonic::Status::from_header_map(denied.headers()).unwrap();
    assert_eq!(status.code(), tonic::Code::ResourceExhausted);
    assert_eq!(denied.headers()["retry-after"], "3600");
}
