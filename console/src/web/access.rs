//! Access control: permissions of requests, and security headers of responses.

use super::tokens::{LOOK_VARIABLE, Refusals, Role, Tokens, User};
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ratelimit_link::listener::Endpoints;
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;

/// Prefixes of the paths whose POST requests change nothing.
const READ_ONLY_POSTS: [&str; 4] = ["/api/check", "/api/playground", "/api/replay", "/api/usage"];

/// Access control of the console: its tokens and its host names.
pub struct Guard {
    tokens: Arc<Tokens>,
    hosts: Vec<String>,
    refusals: Refusals,
}

/// Reason for which a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessError {
    /// The request has no token, or an unknown one.
    Unknown,
    /// The token allows only reads.
    LookOnly,
    /// The console allows no changes.
    ReadOnly,
}

impl Guard {
    /// Creates the guard of a listener. `hosts` are accepted besides loopback and the address of a connection.
    ///
    /// # Errors
    /// If the listener is off loopback and there is no token for reading.
    pub fn new(listener: IpAddr, tokens: Arc<Tokens>, hosts: &[String]) -> Result<Guard, String> {
        if !tokens.are_needed() && !listener.is_loopback() {
            return Err(format!(
                "--listen {listener}: off loopback it takes a token, in {LOOK_VARIABLE} or the file that \
                 {LOOK_VARIABLE}_FILE names"
            ));
        }
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(Guard { tokens, hosts, refusals: Refusals::default() })
    }

    /// Returns `true` if the console allows no changes.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.tokens.are_read_only()
    }

    /// Returns the user that sent these headers.
    ///
    /// # Errors
    /// If a token is required and missing, or if the client's token is unknown.
    pub fn user(&self, headers: &HeaderMap) -> Result<User, AccessError> {
        let mut values = headers.get_all(header::AUTHORIZATION).iter();
        match (values.next(), values.next()) {
            (None, _) if self.tokens.are_needed() => Err(AccessError::Unknown),
            (None, _) => Ok(User { role: Role::Look, name: None }),
            (Some(value), None) => {
                let parts = value.as_bytes().split_at_checked(b"bearer ".len());
                let token = parts.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
                token.and_then(|(_, token)| self.tokens.user(token)).ok_or(AccessError::Unknown)
            }
            (Some(_), Some(_)) => Err(AccessError::Unknown),
        }
    }

    /// Checks that the client may send a request with this method and path, and returns its user.
    ///
    /// # Errors
    /// If the client lacks the permission.
    pub fn authorize(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<User, AccessError> {
        let user = self.user(headers)?;
        match user.role {
            _ if is_read(method, path) => Ok(user),
            Role::Change => Ok(user),
            Role::Look if self.is_read_only() => Err(AccessError::ReadOnly),
            Role::Look if headers.contains_key(header::AUTHORIZATION) => Err(AccessError::LookOnly),
            Role::Look => Err(AccessError::Unknown),
        }
    }

    /// Returns `true` if a host name is one of the console's. With DNS rebinding, the name of another site resolves to
    /// this address, and requests of its page have that name.
    #[must_use]
    pub fn is_own_host(&self, host: &str, local: Option<IpAddr>) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.strip_prefix('[') {
            Some(rest) => match rest.split_once(']') {
                Some((name, port)) if port.is_empty() || port.starts_with(':') => name,
                _ => "",
            },
            None => host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name),
        };
        if let Ok(address) = name.parse::<IpAddr>() {
            let address = address.to_canonical();
            return address.is_loopback()
                || Some(address) == local
                || self.hosts.iter().any(|accepted| accepted == name);
        }
        name == "localhost" || self.hosts.iter().any(|accepted| *accepted == name || *accepted == host)
    }
}

/// Returns `true` if requests with this method and path change nothing on the server.
#[must_use]
pub fn is_read(method: &Method, path: &str) -> bool {
    let is_below =
        |prefix: &&str| path.strip_prefix(*prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    [Method::GET, Method::HEAD].contains(method) || READ_ONLY_POSTS.iter().any(is_below)
}

impl IntoResponse for AccessError {
    fn into_response(self) -> Response {
        let (status, error) = match self {
            AccessError::Unknown => (StatusCode::UNAUTHORIZED, "a token is needed, as Authorization: Bearer"),
            AccessError::LookOnly => (StatusCode::FORBIDDEN, "this token may look and not change"),
            AccessError::ReadOnly => {
                (StatusCode::FORBIDDEN, "the console only shows: it has no RATELIMIT_CONSOLE_WRITE_TOKEN")
            }
        };
        let mut response = (status, Json(json!({ "error": error }))).into_response();
        if self == AccessError::Unknown {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Returns the host name in a request.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let header = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    uri.authority().map(axum::http::uri::Authority::as_str).or(header)
}

/// Middleware that rejects requests without permission, and adds security headers to responses.
pub async fn guard_requests(
    State(guard): State<Arc<Guard>>,
    ConnectInfo(endpoints): ConnectInfo<Endpoints>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let is_own_host =
        host(request.uri(), request.headers()).is_some_and(|host| guard.is_own_host(host, endpoints.local));
    // Browsers send how the site of the requesting page relates to the console's.
    let site = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    let is_cross_site = site.is_some_and(|site| site == b"cross-site" || site == b"same-site");
    let is_api = path.starts_with("/api/");
    let mut response = if !is_own_host {
        let error = "the console does not go by this name: see --host";
        (StatusCode::MISDIRECTED_REQUEST, Json(json!({ "error": error }))).into_response()
    } else if is_api && is_cross_site {
        (StatusCode::FORBIDDEN, Json(json!({ "error": "not from another page" }))).into_response()
    } else if is_api {
        match guard.authorize(request.method(), path, request.headers()) {
            Ok(user) => {
                request.extensions_mut().insert(user);
                next.run(request).await
            }
            Err(error) => {
                if error == AccessError::Unknown && request.headers().contains_key(header::AUTHORIZATION) {
                    guard.refusals.delay(endpoints.peer.ip()).await;
                }
                error.into_response()
            }
        }
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_api {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests;
