//! Command line, and environment variables with the same settings.

use crate::replay::Replay;
use crate::web::{NamedTarget, Prometheus};
use clap::{Args, Parser, Subcommand};
use ratelimit_link::address::Address;
use ratelimit_link::command_line::{LogFormat, ServerOptions};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Web console of a server with redis-ratelimit, the playground, and the replay of logs.
#[derive(Parser)]
#[command(version, about)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the console.
#[derive(Subcommand)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub enum Command {
    /// Serve the page that shows limits and changes them. Changes need a token of RATELIMIT_CONSOLE_WRITE_TOKEN, or of
    /// the file that RATELIMIT_CONSOLE_WRITE_TOKEN_FILE names: `token` or `name:token`, several separated by commas or
    /// line breaks.
    Serve(Box<Serve>),
    /// Show the algorithms side by side under the same traffic, in a browser; no server is needed.
    Playground(Listen),
    /// Evaluate the calls of a log under limits, and find the smallest limits that deny few of them.
    Replay(Box<Replay>),
}

/// Options of the listener.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Listen {
    /// Address of the page. Off loopback, clients need the token of RATELIMIT_CONSOLE_TOKEN, or of the file that
    /// RATELIMIT_CONSOLE_TOKEN_FILE names.
    #[arg(long = "listen", value_name = "ADDRESS", env = "RATELIMIT_CONSOLE_LISTEN", default_value = "127.0.0.1:8090")]
    pub address: SocketAddr,
    /// Certificate of the listener, with --key.
    #[arg(long, env = "RATELIMIT_CONSOLE_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// Key of the certificate of the listener.
    #[arg(long, env = "RATELIMIT_CONSOLE_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// Further host name of the page, or several separated by commas.
    #[arg(long = "host", value_name = "HOST", env = "RATELIMIT_CONSOLE_HOST", value_delimiter = ',')]
    pub hosts: Vec<String>,
}

/// Options of `serve`.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Serve {
    /// Server: redis://host:port, several separated by commas, rediss:// for TLS, redis-sentinel://hosts/name, or
    /// unix:///path. A cluster is recognized automatically. Passwords belong in the environment.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER", hide_env_values = true, default_value = "redis://127.0.0.1:6379")]
    pub server: String,
    /// User of the server. The password is in the variable RATELIMIT_CONSOLE_SERVER_PASSWORD, or in the file that
    /// RATELIMIT_CONSOLE_SERVER_PASSWORD_FILE names.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_USER")]
    pub server_user: Option<String>,
    /// File with the authorities that verify the server's certificate, instead of those of the system.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_CA")]
    pub server_ca: Option<PathBuf>,
    /// Client certificate for the server, with --server-key.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_CERT", requires = "server_key")]
    pub server_cert: Option<PathBuf>,
    /// Key of the client certificate.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_KEY", requires = "server_cert")]
    pub server_key: Option<PathBuf>,
    /// Prometheus that reads the servers, for a history longer than the console's: http://host:port, or https://. The
    /// password of a user in the URL is in the variable RATELIMIT_CONSOLE_PROMETHEUS_PASSWORD, and a bearer token in
    /// RATELIMIT_CONSOLE_PROMETHEUS_TOKEN. Each may be in the file that the variable with _FILE names.
    #[arg(long, value_name = "URL", env = "RATELIMIT_CONSOLE_PROMETHEUS", hide_env_values = true)]
    pub prometheus: Option<String>,
    /// Labels of the server's series, if other servers have the same Prometheus: 'job="redis",cluster="eu"'.
    #[arg(long, value_name = "LABELS", env = "RATELIMIT_CONSOLE_PROMETHEUS_MATCH", requires = "prometheus")]
    pub prometheus_match: Option<String>,
    /// File with the authorities that verify Prometheus's certificate, instead of those of the system.
    #[arg(long, env = "RATELIMIT_CONSOLE_PROMETHEUS_CA", requires = "prometheus")]
    pub prometheus_ca: Option<PathBuf>,
    /// Gateway whose metrics the page shows: http://host:8080, or with the path of its metrics; several separated by
    /// commas. A user may be in the URL, with the password in RATELIMIT_CONSOLE_GATEWAY_PASSWORD; a token is in
    /// RATELIMIT_CONSOLE_GATEWAY_TOKEN. Each secret may be in the file that the variable with _FILE names.
    #[arg(
        long = "gateway",
        value_name = "URL",
        env = "RATELIMIT_CONSOLE_GATEWAY",
        hide_env_values = true,
        value_delimiter = ','
    )]
    pub gateways: Vec<String>,
    /// File with the authorities that verify the certificates of the gateways, instead of those of the system.
    #[arg(long, env = "RATELIMIT_CONSOLE_GATEWAY_CA")]
    pub gateway_ca: Option<PathBuf>,
    /// Options of the listener.
    #[command(flatten)]
    pub listen: Listen,
    /// Format of the log lines. RUST_LOG selects the lines that are logged.
    #[arg(long, env = "RATELIMIT_CONSOLE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

impl Serve {
    /// Returns the address of the server, with the credentials for it.
    ///
    /// # Errors
    /// Returns the errors of [`ServerOptions::address`].
    pub fn address(&self) -> Result<Address, String> {
        let options = ServerOptions {
            prefix: "RATELIMIT_CONSOLE",
            server: &self.server,
            user: self.server_user.as_ref(),
            authority: self.server_ca.as_ref(),
            identity: self.server_cert.as_ref().zip(self.server_key.as_ref()),
        };
        options.address()
    }

    /// Returns the client of Prometheus, if one is named.
    ///
    /// # Errors
    /// Returns the errors of [`Prometheus::new`].
    pub fn prometheus(&self) -> Result<Option<Prometheus>, String> {
        let Some(url) = &self.prometheus else { return Ok(None) };
        let (option, prefix) = ("--prometheus", "RATELIMIT_CONSOLE_PROMETHEUS");
        let named = NamedTarget { option, url, prefix, authority: self.prometheus_ca.as_deref() };
        Prometheus::new(named, self.prometheus_match.as_deref()).map(Some)
    }
}
