//! For `make bench-gateway`: Envoy's rate limit service on the crate limitador with its Redis storage, like
//! limitador-server. `limitador-bench 127.0.0.1:PORT redis://HOST:PORT`.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace};
use limitador::storage::redis::AsyncRedisStorage;
use std::error::Error;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// Requests allowed per user and day, as in the gateway's policy in gateway/bench.py, so that no call is denied.
const MAX_REQUESTS: u64 = 1_000_000_000;
const DAY: u64 = 86_400;

struct Limits(AsyncRateLimiter);

#[tonic::async_trait]
impl RateLimitService for Limits {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let request = request.into_inner();
        let count = request.descriptors.len();
        let entries = request
            .descriptors
            .into_iter()
            .map(|descriptor| descriptor.entries.into_iter().map(|entry| (entry.key, entry.value)).collect());
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), entries.collect());
        let hits = u64::from(request.hits_addend.max(1));
        let outcome = self
            .0
            .check_rate_limited_and_update(&Namespace::from(request.domain), &context, hits)
            .await
            .map_err(|error| Status::unavailable(error.to_string()))?;
        let code = i32::from(if outcome.limited { Code::OverLimit } else { Code::Ok });
        let status = DescriptorStatus { code, ..DescriptorStatus::default() };
        Ok(Response::new(RateLimitResponse {
            overall_code: code,
            statuses: vec![status; count],
            ..RateLimitResponse::default()
        }))
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = std::env::args().skip(1);
    let (Some(listen), Some(server)) = (words.next(), words.next()) else {
        return Err("limitador-bench 127.0.0.1:PORT redis://HOST:PORT".into());
    };
    let storage = AsyncRedisStorage::new(&server).await?;
    let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
    let user = Expression::parse("descriptors[0].user")?;
    limiter.add_limit(Limit::new("bench", MAX_REQUESTS, DAY, [], [user]));
    let service = RateLimitServiceServer::new(Limits(limiter));
    Server::builder().tcp_nodelay(true).add_service(service).serve(listen.parse()?).await?;
    Ok(())
}
