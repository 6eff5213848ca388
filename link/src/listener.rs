//! Listeners for gRPC and HTTP, with or without TLS: bounds of connections and requests, and graceful shutdown.
//!
//! Both protocols share this code, because the routes of gRPC are an axum router as well.

mod body;
mod budget;
mod connection;
mod stalls;
mod stream;

use crate::certificate::TlsConfig;
use axum::Router;
use budget::Budget;
use connection::serve_connection;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

/// Timeout of a TLS handshake, of the first bytes of a connection, of the head of a request, and of each write.
pub const IO_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before connections are accepted again after an error, such as too many open files.
const ACCEPT_RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of open connections of a listener. Further connections are closed at once.
const MAX_CONNECTIONS: u32 = 10_000;

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC over HTTP/2. Other content types are rejected.
    Grpc,
    /// HTTP/1.1 and HTTP/2.
    Http,
}

/// Lifecycle phase of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Connections are accepted and kept.
    Serving,
    /// Connections are still accepted, but peers are asked to open their next connection to another instance.
    Draining,
    /// Only requests in flight are answered.
    Ending,
}

/// Routes and bounds of a listener.
#[derive(Clone)]
pub struct Service {
    /// TLS settings, if the listener speaks TLS.
    pub tls: Option<TlsConfig>,
    /// Protocol of the listener.
    pub protocol: Protocol,
    /// Routes of the listener.
    pub router: Router,
    /// Timeout from the head of a request until its response begins.
    pub request_timeout: Duration,
    /// Maximum number of bytes that the requests in flight of one connection may hold.
    pub connection_bytes: usize,
}

/// Addresses of both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Endpoints {
    /// Address of the client or of the last proxy.
    pub peer: SocketAddr,
    /// Address of the listener that the client connected to.
    pub local: Option<IpAddr>,
}

impl Endpoints {
    fn new(stream: &TcpStream, peer: SocketAddr) -> Endpoints {
        Endpoints { peer, local: stream.local_addr().ok().map(|address| address.ip().to_canonical()) }
    }
}

/// Serves until the phase is `Ending`, and returns once the requests in flight are answered.
pub async fn serve(listener: TcpListener, service: Service, phase: watch::Receiver<Phase>) {
    serve_bounded(listener, service, phase, MAX_CONNECTIONS).await;
}

async fn serve_bounded(
    listener: TcpListener,
    service: Service,
    mut phase: watch::Receiver<Phase>,
    max_connections: u32,
) {
    let (permits, listener_budget) = (Arc::new(Semaphore::new(max_connections as usize)), Budget::listener());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = wait_for_phase(&mut phase, Phase::Ending) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // A client whose connection is closed at once can try another instance. In a queue it could not.
                let Ok(permit) = Arc::clone(&permits).try_acquire_owned() else { continue };
                let (endpoints, service, phase) = (Endpoints::new(&stream, peer), service.clone(), phase.clone());
                let budget = Budget::new(Arc::clone(&listener_budget), service.connection_bytes);
                tokio::spawn(async move {
                    // Nagle's algorithm would delay a response until the peer's acknowledgement.
                    let _ = stream.set_nodelay(true);
                    handle_stream(endpoints, stream, service, budget, phase).await;
                    drop(permit);
                });
            }
            // The client closed the connection before it was accepted.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(ACCEPT_RETRY_PAUSE).await,
        }
    }
    drop(listener);
    // All permits are free once the last connection has ended. The semaphore is never closed.
    let _ = permits.acquire_many(max_connections).await;
}

/// Completes once the current phase is `target` or later.
async fn wait_for_phase(current: &mut watch::Receiver<Phase>, target: Phase) {
    // Fails only if the sender of the phase is dropped, but the sender outlives the service.
    let _ = current.wait_for(|phase| *phase >= target).await;
}

async fn handle_stream(
    endpoints: Endpoints,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    budget: Budget,
    mut phase: watch::Receiver<Phase>,
) {
    let Some(tls) = service.tls.as_ref().map(|tls| TlsAcceptor::from(tls.load_full())) else {
        return serve_connection(endpoints, stream, service, budget, phase).await;
    };
    let handshake = tokio::select! {
        result = timeout(IO_TIMEOUT, tls.accept(stream)) => result,
        () = wait_for_phase(&mut phase, Phase::Ending) => return,
    };
    if let Ok(Ok(stream)) = handshake {
        serve_connection(endpoints, stream, service, budget, phase).await;
    }
}

#[cfg(test)]
mod tests;
