//! Configuration by a control plane: a client of xDS, which subscribes to all rate limit configurations by the
//! aggregated discovery service (in its variant "state of the world").

mod connection;
mod messages;
mod options;
mod resources;

pub use options::XdsOptions;

use crate::configuration::Config;
use crate::metrics::control_plane as metrics;
use arc_swap::ArcSwap;
use axum::http::HeaderMap;
use axum::http::uri::PathAndQuery;
use connection::ControlPlane;
use futures_util::stream::poll_fn;
use messages::{DiscoveryRequest, DiscoveryResponse, Node, Status};
use prost_types::value::Kind;
use prost_types::{Struct, Value};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tonic::client::Grpc;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Extensions, Request};
use tonic_prost::ProstCodec;

/// Method of the aggregated discovery service.
const STREAM_RESOURCES: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 << 20;
/// Shortest delay before a new connection. The delay doubles with each attempt.
const SHORTEST_DELAY: Duration = Duration::from_millis(250);
/// Longest delay before a new connection. Together with the timeout of an attempt, it is well below the 20 seconds in
/// which a connection must succeed after an outage.
const LONGEST_DELAY: Duration = Duration::from_secs(10);
/// Pause before the same response is refused again. Control planes on go-control-plane send a refused response again at
/// once, and would do so endlessly.
const REPEATED_REFUSAL_PAUSE: Duration = Duration::from_millis(500);

/// Client of a control plane.
pub struct XdsClient {
    control_plane: ControlPlane,
    node: Node,
    /// Headers of the stream.
    headers: HeaderMap,
    /// Configuration, replaced as a whole by each accepted response.
    config: Arc<ArcSwap<Config>>,
    /// `true` if a domain may be in several resources.
    merges_domains: bool,
    /// Version of the last accepted response.
    accepted_version: String,
    /// Version of the response that was refused last, and the reason. `None` after an accepted response.
    last_refusal: Option<(String, String)>,
}

impl XdsClient {
    /// Creates a client, if the options name a control plane. Each configuration of the control plane replaces
    /// `config`.
    ///
    /// # Errors
    /// If the address or a file is malformed.
    pub fn new(
        options: &XdsOptions,
        merges_domains: bool,
        config: Arc<ArcSwap<Config>>,
    ) -> Result<Option<XdsClient>, String> {
        let Some(address) = &options.address else { return Ok(None) };
        let node = Node {
            id: options.node_id.clone(),
            metadata: metadata(&options.node_metadata),
            user_agent_name: env!("CARGO_PKG_NAME").to_owned(),
            user_agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let control_plane = ControlPlane::new(address, options)?;
        Ok(Some(XdsClient {
            control_plane,
            node,
            headers: options.headers.as_deref().map(options::parse_headers).transpose()?.unwrap_or_default(),
            config,
            merges_domains,
            accepted_version: String::new(),
            last_refusal: None,
        }))
    }

    /// Subscribes to the control plane, and connects again whenever the connection is lost. Until then, the last
    /// configuration stays in use.
    pub async fn run(mut self) {
        metrics::register();
        let (mut attempts, mut last_failure) = (0, String::new());
        loop {
            let started = Instant::now();
            let (was_connected, why) = self.follow().await;
            metrics::set_connected(false);
            if was_connected || why != last_failure {
                tracing::warn!(why, "the control plane is away, and its last configuration stays");
            }
            last_failure = why;
            // Only a lasting connection resets the delay: a control plane may end each stream at once.
            if started.elapsed() > LONGEST_DELAY {
                attempts = 0;
            }
            sleep(delay(attempts, random_byte())).await;
            attempts = attempts.saturating_add(1);
        }
    }

    /// Connects and follows the stream until it ends. Returns `true` if there was a connection, and the reason for the
    /// end.
    async fn follow(&mut self) -> (bool, String) {
        match self.control_plane.connect().await {
            Ok(channel) => {
                let result = self.follow_stream(Grpc::new(channel)).await;
                (true, result.err().unwrap_or_else(|| "it ended the stream".to_owned()))
            }
            Err(why) => (false, why),
        }
    }

    async fn follow_stream(&mut self, grpc: Grpc<Channel>) -> Result<(), String> {
        let status = |status: tonic::Status| format!("{:?}: {}", status.code(), status.message());
        let mut grpc = grpc.max_decoding_message_size(MAX_RESPONSE);
        grpc.ready().await.map_err(|error| error.to_string())?;
        metrics::set_connected(true);
        tracing::info!("connected to the control plane");
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let requests = poll_fn(move |context| receiver.poll_recv(context));
        // The first request has no version, so that the control plane sends its configuration: after a restart of the
        // control plane, versions may begin anew.
        let _ = sender.send(self.request());
        let codec = ProstCodec::<DiscoveryRequest, DiscoveryResponse>::default();
        let path = PathAndQuery::from_static(STREAM_RESOURCES);
        let metadata = MetadataMap::from_headers(self.headers.clone());
        let requests = Request::from_parts(metadata, Extensions::default(), requests);
        let mut responses = grpc.streaming(requests, path, codec).await.map_err(status)?.into_inner();
        while let Some(response) = responses.message().await.map_err(status)? {
            // Fails only if the stream has ended.
            let _ = sender.send(self.apply(response).await);
        }
        Ok(())
    }

    fn request(&self) -> DiscoveryRequest {
        DiscoveryRequest {
            node: Some(self.node.clone()),
            type_url: resources::TYPE_URL.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    /// Applies all resources of a response or none, and returns the request that accepts or refuses the response.
    async fn apply(&mut self, response: DiscoveryResponse) -> DiscoveryRequest {
        let (version, response_nonce) = (response.version_info.clone(), response.nonce.clone());
        let merges_domains = self.merges_domains;
        // A blocking thread, because a large configuration takes long.
        let reading = tokio::task::spawn_blocking(move || resources::read(&response, merges_domains));
        let result = reading.await.unwrap_or_else(|error| Err(error.to_string()));
        let error_detail = match result {
            Ok(config) => {
                tracing::info!(
                    version,
                    domains = config.domains.len(),
                    "the configuration of the control plane is applied"
                );
                self.config.store(Arc::new(config));
                metrics::count_applied(&version);
                (self.accepted_version, self.last_refusal) = (version, None);
                None
            }
            Err(why) => {
                metrics::count_refused();
                let refusal = Some((version, why.clone()));
                if self.last_refusal == refusal {
                    sleep(REPEATED_REFUSAL_PAUSE).await;
                } else if let Some((version, why)) = &refusal {
                    tracing::error!(
                        version,
                        why,
                        "a configuration of the control plane is refused, and the last one stays"
                    );
                }
                self.last_refusal = refusal;
                Some(Status { code: Code::InvalidArgument.into(), message: why })
            }
        };
        DiscoveryRequest { version_info: self.accepted_version.clone(), response_nonce, error_detail, ..self.request() }
    }
}

/// Returns the metadata of a node, if there is any.
fn metadata(entries: &[(String, String)]) -> Option<Struct> {
    let value = |text: &String| Value { kind: Some(Kind::StringValue(text.clone())) };
    let fields = entries.iter().map(|(key, text)| (key.clone(), value(text))).collect();
    (!entries.is_empty()).then_some(Struct { fields })
}

/// Returns the delay before a connection attempt. Half of the maximum is fixed, and `random` selects a part of the
/// other half, so that gateways do not connect at the same time.
fn delay(attempts: u32, random: u8) -> Duration {
    let max_delay = SHORTEST_DELAY.saturating_mul(1 << attempts.min(16)).min(LONGEST_DELAY);
    max_delay / 2 + max_delay / 2 * u32::from(random) / u32::from(u8::MAX)
}

fn random_byte() -> u8 {
    let mut bytes = [0];
    // If the system has no random numbers, the delay is the longest.
    if getrandom::fill(&mut bytes).is_ok() { bytes[0] } else { u8::MAX }
}

#[cfg(test)]
mod tests;
