//! Routes for the list of changes, and their undo. An undo is a change like others: it fails if the policy or the key
//! has changed since, and it is in the list.

use super::Console;
use super::audit::Actor;
use super::changes::{self, Change, Kind, Listed, MAX_CHANGES, Values, Why};
use super::failure::Failure;
use super::keys::{ban_key, ban_of, lift_ban, now_ms};
use super::policies::{conflict, current, delete_policy, scale_policy, set_policy};
use super::text;
use super::upstream::Server;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value as Json_, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of changes in a response, unless the query says another.
const DEFAULT_COUNT: usize = 100;
/// Maximum difference of two ends of the same scale, in milliseconds: the time between a change and its entry.
const SAME_END: i64 = 2000;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/changes", get(list)).route("/api/changes/{id}/undo", post(undo))
}

/// Query of `/api/changes`: the maximum number of changes.
#[derive(Deserialize)]
struct ListQuery {
    count: Option<usize>,
}

async fn list(State(console): State<Arc<Console>>, Query(query): Query<ListQuery>) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let listed = changes::read(&server, query.count.unwrap_or(DEFAULT_COUNT).clamp(1, MAX_CHANGES)).await?;
    let now = now_ms(&server).await;
    let (policies, bans) = present(&server, &listed).await?;
    let rows = listed.iter().map(|row| {
        let change = &row.change;
        let stands = match (&change.policy, &change.key) {
            (_, Some(key)) => bans.get(key.as_str()).and_then(Option::as_ref),
            (Some(policy), None) => policies.get(policy.as_str()).and_then(Option::as_ref),
            (None, None) => None,
        };
        let obstacle = Undo::of(row, now).and_then(|undo| undo.check(row, stands, now)).err();
        let mut shown = serde_json::to_value(change).unwrap_or_default();
        if let Some(fields) = shown.as_object_mut() {
            fields.extend([("id".to_owned(), json!(row.id)), ("at".to_owned(), json!(row.at))]);
            fields.insert("obstacle".to_owned(), json!(obstacle));
            fields.insert("elsewhere".to_owned(), json!(changed_elsewhere(row, &listed, &policies)));
        }
        shown
    });
    Ok(Json(json!({ "at": now, "kept": MAX_CHANGES, "changes": rows.collect::<Vec<_>>() })))
}

/// Present values of policies or keys by their names.
type Present<'a> = BTreeMap<&'a str, Option<Values>>;

/// Returns the present policies and bans that changes concern.
async fn present<'a>(server: &Server, listed: &'a [Listed]) -> Result<(Present<'a>, Present<'a>), Failure> {
    let of = |row: &'a Listed| if row.change.key.is_none() { row.change.policy.as_deref() } else { None };
    let mut policies: Present<'a> = listed.iter().filter_map(of).map(|name| (name, None)).collect();
    let banned = |row: &&Listed| matches!(row.change.what, Kind::KeyBanned | Kind::BanLifted);
    let keys = listed.iter().filter(banned).filter_map(|row| row.change.key.as_deref());
    let mut bans: Present<'a> = keys.map(|key| (key, None)).collect();
    let found = join_all(policies.keys().map(|name| async move { current(server, &text::bytes(name)).await })).await;
    for (stands, found) in policies.values_mut().zip(found) {
        *stands = found?;
    }
    let found = join_all(bans.keys().map(|key| async move { ban_of(server, &text::bytes(key)).await })).await;
    for (stands, found) in bans.values_mut().zip(found) {
        *stands = match found {
            Err(Failure::Away(why)) => return Err(Failure::Away(why)),
            // The key has another type by now.
            found => found.unwrap_or_default(),
        };
    }
    Ok((policies, bans))
}

/// Returns when a policy was changed without a console, as far as its versions show: `before` or `after` the change.
fn changed_elsewhere(row: &Listed, listed: &[Listed], policies: &Present<'_>) -> Option<&'static str> {
    let (None, Some(policy)) = (&row.change.key, &row.change.policy) else { return None };
    let version = |values: &Option<Values>| values.as_ref().and_then(|values| values.version);
    let mut own =
        listed.iter().filter(|other| other.change.key.is_none() && other.change.policy.as_ref() == Some(policy));
    let is_newest = own.clone().next().is_some_and(|newest| newest.id == row.id);
    let stands = policies.get(policy.as_str()).map(version);
    if is_newest && stands.is_some_and(|stands| !own.clone().any(|other| version(&other.change.after) == stands)) {
        return Some("after");
    }
    // Entries of two consoles may be in another order than their changes.
    let before = version(&row.change.before);
    let is_known = own.clone().any(|other| other.id != row.id && version(&other.change.after) == before);
    let has_older = own.next_back().is_some_and(|oldest| oldest.id != row.id);
    (has_older && !is_known).then_some("before")
}

/// Change that undoes another.
enum Undo<'a> {
    /// Sets the limits in place of a version, or as a new policy, with the scale of before.
    Set { specs: &'a str, replaced: Option<i64>, scale: Option<(f64, Option<i64>)> },
    /// Deletes a version.
    Delete { version: i64 },
    /// Scales a policy, for some milliseconds or until it is changed.
    Scale { factor: f64, left: Option<i64> },
    /// Bans a key for some milliseconds, after its present ban is lifted.
    Ban { left: i64 },
    /// Lifts a ban.
    Lift,
}

impl<'a> Undo<'a> {
    /// Returns the change that undoes another, or the reason why there is none.
    fn of(row: &'a Listed, now: u64) -> Result<Undo<'a>, &'static str> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let (before, after) = (row.change.before.as_ref(), row.change.after.as_ref());
        let specs = before.and_then(|before| before.specs.as_deref());
        // The scale of before, for what is left of its time.
        let scale = before.and_then(|before| match (before.scale?, before.scale_ms?) {
            (factor, ..0) => Some((factor, None)),
            (factor, ms) => Some((factor, Some(row.at.saturating_add(ms).saturating_sub(now)))),
        });
        let scale = scale.filter(|(factor, left)| factor.total_cmp(&1.0).is_ne() && left.is_none_or(|left| left > 0));
        let version = after.and_then(|after| after.version);
        match row.change.what {
            Kind::PolicySet => match (specs, version) {
                (Some(specs), Some(_)) => Ok(Undo::Set { specs, replaced: version, scale: None }),
                (None, Some(version)) => Ok(Undo::Delete { version }),
                (_, None) => Err("the change is malformed"),
            },
            Kind::PolicyDeleted => {
                let specs = specs.ok_or("the change is malformed")?;
                Ok(Undo::Set { specs, replaced: None, scale })
            }
            Kind::PolicyScaled => {
                let (factor, left) = scale.unwrap_or((1.0, None));
                Ok(Undo::Scale { factor, left })
            }
            Kind::KeyBanned | Kind::BanLifted if row.change.key.is_none() => Err("the name of the key is too long"),
            Kind::KeyBanned | Kind::BanLifted => {
                let until = before.and_then(|before| before.banned_until);
                match until.map(|until| until.saturating_sub(now)).filter(|left| *left > 0) {
                    Some(left) => Ok(Undo::Ban { left }),
                    None if row.change.what == Kind::KeyBanned => Ok(Undo::Lift),
                    None => Err("the ban would be over by now"),
                }
            }
            Kind::KeyReset => Err("what a key has forgotten cannot be restored"),
            Kind::UsageGivenBack => Err("usage that was given back may have recovered or been used since"),
        }
    }

    /// Checks that the outcome of the change still stands.
    fn check(self, row: &Listed, stands: Option<&Values>, now: u64) -> Result<Undo<'a>, &'static str> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let after = row.change.after.as_ref();
        let version = |values: Option<&Values>| values.and_then(|values| values.version);
        let end = |values: &Values, at: i64| values.scale_ms.filter(|ms| *ms >= 0).map(|ms| at.saturating_add(ms));
        let same_scale = |one: &Values, other: &Values| {
            one.scale == other.scale
                && match (end(one, row.at), end(other, now)) {
                    (Some(one), Some(other)) => one.abs_diff(other) <= SAME_END.unsigned_abs(),
                    (one, other) => one == other,
                }
        };
        match self {
            Undo::Ban { .. } | Undo::Lift => {
                let until = |values: Option<&Values>| values.and_then(|values| values.banned_until);
                if until(stands) == until(after) { Ok(self) } else { Err("the ban is over or has changed since") }
            }
            _ if version(stands) != version(after) => Err("the policy has changed since"),
            Undo::Scale { .. } if !after.zip(stands).is_some_and(|(after, stands)| same_scale(after, stands)) => {
                Err("the scale is over or has changed since")
            }
            undo => Ok(undo),
        }
    }

    /// Carries out the change.
    async fn run(self, server: &Server, name: &[u8]) -> Result<Change, Failure> {
        let duration = |left: i64| format!("{left}ms");
        match self {
            Undo::Set { specs, replaced, scale } => {
                let (mut change, _) = set_policy(server, name, specs, replaced).await?;
                if let Some((factor, left)) = scale {
                    let scaled = scale_policy(server, name, factor, left.map(duration).as_deref()).await?.after;
                    let set = change.after.and_then(|set| set.specs);
                    change.after = scaled.map(|scaled| Values { specs: set, ..scaled });
                }
                Ok(change)
            }
            Undo::Delete { version } => delete_policy(server, name, Some(version)).await,
            Undo::Scale { factor, left } => scale_policy(server, name, factor, left.map(duration).as_deref()).await,
            Undo::Ban { left } => {
                // A ban is never shortened, so that it is lifted before.
                let lifted = lift_ban(server, name).await?;
                let (change, _) = ban_key(server, name, &duration(left)).await?;
                Ok(Change { before: lifted.before, ..change })
            }
            Undo::Lift => lift_ban(server, name).await,
        }
    }
}

/// Body of an undo.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UndoRequest {
    #[serde(default)]
    why: Why,
}

async fn undo(
    State(console): State<Arc<Console>>,
    Path(id): Path<String>,
    actor: Actor,
    Json(request): Json<UndoRequest>,
) -> Result<Json<Json_>, Failure> {
    let server = console.upstream()?.server().await?;
    let row = changes::find(&server, &id).await?;
    let now = now_ms(&server).await;
    let undo = Undo::of(&row, now).map_err(|obstacle| Failure::BadRequest(obstacle.to_owned()))?;
    let name = text::bytes(row.change.key.as_deref().or(row.change.policy.as_deref()).unwrap_or_default());
    let stands = match row.change.key {
        Some(_) => ban_of(&server, &name).await?,
        None => current(&server, &name).await?,
    };
    let undo = match undo.check(&row, stands.as_ref(), now) {
        Ok(undo) => undo,
        Err(obstacle) => {
            return Err(match (&row.change.key, conflict(&server, &name).await) {
                (None, Ok(Failure::Conflict(_, stands))) => Failure::Conflict(obstacle.to_owned(), stands),
                _ => Failure::Conflict(obstacle.to_owned(), json!(stands)),
            });
        }
    };
    let change = undo.run(&server, &name).await?;
    let shown = json!({ "what": change.what, "before": change.before, "after": change.after });
    Change { undoes: Some(row.id.clone()), ..change }.record(&server, &actor, request.why).await;
    Ok(Json(shown))
}
