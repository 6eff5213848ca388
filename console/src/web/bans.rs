//! Current bans of keys in the list of changes, and of the most denied keys. The search for keys finds other bans.

use super::Console;
use super::changes::{self, Kind, MAX_CHANGES};
use super::failure::Failure;
use super::keys::{ban_of, server_now_ms};
use super::text;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::join_all;
use serde_json::{Value as JsonValue, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of the most denied keys that are looked up, for the last hour and for the time since the servers started.
const MAX_DENIED: usize = 200;
/// Time for which viewers share the list, in milliseconds: the interval at which the page reads it.
const LIFETIME: u64 = 5000;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/bans", get(list))
}

async fn list(State(console): State<Arc<Console>>) -> Result<Json<JsonValue>, Failure> {
    Ok(Json(console.bans.get((), LIFETIME, Box::pin(read(&console))).await?.as_ref().clone()))
}

/// Reads the bans of all keys that may have one.
async fn read(console: &Console) -> Result<JsonValue, Failure> {
    let server = console.upstream()?.server().await?;
    let listed = changes::read(&server, MAX_CHANGES).await.unwrap_or_default();
    let mut keys: BTreeMap<Vec<u8>, Option<&changes::Change>> = BTreeMap::new();
    for since in [Some("1h"), None] {
        let rows = console.top.list(&server, since, MAX_DENIED).await?;
        let rows = rows.iter().take(MAX_DENIED).filter(|row| row.is_whole_key());
        keys.extend(rows.map(|row| (row.key.clone(), None)));
    }
    // The newest ban of a key replaces older ones.
    for change in listed.iter().rev().map(|row| &row.change).filter(|change| change.what == Kind::KeyBanned) {
        keys.extend(change.key.as_deref().map(|key| (text::to_bytes(key), Some(change))));
    }
    let lookups = keys.into_iter().map(|(key, change)| {
        let server = &server;
        async move {
            let ban = ban_of(server, &key).await;
            (key, change, ban)
        }
    });
    let mut bans = vec![];
    for (key, change, ban) in join_all(lookups).await {
        let ban = match ban {
            // Keys of a node that does not reply are left out if there are other nodes.
            Err(Failure::Away(why)) if server.nodes().len() == 1 => return Err(Failure::Away(why)),
            ban => ban.unwrap_or_default(),
        };
        let Some(until) = ban.as_ref().and_then(|ban| ban.banned_until) else { continue };
        let change = change.filter(|change| change.after == ban);
        bans.push((until, json!({
            "key": text::from_bytes(&key), "banned_until": until, "in_console": change.is_some(),
            "user": change.and_then(|change| change.user.as_deref()), "why": change.and_then(|change| change.why.as_deref()),
        })));
    }
    bans.sort_by_key(|(until, _)| std::cmp::Reverse(*until));
    let bans: Vec<JsonValue> = bans.into_iter().map(|(_, ban)| ban).collect();
    Ok(json!({ "at": server_now_ms(&server).await, "bans": bans, "changes": MAX_CHANGES, "denied": MAX_DENIED }))
}
