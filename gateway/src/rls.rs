//! Envoy's rate limit service (RLS).

mod metadata;
mod request;
mod response;
mod service;

use crate::configuration::Config;
use crate::evaluation::{Caller, Evaluator, RequestPart};
use crate::headers::ResponseHeaders;
use crate::metrics::envoyproxy;
use crate::proto::{RateLimitRequest, RateLimitResponse};
use crate::traces::Traces;
use arc_swap::ArcSwap;
use axum::Router;
use request::RequestError;
use std::sync::Arc;
use tonic::Status;
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

pub use metadata::to_json;
pub use request::RequestSettings;

/// Descriptors of Envoy's protocol for gRPC reflection, written by `protoc --include_imports --descriptor_set_out` from
/// envoy/service/ratelimit/v3/rls.proto of the crate envoy-types.
const DESCRIPTORS: &[u8] = include_bytes!("rls/descriptors.bin");

/// Full name of the gRPC service.
pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Returns the routes of the rate limit service, of health checks and of reflection.
///
/// # Errors
/// If the descriptors for reflection are malformed.
pub fn router(rls: Rls, health: HealthServer<impl Health>) -> Result<Router, String> {
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let message = |error: tonic_reflection::server::Error| error.to_string();
    // Both versions of reflection, because most clients still use the older.
    let (older, newer) = (reflection().build_v1alpha().map_err(message)?, reflection().build_v1().map_err(message)?);
    let routes = Routes::new(rls).add_service(health).add_service(older).add_service(newer);
    Ok(routes.prepare().into_axum_router())
}

/// Rate limit service, which gRPC and HTTP share.
#[derive(Clone)]
pub struct Rls {
    /// Configuration, replaced when its files change or the control plane sends another.
    pub config: Arc<ArcSwap<Config>>,
    /// Evaluator of requests.
    pub evaluator: Arc<Evaluator>,
    /// Settings with which requests are resolved to calls.
    pub settings: RequestSettings,
    /// Headers of responses.
    pub headers: Arc<ResponseHeaders>,
    /// `true` if responses have dynamic metadata.
    pub response_metadata: bool,
    /// Traces of requests, if they are exported.
    pub traces: Option<Arc<Traces>>,
}

impl Rls {
    /// Evaluates a request and returns the response.
    ///
    /// # Errors
    /// `UNKNOWN` without a domain or a descriptor, as in envoyproxy/ratelimit; `INVALID_ARGUMENT` if the request has
    /// too many descriptors or entries; and `UNAVAILABLE` in an outage of the server under `--on-outage error`.
    pub async fn respond(&self, request: RateLimitRequest, caller: Caller) -> Result<RateLimitResponse, Status> {
        let parts = request::resolve(&request, &self.config.load(), &self.settings);
        let parts = parts.inspect_err(|_| envoyproxy::count_malformed()).map_err(|error| match error {
            RequestError::Empty(message) => Status::unknown(message),
            RequestError::TooLarge(message) => Status::invalid_argument(message),
        })?;
        let parts: Arc<[RequestPart]> = parts.into();
        let decision = self.evaluator.evaluate(request.domain.clone(), Arc::clone(&parts), caller).await;
        if self.evaluator.is_failed(&decision) {
            return Err(Status::unavailable("the server of the limits is away"));
        }
        let mut response = response::response(&parts, &decision, &self.headers);
        if self.response_metadata {
            response.dynamic_metadata = Some(metadata::response_metadata(&request, &parts, &decision));
        }
        Ok(response)
    }
}
