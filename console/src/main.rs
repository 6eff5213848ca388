//! `ratelimit-console`: a web page for operators, a playground for algorithms, and the replay of logs under limits. It
//! is a program of its own, so that the gateway, which serves production traffic, has no web page.
//!
//! The layers, from the lowest: the library shared with `ratelimit-gateway` ([`ratelimit_link`]); replay of logs
//! ([`replay`]) and simulation of algorithms ([`playground`]); the page and its API ([`web`]); the commands that serve
//! them ([`serve_command`]).

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod command_line;
mod playground;
mod replay;
mod serve_command;
mod web;

use command_line::{Command, Options};
use mimalloc::MiMalloc;
use ratelimit_link::process;
use std::process::ExitCode;
use tracing::level_filters::LevelFilter;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options: Options = ratelimit_link::command_line::parse();
    process::exit_code(match options.command {
        Command::Serve(serve) => {
            process::init_logging(serve.log_format, LevelFilter::INFO, module_path!());
            process::run(serve_command::serve(*serve))
        }
        Command::Playground(playground) => process::run(serve_command::playground(playground)),
        Command::Replay(replay) => replay.run(),
    })
}
