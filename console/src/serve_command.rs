//! The commands that serve the page: `serve`, the console of a server, and `playground`, which needs no server.

use crate::command_line::{Listen, Serve};
use crate::web::{self, Console, Gateways, Guard, Tokens};
use ratelimit_link::certificate::TlsFiles;
use ratelimit_link::listener::{self, Phase};
use ratelimit_link::process::{Signals, bind};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;

/// Views that need no server.
const VIEWS: &[&str] = &["playground", "replay"];

/// Serves the console until SIGTERM or SIGINT.
///
/// # Errors
/// If an option or a file is malformed, if the port is taken, or if there is no token for an address off loopback.
pub async fn serve(options: Serve) -> Result<(), String> {
    let address = options.address()?;
    let gateways = Gateways::new(&options.gateways, options.gateway_ca.as_deref())?;
    let announce = |address: SocketAddr| tracing::info!(console = %address, "serving");
    let console = Console::with_server(address, options.prometheus()?, gateways);
    serve_page(console, &options.listen, Tokens::find()?, announce).await
}

/// Serves the views that need no server until SIGTERM or SIGINT.
///
/// # Errors
/// Returns the errors of [`serve`].
pub async fn playground(options: Listen) -> Result<(), String> {
    let scheme = if options.cert.is_some() { "https" } else { "http" };
    let announce = move |address: SocketAddr| println!("The playground is at {scheme}://{address}/ (Ctrl-C ends it)");
    serve_page(Console::without_server(VIEWS), &options, Tokens::find_for_reading()?, announce).await
}

/// Serves a page until SIGTERM or SIGINT. `announce` is called with the address of the listener.
async fn serve_page(
    console: Console,
    options: &Listen,
    tokens: Tokens,
    announce: impl FnOnce(SocketAddr),
) -> Result<(), String> {
    // Signals must be caught before the port is announced, so that a signal after that ends the process properly.
    let mut signals = Signals::new()?;
    let tokens = Arc::new(tokens);
    let guard = Guard::new(options.address.ip(), Arc::clone(&tokens), &options.hosts)?;
    Tokens::watch(&tokens)?;
    let files = options.cert.clone().zip(options.key.clone());
    let files = files.map(|(certificate, key)| TlsFiles { certificate, key, client_authority: None });
    let tls = files.map(|files| files.watch(web::ignore_reload_result)).transpose()?;
    let listener = bind(options.address).await.map_err(|error| format!("--listen {error}"))?;
    announce(listener.local_addr().map_err(|error| error.to_string())?);
    console.start();
    // The shutdown does not wait for event streams, which last as long as a client reads them.
    let (_phases, phase) = watch::channel(Phase::Serving);
    tokio::select! {
        () = listener::serve(listener, web::service(tls, web::router(console, guard)), phase) => {}
        () = signals.next() => {}
    }
    Ok(())
}
