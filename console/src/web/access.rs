//! The console's guard: which requests are let in, and what a browser may do with the answers.

use super::tokens::{LOOK, Refusals, Role, Tokens};
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use ratelimit_link::listener::Endpoints;
use serde_json::json;
use std::net::IpAddr;
use std::sync::Arc;

/// What is sent by POST and changes nothing: what it begins with.
const HARMLESS: [&str; 3] = ["/api/check", "/api/playground", "/api/replay"];

/// Guard of the console: its tokens, and the names that it goes by.
pub struct Guard {
    tokens: Arc<Tokens>,
    hosts: Vec<String>,
    refusals: Refusals,
}

/// Why somebody may not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No token, or one that is not known.
    Unknown,
    /// The token is for looking.
    LookOnly,
    /// Nobody may change anything.
    ReadOnly,
}

impl Guard {
    /// Creates the guard of a listener, with names besides those of loopback and the listener.
    ///
    /// # Errors
    /// If the console listens to others and has no token for looking.
    pub fn new(at: IpAddr, tokens: Arc<Tokens>, hosts: &[String]) -> Result<Guard, String> {
        if !tokens.are_needed() && !at.is_loopback() {
            return Err(format!(
                "--listen {at}: off loopback it takes a token, in {LOOK} or the file that {LOOK}_FILE names"
            ));
        }
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(Guard { tokens, hosts, refusals: Refusals::default() })
    }

    /// Returns `true` if nobody may change anything.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.tokens.are_read_only()
    }

    /// Returns the role of the client that sent these headers.
    ///
    /// # Errors
    /// If a token is needed, or if the client's is not known.
    pub fn role(&self, headers: &HeaderMap) -> Result<Role, Refused> {
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        match (given.next(), given.next()) {
            (None, _) if self.tokens.are_needed() => Err(Refused::Unknown),
            (None, _) => Ok(Role::Look),
            (Some(given), None) => {
                let given = given.as_bytes().split_at_checked(7);
                let token = given.filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
                token.and_then(|(_, token)| self.tokens.role(token)).ok_or(Refused::Unknown)
            }
            (Some(_), Some(_)) => Err(Refused::Unknown),
        }
    }

    /// Whether a request may go on: of this method, to this path, by whoever sent these headers.
    ///
    /// # Errors
    /// Why not.
    pub fn admits(&self, method: &Method, path: &str, headers: &HeaderMap) -> Result<Role, Refused> {
        let role = self.role(headers)?;
        let looks = [Method::GET, Method::HEAD].contains(method)
            || HARMLESS
                .iter()
                .any(|start| path.strip_prefix(start).is_some_and(|rest| rest.is_empty() || rest.starts_with('/')));
        match role {
            _ if looks => Ok(role),
            Role::Change => Ok(role),
            Role::Look if self.is_read_only() => Err(Refused::ReadOnly),
            Role::Look if headers.contains_key(header::AUTHORIZATION) => Err(Refused::LookOnly),
            Role::Look => Err(Refused::Unknown),
        }
    }

    /// Whether the console goes by this name: a page from elsewhere whose name was pointed here says its own.
    #[must_use]
    pub fn is_named(&self, host: &str, own: Option<IpAddr>) -> bool {
        let host = host.to_ascii_lowercase();
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
            None => host.rsplit_once(':').map_or(host.as_str(), |(name, _)| name),
        };
        if let Ok(address) = name.parse::<IpAddr>() {
            let address = address.to_canonical();
            return address.is_loopback() || Some(address) == own || self.hosts.iter().any(|named| named == name);
        }
        name == "localhost" || self.hosts.iter().any(|named| *named == name || *named == host)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let (status, told) = match self {
            Refused::Unknown => (StatusCode::UNAUTHORIZED, "a token is needed, as Authorization: Bearer"),
            Refused::LookOnly => (StatusCode::FORBIDDEN, "this token may look and not change"),
            Refused::ReadOnly => {
                (StatusCode::FORBIDDEN, "the console only shows: it has no RATELIMIT_CONSOLE_WRITE_TOKEN")
            }
        };
        let mut response = (status, Json(json!({ "error": told }))).into_response();
        if self == Refused::Unknown {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The host that a request names.
fn host<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    let named = headers.get(header::HOST).and_then(|value| value.to_str().ok());
    uri.authority().map(axum::http::uri::Authority::as_str).or(named)
}

/// Lets a request pass or refuses it, and tells the browser what it may do with the answer.
pub async fn guarded(
    State(guard): State<Arc<Guard>>,
    ConnectInfo(ends): ConnectInfo<Endpoints>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let named = host(request.uri(), request.headers()).is_some_and(|host| guard.is_named(host, ends.local));
    // Browsers say where a request comes from: none of another page's is answered.
    let from = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    let foreign = from.is_some_and(|from| from == b"cross-site" || from == b"same-site");
    let is_api = path.starts_with("/api/");
    let mut response = if !named {
        let told = "the console does not go by this name: see --host";
        (StatusCode::MISDIRECTED_REQUEST, Json(json!({ "error": told }))).into_response()
    } else if is_api && foreign {
        (StatusCode::FORBIDDEN, Json(json!({ "error": "not from another page" }))).into_response()
    } else if is_api {
        match guard.admits(request.method(), path, request.headers()) {
            Ok(role) => {
                request.extensions_mut().insert(role);
                next.run(request).await
            }
            Err(refused) => {
                if refused == Refused::Unknown && request.headers().contains_key(header::AUTHORIZATION) {
                    guard.refusals.delay(ends.peer.ip()).await;
                }
                refused.into_response()
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
