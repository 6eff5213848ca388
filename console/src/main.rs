//! `ratelimit-console`: a page for operators, the playground, and logs under limits that are to be tried. It is a program
//! beside the gateway, which stands before production traffic and has no page.
//!
//! The layers, from below: what is shared with `ratelimit-gateway` ([`ratelimit_link`]); logs under limits ([`replay`]) and
//! limits to play with ([`playground`]); the page and its API ([`web`]); the service ([`serve_command`]).

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

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    let options: Options = ratelimit_link::command_line::parse();
    process::exit_code(match options.command {
        Command::Serve(serve) => {
            process::init_logging(serve.log_format, module_path!());
            process::run(serve_command::serve(*serve))
        }
        Command::Playground(playground) => process::run(serve_command::playground(playground)),
        Command::Replay(replay) => replay.run(),
    })
}
