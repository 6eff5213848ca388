//! Settings of envoyproxy/ratelimit. If the program is called `ratelimit`, it reads the environment variables of that
//! service and serves with equivalent options.

mod redis;
mod tracing_variables;
mod variables;

use crate::environment::Environment;
use crate::upstream::Address;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use variables::listen_ip;

/// File name with which the program reads the environment of envoyproxy/ratelimit.
const PROGRAM_NAME: &str = "ratelimit";
/// Options for listeners, each with the variables for its host and port and the default port in envoyproxy/ratelimit.
const PORTS: [(&str, &str, &str, u16); 3] = [
    ("--http", "HOST", "PORT", 8080),
    ("--grpc", "GRPC_HOST", "GRPC_PORT", 8081),
    ("--debug", "DEBUG_HOST", "DEBUG_PORT", 6070),
];

/// Variables of envoyproxy/ratelimit without an effect on this program, with the reason.
const UNNEEDED: [(&str, &str); 28] = [
    ("USE_STATSD", "metrics are read by Prometheus, at /metrics of the debug port and of PROMETHEUS_ADDR"),
    ("USE_DOG_STATSD", "metrics are read by Prometheus, at /metrics of the debug port and of PROMETHEUS_ADDR"),
    ("DISABLE_STATS", "metrics are always available at /metrics"),
    ("EXTRA_TAGS", "Prometheus adds labels to what it reads"),
    ("STATS_FLUSH_INTERVAL", "metrics are read, not sent"),
    ("PROMETHEUS_MAPPER_YAML", "metrics have the names and labels of the default mapping"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "the response time is in seconds"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "denials are remembered by --remember-denials"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "keys expire with their window"),
    ("REDIS_POOL_SIZE", "all calls to a server share a connection"),
    ("REDIS_PIPELINE_WINDOW", "calls are pipelined without a delay"),
    ("REDIS_PIPELINE_LIMIT", "calls are pipelined without a delay"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "calls to the nodes of a cluster are concurrent"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "all calls to a server share a connection"),
    ("REDIS_STARTUP_INITIAL_INTERVAL", "the server is tried every 250 ms"),
    ("REDIS_STARTUP_MAX_INTERVAL", "the server is tried every 250 ms"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "the server is tried until it answers"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "an outage of the server does not make the service unhealthy"),
    ("GRPC_MAX_CONNECTION_AGE", "a connection ends with its client, or with the service"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "a connection ends with its client, or with the service"),
    ("RUNTIME_WATCH_ROOT", "files are read again however they change"),
    ("RUNTIME_IGNOREDOTFILES", "files whose names begin with a dot are never read"),
    ("XDS_CLIENT_BACKOFF_JITTER", "the control plane is tried at intervals that grow"),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "the control plane is tried at intervals that grow"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "the control plane is tried at intervals that grow"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "the control plane is tried at intervals that grow"),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "the size of a configuration has a bound of its own"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "the control plane is tried at intervals that grow"),
];

/// Variables without an effect if the limits are in files, with the reason.
const UNNEEDED_WITH_FILES: [(&str, &str); 2] = [
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "the service starts only with valid files"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "the service starts only with valid files"),
];

/// Variables for features that this program does not have, with an alternative.
const IMPOSSIBLE: [(&str, &str); 5] = [
    (
        "CACHE_KEY_PREFIX",
        "keys begin with rl: always; give each service a database of its own, REDIS_URL=redis://host:port/1",
    ),
    ("REDIS_PERSECOND", "all limits are counted by one server or cluster; unset it, and set REDIS_URL"),
    ("GRPC_UDS", "the service does not listen at a socket; set GRPC_HOST and GRPC_PORT"),
    (
        "GRPC_CLIENT_TLS_SAN",
        "names of clients are not verified; sign their certificates by an authority of their own, GRPC_CLIENT_TLS_CACERT",
    ),
    ("QUOTA_MODE", "there is no quota mode of the whole service; set quota_mode: true in the limits"),
];

/// Options that are equivalent to an environment of envoyproxy/ratelimit.
pub struct Translation {
    /// Words of the command line.
    pub words: Vec<String>,
    /// Address of the server, unless a variable of the gateway itself names it.
    pub address: Option<Address>,
    /// Settings without an effect, with the reason.
    pub unneeded: Vec<(&'static str, &'static str)>,
    /// Variables of OpenTelemetry, which take precedence over the environment.
    pub trace_variables: Vec<(&'static str, String)>,
}

/// Returns the names of the arguments, all to be ignored, if the program must read the environment of
/// envoyproxy/ratelimit: it was called `ratelimit`, with neither a command nor an option of the gateway. AI Gateway's
/// deployment passes options of its controller, which envoyproxy/ratelimit ignores, too.
#[must_use]
pub fn ignored_arguments(
    mut words: impl Iterator<Item = OsString>,
    is_option: impl Fn(&str) -> bool,
) -> Option<Vec<String>> {
    let program = words.next().map(PathBuf::from);
    program.filter(|program| program.file_name().is_some_and(|name| name == PROGRAM_NAME))?;
    let words: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    // The value may be a secret.
    let name = |word: &String| word.split_once('=').map_or(word.as_str(), |(name, _)| name).to_owned();
    let names: Vec<String> = words.iter().map(name).filter(|name| name.starts_with('-')).collect();
    let is_ignored =
        words.first().is_none_or(|word| word.starts_with('-')) && !names.iter().any(|name| is_option(name));
    is_ignored.then_some(names)
}

/// Translates an environment of envoyproxy/ratelimit to options of the command `serve`.
///
/// # Errors
/// If a variable is malformed, or is for a feature that the program does not have. The error names the variable.
pub fn translate(environment: &Environment) -> Result<Translation, String> {
    let mut options = TranslatedOptions { environment, words: vec!["serve".to_owned()] };
    for (variable, alternative) in IMPOSSIBLE {
        if environment.is_on(variable) {
            return Err(format!("{variable}: {alternative}"));
        }
    }
    match environment.text("BACKEND_TYPE") {
        None | Some("redis") => {}
        Some(other) => {
            let other = other.escape_debug();
            return Err(format!(
                "BACKEND_TYPE={other}: limits are counted by Redis or Valkey; unset it, and set REDIS_URL"
            ));
        }
    }
    options.push_listeners()?;
    let has_files = options.push_configuration()?;
    options.push_behaviour()?;
    let words = options.words;
    let with_files = UNNEEDED_WITH_FILES.into_iter().filter(|_| has_files);
    let unneeded = UNNEEDED.into_iter().chain(with_files).filter(|(variable, _)| environment.is_on(variable)).collect();
    let trace_variables = tracing_variables::translate(environment)?;
    Ok(Translation { words, address: redis::address(environment)?, unneeded, trace_variables })
}

/// Words of the command line, while the environment is translated.
struct TranslatedOptions<'a> {
    environment: &'a Environment,
    words: Vec<String>,
}

impl TranslatedOptions<'_> {
    fn push(&mut self, option: &str, value: &str) {
        // The option and the value are one word, since a value may begin with a dash.
        self.words.push(format!("{option}={value}"));
    }

    /// Pushes the value of a variable, if it is set.
    fn push_text(&mut self, option: &str, variable: &str) {
        if let Some(value) = self.environment.text(variable) {
            self.push(option, value);
        }
    }

    /// Pushes a default of envoyproxy/ratelimit, unless a variable of the gateway sets the option.
    fn push_default(&mut self, option: &str, value: &str) {
        if !self.environment.has_option(option) {
            self.push(option, value);
        }
    }

    fn push_switch(&mut self, option: &str, variable: &str) -> Result<(), String> {
        if self.environment.flag(variable)? {
            self.words.push(option.to_owned());
        }
        Ok(())
    }

    fn push_listeners(&mut self) -> Result<(), String> {
        let prometheus = if self.environment.flag("USE_PROMETHEUS")? {
            let address = self.environment.text("PROMETHEUS_ADDR").unwrap_or(":9090");
            let malformed = "PROMETHEUS_ADDR: must be such as :9090 or [::1]:9090";
            let (host, port) = address.rsplit_once(':').ok_or(malformed)?;
            let host = match host.strip_prefix('[') {
                Some(rest) => rest.strip_suffix(']').filter(|host| !host.is_empty()),
                None => Some(host).filter(|host| !host.contains(':')),
            };
            let port = port.parse().map_err(|_| malformed)?;
            Some(SocketAddr::new(listen_ip("PROMETHEUS_ADDR", host.ok_or(malformed)?)?, port))
        } else {
            None
        };
        for (option, host, port, default) in PORTS {
            let is_set = [host, port].iter().any(|variable| self.environment.text(variable).is_some());
            let address = self.environment.address(host, port, default)?;
            let second_address = prometheus.filter(|_| option == "--debug");
            let addresses: Vec<String> =
                [address].into_iter().chain(second_address).map(|address| address.to_string()).collect();
            if is_set || second_address.is_some() {
                self.push(option, &addresses.join(","));
            } else {
                self.push_default(option, &addresses.join(","));
            }
        }
        self.push_text("--metrics-path", "PROMETHEUS_PATH");
        if self.environment.flag("GRPC_SERVER_USE_TLS")? {
            for (option, variable) in [("--grpc-cert", "GRPC_SERVER_TLS_CERT"), ("--grpc-key", "GRPC_SERVER_TLS_KEY")] {
                let missing = || format!("GRPC_SERVER_USE_TLS: {variable} must name a file");
                let file = self.environment.text(variable).ok_or_else(missing)?;
                self.push(option, file);
            }
            self.push_text("--grpc-client-ca", "GRPC_CLIENT_TLS_CACERT");
        }
        Ok(())
    }

    /// Pushes the source of the limits. Returns `true` if the limits are in files.
    fn push_configuration(&mut self) -> Result<bool, String> {
        self.push_switch("--merge-domains", "MERGE_DOMAIN_CONFIG")?;
        match self.environment.text("CONFIG_TYPE") {
            None | Some("FILE") => {
                if self.environment.has_configuration_folder() || !self.environment.has_option("--config") {
                    let folder = self.environment.configuration_folder();
                    check_files(&folder)?;
                    self.push("--config", &folder.to_string_lossy());
                }
                Ok(true)
            }
            Some("GRPC_XDS_SOTW") => self.push_control_plane().map(|()| false),
            Some(other) => Err(format!("CONFIG_TYPE={}: must be FILE or GRPC_XDS_SOTW", other.escape_debug())),
        }
    }

    fn push_control_plane(&mut self) -> Result<(), String> {
        let address = self.environment.text("CONFIG_GRPC_XDS_SERVER_URL").unwrap_or("localhost:18000");
        // gRPC marks names that DNS resolves by this prefix. The gateway resolves all names by DNS.
        self.push("--xds", address.strip_prefix("dns:///").unwrap_or(address));
        self.push("--xds-node-id", self.environment.text("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default"));
        self.push_text("--xds-node-metadata", "CONFIG_GRPC_XDS_NODE_METADATA");
        self.push_text("--xds-headers", "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS");
        if self.environment.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS")? {
            self.words.push("--xds-tls".to_owned());
            self.push_text("--xds-ca", "CONFIG_GRPC_XDS_SERVER_TLS_CACERT");
            self.push_text("--xds-cert", "CONFIG_GRPC_XDS_CLIENT_TLS_CERT");
            self.push_text("--xds-key", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY");
            self.push_text("--xds-server-name", "CONFIG_GRPC_XDS_SERVER_TLS_SAN");
        }
        if !self.environment.flag("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")? {
            self.push_switch("--force-start", "FORCE_START_WITHOUT_INITIAL_CONFIG")?;
        }
        Ok(())
    }

    fn push_behaviour(&mut self) -> Result<(), String> {
        self.push_switch("--shadow", "SHADOW_MODE")?;
        self.push_switch("--response-metadata", "RESPONSE_DYNAMIC_METADATA")?;
        if self.environment.flag("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT")? {
            self.push("--charge", "all-or-none");
        }
        let headers = "LIMIT_RESPONSE_HEADERS_ENABLED";
        match (self.environment.flag(headers)?, self.environment.text(headers)) {
            (true, _) => self.push("--response-headers", "separate"),
            (false, Some(_)) => self.push("--response-headers", "off"),
            (false, None) => self.push_default("--response-headers", "off"),
        }
        self.push_text("--limit-header", "LIMIT_LIMIT_HEADER");
        self.push_text("--remaining-header", "LIMIT_REMAINING_HEADER");
        self.push_text("--reset-header", "LIMIT_RESET_HEADER");
        self.push_text("--near-limit-ratio", "NEAR_LIMIT_RATIO");
        self.push_default("--metrics-format", "envoyproxy");
        // Like envoyproxy/ratelimit, answer with an error, so that the failure mode of the proxy applies.
        self.push_default("--on-outage", "error");
        if let Some(timeout) = self.environment.duration("REDIS_TIMEOUT")? {
            self.push("--timeout", &timeout);
        }
        if let Some(level) = self.environment.log_level()? {
            self.push("--log-level", level);
        }
        match self.environment.text("LOG_FORMAT").map(str::to_ascii_lowercase).as_deref() {
            Some("json") => self.push("--log-format", "json"),
            Some(_) => self.push("--log-format", "text"),
            None => {}
        }
        Ok(())
    }
}

/// Checks that a folder has no files that envoyproxy/ratelimit would read but the gateway does not. If the folder
/// cannot be read, reading the configuration fails later.
fn check_files(folder: &Path) -> Result<(), String> {
    for entry in folder.read_dir().into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if name.to_string_lossy().starts_with('.') {
            continue;
        }
        let file = path.display();
        if path.is_dir() {
            return Err(format!("{file}: folders in the one with the limits are not read; move its files up"));
        }
        if path.extension().is_none_or(|end| end != "yaml" && end != "yml") {
            return Err(format!("{file}: only files that end in .yaml or .yml are read; rename it, or move it away"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
