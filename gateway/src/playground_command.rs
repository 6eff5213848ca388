//! The playground by itself: the console without a server, for whoever wants to look before they install anything.

use crate::console::{self, Console, Guard, Tokens};
use crate::listener::{self, Phase};
use clap::Args;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The views that need no server.
const VIEWS: &[&str] = &["playground", "replay"];

/// The options of `playground`.
#[derive(Args)]
#[allow(clippy::doc_markdown, reason = "the help of the command line")]
pub struct Playground {
    /// Where the page is. Off loopback whoever looks needs the token of RATELIMIT_GATEWAY_CONSOLE_TOKEN, or of the file
    /// that RATELIMIT_GATEWAY_CONSOLE_TOKEN_FILE names.
    #[arg(long = "console", env = "RATELIMIT_GATEWAY_CONSOLE", default_value = "127.0.0.1:8090")]
    pub at: SocketAddr,
    /// A name that the page goes by besides that of its listener, with commas several.
    #[arg(long = "console-host", env = "RATELIMIT_GATEWAY_CONSOLE_HOST", value_delimiter = ',')]
    pub hosts: Vec<String>,
}

impl Playground {
    /// Serves the page until SIGINT or SIGTERM.
    ///
    /// # Errors
    /// What stands in the way of the start: a port that is taken, no token off loopback.
    pub fn run(&self) -> Result<(), String> {
        let tokens = Arc::new(Tokens::find_look()?);
        let guard = Guard::new(self.at.ip(), Arc::clone(&tokens), &self.hosts)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| error.to_string())?;
        let served = runtime.block_on(self.serve(guard, &tokens));
        // A replay that is under way may take minutes yet.
        runtime.shutdown_background();
        served
    }

    async fn serve(&self, guard: Guard, tokens: &Arc<Tokens>) -> Result<(), String> {
        let told = |error: std::io::Error| format!("--console {}: {error}", self.at);
        let of = |kind| signal(kind).map_err(|error| error.to_string());
        let (mut terminated, mut interrupted) = (of(SignalKind::terminate())?, of(SignalKind::interrupt())?);
        Tokens::watch(tokens)?;
        let listener = TcpListener::bind(self.at).await.map_err(told)?;
        let at = listener.local_addr().map_err(told)?;
        println!("The playground is at http://{at}/ (Ctrl-C ends it)");
        let router = console::router(Console::without_server(VIEWS), guard);
        let service = console::service(None, router);
        // Streams go on for as long as somebody looks: nobody waits for their end.
        let (_phases, phase) = watch::channel(Phase::Serving);
        tokio::select! {
            () = listener::serve(listener, service, phase) => {}
            _ = terminated.recv() => {}
            _ = interrupted.recv() => {}
        }
        Ok(())
    }
}
