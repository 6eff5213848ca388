//! Client tracking in RESP3: a connection on which the server reports changed keys.
//!
//! A peek at a key (RL.PEEK) makes the server report the key's next change. The first peek opens the connection, and so
//! does the first peek after the connection was lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, PushKind, RedisResult, Value};
use tokio::sync::Mutex;

use crate::decision::Decision;
use crate::denials::Denials;
use crate::replies::reply_of;
use crate::words::command;

/// Time until the next attempt after a connection failed.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time until the next attempt after the server rejected tracking, for example because the user lacks the permission.
const REJECTED_PAUSE: Duration = Duration::from_secs(60);

/// Connection, and a flag that is `true` once it is lost.
type TrackingConnection = (MultiplexedConnection, Arc<AtomicBool>);

/// Tracker of denied keys: extends their denials until the server reports a change.
pub(crate) struct Tracker {
    client: Client,
    denials: Arc<Denials>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<TrackingConnection>,
    /// Time before which no connection is opened.
    not_before: Option<Instant>,
}

impl Tracker {
    pub(crate) fn new(client: Client, denials: Arc<Denials>, timeout: Duration) -> Self {
        Self { client, denials, timeout, state: Mutex::default() }
    }

    /// Peeks at a denied key in the background, and extends the denial while the key does not change.
    pub(crate) fn watch(self: &Arc<Self>, key: String, words: Vec<String>, peek: Vec<String>) {
        let tracker = self.clone();
        tokio::spawn(async move {
            let Some((mut connection, is_lost)) = tracker.connection().await else { return };
            let sent_at = Instant::now();
            let peek = command(&peek);
            let peek = peek.query_async::<Value>(&mut connection);
            let Ok(Ok(reply)) = tokio::time::timeout(tracker.timeout, peek).await else { return };
            if let Some(decision) = Decision::decode(&reply, None) {
                tracker.denials.extend(key.as_bytes(), &words, decision, sent_at, Instant::now());
            }
            if is_lost.load(Ordering::SeqCst) {
                tracker.denials.forget(key.as_bytes());
            }
        });
    }

    /// Returns the connection, which is opened if necessary, or `None` during a pause.
    async fn connection(&self) -> Option<TrackingConnection> {
        let mut state = self.state.lock().await;
        if let Some((connection, is_lost)) = &state.open {
            if !is_lost.load(Ordering::SeqCst) {
                return Some((connection.clone(), is_lost.clone()));
            }
            state.open = None;
            state.not_before = Some(Instant::now() + RETRY_PAUSE);
        }
        if state.not_before.is_some_and(|time| Instant::now() < time) {
            return None;
        }
        match self.open().await {
            Ok(open) => {
                state.open = Some(open.clone());
                Some(open)
            }
            Err(error) => {
                let pause = if reply_of(&error).is_some() { REJECTED_PAUSE } else { RETRY_PAUSE };
                state.not_before = Some(Instant::now() + pause);
                None
            }
        }
    }

    async fn open(&self) -> RedisResult<TrackingConnection> {
        let is_lost = Arc::new(AtomicBool::new(false));
        let (denials, lost) = (self.denials.clone(), is_lost.clone());
        let on_push = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Invalidate => invalidate(&denials, &push.data),
                PushKind::Disconnection => {
                    lost.store(true, Ordering::SeqCst);
                    // Changes from now on are not reported.
                    denials.forget_all();
                }
                _ => {}
            }
            Ok(())
        };
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // The connection is idle for long, so only keepalive detects a lost peer.
        let keepalive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
        let info =
            info.clone().set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_keepalive(keepalive));
        let config = AsyncConnectionConfig::new().set_push_sender(on_push);
        let mut connection = Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        Ok((connection, is_lost))
    }
}

/// Forgets the denials of the keys in a message. A message without keys means that any key may have changed.
fn invalidate(denials: &Denials, data: &[Value]) {
    match data {
        [Value::Array(keys)] => {
            for key in keys {
                if let Value::BulkString(key) = key {
                    denials.forget(key);
                }
            }
        }
        _ => denials.forget_all(),
    }
}
