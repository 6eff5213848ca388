//! Sending of calls: timeouts, resends, circuit breaking and fallback.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};

use crate::breaker::Breaker;
use crate::decision::Decision;
use crate::denials::{Denial, Denials};
use crate::error::Error;
use crate::forced::{FORCED, ForcedPolicies, has_force};
use crate::options::{OnOutage, Options, SetupErrors};
use crate::replies::{reply_of, to_error};
use crate::routing;
use crate::tracking::Tracker;
use crate::words::{Charge, command};

/// Failure of a call: an error reply, no reply, or a call that must not be sent.
#[derive(Clone)]
pub(crate) enum CallFailure {
    NoReply(String),
    ErrorReply(String),
    Unsendable(&'static str),
}

impl CallFailure {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::NoReply(why) => Error::Unavailable(why),
            Self::ErrorReply(reply) => to_error(&reply),
            Self::Unsendable(why) => Error::Call(why.to_owned()),
        }
    }
}

/// Sender of calls: a connection, and the state of its server.
#[derive(Clone)]
pub(crate) struct CallSender<C> {
    connection: C,
    shared: Arc<Shared>,
    /// Client of a single server, for additional connections.
    client: Option<Client>,
    tracker: Option<Arc<Tracker>>,
}

struct Shared {
    options: Options,
    breaker: Breaker,
    denials: Arc<Denials>,
    forced: ForcedPolicies,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> CallSender<C> {
    pub(crate) fn new(connection: C, options: Options) -> Self {
        let breaker = Breaker::new(options.failures, options.pause);
        let shared = Shared { options, breaker, denials: Arc::default(), forced: ForcedPolicies::default() };
        Self { connection, shared: Arc::new(shared), client: None, tracker: None }
    }

    pub(crate) fn with_client(mut self, client: Client) -> Self {
        self.tracker =
            Some(Arc::new(Tracker::new(client.clone(), self.shared.denials.clone(), self.options().timeout)));
        self.client = Some(client);
        self
    }

    pub(crate) fn options(&self) -> &Options {
        &self.shared.options
    }

    pub(crate) fn key_of(&self, key: &str) -> String {
        format!("{}{key}", self.options().prefix)
    }

    pub(crate) async fn send_for_decision(
        &self,
        words: &[String],
        is_repeatable: bool,
        id: Option<String>,
    ) -> Result<Decision, CallFailure> {
        let reply = self.send(words, is_repeatable).await?;
        Decision::decode(&reply, id).ok_or_else(|| CallFailure::NoReply(format!("no decision: {reply:?}")))
    }

    /// Returns an error if a limit of the call is a policy with FORCE. Asks the server about a policy at most once a
    /// second.
    pub(crate) async fn refuse_forced(&self, charge: &Charge) -> Result<(), CallFailure> {
        for (key, limit) in charge.policies() {
            let policies = &self.shared.forced;
            let asked_at = Instant::now();
            let forces = if let Some(forces) = policies.find(&limit.words, asked_at) {
                forces
            } else {
                let forces = has_force(&self.send(&Charge::policy_query(key, limit), true).await?);
                policies.remember(&limit.words, forces, asked_at);
                forces
            };
            if forces {
                return Err(CallFailure::Unsendable(FORCED));
            }
        }
        Ok(())
    }

    /// Sends a command whose failure is an error: [`OnOutage`] does not apply.
    pub(crate) async fn send_command(&self, words: &[String]) -> Result<Value, Error> {
        self.send(words, true).await.map_err(CallFailure::into_error)
    }

    /// Sends a command that may end denials, and forgets the denials of `key`, the key on the server.
    pub(crate) async fn send_change(
        &self,
        key: &str,
        words: &[String],
        is_repeatable: bool,
    ) -> Result<Value, CallFailure> {
        let reply = self.send(words, is_repeatable).await;
        self.shared.denials.forget(key.as_bytes());
        reply
    }

    /// Sends a call that the server answers when there is room, or after `wait`. The call has a connection of its own,
    /// because later calls on the same connection would wait, too. Returns `None` without a client.
    pub(crate) async fn send_blocking(&self, words: &[String], wait: Duration) -> Option<Result<Value, CallFailure>> {
        let client = self.client.as_ref()?;
        let timeout = wait.saturating_add(self.options().timeout);
        let blocking_call = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            // BLOCK 0 waits without a timeout.
            let block_words = ["BLOCK".to_owned(), format!("{}ms", wait.as_millis().max(1))];
            command(&[words, &block_words].concat()).query_async::<Value>(&mut connection).await
        };
        Some(match tokio::time::timeout(timeout, blocking_call).await {
            Ok(reply) => reply.map_err(|error| call_failure(&error)),
            Err(_) => Err(CallFailure::NoReply("no reply, though the time to wait is over".to_owned())),
        })
    }

    async fn send(&self, words: &[String], is_repeatable: bool) -> Result<Value, CallFailure> {
        let Shared { options, breaker, .. } = &*self.shared;
        let mut resends = if is_repeatable { options.resends } else { 0 };
        loop {
            let sent_at = Instant::now();
            if !breaker.allows(sent_at) {
                return Err(CallFailure::NoReply("the server was not asked: it failed a moment ago".to_owned()));
            }
            let mut connection = self.connection.clone();
            let reply = tokio::time::timeout(options.timeout, send_routed(&mut connection, words)).await;
            let why = match reply.map(|reply| reply.map_err(|error| call_failure(&error))) {
                Ok(Ok(value)) => {
                    breaker.record_success();
                    return Ok(value);
                }
                Ok(Err(CallFailure::ErrorReply(reply))) => {
                    breaker.record_success();
                    // A server that became a replica has charged nothing: resend to the new primary.
                    if !(reply.starts_with("READONLY ") && resends > 0) {
                        return Err(CallFailure::ErrorReply(reply));
                    }
                    reply
                }
                Ok(Err(failure @ CallFailure::Unsendable(_))) => return Err(failure),
                Ok(Err(CallFailure::NoReply(why))) => why,
                Err(_) => format!("no reply within {:?}", options.timeout),
            };
            if resends == 0 {
                breaker.record_failure(sent_at, Instant::now(), &why);
                return Err(CallFailure::NoReply(why));
            }
            resends -= 1;
        }
    }

    /// Returns the fallback decision, or an error for a rejected call.
    pub(crate) fn fallback(&self, why: CallFailure) -> Result<Decision, Error> {
        let Options { on_outage, pause, .. } = *self.options();
        let error = self.outage_error(why)?;
        let allowed = on_outage == OnOutage::Open && !matches!(error, Error::Full(_));
        Ok(Decision::undecided(allowed, pause, error))
    }

    /// Returns the fallback decision for a correction, which does nothing without the server: the charge remains until
    /// it recovers.
    pub(crate) fn correction_fallback(&self, why: CallFailure) -> Result<Decision, Error> {
        Ok(Decision::undecided(false, self.options().pause, self.outage_error(why)?))
    }

    /// Returns the error of an outage for a fallback decision, or fails with the error of a rejected call.
    fn outage_error(&self, why: CallFailure) -> Result<Error, Error> {
        let Options { on_outage, setup_errors, .. } = *self.options();
        let error = why.into_error();
        if matches!(error, Error::Setup(_) | Error::NoPolicy(_) | Error::Full(_)) {
            log::error!("Redis refuses a call: {error}");
        }
        let is_outage = match error {
            Error::Unavailable(_) => true,
            Error::Setup(_) | Error::NoPolicy(_) => setup_errors == SetupErrors::Outage,
            // Lack of room is not an outage, and denies the call.
            Error::Full(_) => return Ok(error),
            Error::Call(_) | Error::Denied(_) => false,
        };
        if is_outage && on_outage != OnOutage::Raise { Ok(error) } else { Err(error) }
    }

    /// Returns the remembered denial of these words, which have no idempotency key.
    pub(crate) fn remembered_denial(&self, key: &str, words: &[String]) -> Option<Decision> {
        self.shared.denials.find(key.as_bytes(), words, Instant::now())
    }

    /// Remembers the denial of a call that was sent at `sent_at`. `peek` is the same call as a peek; without it, the
    /// denial is remembered for a second at most.
    pub(crate) fn remember(
        &self,
        key: &str,
        words: &[String],
        decision: &Decision,
        sent_at: Instant,
        peek: Option<Vec<String>>,
    ) {
        let denial = Denial::new(words.to_vec(), decision.clone(), sent_at, Instant::now());
        let is_repeated = self.shared.denials.remember(key.as_bytes(), denial);
        if let (true, Some(tracker), Some(peek)) = (is_repeated, &self.tracker, peek)
            && decision.wait.is_some_and(Denial::is_long)
        {
            tracker.watch(key.to_owned(), words.to_vec(), peek);
        }
    }
}

async fn send_routed<C: ConnectionLike + 'static>(connection: &mut C, words: &[String]) -> RedisResult<Value> {
    let command = command(words);
    match routing::cluster_route(connection, words) {
        Some((cluster, route)) => cluster.route_command(command, route).await,
        None => command.query_async(connection).await,
    }
}

fn call_failure(error: &RedisError) -> CallFailure {
    reply_of(error).map_or_else(|| CallFailure::NoReply(error.to_string()), CallFailure::ErrorReply)
}
