use super::{Ends, PATIENCE, Service, accepted_from, served};
use axum::Router;
use axum::routing::get;
use rustls::ServerConfig;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Longer than anything but a request may take.
const LONG: Duration = Duration::from_mins(1);
const ASKED: &[u8] = b"GET /ok HTTP/1.1\r\nHost: a\r\n\r\n";

fn router() -> Router {
    Router::new().route("/ok", get(|| async { "ok" })).route("/never", get(|| async { pending::<&str>().await }))
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
fn connected(tls: Option<TlsAcceptor>, ended: watch::Receiver<bool>) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = duplex(1 << 16);
    let ends = Ends { peer: ([127, 0, 0, 1], 1).into(), own: None };
    (near, tokio::spawn(accepted_from(ends, far, Service { tls, ..service() }, ended)))
}

fn service() -> Service {
    Service { tls: None, router: router(), patience: LONG }
}

#[tokio::test(start_paused = true)]
async fn who_does_not_begin_in_time_is_hung_up_on() {
    let (_end, ended) = watch::channel(false);
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
    let (_end, ended) = watch::channel(false);
    let (mut near, served) = connected(None, ended);
    near.write_all(PREFACE).await.unwrap();
    near.write_all(b"\0\0\0\x04\0\0\0\0\0").await.unwrap();
    served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_does_not_end_is_answered_in_time() {
    let (_end, ended) = watch::channel(false);
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
    let (end, ended) = watch::channel(true);
    for encrypted in [false, true] {
        let (_near, served) = connected(encrypted.then(tls), ended.clone());
        served.await.unwrap();
    }
    drop(end);
}

#[tokio::test]
async fn those_above_the_most_are_hung_up_on() {
    let (end, ended) = watch::channel(false);
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
    end.send_replace(true);
    serving.await.unwrap();
}
