//! Settings of traces: the standard variables of OpenTelemetry.

use super::propagation::Propagator;
use crate::environment::Environment;
use axum::http::Uri;
use opentelemetry_sdk::trace::Sampler;
use percent_encoding::percent_decode_str;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Name of the service, unless the environment has one.
const SERVICE_NAME: &str = "ratelimit-gateway";
/// Maximum number of spans in the queue that the environment may set.
const MAX_QUEUE: u32 = 100_000;
/// Maximum time in milliseconds that the environment may set.
const MAX_MILLIS: u32 = 3_600_000;

/// Protocol of the collector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    Grpc,
    /// OTLP over HTTP, in protobuf.
    HttpProtobuf,
}

/// Settings of the export.
#[derive(Debug)]
pub struct TraceSettings {
    pub protocol: Protocol,
    /// Address of the collector. Over HTTP, it has the path of the traces.
    pub endpoint: Uri,
    /// Timeout of a request to the collector.
    pub request_timeout: Duration,
    /// File with the authorities that verify the collector's certificate, instead of those of the system.
    pub authority: Option<PathBuf>,
    /// Files with the client certificate and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub sampler: Sampler,
    /// Attributes of the service. A later attribute replaces an earlier attribute with the same key.
    pub resource_attributes: Vec<(String, String)>,
    /// Formats of the parent in the headers of a request.
    pub propagators: Vec<Propagator>,
    /// Maximum number of spans that wait for their export. Further spans are dropped.
    pub max_queued_spans: usize,
    /// Maximum number of spans in a request to the collector.
    pub max_batch_spans: usize,
    /// Time between two exports.
    pub export_interval: Duration,
    /// Timeout of an export, with its retries.
    pub export_timeout: Duration,
    /// Variables without an effect, with the reason.
    pub ignored: Vec<(&'static str, &'static str)>,
}

impl TraceSettings {
    /// Reads the variables. Returns `None` unless an exporter or an endpoint is set, and if `OTEL_SDK_DISABLED` is
    /// true.
    ///
    /// # Errors
    /// If a variable is malformed, or asks for an unsupported feature. The error names the variable, and does not
    /// contain an endpoint, which may have a password.
    pub fn read(environment: &Environment) -> Result<Option<TraceSettings>, String> {
        let reader = Reader(environment);
        if !reader.is_enabled()? {
            return Ok(None);
        }
        let protocol = reader.protocol()?;
        let max_queued_spans = reader.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, MAX_QUEUE)? as usize;
        let max_batch_spans = reader.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, MAX_QUEUE)? as usize;
        Ok(Some(TraceSettings {
            protocol,
            endpoint: reader.endpoint(protocol)?,
            request_timeout: reader.otlp_millis("TIMEOUT", 10_000)?,
            authority: reader.otlp_file("CERTIFICATE"),
            identity: reader.identity()?,
            sampler: reader.sampler()?,
            resource_attributes: reader.resource_attributes()?,
            propagators: reader.propagators()?,
            max_queued_spans,
            max_batch_spans: max_batch_spans.min(max_queued_spans),
            export_interval: reader.millis("OTEL_BSP_SCHEDULE_DELAY", 5000)?,
            export_timeout: reader.millis("OTEL_BSP_EXPORT_TIMEOUT", 30_000)?,
            ignored: reader.ignored(),
        }))
    }
}

/// Reader of the variables.
struct Reader<'a>(&'a Environment);

impl Reader<'_> {
    fn is_enabled(&self) -> Result<bool, String> {
        if self.0.text("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
            return Ok(false);
        }
        match self.0.text("OTEL_TRACES_EXPORTER") {
            Some("none") => Ok(false),
            Some("otlp") => Ok(true),
            Some(other) => Err(unsupported("OTEL_TRACES_EXPORTER", other, "otlp or none")),
            None => Ok(self.otlp("ENDPOINT").is_some()),
        }
    }

    /// Returns the name and the value of the OTLP variable with this suffix. The variable for traces takes precedence
    /// over the variable for all signals.
    fn otlp(&self, suffix: &str) -> Option<(String, &str)> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES", "OTEL_EXPORTER_OTLP"].map(|prefix| format!("{prefix}_{suffix}"));
        names.into_iter().find_map(|name| self.0.text(&name).map(|value| (name, value)))
    }

    fn otlp_file(&self, suffix: &str) -> Option<PathBuf> {
        self.otlp(suffix).map(|(_, path)| PathBuf::from(path))
    }

    fn protocol(&self) -> Result<Protocol, String> {
        match self.otlp("PROTOCOL") {
            None | Some((_, "http/protobuf")) => Ok(Protocol::HttpProtobuf),
            Some((_, "grpc")) => Ok(Protocol::Grpc),
            Some((name, other)) => Err(unsupported(&name, other, "grpc or http/protobuf")),
        }
    }

    fn endpoint(&self, protocol: Protocol) -> Result<Uri, String> {
        let (name, text) = match (self.otlp("ENDPOINT"), protocol) {
            (Some(name_and_value), _) => name_and_value,
            (None, Protocol::Grpc) => ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://localhost:4317"),
            (None, Protocol::HttpProtobuf) => ("OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(), "http://localhost:4318"),
        };
        let mut text = text.to_owned();
        if protocol == Protocol::Grpc && !text.contains("://") {
            let is_insecure = self.otlp("INSECURE").is_some_and(|(_, flag)| flag.eq_ignore_ascii_case("true"));
            text = format!("{}://{text}", if is_insecure { "http" } else { "https" });
        }
        if protocol == Protocol::HttpProtobuf && name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
            text = format!("{}/v1/traces", text.trim_end_matches('/'));
        }
        let is_supported = |uri: &Uri| {
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
        };
        let uri = Uri::from_str(&text).ok().filter(is_supported);
        uri.ok_or_else(|| format!("{name}: must be a URL such as http://localhost:4317"))
    }

    fn identity(&self) -> Result<Option<(PathBuf, PathBuf)>, String> {
        match (self.otlp_file("CLIENT_CERTIFICATE"), self.otlp_file("CLIENT_KEY")) {
            (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
            (None, None) => Ok(None),
            _ => {
                Err("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY need each other"
                    .to_owned())
            }
        }
    }

    fn sampler(&self) -> Result<Sampler, String> {
        let name = self.0.text("OTEL_TRACES_SAMPLER").unwrap_or("parentbased_always_on");
        let root = match name.strip_prefix("parentbased_").unwrap_or(name) {
            "always_on" => Sampler::AlwaysOn,
            "always_off" => Sampler::AlwaysOff,
            "traceidratio" => {
                let ratio = self.0.text("OTEL_TRACES_SAMPLER_ARG").map_or(Some(1.0), |text| text.parse::<f64>().ok());
                let ratio = ratio.filter(|ratio| (0.0..=1.0).contains(ratio));
                Sampler::TraceIdRatioBased(ratio.ok_or("OTEL_TRACES_SAMPLER_ARG: must be a number from 0 to 1")?)
            }
            _ => {
                let supported = "always_on, always_off or traceidratio, each perhaps with parentbased_ before it";
                return Err(unsupported("OTEL_TRACES_SAMPLER", name, supported));
            }
        };
        Ok(if name.starts_with("parentbased_") { Sampler::ParentBased(Box::new(root)) } else { root })
    }

    fn resource_attributes(&self) -> Result<Vec<(String, String)>, String> {
        let variable = "OTEL_RESOURCE_ATTRIBUTES";
        let mut attributes = vec![
            ("service.name".to_owned(), SERVICE_NAME.to_owned()),
            ("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id".to_owned(), random_uuid()),
        ];
        for entry in self.0.text(variable).unwrap_or_default().split(',').filter(|entry| !entry.trim().is_empty()) {
            let malformed = || format!("{variable}: must be such as key=value, several with commas");
            let (key, value) = entry.split_once('=').ok_or_else(malformed)?;
            let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| malformed())?;
            attributes.push((key.trim().to_owned(), value.into_owned()));
        }
        if let Some(name) = self.0.text("OTEL_SERVICE_NAME") {
            attributes.push(("service.name".to_owned(), name.to_owned()));
        }
        Ok(attributes)
    }

    fn propagators(&self) -> Result<Vec<Propagator>, String> {
        let mut propagators = vec![];
        let names = self.0.text("OTEL_PROPAGATORS").unwrap_or("tracecontext,baggage");
        for name in names.split(',').map(str::trim) {
            match name {
                "tracecontext" => propagators.push(Propagator::TraceContext),
                "b3" | "b3multi" => propagators.push(Propagator::B3),
                // The gateway has no use for baggage.
                "baggage" => {}
                "none" => return Ok(vec![]),
                _ => return Err(unsupported("OTEL_PROPAGATORS", name, "tracecontext, baggage, b3, b3multi or none")),
            }
        }
        Ok(propagators)
    }

    fn ignored(&self) -> Vec<(&'static str, &'static str)> {
        let has_compression = self.otlp("COMPRESSION").is_some_and(|(_, name)| name != "none");
        has_compression
            .then_some(("OTEL_EXPORTER_OTLP_COMPRESSION", "traces are sent uncompressed"))
            .into_iter()
            .collect()
    }

    fn otlp_millis(&self, suffix: &str, default: u32) -> Result<Duration, String> {
        let name = self.otlp(suffix).map_or_else(|| format!("OTEL_EXPORTER_OTLP_{suffix}"), |(name, _)| name);
        self.millis(&name, default)
    }

    fn millis(&self, name: &str, default: u32) -> Result<Duration, String> {
        self.number(name, default, MAX_MILLIS).map(|millis| Duration::from_millis(millis.into()))
    }

    fn number(&self, name: &str, default: u32, max: u32) -> Result<u32, String> {
        let number = self.0.text(name).map_or(Some(default), |text| text.parse().ok());
        number
            .filter(|number| (1..=max).contains(number))
            .ok_or_else(|| format!("{name}: must be a number from 1 to {max}"))
    }
}

fn unsupported(variable: &str, value: &str, supported: &str) -> String {
    format!("{variable}={}: must be {supported}", value.escape_debug())
}

/// Returns a random UUID (version 4).
fn random_uuid() -> String {
    let mut bytes = [0_u8; 16];
    // Without randomness, all instances have the same id, which only traces show.
    let _ = getrandom::fill(&mut bytes);
    let [.., version, _, variant, _, _, _, _, _, _, _] = &mut bytes;
    (*version, *variant) = ((*version & 0x0f) | 0x40, (*variant & 0x3f) | 0x80);
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
        // Writing to a string never fails.
        let _ = write!(text, "{dash}{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests;
