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
const CONNECTION_BYTES: usize = 1 << 20;
const GET_OK: &[u8] = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";

fn router() -> Router {
    let waiting = || futures_util::stream::iter([Ok::<_, Infallible>("begun")]).chain(futures_util::stream::pending());
    Router::new()
        .route("/ok", any(|_: Bytes| async { "ok" }))
        .route("/never", get(|| async { pending::<&str>().await }))
        .route("/large", get(|| async { vec![b'x'; 1 << 20] }))
        .route("/waiting", get(move || async move { Body::from_stream(waiting()) }))
}

/// Returns TLS settings without a certificate, so no handshake succeeds.
fn tls_without_certificate() -> TlsConfig {
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

/// Opens a connection to the routes of [`router`]. Returns the client's end, and the task that serves the connection.
fn connect(tls: Option<TlsConfig>, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    connect_to(Service { tls, ..service() }, phase)
}

fn connect_to(service: Service, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    let (client_end, server_end) = duplex(1 << 16);
    let endpoints = Endpoints { peer: ([127, 0, 0, 1], 1).into(), local: None };
    let budget = Budget::new(Budget::listener(), CONNECTION_BYTES);
    (client_end, tokio::spawn(handle_stream(endpoints, server_end, service, budget, phase)))
}

fn service() -> Service {
    let protocol = Protocol::Http;
    Service {
        tls: None,
        protocol,
        router: router(),
        request_timeout: REQUEST_TIMEOUT,
        connection_bytes: CONNECTION_BYTES,
    }
}

/// Connects a client of HTTP/2 with flow control windows of `window` bytes. The returned task answers pings.
async fn http2(client_end: DuplexStream, window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(window).initial_connection_window_size(window);
    let (client, connection) = builder.handshake(client_end).await.unwrap();
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

/// Waits for the end of a connection. The paused clock advances whenever all tasks wait.
async fn wait_for_end<T>(connection: JoinHandle<T>) -> T {
    timeout(100 * REQUEST_TIMEOUT, connection).await.expect("the connection ends").unwrap()
}

/// Returns all bytes that the client receives until the connection ends.
async fn read_to_end(client_end: &mut DuplexStream) -> String {
    let mut bytes = vec![];
    let _ = client_end.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(start_paused = true)]
async fn peer_that_never_reads_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (mut client_end, server_task) = connect(None, phase);
    client_end.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    wait_for_end(server_task).await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_leaves_its_window_closed_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (client_end, server_task) = connect(None, phase);
    let (mut client, _connection) = http2(client_end, 1000).await;
    let (response, _) = client.send_request(get_request("/large"), true).unwrap();
    let _unread = response.await.unwrap();
    wait_for_end(server_task).await;
}

#[tokio::test(start_paused = true)]
async fn response_without_data_to_read_is_not_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (client_end, _server_task) = connect(None, phase);
    let (mut client, _connection) = http2(client_end, 1000).await;
    let (response, _) = client.send_request(get_request("/waiting"), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "begun");
    tokio::time::sleep(10 * REQUEST_TIMEOUT).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn bodies_in_flight_share_a_byte_budget() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (client_end, _server_task) = connect(None, phase);
    let (mut client, _connection) = http2(client_end, 1 << 20).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
    assert_eq!(client.current_max_send_streams(), 256);
    let mut requests = vec![];
    for _ in 0..3 {
        requests.push(client.send_request(request("/ok", "text/plain"), false).unwrap());
    }
    let data = Bytes::from(vec![b'x'; CONNECTION_BYTES * 2 / 5]);
    for (_, body) in &mut requests {
        body.send_data(data.clone(), false).unwrap();
    }
    // The bodies arrive interleaved until the three together exceed the budget.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut statuses = vec![];
    for (response, mut body) in requests {
        let _ = body.send_data(Bytes::new(), true);
        statuses.push(response.await.unwrap().status().as_u16());
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 200, 503]);
    let (response, mut body) = client.send_request(request("/ok", "text/plain"), false).unwrap();
    body.send_data(Bytes::from(vec![b'x'; CONNECTION_BYTES * 4 / 5]), true).unwrap();
    assert_eq!(response.await.unwrap().status(), StatusCode::OK, "the other requests have returned their bytes");
}

#[tokio::test(start_paused = true)]
async fn grpc_accepts_only_its_content_types_over_http2() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let grpc = || Service { protocol: Protocol::Grpc, ..service() };
    let (client_end, _server_task) = connect_to(grpc(), phase.clone());
    let (mut client, _connection) = http2(client_end, 1 << 20).await;
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
    let (mut client_end, server_task) = connect_to(grpc(), phase);
    client_end.write_all(b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\r\n").await.unwrap();
    assert!(!read_to_end(&mut client_end).await.contains("HTTP/1.1"));
    wait_for_end(server_task).await;
}

#[tokio::test(start_paused = true)]
async fn drain_closes_old_connections_and_serves_new_ones() {
    let (phases, phase) = watch::channel(Phase::Serving);
    let (client_end, server_task) = connect(None, phase.clone());
    let (mut client, connection) = http2(client_end, 1 << 20).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
    let (mut idle, _idle_server_task) = connect(None, phase.clone());
    phases.send_replace(Phase::Draining);
    wait_for_end(connection).await.unwrap();
    wait_for_end(server_task).await;
    idle.write_all(GET_OK).await.unwrap();
    let answer = read_to_end(&mut idle).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    let (client_end, server_task) = connect(None, phase);
    let (mut client, connection) = http2(client_end, 1 << 20).await;
    for _ in 0..2 {
        assert_eq!(
            status(&mut client, get_request("/ok")).await,
            StatusCode::OK,
            "status on a new connection during the drain"
        );
    }
    phases.send_replace(Phase::Ending);
    wait_for_end(connection).await.unwrap();
    wait_for_end(server_task).await;
}

#[tokio::test(start_paused = true)]
async fn connection_without_a_request_in_time_is_closed() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (partial_head, partial_preface) = (GET_OK.split_at(20).0, PREFACE.split_at(20).0);
    for (bytes, is_encrypted) in [
        (b"".as_slice(), false),
        (b"P".as_slice(), false),
        (partial_preface, false),
        (partial_head, false),
        (b"".as_slice(), true),
        (b"\x16\x03\x01\x02\x00", true),
    ] {
        let (mut client_end, server_task) = connect(is_encrypted.then(tls_without_certificate), phase.clone());
        client_end.write_all(bytes).await.unwrap();
        server_task.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn http2_connection_without_ping_replies_is_closed() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (mut client_end, server_task) = connect(None, phase);
    client_end.write_all(PREFACE).await.unwrap();
    client_end.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    server_task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn request_timeout_is_answered_with_408() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (mut client_end, _server_task) = connect(None, phase);
    let started = Instant::now();
    client_end.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    client_end.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert!(IO_TIMEOUT < REQUEST_TIMEOUT && started.elapsed() >= REQUEST_TIMEOUT, "the request timeout applies");
}

#[tokio::test(start_paused = true)]
async fn ending_phase_closes_idle_connections() {
    let (_phases, phase) = watch::channel(Phase::Ending);
    for is_encrypted in [false, true] {
        let (_client_end, server_task) = connect(is_encrypted.then(tls_without_certificate), phase.clone());
        server_task.await.unwrap();
    }
}

#[tokio::test]
async fn connections_above_the_maximum_are_closed() {
    let (phases, phase) = watch::channel(Phase::Serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(serve_bounded(listener, service(), phase, 2));
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
    let mut retried = request().await;
    while retried.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        retried = request().await;
    }
    phases.send_replace(Phase::Ending);
    serving.await.unwrap();
}
