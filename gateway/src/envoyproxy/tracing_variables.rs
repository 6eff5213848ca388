//! Settings of traces: variables of OpenTelemetry that mean the same as those of envoyproxy/ratelimit.

use crate::environment::Environment;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Translates the variables `TRACING_*`. Without `TRACING_ENABLED`, traces are exported only if `OTEL_TRACES_EXPORTER`
/// asks for it. As in envoyproxy/ratelimit, an endpoint alone does not enable the export.
///
/// # Errors
/// If a variable is malformed. The error names the variable.
pub fn translate(environment: &Environment) -> Result<Vec<(&'static str, String)>, String> {
    let is_enabled = environment.flag("TRACING_ENABLED")?;
    let is_set = |variable| environment.text(variable).is_some();
    if !is_enabled && (is_set("TRACING_ENABLED") || !is_set("OTEL_TRACES_EXPORTER")) {
        return Ok(vec![("OTEL_TRACES_EXPORTER", "none".to_owned())]);
    }
    let mut variables = vec![];
    if is_enabled {
        variables.push(("OTEL_TRACES_EXPORTER", "otlp".to_owned()));
    }
    match environment.text("TRACING_EXPORTER_PROTOCOL") {
        None => {}
        Some("http") => variables.push(("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf".to_owned())),
        Some("grpc") => variables.push(("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc".to_owned())),
        Some(other) => return Err(format!("TRACING_EXPORTER_PROTOCOL={}: must be http or grpc", other.escape_debug())),
    }
    match environment.text("TRACING_SERVICE_NAME") {
        Some(name) => variables.push(("OTEL_SERVICE_NAME", name.to_owned())),
        None if is_set("OTEL_SERVICE_NAME") => {}
        None => variables.push(("OTEL_SERVICE_NAME", "RateLimit".to_owned())),
    }
    let service_variables =
        [("service.namespace", "TRACING_SERVICE_NAMESPACE"), ("service.instance.id", "TRACING_SERVICE_INSTANCE_ID")];
    let service_attributes = service_variables.into_iter().filter_map(|(key, variable)| {
        let value = environment.text(variable)?;
        Some(format!("{key}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)))
    });
    let attributes = environment.text("OTEL_RESOURCE_ATTRIBUTES").map(str::to_owned);
    let attributes = attributes.into_iter().chain(service_attributes).collect::<Vec<_>>().join(",");
    variables.push(("OTEL_RESOURCE_ATTRIBUTES", attributes));
    if let Some(text) = environment.text("TRACING_SAMPLING_RATE") {
        let rate: f64 = text.parse().map_err(|_| "TRACING_SAMPLING_RATE: must be a number from 0 to 1".to_owned())?;
        variables.push(("OTEL_TRACES_SAMPLER", "parentbased_traceidratio".to_owned()));
        variables.push(("OTEL_TRACES_SAMPLER_ARG", rate.clamp(0.0, 1.0).to_string()));
    }
    if !is_set("OTEL_PROPAGATORS") {
        variables.push(("OTEL_PROPAGATORS", "tracecontext,b3,baggage".to_owned()));
    }
    Ok(variables)
}
