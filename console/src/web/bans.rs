//! Current bans: those of the list of changes, and those of the most denied keys. Others are found by the search for
//! keys.

use super::Console;
use super::changes::{self, Kind, MAX_CHANGES};
use super::failure::Failure;
use super::keys::{ban_of, now_ms};
use super::text;
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::join_all;
use serde_json::{Value as Json_, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of the keys denied most that are looked at, in the last hour and since the servers started.
const DENIED: usize = 200;
/// Time for which viewers share the list, the interval of the page, in milliseconds.
const LIFETIME: u64 = 5000;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/bans", get(list))
}

async fn list(State(console): State<Arc<Console>>) -> Result<Json<Json_>, Failure> {
    Ok(Json(console.bans.get((), LIFETIME, Box::pin(read(&console))).await?.as_ref().clone()))
}

/// Looks up the keys that may be banned.
async fn read(console: &Console) -> Result<Json_, Failure> {
    let server = console.upstream()?.server().await?;
    let listed = changes::read(&server, MAX_CHANGES).await.unwrap_or_default();
    let mut keys: BTreeMap<Vec<u8>, Option<&changes::Change>> = BTreeMap::new();
    for since in [Some("1h"), None] {
        let rows = console.top.list(&server, since, DENIED).await?;
        let rows = rows.iter().take(DENIED).filter(|row| row.is_whole_key());
        keys.extend(rows.map(|row| (row.key.clone(), None)));
    }
    // The newest ban of a key replaces older ones.
    for change in listed.iter().rev().map(|row| &row.change).filter(|change| change.what == Kind::KeyBanned) {
        keys.extend(change.key.as_deref().map(|key| (text::bytes(key), Some(change))));
    }
    let found = keys.into_iter().map(|(key, change)| {
        let server = &server;
        async move {
            let ban = ban_of(server, &key).await;
            (key, change, ban)
        }
    });
    let mut bans = vec![];
    for (key, change, ban) in join_all(found).await {
        let ban = match ban {
            // A key of a node that does not reply is left out if there are others; the page shows an outage elsewhere.
            Err(Failure::Away(why)) if server.nodes().len() == 1 => return Err(Failure::Away(why)),
            ban => ban.unwrap_or_default(),
        };
        let Some(until) = ban.as_ref().and_then(|ban| ban.banned_until) else { continue };
        let change = change.filter(|change| change.after == ban);
        bans.push((until, json!({
            "key": text::shown(&key), "banned_until": until, "in_console": change.is_some(),
            "user": change.and_then(|change| change.user.as_deref()), "why": change.and_then(|change| change.why.as_deref()),
        })));
    }
    bans.sort_by_key(|(until, _)| std::cmp::Reverse(*until));
    let bans: Vec<Json_> = bans.into_iter().map(|(_, ban)| ban).collect();
    Ok(json!({ "at": now_ms(&server).await, "bans": bans, "changes": MAX_CHANGES, "denied": DENIED }))
}
