//! Traces of OpenTelemetry: a span for each request, and a span for each of its calls to the server. Names of spans and
//! attributes are those of OpenTelemetry's semantic conventions.

mod exporter;
mod propagation;
mod settings;

use crate::cut::cut;
use crate::environment::Environment;
use crate::listener::Endpoints;
use axum::extract::ConnectInfo;
use axum::http::{Extensions, HeaderMap};
use exporter::CollectorExporter;
use opentelemetry::trace::{Span as _, SpanBuilder, SpanKind, TraceContextExt as _, Tracer as _, TracerProvider as _};
use opentelemetry::{Context, InstrumentationScope, KeyValue, Value, trace};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracer, SdkTracerProvider, Span};
use propagation::Propagator;
use settings::TraceSettings;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Code, Status};

/// Version of the semantic conventions that names and attributes follow.
const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.42.0";
/// Maximum time to export the last spans at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

/// Source of spans. A separate thread collects them and starts their export.
pub struct Traces {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagators: Vec<Propagator>,
}

impl Traces {
    /// Starts the export that the environment asks for. Returns `None` if it asks for no export.
    ///
    /// # Errors
    /// If a variable is malformed or not supported, or if a file for TLS cannot be read.
    pub fn start(environment: &Environment) -> Result<Option<Arc<Traces>>, String> {
        let Some(settings) = TraceSettings::read(environment)? else { return Ok(None) };
        for (variable, why) in &settings.ignored {
            tracing::warn!(variable, why, "a setting has no effect");
        }
        let batch = BatchConfigBuilder::default()
            .with_max_queue_size(settings.max_queued_spans)
            .with_max_export_batch_size(settings.max_batch_spans)
            .with_scheduled_delay(settings.export_interval)
            .build();
        let processor =
            BatchSpanProcessor::builder(CollectorExporter::new(&settings)?).with_batch_config(batch).build();
        let attributes = settings.resource_attributes.into_iter().map(|(key, value)| KeyValue::new(key, value));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(processor)
            .with_sampler(settings.sampler)
            .with_resource(Resource::builder().with_attributes(attributes).build())
            .build();
        let scope = InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
            .with_version(env!("CARGO_PKG_VERSION"))
            .with_schema_url(SCHEMA_URL);
        let tracer = provider.tracer_with_scope(scope.build());
        let (host, port) = (settings.endpoint.host().unwrap_or_default(), settings.endpoint.port_u16());
        tracing::info!(host, port, protocol = ?settings.protocol, "traces are exported");
        Ok(Some(Arc::new(Traces { provider, tracer, propagators: settings.propagators })))
    }

    /// Starts the span of a request over gRPC. Returns `None` if the request is not sampled.
    pub fn start_rpc(&self, headers: &HeaderMap, extensions: &Extensions, method: &'static str) -> Option<RequestSpan> {
        let span = self.start_request(method.into(), headers, extensions)?;
        span.set("rpc.system.name", "grpc");
        span.set("rpc.method", method);
        Some(span)
    }

    /// Starts the span of a request over HTTP. Returns `None` if the request is not sampled.
    pub fn start_http(
        &self,
        headers: &HeaderMap,
        extensions: &Extensions,
        method: &str,
        route: &'static str,
    ) -> Option<RequestSpan> {
        // A client chooses the method, but the number of span names must be bounded.
        let known_methods = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];
        let known_method = known_methods.into_iter().find(|known| *known == method);
        let name = format!("{} {route}", known_method.unwrap_or("HTTP"));
        let span = self.start_request(name.into(), headers, extensions)?;
        span.set("http.request.method", known_method.unwrap_or("_OTHER"));
        span.set("http.route", route);
        span.set("url.path", route);
        Some(span)
    }

    fn start_request(
        &self,
        name: Cow<'static, str>,
        headers: &HeaderMap,
        extensions: &Extensions,
    ) -> Option<RequestSpan> {
        let parent = propagation::parent(&self.propagators, headers);
        let builder = SpanBuilder::from_name(name).with_kind(SpanKind::Server);
        let span = self.tracer.build_with_context(builder, &parent);
        if !span.is_recording() {
            return None;
        }
        let span = RequestSpan { tracer: self.tracer.clone(), context: parent.with_span(span) };
        if let Some(ConnectInfo(endpoints)) = extensions.get::<ConnectInfo<Endpoints>>() {
            span.set("network.peer.address", endpoints.peer.ip().to_canonical().to_string());
            span.set("network.peer.port", i64::from(endpoints.peer.port()));
        }
        Some(span)
    }

    /// Exports the queued spans, for at most three seconds. Later spans are dropped.
    pub async fn flush(&self) {
        let provider = self.provider.clone();
        let _ = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(FLUSH_TIMEOUT)).await;
    }
}

/// Span of a request that is sampled. It ends with the response, or if the request is abandoned.
pub struct RequestSpan {
    tracer: SdkTracer,
    context: Context,
}

impl RequestSpan {
    /// Sets an attribute.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        self.context.span().set_attribute(KeyValue::new(name, value));
    }

    /// Sets an attribute to a text that a caller may have sent, cut to a bounded length.
    pub fn set_text(&self, name: &'static str, text: &str) {
        self.set(name, cut(text).to_owned());
    }

    /// Ends the span of a request over gRPC. `failure` is the status of a request that failed.
    pub fn end_rpc(&self, failure: Option<&Status>) {
        let code = failure.map_or(Code::Ok, Status::code);
        self.set("rpc.response.status_code", code_name(code));
        // Other codes are errors of the client.
        if let Some(status) = failure
            && matches!(code, Code::Unknown | Code::Unavailable)
        {
            self.fail(&code_name(code), status.message());
        }
        self.context.span().end();
    }

    /// Ends the span of a request over HTTP.
    pub fn end_http(&self, status: u16) {
        self.set("http.response.status_code", i64::from(status));
        if status >= 500 {
            self.fail(&status.to_string(), "");
        }
        self.context.span().end();
    }

    fn fail(&self, kind: &str, description: &str) {
        self.set("error.type", kind.to_owned());
        self.context.span().set_status(trace::Status::error(description.to_owned()));
    }

    /// Starts the span of a call to the server.
    pub fn start_call(&self, command: &'static str) -> CallSpan {
        let builder = SpanBuilder::from_name(command).with_kind(SpanKind::Client);
        let mut span = self.tracer.build_with_context(builder, &self.context);
        span.set_attribute(KeyValue::new("db.system.name", "redis"));
        span.set_attribute(KeyValue::new("db.operation.name", command));
        CallSpan(span)
    }
}

/// Span of a call to the server. It ends when the value is dropped.
pub struct CallSpan(Span);

impl CallSpan {
    /// Sets the address of the server, or the path of its socket.
    pub fn set_server(&mut self, host: &str, port: u16) {
        self.0.set_attribute(KeyValue::new("server.address", host.to_owned()));
        if !host.starts_with('/') {
            self.0.set_attribute(KeyValue::new("server.port", i64::from(port)));
        }
    }

    /// Marks the call as failed.
    pub fn fail(&mut self, kind: &'static str, why: &str) {
        self.0.set_attribute(KeyValue::new("error.type", kind));
        self.0.set_status(trace::Status::error(why.to_owned()));
    }
}

/// Returns the name of a gRPC status code, such as `INVALID_ARGUMENT`.
fn code_name(code: Code) -> String {
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}
