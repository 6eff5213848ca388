//! Command line, and environment variables with the same settings.

use crate::charge::ChargingMode;
use crate::client_address::Ipv6Prefix;
use crate::denied_keys::MAX_DURATION;
use crate::environment::Environment;
use crate::envoyproxy::{self, Translation};
use crate::headers::{HeaderFormat, ResponseHeaders};
use crate::metrics::{MetricsFormat, NearLimitRatio};
use crate::outage_mode::OutageMode;
use crate::rls::RequestSettings;
use crate::upstream::Address;
use crate::xds::XdsOptions;
use axum::http::HeaderName;
use clap::{Args, CommandFactory as _, Parser, Subcommand};
use ratelimit_link::certificate::TlsFiles;
use ratelimit_link::command_line::{self, LogFormat, ServerOptions};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tracing::level_filters::LevelFilter;

/// Rate limit service for proxies: Envoy's protocol over gRPC, and forward auth over HTTP.
#[derive(Parser)]
#[command(version, about)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

impl Options {
    /// Parses the command line and the environment. Ends the process if they are malformed.
    #[must_use]
    pub fn parse_or_exit() -> Options {
        if let Some(ignored) = envoyproxy::ignored_arguments(std::env::args_os(), is_option) {
            return Options::from_environment_or_exit(ignored);
        }
        exit_if_moved_to_console(moved_word(std::env::args_os().skip(1)));
        let options: Options = command_line::parse();
        if let Command::Serve(_) = options.command {
            exit_if_moved_to_console(moved_variable(std::env::vars_os()));
        }
        options
    }
}

impl Options {
    /// Parses the environment of envoyproxy/ratelimit. Ends the process if it is malformed.
    fn from_environment_or_exit(ignored_arguments: Vec<String>) -> Options {
        let environment = Environment::new(std::env::vars_os());
        let Translation { words, address, unneeded, trace_variables } = envoyproxy::translate(&environment)
            .unwrap_or_else(|error| {
                eprintln!("error: {error}");
                std::process::exit(2);
            });
        let program = std::env::args_os().take(1);
        let mut options: Options = command_line::parse_from(program.chain(words.into_iter().map(OsString::from)));
        if let Command::Serve(serve) = &mut options.command {
            serve.translated_address = address;
            serve.unneeded_variables = unneeded;
            serve.trace_variables = trace_variables;
            serve.ignored_arguments = ignored_arguments;
        }
        options
    }
}

/// Returns `true` if the gateway has an option of this name.
fn is_option(name: &str) -> bool {
    let serve = Options::command().find_subcommand("serve").cloned().unwrap_or_default();
    let is_named = |long: Option<&str>| long.is_some_and(|long| name.strip_prefix("--") == Some(long));
    ["-h", "--help", "-V", "--version"].contains(&name)
        || serve.get_arguments().any(|option| is_named(option.get_long()))
}

/// Ends the process with an error if a setting has moved to `ratelimit-console`.
fn exit_if_moved_to_console(setting: Option<String>) {
    if let Some(setting) = setting {
        eprintln!("error: {setting} has moved to ratelimit-console: see ratelimit-console --help");
        std::process::exit(2);
    }
}

/// Returns the first command or option that has moved to `ratelimit-console`, where an option may have another name.
fn moved_word(words: impl Iterator<Item = OsString>) -> Option<String> {
    let mut words = words.map(|word| word.to_string_lossy().into_owned()).enumerate();
    let has_moved = |(index, word): &(usize, String)| match word.as_str() {
        "replay" | "playground" => *index == 0,
        option => option == "--console" || ["--console-", "--console="].iter().any(|start| option.starts_with(start)),
    };
    let (_, word) = words.find(has_moved)?;
    Some(word.split_once('=').map_or(word.as_str(), |(option, _)| option).to_owned())
}

/// Returns the first variable that has moved to `ratelimit-console`, where it has another name. An empty variable
/// counts as unset.
fn moved_variable(variables: impl Iterator<Item = (OsString, OsString)>) -> Option<String> {
    let mut names =
        variables.filter(|(_, value)| !value.is_empty()).map(|(name, _)| name.to_string_lossy().into_owned());
    names.find(|name| name == "RATELIMIT_GATEWAY_CONSOLE" || name.starts_with("RATELIMIT_GATEWAY_CONSOLE_"))
}

/// Commands of the gateway.
#[derive(Subcommand)]
pub enum Command {
    /// Serve proxies.
    Serve(Box<Serve>),
    /// Check files as one configuration. The exit code is 0 if it is valid, or 1 after a line that says where it is
    /// malformed.
    Check {
        /// Files, or directories of files.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Merge the files of a domain.
        #[arg(long, env = "RATELIMIT_GATEWAY_MERGE_DOMAINS")]
        merge_domains: bool,
    },
    /// Print the commands that create the limits of a file as policies, and on stderr the rules that a policy cannot
    /// express.
    Import {
        /// A file, or a directory of files.
        file: PathBuf,
        /// Merge the files of a domain.
        #[arg(long, env = "RATELIMIT_GATEWAY_MERGE_DOMAINS")]
        merge_domains: bool,
    },
}

/// Options of the command `serve`.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Serve {
    /// Server: redis://host:port, several separated by commas, rediss:// for TLS, redis-sentinel://hosts/name, or
    /// unix:///path. A cluster is recognized automatically. Passwords belong in the environment.
    #[arg(long, env = "RATELIMIT_GATEWAY_SERVER", hide_env_values = true, default_value = "redis://127.0.0.1:6379")]
    pub server: String,
    /// User of the server. The password is in the variable RATELIMIT_GATEWAY_SERVER_PASSWORD, or in the file that
    /// RATELIMIT_GATEWAY_SERVER_PASSWORD_FILE names.
    #[arg(long, env = "RATELIMIT_GATEWAY_SERVER_USER")]
    pub server_user: Option<String>,
    /// File with the authorities that verify the server's certificate, instead of those of the system.
    #[arg(long, env = "RATELIMIT_GATEWAY_SERVER_CA")]
    pub server_ca: Option<PathBuf>,
    /// Client certificate for the server, with --server-key.
    #[arg(long, env = "RATELIMIT_GATEWAY_SERVER_CERT", requires = "server_key")]
    pub server_cert: Option<PathBuf>,
    /// Key of the client certificate.
    #[arg(long, env = "RATELIMIT_GATEWAY_SERVER_KEY", requires = "server_cert")]
    pub server_key: Option<PathBuf>,
    /// Address of the gRPC listener, for Envoy.
    #[arg(long, env = "RATELIMIT_GATEWAY_GRPC", default_value = "127.0.0.1:8081")]
    pub grpc: SocketAddr,
    /// Address of the HTTP listener, for other proxies and for metrics.
    #[arg(long, env = "RATELIMIT_GATEWAY_HTTP", default_value = "127.0.0.1:8080")]
    pub http: SocketAddr,
    /// Certificate of the gRPC listener, with --grpc-key.
    #[arg(long, env = "RATELIMIT_GATEWAY_GRPC_CERT", requires = "grpc_key")]
    pub grpc_cert: Option<PathBuf>,
    /// Key of the certificate of the gRPC listener.
    #[arg(long, env = "RATELIMIT_GATEWAY_GRPC_KEY", requires = "grpc_cert")]
    pub grpc_key: Option<PathBuf>,
    /// Authority that must have signed the certificate of a client of the gRPC listener.
    #[arg(long, env = "RATELIMIT_GATEWAY_GRPC_CLIENT_CA", requires = "grpc_cert")]
    pub grpc_client_ca: Option<PathBuf>,
    /// Certificate of the HTTP listener, with --http-key.
    #[arg(long, env = "RATELIMIT_GATEWAY_HTTP_CERT", requires = "http_key")]
    pub http_cert: Option<PathBuf>,
    /// Key of the certificate of the HTTP listener.
    #[arg(long, env = "RATELIMIT_GATEWAY_HTTP_KEY", requires = "http_cert")]
    pub http_key: Option<PathBuf>,
    /// Authority that must have signed the certificate of a client of the HTTP listener.
    #[arg(long, env = "RATELIMIT_GATEWAY_HTTP_CLIENT_CA", requires = "http_cert")]
    pub http_client_ca: Option<PathBuf>,
    /// Addresses of listeners for operators, separated by commas. They serve health, metrics and, at /rlconfig, the
    /// limits of the configuration.
    #[arg(long, env = "RATELIMIT_GATEWAY_DEBUG", value_delimiter = ',')]
    pub debug: Vec<SocketAddr>,
    /// Certificate of the listeners for operators, with --debug-key.
    #[arg(long, env = "RATELIMIT_GATEWAY_DEBUG_CERT", requires = "debug_key")]
    pub debug_cert: Option<PathBuf>,
    /// Key of the certificate of the listeners for operators.
    #[arg(long, env = "RATELIMIT_GATEWAY_DEBUG_KEY", requires = "debug_cert")]
    pub debug_key: Option<PathBuf>,
    /// Authority that must have signed the certificate of a client of the listeners for operators.
    #[arg(long, env = "RATELIMIT_GATEWAY_DEBUG_CLIENT_CA", requires = "debug_cert")]
    pub debug_client_ca: Option<PathBuf>,
    /// Path of the metrics.
    #[arg(long, env = "RATELIMIT_GATEWAY_METRICS_PATH", value_parser = metrics_path, default_value = "/metrics")]
    pub metrics_path: String,
    /// File of limits, or directory of such files. It is reloaded when it changes.
    #[arg(long, env = "RATELIMIT_GATEWAY_CONFIG")]
    pub config: Option<PathBuf>,
    /// Merge the files of a domain; without it, two files of one domain are an error.
    #[arg(long, env = "RATELIMIT_GATEWAY_MERGE_DOMAINS")]
    pub merge_domains: bool,
    #[command(flatten)]
    pub xds: XdsOptions,
    /// Length of the IPv6 networks that count as one client, 48 to 128: for the entries remote_address and
    /// masked_remote_address of Envoy, and for /check unless a file has an ipv6_prefix.
    #[arg(long, env = "RATELIMIT_GATEWAY_IPV6_PREFIX", default_value = "64")]
    pub ipv6_prefix: Ipv6Prefix,
    /// Answer while the server is away: open, closed, error (the proxy decides), or local=0.25 (the gateway itself
    /// grants that share of each limit).
    #[arg(long, env = "RATELIMIT_GATEWAY_ON_OUTAGE", default_value = "open")]
    pub on_outage: OutageMode,
    /// Timeout of calls to the server. At most three quarters of the proxy's own timeout apply.
    #[arg(long, env = "RATELIMIT_GATEWAY_TIMEOUT", value_parser = duration, default_value = "100ms")]
    pub timeout: Duration,
    /// Charging mode of rules without one (`charge:`). By default, it is always for rules with a unit, and all-or-none
    /// for other rules and for policies.
    #[arg(long, env = "RATELIMIT_GATEWAY_CHARGE", value_enum)]
    pub charge: Option<ChargingMode>,
    /// Add dynamic metadata to responses to Envoy: the request, and the `metadata` of rules.
    #[arg(long, env = "RATELIMIT_GATEWAY_RESPONSE_METADATA")]
    pub response_metadata: bool,
    /// Headers of responses.
    #[arg(long, env = "RATELIMIT_GATEWAY_RESPONSE_HEADERS", value_enum, default_value = "standard")]
    pub response_headers: HeaderFormat,
    /// Name of the header with the limit, if the headers are separate.
    #[arg(long, env = "RATELIMIT_GATEWAY_LIMIT_HEADER", value_parser = header_name, default_value = "RateLimit-Limit")]
    pub limit_header: String,
    /// Name of the header with the remaining units, if the headers are separate.
    #[arg(long, env = "RATELIMIT_GATEWAY_REMAINING_HEADER", value_parser = header_name, default_value = "RateLimit-Remaining")]
    pub remaining_header: String,
    /// Name of the header with the seconds until the reset, if the headers are separate.
    #[arg(long, env = "RATELIMIT_GATEWAY_RESET_HEADER", value_parser = header_name, default_value = "RateLimit-Reset")]
    pub reset_header: String,
    /// Deny no request. The codes of descriptors and the metrics show those that would have been denied.
    #[arg(long, env = "RATELIMIT_GATEWAY_SHADOW")]
    pub shadow: bool,
    /// Longest time for which the gateway remembers that a key is denied, and answers its requests itself: up to 1s, or 0
    /// to send them all.
    #[arg(long, env = "RATELIMIT_GATEWAY_REMEMBER_DENIALS", value_parser = remembered_duration, default_value = "1s")]
    pub remember_denials: Duration,
    /// Lifetime of idempotency keys (rl.id), longer than a request may take.
    #[arg(long, env = "RATELIMIT_GATEWAY_ONCE", value_parser = duration_text, default_value = "5m")]
    pub once: String,
    /// Maximum number of requests in flight. Further ones are answered as in an outage.
    #[arg(long, env = "RATELIMIT_GATEWAY_IN_FLIGHT", default_value_t = 10_000)]
    pub in_flight: u32,
    /// Time for which requests are still answered after SIGTERM, while the gateway is not ready and asks clients to use
    /// another one. A second SIGTERM ends it at once.
    #[arg(long, env = "RATELIMIT_GATEWAY_DRAIN", value_parser = duration_or_zero, default_value = "5s")]
    pub drain: Duration,
    /// Names of the metrics of limits.
    #[arg(long, env = "RATELIMIT_GATEWAY_METRICS_FORMAT", value_enum, default_value = "gateway")]
    pub metrics_format: MetricsFormat,
    /// Share of a limit that makes a decision count as near the limit in the metrics, once it is used.
    #[arg(long, env = "RATELIMIT_GATEWAY_NEAR_LIMIT_RATIO", default_value = "0.8")]
    pub near_limit_ratio: NearLimitRatio,
    /// Time for which /metrics is cached.
    #[arg(long, hide = true, value_parser = duration_or_zero, default_value = "1s")]
    pub metrics_cache: Duration,
    /// Format of the log lines.
    #[arg(long, env = "RATELIMIT_GATEWAY_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Maximum number of log lines a second about denied requests, or 0 for none.
    #[arg(
        long,
        env = "RATELIMIT_GATEWAY_LOG_DENIALS",
        value_parser = clap::value_parser!(u32).range(..=10_000),
        default_value_t = 1
    )]
    pub log_denials: u32,
    /// Lowest level of the log lines: error, warn, info. RUST_LOG selects them in more detail.
    #[arg(long, env = "RATELIMIT_GATEWAY_LOG_LEVEL", default_value = "info")]
    pub log_level: LevelFilter,
    /// Address of the server from variables of envoyproxy/ratelimit, instead of `--server`.
    #[arg(skip)]
    pub translated_address: Option<Address>,
    /// Variables of envoyproxy/ratelimit without an effect, with the reason.
    #[arg(skip)]
    pub unneeded_variables: Vec<(&'static str, &'static str)>,
    /// Variables of OpenTelemetry, translated from envoyproxy/ratelimit. They take precedence over the environment.
    #[arg(skip)]
    pub trace_variables: Vec<(&'static str, String)>,
    /// Names of arguments without an effect.
    #[arg(skip)]
    pub ignored_arguments: Vec<String>,
}

impl Serve {
    /// Returns the settings with which requests are resolved to calls.
    #[must_use]
    pub fn request_settings(&self) -> RequestSettings {
        RequestSettings { id_lifetime: self.once.as_str().into(), ipv6_prefix: self.ipv6_prefix, charge: self.charge }
    }

    /// Returns the format and the names of response headers.
    #[must_use]
    pub fn response_headers(&self) -> ResponseHeaders {
        let names = [&self.limit_header, &self.remaining_header, &self.reset_header].map(String::clone);
        ResponseHeaders { format: self.response_headers, names }
    }

    /// Returns the TLS files of the gRPC listener, or `None` without TLS.
    #[must_use]
    pub fn grpc_tls(&self) -> Option<TlsFiles> {
        tls_files([&self.grpc_cert, &self.grpc_key, &self.grpc_client_ca])
    }

    /// Returns the TLS files of the HTTP listener, or `None` without TLS.
    #[must_use]
    pub fn http_tls(&self) -> Option<TlsFiles> {
        tls_files([&self.http_cert, &self.http_key, &self.http_client_ca])
    }

    /// Returns the TLS files of the listeners for operators, or `None` without TLS.
    #[must_use]
    pub fn debug_tls(&self) -> Option<TlsFiles> {
        tls_files([&self.debug_cert, &self.debug_key, &self.debug_client_ca])
    }

    /// Returns the address of the server, with the credentials for it.
    ///
    /// # Errors
    /// Returns the errors of [`ServerOptions::address`].
    pub fn address(&self) -> Result<Address, String> {
        if let Some(address) = &self.translated_address {
            return Ok(address.clone());
        }
        let options = ServerOptions {
            prefix: "RATELIMIT_GATEWAY",
            server: &self.server,
            user: self.server_user.as_ref(),
            authority: self.server_ca.as_ref(),
            identity: self.server_cert.as_ref().zip(self.server_key.as_ref()),
        };
        options.address()
    }
}

fn tls_files([certificate, key, client_authority]: [&Option<PathBuf>; 3]) -> Option<TlsFiles> {
    let (certificate, key) = certificate.clone().zip(key.clone())?;
    Some(TlsFiles { certificate, key, client_authority: client_authority.clone() })
}

/// Parses the path of the metrics, which must differ from all other routes.
fn metrics_path(text: &str) -> Result<String, String> {
    let is_path = text.len() > 1 && text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic());
    let other_routes = ["/check", "/json", "/healthz", "/readyz", "/healthcheck", "/rlconfig"];
    // Braces and `*` would be parameters of the route.
    if !is_path || text.contains(['{', '}', '*', '?', '#']) || other_routes.contains(&text) {
        return Err("must be a path of its own, such as /metrics".to_owned());
    }
    Ok(text.to_owned())
}

fn header_name(text: &str) -> Result<String, String> {
    HeaderName::try_from(text).map(|_| text.to_owned()).map_err(|_| "must be the name of a header".to_owned())
}

fn duration(text: &str) -> Result<Duration, String> {
    let error = "must be a duration such as 100ms or 5m";
    let period = ratelimit_core::Period::parse(text.as_bytes()).ok_or(error)?;
    Ok(Duration::from_micros(period.micros().get()))
}

fn duration_or_zero(text: &str) -> Result<Duration, String> {
    if ["0", "0s"].contains(&text) { Ok(Duration::ZERO) } else { duration(text) }
}

fn remembered_duration(text: &str) -> Result<Duration, String> {
    let duration = duration_or_zero(text)?;
    if duration > MAX_DURATION { Err("must be at most 1s".to_owned()) } else { Ok(duration) }
}

fn duration_text(text: &str) -> Result<String, String> {
    duration(text).map(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::{is_option, moved_variable, moved_word};
    use std::ffi::OsString;

    #[test]
    fn options_of_the_gateway_are_known() {
        assert!(["--config", "--xds", "--drain", "--help", "-V"].into_iter().all(is_option));
        assert!(!["--quotaRateLimitServiceAddr", "--configuration", "config"].into_iter().any(is_option));
    }

    #[test]
    fn settings_that_have_moved_to_the_console_are_found() {
        let word = |text: &str| moved_word(text.split(' ').map(OsString::from));
        assert_eq!(word("replay log --limit x").as_deref(), Some("replay"));
        assert_eq!(word("playground").as_deref(), Some("playground"));
        assert_eq!(word("serve --console off").as_deref(), Some("--console"));
        assert_eq!(word("serve --shadow --console-host=a").as_deref(), Some("--console-host"));
        assert_eq!(["serve --config replay", "check playground", "--help"].map(word), [None, None, None]);
        let variable = |name: &str, value: &str| moved_variable([(name.into(), value.into())].into_iter());
        for name in ["RATELIMIT_GATEWAY_CONSOLE", "RATELIMIT_GATEWAY_CONSOLE_TOKEN_FILE"] {
            assert_eq!([variable(name, "x").as_deref(), variable(name, "").as_deref()], [Some(name), None]);
        }
        assert_eq!(variable("RATELIMIT_GATEWAY_CONFIG", "x"), None);
    }
}
