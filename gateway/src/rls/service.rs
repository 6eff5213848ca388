//! Server of envoy.service.ratelimit.v3.RateLimitService, like the code that tonic generates for one unary method.

use super::{Rls, SERVICE_NAME};
use crate::evaluation::Caller;
use crate::metrics::envoyproxy;
use crate::proto::{RateLimitRequest, RateLimitResponse};
use crate::traces::Traces;
use axum::http;
use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tonic::body::Body;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;
use tower::Service;

/// Maximum size of a request in bytes.
const MAX_REQUEST: usize = 64 * 1024;
/// Path of the only method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

type BoxFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl NamedService for Rls {
    const NAME: &'static str = SERVICE_NAME;
}

impl Service<http::Request<Body>> for Rls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != SHOULD_RATE_LIMIT {
            return Box::pin(ready(Ok(Status::unimplemented("the service has no such method").into_http())));
        }
        let method = ShouldRateLimit(self.clone());
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_REQUEST);
            Ok(grpc.unary(method, request).await)
        })
    }
}

/// Method `ShouldRateLimit`.
struct ShouldRateLimit(Rls);

impl UnaryService<RateLimitRequest> for ShouldRateLimit {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let rls = self.0.clone();
        let start_span = |traces: &Arc<Traces>| {
            let method = SHOULD_RATE_LIMIT.trim_start_matches('/');
            traces.start_rpc(request.metadata().as_ref(), request.extensions(), method).map(Arc::new)
        };
        let span = rls.traces.as_ref().and_then(start_span);
        let timeout = request.metadata().get("grpc-timeout").and_then(|value| server_timeout(value.to_str().ok()?));
        Box::pin(async move {
            let started = Instant::now();
            let caller = Caller { timeout, span: span.clone() };
            let response = rls.respond(request.into_inner(), caller).await;
            envoyproxy::record_grpc_request(started.elapsed());
            if let Some(span) = span {
                span.end_rpc(response.as_ref().err());
            }
            response.map(Response::new)
        })
    }
}

/// Returns the timeout for the evaluation of a request: three quarters of its `grpc-timeout`, which leaves time for the
/// response.
fn server_timeout(text: &str) -> Option<Duration> {
    parse_timeout(text).map(|timeout| timeout.saturating_mul(3) / 4)
}

/// Parses a `grpc-timeout`: up to eight digits and a unit.
fn parse_timeout(text: &str) -> Option<Duration> {
    let index = text.len().checked_sub(1)?;
    let (digits, unit) = (text.get(..index)?, text.get(index..)?);
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
    use super::{parse_timeout, server_timeout};
    use std::time::Duration;

    #[test]
    fn evaluation_gets_three_quarters_of_the_callers_timeout() {
        assert_eq!(server_timeout("20m"), Some(Duration::from_millis(15)));
        assert_eq!(
            server_timeout("99999999H"),
            Some(Duration::from_hours(3 * 99_999_999 / 4) + Duration::from_mins(15))
        );
        assert_eq!(server_timeout("soon"), None);
    }

    #[test]
    fn malformed_timeout_is_ignored() {
        assert_eq!(parse_timeout("20m"), Some(Duration::from_millis(20)));
        assert_eq!(parse_timeout("3S"), Some(Duration::from_secs(3)));
        for text in ["", "m", "20", "20x", "123456789m", "é", "-1m"] {
            assert_eq!(parse_timeout(text), None, "{text}");
        }
    }
}
