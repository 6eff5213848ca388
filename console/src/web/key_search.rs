//! Search for keys by their prefix. A request looks at a bounded number of keys, and its response has the cursor of the
//! next request.

use super::Console;
use super::failure::Failure;
use super::reply_json::{items, text_of};
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

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/keys", get(search))
}

/// Query of a search: the prefix, and the cursor of the response before.
#[derive(Deserialize)]
struct SearchQuery {
    prefix: String,
    cursor: Option<String>,
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
                    found.extend(keys);
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

/// Looks at some keys of a node, and returns the next cursor and those keys of the module that match.
async fn scan(node: &Node, cursor: &str, pattern: &[u8]) -> Result<(String, Vec<Json_>), Failure> {
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
            found.push(json!({ "key": text::shown(key), "kind": kind }));
        }
    }
    Ok((cursor, found))
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
