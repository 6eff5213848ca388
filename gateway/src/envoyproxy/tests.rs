use super::{Translation, ignored_arguments, translate};
use crate::command_line::{Command, Options};
use crate::environment::Environment;
use crate::upstream::Address;
use clap::Parser as _;
use std::ffi::OsString;

fn environment(variables: &[(&str, &str)]) -> Environment {
    Environment::new(variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value))))
}

/// Translates variables, with a server over TCP unless they name one.
fn translate_valid(variables: &[(&str, &str)]) -> Translation {
    let server = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "localhost:6379")];
    translate(&environment(&[&server, variables].concat())).expect("a valid environment")
}

fn words(variables: &[(&str, &str)]) -> Vec<String> {
    translate_valid(variables).words
}

fn error(variables: &[(&str, &str)]) -> String {
    translate(&environment(variables)).err().expect("an error")
}

fn address(variables: &[(&str, &str)]) -> Address {
    let translation = translate(&environment(variables)).expect("a valid environment");
    translation.address.expect("an address")
}

#[test]
fn environment_is_read_only_under_the_name_and_without_a_command_or_an_option() {
    let ignored = |text: &str| {
        let words = text.split(' ').map(OsString::from);
        ignored_arguments(words, |name| name == "--config").map(|ignored| ignored.join(" "))
    };
    assert_eq!([ignored("ratelimit").as_deref(), ignored("/bin/ratelimit").as_deref()], [Some(""); 2]);
    assert_eq!(ignored("ratelimit-gateway").or(ignored("/ratelimit/gateway")), None);
    assert_eq!(
        ignored("ratelimit --quotaRateLimitServiceAddr=a --b c").as_deref(),
        Some("--quotaRateLimitServiceAddr --b")
    );
    for other in ["ratelimit serve", "ratelimit serve --b", "ratelimit --config=a", "ratelimit --b --config a"] {
        assert_eq!(ignored(other), None, "{other}");
    }
}

#[test]
fn defaults_are_those_of_the_service() {
    let words = words(&[]);
    for word in [
        "--http=0.0.0.0:8080",
        "--grpc=0.0.0.0:8081",
        "--debug=0.0.0.0:6070",
        "--config=/srv/runtime_data/current/config",
        "--response-headers=off",
        "--metrics-format=envoyproxy",
        "--on-outage=error",
    ] {
        assert!(words.iter().any(|other| other == word), "{word} is not in {words:?}");
    }
    let socket = address(&[]);
    assert_eq!(socket.hosts, [("/var/run/nutcracker/ratelimit.sock".to_owned(), 0)]);
}

#[test]
fn variable_of_the_gateway_replaces_a_default() {
    let outage_and_grpc =
        [("RATELIMIT_GATEWAY_ON_OUTAGE", "closed"), ("RATELIMIT_GATEWAY_GRPC", "127.0.0.1:1"), ("GRPC_HOST", "")];
    let found = words(&outage_and_grpc);
    assert!(!found.iter().any(|word| word.starts_with("--on-outage") || word.starts_with("--grpc")), "{found:?}");
    let config_and_headers =
        [("RATELIMIT_GATEWAY_CONFIG", "/limits"), ("RATELIMIT_GATEWAY_RESPONSE_HEADERS", "standard")];
    let is_config_or_headers = |word: &&String| word.starts_with("--config") || word.starts_with("--response-headers");
    assert_eq!(words(&config_and_headers).iter().filter(is_config_or_headers).count(), 0);
    let other_variables = [("RUNTIME_ROOT", "/data"), ("LIMIT_RESPONSE_HEADERS_ENABLED", "false")];
    assert_eq!(
        words(&[config_and_headers, other_variables].concat()).iter().filter(is_config_or_headers).collect::<Vec<_>>(),
        ["--config=/data/config", "--response-headers=off"]
    );
    assert!(words(&[outage_and_grpc[1], ("GRPC_PORT", "2")]).contains(&"--grpc=0.0.0.0:2".to_owned()));
    let server = translate(&environment(&[("RATELIMIT_GATEWAY_SERVER", "redis://a")])).expect("a valid environment");
    assert!(server.address.is_none());
}

type Case = (&'static [(&'static str, &'static str)], &'static [&'static str]);

#[test]
fn each_variable_becomes_an_option() {
    let cases: [Case; 20] = [
        (&[("HOST", "127.0.0.1"), ("PORT", "1")], &["--http=127.0.0.1:1"]),
        (&[("GRPC_HOST", "::"), ("DEBUG_PORT", "3")], &["--grpc=[::]:8081", "--debug=0.0.0.0:3"]),
        (&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "127.0.0.1:4")], &["--debug=0.0.0.0:6070,127.0.0.1:4"]),
        (&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", "[::1]:4")], &["--debug=0.0.0.0:6070,[::1]:4"]),
        (&[("USE_PROMETHEUS", "false"), ("PROMETHEUS_PATH", "/m")], &["--debug=0.0.0.0:6070", "--metrics-path=/m"]),
        (
            &[("GRPC_SERVER_USE_TLS", "1"), ("GRPC_SERVER_TLS_CERT", "c"), ("GRPC_SERVER_TLS_KEY", "k")],
            &["--grpc-cert=c", "--grpc-key=k"],
        ),
        (&[("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")], &["--config=/data/ratelimit/config"]),
        (&[("RUNTIME_ROOT", "/d"), ("RUNTIME_APPDIRECTORY", "limits")], &["--config=/d/limits"]),
        (&[("MERGE_DOMAIN_CONFIG", "true")], &["--merge-domains"]),
        (&[("SHADOW_MODE", "TRUE"), ("RESPONSE_DYNAMIC_METADATA", "t")], &["--shadow", "--response-metadata"]),
        (&[("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true")], &["--charge=all-or-none"]),
        (&[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")], &["--response-headers=separate"]),
        (
            &[("LIMIT_LIMIT_HEADER", "L"), ("LIMIT_REMAINING_HEADER", "R"), ("LIMIT_RESET_HEADER", "S")],
            &["--limit-header=L", "--remaining-header=R", "--reset-header=S"],
        ),
        (&[("NEAR_LIMIT_RATIO", "0.5")], &["--near-limit-ratio=0.5"]),
        (&[("REDIS_TIMEOUT", "1.5s")], &["--timeout=1500000us"]),
        (&[("LOG_LEVEL", "WARNING"), ("LOG_FORMAT", "JSON")], &["--log-level=warn", "--log-format=json"]),
        (&[("CONFIG_TYPE", "FILE"), ("BACKEND_TYPE", "redis")], &[]),
        (&[("CONFIG_TYPE", "GRPC_XDS_SOTW")], &["--xds=localhost:18000", "--xds-node-id=default"]),
        (
            &[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_URL", "dns:///envoy-gateway:18001"),
                ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
                ("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c=d"),
                ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "a:b"),
                ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
            ],
            &[
                "--xds=envoy-gateway:18001",
                "--xds-node-id=envoy-ratelimit",
                "--xds-node-metadata=a=b,c=d",
                "--xds-headers=a:b",
                "--force-start",
            ],
        ),
        (
            &[
                ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
                ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "c"),
                ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "k"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "ca"),
                ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "n"),
            ],
            &["--xds-tls", "--xds-ca=ca", "--xds-cert=c", "--xds-key=k", "--xds-server-name=n"],
        ),
    ];
    for (variables, expected) in cases {
        let found = words(variables);
        for word in expected {
            assert!(found.iter().any(|other| other == word), "{word} is not in {found:?}");
        }
        let line = std::iter::once("ratelimit".to_owned()).chain(found.clone());
        let options = Options::try_parse_from(line);
        assert!(options.is_ok_and(|options| matches!(options.command, Command::Serve(_))), "{found:?}");
    }
}

#[test]
fn redis_is_single_behind_sentinels_or_a_cluster() {
    let tcp = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "redis:6379"), ("REDIS_AUTH", "me:pass:word")];
    let single = address(&tcp);
    assert_eq!((single.hosts.clone(), single.primary.clone()), (vec![("redis".to_owned(), 6379)], None));
    assert_eq!(single.credentials.user.as_deref(), Some("me"));
    assert_eq!(single.credentials.password.expect("a password").latest(), "pass:word");
    let url = address(&[tcp[0], ("REDIS_URL", "redis://me:secret@redis:1/2"), ("REDIS_AUTH", "other")]);
    assert_eq!((url.hosts, url.database), (vec![("redis".to_owned(), 1)], 2));
    assert_eq!(url.credentials.password.expect("a password").latest(), "other");
    let cluster = address(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "a:1,b:2")]);
    assert_eq!(cluster.hosts, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    let sentinels =
        [("REDIS_TYPE", "SENTINEL"), ("REDIS_URL", "mymaster,a:1,redis://b:2"), ("REDIS_SENTINEL_AUTH", "s")];
    let sentinel = address(&sentinels);
    assert_eq!(sentinel.primary.as_deref(), Some("mymaster"));
    assert_eq!(sentinel.hosts, [("a".to_owned(), 1), ("b".to_owned(), 2)]);
    assert_eq!(sentinel.sentinel_credentials.password.expect("a password").latest(), "s");
    assert!(sentinel.credentials.password.is_none());
    let files = [("REDIS_TLS_CACERT", "ca"), ("REDIS_TLS_CLIENT_CERT", "c"), ("REDIS_TLS_CLIENT_KEY", "k")];
    let tls = address(&[&tcp[..], &[("REDIS_TLS", "true")], &files].concat());
    assert!(tls.tls && tls.authority.is_some() && tls.identity.is_some());
    assert!(address(&[&tcp[..], &files].concat()).authority.is_none(), "TLS files have no effect without REDIS_TLS");
}

#[test]
fn impossible_settings_are_errors_that_name_the_variable() {
    for (variable, value) in [
        ("BACKEND_TYPE", "memcache"),
        ("CACHE_KEY_PREFIX", "p"),
        ("REDIS_PERSECOND", "true"),
        ("GRPC_UDS", "/run/r.sock"),
        ("GRPC_CLIENT_TLS_SAN", "envoy"),
        ("QUOTA_MODE", "true"),
        ("CONFIG_TYPE", "other"),
        ("REDIS_TYPE", "other"),
        ("REDIS_SOCKET_TYPE", "other"),
        ("REDIS_URL", "localhost:6379"),
        ("REDIS_TLS", "true"),
        ("REDIS_TIMEOUT", "10"),
        ("PORT", "http"),
        ("HOST", "example.com"),
        ("LOG_LEVEL", "loud"),
        ("SHADOW_MODE", "yes"),
        ("GRPC_SERVER_USE_TLS", "true"),
    ] {
        let error = error(&[(variable, value)]);
        assert!(error.starts_with(variable), "{variable}: {error}");
    }
    for address in ["9090", "::1:9090", "[::1:9090", "::1]:9090", "[[::1]]:9090", "[::1]x:9090", "[]:9090"] {
        let error = error(&[("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", address)]);
        assert!(error.starts_with("PROMETHEUS_ADDR"), "{address}: {error}");
    }
    let secret = error(&[("REDIS_TYPE", "cluster"), ("REDIS_URL", "redis://me:hidden@a:x")]);
    assert!(secret.starts_with("REDIS_URL") && !secret.contains("hidden"), "{secret}");
    let tls = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "a"), ("REDIS_TLS", "true")];
    assert!(
        error(&[&tls[..], &[("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "true")]].concat()).starts_with("REDIS_TLS_SKIP")
    );
    assert!(error(&[&tls[..], &[("REDIS_TLS_CLIENT_CERT", "c")]].concat()).starts_with("REDIS_TLS_CLIENT_CERT"));
}

#[test]
fn settings_without_effect_are_reported() {
    let on = [("USE_STATSD", "true"), ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"), ("REDIS_POOL_SIZE", "10")];
    let names = |variables: &[(&str, &str)]| {
        translate_valid(variables).unneeded.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    assert_eq!(names(&on), ["USE_STATSD", "LOCAL_CACHE_SIZE_IN_BYTES", "REDIS_POOL_SIZE"]);
    let off = [("USE_STATSD", "false"), ("LOCAL_CACHE_SIZE_IN_BYTES", "0"), ("QUOTA_MODE", "false")];
    assert!(names(&off).is_empty());
    let force = ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true");
    let healthy = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    assert_eq!(names(&[force, healthy]).len(), 2);
    let xds = [("CONFIG_TYPE", "GRPC_XDS_SOTW"), force, healthy];
    assert!(names(&xds).is_empty());
    assert!(!words(&xds).contains(&"--force-start".to_owned()), "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED prevails");
}

#[test]
fn folder_with_files_that_are_not_read_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path().to_str().expect("text").to_owned();
    let config = folder.path().join("config");
    std::fs::create_dir_all(config.join("..data")).expect("a folder");
    std::fs::write(config.join("a.yaml"), "").expect("a file");
    std::fs::write(config.join(".hidden"), "").expect("a file");
    assert!(words(&[("RUNTIME_ROOT", &root)]).contains(&format!("--config={}", config.display())));
    let server = ("REDIS_URL", "/run/redis.sock");
    std::fs::write(config.join("limits"), "").expect("a file");
    assert!(error(&[server, ("RUNTIME_ROOT", &root)]).contains("/config/limits: "));
    std::fs::remove_file(config.join("limits")).expect("a file");
    std::fs::create_dir(config.join("more")).expect("a folder");
    assert!(error(&[server, ("RUNTIME_ROOT", &root)]).contains("/config/more: "));
}

#[test]
fn variables_of_traces_become_those_of_opentelemetry() {
    let traces = |variables: &[(&str, &str)]| {
        let found: std::collections::HashMap<_, _> = translate_valid(variables).trace_variables.into_iter().collect();
        move |name: &str| found.get(name).cloned().unwrap_or_default()
    };
    let enabled = ("TRACING_ENABLED", "true");
    for off in [&[][..], &[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:1")], &[("TRACING_ENABLED", "false")]] {
        assert_eq!(traces(off)("OTEL_TRACES_EXPORTER"), "none");
    }
    assert_eq!(traces(&[("OTEL_TRACES_EXPORTER", "otlp")])("OTEL_SERVICE_NAME"), "RateLimit");
    let defaults = traces(&[enabled]);
    assert_eq!(defaults("OTEL_TRACES_EXPORTER"), "otlp");
    assert_eq!(defaults("OTEL_SERVICE_NAME"), "RateLimit");
    assert_eq!([defaults("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), defaults("OTEL_TRACES_SAMPLER")], ["", ""]);
    let translated = traces(&[
        enabled,
        ("TRACING_EXPORTER_PROTOCOL", "grpc"),
        ("TRACING_SERVICE_NAME", "limits"),
        ("TRACING_SERVICE_NAMESPACE", "a b"),
        ("TRACING_SERVICE_INSTANCE_ID", "pod-1"),
        ("TRACING_SAMPLING_RATE", "0.5"),
        ("OTEL_RESOURCE_ATTRIBUTES", "team=x"),
    ]);
    assert_eq!(translated("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"), "grpc");
    assert_eq!(translated("OTEL_SERVICE_NAME"), "limits");
    let attributes = "team=x,service.namespace=a%20b,service.instance.id=pod%2D1";
    assert_eq!(translated("OTEL_RESOURCE_ATTRIBUTES"), attributes);
    assert_eq!(
        [translated("OTEL_TRACES_SAMPLER"), translated("OTEL_TRACES_SAMPLER_ARG")],
        ["parentbased_traceidratio", "0.5"]
    );
    for variable in ["TRACING_ENABLED", "TRACING_EXPORTER_PROTOCOL", "TRACING_SAMPLING_RATE"] {
        assert!(error(&[enabled, ("REDIS_URL", "a:1"), (variable, "often")]).starts_with(variable));
    }
}
