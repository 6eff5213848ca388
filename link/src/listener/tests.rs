use super::budget::Budget;
use super::{Endpoints, IO_TIMEOUT, Phase, Protocol, Service, handle_stream, serve_bounded};
use crate::certificate::TlsConfig;
use arc_swap::ArcSwap;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use axum::routing::{any, get};
use futures_util::StreamExt as _;
use h2::client::SendRequest;
use rustls::ServerConfig;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Timeout of a request, longer than every other timeout of a listener.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Byte budget of a connection.
const BYTES: usize = 1 << 20;
const GET_OK: &[u8] = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";

fn router() -> Router {
    let waiting = || futures_util::stream::iter([Ok::<_, Infallible>("begun")]).chain(futures_util::stream::pending());
    Router::new()
        .route("/ok", any(|_: Bytes| async { "ok" }))
        .route("/never", get(|| async { pending::<&str>().await }))
        .route("/large", get(|| async { vec![b'x'; 1 << 20] }))
        .route("/waiting", get(move || async move { Body::from_stream(waiting()) }))
}

/// Returns settings without a certificate, whose handshakes never complete.
fn tls() -> TlsConfig {
    #[derive(Debug)]
    struct NoCertificate;
    impl rustls::server::ResolvesServerCert for NoCertificate {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
            None
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    Arc::new(ArcSwap::from_pointee(config.with_no_client_auth().with_cert_resolver(Arc::new(NoCertificate))))
}

/// Opens a connection to the routes of [`router`]. The paused clock advances whenever all tasks wait.
fn connect(tls: Option<TlsConfig>, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    connect_to(Service { tls, ..service() }, phase)
}

fn connect_to(service: Service, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = duplex(1 << 16);
    let endpoints = Endpoints { peer: ([127, 0, 0, 1], 1).into(), local: None };
    let budget = Budget::new(Budget::listener(), BYTES);
    (near, tokio::spawn(handle_stream(endpoints, far, service, budget, phase)))
}

fn service() -> Service {
    let protocol = Protocol::Http;
    Service { tls: None, protocol, router: router(), request_timeout: REQUEST_TIMEOUT, connection_bytes: BYTES }
}

/// Client of HTTP/2 with flow control windows of `window` bytes, which answers pings.
async fn http2(near: DuplexStream, window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(window);
    let (client, connection) = builder.handshake(near).await.unwrap();
    (client.ready().await.unwrap(), tokio::spawn(connection))
}

fn request(path: &str, content_type: &str) -> Request<()> {
    Request::post(format!("http://a{path}")).header("content-type", content_type).body(()).unwrap()
}

fn get_request(path: &str) -> Request<()> {
    Request::get(format!("http://a{path}")).body(()).unwrap()
}

async fn status(client: &mut SendRequest<Bytes>, request: Request<()>) -> StatusCode {
    client.send_request(request, true).unwrap().0.await.unwrap().status()
}

/// Waits for the end of a connection under the paused clock.
async fn ended<T>(connection: JoinHandle<T>) -> T {
    timeout(100 * REQUEST_TIMEOUT, connection).await.expect("the connection ends").unwrap()
}

/// Reads all that the peer receives until the connection ends.
async fn read_to_end(near: &mut DuplexStream) -> String {
    let mut bytes = vec![];
    let _ = near.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(start_paused = true)]
async fn peer_that_never_reads_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (mut near, served) = connect(None, phase);
    near.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_leaves_its_window_closed_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, served) = connect(None, phase);
    let (mut client, _connection) = http2(near, 1000).await;
    let (response, _) = client.send_request(get_request("/large"), true).unwrap();
    let _unread = response.await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn response_without_data_to_read_is_not_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, _served) = connect(None, phase);
    let (mut client, _connection) = http2(near, 1000).await;
    let (response, _) = client.send_request(get_request("/waiting"), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "begun");
    tokio::time::sleep(10 * REQUEST_TIMEOUT).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn bodies_in_flight_share_a_byte_budget() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, _served) = connect(None, phase);
    let (mut client, _connection) = http2(near, 1 << 20).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
    assert_eq!(client.current_max_send_streams(), 256);
    let mut parts = vec![];
    for _ in 0..3 {
        parts.push(client.send_request(request("/ok", "text/plain"), false).unwrap());
    }
    let part = Bytes::from(vec![b'x'; BYTES * 2 / 5]);
    for (_, body) in &mut parts {
        body.send_data(part.clone(), false).unwrap();
    }
    // The bodies are received in turns until one of them exceeds the budget.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut statuses = vec![];
    for (response, mut body) in parts {
        let _ = body.send_data(Bytes::new(), true);
        statuses.push(response.await.unwrap().status().as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
    let (response, mut body) = client.send_request(request("/ok", "text/plain"), false).unwrap();
    body.send_data(Bytes::from(vec![b'x'; BYTES * 4 / 5]), true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK, "the other requests have returned their bytes");
}

#[tokio::test(start_paused = true)]
async fn grpc_accepts_only_its_content_types_over_http2() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let grpc = || Service { protocol: Protocol::Grpc, ..service() };
    let (near, _served) = connect_to(grpc(), phase.clone());
    let (mut client, _connection) = http2(near, 1 << 20).await;
    for (content_type, expected) in [
        ("application/grpc", StatusCode::OK),
        ("application/grpc+proto", StatusCode::OK),
        ("application/grpc;charset=utf-8", StatusCode::OK),
        ("application/grpc-web+proto", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("text/plain", StatusCode::UNSUPPORTED_MEDIA_TYPE),
        ("", StatusCode::UNSUPPORTED_MEDIA_TYPE),
    ] {
        assert_eq!(status(&mut client, request("/ok", content_type)).await, expected, "{content_type}");
    }
    let (mut near, served) = connect_to(grpc(), phase);
    near.write_all(b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\r\n").await.unwrap();
    assert!(!read_to_end(&mut near).await.contains("HTTP/1.1"));
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn drain_closes_old_connections_and_serves_new_ones() {
    let (phases, phase) = watch::channel(Phase::Serving);
    let (near, served) = connect(None, phase.clone());
    let (mut client, connection) = http2(near, 1 << 20).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
    let (mut idle, _idle_served) = connect(None, phase.clone());
    phases.send_replace(Phase::Draining);
    ended(connection).await.unwrap();
    ended(served).await;
    idle.write_all(GET_OK).await.unwrap();
    let answer = read_to_end(&mut idle).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    let (near, served) = connect(None, phase);
    let (mut client, connection) = http2(near, 1 << 20).await;
    for _ in 0..2 {
        assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK, "a new connection is served");
    }
    phases.send_replace(Phase::Ending);
    ended(connection).await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_request_in_time_is_closed() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (head, beginning) = (GET_OK.split_at(20).0, PREFACE.split_at(20).0);
    for (bytes, encrypted) in [
        (b"".as_slice(), false),
        (b"P".as_slice(), false),
        (beginning, false),
        (head, false),
        (b"".as_slice(), true),
        (b"\x16\x03\x01\x02\x00", true),
    ] {
        let (mut near, served) = connect(encrypted.then(tls), ended.clone());
        near.write_all(bytes).await.unwrap();
        served.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn http2_connection_without_ping_replies_is_closed() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (mut near, served) = connect(None, ended);
    near.write_all(PREFACE).await.unwrap();
    near.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_timeout_is_answered_with_408() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (mut near, _served) = connect(None, ended);
    let begun = Instant::now();
    near.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert!(IO_TIMEOUT < REQUEST_TIMEOUT && begun.elapsed() >= REQUEST_TIMEOUT, "the timeout of this listener");
}

#[tokio::test(start_paused = true)]
async fn ending_phase_closes_idle_connections() {
    let (end, ended) = watch::channel(Phase::Ending);
    for encrypted in [false, true] {
        let (_near, served) = connect(encrypted.then(tls), ended.clone());
        served.await.unwrap();
    }
    drop(end);
}

#[tokio::test]
async fn connections_above_the_maximum_are_closed() {
    let (end, ended) = watch::channel(Phase::Serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve_bounded(listener, service(), ended, 2));
    let request = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The write fails if the connection is closed already.
        let _ = stream.write_all(GET_OK).await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok().map(|_| (stream, answer))
    };
    let first = request().await.unwrap();
    let second = request().await.unwrap();
    assert_eq!((&first.1, &second.1), (b"HTTP/1.1 200", b"HTTP/1.1 200"));
    assert!(request().await.is_none());
    drop(first);
    // The permit is free once the listener has noticed the closed connection.
    let mut again = request().await;
    while again.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        again = request().await;
    }
    end.send_replace(Phase::Ending);
    serving.await.unwrap();
}
