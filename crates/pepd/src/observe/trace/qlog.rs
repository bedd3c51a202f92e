//! Live qlog of flows and tunnels.
//!
//! ```text
//! samples of the flow, four a second -+
//! events of its relay (mode split) ---+--> records of one sequence, in order of arrival
//! events of its tunnel's session -----+
//! ```

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{
    Extension,
    body::Body,
    extract::{Path, Query, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use futures_util::{
    Stream, StreamExt as _,
    stream::{self, select},
};
use pep_core::{
    arena::{Kind, name_hash},
    relay::Side,
};
use pepd_api::{
    flows::LegStatus,
    trace::{TraceEvent, What},
};
use pepd_relay::flow::{Chunk, Recorded, Recorder, Recording, Watched};
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::OwnedSemaphorePermit,
    time::{Instant, timeout_at},
};
use trace::{
    Event, Metrics,
    qlog::{Header, Writer},
};

use super::{
    Observer,
    find::{self, Target},
    refuse,
    tracer::Tracer,
};
use crate::admin::{Lasting, Place, TRACES_MAX};

/// Time within which late events of a flow's end arrive.
const AFTERWARDS: Duration = Duration::from_millis(300);

/// Media type of draft-ietf-quic-qlog-main-schema, section "JSON Text Sequences".
const MEDIA_TYPE: &str = "application/qlog+json-seq";

/// Options of a request.
#[derive(Debug, Default, Deserialize)]
pub(in crate::observe) struct Options {
    /// Reference time of a sequence that this one continues, in milliseconds of Unix time.
    since: Option<f64>,
}

impl Options {
    /// Returns the reference time of the records, and the time since then.
    fn reference(&self) -> (Duration, Duration) {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let since = self
            .since
            .and_then(|since| Duration::try_from_secs_f64(since / 1e3).ok());
        let reference = since.filter(|since| *since <= now).unwrap_or(now);
        (reference, now - reference)
    }
}

/// An event from either source.
enum Item {
    Seen(TraceEvent),
    Traced(Chunk),
}

type Items = Pin<Box<dyn Stream<Item = Item> + Send>>;

/// A sequence of records in progress.
struct Sequence {
    items: Items,
    writer: Writer,
    began: Instant,
    /// Leg whose state represents the connection's: that over the link, of a flow without a tunnel.
    main: Option<Side>,
    /// Records written and not yet sent.
    out: Vec<u8>,
    stage: Stage,
    recorder: Arc<Recorder>,
    _permit: OwnedSemaphorePermit,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Running,
    /// Time until which events of the flow's end may arrive.
    Ending(Instant),
    Over,
}

/// Serves `GET /v1/flows/FLOW/qlog`.
pub(in crate::observe) async fn flow(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
    Query(options): Query<Options>,
    Extension(place): Extension<Place>,
) -> Response {
    let target = match find::find(&observer, &wanted) {
        Ok(target) => target,
        Err(err) => return refuse(&err),
    };
    let Some(permit) = place.last(Lasting::Trace) else {
        return too_many();
    };
    let identity = &target.identity;
    let (client, destination) = (identity.client, identity.destination);
    let title = format!("pepd: {client} -> {destination}");
    let what = match identity.kind {
        Kind::Split => Recorded::Flow(Watched::from(identity)),
        Kind::Near | Kind::Far => Recorded::Tunnel {
            peer: identity.peer,
            slot: Some(target.slot),
        },
    };
    let is_client = identity.kind != Kind::Far;
    let began = Instant::now();
    let recording = observer.context.recorders.record(what, began);
    let recorder = recording.recorder();
    let main = main_leg(&observer, &target);
    let tracer = Tracer::new(observer, target);
    let looks = stream::unfold(tracer, |mut tracer| async move {
        let seen = tracer.next().await?;
        Some((Item::Seen(seen), tracer))
    });
    let items = select(looks, traced(recording)).boxed();
    Sequence::begin(
        items,
        (&title, is_client),
        &options,
        (began, main),
        recorder,
        permit,
    )
}

/// Serves `GET /v1/peers/PEER/qlog`.
pub(in crate::observe) async fn peer(
    State(observer): State<Arc<Observer>>,
    Path(wanted): Path<String>,
    Query(options): Query<Options>,
    Extension(place): Extension<Place>,
) -> Response {
    let peers = &observer.config.peers;
    let Some(peer) = peers.iter().find(|peer| peer.name == wanted) else {
        let names: Vec<_> = peers.iter().map(|peer| peer.name.as_str()).collect();
        let known = if names.is_empty() {
            "the configuration has no `[peer.NAME]`".to_owned()
        } else {
            format!("peers: {}", names.join(", "))
        };
        let why = format!("no peer `{wanted}`; {known}\n");
        return (StatusCode::NOT_FOUND, why).into_response();
    };
    let Some(permit) = place.last(Lasting::Trace) else {
        return too_many();
    };
    let what = Recorded::Tunnel {
        peer: name_hash(&peer.name),
        slot: None,
    };
    let began = Instant::now();
    let recording = observer.context.recorders.record(what, began);
    let title = format!("pepd: tunnel with {}", peer.name);
    let recorder = recording.recorder();
    let items = traced(recording).boxed();
    Sequence::begin(
        items,
        (&title, true),
        &options,
        (began, None),
        recorder,
        permit,
    )
}

fn traced(recording: Recording) -> impl Stream<Item = Item> + Send {
    stream::unfold(recording, |mut recording| async move {
        let chunk = recording.next().await?;
        Some((Item::Traced(chunk), recording))
    })
}

fn too_many() -> Response {
    let why = format!("all {TRACES_MAX} traces are in use: end one\n");
    (StatusCode::SERVICE_UNAVAILABLE, why).into_response()
}

fn main_leg(observer: &Observer, target: &Target) -> Option<Side> {
    let identity = &target.identity;
    let is_split = identity.kind == Kind::Split;
    is_split.then(|| observer.link_side(identity.site))
}

impl Sequence {
    fn begin(
        items: Items,
        (title, is_client): (&str, bool),
        options: &Options,
        (began, main): (Instant, Option<Side>),
        recorder: Arc<Recorder>,
        permit: OwnedSemaphorePermit,
    ) -> Response {
        let mut out = Vec::new();
        let (reference, offset) = options.reference();
        let header = Header {
            title,
            vantage_point: "pepd",
            is_client,
            reference,
        };
        Writer::header(&header, &mut out);
        let sequence = Self {
            items,
            writer: Writer::going_on(offset),
            began,
            main,
            out,
            stage: Stage::Running,
            recorder,
            _permit: permit,
        };
        let body = stream::unfold(sequence, |mut sequence| async move {
            let records = sequence.next().await?;
            Some((Ok::<_, Infallible>(records), sequence))
        });
        ([(CONTENT_TYPE, MEDIA_TYPE)], Body::from_stream(body)).into_response()
    }

    /// Returns the next records; `None` after the end of the flow.
    async fn next(&mut self) -> Option<Vec<u8>> {
        while self.out.is_empty() {
            let item = match self.stage {
                Stage::Running => self.items.next().await,
                Stage::Ending(until) => timeout_at(until, self.items.next()).await.ok().flatten(),
                Stage::Over => return None,
            };
            match item {
                Some(Item::Seen(event)) => self.on_seen(&event.what),
                Some(Item::Traced(chunk)) => self.on_traced(&chunk),
                None => {
                    self.stage = Stage::Over;
                    self.miss(self.recorder.take_missed());
                }
            }
        }
        Some(std::mem::take(&mut self.out))
    }

    fn record(&mut self, name: &str, data: &serde_json::Value) {
        let at = self.began.elapsed();
        self.writer.record(at, name, data, &mut self.out);
    }

    fn on_traced(&mut self, chunk: &Chunk) {
        if let Some(stream) = chunk.stream {
            self.record("pepd:flow_stream", &json!({ "stream_id": stream }));
        }
        self.writer.taken(&chunk.taken, &mut self.out);
        if chunk.taken.events.is_empty() {
            self.miss(chunk.taken.missed);
        }
    }

    /// Records the number of missed events, which no other record reports.
    fn miss(&mut self, events: u64) {
        if events > 0 {
            self.record("pepd:events_missed", &json!({ "events": events }));
        }
    }

    fn on_seen(&mut self, what: &What) {
        match what {
            What::Flow(flow) => self.record("pepd:flow", &json!(flow)),
            What::Look(look) => {
                let legs = [&look.client_leg, &look.server_leg];
                for (side, leg) in Side::ALL.into_iter().zip(legs) {
                    if let Some(leg) = leg {
                        self.on_leg(side, leg);
                    }
                }
                let data = json!({ "state": look.state, "up": look.up, "down": look.down });
                self.record("pepd:flow_updated", &data);
            }
            What::Ended(end) => {
                self.record("pepd:flow_ended", &json!(end));
                self.stage = Stage::Ending(Instant::now() + AFTERWARDS);
            }
        }
    }

    fn on_leg(&mut self, side: Side, leg: &LegStatus) {
        if let (true, Some(metrics)) = (self.main == Some(side), metrics(leg)) {
            let at = self.began.elapsed();
            let event = Event::Metrics(metrics);
            self.writer.event(at, &event, &mut self.out);
        }
        let mut data = json!(leg);
        data["leg"] = json!(match side {
            Side::Client => "client",
            Side::Server => "server",
        });
        self.record("pepd:leg_updated", &data);
    }
}

/// Returns the kernel's state of a connection; `None` before its first round-trip measurement.
fn metrics(leg: &LegStatus) -> Option<Metrics> {
    let smoothed_rtt = Duration::try_from_secs_f64(leg.rtt_s?).ok()?;
    let minimum = leg
        .rtt_min_s
        .and_then(|minimum| Duration::try_from_secs_f64(minimum).ok());
    let mss = u64::from(leg.mss);
    Some(Metrics {
        latest_rtt: smoothed_rtt,
        smoothed_rtt,
        min_rtt: minimum.unwrap_or(smoothed_rtt),
        rtt_variance: None,
        pacing_rate: leg.pacing_rate,
        link_rate: leg.delivery_rate,
        congestion_window: Some(u64::from(leg.cwnd) * mss),
        bytes_in_flight: Some(u64::from(leg.in_flight) * mss),
    })
}
