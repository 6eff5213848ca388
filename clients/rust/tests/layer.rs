//! Services behind the layers.

mod support;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::IpAddr;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use redis_ratelimit_client::{Error, Limit, RateLimitLayer, Who, client_network, parse_address};
use serde_json::Value;
use support::{Server, long_timeout};
use tower_layer::Layer;
use tower_service::Service;

/// Service that responds with the user of the request.
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
async fn layer_limits_a_service() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(2, "1h")]).unwrap();
    let mut service = RateLimitLayer::new(api, user).layer(Greeting);
    let mut ask = async |user: Option<&str>| {
        let request = user.map_or(Request::get("/"), |user| Request::get("/").header("x-user", user));
        service.call(request.body("you".to_owned()).unwrap()).await.unwrap()
    };
    for remaining in ["1", "0"] {
        let answer = ask(Some("ann")).await;
        assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, "hello you"));
        assert_eq!(answer.headers()["x-ratelimit-remaining"], remaining);
        assert_eq!(answer.headers()["ratelimit-policy"], "\"api\";q=2;w=3600");
    }
    let denied = ask(Some("ann")).await;
    assert_eq!(denied.status().as_u16(), 429);
    assert_eq!(denied.headers()["retry-after"], "3600");
    let body: serde_json::Value = serde_json::from_str(denied.body()).unwrap();
    assert_eq!(body["status"], 429);
    assert_eq!(body["violated-policies"], serde_json::json!(["api"]));
    assert_eq!(ask(Some("bob")).await.status().as_u16(), 200);
    // Requests without a key and without an address share a limit.
    let statuses = [ask(None).await, ask(None).await, ask(Some("")).await].map(|one| one.status().as_u16());
    assert_eq!(statuses, [200, 200, 429]);
}

fn address(parts: &Parts) -> Option<IpAddr> {
    parts.headers.get("x-address")?.to_str().ok()?.parse().ok()
}

#[tokio::test]
async fn request_without_a_key_is_limited_by_its_address() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(1, "1h")]).unwrap();
    let mut service = RateLimitLayer::new(api, user).address(address).layer(Greeting);
    let mut ask = async |name: &str, value: &str| {
        let request = Request::get("/").header(name, value).body("you".to_owned()).unwrap();
        service.call(request).await.unwrap().status().as_u16()
    };
    assert_eq!([ask("x-address", "203.0.113.1").await, ask("x-address", "203.0.113.1").await], [200, 429]);
    assert_eq!([ask("x-address", "2001:db8:1:2::6").await, ask("x-address", "2001:db8:1:2::7").await], [200, 429]);
    // A header cannot produce the key of an address.
    for value in ["203.0.113.1", "ip:api:203.0.113.1", "ip:203.0.113.1"] {
        assert_eq!(ask("x-user", value).await, 200, "{value}");
    }
    let stored: Vec<_> = server.keys().await.into_iter().filter(|key| key.starts_with("ip:")).collect();
    assert_eq!(stored, ["ip:api:2001:db8:1:2::/64", "ip:api:203.0.113.1"]);
}

#[tokio::test]
async fn caller_can_be_unlimited() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(0, "1h")]).unwrap();
    let mut service = RateLimitLayer::new(api, |_: &Parts| Who::Unlimited).layer(Greeting);
    let answer = service.call(Request::get("/").body("you".to_owned()).unwrap()).await.unwrap();
    assert!(answer.status().is_success() && !answer.headers().contains_key("x-ratelimit-limit"));
}

#[tokio::test]
async fn two_unnamed_limits_have_separate_usage() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let hour = RateLimitLayer::new(limiter.unnamed([Limit::fixed(2, "1h")]), user);
    let day = RateLimitLayer::new(limiter.unnamed([Limit::fixed(3, "1d")]), user);
    let mut service = day.layer(hour.layer(Greeting));
    let mut passed = 0;
    for _ in 0..4 {
        let request = Request::get("/").header("x-user", "ann").body("you".to_owned()).unwrap();
        passed += u32::from(service.call(request).await.unwrap().status().is_success());
    }
    assert_eq!(passed, 2);
    assert_eq!(server.keys().await, ["FIXED 2 3600000:ann", "FIXED 3 86400000:ann"]);
}

#[tokio::test]
async fn charge_is_refunded_by_the_response() {
    let server = Server::start();
    let api = server.limiter(long_timeout()).await.limit("api", [Limit::fixed(1000, "1h")]).unwrap();
    let layer = RateLimitLayer::new(api.clone(), user).refunding(|response| response.status.is_success());
    let mut service = layer.layer(Greeting);
    let request = Request::get("/").header("x-user", "ann").body("you".to_owned()).unwrap();
    let answer = service.call(request).await.unwrap();
    assert_eq!(answer.headers()["x-ratelimit-remaining"], "999");
    assert_eq!(api.peek("ann").await.unwrap().remaining, Some(1000));
}

/// Returns the limits of a case, if the crate supports them.
fn limits(case: &Value) -> Option<Vec<Limit>> {
    let limit = |spec: &Value| {
        let text = |index: usize| spec[index].as_str().unwrap_or_default().to_owned();
        let time = |index: usize| spec[index].as_f64().map_or(text(index), |seconds| format!("{seconds}s"));
        let number = |index: usize| spec[index].as_f64().unwrap_or_default();
        let options = spec.as_array()?.last()?.as_object().cloned().unwrap_or_default();
        let limit = match text(0).as_str() {
            "FIXED" if options.contains_key("aligned") => return None,
            "FIXED" => Limit::fixed(number(1), time(2)),
            "SLIDING" if options.contains_key("strict") => Limit::sliding_strict(number(1), time(2)),
            "SLIDING" => Limit::sliding(number(1), time(2)),
            "SLIDINGLOG" => Limit::sliding_log(number(1), time(2)),
            "TOKENBUCKET" => Limit::token_bucket(number(1), number(2), time(3)),
            "LEAKYBUCKET" => Limit::leaky_bucket(number(1), number(2), time(3)),
            "CONCURRENCY" => Limit::concurrency(number(1), time(2)),
            "SKETCH" => Limit::sketch(number(1), number(2), time(3), options["key"].as_str()?),
            "POLICY" => Limit::policy(spec.as_array()?.iter().skip(1).filter_map(Value::as_str)),
            _ => return None,
        };
        let limit = options.get("cost").and_then(Value::as_f64).into_iter().fold(limit, Limit::costing);
        Some(options.get("name").and_then(Value::as_str).into_iter().fold(limit, Limit::named))
    };
    case["limits"].as_array().unwrap().iter().map(limit).collect()
}

#[tokio::test]
async fn keys_match_the_table_of_all_packages() {
    let table: Value = serde_json::from_str(include_str!("../../keys.json")).unwrap();
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let mut checked = 0;
    for case in table["specs"].as_array().unwrap() {
        let Some(limits) = limits(case) else { continue };
        let expected = format!("{}:42", case["spec"].as_str().unwrap());
        assert_eq!(limiter.unnamed(limits).key_of("42"), expected, "{case}");
        checked += 1;
    }
    for case in table["keys"].as_array().unwrap() {
        let Some(limits) = limits(case) else { continue };
        let is_item = case["limits"][0][0] == "SKETCH";
        let limit = match case["name"].as_str() {
            Some(name) => limiter.limit(name, limits).unwrap(),
            None => limiter.unnamed(limits),
        };
        let address = case["address"].as_str().map(|text| parse_address(text).unwrap());
        let key = match (case.get("who"), address) {
            (Some(Value::String(who)), _) if !who.is_empty() => limit.key_of(who),
            (None, Some(address)) => limit.key_of(&client_network(address, 64)),
            _ => limit.key_of_address(address, 64),
        };
        let prefix = case["prefix"].as_str().filter(|_| !is_item).unwrap_or_default();
        assert_eq!(format!("{prefix}{key}"), case["key"].as_str().unwrap(), "{case}");
        checked += 1;
    }
    assert!(checked > 30, "{checked}");
    for name in table["refused_names"].as_array().unwrap() {
        assert!(matches!(limiter.limit(name.as_str().unwrap(), []), Err(Error::Call(_))), "{name}");
    }
}

#[tokio::test]
async fn name_keeps_its_algorithm_and_window() {
    let server = Server::start();
    let limiter = server.limiter(long_timeout()).await;
    let api = limiter.limit("api", [Limit::fixed(100, "1h")]).unwrap();
    assert!(limiter.limit("api", [Limit::fixed(200, "60m")]).is_ok());
    for other in [Limit::fixed(100, "1d"), Limit::sliding(100, "1h"), Limit::policy(["plan"])] {
        let error = limiter.clone().limit("api", [other]).err().unwrap();
        assert!(matches!(&error, Error::Call(why) if why.contains("\"api\"")), "{error}");
    }
    let second = limiter.limit("api", [Limit::fixed(300, "1h")]).unwrap();
    drop(api);
    assert!(limiter.limit("api", [Limit::fixed(100, "1d")]).is_err(), "other limits with the name are in use");
    drop(second);
    assert!(limiter.limit("api", [Limit::fixed(100, "1d")]).is_ok(), "a name is free once its limits are dropped");
}
