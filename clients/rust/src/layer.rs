//! Layers of tower, for axum, tonic and hyper.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::header::CONTENT_TYPE;
use http::request::Parts;
use http::{HeaderValue, Request, Response, StatusCode};
use redis::aio::ConnectionLike;
use tower_layer::Layer;
use tower_service::Service;

use crate::bound::Bound;
use crate::decision::{Decision, Source};
use crate::error::Error;
use crate::fields::{fields, retry_after};
use crate::limits::{Amount, Limit};
use crate::options::Take;

/// What is answered in place of the service.
pub trait Answer<B>: Clone {
    /// To a request that is denied.
    fn denied(&self, decision: &Decision, limits: &[Limit]) -> Response<B>;

    /// To a request whose limit cannot be checked, as something is set up wrong.
    fn failed(&self, error: &Error) -> Response<B>;
}

/// Status 429, or 503 if nobody can decide, with a problem document (RFC 9457).
#[derive(Clone, Copy, Debug, Default)]
pub struct Http;

impl<B: From<String>> Answer<B> for Http {
    fn denied(&self, decision: &Decision, limits: &[Limit]) -> Response<B> {
        let (status, kind, title) = match decision.source {
            Source::Server => (StatusCode::TOO_MANY_REQUESTS, "quota-exceeded", "Too many requests"),
            Source::Nobody => (
                StatusCode::SERVICE_UNAVAILABLE,
                "temporary-reduced-capacity",
                "Rate limits cannot be checked at the moment",
            ),
        };
        let mut response = problem(status, kind, title);
        response.headers_mut().extend(fields(decision, limits));
        response
    }

    fn failed(&self, error: &Error) -> Response<B> {
        log::error!("a rate limit cannot be checked: {error}");
        problem(StatusCode::INTERNAL_SERVER_ERROR, "", "A rate limit cannot be checked")
    }
}

fn problem<B: From<String>>(status: StatusCode, kind: &str, title: &str) -> Response<B> {
    let kind = if kind.is_empty() {
        "about:blank".to_owned()
    } else {
        format!("https://iana.org/assignments/http-problem-types#{kind}")
    };
    let body = format!(r#"{{"type":"{kind}","title":"{title}","status":{}}}"#, status.as_u16());
    let mut response = Response::new(B::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// gRPC's status RESOURCE_EXHAUSTED, UNAVAILABLE if nobody can decide, or INTERNAL.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl<B: Default> Answer<B> for Grpc {
    fn denied(&self, decision: &Decision, _: &[Limit]) -> Response<B> {
        let mut response = match decision.source {
            Source::Server => status(8, "the rate limit is exceeded"),
            Source::Nobody => status(14, "rate limits cannot be checked at the moment"),
        };
        response.headers_mut().extend(retry_after(decision));
        response
    }

    fn failed(&self, error: &Error) -> Response<B> {
        log::error!("a rate limit cannot be checked: {error}");
        status(13, "a rate limit cannot be checked")
    }
}

/// A response of trailers only, as gRPC calls it.
fn status<B: Default>(code: u16, message: &'static str) -> Response<B> {
    let mut response = Response::new(B::default());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from(code));
    headers.insert("grpc-message", HeaderValue::from_static(message));
    response
}

/// What a request was charged, among its extensions: for what it turns out to cost.
#[derive(Clone)]
pub struct Charge<C> {
    limit: Bound<C>,
    who: String,
    decision: Decision,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Charge<C> {
    /// What was decided.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Corrects the charge. It was made with an idempotency key if it was for more than one unit, or more than a
    /// hundredth of a limit.
    ///
    /// # Errors
    /// [`Error::Call`] if the charge has no idempotency key, and those of [`Limiter::settle`](crate::Limiter::settle).
    pub async fn settle(&self, cost: impl Into<Amount> + Send) -> Result<Decision, Error> {
        let Some(id) = &self.decision.id else {
            return Err(Error::Call("only a charge with an idempotency key can be settled".to_owned()));
        };
        self.limit.settle(&self.who, id, cost).await
    }
}

/// Takes from a limit for each request:
/// `RateLimitLayer::new(limiter.limit("api", [Limit::fixed(100, "1m")]), |request| ...)`.
#[derive(Clone)]
pub struct RateLimitLayer<C, K, A = Http> {
    limit: Bound<C>,
    key: K,
    take: Take,
    answer: A,
}

impl<C, K: Fn(&Parts) -> Option<String>> RateLimitLayer<C, K> {
    /// `key` says whose limit a request has; None: it is not limited. Denials are HTTP's.
    pub fn new(limit: Bound<C>, key: K) -> Self {
        Self { limit, key, take: Take::default(), answer: Http }
    }
}

impl<C, K, A> RateLimitLayer<C, K, A> {
    /// Denials of gRPC's.
    pub fn grpc(self) -> RateLimitLayer<C, K, Grpc> {
        self.answering(Grpc)
    }

    /// Denials of your own.
    pub fn answering<B>(self, answer: B) -> RateLimitLayer<C, K, B> {
        RateLimitLayer { limit: self.limit, key: self.key, take: self.take, answer }
    }

    /// What each request takes: such as an estimate, which [`Charge::settle`] corrects.
    pub fn taking(self, take: Take) -> Self {
        Self { take, ..self }
    }
}

impl<S, C: Clone, K: Clone, A: Clone> Layer<S> for RateLimitLayer<C, K, A> {
    type Service = RateLimitService<S, C, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimitService { inner, layer: self.clone() }
    }
}

/// A service behind a [`RateLimitLayer`].
#[derive(Clone)]
pub struct RateLimitService<S, C, K, A> {
    inner: S,
    layer: RateLimitLayer<C, K, A>,
}

type Answering<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, C, K, A, In, Out> Service<Request<In>> for RateLimitService<S, C, K, A>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Parts) -> Option<String> + Clone + Send + 'static,
    A: Answer<Out> + Send + 'static,
    In: Send + 'static,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = Answering<Response<Out>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        // The one that is ready is used, and its copy is kept.
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let RateLimitLayer { limit, take, answer, .. } = self.layer.clone();
        let (mut parts, body) = request.into_parts();
        let who = (self.layer.key)(&parts);
        Box::pin(async move {
            let Some(who) = who else { return inner.call(Request::from_parts(parts, body)).await };
            let decision = match limit.take_with(&who, &take).await {
                Ok(decision) if decision.allowed => decision,
                Ok(denied) => return Ok(answer.denied(&denied, limit.limits())),
                Err(error) => return Ok(answer.failed(&error)),
            };
            if let Some(wait) = decision.wait.filter(|wait| !wait.is_zero()) {
                tokio::time::sleep(wait).await;
            }
            let told = fields(&decision, limit.limits());
            parts.extensions.insert(Charge { limit, who, decision });
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            for (name, value) in &told {
                // A service may have limits of its own.
                response.headers_mut().entry(name).or_insert_with(|| value.clone());
            }
            Ok(response)
        })
    }
}

/// Holds a lease of a concurrency limit until the service has answered:
/// `LeaseLayer::new(limiter.limit("exports", [Limit::concurrency(10, "30s")]), |request| ...)`.
#[derive(Clone)]
pub struct LeaseLayer<C, K, A = Http> {
    limit: Bound<C>,
    key: K,
    answer: A,
}

impl<C, K: Fn(&Parts) -> Option<String>> LeaseLayer<C, K> {
    /// `key` says whose limit a request has; None: it is not limited. Denials are HTTP's.
    pub fn new(limit: Bound<C>, key: K) -> Self {
        Self { limit, key, answer: Http }
    }
}

impl<C, K, A> LeaseLayer<C, K, A> {
    /// Denials of gRPC's.
    pub fn grpc(self) -> LeaseLayer<C, K, Grpc> {
        LeaseLayer { limit: self.limit, key: self.key, answer: Grpc }
    }
}

impl<S, C: Clone, K: Clone, A: Clone> Layer<S> for LeaseLayer<C, K, A> {
    type Service = LeaseService<S, C, K, A>;

    fn layer(&self, inner: S) -> Self::Service {
        LeaseService { inner, layer: self.clone() }
    }
}

/// A service behind a [`LeaseLayer`].
#[derive(Clone)]
pub struct LeaseService<S, C, K, A> {
    inner: S,
    layer: LeaseLayer<C, K, A>,
}

impl<S, C, K, A, In, Out> Service<Request<In>> for LeaseService<S, C, K, A>
where
    S: Service<Request<In>, Response = Response<Out>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    Out: Send,
    C: ConnectionLike + Clone + Send + Sync + 'static,
    K: Fn(&Parts) -> Option<String> + Clone + Send + 'static,
    A: Answer<Out> + Send + Sync + 'static,
    In: Send + 'static,
{
    type Response = Response<Out>;
    type Error = S::Error;
    type Future = Answering<Response<Out>, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<In>) -> Self::Future {
        let copy = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, copy);
        let LeaseLayer { limit, answer, .. } = self.layer.clone();
        let (parts, body) = request.into_parts();
        let who = (self.layer.key)(&parts);
        Box::pin(async move {
            let request = Request::from_parts(parts, body);
            let Some(who) = who else { return inner.call(request).await };
            let lease = match limit.lease(&who).await {
                Ok(lease) => lease,
                Err(error) => return Ok(answer.unleased(error, limit.limits())),
            };
            let response = inner.call(request).await;
            if let Err(error) = lease.release().await {
                log::warn!("a lease was not released, and expires: {error}");
            }
            response
        })
    }
}

/// What is answered to a request that got no lease.
trait Unleased<B>: Answer<B> {
    fn unleased(&self, error: Error, limits: &[Limit]) -> Response<B> {
        let source = match error {
            Error::Denied(_) => Source::Server,
            Error::Unavailable(_) | Error::Full(_) => Source::Nobody,
            Error::Setup(_) | Error::Call(_) => return self.failed(&error),
        };
        let nobody = Decision::nobody(false, std::time::Duration::from_secs(1), error);
        self.denied(&Decision { source, ..nobody }, limits)
    }
}

impl<B, A: Answer<B>> Unleased<B> for A {}
