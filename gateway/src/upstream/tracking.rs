//! Connection on which the server reports changes of the keys whose denials are remembered (client tracking).

use super::PROBE_TIMEOUT;
use super::node::Node;
use crate::call::{Call, Reply};
use crate::denied_keys::{DeniedKeys, Peek, SentCall};
use ratelimit_link::connect::{self, send};
use ratelimit_link::server_error::is_error_reply;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, RedisResult, Value};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, timeout};

/// Time until the next attempt after a connection failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time until the next attempt after the server refused tracking.
const REFUSED_PAUSE: Duration = Duration::from_mins(1);

/// Connection with client tracking, which the first peek opens.
#[derive(Default)]
pub struct Tracking(Mutex<State>);

#[derive(Clone, Default)]
enum State {
    #[default]
    Closed,
    /// The connection failed, and is not opened again before this time.
    Failed(Instant),
    Opening,
    Open(MultiplexedConnection),
}

impl Tracking {
    /// Closes the connection.
    pub fn close(&self) {
        *self.lock() = State::Closed;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Peeks at a denied key, which the server tracks from then on, and remembers the denial.
    pub async fn track(&self, call: &Call, peek: Peek, max_duration: Duration) {
        let Some(connection) = self.tracking_connection().await else { return };
        let (command, sent_at) = (call.peek_command(peek.cost), Instant::now());
        let reply = with_probe_timeout(send(connection, &command)).await;
        if let Err(error) = &reply {
            self.record_tracking_failure(error);
        }
        if let Reply::Decided(decision) = call.parse_reply(reply) {
            self.shared.denied_keys.confirm(
                SentCall { call, decision: &decision, sent_at, max_duration },
                peek,
                Instant::now(),
            );
        }
    }

    /// Returns the connection, and opens it if necessary. Returns `None` while it is being opened or cannot be used.
    async fn tracking_connection(&self) -> Option<MultiplexedConnection> {
        {
            let mut state = self.tracking.lock();
            match &*state {
                State::Open(connection) => return Some(connection.clone()),
                State::Opening => return None,
                State::Failed(until) if Instant::now() < *until => return None,
                State::Failed(_) | State::Closed => *state = State::Opening,
            }
        }
        let opened = self.open_tracking().await;
        match opened {
            Ok(connection) => {
                *self.tracking.lock() = State::Open(connection.clone());
                Some(connection)
            }
            Err(error) => {
                self.record_tracking_failure(&error);
                *self.tracking.lock() = State::Failed(Instant::now() + retry_pause(&error));
                None
            }
        }
    }

    async fn open_tracking(&self) -> RedisResult<MultiplexedConnection> {
        let denied_keys = Arc::clone(&self.shared.denied_keys);
        let pushes = Arc::new(move |push: PushInfo| {
            invalidate(&denied_keys, &push);
            Ok::<(), ()>(())
        });
        let connection = connect::connect_for_pushes(&self.shared.address, self.host.as_ref(), pushes).await?;
        let mut command = redis::cmd("CLIENT");
        command.arg("TRACKING").arg("ON");
        with_probe_timeout(send(connection.clone(), &command)).await?;
        Ok(connection)
    }

    /// Logs a missing permission. Closes the connection unless the failure is an error reply about one key.
    fn record_tracking_failure(&self, error: &RedisError) {
        let lacks_permission = error.code() == Some("NOPERM");
        if lacks_permission {
            self.shared.permission_log.log(error.detail().unwrap_or_default());
        }
        if lacks_permission || !is_error_reply(error) {
            *self.tracking.lock() = State::Failed(Instant::now() + retry_pause(error));
            self.shared.denied_keys.forget_all();
        }
    }
}

fn retry_pause(error: &RedisError) -> Duration {
    if is_error_reply(error) { REFUSED_PAUSE } else { RETRY_PAUSE }
}

async fn with_probe_timeout(reply: impl Future<Output = RedisResult<Value>>) -> RedisResult<Value> {
    timeout(PROBE_TIMEOUT, reply).await.unwrap_or_else(|_| Err((ErrorKind::Io, "no reply in time").into()))
}

/// Removes the denials of the keys that a message reports as changed, or all denials after a flush or at the end of the
/// connection.
fn invalidate(denied_keys: &DeniedKeys, push: &PushInfo) {
    match (&push.kind, push.data.as_slice()) {
        (PushKind::Invalidate, [Value::Array(keys)]) => {
            for key in keys {
                if let Value::BulkString(key) = key {
                    denied_keys.forget(key);
                }
            }
        }
        (PushKind::Invalidate | PushKind::Disconnection, _) => denied_keys.forget_all(),
        _ => {}
    }
}
