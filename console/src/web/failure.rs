//! Errors of requests of the console, and their responses.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ratelimit_link::server_error::{explain, lacks_module};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use serde_json::{Value, json};

/// Error of a request.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not reply.
    Away(String),
    /// The request is malformed.
    BadRequest(String),
    /// The requested item does not exist.
    Missing(String),
    /// The item has changed since the client read it. The value is its current state.
    Conflict(String, Value),
    /// The console's user lacks a permission on the server.
    NotAllowed(String),
    /// The server replied with another error.
    Server(String),
}

impl Failure {
    /// Returns the error message.
    #[must_use]
    pub fn message(&self) -> &str {
        match self {
            Failure::Away(message)
            | Failure::BadRequest(message)
            | Failure::Missing(message)
            | Failure::Conflict(message, _)
            | Failure::NotAllowed(message)
            | Failure::Server(message) => message,
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        if lacks_module(&error) {
            return Failure::Server(explain(&error));
        }
        let detail = |error: &RedisError| error.detail().map_or_else(|| error.to_string(), str::to_owned);
        match (error.kind(), error.code()) {
            (_, Some("NOPOLICY")) => Failure::Missing(detail(&error)),
            (_, Some("WRONGTYPE")) | (ErrorKind::Server(ServerErrorKind::ResponseError), _) => {
                Failure::BadRequest(detail(&error))
            }
            (_, Some("NOPERM")) => {
                Failure::NotAllowed(format!("the server does not let the console's user do that: {}", detail(&error)))
            }
            (ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::BusyLoading), _) => {
                Failure::Away(error.to_string())
            }
            (ErrorKind::Server(_) | ErrorKind::Extension, _) => Failure::Server(error.to_string()),
            _ => Failure::Away(error.to_string()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match &self {
            Failure::Away(_) => StatusCode::SERVICE_UNAVAILABLE,
            Failure::BadRequest(_) => StatusCode::BAD_REQUEST,
            Failure::Missing(_) => StatusCode::NOT_FOUND,
            Failure::Conflict(..) => StatusCode::CONFLICT,
            Failure::NotAllowed(_) => StatusCode::FORBIDDEN,
            Failure::Server(_) => StatusCode::BAD_GATEWAY,
        };
        let mut body = json!({ "error": self.message() });
        if let (Failure::Conflict(_, current), Some(body)) = (&self, body.as_object_mut()) {
            body.insert("stands".to_owned(), current.clone());
        }
        (status, Json(body)).into_response()
    }
}
