use super::budget::Budget;
use super::{Ends, PATIENCE, Phase, Protocol, Service, accepted_from, served};
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
use tokio_rustls::TlsAcceptor;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longer than anything but a request may take.
const LONG: Duration = Duration::from_mins(1);
/// Bytes of the requests of one connection.
const BYTES: usize = 1 << 20;
const ASKED: &[u8] = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";

fn router() -> Router {
    let waiting = || futures_util::stream::iter([Ok::<_, Infallible>("begun")]).chain(futures_util::stream::pending());
    Router::new()
        .route("/ok", any(|_: Bytes| async { "ok" }))
        .route("/never", get(|| async { pending::<&str>().await }))
        .route("/large", get(|| async { vec![b'x'; 1 << 20] }))
        .route("/waiting", get(move || async move { Body::from_stream(waiting()) }))
}

/// One whose handshake nobody comes to the end of.
fn tls() -> TlsAcceptor {
    #[derive(Debug)]
    struct None;
    impl rustls::server::ResolvesServerCert for None {
        fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
            Option::None
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(config.with_no_client_auth().with_cert_resolver(Arc::new(None))))
}

/// A connection, by a clock that goes on by itself whenever all wait.
fn connected(tls: Option<TlsAcceptor>, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    connected_to(Service { tls, ..service() }, phase)
}

fn connected_to(service: Service, phase: watch::Receiver<Phase>) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = duplex(1 << 16);
    let ends = Ends { peer: ([127, 0, 0, 1], 1).into(), own: None };
    let budget = Budget::new(Budget::listener(), BYTES);
    (near, tokio::spawn(accepted_from(ends, far, service, budget, phase)))
}

fn service() -> Service {
    let protocol = Protocol::Http;
    Service { tls: None, protocol, router: router(), request_timeout: LONG, connection_bytes: BYTES }
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

/// Waits for the end of a connection, by the clock that goes on by itself.
async fn ended<T>(connection: JoinHandle<T>) -> T {
    timeout(100 * LONG, connection).await.expect("the connection ends").unwrap()
}

/// All that the peer is sent until the connection ends.
async fn rest(near: &mut DuplexStream) -> String {
    let mut bytes = vec![];
    let _ = near.read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(start_paused = true)]
async fn peer_that_never_reads_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (mut near, served) = connected(None, phase);
    near.write_all(b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn peer_that_leaves_its_window_closed_is_disconnected() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, served) = connected(None, phase);
    let (mut client, _connection) = http2(near, 1000).await;
    let (response, _) = client.send_request(get_request("/large"), true).unwrap();
    let _unread = response.await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn response_that_waits_for_the_gateway_is_kept() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, _served) = connected(None, phase);
    let (mut client, _connection) = http2(near, 1000).await;
    let (response, _) = client.send_request(get_request("/waiting"), true).unwrap();
    let mut body = response.await.unwrap().into_body();
    assert_eq!(body.data().await.unwrap().unwrap(), "begun");
    tokio::time::sleep(10 * LONG).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
}

#[tokio::test(start_paused = true)]
async fn bodies_in_flight_share_a_budget_of_bytes() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let (near, _served) = connected(None, phase);
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
    // All are received in turns, until there is no room for one of them.
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
    assert_eq!(response.await.unwrap().status(), StatusCode::OK, "the others have given back their bytes");
}

#[tokio::test(start_paused = true)]
async fn grpc_takes_its_content_types_over_http_2_alone() {
    let (_phases, phase) = watch::channel(Phase::Serving);
    let grpc = || Service { protocol: Protocol::Grpc, ..service() };
    let (near, _served) = connected_to(grpc(), phase.clone());
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
    let (mut near, served) = connected_to(grpc(), phase);
    near.write_all(b"POST /ok HTTP/1.1\r\nHost: a\r\nContent-Type: application/grpc\r\n\r\n").await.unwrap();
    assert!(!rest(&mut near).await.contains("HTTP/1.1"));
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn drain_sends_peers_elsewhere_and_answers_them_still() {
    let (phases, phase) = watch::channel(Phase::Serving);
    let (near, served) = connected(None, phase.clone());
    let (mut client, connection) = http2(near, 1 << 20).await;
    assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK);
    let (mut idle, _idle_served) = connected(None, phase.clone());
    phases.send_replace(Phase::Draining);
    ended(connection).await.unwrap();
    ended(served).await;
    idle.write_all(ASKED).await.unwrap();
    let answer = rest(&mut idle).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
    let (near, served) = connected(None, phase);
    let (mut client, connection) = http2(near, 1 << 20).await;
    for _ in 0..2 {
        assert_eq!(status(&mut client, get_request("/ok")).await, StatusCode::OK, "a new connection is served");
    }
    phases.send_replace(Phase::Ending);
    ended(connection).await.unwrap();
    ended(served).await;
}

#[tokio::test(start_paused = true)]
async fn who_does_not_begin_in_time_is_hung_up_on() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (head, beginning) = (ASKED.split_at(20).0, PREFACE.split_at(20).0);
    for (bytes, encrypted) in [
        (b"".as_slice(), false),
        (b"P".as_slice(), false),
        (beginning, false),
        (head, false),
        (b"".as_slice(), true),
        (b"\x16\x03\x01\x02\x00", true),
    ] {
        let (mut near, served) = connected(encrypted.then(tls), ended.clone());
        near.write_all(bytes).await.unwrap();
        served.await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_answer_pings_of_http_2_is_hung_up_on() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (mut near, served) = connected(None, ended);
    near.write_all(PREFACE).await.unwrap();
    near.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_end_is_answered_in_time() {
    let (_end, ended) = watch::channel(Phase::Serving);
    let (mut near, _served) = connected(None, ended);
    let begun = Instant::now();
    near.write_all(b"GET /never HTTP/1.1\r\nHost: a\r\n\r\n").await.unwrap();
    let mut answer = [0; 12];
    near.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
    assert!(PATIENCE < LONG && begun.elapsed() >= LONG, "as long as this listener says");
}

#[tokio::test(start_paused = true)]
async fn at_the_end_nobody_is_waited_for_who_asks_nothing() {
    let (end, ended) = watch::channel(Phase::Ending);
    for encrypted in [false, true] {
        let (_near, served) = connected(encrypted.then(tls), ended.clone());
        served.await.unwrap();
    }
    drop(end);
}

#[tokio::test]
async fn those_above_the_most_are_hung_up_on() {
    let (end, ended) = watch::channel(Phase::Serving);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(served(listener, service(), ended, 2));
    let asked = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // Whoever is hung up on may hear of it as early as here.
        let _ = stream.write_all(ASKED).await;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.ok().map(|_| (stream, answer))
    };
    let first = asked().await.unwrap();
    let second = asked().await.unwrap();
    assert_eq!((&first.1, &second.1), (b"HTTP/1.1 200", b"HTTP/1.1 200"));
    assert!(asked().await.is_none());
    drop(first);
    // Its place is free once the gateway has noticed.
    let mut again = asked().await;
    while again.is_none() {
        tokio::time::sleep(Duration::from_millis(1)).await;
        again = asked().await;
    }
    end.send_replace(Phase::Ending);
    serving.await.unwrap();
}
