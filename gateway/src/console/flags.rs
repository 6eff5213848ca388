//! The console's words of the command line.

use crate::link::Address;
use crate::secrets::Secret;
use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Where the console listens, if it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// Nowhere.
    Off,
    /// Here.
    Listening(SocketAddr),
}

impl FromStr for At {
    type Err = String;

    fn from_str(text: &str) -> Result<At, String> {
        match text {
            "off" => Ok(At::Off),
            address => {
                address.parse().map(At::Listening).map_err(|_| "must be such as 127.0.0.1:8090, or off".to_owned())
            }
        }
    }
}

/// The options of the console.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct ConsoleOptions {
    /// Where people look at limits and change them, in a browser; or off. Who may change them has the token of
    /// RATELIMIT_GATEWAY_CONSOLE_WRITE_TOKEN, and off loopback who may look that of RATELIMIT_GATEWAY_CONSOLE_TOKEN; or in
    /// the files that ..._FILE name.
    #[arg(
        id = "console_at",
        long = "console",
        value_name = "CONSOLE",
        env = "RATELIMIT_GATEWAY_CONSOLE",
        default_value = "127.0.0.1:8090"
    )]
    pub at: At,
    /// The server as the console sees it, for a user of its own: as --server, with the password in
    /// RATELIMIT_GATEWAY_CONSOLE_SERVER_PASSWORD.
    #[arg(
        id = "console_server",
        long = "console-server",
        env = "RATELIMIT_GATEWAY_CONSOLE_SERVER",
        hide_env_values = true
    )]
    pub server: Option<String>,
    /// The console's user of the server.
    #[arg(id = "console_server_user", long = "console-server-user", env = "RATELIMIT_GATEWAY_CONSOLE_SERVER_USER")]
    pub server_user: Option<String>,
    /// The certificate of the console's listener, with --console-key.
    #[arg(
        id = "console_cert",
        long = "console-cert",
        env = "RATELIMIT_GATEWAY_CONSOLE_CERT",
        requires = "console_key"
    )]
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(id = "console_key", long = "console-key", env = "RATELIMIT_GATEWAY_CONSOLE_KEY", requires = "console_cert")]
    pub key: Option<PathBuf>,
    /// A name that the console goes by besides that of its listener, with commas several.
    #[arg(id = "console_hosts", long = "console-host", env = "RATELIMIT_GATEWAY_CONSOLE_HOST", value_delimiter = ',')]
    pub hosts: Vec<String>,
}

impl ConsoleOptions {
    /// The files of the certificate of the listener and of its key, if it speaks TLS.
    pub fn certificate(&self) -> Option<(PathBuf, PathBuf)> {
        self.cert.clone().zip(self.key.clone())
    }

    /// The server as the console sees it: that of the gateway, unless the options say otherwise.
    ///
    /// # Errors
    /// As of [`crate::command_line::Serve::address`].
    pub fn address(&self, gateway: &Address) -> Result<Address, String> {
        let mut address = gateway.clone();
        if let Some(server) = &self.server {
            let own = Address::parse(server).map_err(|told| format!("--console-server {told}"))?;
            if own.credentials.password.is_some() && std::env::args().any(|word| word.contains(server)) {
                return Err(
                    "--console-server: the password belongs in RATELIMIT_GATEWAY_CONSOLE_SERVER_PASSWORD".to_owned()
                );
            }
            let Address { sentinel_credentials, authority, identity, .. } = address;
            address = Address { sentinel_credentials, authority, identity, ..own };
        }
        if let Some(user) = &self.server_user {
            address.credentials.user = Some(user.clone());
        }
        if let Some(password) = Secret::find("RATELIMIT_GATEWAY_CONSOLE_SERVER_PASSWORD")? {
            address.credentials.password = Some(password);
        }
        Ok(address)
    }
}
