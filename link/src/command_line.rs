//! Command-line parsing that the gateway and the console share.

use crate::address::Address;
use crate::secrets::Secret;
use clap::builder::Resettable;
use clap::{Arg, Command, Parser, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// JSON, with an object on each line.
    Json,
}

/// Parses the command line and the environment. An empty variable counts as unset, because compose files pass unset
/// variables as empty.
#[must_use]
pub fn parse<T: Parser>() -> T {
    parse_from(std::env::args_os())
}

/// Parses `words` as the command line, and the environment as [`parse`] does.
#[must_use]
pub fn parse_from<T: Parser>(words: impl IntoIterator<Item = OsString>) -> T {
    let matches = without_empty_variables(T::command()).get_matches_from(words);
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn without_empty_variables(command: Command) -> Command {
    let is_empty = |arg: &Arg| arg.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    let command = command.mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg });
    command.mut_subcommands(without_empty_variables)
}

/// Values of the command-line options about the server.
#[derive(Clone, Copy, Debug)]
pub struct ServerOptions<'a> {
    /// Prefix of the environment variables with passwords and the Sentinel user, such as `RATELIMIT_GATEWAY`.
    pub prefix: &'a str,
    /// Value of `--server`.
    pub server: &'a str,
    /// Value of `--server-user`.
    pub user: Option<&'a String>,
    /// Value of `--server-ca`.
    pub authority: Option<&'a PathBuf>,
    /// Values of `--server-cert` and `--server-key`.
    pub identity: Option<(&'a PathBuf, &'a PathBuf)>,
}

impl ServerOptions<'_> {
    /// Returns the address of the server, with the passwords from the environment.
    ///
    /// # Errors
    /// If the address is malformed, if a password is on the command line, where other accounts can read it, or if
    /// [`Secret::find`] fails. The error contains no secret.
    pub fn address(&self) -> Result<Address, String> {
        let ServerOptions { prefix, server, .. } = self;
        let mut address = Address::parse(server).map_err(|error| format!("--server {error}"))?;
        if address.credentials.password.is_some() && std::env::args().any(|word| word.contains(server)) {
            return Err(format!("--server: the password belongs in {prefix}_SERVER_PASSWORD"));
        }
        if let Some(user) = self.user {
            address.credentials.user = Some(user.clone());
        }
        if let Some(password) = Secret::find(&format!("{prefix}_SERVER_PASSWORD"))? {
            address.credentials.password = Some(password);
        }
        let sentinel_user = std::env::var(format!("{prefix}_SENTINEL_USER")).ok();
        if let Some(user) = sentinel_user.filter(|user| !user.is_empty()) {
            address.sentinel_credentials.user = Some(user);
        }
        address.sentinel_credentials.password = Secret::find(&format!("{prefix}_SENTINEL_PASSWORD"))?;
        address.authority = self.authority.cloned();
        address.identity = self.identity.map(|(certificate, key)| (certificate.clone(), key.clone()));
        Ok(address)
    }
}
