//! A service behind a layer.

mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use redis_ratelimit_client::{Limit, RateLimitLayer};
use support::{Server, patient};
use tower_layer::Layer;
use tower_service::Service;

/// Says who asked.
#[derive(Clone)]
struct Greeting;

impl Service<Request<String>> for Greeting {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Response<String>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<String>) -> Self::Future {
        ready(Ok(Response::new(format!("hello {}", request.into_body()))))
    }
}

fn user(parts: &Parts) -> Option<String> {
    parts.headers.get("x-user")?.to_str().ok().map(str::to_owned)
}

#[tokio::test]
async fn a_service_is_limited_by_a_line() {
    let server = Server::start();
    let api = server.limiter(patient()).await.limit("api", [Limit::fixed(2, "1h")]);
    let mut service = RateLimitLayer::new(api, user).layer(Greeting);
    let mut ask = async |user: Option<&str>| {
        let request = user.map_or(Request::get("/"), |user| Request::get("/").header("x-user", user));
        service.call(request.body("you".to_owned()).unwrap()).await.unwrap()
    };
    for left in ["1", "0"] {
        let answer = ask(Some("ann")).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "hello you"));
        assert_eq!(answer.headers()["x-ratelimit-remaining"], left);
        assert_eq!(answer.headers()["ratelimit-policy"], "\"default\";q=2;w=3600");
    }
    let denied = ask(Some("ann")).await;
    assert_eq!(denied.status().as_u16(), 429);
    assert_eq!(denied.headers()["retry-after"], "3600");
    let body: serde_json::Value = serde_json::from_str(denied.body()).unwrap();
    assert_eq!(body["status"], 429);
    assert_eq!(ask(Some("bob")).await.status().as_u16(), 200);
    let free = ask(None).await;
    assert!(free.status().is_success() && !free.headers().contains_key("x-ratelimit-limit"));
}
