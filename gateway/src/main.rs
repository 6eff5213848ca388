//! `ratelimit-gateway`: one door for every proxy. It keeps no state: limits are the policies of a server with the
//! module redis-ratelimit, or those of a file, and all usage is the server's.
//!
//! The layers, from below: files that are read again ([`file_stamp`], [`reload`]); names and words ([`naming`],
//! [`client_address`], [`template`], [`request_path`], [`windows`]); one call to the server ([`ask`]); the files
//! ([`configuration`]); the connection ([`link`]) and what the server told of its policies
//! ([`told_policies`]); counting without the server ([`local`]); the judgement of a request ([`judge`]) and what it
//! looks like ([`headers`]); the doors ([`http`], and [`rls`] with the messages of Envoy, [`proto`]) and their
//! listeners ([`listener`], [`certificate`]); logs under limits that are to be tried ([`replay`]), limits to play with
//! ([`playground`]), and the page for operators ([`console`]), which shows both; the service ([`serve_command`]), and
//! the page without a server ([`playground_command`]).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod ask;
mod certificate;
mod charge;
mod client_address;
mod command_line;
mod configuration;
mod console;
mod file_stamp;
mod headers;
mod http;
mod judge;
mod link;
mod listener;
mod local;
mod naming;
mod permission;
mod playground;
mod playground_command;
mod proto;
mod reload;
mod replay;
mod request_path;
mod rls;
mod secrets;
mod seen;
mod serve_command;
mod template;
mod told_policies;
mod windows;

use command_line::{Command, LogFormat, Options};
use mimalloc::MiMalloc;
use std::io::Write as _;
use std::process::ExitCode;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let done = match Options::read().command {
        Command::Check { files, merge_domains } => {
            configuration::ConfigSource::read_together(files, merge_domains).map(|_| ())
        }
        Command::Import { file, merge_domains } => import(file, merge_domains),
        Command::Replay(replay) => replay.run(),
        Command::Playground(playground) => playground.run(),
        Command::Serve(options) => {
            log(options.log_format);
            // One provider for all that speaks TLS here; there is no other that could be set already.
            let _ = rustls::crypto::ring::default_provider().install_default();
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
            runtime.map_err(|error| error.to_string()).and_then(|runtime| {
                let served = runtime.block_on(serve_command::serve(*options));
                runtime.shutdown_background();
                served
            })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("{told}");
            ExitCode::FAILURE
        }
    }
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

fn log(format: LogFormat) {
    let named = std::env::var("RUST_LOG").ok().and_then(|words| words.parse::<Targets>().ok());
    // h2 warns of each frame that it does not expect, so that a peer could fill the disk with lines.
    let own = || Targets::new().with_default(LevelFilter::ERROR).with_target(module_path!(), LevelFilter::INFO);
    let targets = named.unwrap_or_else(own);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => tracing_subscriber::registry().with(lines.with_filter(targets)).init(),
        LogFormat::Json => tracing_subscriber::registry().with(lines.json().with_filter(targets)).init(),
    }
}
