//! A connection on which the server tells that a key has changed: client tracking in RESP3.
//!
//! It looks at a key (RL.PEEK), and the server then tells of the key's next change. It is opened by the first look, and
//! after it was lost by the next.

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

/// For so long none is opened after one that failed, and after one that the server refused, as it does to an account
/// that may not listen.
const PAUSE: Duration = Duration::from_secs(1);
const REFUSED: Duration = Duration::from_secs(60);

pub(crate) struct Ear {
    client: Client,
    denials: Arc<Denials>,
    timeout: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: Option<(MultiplexedConnection, Arc<AtomicBool>)>,
    not_before: Option<Instant>,
}

impl Ear {
    pub(crate) fn new(client: Client, denials: Arc<Denials>, timeout: Duration) -> Self {
        Self { client, denials, timeout, state: Mutex::default() }
    }

    /// Looks at what was denied, in the background, and has it remembered for as long as it stays so.
    pub(crate) fn watch(self: &Arc<Self>, key: String, words: Vec<String>, look: Vec<String>) {
        let ear = self.clone();
        tokio::spawn(async move {
            let Some((mut connection, is_lost)) = ear.opened().await else { return };
            let sent_at = Instant::now();
            let look = command(&look);
            let asking = look.query_async::<Value>(&mut connection);
            let Ok(Ok(reply)) = tokio::time::timeout(ear.timeout, asking).await else { return };
            if let Some(decision) = Decision::read(&reply, None) {
                ear.denials.extend(key.as_bytes(), &words, decision, sent_at, Instant::now());
            }
            if is_lost.load(Ordering::SeqCst) {
                ear.denials.forget(key.as_bytes());
            }
        });
    }

    async fn opened(&self) -> Option<(MultiplexedConnection, Arc<AtomicBool>)> {
        let mut state = self.state.lock().await;
        if let Some(open) = &state.open {
            if !open.1.load(Ordering::SeqCst) {
                return Some(open.clone());
            }
            state.open = None;
            state.not_before = Some(Instant::now() + PAUSE);
        }
        if state.not_before.is_some_and(|time| Instant::now() < time) {
            return None;
        }
        match self.open().await {
            Ok(open) => {
                state.open = Some(open.clone());
                Some(open)
            }
            Err(why) => {
                let pause = if reply_of(&why).is_some() { REFUSED } else { PAUSE };
                state.not_before = Some(Instant::now() + pause);
                None
            }
        }
    }

    async fn open(&self) -> RedisResult<(MultiplexedConnection, Arc<AtomicBool>)> {
        let is_lost = Arc::new(AtomicBool::new(false));
        let (denials, lost) = (self.denials.clone(), is_lost.clone());
        let heard = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Invalidate => heard(&denials, &push.data),
                PushKind::Disconnection => {
                    lost.store(true, Ordering::SeqCst);
                    // What happens from now on nobody hears.
                    denials.forget_all();
                }
                _ => {}
            }
            Ok(())
        };
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        // Nothing is sent for long, so the system has to find out that the other side is gone.
        let alive = TcpKeepalive::new().with_time(Duration::from_secs(30)).with_interval(Duration::from_secs(10));
        let info =
            info.clone().set_redis_settings(settings).set_tcp_settings(TcpSettings::default().set_keepalive(alive));
        let config = AsyncConnectionConfig::new().set_push_sender(heard);
        let mut connection = Client::open(info)?.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        Ok((connection, is_lost))
    }
}

/// The names of keys that have changed; none: any may have.
fn heard(denials: &Denials, data: &[Value]) {
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
