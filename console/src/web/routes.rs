//! Routes of the console: the page, and the API with access control.

use super::access::{Guard, guard_requests, is_read};
use super::failure::Failure;
use super::history::RecentHistory;
use super::problem::{self, Problem};
use super::tokens::User;
use super::{Console, assets, bans, gateways, key_search, keys, policies, top, undo, usage};
use axum::extract::{Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use axum::routing::get;
use axum::{Extension, Json, Router, middleware};
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Views of a console with a server.
pub const VIEWS: &[&str] = &["now", "policies", "key", "changes", "gateways", "playground", "replay"];

/// Returns all routes.
pub fn router(console: Console, guard: Guard) -> Router {
    let guard = Arc::new(guard);
    api(Arc::new(console))
        .layer(Extension(Arc::clone(&guard)))
        .fallback(assets::file)
        .layer(middleware::from_fn_with_state(guard, guard_requests))
}

fn api(console: Arc<Console>) -> Router {
    let forget = middleware::from_fn_with_state(Arc::clone(&console), forget_reads);
    Router::new()
        .route("/api/session", get(session))
        .route("/api/state", get(state))
        .route("/api/now", get(now))
        .route("/api/history", get(history))
        .route("/api/{*other}", get(not_found))
        .merge(policies::routes())
        .merge(keys::routes())
        .merge(undo::routes())
        .merge(bans::routes())
        .merge(key_search::routes())
        .merge(gateways::routes())
        .merge(top::routes())
        .layer(forget)
        .merge(usage::routes())
        .with_state(console)
        .merge(crate::playground::routes())
        .merge(crate::replay::routes())
}

async fn not_found() -> (StatusCode, Json<Value>) {
    (StatusCode::NOT_FOUND, Json(json!({ "error": "there is no such request" })))
}

/// Drops the reads that viewers share after each request that may have changed their results.
async fn forget_reads(State(console): State<Arc<Console>>, request: Request, next: Next) -> Response {
    let is_change = !is_read(request.method(), request.uri().path());
    let response = next.run(request).await;
    if is_change {
        console.policies.forget();
        console.top.forget();
        console.bans.forget();
    }
    response
}

/// Returns the role and the name of the client, and the views of the console.
async fn session(
    State(console): State<Arc<Console>>,
    Extension(guard): Extension<Arc<Guard>>,
    Extension(user): Extension<User>,
) -> Json<Value> {
    Json(json!({
        "role": user.role.word(),
        "user": user.name.as_deref(),
        "readonly": guard.is_read_only(),
        "server": console.upstream.as_ref().map(|upstream| upstream.address_text()),
        "views": console.views,
        "prometheus": console.prometheus.is_some(),
        "version": env!("CARGO_PKG_VERSION"),
    }))
}

/// Returns the address of the server, whether it can be reached, and the problems of servers and gateways, the worst
/// first.
async fn state(State(console): State<Arc<Console>>) -> Json<Value> {
    let server = console.upstream.as_ref().map(|upstream| upstream.address_text());
    let failure = match &console.sampler {
        Some(sampler) => sampler.check_reachable().await.err(),
        None => None,
    };
    let why = failure.as_ref().map(Failure::message);
    let mut problems = console.gateways.problems();
    problems.extend(console.sampler.iter().flat_map(|sampler| sampler.problems()));
    problem::sort(&mut problems);
    let problems: Vec<Value> = problems.iter().map(Problem::json).collect();
    Json(json!({ "server": server, "reachable": failure.is_none(), "why": why, "problems": problems }))
}

/// Query of `/api/now`: the time of the last sample that the client has.
#[derive(Deserialize)]
struct NowQuery {
    since: Option<u64>,
}

/// Query of `/api/history`: the number of minutes, at most those of a day, or of thirty days with Prometheus.
#[derive(Deserialize)]
struct HistoryQuery {
    minutes: u64,
}

async fn history(
    State(console): State<Arc<Console>>,
    Query(query): Query<HistoryQuery>,
) -> Result<Json<RecentHistory>, Failure> {
    let sampler = console.sampler.as_ref().ok_or_else(super::without_server)?;
    let history = sampler.history(query.minutes);
    Ok(Json(match &console.prometheus {
        Some(prometheus) => prometheus.extend(history, query.minutes).await,
        None => history,
    }))
}

async fn now(State(console): State<Arc<Console>>, Query(query): Query<NowQuery>) -> Result<Json<Value>, Failure> {
    let sampler = console.sampler.as_ref().ok_or_else(super::without_server)?;
    Ok(Json(sampler.now(query.since.unwrap_or_default()).await?))
}
