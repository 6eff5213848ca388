//! `ratelimit-gateway`: one door for every proxy. It keeps no state: limits are the policies of a server with the
//! module redis-ratelimit, or those of a file, and all usage is the server's.
//!
//! The layers, from below: what is shared with `ratelimit-console` ([`ratelimit_link`]); words ([`template`],
//! [`request_path`], [`windows`]); one call to the server ([`ask`]); the files ([`configuration`]); the connection
//! ([`link`]) and what the server told of its policies ([`told_policies`]); counting without the server ([`local`]); the
//! judgement of a request ([`judge`]) and what it looks like ([`headers`]); the doors ([`http`], and [`rls`] with the
//! messages of Envoy, [`proto`]); the service ([`serve_command`]).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod ask;
mod charge;
mod command_line;
mod configuration;
mod headers;
mod http;
mod judge;
mod link;
mod local;
mod permission;
mod proto;
mod request_path;
mod rls;
mod seen;
mod serve_command;
mod template;
mod told_policies;
mod windows;

use command_line::{Command, Options};
use mimalloc::MiMalloc;
// Modules of this crate name them `crate::naming`, like their own.
use ratelimit_link::{client_address, file_stamp, listener, naming, process, reload};
use std::io::Write as _;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    process::exit_code(match Options::read().command {
        Command::Check { files, merge_domains } => {
            configuration::ConfigSource::read_together(files, merge_domains).map(|_| ())
        }
        Command::Import { file, merge_domains } => import(file, merge_domains),
        Command::Serve(options) => {
            process::init_logging(options.log_format, module_path!());
            process::run(serve_command::serve(*options))
        }
    })
}

/// A file as policies. The commands alone are on standard output, so that they can be piped into a client.
fn import(file: std::path::PathBuf, merge_domains: bool) -> Result<(), String> {
    let imported = configuration::ConfigSource::new(file, merge_domains).imported()?;
    let mut out = std::io::stdout().lock();
    for command in imported.commands() {
        writeln!(out, "{command}").map_err(|error| error.to_string())?;
    }
    imported.only_files.iter().for_each(|told| eprintln!("only a file can say this: {told}"));
    Ok(())
}
