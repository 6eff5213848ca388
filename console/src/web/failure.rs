//! What a request of the console fails by, and what it is answered with.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use ratelimit_link::server_error::{explain, lacks_module};
use redis::{ErrorKind, RedisError, ServerErrorKind};
use serde_json::{Value, json};

/// Why a request is not answered as it was asked.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The server does not answer.
    Away(String),
    /// The request is wrong.
    Wrong(String),
    /// There is no such thing.
    Missing(String),
    /// Something else stands: this.
    Conflict(String, Value),
    /// The server does not let the console's user do that.
    NotAllowed(String),
    /// The server cannot, for a reason of its own.
    Server(String),
}

impl Failure {
    /// What people read.
    #[must_use]
    pub fn told(&self) -> &str {
        match self {
            Failure::Away(told)
            | Failure::Wrong(told)
            | Failure::Missing(told)
            | Failure::Conflict(told, _)
            | Failure::NotAllowed(told)
            | Failure::Server(told) => told,
        }
    }
}

impl From<RedisError> for Failure {
    fn from(error: RedisError) -> Failure {
        if lacks_module(&error) {
            return Failure::Server(explain(&error));
        }
        let told = |error: &RedisError| error.detail().map_or_else(|| error.to_string(), str::to_owned);
        match (error.kind(), error.code()) {
            (_, Some("NOPOLICY")) => Failure::Missing(told(&error)),
            (_, Some("WRONGTYPE")) | (ErrorKind::Server(ServerErrorKind::ResponseError), _) => {
                Failure::Wrong(told(&error))
            }
            (_, Some("NOPERM")) => {
                Failure::NotAllowed(format!("the server does not let the console's user do that: {}", told(&error)))
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
            Failure::Wrong(_) => StatusCode::BAD_REQUEST,
            Failure::Missing(_) => StatusCode::NOT_FOUND,
            Failure::Conflict(..) => StatusCode::CONFLICT,
            Failure::NotAllowed(_) => StatusCode::FORBIDDEN,
            Failure::Server(_) => StatusCode::BAD_GATEWAY,
        };
        let mut body = json!({ "error": self.told() });
        if let (Failure::Conflict(_, stands), Some(body)) = (&self, body.as_object_mut()) {
            body.insert("stands".to_owned(), stands.clone());
        }
        (status, Json(body)).into_response()
    }
}
