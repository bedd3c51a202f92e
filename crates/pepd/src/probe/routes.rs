//! `POST /v1/probe`: events (`progress`, finally `report` or `failed`) for as long as the client
//! listens.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    Extension, Json, Router,
    body::{Body, Bytes},
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
    routing::post,
};
use futures_util::stream;
use pep_core::config::Config;
use pepd_api::probe::{BYTES, Event, LASTING, Load, ProbeOrder, Progress};
use pepd_tunnel::probe::{Plan, ProbeError, ProbeEvent, Prober, Sample};
use tokio::sync::mpsc::Receiver;
use tunnel::class::Class;

use super::{Known, judge};
use crate::{admin::Place, observe::stream::event};

/// Maximum bytes of a request's body.
const BODY_MAX: usize = 1024;

#[derive(Debug)]
struct Subject {
    config: Arc<Config>,
    /// `None` without peers.
    prober: Option<Prober>,
}

/// Returns the routes for probes of the peers of this configuration.
pub fn router<S: Clone + Send + Sync + 'static>(
    config: &Arc<Config>,
    prober: Option<Prober>,
) -> Router<S> {
    let config = Arc::clone(config);
    Router::new()
        .route("/v1/probe", post(order))
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .with_state(Arc::new(Subject { config, prober }))
}

async fn order(
    State(subject): State<Arc<Subject>>,
    Extension(place): Extension<Place>,
    Json(order): Json<ProbeOrder>,
) -> Response {
    let begun = match begin(&subject, &order) {
        Ok(begun) => begun,
        Err((status, why)) => return (status, format!("{why}\n")).into_response(),
    };
    // Only one probe runs at a time.
    place.leave();
    let body = stream::unfold(Some(begun), |listening| async move {
        let mut listening = listening?;
        let (frame, goes_on) = listening.next().await;
        Some((
            Ok::<_, Infallible>(Bytes::from(frame)),
            goes_on.then_some(listening),
        ))
    });
    let kind = [(CONTENT_TYPE, "text/event-stream")];
    (kind, Body::from_stream(body)).into_response()
}

fn begin(subject: &Subject, order: &ProbeOrder) -> Result<Listening, (StatusCode, String)> {
    let wrong = |why: String| (StatusCode::BAD_REQUEST, why);
    let lasting = Duration::try_from_secs_f64(order.for_s).ok();
    let lasting = lasting.filter(|lasting| (LASTING.0..=LASTING.1).contains(lasting));
    let lasting = lasting.ok_or_else(|| wrong("`for_s` must be from 1 to 60".to_owned()))?;
    if !(BYTES.0..=BYTES.1).contains(&order.bytes) {
        return Err(wrong(format!(
            "`bytes` must be from {} to {}",
            BYTES.0, BYTES.1
        )));
    }
    let mut peers = subject.config.peers.iter().enumerate();
    let found = peers.find(|(_, peer)| peer.name == order.peer);
    let (Some((index, peer)), Some(prober)) = (found, &subject.prober) else {
        return Err(wrong(unknown(&subject.config, &order.peer)));
    };
    let plan = Plan {
        peer: index,
        lasting,
        bytes: order.bytes / 2,
        class: class(order.load),
    };
    let reported = prober.begin(plan).map_err(|err| {
        let status = match err {
            ProbeError::Busy => StatusCode::CONFLICT,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, format!("{}: {err}", order.peer))
    })?;
    Ok(Listening {
        known: Known {
            peer: peer.name.clone(),
            stated: peer.rate.map(units::Rate::bits_per_second),
        },
        reported,
        samples: Vec::new(),
        shown: 0,
    })
}

/// Returns the class of a probe's load.
const fn class(load: Load) -> Class {
    match load {
        Load::DelayTolerant => Class::DelayTolerant,
        Load::Bulk => Class::Bulk,
        Load::Normal => Class::Normal,
    }
}

fn unknown(config: &Config, name: &str) -> String {
    // The name is printed on a terminal.
    let name = name.escape_debug();
    let names: Vec<_> = config.peers.iter().map(|peer| peer.name.as_str()).collect();
    if names.is_empty() {
        return format!("no peer `{name}`: the configuration has no peers");
    }
    format!("no peer `{name}`; peers: {}", names.join(", "))
}

/// A listening client; dropping it ends the probe.
#[derive(Debug)]
struct Listening {
    known: Known,
    reported: Receiver<ProbeEvent>,
    samples: Vec<Sample>,
    /// Index of the last sample reported.
    shown: usize,
}

impl Listening {
    /// Returns the next event, and true if others follow.
    async fn next(&mut self) -> (String, bool) {
        loop {
            match self.reported.recv().await {
                Some(ProbeEvent::Sample(sample)) => {
                    self.samples.push(sample);
                    if let Some(progress) = self.progress() {
                        return (event("progress", &Event::Progress(progress)), true);
                    }
                }
                Some(ProbeEvent::Done) => {
                    let report = judge(&self.known, &self.samples);
                    return (event("report", &Event::Report(Box::new(report))), false);
                }
                Some(ProbeEvent::Failed(err)) => {
                    let why = format!("{}: {err}", self.known.peer);
                    return (event("failed", &Event::Failed(why)), false);
                }
                None => {
                    return (
                        event("failed", &Event::Failed("pepd is shutting down".to_owned())),
                        false,
                    );
                }
            }
        }
    }

    /// Returns progress with the first sample of each second.
    fn progress(&mut self) -> Option<Progress> {
        let now = self.samples.last()?;
        let then = self.samples.get(self.shown)?;
        let time = now.at.saturating_sub(then.at);
        if now.phase != then.phase {
            self.shown = self.samples.len() - 1;
            return None;
        }
        if now.at.as_secs() == then.at.as_secs() {
            return None;
        }
        self.shown = self.samples.len() - 1;
        let bytes = now.bytes.saturating_sub(then.bytes);
        Some(Progress {
            phase: now.phase,
            seconds: now.at.as_secs_f64(),
            bytes: now.bytes,
            rate: bytes as f64 * 8.0 / time.as_secs_f64(),
            rtt_s: now.rtt.as_secs_f64(),
        })
    }
}
