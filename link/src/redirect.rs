//! Redirections of calls in a cluster whose slots move.

use crate::slots::HostPort;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Pause before a call is sent again. A first redirection to a node is followed at once.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// Server to which a call is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// Primary of the key's slot according to the slot table.
    Primary,
    /// Primary of the slot according to a MOVED reply.
    Node(HostPort),
    /// Node that imports the slot, and accepts calls for it only after ASKING.
    Importing(HostPort),
}

/// Progress of one call through its redirections.
pub struct Redirects {
    deadline: Instant,
    /// `true` until the first redirection is followed.
    is_first: bool,
}

impl Redirects {
    /// Creates a state that follows redirections until the deadline.
    #[must_use]
    pub fn until(deadline: Instant) -> Redirects {
        Redirects { deadline, is_first: true }
    }

    /// Returns the server to which the call must be sent again, or `None` if the reply does not redirect the call or
    /// the deadline has passed. A redirected call was not carried out, so sending it again is safe.
    pub async fn next(&mut self, reply: &RedisResult<Value>) -> Option<Target> {
        let target = redirect(reply.as_ref().err()?)?;
        if Instant::now() >= self.deadline {
            return None;
        }
        // Nodes that redirect to each other must not cause a busy loop.
        if !self.is_first || target == Target::Primary {
            sleep(RETRY_PAUSE).await;
        }
        self.is_first = false;
        Some(target)
    }
}

/// Returns the target of a redirection, or `None` for any other error. A redirection is not a failure of the node.
#[must_use]
pub fn redirect(error: &RedisError) -> Option<Target> {
    let node = || {
        let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
        // A node that does not know its own host leaves it empty; the slot table has the host.
        (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
    };
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::Ask) => Some(node().map_or(Target::Primary, Target::Importing)),
        ErrorKind::Server(ServerErrorKind::Moved) => Some(node().map_or(Target::Primary, Target::Node)),
        ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Target::Primary),
        // CLUSTERDOWN without this text concerns all slots and is an outage.
        ErrorKind::Server(ServerErrorKind::ClusterDown) => {
            error.detail().is_some_and(|detail| detail.contains("slot not served")).then_some(Target::Primary)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::{Redirects, Target, redirect};
    use redis::{RedisError, Value, parse_redis_value};
    use std::time::Duration;
    use tokio::time::Instant;

    fn error(text: &str) -> RedisError {
        parse_redis_value(format!("-{text}\r\n").as_bytes()).unwrap().extract_error().unwrap_err()
    }

    #[test]
    fn redirections_name_their_target() {
        let node = ("::1".to_owned(), 7000);
        for (text, target) in [
            ("MOVED 1 ::1:7000", Some(Target::Node(node.clone()))),
            ("ASK 1 ::1:7000", Some(Target::Importing(node))),
            ("MOVED 1 :7000", Some(Target::Primary)),
            ("TRYAGAIN x", Some(Target::Primary)),
            ("CLUSTERDOWN Hash slot not served", Some(Target::Primary)),
            ("CLUSTERDOWN The cluster is down", None),
            ("LOADING x", None),
        ] {
            assert_eq!(redirect(&error(text)), target, "{text}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn call_follows_redirections_until_the_deadline() {
        let mut redirects = Redirects::until(Instant::now() + Duration::from_secs(1));
        assert_eq!(redirects.next(&Err(error("ASK 1 b:2"))).await, Some(Target::Importing(("b".to_owned(), 2))));
        assert_eq!(redirects.next(&Ok(Value::Okay)).await, None);
        let mut hops = 0;
        while redirects.next(&Err(error("MOVED 1 a:1"))).await.is_some() {
            hops += 1;
        }
        assert!((1..=200).contains(&hops), "{hops}");
    }
}
