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
use crate::replies::{explained, reply_of};
use crate::routing;
use crate::tracking::Tracker;
use crate::words::{Charge, command};

/// Failure of a call: an error reply, no reply, or a call that was not sent because it would be wrong.
#[derive(Clone)]
pub(crate) enum Refused {
    Nothing(String),
    Reply(String),
    Call(&'static str),
}

impl Refused {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Nothing(why) => Error::Unavailable(why),
            Self::Reply(reply) => explained(&reply),
            Self::Call(why) => Error::Call(why.to_owned()),
        }
    }
}

/// Connection, and the state of its server.
#[derive(Clone)]
pub(crate) struct Sending<C> {
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

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Sending<C> {
    pub(crate) fn new(connection: C, options: Options) -> Self {
        let breaker = Breaker::new(options.failures, options.pause);
        let shared = Shared { options, breaker, denials: Arc::default(), forced: ForcedPolicies::default() };
        Self { connection, shared: Arc::new(shared), client: None, tracker: None }
    }

    pub(crate) fn beside(mut self, client: Client) -> Self {
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

    pub(crate) async fn decided(
        &self,
        words: &[String],
        is_repeatable: bool,
        id: Option<String>,
    ) -> Result<Decision, Refused> {
        let reply = self.send(words, is_repeatable).await?;
        Decision::read(&reply, id).ok_or_else(|| Refused::Nothing(format!("no decision: {reply:?}")))
    }

    /// Returns an error if a limit of the call is a policy with FORCE. The server is asked at most once a second.
    pub(crate) async fn refuse_forced(&self, charge: &Charge) -> Result<(), Refused> {
        for (key, limit) in charge.policies() {
            let policies = &self.shared.forced;
            let asked_at = Instant::now();
            let forces = if let Some(forces) = policies.find(&limit.words, asked_at) {
                forces
            } else {
                let forces = has_force(&self.send(&Charge::policy_facts(key, limit), true).await?);
                policies.remember(&limit.words, forces, asked_at);
                forces
            };
            if forces {
                return Err(Refused::Call(FORCED));
            }
        }
        Ok(())
    }

    /// Sends a command to which [`OnOutage`] does not apply.
    pub(crate) async fn send_command(&self, words: &[String]) -> Result<Value, Error> {
        self.send(words, true).await.map_err(Refused::into_error)
    }

    /// Sends a command that may invalidate denials of the key, which is its name on the server.
    pub(crate) async fn changed(&self, key: &str, words: &[String], is_repeatable: bool) -> Result<Value, Refused> {
        let reply = self.send(words, is_repeatable).await;
        self.shared.denials.forget(key.as_bytes());
        reply
    }

    /// Sends a call that the server answers when there is room, or after `wait`, on a connection of its own: later
    /// calls on the same one would wait, too. Returns `None` without a client.
    pub(crate) async fn blocked(&self, words: &[String], wait: Duration) -> Option<Result<Value, Refused>> {
        let client = self.client.as_ref()?;
        let timeout = wait.saturating_add(self.options().timeout);
        let blocked = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            // BLOCK 0 waits without a timeout.
            let blocking = ["BLOCK".to_owned(), format!("{}ms", wait.as_millis().max(1))];
            command(&[words, &blocking].concat()).query_async::<Value>(&mut connection).await
        };
        Some(match tokio::time::timeout(timeout, blocked).await {
            Ok(reply) => reply.map_err(|error| refused(&error)),
            Err(_) => Err(Refused::Nothing("no reply, though the time to wait is over".to_owned())),
        })
    }

    async fn send(&self, words: &[String], is_repeatable: bool) -> Result<Value, Refused> {
        let Shared { options, breaker, .. } = &*self.shared;
        let mut resends = if is_repeatable { options.resends } else { 0 };
        loop {
            let sent_at = Instant::now();
            if !breaker.allows(sent_at) {
                return Err(Refused::Nothing("the server was not asked: it failed a moment ago".to_owned()));
            }
            let mut connection = self.connection.clone();
            let reply = tokio::time::timeout(options.timeout, sent(&mut connection, words)).await;
            let why = match reply.map(|reply| reply.map_err(|error| refused(&error))) {
                Ok(Ok(value)) => {
                    breaker.succeeded();
                    return Ok(value);
                }
                Ok(Err(Refused::Reply(said))) => {
                    breaker.succeeded();
                    // A server that became a replica has charged nothing: resend to the new primary.
                    if !(said.starts_with("READONLY ") && resends > 0) {
                        return Err(Refused::Reply(said));
                    }
                    said
                }
                Ok(Err(call @ Refused::Call(_))) => return Err(call),
                Ok(Err(Refused::Nothing(why))) => why,
                Err(_) => format!("no reply within {:?}", options.timeout),
            };
            if resends == 0 {
                breaker.failed(sent_at, Instant::now(), &why);
                return Err(Refused::Nothing(why));
            }
            resends -= 1;
        }
    }

    /// Returns the fallback decision, or an error for a rejected call.
    pub(crate) fn without(&self, why: Refused) -> Result<Decision, Error> {
        let Options { on_outage, pause, .. } = *self.options();
        let error = self.explained(why)?;
        let allowed = on_outage == OnOutage::Open && !matches!(error, Error::Full(_));
        Ok(Decision::undecided(allowed, pause, error))
    }

    /// Returns the fallback of a correction, which does nothing without the server: the charge stays until it recovers.
    pub(crate) fn uncorrected(&self, why: Refused) -> Result<Decision, Error> {
        Ok(Decision::undecided(false, self.options().pause, self.explained(why)?))
    }

    /// Returns the error of an outage for a fallback decision, or fails with the error of a rejected call.
    fn explained(&self, why: Refused) -> Result<Error, Error> {
        let Options { on_outage, setup_errors, .. } = *self.options();
        let error = why.into_error();
        if matches!(error, Error::Setup(_) | Error::NoPolicy(_) | Error::Full(_)) {
            log::error!("Redis refuses a call: {error}");
        }
        let is_outage = match error {
            Error::Unavailable(_) => true,
            Error::Setup(_) | Error::NoPolicy(_) => setup_errors == SetupErrors::Outage,
            // A full key is not an outage, and denies.
            Error::Full(_) => return Ok(error),
            Error::Call(_) | Error::Denied(_) => false,
        };
        if is_outage && on_outage != OnOutage::Raise { Ok(error) } else { Err(error) }
    }

    /// Returns the remembered denial of these words, which have no idempotency key.
    pub(crate) fn denied(&self, key: &str, words: &[String]) -> Option<Decision> {
        self.shared.denials.find(key.as_bytes(), words, Instant::now())
    }

    /// Remembers the denial of a call that was sent at that time. `peek` is the same call as a peek; without it, the
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
        let is_new = self.shared.denials.remember(key.as_bytes(), denial);
        if let (true, Some(tracker), Some(peek)) = (is_new, &self.tracker, peek)
            && decision.wait.is_some_and(Denial::is_long)
        {
            tracker.watch(key.to_owned(), words.to_vec(), peek);
        }
    }
}

async fn sent<C: ConnectionLike + 'static>(connection: &mut C, words: &[String]) -> RedisResult<Value> {
    let command = command(words);
    match routing::elsewhere(connection, words) {
        Some((cluster, route)) => cluster.route_command(command, route).await,
        None => command.query_async(connection).await,
    }
}

fn refused(error: &RedisError) -> Refused {
    reply_of(error).map_or_else(|| Refused::Nothing(error.to_string()), Refused::Reply)
}
