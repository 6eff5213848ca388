//! The most denied keys of all primaries, and their denials of each recent minute.

use super::Console;
use super::failure::Failure;
use super::reply_json::{int, items};
use super::text;
use super::upstream::{Node, Server};
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Maximum number of minutes of a series.
const MAX_MINUTES: u16 = 60;
/// Minimum number of keys that are read for each minute, so that the series has keys that are denied less at the moment.
const MIN_READ: usize = 100;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/top", get(top))
}

/// Query of `/api/top`. With `minutes`, each key has its denials of each of so many recent minutes.
#[derive(Deserialize)]
struct TopQuery {
    since: Option<String>,
    count: Option<u16>,
    minutes: Option<u16>,
}

/// Key with its number of denials.
pub struct DeniedKey {
    /// Name of the key, of which the server stores the first 512 bytes.
    pub key: Vec<u8>,
    /// Number of denials.
    pub count: i64,
    /// Policy that denied the key last.
    pub policy: Option<Vec<u8>>,
    /// Item of a sketch.
    pub item: Option<Vec<u8>>,
    error: i64,
    node: String,
}

async fn top(State(console): State<Arc<Console>>, Query(query): Query<TopQuery>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let count = usize::from(query.count.unwrap_or(20).clamp(1, 1000));
    let denied = most_denied(&server, query.since.as_deref(), count).await?;
    let minutes = match query.minutes {
        Some(minutes) => Some(by_minute(&server, minutes.clamp(1, MAX_MINUTES), count).await?),
        None => None,
    };
    let rows = denied.iter().take(count).map(|row| {
        let mut shown = json!({
            "key": text::shown(&row.key), "denied": row.count, "error": row.error,
            "policy": row.policy.as_deref().map(text::shown), "item": row.item.as_deref().map(text::shown),
            "node": row.node,
        });
        if let (Some(minutes), Some(fields)) = (&minutes, shown.as_object_mut()) {
            let denied = minutes.iter().map(|minute| minute.get(&row.id()).copied().unwrap_or_default());
            fields.insert("minutes".to_owned(), denied.collect());
        }
        shown
    });
    Ok(Json(rows.collect()))
}

/// Key and item of a sketch.
type Id = (Vec<u8>, Option<Vec<u8>>);

impl DeniedKey {
    fn id(&self) -> Id {
        (self.key.clone(), self.item.clone())
    }

    fn parse(row: &Value, node: &str) -> Option<DeniedKey> {
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

fn top_command(since: Option<&str>, count: usize) -> Cmd {
    let mut command = redis::cmd("RL.TOP");
    command.arg("COUNT").arg(count);
    if let Some(since) = since {
        command.arg("SINCE").arg(since);
    }
    command
}

/// Returns the replies of all primaries that reply. Fails if the only one does not.
async fn ask_all(server: &Server, commands: &Pipeline) -> Result<Vec<(Arc<Node>, Vec<Value>)>, Failure> {
    let queries = server.nodes().iter().map(|node| async move { (node, node.send_all(commands).await) });
    let mut replies = vec![];
    for (node, reply) in join_all(queries).await {
        match reply {
            // The other nodes suffice; the page shows an outage elsewhere.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => {}
            reply => replies.push((Arc::clone(node), reply?)),
        }
    }
    Ok(replies)
}

/// Returns the most denied keys of all primaries.
///
/// # Errors
/// If a reply is an error, or if the only primary does not reply.
pub async fn most_denied(server: &Server, since: Option<&str>, count: usize) -> Result<Vec<DeniedKey>, Failure> {
    let mut commands = redis::pipe();
    commands.add_command(top_command(since, count));
    let mut all: Vec<DeniedKey> = vec![];
    for (node, replies) in ask_all(server, &commands).await? {
        all.extend(replies.iter().flat_map(items).filter_map(|row| DeniedKey::parse(row, &node.name)));
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

/// Returns the keys that were denied most in the last complete minute as JSON.
///
/// # Errors
/// As for [`most_denied`].
pub async fn of_last_minute(server: &Server, count: usize) -> Result<Vec<Json_>, Failure> {
    let minutes = by_minute(server, 2, MIN_READ).await?;
    let Some(counts) = minutes.first() else { return Ok(vec![]) };
    let rows = most_denied(server, Some("2m"), MIN_READ).await?.into_iter();
    let mut rows: Vec<(i64, DeniedKey)> =
        rows.filter_map(|row| Some((*counts.get(&row.id()).filter(|denied| **denied > 0)?, row))).collect();
    rows.sort_by_key(|(denied, _)| std::cmp::Reverse(*denied));
    let shown = |(denied, row): (i64, DeniedKey)| {
        json!({
            "key": text::shown(&row.key), "denied": denied, "policy": row.policy.as_deref().map(text::shown),
            "item": row.item.as_deref().map(text::shown),
        })
    };
    Ok(rows.into_iter().take(count).map(shown).collect())
}

/// Returns the denials by key of each of the last minutes, oldest first. The last one is the running minute.
async fn by_minute(server: &Server, minutes: u16, count: usize) -> Result<Vec<HashMap<Id, i64>>, Failure> {
    let mut commands = redis::pipe();
    for since in 1..=minutes {
        commands.add_command(top_command(Some(&format!("{since}m")), count.max(MIN_READ)));
    }
    let mut series: Vec<HashMap<Id, i64>> = vec![HashMap::new(); usize::from(minutes)];
    for (node, replies) in ask_all(server, &commands).await? {
        let mut counted: HashMap<Id, i64> = HashMap::new();
        // Each reply counts a minute more than the one before it.
        for (reply, minute) in replies.iter().zip(series.iter_mut().rev()) {
            for row in items(reply).iter().filter_map(|row| DeniedKey::parse(row, &node.name)) {
                let known = counted.entry(row.id()).or_default();
                let denied = row.count.saturating_sub(*known).max(0);
                *known = row.count.max(*known);
                let sum = minute.entry(row.id()).or_default();
                *sum = sum.saturating_add(denied);
            }
        }
    }
    Ok(series)
}
