//! A key: what it remembers, how full its limits are, and what can be done about it. And which keys are denied most.

use super::Console;
use super::audit::{Who, changed};
use super::failure::Failure;
use super::info;
use super::reply_json::{int, items, object, text_of};
use super::text;
use super::upstream::Server;
use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::{join, join_all};
use ratelimit_link::naming::EscapedDescriptor;
use redis::{Cmd, Value};
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use std::sync::Arc;

/// How many of the keys that are denied most are searched for the policy of one.
const SEARCHED: usize = 1024;

/// The routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/top", get(top))
        .route("/api/key", get(one))
        .route("/api/key/ban", post(ban))
        .route("/api/key/lift", post(lift))
        .route("/api/key/reset", post(reset))
        .route("/api/key/give-back", post(give_back))
}

/// Since when, and how many.
#[derive(Deserialize)]
struct TopQuery {
    since: Option<String>,
    count: Option<u16>,
}

/// A key that was denied.
struct Denied {
    key: Vec<u8>,
    count: i64,
    error: i64,
    policy: Option<Vec<u8>>,
    /// Of a sketch, which counts each of its items apart.
    item: Option<Vec<u8>>,
    node: String,
}

async fn top(State(console): State<Arc<Console>>, Query(asked): Query<TopQuery>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let count = usize::from(asked.count.unwrap_or(20).clamp(1, 1000));
    let denied = denied(&server, asked.since.as_deref(), count).await?;
    let rows = denied.iter().take(count).map(|row| {
        json!({
            "key": text::shown(&row.key), "denied": row.count, "error": row.error,
            "policy": row.policy.as_deref().map(text::shown), "item": row.item.as_deref().map(text::shown),
            "node": row.node,
        })
    });
    Ok(Json(rows.collect()))
}

/// The keys that all primaries denied most.
async fn denied(server: &Server, since: Option<&str>, count: usize) -> Result<Vec<Denied>, Failure> {
    let mut command = redis::cmd("RL.TOP");
    command.arg("COUNT").arg(count);
    if let Some(since) = since {
        command.arg("SINCE").arg(since);
    }
    let command = &command;
    let asked = server.nodes().iter().map(|node| async move { (node, node.ask(command).await) });
    let mut all: Vec<Denied> = vec![];
    for (node, reply) in join_all(asked).await {
        let reply = match reply {
            // The other nodes have theirs to tell; that one is away is told elsewhere.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => continue,
            reply => reply?,
        };
        all.extend(items(&reply).iter().filter_map(|row| of_top(row, &node.name)));
    }
    all.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.key.cmp(&other.key)));
    // A slot that has moved leaves a key's count with both nodes.
    let mut merged: Vec<Denied> = vec![];
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

fn of_top(row: &Value, node: &str) -> Option<Denied> {
    let [Value::BulkString(key), denied, error, policy, rest @ ..] = items(row) else { return None };
    let bytes = |value: &Value| if let Value::BulkString(bytes) = value { Some(bytes.clone()) } else { None };
    Some(Denied {
        key: key.clone(),
        count: int(denied)?,
        error: int(error)?,
        policy: bytes(policy),
        item: rest.first().and_then(bytes),
        node: node.to_owned(),
    })
}

/// Which key, by which policy it is looked at, and of a sketch which item.
#[derive(Deserialize)]
struct Looked {
    key: String,
    policy: Option<String>,
    item: Option<String>,
}

async fn one(State(console): State<Arc<Console>>, Query(looked): Query<Looked>) -> Result<Json<Json_>, Failure> {
    let key = text::bytes(&looked.key);
    let server = console.upstream()?.server().await?;
    let of_key = |name: &str| {
        let mut command = redis::cmd(name);
        command.arg(&key);
        command
    };
    let (info, at) = join(server.ask_key(of_key("RL.INFO")), now_ms(&server)).await;
    let info = info?;
    let policy = match looked.policy.filter(|policy| !policy.is_empty()) {
        Some(policy) => Some(text::bytes(&policy)),
        None => likely(&server, &key).await,
    };
    let info = if info == Value::Nil { Json_::Null } else { object(&info) };
    let item = looked.item.filter(|item| !item.is_empty()).map(|item| text::bytes(&item));
    // A sketch knows the numbers of its last call, by which it can be asked where no policy is known.
    let numbers = info.get("numbers").and_then(Json_::as_str).filter(|_| policy.is_none());
    let spec = numbers.map(|numbers| format!("SKETCH {numbers}"));
    let mut command = of_key("RL.PEEK");
    command.arg("EACH");
    let looks = match (&policy, &spec, &item) {
        (Some(policy), ..) => {
            command.arg("POLICY").arg(policy);
            if let Some(item) = &item {
                command.arg("ITEM").arg(item);
            }
            true
        }
        (None, Some(spec), Some(item)) => {
            command.arg(spec.split(' ').collect::<Vec<_>>()).arg(item);
            true
        }
        _ => false,
    };
    let mut answer = json!({
        "key": text::shown(&key), "at": at, "info": info, "policy": policy.as_deref().map(text::shown), "spec": spec,
    });
    if looks && let Some(fields) = answer.as_object_mut() {
        let (name, value) = match server.ask_key(command).await {
            Ok(reply) => ("ruled", ruled(&reply)),
            Err(Failure::Away(why)) => return Err(Failure::Away(why)),
            Err(refused) => ("refused", json!(refused.told())),
        };
        fields.insert(name.to_owned(), value);
    }
    Ok(Json(answer))
}

/// What the server's clock shows: instants of keys are by that. If it does not tell, what this machine's shows.
async fn now_ms(server: &Server) -> u64 {
    let mut command = redis::cmd("INFO");
    command.arg("server");
    let told = server.ask_any(&command).await.ok().and_then(|told| redis::from_redis_value::<String>(told).ok());
    told.and_then(|told| info::ServerState::read(&told).time_ms).unwrap_or_else(super::live::now_ms)
}

/// What each limit says of a call that would come now.
fn ruled(reply: &Value) -> Json_ {
    let [allowed, wait, each, ..] = items(reply) else { return Json_::Null };
    let limits = items(each).iter().map(|limit| {
        let at = |place: usize| items(limit).get(place).and_then(int);
        json!({
            "allowed": at(0) == Some(1), "limit": at(1), "remaining": at(2), "wait_ms": at(3), "reset_ms": at(4),
            "name": items(limit).iter().skip(5).find_map(text_of),
        })
    });
    json!({ "allowed": int(allowed) == Some(1), "wait_ms": int(wait), "limits": limits.collect::<Vec<_>>() })
}

/// The policy that a key is most likely called under: that by which it was last denied; else, if the gateway made the
/// key, the first that there is of those that it asks for.
async fn likely(server: &Server, key: &[u8]) -> Option<Vec<u8>> {
    // RL.TOP knows keys by their first 512 bytes.
    let known = key.get(..512).unwrap_or(key);
    let top = denied(server, None, SEARCHED).await.unwrap_or_default();
    let last = top.into_iter().find(|row| row.key == known).and_then(|row| row.policy);
    let asked = EscapedDescriptor::from_key(key).map(|described| described.policy_names()).unwrap_or_default();
    for name in last.into_iter().chain(asked.into_iter().map(String::into_bytes)) {
        let mut command = redis::cmd("RL.POLICYGET");
        command.arg(&name);
        if server.first().ok()?.ask(&command).await.ok()? != Value::Nil {
            return Some(name);
        }
    }
    None
}

/// What remains of each limit.
fn remaining(ruled: &Json_) -> Json_ {
    let limits = ruled.get("limits").and_then(Json_::as_array);
    limits.into_iter().flatten().map(|limit| limit.get("remaining").cloned().unwrap_or_default()).collect()
}

/// Until when a key is banned, for the log.
async fn banned_until(server: &Server, key: &[u8]) -> Result<String, Failure> {
    let mut command = redis::cmd("RL.INFO");
    command.arg(key);
    let info = object(&server.ask_key(command).await?);
    let until = info.get("banned_until").and_then(Json_::as_i64);
    let until = until.and_then(|until| jiff::Timestamp::from_millisecond(until).ok());
    Ok(until.map_or_else(|| "not banned".to_owned(), |until| until.to_string()))
}

/// A key, and for how long.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Banning {
    key: String,
    #[serde(rename = "for")]
    lasting: String,
}

async fn ban(
    State(console): State<Arc<Console>>,
    who: Who,
    Json(banning): Json<Banning>,
) -> Result<Json<Json_>, Failure> {
    let key = text::bytes(&banning.key);
    let server = console.upstream()?.server().await?;
    let before = banned_until(&server, &key).await?;
    let mut command = redis::cmd("RL.BAN");
    command.arg(&key).arg(&banning.lasting);
    let left = int(&server.ask_key(command).await?);
    // It is a change, and has its line, whatever became of the server since.
    let after = banned_until(&server, &key).await.unwrap_or_else(|_| "unknown".to_owned());
    changed!(
        who, "key banned", key = text::shown(&key), lasting = ?banning.lasting, before, after
    );
    Ok(Json(json!({ "banned_ms": left })))
}

/// A key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Of {
    key: String,
}

async fn lift(State(console): State<Arc<Console>>, who: Who, Json(of): Json<Of>) -> Result<Json<Json_>, Failure> {
    let key = text::bytes(&of.key);
    let server = console.upstream()?.server().await?;
    let before = banned_until(&server, &key).await?;
    let mut command = redis::cmd("RL.BAN");
    command.arg(&key).arg("0");
    server.ask_key(command).await?;
    changed!(who, "ban lifted", key = text::shown(&key), before, after = "not banned");
    Ok(Json(json!({ "banned_ms": 0 })))
}

async fn reset(State(console): State<Arc<Console>>, who: Who, Json(of): Json<Of>) -> Result<Json<Json_>, Failure> {
    let key = text::bytes(&of.key);
    let server = console.upstream()?.server().await?;
    let of_key = |name: &str| -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(&key);
        command
    };
    // An error if it is no limiter: what else it holds is nothing to the console.
    let before = server.ask_key(of_key("RL.INFO")).await?;
    if before == Value::Nil {
        return Err(Failure::Missing("the key remembers nothing".to_owned()));
    }
    let deleted = int(&server.ask_key(of_key("DEL")).await?);
    changed!(who, "key reset", key = text::shown(&key), before = %object(&before), deleted);
    Ok(Json(json!({ "deleted": deleted })))
}

/// How much of a key's usage is given back, under which policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivingBack {
    key: String,
    policy: String,
    amount: f64,
}

async fn give_back(
    State(console): State<Arc<Console>>,
    who: Who,
    Json(giving): Json<GivingBack>,
) -> Result<Json<Json_>, Failure> {
    if giving.amount.is_nan() || giving.amount <= 0.0 {
        return Err(Failure::Wrong("amount must be a number above 0".to_owned()));
    }
    let (key, policy) = (text::bytes(&giving.key), text::bytes(&giving.policy));
    let server = console.upstream()?.server().await?;
    let mut looking = redis::cmd("RL.PEEK");
    looking.arg(&key).arg("EACH").arg("POLICY").arg(&policy);
    let before = remaining(&ruled(&server.ask_key(looking).await?));
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(&key).arg(&policy).arg("COST").arg(format!("-{}", giving.amount)).arg("EACH");
    let given = ruled(&server.ask_key(command).await?);
    changed!(
        who, "usage given back", key = text::shown(&key),
        policy = text::shown(&policy), amount = giving.amount, %before, after = %remaining(&given)
    );
    Ok(Json(given))
}
