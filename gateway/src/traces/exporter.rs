//! Export of spans to a collector by OTLP. If the collector is away or slow, spans are lost, and decisions are not
//! delayed.

use super::settings::{Protocol, TraceSettings};
use crate::grpc_client::{self, chain};
use axum::http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use ratelimit_link::certificate::client_config;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tonic::transport::Endpoint;

/// Minimum time between two log lines about spans that were not exported.
const LOG_INTERVAL: Duration = Duration::from_mins(1);

/// Exporter that runs in the runtime, with a timeout, and logs its failures.
#[derive(Debug)]
pub struct CollectorExporter {
    exporter: Arc<opentelemetry_otlp::SpanExporter>,
    runtime: Handle,
    timeout: Duration,
    failures: Mutex<Failures>,
}

/// Failures since the last log line.
#[derive(Debug, Default)]
struct Failures {
    spans: usize,
    logged_at: Option<Instant>,
}

impl CollectorExporter {
    /// Creates an exporter, which connects at the first export.
    ///
    /// # Errors
    /// If a file for TLS cannot be read or is malformed.
    pub fn new(settings: &TraceSettings) -> Result<CollectorExporter, String> {
        let exporter = match settings.protocol {
            Protocol::Grpc => grpc_exporter(settings)?,
            Protocol::HttpProtobuf => http_exporter(settings)?,
        };
        Ok(CollectorExporter {
            exporter: Arc::new(exporter),
            runtime: Handle::current(),
            timeout: settings.export_timeout,
            failures: Mutex::default(),
        })
    }

    fn log_failure(&self, error: &OTelSdkError, spans: usize) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.spans = failures.spans.saturating_add(spans);
        if failures.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            tracing::warn!(spans = failures.spans, why = %error, "traces could not be exported");
            *failures = Failures { spans: 0, logged_at: Some(Instant::now()) };
        }
    }
}

impl SpanExporter for CollectorExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (exporter, export_timeout, spans) = (Arc::clone(&self.exporter), self.timeout, batch.len());
        // Spawned, because the batch processor calls this function in a thread outside of the runtime.
        let exporting = self.runtime.spawn(async move { timeout(export_timeout, exporter.export(batch)).await });
        let result = match exporting.await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(OTelSdkError::Timeout(export_timeout)),
            // The runtime shuts down.
            Err(error) => return Err(OTelSdkError::InternalFailure(error.to_string())),
        };
        result.inspect_err(|error| self.log_failure(error, spans))
    }

    fn set_resource(&mut self, resource: &Resource) {
        // No export runs before the resource is set.
        if let Some(exporter) = Arc::get_mut(&mut self.exporter) {
            exporter.set_resource(resource);
        }
    }
}

fn grpc_exporter(settings: &TraceSettings) -> Result<opentelemetry_otlp::SpanExporter, String> {
    let mut endpoint = Endpoint::from(settings.endpoint.clone()).timeout(settings.request_timeout);
    if is_tls(&settings.endpoint) {
        let tls = grpc_client::tls(settings.authority.as_deref(), settings.identity.as_ref())?;
        endpoint =
            endpoint.tls_config(tls).map_err(|error| format!("TLS with the collector of traces: {}", chain(&error)))?;
    }
    let channel = endpoint.connect_with_connector_lazy(grpc_client::connector());
    let builder = opentelemetry_otlp::SpanExporter::builder().with_tonic();
    let built = builder.with_channel(channel).with_timeout(settings.request_timeout).build();
    built.map_err(|error| error.to_string())
}

fn http_exporter(settings: &TraceSettings) -> Result<opentelemetry_otlp::SpanExporter, String> {
    let client = HyperClient::new(https_connector(settings)?, settings.request_timeout, None);
    let builder = opentelemetry_otlp::SpanExporter::builder().with_http().with_http_client(client);
    let built = builder
        .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
        .with_endpoint(settings.endpoint.to_string())
        .with_timeout(settings.request_timeout)
        .build();
    built.map_err(|error| error.to_string())
}

fn is_tls(endpoint: &Uri) -> bool {
    endpoint.scheme_str() == Some("https")
}

fn https_connector(settings: &TraceSettings) -> Result<HttpsConnector<HttpConnector>, String> {
    let identity = settings.identity.as_ref().map(|(certificate, key)| (certificate.as_path(), key.as_path()));
    let config = client_config(settings.authority.as_deref(), identity, is_tls(&settings.endpoint))?;
    let builder = HttpsConnectorBuilder::new().with_tls_config(config).https_or_http().enable_http1();
    Ok(builder.wrap_connector(grpc_client::connector()))
}
