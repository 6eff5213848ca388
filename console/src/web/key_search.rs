//! Search for keys by their prefix. A request looks at a bounded number of keys, and its response has the cursor of the
//! next request.

use super::Console;
use super::failure::Failure;
use super::reply_json::{items, object, text_of};
use super::text;
use super::upstream::{Node, Server};
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::join_all;
use redis::Value;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::sync::Arc;

/// Number of keys that a server looks at in one call of SCAN.
const SCAN_COUNT: usize = 1000;
/// Maximum number of calls of SCAN in one request.
const MAX_SCANS: usize = 20;
/// Number of found keys after which a request ends.
const ENOUGH_KEYS: usize = 100;
/// First bytes of the types of the module.
const TYPE_PREFIX: &str = "rl-";
/// Type of keys that can be banned.
const BANNABLE: &str = "rl-limits";

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/keys", get(search))
}

/// Query of `/api/keys`: the prefix, and the cursor of the previous response. With `banned`, only banned keys are
/// found.
#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    prefix: String,
    cursor: Option<String>,
    #[serde(default)]
    banned: bool,
}

/// Position in the keys of all primaries: a cursor of SCAN, and the name of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Position {
    cursor: String,
    node: String,
}

impl Position {
    /// Parses `cursor@node`.
    fn parse(text: &str) -> Option<Position> {
        let (cursor, node) = text.split_once('@')?;
        cursor.parse::<u64>().ok()?;
        Some(Position { cursor: cursor.to_owned(), node: node.to_owned() })
    }

    fn text(&self) -> String {
        format!("{}@{}", self.cursor, self.node)
    }

    /// Returns the position at the beginning of the first node whose name is greater than `after`.
    fn beginning(server: &Server, after: Option<&str>) -> Option<Position> {
        let mut nodes = server.nodes().iter().map(|node| node.name.as_str());
        let node = nodes.find(|name| after.is_none_or(|after| *name > after))?;
        Some(Position { cursor: "0".to_owned(), node: node.to_owned() })
    }
}

async fn search(
    State(console): State<Arc<Console>>,
    Query(query): Query<SearchQuery>,
) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let mut position = match query.cursor.as_deref() {
        Some(cursor) => {
            Some(Position::parse(cursor).ok_or_else(|| Failure::BadRequest("malformed cursor".to_owned()))?)
        }
        None => Position::beginning(&server, None),
    };
    let pattern = pattern(&text::to_bytes(&query.prefix));
    let mut found: Vec<JsonValue> = vec![];
    for _ in 0..MAX_SCANS {
        let Some(current) = position.take_if(|_| found.len() < ENOUGH_KEYS) else { break };
        let next = match server.nodes().iter().find(|node| node.name == current.node) {
            Some(node) => match scan(node, &current.cursor, &pattern).await {
                // The other nodes suffice; the indicator of the page shows the outage.
                Err(Failure::Away(_)) if server.nodes().len() > 1 => None,
                portion => {
                    let (cursor, keys) = portion?;
                    if query.banned {
                        found.extend(banned_keys(node, keys).await);
                    } else {
                        let key_json =
                            |(key, kind): (Vec<u8>, _)| json!({ "key": text::from_bytes(&key), "kind": kind });
                        found.extend(keys.into_iter().map(key_json));
                    }
                    (cursor != "0").then(|| Position { cursor, node: current.node.clone() })
                }
            },
            // The node is not a primary any more.
            None => None,
        };
        position = next.or_else(|| Position::beginning(&server, Some(&current.node)));
    }
    Ok(Json(json!({ "keys": found, "cursor": position.map(|position| position.text()) })))
}

/// Key of the module, with its type if it could be read.
type FoundKey = (Vec<u8>, Option<String>);

/// Looks at some keys of a node from a cursor of SCAN. Returns the next cursor, and the module's keys that match.
///
/// # Errors
/// If the node does not reply, or lacks the permission.
pub async fn scan(node: &Node, cursor: &str, pattern: &[u8]) -> Result<(String, Vec<FoundKey>), Failure> {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_COUNT);
    let reply = node.send(&command).await?;
    let [cursor, keys] = items(&reply) else { return Err(Failure::Server("malformed reply to SCAN".to_owned())) };
    let cursor = text_of(cursor).ok_or_else(|| Failure::Server("malformed cursor of SCAN".to_owned()))?;
    let types = items(keys).iter().filter_map(|key| if let Value::BulkString(key) = key { Some(key) } else { None });
    let types = types.map(|key| async move {
        let mut command = redis::cmd("TYPE");
        command.arg(key);
        (key, node.send(&command).await)
    });
    let mut found = vec![];
    for (key, kind) in join_all(types).await {
        let kind = match kind {
            Ok(kind) => text_of(&kind),
            Err(Failure::Away(why)) => return Err(Failure::Away(why)),
            // The slot of the key is being moved.
            Err(_) => None,
        };
        if kind.as_ref().is_none_or(|kind| kind.starts_with(TYPE_PREFIX)) {
            found.push((key.clone(), kind));
        }
    }
    Ok((cursor, found))
}

/// Returns the banned ones of some keys, with the ends of their bans.
async fn banned_keys(node: &Node, keys: Vec<FoundKey>) -> Vec<JsonValue> {
    // A banned key has this type, even if it has a single limit.
    let keys = keys.into_iter().filter(|(_, kind)| kind.as_deref() == Some(BANNABLE));
    let bans = join_all(keys.map(|(key, _)| async move { (banned_until(node, &key).await, key) })).await;
    let key_json = |(until, key): (Option<JsonValue>, Vec<u8>)| {
        Some(json!({ "key": text::from_bytes(&key), "banned_until": until? }))
    };
    bans.into_iter().filter_map(key_json).collect()
}

/// Returns the end of the ban of a key, or `None` if it is not banned any more.
async fn banned_until(node: &Node, key: &[u8]) -> Option<JsonValue> {
    let mut command = redis::cmd("RL.INFO");
    command.arg(key);
    object(&node.send(&command).await.ok()?).get("banned_until").cloned()
}

/// Returns the pattern of SCAN for names that begin with a prefix.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = vec![];
    for byte in prefix {
        if b"*?[]\\".contains(byte) {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

#[cfg(test)]
mod tests {
    use super::{Position, pattern};

    #[test]
    fn characters_of_patterns_are_escaped() {
        assert_eq!(pattern(b"login:"), b"login:*");
        assert_eq!(pattern(br"a*b?[c]\d"), br"a\*b\?\[c\]\\d*");
    }

    #[test]
    fn position_is_parsed_from_its_text() {
        let position = Position { cursor: "17".to_owned(), node: "[::1]:7001".to_owned() };
        assert_eq!(Position::parse(&position.text()), Some(position));
        assert_eq!(["", "17", "x@a:1", "-1@a:1"].map(Position::parse), [None, None, None, None]);
    }
}
