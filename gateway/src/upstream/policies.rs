//! Probes of a server, and reading of its policies.

use crate::policy_cache::{PolicyCache, PolicyRow};
use ratelimit_link::connect::send;
use ratelimit_link::redirect::redirect;
use ratelimit_link::server_error::{is_error_reply, lacks_module};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value};

/// Probes the server by a call of cost 0 under a policy that does not exist, and fails if the server cannot decide.
/// INFO would not show that: the server replies to INFO while it loads its data, while its cluster has no quorum, and
/// as a replica that has lost its primary.
pub async fn probe(connection: &MultiplexedConnection, key: &[u8]) -> RedisResult<()> {
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(key).arg(key).arg("COST").arg(0);
    match send(connection.clone(), &command).await {
        Err(error) if lacks_module(&error) => Err(error),
        Err(error) if !is_error_reply(&error) && redirect(&error).is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Fails if the server is a replica, which rejects charges.
pub async fn require_primary(connection: &MultiplexedConnection) -> RedisResult<()> {
    if info(connection, "replication").await?.lines().any(|line| line == "role:slave") {
        return Err((ErrorKind::Client, "the server is a replica").into());
    }
    Ok(())
}

/// Reads the policies into the cache if their digest has changed.
pub async fn refresh(connection: &MultiplexedConnection, cache: &PolicyCache) -> RedisResult<()> {
    let info = info(connection, "ratelimit_policies").await?;
    let digest = info.lines().find_map(|line| line.strip_prefix("ratelimit_policies_digest:")).unwrap_or_default();
    if cache.digest().as_deref() == Some(digest) {
        return Ok(());
    }
    let rows = parse_rows(&send(connection.clone(), &redis::cmd("RL.POLICYLIST")).await?);
    cache.replace(digest.to_owned(), rows);
    Ok(())
}

/// Returns the command that lists one policy.
#[must_use]
pub fn list_command(name: &str) -> Cmd {
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

/// Parses a reply to RL.POLICYLIST.
#[must_use]
pub fn parse_rows(reply: &Value) -> Vec<PolicyRow> {
    let row = |row: &Value| {
        let Value::Array(fields) = row else { return None };
        let text = |index: usize| {
            let bytes = redis::from_redis_value_ref::<Vec<u8>>(fields.get(index)?).ok()?;
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

/// Reads a section of INFO. Redis 6.2 accepts only one section in a call.
async fn info(connection: &MultiplexedConnection, section: &str) -> Result<String, RedisError> {
    let mut info = redis::cmd("INFO");
    info.arg(section);
    redis::from_redis_value(send(connection.clone(), &info).await?).map_err(Into::into)
}
