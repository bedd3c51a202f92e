//! `GET /v1/config`, `PUT /v1/reload` and `PUT /v1/drain`.

use std::{process, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::{get, put},
};
use pepd_api::change::{DrainOrder, ReloadOrder, RunningConfig};

use super::{Drain, Reload, ReloadError};

/// Maximum bytes of a request's body.
const BODY_MAX: usize = 1024;

/// Returns the routes for requests about the configuration and the drain.
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
