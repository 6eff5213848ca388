//! Routes for a key: its state, and changes to it.

use super::Console;
use super::audit::Actor;
use super::changes::{Change, Kind, Note, Values};
use super::clock;
use super::failure::Failure;
use super::info;
use super::most_denied::stored_name;
use super::reply_json::{int, items, object, text_of};
use super::text;
use super::upstream::Server;
use axum::extract::{Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join;
use ratelimit_link::naming::EscapedDescriptor;
use redis::{Cmd, Value};
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::sync::Arc;

/// Number of the most denied keys that are searched for the policy of a key.
const MAX_SEARCHED: usize = 1024;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/key", get(show))
        .route("/api/key/ban", post(ban))
        .route("/api/key/lift", post(lift))
        .route("/api/key/reset", post(reset))
        .route("/api/key/give-back", post(give_back))
}

/// Query of `/api/key`: the key, the policy to evaluate it under, and the item of a sketch.
#[derive(Deserialize)]
struct KeyQuery {
    key: String,
    policy: Option<String>,
    item: Option<String>,
}

async fn show(State(console): State<Arc<Console>>, Query(query): Query<KeyQuery>) -> Result<Json<JsonValue>, Failure> {
    let key = text::to_bytes(&query.key);
    let server = console.upstream()?.server().await?;
    let key_command = |name: &str| {
        let mut command = redis::cmd(name);
        command.arg(&key);
        command
    };
    let (info, at) = join(server.send_by_key(key_command("RL.INFO")), server_now_ms(&server)).await;
    let info = info?;
    let policy = match query.policy.filter(|policy| !policy.is_empty()) {
        Some(policy) => Some(text::to_bytes(&policy)),
        None => likely_policy(&console, &server, &key).await,
    };
    let info = if info == Value::Nil { JsonValue::Null } else { object(&info) };
    let item = query.item.filter(|item| !item.is_empty()).map(|item| text::to_bytes(&item));
    // A sketch stores the capacity, refill and period of its last charge, by which an item can be evaluated without a
    // policy.
    let numbers = info.get("numbers").and_then(JsonValue::as_str).filter(|_| policy.is_none());
    let spec = numbers.map(|numbers| format!("SKETCH {numbers}"));
    let mut command = key_command("RL.PEEK");
    command.arg("EACH");
    let can_evaluate = match (&policy, &spec, &item) {
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
        "key": text::from_bytes(&key), "at": at, "info": info, "policy": policy.as_deref().map(text::from_bytes),
        "spec": spec,
    });
    if can_evaluate && let Some(fields) = answer.as_object_mut() {
        let (name, value) = match server.send_by_key(command).await {
            Ok(reply) => ("ruled", decision_json(&reply)),
            Err(Failure::Away(why)) => return Err(Failure::Away(why)),
            Err(error) => ("refused", json!(error.message())),
        };
        fields.insert(name.to_owned(), value);
    }
    Ok(Json(answer))
}

/// Returns the time of the server's clock, by which keys store instants. If it is unknown, returns the time of this
/// machine.
pub async fn server_now_ms(server: &Server) -> u64 {
    let mut command = redis::cmd("INFO");
    command.arg("server");
    let info = server.send_any(&command).await.ok().and_then(|reply| redis::from_redis_value::<String>(reply).ok());
    info.and_then(|info| info::ServerState::parse(&info).time_ms).unwrap_or_else(clock::now_ms)
}

/// Returns a decision, with that of each limit, as JSON.
fn decision_json(reply: &Value) -> JsonValue {
    let [allowed, wait, each, ..] = items(reply) else { return JsonValue::Null };
    let limits = items(each).iter().map(|limit| {
        let at = |index: usize| items(limit).get(index).and_then(int);
        json!({
            "allowed": at(0) == Some(1), "limit": at(1), "remaining": at(2), "wait_ms": at(3), "reset_ms": at(4),
            "name": items(limit).iter().skip(5).find_map(text_of),
        })
    });
    json!({ "allowed": int(allowed) == Some(1), "wait_ms": int(wait), "limits": limits.collect::<Vec<_>>() })
}

/// Returns the policy that probably applies to a key: the one that last denied it, or else, for a key of the gateway,
/// the first existing policy of its descriptor.
async fn likely_policy(console: &Console, server: &Server, key: &[u8]) -> Option<Vec<u8>> {
    let stored = stored_name(key);
    let top = console.top.list(server, None, MAX_SEARCHED).await;
    let last = top.ok().and_then(|top| top.iter().find(|row| row.key == stored)?.policy.clone());
    let names = EscapedDescriptor::from_key(key).map(|descriptor| descriptor.policy_names()).unwrap_or_default();
    for name in last.into_iter().chain(names.into_iter().map(String::into_bytes)) {
        let mut command = redis::cmd("RL.POLICYGET");
        command.arg(&name);
        if server.first().ok()?.send(&command).await.ok()? != Value::Nil {
            return Some(name);
        }
    }
    None
}

/// Returns the remaining units of each limit of a decision.
fn remaining(decision: &JsonValue) -> JsonValue {
    let limits = decision.get("limits").and_then(JsonValue::as_array);
    limits.into_iter().flatten().map(|limit| limit.get("remaining").cloned().unwrap_or_default()).collect()
}

/// Returns the ban of a key, for the list of changes.
///
/// # Errors
/// If the server does not reply, or if the key is not one of the module.
pub async fn ban_of(server: &Server, key: &[u8]) -> Result<Option<Values>, Failure> {
    let mut command = redis::cmd("RL.INFO");
    command.arg(key);
    let info = object(&server.send_by_key(command).await?);
    let until = info.get("banned_until").and_then(JsonValue::as_i64);
    Ok(until.map(|until| Values { banned_until: Some(until), ..Values::default() }))
}

/// Body of a request that bans a key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BanRequest {
    key: String,
    #[serde(rename = "for")]
    duration: String,
    #[serde(default)]
    why: Note,
}

async fn ban(
    State(console): State<Arc<Console>>,
    actor: Actor,
    Json(request): Json<BanRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let key = text::to_bytes(&request.key);
    let server = console.upstream()?.server().await?;
    let (change, left_ms) = ban_key(&server, &key, &request.duration).await?;
    change.record(&server, &actor, request.why).await;
    Ok(Json(json!({ "banned_ms": left_ms })))
}

/// Bans a key. Returns the change, and the milliseconds until the ban ends.
///
/// # Errors
/// If the server does not reply, the duration is malformed, or the key is not one of the module.
pub async fn ban_key(server: &Server, key: &[u8], duration: &str) -> Result<(Change, Option<i64>), Failure> {
    let before = ban_of(server, key).await?;
    let mut command = redis::cmd("RL.BAN");
    command.arg(key).arg(duration);
    let left_ms = int(&server.send_by_key(command).await?);
    // If this fails, the list of changes has the ban without its end.
    let after = ban_of(server, key).await.unwrap_or_default();
    Ok((Change::of_key(Kind::KeyBanned, key, before, after), left_ms))
}

/// Body of a request that lifts the ban of a key, or that resets a key.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyRequest {
    key: String,
    #[serde(default)]
    why: Note,
}

async fn lift(
    State(console): State<Arc<Console>>,
    actor: Actor,
    Json(request): Json<KeyRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    lift_ban(&server, &text::to_bytes(&request.key)).await?.record(&server, &actor, request.why).await;
    Ok(Json(json!({ "banned_ms": 0 })))
}

/// Lifts the ban of a key.
///
/// # Errors
/// If the server does not reply, or if the key is not one of the module.
pub async fn lift_ban(server: &Server, key: &[u8]) -> Result<Change, Failure> {
    let before = ban_of(server, key).await?;
    let mut command = redis::cmd("RL.BAN");
    command.arg(key).arg("0");
    server.send_by_key(command).await?;
    Ok(Change::of_key(Kind::BanLifted, key, before, None))
}

async fn reset(
    State(console): State<Arc<Console>>,
    actor: Actor,
    Json(request): Json<KeyRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let key = text::to_bytes(&request.key);
    let server = console.upstream()?.server().await?;
    let key_command = |name: &str| -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(&key);
        command
    };
    // Fails if the key is not one of the module, so that no other key is deleted.
    let before = server.send_by_key(key_command("RL.INFO")).await?;
    if before == Value::Nil {
        return Err(Failure::Missing("the key remembers nothing".to_owned()));
    }
    let deleted = int(&server.send_by_key(key_command("DEL")).await?);
    let before = Values { usage: Some(usage(&object(&before))), ..Values::default() };
    Change::of_key(Kind::KeyReset, &key, Some(before), None).record(&server, &actor, request.why).await;
    Ok(Json(json!({ "deleted": deleted })))
}

/// Returns the usage of each limit of a key, without leases and entries.
fn usage(info: &JsonValue) -> JsonValue {
    let parts = info.get("parts").and_then(JsonValue::as_array).map_or(std::slice::from_ref(info), Vec::as_slice);
    let field = |part: &JsonValue, name: &str| Some((name.to_owned(), part.get(name)?.clone()));
    let usage_of = |part| ["kind", "name", "window", "used"].into_iter().filter_map(|name| field(part, name)).collect();
    JsonValue::Array(parts.iter().map(usage_of).map(JsonValue::Object).collect())
}

/// Body of a request that gives back units to a key under a policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GiveBackRequest {
    key: String,
    policy: String,
    amount: f64,
    #[serde(default)]
    why: Note,
}

async fn give_back(
    State(console): State<Arc<Console>>,
    actor: Actor,
    Json(request): Json<GiveBackRequest>,
) -> Result<Json<JsonValue>, Failure> {
    if request.amount.is_nan() || request.amount <= 0.0 {
        return Err(Failure::BadRequest("amount must be a number above 0".to_owned()));
    }
    let (key, policy) = (text::to_bytes(&request.key), text::to_bytes(&request.policy));
    let server = console.upstream()?.server().await?;
    let mut peek = redis::cmd("RL.PEEK");
    peek.arg(&key).arg("EACH").arg("POLICY").arg(&policy);
    let before = remaining(&decision_json(&server.send_by_key(peek).await?));
    let mut command = redis::cmd("RL.LIMIT");
    command.arg(&key).arg(&policy).arg("COST").arg(format!("-{}", request.amount)).arg("EACH");
    let decision = decision_json(&server.send_by_key(command).await?);
    let before = Values { remaining: Some(before), ..Values::default() };
    let after = Values { remaining: Some(remaining(&decision)), amount: Some(request.amount), ..Values::default() };
    let change = Change::of_key(Kind::UsageGivenBack, &key, Some(before), Some(after));
    Change { policy: Some(text::from_bytes(&policy)), ..change }.record(&server, &actor, request.why).await;
    Ok(Json(decision))
}
