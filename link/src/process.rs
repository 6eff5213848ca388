//! Frame of a program: its log, its runtime, and the signals that end it.

use crate::command_line::LogFormat;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::prelude::*;

/// Begins to log to stderr: what a program of this name says, and errors of the libraries, or the lines that the variable
/// `RUST_LOG` names.
pub fn log(format: LogFormat, program: &str) {
    let named = std::env::var("RUST_LOG").ok().and_then(|words| words.parse::<Targets>().ok());
    // h2 warns of each frame that it does not expect, so that a peer could fill the disk with lines.
    let own = [program, env!("CARGO_CRATE_NAME")].map(|target| (target, LevelFilter::INFO));
    let targets = named.unwrap_or_else(|| Targets::new().with_default(LevelFilter::ERROR).with_targets(own));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => tracing_subscriber::registry().with(lines.with_filter(targets)).init(),
        LogFormat::Json => tracing_subscriber::registry().with(lines.json().with_filter(targets)).init(),
    }
}

/// Runs a service to its end. Tasks that are under way then are not waited for.
///
/// # Errors
/// If the runtime cannot start, or the error of the service.
pub fn run(service: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    // One provider for all that speaks TLS here; there is no other that could be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    let served = runtime.block_on(service);
    runtime.shutdown_background();
    served
}

/// Returns the status of a program, and prints its error.
#[must_use]
pub fn status(done: Result<(), String>) -> ExitCode {
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(told) => {
            eprintln!("{told}");
            ExitCode::FAILURE
        }
    }
}

/// Listens at an address.
///
/// # Errors
/// If the port is taken, or the address is not of this machine. The error names the address.
pub async fn bound(address: SocketAddr) -> Result<TcpListener, String> {
    TcpListener::bind(address).await.map_err(|error| format!("{address}: {error}"))
}

/// Signals that end a service: SIGTERM and SIGINT. SIGHUP ends none.
pub struct Signals {
    terminated: Signal,
    interrupted: Signal,
}

impl Signals {
    /// Begins to listen for the signals.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> Result<Signals, String> {
        let of = |kind| signal(kind).map_err(|error| error.to_string());
        drop(of(SignalKind::hangup())?);
        Ok(Signals { terminated: of(SignalKind::terminate())?, interrupted: of(SignalKind::interrupt())? })
    }

    /// Completes at the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminated.recv() => {}
            _ = self.interrupted.recv() => {}
        }
    }
}
