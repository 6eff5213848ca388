//! Envoy's rate limit service.

mod request;
mod response;
mod service;

use crate::client_address::Ipv6Prefix;
use crate::configuration::Config;
use crate::judge::{Judge, RequestPart};
use crate::proto::{RateLimitRequest, RateLimitResponse};
use arc_swap::ArcSwap;
use axum::Router;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

/// Envoy's protocol for those who ask by reflection: `protoc --include_imports --descriptor_set_out` of the crate's own
/// envoy/service/ratelimit/v3/rls.proto.
const DESCRIPTORS: &[u8] = include_bytes!("rls/descriptors.bin");

/// The name of the service.
pub const NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Routes of the service, of health checks and of reflection.
///
/// # Errors
/// If the descriptors for reflection are wrong.
pub fn router(rls: Rls, health: HealthServer<impl Health>) -> Result<Router, String> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let told = |error: tonic_reflection::server::Error| error.to_string();
    // Most clients still ask by the older version.
    let (older, newer) = (reflection().build_v1alpha().map_err(told)?, reflection().build_v1().map_err(told)?);
    let routes = Routes::new(rls).add_service(health).add_service(older).add_service(newer);
    Ok(routes.prepare().into_axum_router())
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
    /// Length of the IPv6 networks that count as one client.
    pub ipv6_prefix: Ipv6Prefix,
}

impl Rls {
    /// Answers a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, with what is wrong with it.
    pub async fn answer(
        &self,
        request: RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, Status> {
        let asked = request::asked(&request, &self.config.load(), &self.once, self.ipv6_prefix);
        let asked = asked.map_err(Status::invalid_argument)?;
        let asked: Arc<[RequestPart]> = asked.into();
        let judgement = self.judge.judge(request.domain, Arc::clone(&asked), timeout).await;
        Ok(response::response(&asked, &judgement))
    }
}
