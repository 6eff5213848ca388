//! The console's guard: which requests are let in, and what a browser may do with the answers.

use crate::listener::Ends;
use axum::Json;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// What is sent by POST and changes nothing: what it begins with.
const HARMLESS: [&str; 3] = ["/api/check", "/api/playground", "/api/replay"];

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look.
    Look,
    /// Look, and change limits.
    Change,
}

impl Role {
    /// As the page and the log have it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Role::Look => "look",
            Role::Change => "change",
        }
    }
}

/// A token by its hash: two are compared in the same time, whatever they have in common, and however long they are.
type Hash = [u8; 32];

/// The tokens, and the names that the console goes by.
#[derive(Default)]
pub struct Guard {
    look: Option<Hash>,
    change: Option<Hash>,
    hosts: Vec<String>,
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
    /// Of the two tokens, and names besides those of loopback and the listener.
    ///
    /// # Errors
    /// If the console listens to others and has no token for reading, or if both tokens are the same.
    pub fn new(at: IpAddr, look: Option<&str>, change: Option<&str>, hosts: &[String]) -> Result<Guard, String> {
        if look.is_none() && !at.is_loopback() {
            return Err(format!(
                "--console {at}: off loopback it takes a token, in RATELIMIT_GATEWAY_CONSOLE_TOKEN or the file that \
                 RATELIMIT_GATEWAY_CONSOLE_TOKEN_FILE names"
            ));
        }
        if look.is_some() && look == change {
            return Err("RATELIMIT_GATEWAY_CONSOLE_WRITE_TOKEN must be another than that for reading".to_owned());
        }
        let hash = |token: &str| -> Hash { Sha256::digest(token).into() };
        let hosts = hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Ok(Guard { look: look.map(hash), change: change.map(hash), hosts })
    }

    /// Whether nobody may change anything.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.change.is_none()
    }

    /// What whoever sent these headers may do.
    ///
    /// # Errors
    /// If a token is needed, or if theirs is not known.
    pub fn role(&self, headers: &HeaderMap) -> Result<Role, Refused> {
        let Some(given) = headers.get(header::AUTHORIZATION) else {
            return if self.look.is_none() { Ok(Role::Look) } else { Err(Refused::Unknown) };
        };
        let given = given.as_bytes().split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        let given: Hash = Sha256::digest(given.ok_or(Refused::Unknown)?.1).into();
        let is = |token: &Option<Hash>| token.is_some_and(|token| bool::from(token.ct_eq(&given)));
        // Both are compared, whichever it is.
        match (is(&self.change), is(&self.look)) {
            (true, _) => Ok(Role::Change),
            (_, true) => Ok(Role::Look),
            _ => Err(Refused::Unknown),
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
            Refused::ReadOnly => (
                StatusCode::FORBIDDEN,
                "the console only shows: the gateway has no RATELIMIT_GATEWAY_CONSOLE_WRITE_TOKEN",
            ),
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
    ConnectInfo(ends): ConnectInfo<Ends>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path();
    let named = host(request.uri(), request.headers()).is_some_and(|host| guard.is_named(host, ends.own));
    // Browsers say where a request comes from: none of another page's is answered.
    let from = request.headers().get("sec-fetch-site").map(HeaderValue::as_bytes);
    let foreign = from.is_some_and(|from| from == b"cross-site" || from == b"same-site");
    let is_api = path.starts_with("/api/");
    let mut response = if !named {
        let told = "the console does not go by this name: see --console-host";
        (StatusCode::MISDIRECTED_REQUEST, Json(json!({ "error": told }))).into_response()
    } else if is_api && foreign {
        (StatusCode::FORBIDDEN, Json(json!({ "error": "not from another page" }))).into_response()
    } else if is_api {
        match guard.admits(request.method(), path, request.headers()) {
            Ok(role) => {
                request.extensions_mut().insert(role);
                next.run(request).await
            }
            Err(refused) => refused.into_response(),
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
