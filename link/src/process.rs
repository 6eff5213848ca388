//! Logging, runtime and termination signals of a program.

use crate::command_line::LogFormat;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Starts logging to stderr. The variable `RUST_LOG` selects the lines. If it is unset or malformed, these are lines of
/// `program` and of this crate at `level` or above, and errors of other crates.
pub fn init_logging(format: LogFormat, level: LevelFilter, program: &str) {
    let from_environment = std::env::var("RUST_LOG").ok().and_then(|words| words.parse::<Targets>().ok());
    // Warnings of other crates are not logged: h2 warns of each unexpected frame, so a peer could fill the disk.
    let levels = [program, env!("CARGO_CRATE_NAME")].map(|target| (target, level));
    let default_targets = || Targets::new().with_default(LevelFilter::ERROR).with_targets(levels);
    let targets = from_environment.unwrap_or_else(default_targets);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => tracing_subscriber::registry().with(layer.with_filter(targets)).init(),
        LogFormat::Json => tracing_subscriber::registry().with(layer.json().with_filter(targets)).init(),
    }
}

/// Runs a service until it completes, and then aborts all remaining tasks.
///
/// # Errors
/// If the runtime cannot start or the service fails.
pub fn run(service: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    // Fails only if a provider was installed before.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let result = runtime.block_on(service);
    runtime.shutdown_background();
    result
}

/// Prints the error of a program that failed, and returns the exit code.
#[must_use]
pub fn exit_code(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Listens at an address.
///
/// # Errors
/// If the port is taken, or the address does not belong to this machine. The error names the address.
pub async fn bind(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))
}

/// Signals that end a service: SIGTERM and SIGINT. SIGHUP is caught as well, so that it does not end the process.
pub struct Signals {
    terminated: Signal,
    interrupted: Signal,
}

impl Signals {
    /// Begins to listen for the signals.
    ///
    /// # Errors
    /// If the system refuses to install a signal handler.
    pub fn new() -> Result<Signals, String> {
        let listen = |kind| signal(kind).map_err(|error| error.to_string());
        // The handler stays installed after the drop.
        drop(listen(SignalKind::hangup())?);
        Ok(Signals { terminated: listen(SignalKind::terminate())?, interrupted: listen(SignalKind::interrupt())? })
    }

    /// Completes at the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}
