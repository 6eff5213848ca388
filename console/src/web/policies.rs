//! Routes for policies: reading and changing them.

use super::Console;
use super::audit::Actor;
use super::changes::{Change, Kind, Note, Values};
use super::failure::Failure;
use super::info::Counts;
use super::reply_json::{int, items, pairs, text_of};
use super::text;
use super::upstream::{Node, Server};
use axum::extract::{Query, State};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use ratelimit_core::syntax;
use ratelimit_core::wire::args::Args;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::sync::Arc;

/// Time for which viewers share the list of policies, in milliseconds, unless a policy changes.
const LIST_LIFETIME: u64 = 5000;
/// Number of policies that one pipeline reads, so that the server serves other clients in between.
const BATCH: usize = 256;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/policies", get(list))
        .route("/api/policies/{name}", get(show).put(set).delete(delete))
        .route("/api/policies/{name}/scale", post(scale))
        .route("/api/check", post(check))
}

/// Policy of the server.
struct Policy {
    name: Vec<u8>,
    version: i64,
    specs: String,
    scale: String,
    scale_ms: i64,
}

impl Policy {
    /// Returns the limits and the version, for the list of changes.
    fn limit_values(&self) -> Values {
        Values { specs: Some(self.specs.clone()), version: Some(self.version), ..Values::default() }
    }

    /// Returns the scale and the version, for the list of changes.
    fn scale_values(&self) -> Values {
        let (version, scale) = (Some(self.version), Some(self.scale.parse().unwrap_or(1.0)));
        Values { version, scale, scale_ms: Some(self.scale_ms), ..Values::default() }
    }

    fn json(&self, counts: Counts) -> JsonValue {
        json!({
            "name": text::from_bytes(&self.name), "version": self.version, "specs": self.specs,
            // The server replies with a decimal string.
            "scale": self.scale.parse::<f64>().unwrap_or(1.0), "scale_ms": self.scale_ms, "counts": counts.json(),
        })
    }
}

/// Returns the name of the policy in a path.
fn policy_name(uri: &Uri) -> Vec<u8> {
    // `/api/policies/NAME`, possibly with more segments.
    text::decode_path(uri.path().split('/').nth(3).unwrap_or_default())
}

/// Query of `/api/policies`. With `scaled`, the list has only scaled policies.
#[derive(Deserialize)]
struct ListQuery {
    #[serde(default)]
    scaled: bool,
}

async fn list(State(console): State<Arc<Console>>, Query(query): Query<ListQuery>) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let digest = console.sampler.as_ref().and_then(|sampler| sampler.digest());
    let read = async {
        let rows = server.send_any(&redis::cmd("RL.POLICYLIST")).await?;
        let policies: Vec<Policy> = items(&rows).iter().filter_map(parse_list_row).collect();
        let names: Vec<&[u8]> = policies.iter().map(|policy| policy.name.as_slice()).collect();
        let counts = counts(&server, &names).await?;
        Ok(policies.iter().zip(counts).map(|(policy, counts)| policy.json(counts)).collect())
    };
    let all = console.policies.get(digest, LIST_LIFETIME, read).await?;
    let is_wanted = |policy: &&JsonValue| !query.scaled || policy.get("scale").is_some_and(|scale| *scale != 1.0);
    Ok(Json(all.as_array().into_iter().flatten().filter(is_wanted).cloned().collect()))
}

fn parse_list_row(row: &redis::Value) -> Option<Policy> {
    let [name, version, specs, scale, scale_ms] = items(row) else { return None };
    let redis::Value::BulkString(name) = name else { return None };
    Some(Policy {
        name: name.clone(),
        version: int(version)?,
        specs: text_of(specs)?,
        scale: text_of(scale)?,
        scale_ms: int(scale_ms)?,
    })
}

/// Returns the counts of policies by their names, summed over all primaries.
async fn counts(server: &Server, names: &[&[u8]]) -> Result<Vec<Counts>, Failure> {
    let by_node = join_all(server.nodes().iter().map(|node| async move {
        let mut node_counts = vec![];
        for names in names.chunks(BATCH) {
            let mut pipeline = redis::pipe();
            for name in names {
                pipeline.cmd("RL.POLICYGET").arg(*name);
            }
            let replies = node.send_all(&pipeline).await?;
            let counts = |reply| parse_policy(reply).map(|(_, counts)| counts).unwrap_or_default();
            node_counts.extend(replies.iter().map(counts));
        }
        Ok::<_, Failure>(node_counts)
    }));
    let mut sums = vec![Counts::default(); names.len()];
    for node_counts in by_node.await {
        let node_counts = match node_counts {
            // The other nodes suffice; the indicator of the page shows the outage.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => continue,
            node_counts => node_counts?,
        };
        for (sum, counts) in sums.iter_mut().zip(node_counts) {
            *sum = sum.plus(counts);
        }
    }
    Ok(sums)
}

/// Parses a reply to RL.POLICYGET, which lacks the name of the policy.
fn parse_policy(reply: &redis::Value) -> Option<(Policy, Counts)> {
    let fields = pairs(reply)?;
    let field = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| *value);
    let counts = pairs(field("counts")?)?;
    let counts = counts.iter().filter_map(|(name, count)| Some((name.as_str(), u64::try_from(int(count)?).ok()?)));
    let policy = Policy {
        name: vec![],
        version: int(field("version")?)?,
        specs: text_of(field("specs")?)?,
        scale: text_of(field("scale")?)?,
        scale_ms: int(field("scale_ms")?)?,
    };
    Some((policy, Counts::from_fields(counts)))
}

/// Reads a policy from a primary.
async fn read_policy(node: &Node, name: &[u8]) -> Result<Option<(Policy, Counts)>, Failure> {
    let mut command = redis::cmd("RL.POLICYGET");
    command.arg(name);
    let reply = node.send(&command).await?;
    Ok(parse_policy(&reply).map(|(policy, counts)| (Policy { name: name.to_vec(), ..policy }, counts)))
}

/// Returns the current policy as JSON.
async fn policy_json(server: &Server, name: &[u8]) -> Result<Option<JsonValue>, Failure> {
    let Some((policy, _)) = read_policy(server.first()?, name).await? else { return Ok(None) };
    let counts = counts(server, &[name]).await?.into_iter().next().unwrap_or_default();
    Ok(Some(policy.json(counts)))
}

fn missing(name: &[u8]) -> Failure {
    Failure::Missing(format!("there is no policy {:?}", text::from_bytes(name)))
}

async fn show(State(console): State<Arc<Console>>, uri: Uri) -> Result<Json<JsonValue>, Failure> {
    let name = policy_name(&uri);
    let server = console.upstream()?.server().await?;
    Ok(Json(policy_json(&server, &name).await?.ok_or_else(|| missing(&name))?))
}

/// Body of a request that sets a policy.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetRequest {
    specs: String,
    /// Version that is replaced, or `None` for a new policy.
    version: Option<i64>,
    #[serde(default)]
    why: Note,
}

async fn set(
    State(console): State<Arc<Console>>,
    uri: Uri,
    actor: Actor,
    Json(setting): Json<SetRequest>,
) -> Result<Response, Failure> {
    let name = policy_name(&uri);
    let server = console.upstream()?.server().await?;
    let (change, policy) = set_policy(&server, &name, &setting.specs, setting.version).await?;
    let status = if change.before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    change.record(&server, &actor, setting.why).await;
    Ok((status, Json(policy)).into_response())
}

/// Sets a policy in place of the version `replaced_version`, or a new policy for `None`. Returns the change, and the
/// new state of the policy as JSON.
///
/// # Errors
/// If the limits are malformed, or if the policy has another version.
pub async fn set_policy(
    server: &Server,
    name: &[u8],
    specs: &str,
    replaced_version: Option<i64>,
) -> Result<(Change, JsonValue), Failure> {
    let words: Vec<&str> = specs.split_ascii_whitespace().collect();
    if words.is_empty() {
        return Err(Failure::BadRequest("specs must have a limit, such as FIXED 100 1m".to_owned()));
    }
    let node = server.first()?;
    let before = read_policy(node, name).await?.map(|(policy, _)| policy);
    let current = before.as_ref().map(|policy| policy.version);
    if current != replaced_version {
        return Err(conflict(server, name).await?);
    }
    let mut command = redis::cmd("RL.POLICYSET");
    command.arg(name);
    match replaced_version {
        Some(version) => command.arg("VERSION").arg(version),
        None => command.arg("NX"),
    };
    for word in &words {
        command.arg(*word);
    }
    let version = match node.send(&command).await {
        Ok(version) => int(&version),
        // Another client may have changed the policy between the two calls.
        Err(error) => {
            let current = read_policy(node, name).await?.map(|(policy, _)| policy.version);
            return Err(if current == replaced_version { error } else { conflict(server, name).await? });
        }
    };
    let Some((after, counts)) = read_policy(node, name).await? else { return Err(conflict(server, name).await?) };
    let has_other_specs = canonical(specs).is_ok_and(|specs| specs != after.specs);
    if Some(after.version) != version || (replaced_version.is_none() && has_other_specs) {
        return Err(conflict(server, name).await?);
    }
    let before = before.as_ref().map(Policy::limit_values);
    Ok((Change::of_policy(Kind::PolicySet, name, before, Some(after.limit_values())), after.json(counts)))
}

/// Returns limits in the server's canonical form.
fn canonical(specs: &str) -> Result<String, String> {
    let words: Vec<&[u8]> =
        ["RL.POLICYSET"].into_iter().chain(specs.split_ascii_whitespace()).map(str::as_bytes).collect();
    let policy = syntax::Policy::parse(&mut Args::new(&words));
    policy.map(|policy| policy.to_string()).map_err(|error| error.to_string())
}

/// Returns the error for a policy that has changed since the client read it, with its current state.
pub async fn conflict(server: &Server, name: &[u8]) -> Result<Failure, Failure> {
    let current = policy_json(server, name).await?;
    let message = if current.is_some() { "somebody has changed the policy meanwhile" } else { "the policy is gone" };
    Ok(Failure::Conflict(message.to_owned(), current.unwrap_or_default()))
}

/// Query of a deletion, with the version that the client has read.
#[derive(Deserialize)]
struct DeleteQuery {
    version: Option<i64>,
    #[serde(default)]
    why: Note,
}

async fn delete(
    State(console): State<Arc<Console>>,
    uri: Uri,
    actor: Actor,
    Query(query): Query<DeleteQuery>,
) -> Result<Json<JsonValue>, Failure> {
    let name = policy_name(&uri);
    let server = console.upstream()?.server().await?;
    let change = delete_policy(&server, &name, query.version).await?;
    change.record(&server, &actor, query.why).await;
    Ok(Json(json!({ "deleted": 1 })))
}

/// Deletes a version of a policy, or the current version for `None`.
///
/// # Errors
/// If the policy does not exist, or if it has another version.
pub async fn delete_policy(server: &Server, name: &[u8], version: Option<i64>) -> Result<Change, Failure> {
    let node = server.first()?;
    let Some((before, _)) = read_policy(node, name).await? else { return Err(missing(name)) };
    if version.is_some_and(|version| version != before.version) {
        return Err(conflict(server, name).await?);
    }
    let mut command = redis::cmd("RL.POLICYDEL");
    command.arg(name).arg("VERSION").arg(before.version);
    if let Err(error) = node.send(&command).await {
        // Another client may have changed the policy between the two calls.
        let current = read_policy(node, name).await?.map(|(policy, _)| policy.version);
        return Err(if current == Some(before.version) { error } else { conflict(server, name).await? });
    }
    let before = Values { specs: before.limit_values().specs, ..before.scale_values() };
    Ok(Change::of_policy(Kind::PolicyDeleted, name, Some(before), None))
}

/// Body of a request that scales a policy, for a duration or until it is changed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScaleRequest {
    factor: f64,
    #[serde(rename = "for")]
    duration: Option<String>,
    #[serde(default)]
    why: Note,
}

async fn scale(
    State(console): State<Arc<Console>>,
    uri: Uri,
    actor: Actor,
    Json(scaling): Json<ScaleRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let name = policy_name(&uri);
    let server = console.upstream()?.server().await?;
    let change = scale_policy(&server, &name, scaling.factor, scaling.duration.as_deref()).await?;
    change.record(&server, &actor, scaling.why).await;
    Ok(Json(policy_json(&server, &name).await?.ok_or_else(|| missing(&name))?))
}

/// Scales a policy for a duration, or until it is changed.
///
/// # Errors
/// If the policy does not exist, or if an argument is malformed.
pub async fn scale_policy(
    server: &Server,
    name: &[u8],
    factor: f64,
    duration: Option<&str>,
) -> Result<Change, Failure> {
    let before = current(server, name).await?.ok_or_else(|| missing(name))?;
    let mut command = redis::cmd("RL.POLICYSCALE");
    command.arg(name).arg(factor.to_string());
    if let Some(duration) = duration.filter(|duration| !duration.is_empty()) {
        command.arg("FOR").arg(duration);
    }
    let reply = server.first()?.send(&command).await?;
    let [version, scale, scale_ms] = items(&reply) else { return Err(Failure::Server("malformed scale".to_owned())) };
    let scale = text_of(scale).and_then(|scale| scale.parse().ok());
    let after = Values { version: int(version), scale, scale_ms: int(scale_ms), ..Values::default() };
    let before = Values { specs: None, ..before };
    Ok(Change::of_policy(Kind::PolicyScaled, name, Some(before), Some(after)))
}

/// Returns the limits, the version and the scale of a policy, or `None` if it does not exist.
///
/// # Errors
/// If the server does not reply.
pub async fn current(server: &Server, name: &[u8]) -> Result<Option<Values>, Failure> {
    let found = read_policy(server.first()?, name).await?;
    Ok(found.map(|(policy, _)| Values { specs: policy.limit_values().specs, ..policy.scale_values() }))
}

/// Body of a request that checks limits.
#[derive(Deserialize)]
struct CheckRequest {
    specs: String,
}

/// Returns limits in their canonical form, or the error of malformed limits, without setting a policy.
async fn check(Json(request): Json<CheckRequest>) -> Result<Json<JsonValue>, Failure> {
    let specs = canonical(&request.specs).map_err(Failure::BadRequest)?;
    Ok(Json(json!({ "specs": specs })))
}
