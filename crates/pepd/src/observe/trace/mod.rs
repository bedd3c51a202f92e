//! Trace of one flow, sampled four times a second while an operator watches: progress, state of its
//! legs, causes of waiting, and its end. Without a watcher nothing is sampled.
//!
//! - `find`: search for the flow; `qlog`: the same and more as qlog
//! - `tracer`: samples
//! - `waits`: causes for which a direction waits

mod find;
pub(super) mod qlog;
mod tracer;
mod waits;

use std::{convert::Infallible, sync::Arc};

use axum::{
    Extension, Json,
    body::Body,
    extract::{Path, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use futures_util::stream;
use pepd_api::trace::What;

use super::{Observer, stream::event};
use crate::admin::{Lasting, Place, TRACES_MAX};
use find::FindError;
use tracer::Tracer;

/// Serves `GET /v1/flows/FLOW`.
pub(super) async fn show_flow(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
) -> Response {
    let found = observer.search(move |here| {
        let target = find::find(here, &wanted)?;
        let flow = here.flow(target.slot);
        flow.ok_or(FindError::Unknown(wanted))
    });
    match found.await {
        Ok(Ok(flow)) => Json(flow).into_response(),
        Ok(Err(err)) => refuse(&err),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{err}\n")).into_response(),
    }
}

/// Serves `GET /v1/flows/FLOW/trace`: the current state, then changes, then the end.
pub(super) async fn show(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
    Extension(place): Extension<Place>,
) -> Response {
    let target = match find::find(&observer, &wanted) {
        Ok(target) => target,
        Err(err) => return refuse(&err),
    };
    let Some(permit) = place.last(Lasting::Trace) else {
        let why =
            format!("all {TRACES_MAX} traces are in use: end one, or query /v1/flows/{wanted}\n");
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    };
    let traced = (Tracer::new(observer, target), permit);
    let body = stream::unfold(traced, |(mut tracer, permit)| async move {
        let reported = tracer.next().await?;
        let name = match reported.what {
            What::Flow(_) => "flow",
            What::Look(_) => "look",
            What::Ended(_) => "ended",
        };
        Some((
            Ok::<_, Infallible>(event(name, &reported)),
            (tracer, permit),
        ))
    });
    let kind = [(CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(body)).into_response()
}

fn refuse(err: &FindError) -> Response {
    let status = match err {
        FindError::Unknown(_) => StatusCode::NOT_FOUND,
        FindError::Several(..) => StatusCode::CONFLICT,
    };
    (status, format!("{err}\n")).into_response()
}
