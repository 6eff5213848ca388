//! Questions to a server: its policies, and if it can decide.

use super::connect::send;
use super::redirect::redirect;
use crate::ask::is_answer;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Value};

/// Receiver of the server's policies.
pub trait Listener: Send + Sync {
    /// Returns the digest of the policies that are known here.
    fn digest(&self) -> Option<String>;
    /// Replaces the policies by those of the server: names and the words of their limits.
    fn policies(&self, digest: String, policies: Vec<(String, String)>);
}

/// Fails if the server cannot decide. INFO does not tell: the server replies to it while it loads its file, while its
/// cluster has no quorum, and as a replica that has lost its primary. So the probe asks for a decision by a policy that
/// does not exist, without a cost.
pub async fn probe(connection: &MultiplexedConnection, key: &[u8]) -> RedisResult<()> {
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(key).arg(key).arg("COST").arg(0);
    match send(connection.clone(), &command).await {
        Err(error) if !is_answer(&error) && redirect(&error).is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Fails if the server is a replica: it would refuse what charges, and the primary is elsewhere.
pub async fn require_primary(connection: &MultiplexedConnection) -> RedisResult<()> {
    if info(connection, "replication").await?.lines().any(|line| line == "role:slave") {
        return Err((ErrorKind::Client, "the server is a replica").into());
    }
    Ok(())
}

/// Reads the digest of the policies, and the policies if the digest is another.
pub async fn read(connection: &MultiplexedConnection, listener: &dyn Listener) -> RedisResult<()> {
    let told = info(connection, "ratelimit_policies").await?;
    let digest = told.lines().find_map(|line| line.strip_prefix("ratelimit_policies_digest:")).unwrap_or_default();
    if listener.digest().as_deref() == Some(digest) {
        return Ok(());
    }
    let Value::Array(rows) = send(connection.clone(), &redis::cmd("RL.POLICYLIST")).await? else { return Ok(()) };
    let rows = rows.iter().filter_map(|row| {
        let Value::Array(fields) = row else { return None };
        let text = |place: usize| {
            let bytes = redis::from_redis_value_ref::<Vec<u8>>(fields.get(place)?).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        Some((text(0)?, text(2)?))
    });
    listener.policies(digest.to_owned(), rows.collect());
    Ok(())
}

/// Reads a section of INFO: Redis 6.2 takes no more than one in a call.
async fn info(connection: &MultiplexedConnection, section: &str) -> Result<String, RedisError> {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    redis::from_redis_value(send(connection.clone(), &info).await?).map_err(Into::into)
}
