//! Layers of tower, for axum, tonic and hyper.

use std::fmt::Write as _;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode, response};
use redis::aio::ConnectionLike;
use tower_layer::Layer;
use tower_service::Service;

use crate::address::IPV6_PREFIX;
use crate::bound::Bound;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::fields::{header_fields, name_in_fields, retry_after};
use crate::limits::{Amount, Limit};
use crate::options::Take;

/// Caller of a request, as the key function of a layer returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Who {
    /// A caller, such as a user. An empty name is [`Who::Absent`].
    Key(String),
    /// No caller, for example because a header is missing. The request is limited by its address.
    Absent,
    /// A caller without a limit.
    Unlimited,
}

impl From<String> for Who {
    fn from(key: String) -> Self {
        if key.is_empty() { Self::Absent } else { Self::Key(key) }
    }
}

impl From<&str> for Who {
    fn from(key: &str) -> Self {
        key.to_owned().into()
    }
}

impl<T: Into<Who>> From<Option<T>> for Who {
    fn from(key: Option<T>) -> Self {
        key.map_or(Self::Absent, Into::into)
    }
}

type AddressOf = Arc<dyn Fn(&Parts) -> Option<IpAddr> + Send + Sync>;

/// Source of the keys of requests: the key function of a layer, and the fallback for requests without a caller.
#[derive(Clone)]
struct KeySource<K> {
    key_function: K,
    address_function: AddressOf,
    ipv6_prefix: u8,
    /// `true` after a request without an address was logged.
    is_logged: Arc<AtomicBool>,
}

impl<K> KeySource<K> {
    fn new(key: K) -> Self {
        Self {
            key_function: key,
            address_function: Arc::new(|_| None),
            ipv6_prefix: IPV6_PREFIX,
            is_logged: Arc::default(),
        }
    }

    /// Returns the key of a request, or `None` if it is not limited.
    fn key_of<C, W>(&self, limit: &Bound<C>, parts: &Parts) -> Option<String>
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
        K: Fn(&Parts) -> W,
        W: Into<Who>,
    {
        match (self.key_function)(parts).into() {
            Who::Unlimited => None,
            Who::Key(who) if !who.is_empty() => Some(limit.key_of(&who)),
            Who::Key(_) | Who::Absent => {
                let address = (self.address_function)(parts);
                if address.is_none() && !self.is_logged.swap(true, Ordering::Relaxed) {
                    let key = limit.key_of_address(None, self.ipv6_prefix);
                    log::warn!("requests without a key and without an address share the limit of {key:?}");
                }
                Some(limit.key_of_address(address, self.ipv6_prefix))
            }
        }
    }
}

/// Denial of a request, for which an [`Answer`] returns a response.
pub struct Denial<'d> {
    /// Decision on the request.
    pub decision: &'d Decision,
    /// Limits of the layer.
    pub limits: &'d [Limit],
    /// Name of the limits in header fields.
    pub name: &'d str,
}

/// Responses that a layer returns in place of the service.
pub trait Answer<B>: Clone {
    /// Returns the response to a denied request.
    fn denied(&self, denial: &Denial) -> Response<B>;

    /// Returns the response to a request whose limit cannot be checked because of a misconfiguration.
    fn failed(&self, error: &Error) -> Response<B>;
}

/// Responses in HTTP: status 429, or 503 without a decision, with a problem document (RFC 9457).
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl<B: From<String>> Answer<B> for Http {
    fn denied(&self, denial: &Denial) -> Response<B> {
        let Denial { decision, limits, name } = *denial;
        let (status, kind, title, violated) = match decision.source {
            Source::Server => (
                StatusCode::TOO_MANY_REQUESTS,
                "quota-exceeded",
                "Too many requests",
                Some(name_in_fields(limits, name)),
            ),
            Source::Nobody => (
                StatusCode::SERVICE_UNAVAILABLE,
                "temporary-reduced-capacity",
                "Rate limits cannot be checked at the moment",
                None,
            ),
        };
        let mut response = problem(status, kind, title, violated);
        response.headers_mut().extend(header_fields(decision, limits, name));
        response
    }

    fn failed(&self, error: &Error) -> Response<B> {
        log::error!("a rate limit cannot be checked: {error}");
        problem(StatusCode::INTERNAL_SERVER_ERROR, "", "A rate limit cannot be checked", None)
    }
}

fn problem<B: From<String>>(status: StatusCode, kind: &str, title: &str, violated: Option<&str>) -> Response<B> {
    let kind = if kind.is_empty() {
        "about:blank".to_owned()
    } else {
        format!("https://iana.org/assignments/http-problem-types#{kind}")
    };
    let violated = violated.map_or_else(String::new, |name| format!(r#","violated-policies":["{}"]"#, json_text(name)));
    let body = format!(r#"{{"type":"{kind}","title":"{title}","status":{}{violated}}}"#, status.as_u16());
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// Escapes a text for a JSON string.
fn json_text(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, character| {
        match character {
            '"' | '\\' => escaped.extend(['\\', character]),
            '\0'..='\x1f' => drop(write!(escaped, "\\u{:04x}", u32::from(character))),
            _ => escaped.push(character),
        }
        escaped
    })
}

/// Responses in gRPC: status RESOURCE_EXHAUSTED, UNAVAILABLE without a decision, or INTERNAL for a misconfiguration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl<B: Default> Answer<B> for Grpc {
    fn denied(&self, denial: &Denial) -> Response<B> {
        let mut response = match denial.decision.source {
            Source::Server => trailers_only(RESOURCE_EXHAUSTED, "the rate limit is exceeded"),
            Source::Nobody => trailers_only(UNAVAILABLE, "rate limits cannot be checked at the moment"),
        };
        response.headers_mut().extend(retry_after(denial.decision));
        response
    }

    fn failed(&self, error: &Error) -> Response<B> {
        log::error!("a rate limit cannot be checked: {error}");
        trailers_only(INTERNAL, "a rate limit cannot be checked")
    }
}

/// Status codes of gRPC.
const RESOURCE_EXHAUSTED: u16 = 8;
const INTERNAL: u16 = 13;
const UNAVAILABLE: u16 = 14;

/// Returns a gRPC response that has a status and no message ("Trailers-Only").
fn trailers_only<B: Default>(code: u16, message: &'static str) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    response
}

/// Charge of a request. The layer puts it into the extensions of the request, so that the service can settle it to the
/// actual cost.
#[derive(Clone)]
pub struct Charge<C> {
    limit: Bound<C>,
    key: String,
    decision: Decision,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Charge<C> {
    /// Returns the decision on the request.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Corrects the charge to the actual cost. Requires a layer with [`Take::refundable`], or a charge of more than one
    /// unit or more than a hundredth of a limit.
    ///
    /// # Errors
    /// [`Error::Call`] if the charge has no idempotency key, and those of [`Limiter::settle`](crate::Limiter::settle).
    pub async fn settle(&self, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        let Some(id) = &self.decision.id else {
            return Err(Error::Call(
                "the charge has no idempotency key: let the layer take Take::default().refundable()".to_owned(),
            ));
        };
        self.limit.settle_at(&self.key, id, cost.into()).await
    }
}

type RefundCondition = Arc<dyn Fn(&response::Parts) -> bool + Send + Sync>;

/// Layer that charges a limit for each request: `RateLimitLayer::new(limiter.limit("api", [Limit::fixed(100, "1m")])?,
/// |request| ...)`.
#[derive(Clone)]
pub struct RateLimitLayer<C, K, A = Http> {
    limit: Bound<C>,
    key_source: KeySource<K>,
    take: Take,
    refunds: Option<RefundCondition>,
    answer: A,
}

impl<C, K> RateLimitLayer<C, K> {
    /// Creates a layer that limits each caller, which `key` returns for a request as a [`Who`] or a type that converts
    /// to it. A request without a key is limited by its address: [`RateLimitLayer::address`]. Denied requests get HTTP
    /// responses.
    pub fn new<W: Into<Who>>(limit: Bound<C>, key: K) -> Self
    where
        K: Fn(&Parts) -> W,
    {
        Self { limit, key_source: KeySource::new(key), take: Take::default(), refunds: None, answer: Http }
    }
}

impl<C, K, A> RateLimitLayer<C, K, A> {
    /// Sets the function that returns the address of a request without a key, in axum `|parts|
    /// parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|info| info.0.ip())`. Requests without an address share
    /// one limit.
    pub fn address(self, address: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { key_source: KeySource { address_function: Arc::new(address), ..self.key_source }, ..self }
    }

    /// Sets the length of IPv6 networks that count as one client, 1 to 128: 64 by default.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { key_source: KeySource { ipv6_prefix: bits, ..self.key_source }, ..self }
    }

    /// Answers denied requests with gRPC responses.
    pub fn grpc(self) -> RateLimitLayer<C, K, Grpc> {
        self.answering(Grpc)
    }

    /// Answers denied requests with custom responses.
    pub fn answering<B>(self, answer: B) -> RateLimitLayer<C, K, B> {
        let Self { limit, key_source, take, refunds, answer: _ } = self;
        RateLimitLayer { limit, key_source, take, refunds, answer }
    }

    /// Sets the charge of each request, such as an estimate, which [`Charge::settle`] corrects.
    pub fn taking(self, take: Take) -> Self {
        let take = if self.refunds.is_some() { take.refundable() } else { take };
        Self { take, ..self }
    }

    /// Refunds the charge of a request if this function returns `true` for the response, such as `|response|
    /// response.status.is_server_error()`.
    pub fn refunding(self, refunds: impl Fn(&response::Parts) -> bool + Send + Sync + 'static) -> Self {
        Self { take: self.take.refundable(), refunds: Some(Arc::new(refunds)), ..self }
    }
}

impl<S, C: Clone, K: Clone, A: Clone> Layer<S> for RateLimitLayer<C, K, A> {
    type Service = RateLimitService<S, C, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
}

/// Service behind a [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimitService<S, C, K, A> {
    inner: S,
    layer: RateLimitLayer<C, K, A>,
}

type ResponseFuture<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, C, K, W, A, In, Out> Service<Request<In>> for RateLimitService<S, C, K, A>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Parts) -> W + Clone + Send + 'static,
    W: Into<Who>,
    A: Answer<Out> + Send + 'static,
    In: Send + 'static,
    Out: Send,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = ResponseFuture<Response<Out>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // `poll_ready` was called on `self.inner`, so call it, and keep its clone for the next request.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (mut parts, body) = request.into_parts();
        let key = self.layer.key_source.key_of(&self.layer.limit, &parts);
        let RateLimitLayer { limit, take, refunds, answer, .. } = self.layer.clone();
        Box::pin(async move {
            let Some(key) = key else { return inner.call(Request::from_parts(parts, body)).await };
            let decision = match limit.take_at(&key, &take).await {
                Ok(decision) if decision.allowed => decision,
                Ok(denied) => return Ok(answer.denied(&denial(&denied, &limit))),
                Err(error) => return Ok(answer.failed(&error)),
            };
            if let Some(wait) = decision.wait.filter(|wait| !wait.is_zero()) {
                tokio::time::sleep(wait).await;
            }
            let rate_limit_fields = header_fields(&decision, limit.limits(), limit.name());
            let charge = Charge { limit, key, decision };
            parts.extensions.insert(charge.clone());
            let (mut head, body) = inner.call(Request::from_parts(parts, body)).await?.into_parts();
            for (name, value) in &rate_limit_fields {
                // Keep the fields of a service with limits of its own.
                head.headers.entry(name).or_insert_with(|| value.clone());
            }
            if refunds.is_some_and(|refunds| refunds(&head))
                && charge.decision.id.is_some()
                && let Err(error) = charge.settle(0).await
            {
                log::warn!("a charge was not refunded: {error}");
            }
            Ok(Response::from_parts(head, body))
        })
    }
}

fn denial<'d, C>(decision: &'d Decision, limit: &'d Bound<C>) -> Denial<'d>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    Denial { decision, limits: limit.limits(), name: limit.name() }
}

/// Layer that holds a lease of a concurrency limit until the service has responded:
/// `LeaseLayer::new(limiter.limit("exports", [Limit::concurrency(10, "30s")])?, |request| ...)`.
#[derive(Clone)]
pub struct LeaseLayer<C, K, A = Http> {
    limit: Bound<C>,
    key_source: KeySource<K>,
    answer: A,
}

impl<C, K> LeaseLayer<C, K> {
    /// Creates a layer that limits each caller, like [`RateLimitLayer::new`]. Denied requests get HTTP responses.
    pub fn new<W: Into<Who>>(limit: Bound<C>, key: K) -> Self
    where
        K: Fn(&Parts) -> W,
    {
        Self { limit, key_source: KeySource::new(key), answer: Http }
    }
}

impl<C, K, A> LeaseLayer<C, K, A> {
    /// Sets the function that returns the address of a request without a key: see [`RateLimitLayer::address`].
    pub fn address(self, address: impl Fn(&Parts) -> Option<IpAddr> + Send + Sync + 'static) -> Self {
        Self { key_source: KeySource { address_function: Arc::new(address), ..self.key_source }, ..self }
    }

    /// Sets the length of IPv6 networks that count as one client, 1 to 128: 64 by default.
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { key_source: KeySource { ipv6_prefix: bits, ..self.key_source }, ..self }
    }

    /// Answers denied requests with gRPC responses.
    pub fn grpc(self) -> LeaseLayer<C, K, Grpc> {
        LeaseLayer { limit: self.limit, key_source: self.key_source, answer: Grpc }
    }
}

impl<S, C: Clone, K: Clone, A: Clone> Layer<S> for LeaseLayer<C, K, A> {
    type Service = LeaseService<S, C, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        LeaseService { inner, layer: self.clone() }
    }
}

/// Service behind a [`LeaseLayer`].
#[derive(Clone)]
pub struct LeaseService<S, C, K, A> {
    inner: S,
    layer: LeaseLayer<C, K, A>,
}

impl<S, C, K, W, A, In, Out> Service<Request<In>> for LeaseService<S, C, K, A>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Out: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Parts) -> W + Clone + Send + 'static,
    W: Into<Who>,
    A: Answer<Out> + Send + Sync + 'static,
    In: Send + 'static,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = ResponseFuture<Response<Out>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (parts, body) = request.into_parts();
        let key = self.layer.key_source.key_of(&self.layer.limit, &parts);
        let LeaseLayer { limit, answer, .. } = self.layer.clone();
        Box::pin(async move {
            let request = Request::from_parts(parts, body);
            let Some(key) = key else { return inner.call(request).await };
            let lease = match limit.lease_at(&key, Duration::ZERO).await {
                Ok(lease) => lease,
                Err(error) => return Ok(response_without_lease(&answer, error, &limit)),
            };
            let response = inner.call(request).await;
            if let Err(error) = lease.release().await {
                log::warn!("a lease was not released, and expires: {error}");
            }
            response
        })
    }
}

/// Returns the response to a request that got no lease.
fn response_without_lease<B, C>(answer: &impl Answer<B>, error: Error, limit: &Bound<C>) -> Response<B>
where
    C: ConnectionLike + Clone + Send + Sync + 'static,
{
    let source = match error {
        Error::Denied(_) => Source::Server,
        Error::Unavailable(_) | Error::Full(_) => Source::Nobody,
        Error::Setup(_) | Error::NoPolicy(_) | Error::Call(_) => return answer.failed(&error),
    };
    let undecided = Decision::undecided(false, Duration::from_secs(1), error);
    answer.denied(&denial(&Decision { source, ..undecided }, limit))
}
