//! Connections of a listener: bounds of their requests, and graceful shutdown.

use super::body::{RequestBody, ResponseBody};
use super::budget::{Budget, Charge};
use super::stalls::Stalls;
use super::stream::TimedStream;
use super::{Endpoints, IO_TIMEOUT, Phase, Protocol, Service, wait_for_phase};
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::timeout;
use tower::ServiceExt as _;

/// Maximum number of requests in flight on one connection.
const MAX_STREAMS: u32 = 256;
/// Flow control window of a request: bytes that the peer may send before they are read.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Flow control window that all requests of a connection share.
const CONNECTION_WINDOW: u32 = 256 * 1024;
/// Maximum number of bytes of a response that are buffered until the peer reads them.
const SEND_BUFFER: usize = 64 * 1024;
/// Maximum size of the head of a request over HTTP/1.1, in bytes.
const MAX_HEAD: usize = 64 * 1024;
/// Estimated memory of a request without its head and its body, in bytes.
const REQUEST_OVERHEAD: usize = 1024;

/// Status code `DEADLINE_EXCEEDED` of gRPC.
const DEADLINE_EXCEEDED: &str = "4";
/// Status code `RESOURCE_EXHAUSTED` of gRPC.
const RESOURCE_EXHAUSTED: &str = "8";

/// State that the requests of a connection share.
struct Connection {
    endpoints: Endpoints,
    service: Service,
    budget: Budget,
    stalls: Arc<Stalls>,
    phase: watch::Receiver<Phase>,
    /// `true` once a request over HTTP/2 was received.
    is_http2: AtomicBool,
}

/// Serves a connection until its peer closes it, stops reading, or the phase of the listener ends it.
pub async fn serve_connection(
    endpoints: Endpoints,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    service: Service,
    budget: Budget,
    phase: watch::Receiver<Phase>,
) {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IO_TIMEOUT).max_buf_size(MAX_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Some(IO_TIMEOUT))
        .keep_alive_timeout(IO_TIMEOUT)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_concurrent_streams(MAX_STREAMS);
    if service.protocol == Protocol::Grpc {
        builder = builder.http2_only();
    }
    let stalls = Stalls::new();
    let mut shutdown_phase = phase.clone();
    let is_http2 = AtomicBool::new(service.protocol == Protocol::Grpc);
    let connection = Arc::new(Connection { endpoints, service, budget, stalls: Arc::clone(&stalls), phase, is_http2 });
    let shared = Arc::clone(&connection);
    let handler = hyper::service::service_fn(move |request: Request<Incoming>| {
        let connection = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let mut serving = pin!(builder.serve_connection(TokioIo::new(TimedStream::new(stream)), handler));
    // Errors are ignored: the peer closed the connection or broke the protocol.
    tokio::select! {
        _ = serving.as_mut() => return,
        () = stalls.stalled() => return,
        () = connection.wait_for_shutdown(&mut shutdown_phase) => {}
    }
    serving.as_mut().graceful_shutdown();
    tokio::select! {
        _ = serving => {}
        () = stalls.stalled() => {}
    }
}

impl Connection {
    /// Completes when the connection must begin its graceful shutdown: at the beginning of the drain if it was opened
    /// earlier and uses HTTP/2, otherwise when the listener ends. During the drain, each response over HTTP/1.1 asks
    /// the peer to close the connection.
    async fn wait_for_shutdown(&self, phase: &mut watch::Receiver<Phase>) {
        if *phase.borrow_and_update() == Phase::Serving {
            wait_for_phase(phase, Phase::Draining).await;
            if self.is_http2.load(Ordering::Relaxed) {
                return;
            }
        }
        wait_for_phase(phase, Phase::Ending).await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<ResponseBody> {
        let version = request.version();
        if version == Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        let charge = self.budget.charge(REQUEST_OVERHEAD.saturating_add(head_bytes(&request)));
        let mut response = match &charge {
            _ if self.service.protocol == Protocol::Grpc && !is_grpc(&request) => {
                empty_response(StatusCode::UNSUPPORTED_MEDIA_TYPE)
            }
            Some(charge) => self.route(request, charge).await,
            None => self.over_budget(),
        };
        if version < Version::HTTP_2 && *self.phase.borrow() > Phase::Serving {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        response.map(|body| ResponseBody::new(body, self.stalls.watch(), charge))
    }

    async fn route(&self, request: Request<Incoming>, charge: &Arc<Charge>) -> Response<Body> {
        let mut request = request.map(|body| Body::new(RequestBody::new(body, Arc::clone(charge))));
        request.extensions_mut().insert(ConnectInfo(self.endpoints));
        match timeout(self.service.request_timeout, self.service.router.clone().oneshot(request)).await {
            _ if charge.is_exceeded() => self.over_budget(),
            Ok(Ok(response)) => response,
            Ok(Err(never)) => match never {},
            Err(_) => self.rejection(StatusCode::REQUEST_TIMEOUT, DEADLINE_EXCEEDED, "the request is incomplete"),
        }
    }

    fn over_budget(&self) -> Response<Body> {
        let message = "the requests in flight hold too many bytes";
        let mut response = self.rejection(StatusCode::SERVICE_UNAVAILABLE, RESOURCE_EXHAUSTED, message);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        response
    }

    fn rejection(&self, http: StatusCode, grpc: &'static str, message: &'static str) -> Response<Body> {
        match self.service.protocol {
            Protocol::Grpc => grpc_status(grpc, message),
            Protocol::Http => empty_response(http),
        }
    }
}

/// Returns a gRPC response that consists of a status only.
fn grpc_status(code: &'static str, message: &'static str) -> Response<Body> {
    let mut response = empty_response(StatusCode::OK);
    let fields = [("content-type", "application/grpc"), ("grpc-status", code), ("grpc-message", message)];
    response
        .headers_mut()
        .extend(fields.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))));
    response
}

fn empty_response(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Returns `true` if the content type is `application/grpc`, with or without a subtype, and not that of gRPC-Web.
fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = content_type.and_then(|content_type| content_type.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

fn head_bytes<B>(request: &Request<B>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len().saturating_add(value.len()));
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    fields.fold(path, usize::saturating_add)
}
