//! `GET /v1/config`, `PUT /v1/reload` and `PUT /v1/drain`.

use std::{path::PathBuf, process, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use serde::{Deserialize, Serialize};

use super::{Drain, DrainOrder, Reload, ReloadError};

/// Of a request.
const BODY_MAX: usize = 1024;

/// The body of `PUT /v1/reload`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadOrder {
    /// Only say what would change.
    pub dry_run: bool,
    /// Even where a peer goes that has flows.
    pub reset_flows: bool,
}

/// The configuration in use. Secrets are in files of their own, which it only names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningConfig {
    /// The process that carries flows.
    pub pid: u32,
    /// Where it was read.
    pub path: PathBuf,
    /// As it was read.
    pub text: String,
    /// A newer one could not be put in place, and this is the one before.
    pub reverted: bool,
}

/// Requests about the configuration, and the end.
pub fn router<S: Clone + Send + Sync + 'static>(
    reload: Arc<Reload>,
    drain: Arc<Drain>,
) -> Router<S> {
    let reload = Router::new()
        .route("/v1/config", get(show))
        .route("/v1/reload", put(order))
        .with_state(reload);
    let drain = Router::new()
        .route("/v1/drain", put(order_drain))
        .with_state(drain);
    reload.merge(drain).layer(DefaultBodyLimit::max(BODY_MAX))
}

async fn show(State(reload): State<Arc<Reload>>) -> Json<RunningConfig> {
    let source = reload.source();
    Json(RunningConfig {
        pid: process::id(),
        path: source.path.clone(),
        text: source.text.clone(),
        reverted: reload.is_reverted(),
    })
}

async fn order_drain(State(drain): State<Arc<Drain>>, Json(order): Json<DrainOrder>) -> Response {
    match drain.begin(order) {
        Ok(report) => Json(report).into_response(),
        Err(err) => (StatusCode::BAD_REQUEST, format!("{err}\n")).into_response(),
    }
}

async fn order(State(reload): State<Arc<Reload>>, Json(order): Json<ReloadOrder>) -> Response {
    match reload.run(order).await {
        Ok(report) => Json(report).into_response(),
        Err(err) => {
            let status = match err {
                ReloadError::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
                ReloadError::NotNow(_) => StatusCode::CONFLICT,
            };
            (status, format!("{err}\n")).into_response()
        }
    }
}
