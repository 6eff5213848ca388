//! Listeners of the gateway: connections with or without TLS, their bounds, and their end. gRPC and HTTP are served by
//! the same code: the routes of gRPC are an axum router, too.

mod patient;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use patient::Patient;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// How long a handshake, the first bytes, and the head of a request may take: nobody is waited for longer.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the process has run out of files.
const FULL: Duration = Duration::from_millis(100);
/// How many connections a listener has at once; it hangs up on those above.
const MOST: u32 = 10_000;
/// How many requests one connection has at once.
const STREAMS: u32 = 1024;

/// What a listener answers, and how.
#[derive(Clone)]
pub struct Service {
    /// Its certificate and key, if it speaks TLS.
    pub tls: Option<TlsAcceptor>,
    /// What it answers.
    pub router: Router,
    /// How long a request to the router may take, with its body, until its answer begins.
    pub patience: Duration,
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

/// Answers until `ended` is true, and then ends what is under way.
pub async fn serve(listener: TcpListener, service: Service, ended: watch::Receiver<bool>) {
    served(listener, service, ended, MOST).await;
}

async fn served(listener: TcpListener, service: Service, mut ended: watch::Receiver<bool>, most: u32) {
    let places = Arc::new(Semaphore::new(most as usize));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = is_true(&mut ended) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                // A client that is hung up on can go elsewhere; one that waited for a place could not.
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else { continue };
                let (ends, service, ended) = (Ends::of(&stream, peer), service.clone(), ended.clone());
                tokio::spawn(async move {
                    // Without it an answer may wait for an acknowledgement.
                    let _ = stream.set_nodelay(true);
                    accepted_from(ends, stream, service, ended).await;
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

/// Returns once it is true.
async fn is_true(value: &mut watch::Receiver<bool>) {
    // The sender lives as long as the service.
    let _ = value.wait_for(|value| *value).await;
}

async fn accepted_from(
    ends: Ends,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    mut ended: watch::Receiver<bool>,
) {
    let Some(tls) = service.tls.clone() else { return connection(ends, stream, service, ended).await };
    let encrypted = tokio::select! {
        encrypted = timeout(PATIENCE, tls.accept(stream)) => encrypted,
        () = is_true(&mut ended) => return,
    };
    if let Ok(Ok(stream)) = encrypted {
        connection(ends, stream, service, ended).await;
    }
}

async fn connection(
    ends: Ends,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    Service { router, patience, .. }: Service,
    mut ended: watch::Receiver<bool>,
) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let is_grpc = is_grpc(&request);
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(ends));
        let routed = router.clone().oneshot(request);
        async move {
            match timeout(patience, routed).await {
                Ok(response) => response,
                Err(_) => Ok::<_, Infallible>(late(is_grpc)),
            }
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(PATIENCE))
        .keep_alive_timeout(PATIENCE)
        .max_concurrent_streams(STREAMS);
    let mut served = pin!(builder.serve_connection(TokioIo::new(Patient::new(stream, PATIENCE)), service));
    // Whoever breaks off is no error of this side.
    tokio::select! {
        _ = served.as_mut() => {}
        () = is_true(&mut ended) => {
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    }
}

fn is_grpc<B>(request: &Request<B>) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc"))
}

/// What is answered to a request that has not come to its end in time.
fn late(is_grpc: bool) -> Response<Body> {
    if is_grpc {
        return tonic::Status::deadline_exceeded("the request did not come to its end in time").into_http();
    }
    let mut late = Response::new(Body::empty());
    *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
    late
}

#[cfg(test)]
mod tests;
