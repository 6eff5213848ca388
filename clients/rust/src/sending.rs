//! How a call reaches the server, and what holds when it does not answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::aio::ConnectionLike;
use redis::{AsyncConnectionConfig, Client, RedisError, RedisResult, Value};

use crate::breaker::Breaker;
use crate::decision::Decision;
use crate::denials::{Denial, Denials};
use crate::ear::Ear;
use crate::error::Error;
use crate::options::{OnOutage, Options, SetupErrors};
use crate::replies::{explained, reply_of};
use crate::routing;
use crate::words::command;

/// Why there was no reply, or which error it was.
pub(crate) enum Refused {
    Nothing(String),
    Reply(String),
}

impl Refused {
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Nothing(why) => Error::Unavailable(why),
            Self::Reply(said) => explained(&said),
        }
    }
}

/// The connection, and what is known of its server.
#[derive(Clone)]
pub(crate) struct Sending<C> {
    connection: C,
    shared: Arc<Shared>,
    /// Of the one server: for connections beside.
    client: Option<Client>,
    ear: Option<Arc<Ear>>,
}

struct Shared {
    options: Options,
    breaker: Breaker,
    denials: Arc<Denials>,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Sending<C> {
    pub(crate) fn new(connection: C, options: Options) -> Self {
        let breaker = Breaker::new(options.failures, options.pause);
        let shared = Shared { options, breaker, denials: Arc::default() };
        Self { connection, shared: Arc::new(shared), client: None, ear: None }
    }

    pub(crate) fn beside(mut self, client: Client) -> Self {
        self.ear = Some(Arc::new(Ear::new(client.clone(), self.shared.denials.clone(), self.options().timeout)));
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

    /// A command whose errors are not decided by [`OnOutage`].
    pub(crate) async fn asked(&self, words: &[String]) -> Result<Value, Error> {
        self.send(words, true).await.map_err(Refused::into_error)
    }

    /// What may let pass what was denied. The key is the server's.
    pub(crate) async fn changed(&self, key: &str, words: &[String], is_repeatable: bool) -> Result<Value, Refused> {
        let reply = self.send(words, is_repeatable).await;
        self.shared.denials.forget(key.as_bytes());
        reply
    }

    /// A call that the server answers when there is room, or after `wait`: on a connection of its own, as whatever
    /// came behind it on one would wait, too. None: there is no client to open one.
    pub(crate) async fn blocked(&self, words: &[String], wait: Duration) -> Option<Result<Value, Refused>> {
        let client = self.client.as_ref()?;
        let patience = wait.saturating_add(self.options().timeout);
        let asking = async {
            let config = AsyncConnectionConfig::new().set_response_timeout(None);
            let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
            // To the server 0 is as long as it takes.
            let blocking = ["BLOCK".to_owned(), format!("{}ms", wait.as_millis().max(1))];
            command(&[words, &blocking].concat()).query_async::<Value>(&mut connection).await
        };
        Some(match tokio::time::timeout(patience, asking).await {
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
                    // A server that has become a replica has charged nothing: ask its successor.
                    if !(said.starts_with("READONLY ") && resends > 0) {
                        return Err(Refused::Reply(said));
                    }
                    said
                }
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

    /// In place of the server's decision. A mistake is an error.
    pub(crate) fn without(&self, why: Refused) -> Result<Decision, Error> {
        let Options { on_outage, pause, .. } = *self.options();
        let error = self.explained(why)?;
        let allowed = on_outage == OnOutage::Open && !matches!(error, Error::Full(_));
        Ok(Decision::nobody(allowed, pause, error))
    }

    /// Of a call that corrects: without the server nothing is, and what was charged stays charged until it recovers.
    pub(crate) fn uncorrected(&self, why: Refused) -> Result<Decision, Error> {
        Ok(Decision::nobody(false, self.options().pause, self.explained(why)?))
    }

    /// What somebody decides in place of the server, if anybody does.
    fn explained(&self, why: Refused) -> Result<Error, Error> {
        let Options { on_outage, setup_errors, .. } = *self.options();
        let error = why.into_error();
        if matches!(error, Error::Setup(_) | Error::NoPolicy(_) | Error::Full(_)) {
            log::error!("Redis refuses a call: {error}");
        }
        let is_outage = match error {
            Error::Unavailable(_) => true,
            Error::Setup(_) | Error::NoPolicy(_) => setup_errors == SetupErrors::Outage,
            // A key without room is no outage, and denies.
            Error::Full(_) => return Ok(error),
            Error::Call(_) | Error::Denied(_) => false,
        };
        if is_outage && on_outage != OnOutage::Raise { Ok(error) } else { Err(error) }
    }

    /// What the server would answer to these words now, if it is known. The words have no idempotency key.
    pub(crate) fn denied(&self, key: &str, words: &[String]) -> Option<Decision> {
        self.shared.denials.find(key.as_bytes(), words, Instant::now())
    }

    /// Of a call that was sent at that time. `look` asks the same, and changes nothing; None: it is remembered for a
    /// second at most.
    pub(crate) fn remember(
        &self,
        key: &str,
        words: &[String],
        decision: &Decision,
        sent_at: Instant,
        look: Option<Vec<String>>,
    ) {
        let denial = Denial::new(words.to_vec(), decision.clone(), sent_at, Instant::now());
        let is_new = self.shared.denials.remember(key.as_bytes(), denial);
        if let (true, Some(ear), Some(look)) = (is_new, &self.ear, look)
            && decision.wait.is_some_and(Denial::is_long)
        {
            ear.watch(key.to_owned(), words.to_vec(), look);
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
