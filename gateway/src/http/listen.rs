//! The listener: connections with or without TLS, who of them may take how long, and their end.

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tower::ServiceExt as _;

/// How long the head of a request may take, a handshake, and then a request with its body: nobody is waited for longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is accepted after the process has run out of files.
const FULL: Duration = Duration::from_millis(100);

/// What TLS takes: the certificates of a file and the key of another.
///
/// # Errors
/// What is wrong with them.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let told = |path: &Path, error: &dyn std::error::Error| format!("{}: {error}", path.display());
    let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|error| told(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| told(key, &error))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, secret);
    let mut config = config.map_err(|error| told(certificate, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Answers until `ended`, and then ends what is under way.
pub async fn serve(listener: TcpListener, tls: Option<TlsAcceptor>, router: Router, ended: impl Future<Output = ()>) {
    let graceful = GracefulShutdown::new();
    let mut ended = std::pin::pin!(ended);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut ended => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (tls, router, watcher) = (tls.clone(), router.clone(), graceful.watcher());
                tokio::spawn(async move { connection(stream, peer, tls, router, watcher).await });
            }
            // Who has gone again is no reason to wait.
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
            Err(_) => sleep(FULL).await,
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    tls: Option<TlsAcceptor>,
    router: Router,
    watcher: hyper_util::server::graceful::Watcher,
) {
    // Without it an answer may wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(move |request: Request<hyper::body::Incoming>| {
        let router = router.clone();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        async move {
            Ok::<_, Infallible>(match timeout(PATIENCE, router.oneshot(request)).await {
                Ok(Ok(response)) => response,
                Ok(Err(never)) => match never {},
                Err(_) => {
                    let mut late = Response::new(Body::empty());
                    *late.status_mut() = StatusCode::REQUEST_TIMEOUT;
                    late
                }
            })
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(PATIENCE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(Some(PATIENCE)).max_concurrent_streams(1024);
    // Whoever breaks off is no error of this side.
    let _ = match tls {
        None => watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await,
        Some(tls) => match timeout(PATIENCE, tls.accept(stream)).await {
            Ok(Ok(stream)) => watcher.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned()).await,
            _ => return,
        },
    };
}
