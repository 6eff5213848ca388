//! Envoy's rate limit service.

mod metadata;
mod request;
mod response;
mod service;

use crate::configuration::Config;
use crate::judge::{Judge, RequestPart};
use crate::proto::{RateLimitRequest, RateLimitResponse};
use arc_swap::ArcSwap;
use axum::Router;
use request::RequestError;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

pub use metadata::to_json;
pub use request::RequestSettings;

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
    /// Settings by which requests are read.
    pub settings: RequestSettings,
    /// Answers have dynamic metadata.
    pub response_metadata: bool,
}

impl Rls {
    /// Answers a request.
    ///
    /// # Errors
    /// `UNKNOWN` without a domain or a descriptor, as envoyproxy/ratelimit; `INVALID_ARGUMENT` if a part is too large.
    pub async fn answer(
        &self,
        request: RateLimitRequest,
        timeout: Option<Duration>,
    ) -> Result<RateLimitResponse, Status> {
        let asked = request::asked(&request, &self.config.load(), &self.settings);
        let asked = asked.map_err(|error| match error {
            RequestError::Empty(told) => Status::unknown(told),
            RequestError::TooLarge(told) => Status::invalid_argument(told),
        })?;
        let asked: Arc<[RequestPart]> = asked.into();
        let judgement = self.judge.judge(request.domain.clone(), Arc::clone(&asked), timeout).await;
        let mut response = response::response(&asked, &judgement);
        if self.response_metadata {
            response.dynamic_metadata = Some(metadata::answer(&request, &asked, &judgement));
        }
        Ok(response)
    }
}
