//! The audit log: a line for each change, with who made it.

use super::tokens::Role;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use ratelimit_link::listener::Endpoints;
use std::fmt;
use std::net::SocketAddr;

/// The client that changes something: its role, its address, and the one that the proxy before the console names.
pub struct Who {
    /// What its token allows.
    pub role: Role,
    peer: Option<SocketAddr>,
    forwarded: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Who {
    type Rejection = StatusCode;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Who, StatusCode> {
        let ends = parts.extensions.get::<axum::extract::ConnectInfo<Endpoints>>();
        let forwarded = parts.headers.get("x-forwarded-for").and_then(|value| value.to_str().ok());
        // The guard has let nobody through without one.
        let role = parts.extensions.get::<Role>().copied().unwrap_or(Role::Look);
        Ok(Who { role, peer: ends.map(|ends| ends.0.peer), forwarded: forwarded.map(str::to_owned) })
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{}", peer.ip())?,
            None => write!(f, "unknown")?,
        }
        // It is their own word.
        self.forwarded.as_ref().map_or(Ok(()), |forwarded| write!(f, " for {forwarded:?}"))
    }
}

/// Writes the line of a change: who, what, and fields as of [`tracing::info!`].
macro_rules! changed {
    ($who:expr, $what:literal, $($field:tt)*) => {
        tracing::info!(target: "ratelimit_console::audit", who = %$who, role = $who.role.word(), change = $what, $($field)*)
    };
}
pub(super) use changed;
