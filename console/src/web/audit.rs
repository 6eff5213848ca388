//! Client of a change, for the log and the list of changes.

use super::tokens::{Role, User};
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use ratelimit_link::listener::Endpoints;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Client of a change: its role and the name of its token, its address, and the address that a proxy in front of the
/// console names.
pub struct Actor {
    /// Role of the client's token.
    pub role: Role,
    /// Name of the client's token.
    pub name: Option<Arc<str>>,
    peer: Option<SocketAddr>,
    forwarded: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Actor {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Actor, StatusCode> {
        let endpoints = parts.extensions.get::<axum::extract::ConnectInfo<Endpoints>>();
        let forwarded = parts.headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        // Always set: the guard adds it to each request.
        let user = parts.extensions.get::<User>().cloned().unwrap_or(User { role: Role::Look, name: None });
        Ok(Actor {
            role: user.role,
            name: user.name,
            peer: endpoints.map(|endpoints| endpoints.0.peer),
            forwarded: forwarded.map(str::to_owned),
        })
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{}", peer.ip())?,
            None => write!(f, "unknown")?,
        }
        // Quoted, because any client can send this header.
        self.forwarded.as_ref().map_or(Ok(()), |forwarded| write!(f, " for {forwarded:?}"))
    }
}
