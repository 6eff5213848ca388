//! The running page: the console before a server, or the playground without one.

use crate::command_line::{Listen, Serve};
use crate::web::{self, Console, Guard, Tokens};
use ratelimit_link::certificate::Certificate;
use ratelimit_link::listener::{self, Phase};
use ratelimit_link::process::{Signals, bind};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// The views that need no server.
const VIEWS: &[&str] = &["playground", "replay"];

/// Serves the console until SIGTERM or SIGINT.
///
/// # Errors
/// If an option or a file is wrong, if a port is taken, or if there is no token off loopback.
pub async fn serve(options: Serve) -> Result<(), String> {
    let address = options.address()?;
    let begun = |at: SocketAddr| tracing::info!(console = %at, "serving");
    page(Console::of(address), &options.listen, Tokens::find()?, begun).await
}

/// Serves the views that need no server until SIGTERM or SIGINT.
///
/// # Errors
/// As for [`serve`].
pub async fn playground(options: Listen) -> Result<(), String> {
    let scheme = if options.cert.is_some() { "https" } else { "http" };
    let begun = move |at: SocketAddr| println!("The playground is at {scheme}://{at}/ (Ctrl-C ends it)");
    page(Console::without_server(VIEWS), &options, Tokens::find_look()?, begun).await
}

async fn page(
    console: Console,
    options: &Listen,
    tokens: Tokens,
    begun: impl FnOnce(SocketAddr),
) -> Result<(), String> {
    // Before the port is told: a signal that nobody listens for would end the process.
    let mut signals = Signals::new()?;
    let tokens = Arc::new(tokens);
    let guard = Guard::new(options.at.ip(), Arc::clone(&tokens), &options.hosts)?;
    Tokens::watch(&tokens)?;
    let tls = Certificate::watch(options.cert.clone().zip(options.key.clone()), web::uncounted)?;
    let listener = bind(options.at).await.map_err(|told| format!("--listen {told}"))?;
    begun(listener.local_addr().map_err(|error| error.to_string())?);
    console.start();
    // Streams go on for as long as a client reads them: the end does not wait for theirs.
    let (_phases, phase) = watch::channel(Phase::Serving);
    tokio::select! {
        () = listener::serve(listener, web::service(tls, web::router(console, guard)), phase) => {}
        () = signals.next() => {}
    }
    Ok(())
}
