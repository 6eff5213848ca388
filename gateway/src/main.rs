//! `ratelimit-gateway`: a rate limit service for proxies. It keeps no state: limits are policies of a server with the
//! module redis-ratelimit, or rules of a file or a control plane, and the server stores all usage.
//!
//! The layers, from the lowest: the library shared with `ratelimit-console` ([`ratelimit_link`]); parsing
//! ([`template`], [`request_path`], [`limit`]), variables of the process ([`environment`]) and the mode of outages
//! ([`outage_mode`]); calls to the server ([`call`]); clients of gRPC services ([`grpc_client`]) and traces
//! ([`traces`]); the configuration ([`configuration`]); the cache of the server's policies ([`policy_cache`]), remembered denials ([`denied_keys`]) and connections to the
//! server ([`upstream`]); limits during an outage of the server ([`local_limits`]); evaluation of requests
//! ([`evaluation`]) and response headers ([`headers`]); the services ([`http`], and [`rls`] with Envoy's messages,
//! [`proto`]), and the client of a control plane ([`xds`]); the environment of envoyproxy/ratelimit ([`envoyproxy`]);
//! the command `serve` ([`serve_command`]).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod call;
mod charge;
mod command_line;
mod configuration;
mod cut;
mod denied_keys;
mod environment;
mod envoyproxy;
mod evaluation;
mod grpc_client;
mod headers;
mod http;
mod limit;
mod local_limits;
mod metrics;
mod outage_mode;
mod permission_log;
mod policy_cache;
mod proto;
mod request_path;
mod rls;
mod serve_command;
mod template;
mod traces;
mod upstream;
mod xds;

use command_line::{Command, Options};
use mimalloc::MiMalloc;
// Imported here, so that all modules can refer to them as `crate::naming` and the like.
use ratelimit_link::{client_address, file_stamp, listener, naming, process, reload};
use std::io::Write as _;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    process::exit_code(match Options::parse_or_exit().command {
        Command::Check { files, merge_domains } => {
            configuration::ConfigSource::read_together(files, merge_domains).map(|_| ())
        }
        Command::Import { file, merge_domains } => import(file, merge_domains),
        Command::Serve(options) => {
            process::init_logging(options.log_format, options.log_level, module_path!());
            process::run(serve_command::serve(*options))
        }
    })
}

/// Prints the commands that create the policies of a file. Rules that policies cannot express go to standard error, so
/// that the commands can be piped into a client.
fn import(file: std::path::PathBuf, merge_domains: bool) -> Result<(), String> {
    let imported = configuration::ConfigSource::new(file, merge_domains).import()?;
    let mut out = std::io::stdout().lock();
    for command in imported.commands() {
        writeln!(out, "{command}").map_err(|error| error.to_string())?;
    }
    imported.unsupported.iter().for_each(|rule| eprintln!("policies cannot express this: {rule}"));
    Ok(())
}
