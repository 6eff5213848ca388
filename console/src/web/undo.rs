//! Routes for the list of changes, and their undo. An undo fails if the policy or the key has changed since. It is
//! itself a change in the list.

use super::Console;
use super::audit::Actor;
use super::changes::{self, Change, Kind, ListedChange, MAX_CHANGES, Note, Values};
use super::failure::Failure;
use super::keys::{ban_key, ban_of, lift_ban, server_now_ms};
use super::policies::{conflict, current, delete_policy, scale_policy, set_policy};
use super::text;
use super::upstream::Server;
use axum::extract::{Path, Query, State};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Number of changes in a response, unless the query has another.
const DEFAULT_COUNT: usize = 100;
/// Maximum difference between two computed ends of the same scale, in milliseconds, because an entry of the list is
/// later than its change.
const MAX_END_DIFFERENCE: u64 = 2000;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/changes", get(list)).route("/api/changes/{id}/undo", post(undo))
}

/// Query of `/api/changes`: the maximum number of changes.
#[derive(Deserialize)]
struct ListQuery {
    count: Option<usize>,
}

async fn list(State(console): State<Arc<Console>>, Query(query): Query<ListQuery>) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let listed = changes::read(&server, query.count.unwrap_or(DEFAULT_COUNT).clamp(1, MAX_CHANGES)).await?;
    let now = server_now_ms(&server).await;
    let (policies, bans) = read_present(&server, &listed).await?;
    let rows = listed.iter().map(|row| {
        let change = &row.change;
        let present = match (&change.policy, &change.key) {
            (_, Some(key)) => bans.get(key.as_str()).and_then(Option::as_ref),
            (Some(policy), None) => policies.get(policy.as_str()).and_then(Option::as_ref),
            (None, None) => None,
        };
        let obstacle = Undo::of(row, now).and_then(|undo| undo.check(row, present, now)).err();
        let mut row_json = serde_json::to_value(change).unwrap_or_default();
        if let Some(fields) = row_json.as_object_mut() {
            fields.extend([("id".to_owned(), json!(row.id)), ("at".to_owned(), json!(row.at))]);
            fields.insert("obstacle".to_owned(), json!(obstacle));
            fields.insert("elsewhere".to_owned(), json!(changed_elsewhere(row, &listed, &policies)));
        }
        row_json
    });
    Ok(Json(json!({ "at": now, "kept": MAX_CHANGES, "changes": rows.collect::<Vec<_>>() })))
}

/// Present values of policies or keys by their names.
type PresentValues<'a> = BTreeMap<&'a str, Option<Values>>;

/// Reads the present policies and bans that changes concern.
async fn read_present<'a>(
    server: &Server,
    listed: &'a [ListedChange],
) -> Result<(PresentValues<'a>, PresentValues<'a>), Failure> {
    let policy_of = |row: &'a ListedChange| if row.change.key.is_none() { row.change.policy.as_deref() } else { None };
    let mut policies: PresentValues<'a> = listed.iter().filter_map(policy_of).map(|name| (name, None)).collect();
    let is_ban = |row: &&ListedChange| matches!(row.change.what, Kind::KeyBanned | Kind::BanLifted);
    let keys = listed.iter().filter(is_ban).filter_map(|row| row.change.key.as_deref());
    let mut bans: PresentValues<'a> = keys.map(|key| (key, None)).collect();
    let found = join_all(policies.keys().map(|name| async move { current(server, &text::to_bytes(name)).await })).await;
    for (present, found) in policies.values_mut().zip(found) {
        *present = found?;
    }
    let found = join_all(bans.keys().map(|key| async move { ban_of(server, &text::to_bytes(key)).await })).await;
    for (present, found) in bans.values_mut().zip(found) {
        *present = match found {
            Err(Failure::Away(why)) => return Err(Failure::Away(why)),
            // After another error, the key has another type by now, and no ban.
            found => found.unwrap_or_default(),
        };
    }
    Ok((policies, bans))
}

/// Returns `before` or `after` if the versions of a policy show that it was changed without a console before or after
/// a listed change.
fn changed_elsewhere(
    row: &ListedChange,
    listed: &[ListedChange],
    policies: &PresentValues<'_>,
) -> Option<&'static str> {
    let (None, Some(policy)) = (&row.change.key, &row.change.policy) else { return None };
    let version = |values: &Option<Values>| values.as_ref().and_then(|values| values.version);
    let mut same_policy =
        listed.iter().filter(|other| other.change.key.is_none() && other.change.policy.as_ref() == Some(policy));
    let is_newest = same_policy.clone().next().is_some_and(|newest| newest.id == row.id);
    let present_version = policies.get(policy.as_str()).map(version);
    let is_listed = |present| same_policy.clone().any(|other| version(&other.change.after) == present);
    if is_newest && present_version.is_some_and(|present| !is_listed(present)) {
        return Some("after");
    }
    // Entries of two consoles may be in another order than their changes.
    let before = version(&row.change.before);
    let is_known = same_policy.clone().any(|other| other.id != row.id && version(&other.change.after) == before);
    let has_older = same_policy.next_back().is_some_and(|oldest| oldest.id != row.id);
    (has_older && !is_known).then_some("before")
}

/// Change that undoes another.
enum Undo<'a> {
    /// Sets the former limits, in place of a version or as a new policy. `scale` has the former factor, and its
    /// remaining milliseconds if it ends.
    Set { specs: &'a str, replaced_version: Option<i64>, scale: Option<(f64, Option<i64>)> },
    /// Deletes a version of a policy.
    Delete { version: i64 },
    /// Scales a policy for some milliseconds, or until it is changed.
    Scale { factor: f64, left_ms: Option<i64> },
    /// Bans a key for some milliseconds, after its present ban is lifted.
    Ban { left_ms: i64 },
    /// Lifts a ban.
    Lift,
}

impl<'a> Undo<'a> {
    /// Returns the change that undoes another, or the reason why there is none.
    fn of(row: &'a ListedChange, now: u64) -> Result<Undo<'a>, &'static str> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let (before, after) = (row.change.before.as_ref(), row.change.after.as_ref());
        let specs = before.and_then(|before| before.specs.as_deref());
        // Former scale, for the rest of its time.
        let scale = before.and_then(|before| match (before.scale?, before.scale_ms?) {
            (factor, ..0) => Some((factor, None)),
            (factor, ms) => Some((factor, Some(row.at.saturating_add(ms).saturating_sub(now)))),
        });
        let scale = scale
            .filter(|(factor, left_ms)| factor.total_cmp(&1.0).is_ne() && left_ms.is_none_or(|left_ms| left_ms > 0));
        let version = after.and_then(|after| after.version);
        match row.change.what {
            Kind::PolicySet => match (specs, version) {
                (Some(specs), Some(_)) => Ok(Undo::Set { specs, replaced_version: version, scale: None }),
                (None, Some(version)) => Ok(Undo::Delete { version }),
                (_, None) => Err("the change is malformed"),
            },
            Kind::PolicyDeleted => {
                let specs = specs.ok_or("the change is malformed")?;
                Ok(Undo::Set { specs, replaced_version: None, scale })
            }
            Kind::PolicyScaled => {
                let (factor, left_ms) = scale.unwrap_or((1.0, None));
                Ok(Undo::Scale { factor, left_ms })
            }
            Kind::KeyBanned | Kind::BanLifted if row.change.key.is_none() => Err("the name of the key is too long"),
            Kind::KeyBanned | Kind::BanLifted => {
                let until = before.and_then(|before| before.banned_until);
                match until.map(|until| until.saturating_sub(now)).filter(|left_ms| *left_ms > 0) {
                    Some(left_ms) => Ok(Undo::Ban { left_ms }),
                    None if row.change.what == Kind::KeyBanned => Ok(Undo::Lift),
                    None => Err("the ban would be over by now"),
                }
            }
            Kind::KeyReset => Err("what a key has forgotten cannot be restored"),
            Kind::UsageGivenBack => Err("usage that was given back may have recovered or been used since"),
        }
    }

    /// Checks that the values after the change `row` are still the present ones.
    fn check(self, row: &ListedChange, present: Option<&Values>, now: u64) -> Result<Undo<'a>, &'static str> {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let after = row.change.after.as_ref();
        let version = |values: Option<&Values>| values.and_then(|values| values.version);
        let end = |values: &Values, at: i64| values.scale_ms.filter(|ms| *ms >= 0).map(|ms| at.saturating_add(ms));
        let same_scale = |one: &Values, other: &Values| {
            one.scale == other.scale
                && match (end(one, row.at), end(other, now)) {
                    (Some(one), Some(other)) => one.abs_diff(other) <= MAX_END_DIFFERENCE,
                    (one, other) => one == other,
                }
        };
        match self {
            Undo::Ban { .. } | Undo::Lift => {
                let until = |values: Option<&Values>| values.and_then(|values| values.banned_until);
                if until(present) == until(after) { Ok(self) } else { Err("the ban is over or has changed since") }
            }
            _ if version(present) != version(after) => Err("the policy has changed since"),
            Undo::Scale { .. } if !after.zip(present).is_some_and(|(after, present)| same_scale(after, present)) => {
                Err("the scale is over or has changed since")
            }
            undo => Ok(undo),
        }
    }

    /// Makes the change.
    async fn run(self, server: &Server, name: &[u8]) -> Result<Change, Failure> {
        let duration = |left_ms: i64| format!("{left_ms}ms");
        match self {
            Undo::Set { specs, replaced_version, scale } => {
                let (mut change, _) = set_policy(server, name, specs, replaced_version).await?;
                if let Some((factor, left_ms)) = scale {
                    let scaled = scale_policy(server, name, factor, left_ms.map(duration).as_deref()).await?.after;
                    let set = change.after.and_then(|set| set.specs);
                    change.after = scaled.map(|scaled| Values { specs: set, ..scaled });
                }
                Ok(change)
            }
            Undo::Delete { version } => delete_policy(server, name, Some(version)).await,
            Undo::Scale { factor, left_ms } => {
                scale_policy(server, name, factor, left_ms.map(duration).as_deref()).await
            }
            Undo::Ban { left_ms } => {
                // RL.BAN never shortens a ban, so the present one is lifted first.
                let lifted = lift_ban(server, name).await?;
                let (change, _) = ban_key(server, name, &duration(left_ms)).await?;
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
    why: Note,
}

async fn undo(
    State(console): State<Arc<Console>>,
    Path(id): Path<String>,
    actor: Actor,
    Json(request): Json<UndoRequest>,
) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let row = changes::find(&server, &id).await?;
    let now = server_now_ms(&server).await;
    let undo = Undo::of(&row, now).map_err(|obstacle| Failure::BadRequest(obstacle.to_owned()))?;
    let name = text::to_bytes(row.change.key.as_deref().or(row.change.policy.as_deref()).unwrap_or_default());
    let present = match row.change.key {
        Some(_) => ban_of(&server, &name).await?,
        None => current(&server, &name).await?,
    };
    let undo = match undo.check(&row, present.as_ref(), now) {
        Ok(undo) => undo,
        Err(obstacle) => {
            return Err(match (&row.change.key, conflict(&server, &name).await) {
                (None, Ok(Failure::Conflict(_, present))) => Failure::Conflict(obstacle.to_owned(), present),
                _ => Failure::Conflict(obstacle.to_owned(), json!(present)),
            });
        }
    };
    let change = undo.run(&server, &name).await?;
    let summary = json!({ "what": change.what, "before": change.before, "after": change.after });
    Change { undoes: Some(row.id.clone()), ..change }.record(&server, &actor, request.why).await;
    Ok(Json(summary))
}
