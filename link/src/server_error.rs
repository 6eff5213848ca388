//! Errors of calls to a server.

use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Returns the text of an error. If the server lacks the module, the text says how to load it.
#[must_use]
pub fn explain(error: &RedisError) -> String {
    if lacks_module(error) {
        return "the server does not have the module redis-ratelimit: load the module (loadmodule libredis_ratelimit.so)"
            .to_owned();
    }
    error.to_string()
}

/// Returns `true` if the server does not know a command of the module.
#[must_use]
pub fn lacks_module(error: &RedisError) -> bool {
    let detail = error.detail().unwrap_or_default().to_ascii_lowercase();
    detail.contains("unknown command") && detail.contains("rl.")
}

/// Returns `true` if the server rejected the call itself. Returns `false` if the connection failed, or if the server is
/// in a state in which it cannot carry out calls, such as LOADING.
#[must_use]
pub fn is_error_reply(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Extension => true,
        ErrorKind::Server(kind) => !matches!(
            kind,
            ServerErrorKind::BusyLoading
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::MasterDown
                | ServerErrorKind::TryAgain
                | ServerErrorKind::Moved
                | ServerErrorKind::Ask
                | ServerErrorKind::ReadOnly
        ),
        _ => false,
    }
}
