//! Listeners: connections with or without TLS, their bounds, and their end. gRPC and HTTP are served by
//! the same code: the routes of gRPC are an axum router, too.

mod body;
mod budget;
mod connection;
mod stalls;
mod stream;

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
pub use tokio_rustls::TlsAcceptor;

/// Timeout of a handshake, of the first bytes, of the head of a request, and of each write.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Pause after the process has run out of files.
const FULL: Duration = Duration::from_millis(100);
/// Maximum number of connections of a listener, which hangs up on others.
const MOST: u32 = 10_000;

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// gRPC over HTTP/2, and no other content type.
    Grpc,
    /// HTTP/1.1 and HTTP/2.
    Http,
}

/// Phase of a listener's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Connections are accepted and kept.
    Serving,
    /// Connections are accepted still, and peers are told to use another one.
    Draining,
    /// Requests in flight are answered, and no others.
    Ending,
}

/// Routes of a listener, and its bounds.
#[derive(Clone)]
pub struct Service {
    /// Certificate and key, if the listener speaks TLS.
    pub tls: Option<TlsAcceptor>,
    /// Protocol of the listener.
    pub protocol: Protocol,
    /// Routes of the listener.
    pub router: Router,
    /// Timeout of a request, with its body, until its response begins.
    pub request_timeout: Duration,
    /// Bytes that the requests in flight of one connection may hold.
    pub connection_bytes: usize,
}

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The address of the client.
    pub peer: SocketAddr,
    /// The address at which it has reached the listener.
    pub own: Option<IpAddr>,
}

impl Ends {
    fn of(stream: &TcpStream, peer: SocketAddr) -> Ends {
        Ends { peer, own: stream.local_addr().ok().map(|address| address.ip().to_canonical()) }
    }
}

/// Serves until the phase is `Ending`, and then ends what is under way.
pub async fn serve(listener: TcpListener, service: Service, phase: watch::Receiver<Phase>) {
    served(listener, service, phase, MOST).await;
}

async fn served(listener: TcpListener, service: Service, mut phase: watch::Receiver<Phase>, most: u32) {
    let (places, bytes) = (Arc::new(Semaphore::new(most as usize)), Budget::listener());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = reached(&mut phase, Phase::Ending) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // A client that is hung up on can go elsewhere; one that waited for a place could not.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (ends, service, phase) = (Ends::of(&stream, peer), service.clone(), phase.clone());
                let budget = Budget::new(Arc::clone(&bytes), service.connection_bytes);
                tokio::spawn(async move {
                    // Without it an answer may wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    accepted_from(ends, stream, service, budget, phase).await;
                    drop(place);
                });
            }
            // A client that has gone again is no reason to wait.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(FULL).await,
        }
    }
    drop(listener);
    // All places are free once the last connection has ended. Nobody closes the semaphore.
    let _ = places.acquire_many(most).await;
}

/// Completes once the phase is `wanted` or later.
async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // The sender lives as long as the service.
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

async fn accepted_from(
    ends: Ends,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    budget: Budget,
    mut phase: watch::Receiver<Phase>,
) {
    let Some(tls) = service.tls.clone() else { return serve_connection(ends, stream, service, budget, phase).await };
    let encrypted = tokio::select! {
        encrypted = timeout(PATIENCE, tls.accept(stream)) => encrypted,
        () = reached(&mut phase, Phase::Ending) => return,
    };
    if let Ok(Ok(stream)) = encrypted {
        serve_connection(ends, stream, service, budget, phase).await;
    }
}

#[cfg(test)]
mod tests;
