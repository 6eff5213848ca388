//! Sample of the keys of a policy with their usage, from which the page estimates the effect of an edit. A key does not
//! store its policy, so the sample may have keys of other policies with the same kinds of limits.

use super::Console;
use super::failure::Failure;
use super::key_search::scan;
use super::keys::server_now_ms;
use super::most_denied::DeniedKey;
use super::policies::current;
use super::reply_json::{int, items};
use super::text;
use super::upstream::Server;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use futures_util::future::join_all;
use ratelimit_link::naming::EscapedDescriptor;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::collections::HashSet;
use std::sync::Arc;

/// Maximum number of keys in a sample.
const SAMPLE_SIZE: usize = 200;
/// Maximum number of calls of SCAN, over all servers.
const MAX_SCANS: usize = 10;
/// Maximum number of denied keys that are looked up.
const MAX_DENIED: usize = 1000;
/// Type of a sketch.
const SKETCH: &str = "rl-sketch";

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/usage", post(usage))
}

/// Body of a request: the policy, and the keys of the last sample to read again, or none for a new sample.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageRequest {
    policy: String,
    #[serde(default)]
    keys: Vec<String>,
}

async fn usage(
    State(console): State<Arc<Console>>,
    Json(request): Json<UsageRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let sampler = console.sampler.as_ref().ok_or_else(super::without_server)?;
    let (seconds, counts) = sampler.recent_counts(&request.policy);
    let policy = text::to_bytes(&request.policy);
    // Items of a sketch are not keys.
    let is_sketch = current(&server, &policy)
        .await?
        .and_then(|policy| policy.specs)
        .is_some_and(|specs| specs.starts_with("SKETCH"));
    let (keys, is_complete) = if is_sketch {
        (vec![], false)
    } else if request.keys.is_empty() {
        find_keys(&console, &server, &policy).await?
    } else {
        let keys: Vec<_> = request.keys.iter().take(SAMPLE_SIZE).map(|key| text::to_bytes(key)).collect();
        (peek(&server, &policy, keys).await, false)
    };
    let rows = keys.iter().map(|key| json!([text::from_bytes(&key.name), key.limits]));
    Ok(Json(json!({
        "at": server_now_ms(&server).await, "seconds": seconds, "counts": counts.json(),
        "keys": rows.collect::<Vec<_>>(), "complete": is_complete,
    })))
}

/// Key with its usage.
struct UsedKey {
    name: Vec<u8>,
    /// Used units of each limit, and the milliseconds until the usage is zero.
    limits: Vec<(i64, i64)>,
}

impl UsedKey {
    fn is_in_use(&self) -> bool {
        self.limits.iter().any(|(used, _)| *used > 0)
    }
}

/// Finds keys that are in use under a policy. Returns them, and `true` if all keys of the servers were looked at.
async fn find_keys(console: &Console, server: &Server, policy: &[u8]) -> Result<(Vec<UsedKey>, bool), Failure> {
    let denied = console.top.list(server, Some("5m"), MAX_DENIED).await?;
    let is_of_policy = |row: &&DeniedKey| row.policy.as_deref() == Some(policy);
    let is_whole = |row: &&DeniedKey| row.is_whole_key();
    let of_policy = denied.iter().filter(is_whole).filter(is_of_policy).take(SAMPLE_SIZE).map(|row| row.key.clone());
    // Keys that another policy denied are left out.
    let mut examined: HashSet<Vec<u8>> = denied.iter().filter(is_whole).map(|row| row.key.clone()).collect();
    let name = String::from_utf8_lossy(policy);
    // The name of a gateway's key has the policies that may apply to it.
    let is_possible = |key: &[u8]| {
        EscapedDescriptor::from_key(key).is_none_or(|key| key.policy_names().iter().any(|policy| *policy == name))
    };
    let mut found = peek(server, policy, of_policy.collect()).await;
    found.retain(UsedKey::is_in_use);
    let scans = MAX_SCANS.checked_div(server.nodes().len()).unwrap_or_default().max(1);
    let mut is_complete = server.away.is_empty();
    for node in server.nodes() {
        let mut cursor = "0".to_owned();
        for _ in 0..scans {
            if found.len() >= SAMPLE_SIZE {
                found.truncate(SAMPLE_SIZE);
                return Ok((found, false));
            }
            let (next, keys) = match scan(node, &cursor, b"*").await {
                Err(Failure::Away(_)) if server.nodes().len() > 1 => break,
                portion => portion?,
            };
            // The server would count an error for each sketch.
            let keys = keys.into_iter().filter(|(_, kind)| kind.as_deref() != Some(SKETCH)).map(|(key, _)| key);
            let keys = keys.filter(|key| is_possible(key) && examined.insert(key.clone()));
            found.extend(peek(server, policy, keys.collect()).await.into_iter().filter(UsedKey::is_in_use));
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        is_complete &= cursor == "0";
    }
    Ok((found, is_complete))
}

/// Reads the usage of keys under a policy. Keys with other kinds of limits are left out.
async fn peek(server: &Server, policy: &[u8], keys: Vec<Vec<u8>>) -> Vec<UsedKey> {
    let peeked = keys.into_iter().map(|name| async move {
        let mut command = redis::cmd("RL.PEEK");
        command.arg(&name).arg("EACH").arg("POLICY").arg(policy);
        let reply = server.send_by_key(command).await.ok()?;
        let limits = items(items(&reply).get(2)?).iter().map(|limit| {
            // Numbers of a limit: allowed, limit, remaining, wait and reset.
            let number = |index: usize| items(limit).get(index).and_then(int).unwrap_or_default();
            (number(1).saturating_sub(number(2)), number(4))
        });
        Some(UsedKey { name, limits: limits.collect() })
    });
    join_all(peeked).await.into_iter().flatten().collect()
}
