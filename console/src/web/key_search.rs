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
use serde_json::{Value as Json_, json};
use std::sync::Arc;

/// Number of keys that a server looks at in one call.
const SCAN_COUNT: usize = 1000;
/// Maximum number of calls in one request.
const MAX_SCANS: usize = 20;
/// Number of found keys after which a request ends.
const ENOUGH: usize = 100;
/// First bytes of the types of the module.
const TYPE_PREFIX: &str = "rl-";
/// Type of keys that can be banned.
const BANNABLE: &str = "rl-limits";

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/keys", get(search))
}

/// Query of a search: the prefix, the cursor of the response before, and whether only banned keys are wanted.
#[derive(Deserialize)]
struct SearchQuery {
    #[serde(default)]
    prefix: String,
    cursor: Option<String>,
    #[serde(default)]
    banned: bool,
}

/// Place in the keys of all primaries: the cursor of a SCAN, and the node that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    cursor: String,
    node: String,
}

impl Place {
    /// Parses `cursor@node`.
    fn parse(text: &str) -> Option<Place> {
        let (cursor, node) = text.split_once('@')?;
        cursor.parse::<u64>().ok()?;
        Some(Place { cursor: cursor.to_owned(), node: node.to_owned() })
    }

    fn text(&self) -> String {
        format!("{}@{}", self.cursor, self.node)
    }

    /// Returns the place at the beginning of the first node whose name is greater than `after`.
    fn beginning(server: &Server, after: Option<&str>) -> Option<Place> {
        let mut nodes = server.nodes().iter().map(|node| node.name.as_str());
        let node = nodes.find(|name| after.is_none_or(|after| *name > after))?;
        Some(Place { cursor: "0".to_owned(), node: node.to_owned() })
    }
}

async fn search(State(console): State<Arc<Console>>, Query(query): Query<SearchQuery>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let mut place = match query.cursor.as_deref() {
        Some(cursor) => Some(Place::parse(cursor).ok_or_else(|| Failure::BadRequest("malformed cursor".to_owned()))?),
        None => Place::beginning(&server, None),
    };
    let pattern = pattern(&text::bytes(&query.prefix));
    let mut found: Vec<Json_> = vec![];
    for _ in 0..MAX_SCANS {
        let Some(at) = place.take_if(|_| found.len() < ENOUGH) else { break };
        let next = match server.nodes().iter().find(|node| node.name == at.node) {
            Some(node) => match scan(node, &at.cursor, &pattern).await {
                // The other nodes suffice; the page shows an outage elsewhere.
                Err(Failure::Away(_)) if server.nodes().len() > 1 => None,
                portion => {
                    let (cursor, keys) = portion?;
                    if query.banned {
                        found.extend(banned(node, keys).await);
                    } else {
                        let shown = |(key, kind): (Vec<u8>, _)| json!({ "key": text::shown(&key), "kind": kind });
                        found.extend(keys.into_iter().map(shown));
                    }
                    (cursor != "0").then(|| Place { cursor, node: at.node.clone() })
                }
            },
            // The node is not a primary any more.
            None => None,
        };
        place = next.or_else(|| Place::beginning(&server, Some(&at.node)));
    }
    Ok(Json(json!({ "keys": found, "cursor": place.map(|place| place.text()) })))
}

/// Key of the module, with its type if it could be read.
type FoundKey = (Vec<u8>, Option<String>);

/// Looks at some keys of a node, and returns the next cursor and those keys of the module that match.
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

/// Returns those keys that are banned, with the ends of their bans.
async fn banned(node: &Node, keys: Vec<FoundKey>) -> Vec<Json_> {
    // A key that is banned has this type, even if it had a single limit before.
    let keys = keys.into_iter().filter(|(_, kind)| kind.as_deref() == Some(BANNABLE));
    let bans = join_all(keys.map(|(key, _)| async move { (banned_until(node, &key).await, key) })).await;
    let shown =
        |(until, key): (Option<Json_>, Vec<u8>)| Some(json!({ "key": text::shown(&key), "banned_until": until? }));
    bans.into_iter().filter_map(shown).collect()
}

/// Returns the end of the ban of a key, or `None` if it is not banned any more.
async fn banned_until(node: &Node, key: &[u8]) -> Option<Json_> {
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
    use super::{Place, pattern};

    #[test]
    fn characters_of_patterns_are_escaped() {
        assert_eq!(pattern(b"login:"), b"login:*");
        assert_eq!(pattern(br"a*b?[c]\d"), br"a\*b\?\[c\]\\d*");
    }

    #[test]
    fn place_is_parsed_from_its_text() {
        let place = Place { cursor: "17".to_owned(), node: "[::1]:7001".to_owned() };
        assert_eq!(Place::parse(&place.text()), Some(place));
        assert_eq!(["", "17", "x@a:1", "-1@a:1"].map(Place::parse), [None, None, None, None]);
    }
}
