//! Route of the most denied keys, and their denials of each recent minute. All viewers share what is read.

use super::Console;
use super::denied_minutes::{self, DeniedMinutes, MAX_MINUTES, READ_KEYS};
use super::failure::Failure;
use super::most_denied::{DeniedId, DeniedKey, most_denied};
use super::shared_reads::SharedReads;
use super::text;
use super::upstream::Server;
use axum::extract::{Query, State};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value as JsonValue, json};
use std::collections::HashMap;
use std::sync::Arc;

/// Time for which viewers share a reply, in milliseconds: the interval at which the page reads it.
const LIFETIME: u64 = 2000;

/// Returns the routes.
pub fn routes() -> Router<Arc<Console>> {
    Router::new().route("/api/top", get(top))
}

/// Most denied keys that viewers share.
#[derive(Default)]
pub struct TopReads {
    /// Lists, by the duration and the number of keys.
    lists: SharedReads<(Option<String>, usize), Vec<DeniedKey>>,
    /// Denials by key of each minute, by the number of minutes.
    series: SharedReads<u16, Vec<HashMap<DeniedId, i64>>>,
    minutes: DeniedMinutes,
}

impl TopReads {
    /// Returns the most denied keys of all primaries.
    ///
    /// # Errors
    /// Returns the errors of [`most_denied`].
    pub async fn list(
        &self,
        server: &Server,
        since: Option<&str>,
        count: usize,
    ) -> Result<Arc<Vec<DeniedKey>>, Failure> {
        let key = (since.map(str::to_owned), count);
        self.lists.get(key, LIFETIME, most_denied(server, since, count)).await
    }

    /// Returns the denials by key of each of the last minutes, oldest first. The last one is the running minute.
    ///
    /// # Errors
    /// Returns the errors of [`most_denied`].
    async fn by_minute(
        &self,
        server: &Server,
        minutes: u16,
        count: usize,
    ) -> Result<Arc<Vec<HashMap<DeniedId, i64>>>, Failure> {
        if count > READ_KEYS {
            return denied_minutes::read_all(server, minutes, count).await.map(Arc::new);
        }
        self.series.get(minutes, LIFETIME, self.minutes.read(server, minutes)).await
    }

    /// Drops what viewers share, except for complete minutes.
    pub fn forget(&self) {
        self.lists.forget();
        self.series.forget();
    }

    /// Returns the keys that were denied most in the last complete minute as JSON.
    ///
    /// # Errors
    /// Returns the errors of [`most_denied`].
    pub async fn of_last_minute(&self, server: &Server, count: usize) -> Result<Vec<JsonValue>, Failure> {
        let minutes = self.by_minute(server, 2, READ_KEYS).await?;
        let Some(counts) = minutes.first() else { return Ok(vec![]) };
        let rows = self.list(server, Some("2m"), READ_KEYS).await?;
        let denied = |row: &DeniedKey| counts.get(&row.id()).copied().filter(|denied| *denied > 0);
        let mut rows: Vec<(i64, &DeniedKey)> = rows.iter().filter_map(|row| Some((denied(row)?, row))).collect();
        rows.sort_by_key(|(denied, _)| std::cmp::Reverse(*denied));
        let key_json = |(denied, row): (i64, &DeniedKey)| {
            json!({
                "key": text::from_bytes(&row.key), "denied": denied,
                "policy": row.policy.as_deref().map(text::from_bytes),
                "item": row.item.as_deref().map(text::from_bytes),
            })
        };
        Ok(rows.into_iter().take(count).map(key_json).collect())
    }
}

/// Query of `/api/top`. With `minutes`, each key has its denials in each of that many last minutes.
#[derive(Deserialize)]
struct TopQuery {
    since: Option<String>,
    count: Option<u16>,
    minutes: Option<u16>,
}

async fn top(State(console): State<Arc<Console>>, Query(query): Query<TopQuery>) -> Result<Json<JsonValue>, Failure> {
    let server = console.upstream()?.server().await?;
    let count = usize::from(query.count.unwrap_or(20).clamp(1, 1000));
    let denied = console.top.list(&server, query.since.as_deref(), count).await?;
    let minutes = match query.minutes {
        Some(minutes) => Some(console.top.by_minute(&server, minutes.clamp(1, MAX_MINUTES), count).await?),
        None => None,
    };
    let rows = denied.iter().take(count).map(|row| {
        let mut row_json = json!({
            "key": text::from_bytes(&row.key), "denied": row.count, "error": row.error,
            "policy": row.policy.as_deref().map(text::from_bytes), "item": row.item.as_deref().map(text::from_bytes),
            "node": row.node,
        });
        if let (Some(minutes), Some(fields)) = (&minutes, row_json.as_object_mut()) {
            let denied = minutes.iter().map(|minute| minute.get(&row.id()).copied().unwrap_or_default());
            fields.insert("minutes".to_owned(), denied.collect());
        }
        row_json
    });
    Ok(Json(rows.collect()))
}
