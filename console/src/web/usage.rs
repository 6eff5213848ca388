//! Sample of the keys that a policy rules, with their usage, from which the page estimates the effect of an edit. A key
//! does not store its policy, so that the sample may have keys of other policies with the same kinds of limits.

use super::Console;
use super::failure::Failure;
use super::key_search::scan;
use super::keys::now_ms;
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
use serde_json::{Value as Json_, json};
use std::collections::HashSet;
use std::sync::Arc;

/// Number of keys in use after which the sample ends.
const ENOUGH: usize = 200;
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

/// Body of a request: the policy, and the keys of the sample before, or none for a new sample.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageRequest {
    policy: String,
    #[serde(default)]
    keys: Vec<String>,
}

async fn usage(State(console): State<Arc<Console>>, Json(request): Json<UsageRequest>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let sampler = console.sampler.as_ref().ok_or_else(super::without_server)?;
    let (seconds, counts) = sampler.recent(&request.policy);
    let policy = text::bytes(&request.policy);
    // Items of a sketch are not keys.
    let is_sketch = current(&server, &policy)
        .await?
        .and_then(|policy| policy.specs)
        .is_some_and(|specs| specs.starts_with("SKETCH"));
    let (keys, is_complete) = if is_sketch {
        (vec![], false)
    } else if request.keys.is_empty() {
        find(&console, &server, &policy).await?
    } else {
        let keys: Vec<_> = request.keys.iter().take(ENOUGH).map(|key| text::bytes(key)).collect();
        (peek(&server, &policy, keys).await, false)
    };
    let shown = keys.iter().map(|key| json!([text::shown(&key.name), key.limits]));
    Ok(Json(json!({
        "at": now_ms(&server).await, "seconds": seconds, "counts": counts.json(), "keys": shown.collect::<Vec<_>>(),
        "complete": is_complete,
    })))
}

/// Key with the used units of each limit, and the milliseconds until they have recovered.
struct Used {
    name: Vec<u8>,
    limits: Vec<(i64, i64)>,
}

impl Used {
    fn is_in_use(&self) -> bool {
        self.limits.iter().any(|(used, _)| *used > 0)
    }
}

/// Finds keys that are in use under a policy. Returns `true` with them if all keys were looked at.
async fn find(console: &Console, server: &Server, policy: &[u8]) -> Result<(Vec<Used>, bool), Failure> {
    let denied = console.top.list(server, Some("5m"), MAX_DENIED).await?;
    let is_own = |row: &&DeniedKey| row.policy.as_deref() == Some(policy);
    let is_whole = |row: &&DeniedKey| row.is_whole_key();
    let own = denied.iter().filter(is_whole).filter(is_own).take(ENOUGH).map(|row| row.key.clone());
    // Keys that another policy denied are left out.
    let mut seen: HashSet<Vec<u8>> = denied.iter().filter(is_whole).map(|row| row.key.clone()).collect();
    let name = String::from_utf8_lossy(policy);
    // Keys of the gateway name the policies that can rule them.
    let is_possible = |key: &[u8]| {
        EscapedDescriptor::from_key(key).is_none_or(|key| key.policy_names().iter().any(|own| *own == name))
    };
    let mut found = peek(server, policy, own.collect()).await;
    found.retain(Used::is_in_use);
    let scans = MAX_SCANS.checked_div(server.nodes().len()).unwrap_or_default().max(1);
    let mut is_complete = server.away.is_empty();
    for node in server.nodes() {
        let mut cursor = "0".to_owned();
        for _ in 0..scans {
            if found.len() >= ENOUGH {
                found.truncate(ENOUGH);
                return Ok((found, false));
            }
            let (next, keys) = match scan(node, &cursor, b"*").await {
                Err(Failure::Away(_)) if server.nodes().len() > 1 => break,
                portion => portion?,
            };
            // Peeking at a sketch would be an error, which the server counts.
            let keys = keys.into_iter().filter(|(_, kind)| kind.as_deref() != Some(SKETCH)).map(|(key, _)| key);
            let keys = keys.filter(|key| is_possible(key) && seen.insert(key.clone()));
            found.extend(peek(server, policy, keys.collect()).await.into_iter().filter(Used::is_in_use));
            cursor = next;
            if cursor == "0" {
                break;
            }
        }
        is_complete &= cursor == "0";
    }
    Ok((found, is_complete))
}

/// Looks at keys under a policy. Keys that it cannot rule are left out.
async fn peek(server: &Server, policy: &[u8], keys: Vec<Vec<u8>>) -> Vec<Used> {
    let peeked = keys.into_iter().map(|name| async move {
        let mut command = redis::cmd("RL.PEEK");
        command.arg(&name).arg("EACH").arg("POLICY").arg(policy);
        let reply = server.send_by_key(command).await.ok()?;
        let limits = items(items(&reply).get(2)?).iter().map(|limit| {
            let at = |place: usize| items(limit).get(place).and_then(int).unwrap_or_default();
            (at(1).saturating_sub(at(2)), at(4))
        });
        Some(Used { name, limits: limits.collect() })
    });
    join_all(peeked).await.into_iter().flatten().collect()
}
