//! Questions to a server: its policies, and if it can decide.

use ratelimit_link::connect::send;
use ratelimit_link::redirect::redirect;
use ratelimit_link::server_error::{is_error_reply, lacks_module};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};

/// Receiver of the server's policies.
pub trait Listener: Send + Sync {
    /// Returns the digest of the policies that are known here.
    fn digest(&self) -> Option<String>;
    /// Replaces the policies by those of the server.
    fn policies(&self, digest: String, policies: Vec<PolicyRow>);
    /// Returns `true` if this version of a policy is known here, or a later one.
    fn has(&self, name: &str, version: i64) -> bool;
    /// Adds a policy.
    fn add(&self, policy: PolicyRow);
}

/// Policy as RL.POLICYLIST shows it.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    /// Name.
    pub name: String,
    /// Version: more with each set.
    pub version: i64,
    /// Words of its limits.
    pub specs: String,
}

/// Fails if the server cannot decide. INFO does not tell: the server replies to it while it loads its file, while its
/// cluster has no quorum, and as a replica that has lost its primary. So the probe asks for a decision by a policy that
/// does not exist, without a cost.
pub async fn probe(connection: &MultiplexedConnection, key: &[u8]) -> RedisResult<()> {
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(key).arg(key).arg("COST").arg(0);
    match send(connection.clone(), &command).await {
        Err(error) if lacks_module(&error) => Err(error),
        Err(error) if !is_error_reply(&error) && redirect(&error).is_none() => Err(error),
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
    let rows = rows(&send(connection.clone(), &redis::cmd("RL.POLICYLIST")).await?);
    listener.policies(digest.to_owned(), rows);
    Ok(())
}

/// Returns a command that lists one policy.
#[must_use]
pub fn one(name: &str) -> Cmd {
    let mut pattern = String::with_capacity(name.len());
    for letter in name.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    let mut command = redis::cmd("RL.POLICYLIST");
    command.arg("MATCH").arg(pattern);
    command
}

/// Reads a reply to RL.POLICYLIST.
#[must_use]
pub fn rows(reply: &Value) -> Vec<PolicyRow> {
    let row = |row: &Value| {
        let Value::Array(fields) = row else { return None };
        let text = |place: usize| {
            let bytes = redis::from_redis_value_ref::<Vec<u8>>(fields.get(place)?).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        };
        let version = redis::from_redis_value_ref(fields.get(1)?).ok()?;
        Some(PolicyRow { name: text(0)?, version, specs: text(2)? })
    };
    match reply {
        Value::Array(rows) => rows.iter().filter_map(row).collect(),
        _ => vec![],
    }
}

/// Reads a section of INFO: Redis 6.2 takes no more than one in a call.
async fn info(connection: &MultiplexedConnection, section: &str) -> Result<String, RedisError> {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    redis::from_redis_value(send(connection.clone(), &info).await?).map_err(Into::into)
}
