//! The most denied keys of all primaries.

use super::failure::Failure;
use super::reply_json::{int, items};
use super::upstream::Server;
use futures_util::future::join_all;
use redis::{Cmd, Value};

/// Number of bytes of a key's name that the server stores with its denials.
const STORED_BYTES: usize = 512;

/// Key with its number of denials.
pub struct DeniedKey {
    /// Name of the key, or its first bytes if it is long ([`stored_name`]).
    pub key: Vec<u8>,
    /// Number of denials.
    pub count: i64,
    /// Policy that denied the key last.
    pub policy: Option<Vec<u8>>,
    /// Item of a sketch.
    pub item: Option<Vec<u8>>,
    /// Number by which `count` may be too high.
    pub error: i64,
    /// Name of the primary that denied the key.
    pub node: String,
}

/// Name of a key, and the item if the key is a sketch.
pub type DeniedId = (Vec<u8>, Option<Vec<u8>>);

impl DeniedKey {
    /// Returns the name and the item.
    #[must_use]
    pub fn id(&self) -> DeniedId {
        (self.key.clone(), self.item.clone())
    }

    /// Returns `true` if `key` is the whole name of a key without items.
    #[must_use]
    pub fn is_whole_key(&self) -> bool {
        self.item.is_none() && self.key.len() < STORED_BYTES
    }

    /// Parses a row of a reply to RL.TOP by a node.
    #[must_use]
    pub fn parse(row: &Value, node: &str) -> Option<DeniedKey> {
        let [Value::BulkString(key), denied, error, policy, rest @ ..] = items(row) else { return None };
        let bytes = |value: &Value| if let Value::BulkString(bytes) = value { Some(bytes.clone()) } else { None };
        Some(DeniedKey {
            key: key.clone(),
            count: int(denied)?,
            error: int(error)?,
            policy: bytes(policy),
            item: rest.first().and_then(bytes),
            node: node.to_owned(),
        })
    }
}

/// Returns the part of the name of a key that the server stores.
#[must_use]
pub fn stored_name(key: &[u8]) -> &[u8] {
    key.get(..STORED_BYTES).unwrap_or(key)
}

/// Returns the command that lists the most denied keys of a recent time, such as `5m`, or of all time.
#[must_use]
pub fn top_command(since: Option<&str>, count: usize) -> Cmd {
    let mut command = redis::cmd("RL.TOP");
    command.arg("COUNT").arg(count);
    if let Some(since) = since {
        command.arg("SINCE").arg(since);
    }
    command
}

/// Returns the most denied keys of all primaries.
///
/// # Errors
/// If a reply is an error, or if the only primary does not reply.
pub async fn most_denied(server: &Server, since: Option<&str>, count: usize) -> Result<Vec<DeniedKey>, Failure> {
    let command = top_command(since, count);
    let replies = join_all(server.nodes().iter().map(|node| node.send(&command))).await;
    let mut all: Vec<DeniedKey> = vec![];
    for (node, reply) in server.nodes().iter().zip(replies) {
        match reply {
            // The other nodes suffice; the indicator of the page shows the outage.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => {}
            reply => all.extend(items(&reply?).iter().filter_map(|row| DeniedKey::parse(row, &node.name))),
        }
    }
    all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.key.cmp(&other.key)));
    // After a slot has moved, both nodes have counts of its keys.
    let mut merged: Vec<DeniedKey> = vec![];
    for row in all {
        match merged.iter_mut().find(|known| known.key == row.key && known.item == row.item) {
            Some(known) => {
                known.count = known.count.saturating_add(row.count);
                known.error = known.error.saturating_add(row.error);
            }
            None => merged.push(row),
        }
    }
    merged.sort_by_key(|row| std::cmp::Reverse(row.count));
    Ok(merged)
}
