//! Envoy's rate limit service.

mod request;
mod response;
mod unary;

use crate::configuration::Config;
use crate::judge::{Judge, RequestPart};
use crate::listener::{PATIENCE, Shortcut};
use crate::proto::{RateLimitRequest, RateLimitResponse};
use arc_swap::ArcSwap;
use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, Response};
use hyper::body::Incoming;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

/// The largest request, in bytes: 32 descriptors of 16 entries with values of some size.
const LARGEST: usize = 256 * 1024;
/// Envoy's protocol for those who ask by reflection: `protoc --include_imports --descriptor_set_out` of the crate's own
/// envoy/service/ratelimit/v3/rls.proto.
const DESCRIPTORS: &[u8] = include_bytes!("rls/descriptors.bin");

/// The name of the service.
pub const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
/// The path of its only call.
const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// What stands beside the service: health and reflection.
///
/// # Errors
/// If the descriptors for reflection are wrong.
pub fn router(health: HealthServer<impl Health>) -> Result<Router, String> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let told = |error: tonic_reflection::server::Error| error.to_string();
    // Most clients still ask by the older version.
    let (older, newer) = (reflection().build_v1alpha().map_err(told)?, reflection().build_v1().map_err(told)?);
    let others = Routes::default().add_service(health).add_service(older).add_service(newer);
    Ok(others.prepare().into_axum_router())
}

/// The service, made of what it shares with the others.
#[derive(Clone)]
pub struct Rls {
    /// What the files say.
    pub config: Arc<ArcSwap<Config>>,
    /// What decides each request.
    pub judge: Arc<Judge>,
    /// How long an id is remembered, as the server takes durations.
    pub once: Arc<str>,
}

impl Rls {
    /// Answers a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, with what is wrong with it.
    pub async fn answer(
        &self,
        request: RateLimitRequest,
        patience: Option<Duration>,
    ) -> Result<RateLimitResponse, Status> {
        let asked = request::asked(&request, &self.config.load(), &self.once).map_err(Status::invalid_argument)?;
        let asked: Arc<[RequestPart]> = asked.into();
        let judgement = self.judge.judge(request.domain, Arc::clone(&asked), patience).await;
        Ok(response::response(&asked, &judgement))
    }
}

/// Answers the calls of the service.
pub fn shortcut(rls: Rls) -> Shortcut {
    Shortcut {
        takes: |request| request.method() == Method::POST && request.uri().path() == PATH,
        answer: Arc::new(move |request| {
            let rls = rls.clone();
            Box::pin(async move { should_rate_limit(&rls, request).await })
        }),
    }
}

async fn should_rate_limit(rls: &Rls, request: Request<Incoming>) -> Response<Body> {
    let patience = request.headers().get("grpc-timeout").and_then(|value| patience(value.to_str().ok()?));
    // Only the request is waited for so long: how long the answer takes, the judge sees to.
    unary::answer(match unary::read(request.into_body(), LARGEST, PATIENCE).await {
        Ok(request) => rls.answer(request, patience).await,
        Err(status) => Err(status),
    })
}

/// How long the server is waited for if a caller waits so long: three quarters, for the rest is for the way back.
fn patience(text: &str) -> Option<Duration> {
    timeout(text).map(|left| left.saturating_mul(3) / 4)
}

/// What gRPC says of how long a caller waits: up to eight digits and a unit.
fn timeout(text: &str) -> Option<Duration> {
    let place = text.len().checked_sub(1)?;
    let (digits, unit) = (text.get(..place)?, text.get(place..)?);
    let number: u64 = digits.parse().ok().filter(|_| digits.len() <= 8)?;
    match unit {
        "H" => Some(Duration::from_secs(number.saturating_mul(3600))),
        "M" => Some(Duration::from_secs(number.saturating_mul(60))),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{patience, timeout};
    use std::time::Duration;

    #[test]
    fn three_quarters_of_what_a_caller_waits_are_for_the_server() {
        assert_eq!(patience("20m"), Some(Duration::from_millis(15)));
        assert_eq!(patience("99999999H"), Some(Duration::from_hours(3 * 99_999_999 / 4) + Duration::from_mins(15)));
        assert_eq!(patience("soon"), None);
    }

    #[test]
    fn a_timeout_has_a_unit() {
        assert_eq!(timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(timeout("3S"), Some(Duration::from_secs(3)));
        for text in ["", "m", "20", "20x", "123456789m", "é", "-1m"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }
}
