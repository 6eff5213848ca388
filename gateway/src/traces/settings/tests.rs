use super::{Protocol, TraceSettings};
use crate::environment::Environment;
use crate::traces::propagation::Propagator;
use std::ffi::OsString;
use std::time::Duration;

type Variables<'a> = &'a [(&'a str, &'a str)];

fn read(variables: Variables) -> Result<Option<TraceSettings>, String> {
    let variable = |(name, value): &(&str, &str)| (OsString::from(name), OsString::from(value));
    TraceSettings::read(&Environment::new(variables.iter().map(variable)))
}

/// Returns the settings of these variables, with the exporter enabled.
fn settings(variables: Variables) -> TraceSettings {
    read(&[&[("OTEL_TRACES_EXPORTER", "otlp")], variables].concat()).unwrap().unwrap()
}

const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1");

#[test]
fn traces_are_off_unless_an_exporter_or_an_endpoint_is_set() {
    let is_on = |variables: Variables| read(variables).unwrap().is_some();
    assert!(!is_on(&[]) && !is_on(&[("OTEL_SERVICE_NAME", "a"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]));
    assert!(is_on(&[ENDPOINT]) && is_on(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a:1")]));
    assert!(is_on(&[("OTEL_TRACES_EXPORTER", "otlp")]));
    assert!(!is_on(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]));
    assert!(!is_on(&[ENDPOINT, ("OTEL_SDK_DISABLED", "TRUE")]) && is_on(&[ENDPOINT, ("OTEL_SDK_DISABLED", "1")]));
}

#[test]
fn endpoint_is_that_of_traces_or_of_all_signals() {
    let endpoint = |variables: Variables| settings(variables).endpoint.to_string();
    let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://b:2/x");
    assert_eq!(endpoint(&[]), "http://localhost:4318/v1/traces");
    assert_eq!(endpoint(&[ENDPOINT]), "http://a:1/v1/traces");
    assert_eq!(endpoint(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1/b/")]), "http://a:1/b/v1/traces");
    assert_eq!(endpoint(&[ENDPOINT, traces]), "https://b:2/x");
    assert_eq!(endpoint(&[grpc]), "http://localhost:4317/");
    assert_eq!(endpoint(&[grpc, ENDPOINT]), "http://a:1/");
    let bare = ("OTEL_EXPORTER_OTLP_ENDPOINT", "a:1");
    assert_eq!(endpoint(&[grpc, bare]), "https://a:1/");
    assert_eq!(endpoint(&[grpc, bare, ("OTEL_EXPORTER_OTLP_INSECURE", "true")]), "http://a:1/");
}

#[test]
fn setting_of_traces_comes_before_that_of_all_signals() {
    let variables = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "1"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2"),
        ("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "/ca"),
    ];
    let settings = settings(&variables);
    assert_eq!((settings.protocol, settings.request_timeout), (Protocol::Grpc, Duration::from_millis(2)));
    assert_eq!(settings.authority.as_deref(), Some("/ca".as_ref()));
}

#[test]
fn batch_is_at_most_the_queue() {
    let small = settings(&[("OTEL_BSP_MAX_QUEUE_SIZE", "10"), ("OTEL_BSP_SCHEDULE_DELAY", "20")]);
    assert_eq!((small.max_queued_spans, small.max_batch_spans), (10, 10));
    assert_eq!(small.export_interval, Duration::from_millis(20));
    let default = settings(&[]);
    assert_eq!((default.max_queued_spans, default.max_batch_spans), (2048, 512));
    assert_eq!(default.export_timeout, Duration::from_secs(30));
}

#[test]
fn resource_has_a_name_and_decoded_attributes() {
    let attribute = |variables: Variables, name: &str| {
        let mut attributes = settings(variables).resource_attributes.into_iter().rev();
        attributes.find(|(key, _)| key == name).map(|(_, value)| value)
    };
    assert_eq!(attribute(&[], "service.name").as_deref(), Some("ratelimit-gateway"));
    let attributes = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a, team = b%20c ,");
    assert_eq!(attribute(&[attributes], "service.name").as_deref(), Some("a"));
    assert_eq!(attribute(&[attributes], "team").as_deref(), Some("b c"));
    assert_eq!(attribute(&[attributes, ("OTEL_SERVICE_NAME", "d")], "service.name").as_deref(), Some("d"));
    let [id, other_id] = [(); 2].map(|()| attribute(&[], "service.instance.id").unwrap());
    assert_ne!(id, other_id);
    assert_eq!((id.len(), &id[14..15], id.matches('-').count()), (36, "4", 4));
}

#[test]
fn sampler_and_propagators_have_the_names_of_the_specification() {
    let sampler = |name, ratio| {
        let variables = [("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", ratio)];
        format!("{:?}", settings(&variables).sampler)
    };
    assert_eq!(format!("{:?}", settings(&[]).sampler), "ParentBased(AlwaysOn)");
    assert_eq!(sampler("always_off", ""), "AlwaysOff");
    assert_eq!(sampler("traceidratio", "0.25"), "TraceIdRatioBased(0.25)");
    assert_eq!(sampler("parentbased_traceidratio", ""), "ParentBased(TraceIdRatioBased(1.0))");
    let propagators = |names| settings(&[("OTEL_PROPAGATORS", names)]).propagators;
    assert_eq!(propagators(""), [Propagator::TraceContext]);
    assert_eq!(propagators("b3, tracecontext,baggage"), [Propagator::B3, Propagator::TraceContext]);
    assert_eq!(propagators("none"), []);
}

#[test]
fn error_names_the_variable() {
    let cases = [
        ("OTEL_TRACES_EXPORTER", "console"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "x"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://user:secret@a"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "secret:4317"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/key"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_PROPAGATORS", "xray"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "-1"),
        ("OTEL_BSP_SCHEDULE_DELAY", "0"),
        ("OTEL_BSP_EXPORT_TIMEOUT", ""),
    ];
    for (variable, value) in cases {
        match read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1"), (variable, value)]) {
            Err(error) => assert!(error.contains(variable) && !error.contains("secret"), "{error}"),
            // An empty variable counts as unset.
            Ok(_) => assert_eq!(value, "", "{variable}"),
        }
    }
    let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2"), ENDPOINT];
    assert!(read(&ratio).unwrap_err().starts_with("OTEL_TRACES_SAMPLER_ARG: "));
}

#[test]
fn compression_has_no_effect() {
    assert_eq!(settings(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")]).ignored.len(), 1);
    assert_eq!(settings(&[("OTEL_EXPORTER_OTLP_COMPRESSION", "none")]).ignored.len(), 0);
}
