//! Policies: what there is, and changing it.

use super::Console;
use super::audit::{Who, changed};
use super::failure::Failure;
use super::info::Counts;
use super::reply_json::{int, items, text_of};
use super::text;
use super::upstream::{Node, Server};
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use ratelimit_core::syntax;
use ratelimit_core::wire::args::Args;
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use std::sync::Arc;

/// How many policies one question asks for: the server serves others between two questions.
const AT_ONCE: usize = 256;

/// The routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new()
        .route("/api/policies", get(list))
        .route("/api/policies/{name}", get(one).put(set).delete(delete))
        .route("/api/policies/{name}/scale", post(scale))
        .route("/api/check", post(check))
}

/// A policy as the server has it.
struct Policy {
    name: Vec<u8>,
    version: i64,
    specs: String,
    scale: String,
    scale_ms: i64,
}

impl Policy {
    fn json(&self, counts: Counts) -> Json_ {
        json!({
            "name": text::shown(&self.name), "version": self.version, "specs": self.specs,
            // The server writes it as a decimal.
            "scale": self.scale.parse::<f64>().unwrap_or(1.0), "scale_ms": self.scale_ms, "counts": counts.json(),
        })
    }
}

/// The name in a path: the part at this place.
fn named(uri: &Uri) -> Vec<u8> {
    // `/api/policies/NAME` and what may stand behind it.
    text::of_path(uri.path().split('/').nth(3).unwrap_or_default())
}

async fn list(State(console): State<Arc<Console>>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let rows = server.ask_any(&redis::cmd("RL.POLICYLIST")).await?;
    let policies: Vec<Policy> = items(&rows).iter().filter_map(of_list).collect();
    let names: Vec<&[u8]> = policies.iter().map(|policy| policy.name.as_slice()).collect();
    let counts = counts(&server, &names).await?;
    let rows = policies.iter().zip(counts).map(|(policy, counts)| policy.json(counts));
    Ok(Json(rows.collect()))
}

fn of_list(row: &redis::Value) -> Option<Policy> {
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

/// The counts of these policies, all primaries together.
async fn counts(server: &Server, names: &[&[u8]]) -> Result<Vec<Counts>, Failure> {
    let of_nodes = join_all(server.nodes().iter().map(|node| async move {
        let mut found = vec![];
        for names in names.chunks(AT_ONCE) {
            let mut asked = redis::pipe();
            for name in names {
                asked.cmd("RL.POLICYGET").arg(*name);
            }
            let replies = node.ask_all(&asked).await?;
            found.extend(replies.iter().map(|reply| described(reply).map(|(_, counts)| counts).unwrap_or_default()));
        }
        Ok::<_, Failure>(found)
    }));
    let mut sums = vec![Counts::default(); names.len()];
    for found in of_nodes.await {
        let found = match found {
            // The other nodes have counted too; that one is away is told elsewhere.
            Err(Failure::Away(_)) if server.nodes().len() > 1 => continue,
            found => found?,
        };
        for (sum, counts) in sums.iter_mut().zip(found) {
            *sum = sum.plus(counts);
        }
    }
    Ok(sums)
}

/// A policy as RL.POLICYGET describes it, without its name.
fn described(reply: &redis::Value) -> Option<(Policy, Counts)> {
    let fields = super::reply_json::pairs(reply)?;
    let field = |name: &str| fields.iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let counts = super::reply_json::pairs(field("counts")?)?;
    let counts = counts.iter().filter_map(|(name, count)| Some((name.as_str(), u64::try_from(int(count)?).ok()?)));
    let policy = Policy {
        name: vec![],
        version: int(field("version")?)?,
        specs: text_of(field("specs")?)?,
        scale: text_of(field("scale")?)?,
        scale_ms: int(field("scale_ms")?)?,
    };
    Some((policy, Counts::of(counts)))
}

/// The policy that stands on a primary.
async fn standing(node: &Node, name: &[u8]) -> Result<Option<(Policy, Counts)>, Failure> {
    let mut command = redis::cmd("RL.POLICYGET");
    command.arg(name);
    let reply = node.ask(&command).await?;
    Ok(described(&reply).map(|(policy, counts)| (Policy { name: name.to_vec(), ..policy }, counts)))
}

/// The policy that stands, as the answer has it.
async fn told(server: &Server, name: &[u8]) -> Result<Option<Json_>, Failure> {
    let Some((policy, _)) = standing(server.first()?, name).await? else { return Ok(None) };
    let counts = counts(server, &[name]).await?.into_iter().next().unwrap_or_default();
    Ok(Some(policy.json(counts)))
}

fn missing(name: &[u8]) -> Failure {
    Failure::Missing(format!("there is no policy {:?}", text::shown(name)))
}

async fn one(State(console): State<Arc<Console>>, uri: Uri) -> Result<Json<Json_>, Failure> {
    let name = named(&uri);
    let server = console.upstream()?.server().await?;
    Ok(Json(told(&server, &name).await?.ok_or_else(|| missing(&name))?))
}

/// What a policy is set to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Setting {
    specs: String,
    /// The version that it is set over. None: there is none yet.
    version: Option<i64>,
}

async fn set(
    State(console): State<Arc<Console>>,
    uri: Uri,
    who: Who,
    Json(setting): Json<Setting>,
) -> Result<Response, Failure> {
    let name = named(&uri);
    let words: Vec<&str> = setting.specs.split_ascii_whitespace().collect();
    if words.is_empty() {
        return Err(Failure::Wrong("specs must have a limit, such as FIXED 100 1m".to_owned()));
    }
    let server = console.upstream()?.server().await?;
    let node = server.first()?;
    let before = standing(node, &name).await?.map(|(policy, _)| policy);
    let stands = before.as_ref().map(|policy| policy.version);
    if stands != setting.version {
        return Err(conflict(&server, &name).await?);
    }
    let mut command = redis::cmd("RL.POLICYSET");
    command.arg(&name);
    match setting.version {
        Some(version) => command.arg("VERSION").arg(version),
        None => command.arg("NX"),
    };
    for word in &words {
        command.arg(*word);
    }
    let version = match node.ask(&command).await {
        Ok(version) => int(&version),
        // Somebody was faster by less than the time between the two calls.
        Err(refused) => {
            let now = standing(node, &name).await?.map(|(policy, _)| policy.version);
            return Err(if now == setting.version { refused } else { conflict(&server, &name).await? });
        }
    };
    let Some((after, counts)) = standing(node, &name).await? else { return Err(conflict(&server, &name).await?) };
    let same = |specs: &str| canonical(specs).map(|specs| specs == after.specs);
    if Some(after.version) != version || (setting.version.is_none() && same(&setting.specs) == Ok(false)) {
        return Err(conflict(&server, &name).await?);
    }
    let before = before.map(|policy| policy.specs);
    changed!(who, "policy set", name = text::shown(&name), ?before, after = ?after.specs, version);
    let status = if before.is_some() { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(after.json(counts))).into_response())
}

/// What the server would have these words be.
fn canonical(specs: &str) -> Result<String, String> {
    let words: Vec<&[u8]> =
        ["RL.POLICYSET"].into_iter().chain(specs.split_ascii_whitespace()).map(str::as_bytes).collect();
    let policy = syntax::Policy::read(&mut Args::new(&words));
    policy.map(|policy| policy.to_string()).map_err(|error| error.to_string())
}

/// Another version stands than whoever changes it has seen: it is told.
async fn conflict(server: &Server, name: &[u8]) -> Result<Failure, Failure> {
    let stands = told(server, name).await?;
    let told = if stands.is_some() { "somebody has changed the policy meanwhile" } else { "the policy is gone" };
    Ok(Failure::Conflict(told.to_owned(), stands.unwrap_or_default()))
}

/// The version that whoever deletes it has seen.
#[derive(Deserialize)]
struct Deleting {
    version: Option<i64>,
}

async fn delete(
    State(console): State<Arc<Console>>,
    uri: Uri,
    who: Who,
    axum::extract::Query(seen): axum::extract::Query<Deleting>,
) -> Result<Json<Json_>, Failure> {
    let name = named(&uri);
    let server = console.upstream()?.server().await?;
    let node = server.first()?;
    let Some((before, _)) = standing(node, &name).await? else { return Err(missing(&name)) };
    if seen.version.is_some_and(|version| version != before.version) {
        return Err(conflict(&server, &name).await?);
    }
    let mut command = redis::cmd("RL.POLICYDEL");
    command.arg(&name).arg("VERSION").arg(before.version);
    if let Err(refused) = node.ask(&command).await {
        // Somebody was faster by less than the time between the two calls.
        let now = standing(node, &name).await?.map(|(policy, _)| policy.version);
        return Err(if now == Some(before.version) { refused } else { conflict(&server, &name).await? });
    }
    changed!(
        who, "policy deleted", name = text::shown(&name), before = ?before.specs,
        version = before.version
    );
    Ok(Json(json!({ "deleted": 1 })))
}

/// A factor, and how long it holds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scaling {
    factor: f64,
    #[serde(rename = "for")]
    lasting: Option<String>,
}

async fn scale(
    State(console): State<Arc<Console>>,
    uri: Uri,
    who: Who,
    Json(scaling): Json<Scaling>,
) -> Result<Json<Json_>, Failure> {
    let name = named(&uri);
    let server = console.upstream()?.server().await?;
    let mut command = redis::cmd("RL.POLICYSCALE");
    command.arg(&name).arg(scaling.factor.to_string());
    if let Some(lasting) = scaling.lasting.as_deref().filter(|lasting| !lasting.is_empty()) {
        command.arg("FOR").arg(lasting);
    }
    let before = standing(server.first()?, &name).await?.ok_or_else(|| missing(&name))?.0.scale;
    server.first()?.ask(&command).await?;
    let lasting = scaling.lasting.as_deref().filter(|lasting| !lasting.is_empty()).unwrap_or("until changed");
    changed!(
        who, "policy scaled", name = text::shown(&name), ?before, after = ?scaling.factor.to_string(),
        ?lasting
    );
    Ok(Json(told(&server, &name).await?.ok_or_else(|| missing(&name))?))
}

/// Words that somebody is about to set.
#[derive(Deserialize)]
struct Checking {
    specs: String,
}

/// What words mean, before they are set: as the server would write them, or what is wrong with them.
async fn check(Json(checking): Json<Checking>) -> Result<Json<Json_>, Failure> {
    let specs = canonical(&checking.specs).map_err(Failure::Wrong)?;
    Ok(Json(json!({ "specs": specs })))
}
