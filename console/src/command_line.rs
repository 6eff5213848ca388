//! The words of the command line, and the variables of the environment that stand for them.

use crate::replay::Replay;
use clap::{Args, Parser, Subcommand};
use ratelimit_link::address::Address;
use ratelimit_link::command_line::{LogFormat, NamedServer};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Web console of a server with redis-ratelimit, the playground, and the replay of logs.
#[derive(Parser)]
#[command(version, about)]
pub struct Options {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
}

/// Commands of the console.
#[derive(Subcommand)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub enum Command {
    /// Serve the page on which people look at limits and change them. Changes need the token of
    /// RATELIMIT_CONSOLE_WRITE_TOKEN, or of the file that RATELIMIT_CONSOLE_WRITE_TOKEN_FILE names.
    Serve(Box<Serve>),
    /// Show the algorithms side by side under the same traffic, in a browser; no server is needed.
    Playground(Listen),
    /// Tell what limits would have said of the calls of a log, and the smallest that deny few.
    Replay(Box<Replay>),
}

/// Options of the listener.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Listen {
    /// Address of the page. Off loopback, clients need the token of RATELIMIT_CONSOLE_TOKEN, or of the file that
    /// RATELIMIT_CONSOLE_TOKEN_FILE names.
    #[arg(long = "listen", value_name = "ADDRESS", env = "RATELIMIT_CONSOLE_LISTEN", default_value = "127.0.0.1:8090")]
    pub at: SocketAddr,
    /// The certificate of the listener, with --key.
    #[arg(long, env = "RATELIMIT_CONSOLE_CERT", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, env = "RATELIMIT_CONSOLE_KEY", requires = "cert")]
    pub key: Option<PathBuf>,
    /// A name that the page goes by besides that of its listener, with commas several.
    #[arg(long = "host", value_name = "HOST", env = "RATELIMIT_CONSOLE_HOST", value_delimiter = ',')]
    pub hosts: Vec<String>,
}

/// Options of `serve`.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Serve {
    /// The server: redis://host:port, several with commas, rediss:// for TLS, redis-sentinel://hosts/name. A cluster is
    /// recognized by itself. Passwords belong in the environment.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER", hide_env_values = true, default_value = "redis://127.0.0.1:6379")]
    pub server: String,
    /// The user of the server; the password is RATELIMIT_CONSOLE_SERVER_PASSWORD or in the file that
    /// RATELIMIT_CONSOLE_SERVER_PASSWORD_FILE names.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_USER")]
    pub server_user: Option<String>,
    /// A file with the certificates by which the server is trusted, instead of the system's.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_CA")]
    pub server_ca: Option<PathBuf>,
    /// The certificate of this client, with --server-key.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_CERT", requires = "server_key")]
    pub server_cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, env = "RATELIMIT_CONSOLE_SERVER_KEY", requires = "server_cert")]
    pub server_key: Option<PathBuf>,
    /// Options of the listener.
    #[command(flatten)]
    pub listen: Listen,
    /// Format of the log lines. RUST_LOG says which there are.
    #[arg(long, env = "RATELIMIT_CONSOLE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
}

impl Serve {
    /// Returns the server, with who the console is to it.
    ///
    /// # Errors
    /// As for [`NamedServer::address`].
    pub fn address(&self) -> Result<Address, String> {
        let named = NamedServer {
            prefix: "RATELIMIT_CONSOLE",
            server: &self.server,
            user: self.server_user.as_ref(),
            authority: self.server_ca.as_ref(),
            identity: self.server_cert.as_ref().zip(self.server_key.as_ref()),
        };
        named.address()
    }
}
