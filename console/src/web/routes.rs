//! What the console answers: the page, and the API behind the guard.

use super::access::{Guard, guarded};
use super::tokens::Role;
use super::{Console, assets, keys, policies};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

use super::failure::Failure;

/// The views of a console with a server.
pub const VIEWS: &[&str] = &["now", "policies", "key", "playground", "replay"];

/// All routes.
pub fn router(console: Console, guard: Guard) -> Router {
    let guard = Arc::new(guard);
    api(Arc::new(console))
        .layer(Extension(Arc::clone(&guard)))
        .fallback(assets::file)
        .layer(middleware::from_fn_with_state(guard, guarded))
}

fn api(console: Arc<Console>) -> Router {
    Router::new()
        .route("/api/session", get(session))
        .route("/api/state", get(state))
        .route("/api/now", get(now))
        .route("/api/{*other}", get(nothing))
        .merge(policies::routes())
        .merge(keys::routes())
        .with_state(console)
        .merge(crate::playground::routes())
        .merge(crate::replay::routes())
}

async fn nothing() -> (StatusCode, Json<Value>) {
    (StatusCode::NOT_FOUND, Json(json!({ "error": "there is no such request" })))
}

/// The role of the client, and what the console can show.
async fn session(
    State(console): State<Arc<Console>>,
    Extension(guard): Extension<Arc<Guard>>,
    Extension(role): Extension<Role>,
) -> Json<Value> {
    Json(json!({
        "role": role.word(),
        "readonly": guard.is_read_only(),
        "server": console.upstream.as_ref().map(|upstream| upstream.told()),
        "views": console.views,
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

/// Whether the server is there.
async fn state(State(console): State<Arc<Console>>) -> Json<Value> {
    let told = console.upstream.as_ref().map(|upstream| upstream.told());
    let failure = match &console.live {
        Some(live) => live.reachable().await.err(),
        None => None,
    };
    let why = failure.as_ref().map(Failure::told);
    Json(json!({ "server": told, "reachable": failure.is_none(), "why": why }))
}

/// What somebody has already.
#[derive(Deserialize)]
struct Since {
    since: Option<u64>,
}

async fn now(State(console): State<Arc<Console>>, Query(has): Query<Since>) -> Result<Json<Value>, Failure> {
    let live = console.live.as_ref().ok_or_else(super::without_server)?;
    Ok(Json(live.now(has.since.unwrap_or_default()).await?))
}
