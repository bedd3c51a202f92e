//! Conversion to qlog, for qvis and other tools: JSON text sequences (RFC 7464) of
//! draft-ietf-quic-qlog-main-schema-02 (`qlog_version` 0.3), with events of
//! draft-ietf-quic-qlog-quic-events-01 where these fit.
//!
//! Fields and frames specific to pepd start with `pepd_`; events specific to pepd have the category
//! `pepd`, `relay` or `booster`. Other tools ignore them.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::{Event, Frame, Metrics, Packet, Ranges, Taken};

/// The maximum of records for a run of losses; the last one states how many follow.
const LOSSES: u64 = 256;

/// The ASCII record separator, which precedes each record.
const SEPARATOR: u8 = 0x1e;

/// A writer of one trace.
#[derive(Debug)]
pub struct Writer {
    /// Start of the trace, by the clock of the traced object.
    origin: Duration,
    /// Time between the reference and the start.
    offset: Duration,
}

/// The first record of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Header<'a> {
    /// Title, for people.
    pub title: &'a str,
    /// Name of the program or end that was traced.
    pub vantage_point: &'a str,
    /// `true` for the end that opened the connection.
    pub is_client: bool,
    /// Time of the origin since the Unix epoch.
    pub reference: Duration,
}

impl Writer {
    /// Creates a writer whose times count from `origin`, by the clock of the traced object.
    pub fn new(origin: Duration) -> Self {
        let offset = Duration::ZERO;
        Self { origin, offset }
    }

    /// Creates a writer for the continuation of a sequence that began `offset` before.
    pub fn going_on(offset: Duration) -> Self {
        let origin = Duration::ZERO;
        Self { origin, offset }
    }

    /// Appends the header record.
    pub fn header(header: &Header<'_>, out: &mut Vec<u8>) {
        let Header {
            title,
            vantage_point,
            is_client,
            reference,
        } = *header;
        let kind = if is_client { "client" } else { "server" };
        let record = json!({
            "qlog_version": "0.3",
            "qlog_format": "JSON-SEQ",
            "title": title,
            "trace": {
                "vantage_point": { "name": vantage_point, "type": kind },
                "common_fields": {
                    "protocol_type": ["QUIC", "pepd"],
                    "time_format": "relative",
                    "reference_time": millis(reference),
                },
            },
        });
        record_of(&record, out);
    }

    /// Appends the records of all events taken from a trace.
    pub fn taken(&self, taken: &Taken, out: &mut Vec<u8>) {
        for (at, event) in &taken.events {
            self.event(*at, event, out);
        }
        if let (1.., Some((at, _))) = (taken.missed, taken.events.back()) {
            let missed = json!({ "events": taken.missed });
            self.record(*at, "pepd:events_missed", &missed, out);
        }
    }

    /// Appends the records of one event: several for losses, else one.
    pub fn event(&self, at: Duration, event: &Event, out: &mut Vec<u8>) {
        let (name, data) = match *event {
            Event::Sent(ref packet) => ("transport:packet_sent", packet_of(packet)),
            Event::Received(ref packet) => ("transport:packet_received", packet_of(packet)),
            Event::Lost {
                first,
                packets,
                cause,
            } => return self.lost(at, (first, packets), cause, out),
            Event::Metrics(ref metrics) => ("recovery:metrics_updated", metrics_of(metrics)),
            Event::Overhead {
                loss,
                link_loss,
                overhead,
            } => (
                "pepd:fec_updated",
                json!({ "loss": loss, "link_loss": link_loss, "overhead": overhead }),
            ),
            Event::Restored { segments } => {
                ("pepd:segments_restored", json!({ "segments": segments }))
            }
            Event::Session { begins: true } => ("pepd:session_began", json!({})),
            Event::Session { begins: false } => ("pepd:session_ended", json!({})),
            Event::Link { up } => ("pepd:link_updated", json!({ "up": up })),
            Event::Stream { stream, state } => (
                "transport:stream_state_updated",
                json!({ "stream_id": stream, "new": state }),
            ),
            Event::Relay {
                direction,
                step,
                bytes,
                held,
            } => {
                let data = json!({ "direction": direction, "bytes": bytes, "held": held });
                return self.record(at, &format!("relay:{step}"), &data, out);
            }
            Event::Booster {
                place,
                chain,
                booster,
                counter,
                by,
            } => {
                let data = json!({ "place": place, "chain": chain, "counter": counter, "by": by });
                return self.record(at, &format!("booster:{booster}"), &data, out);
            }
        };
        self.record(at, name, &data, out);
    }

    fn lost(&self, at: Duration, (first, packets): (u64, u64), cause: &str, out: &mut Vec<u8>) {
        let shown = packets.min(LOSSES);
        for index in 0..shown {
            let mut data = json!({
                "header": header_of(first.saturating_add(index)),
                "pepd_cause": cause,
            });
            if index + 1 == shown && packets > shown {
                data["pepd_further"] = json!(packets - shown);
            }
            self.record(at, "recovery:packet_lost", &data, out);
        }
    }

    /// Appends a record of any name.
    pub fn record(&self, at: Duration, name: &str, data: &Value, out: &mut Vec<u8>) {
        let time = millis((at + self.offset).saturating_sub(self.origin));
        let record = json!({ "time": time, "name": name, "data": data });
        record_of(&record, out);
    }
}

fn record_of(record: &Value, out: &mut Vec<u8>) {
    out.push(SEPARATOR);
    out.extend_from_slice(record.to_string().as_bytes());
    out.push(b'\n');
}

/// Converts to milliseconds, rounded to the microsecond.
fn millis(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Returns a packet header. All packets use the number space of QUIC's application data.
fn header_of(number: u64) -> Value {
    json!({ "packet_type": "1RTT", "packet_number": number })
}

fn packet_of(packet: &Packet) -> Value {
    let frames: Vec<_> = packet.frames.iter().map(frame_of).collect();
    let mut data = json!({
        "header": header_of(packet.number),
        "raw": { "length": packet.bytes },
    });
    if packet.marked {
        data["pepd_ecn"] = json!("CE");
    }
    data["frames"] = frames.into();
    data
}

fn frame_of(frame: &Frame) -> Value {
    match *frame {
        Frame::Padding { bytes } => json!({ "frame_type": "padding", "payload_length": bytes }),
        Frame::Probe => json!({ "frame_type": "ping" }),
        Frame::Report {
            ref packets,
            delay,
            marked,
            below,
            ref segments,
        } => json!({
            "frame_type": "ack",
            "ack_delay": millis(delay),
            "acked_ranges": ranges_of(packets),
            "ce": marked,
            "pepd_below": below,
            "pepd_segments": ranges_of(segments),
        }),
        Frame::MtuProbe { id } => json!({ "frame_type": "ping", "pepd_mtu_probe": id }),
        Frame::PathChallenge { token } => json!({
            "frame_type": "path_challenge",
            "data": format!("{token:016x}"),
        }),
        Frame::PathResponse { token } => json!({
            "frame_type": "path_response",
            "data": format!("{token:016x}"),
        }),
        Frame::Close { code, ref reason } => json!({
            "frame_type": "connection_close",
            "error_code": code,
            "reason": reason,
        }),
        Frame::Data {
            stream,
            offset,
            bytes,
            fin,
        } => json!({
            "frame_type": "stream",
            "stream_id": stream,
            "offset": offset,
            "length": bytes,
            "fin": fin,
        }),
        Frame::Reset { stream, code, size } => json!({
            "frame_type": "reset_stream",
            "stream_id": stream,
            "error_code": code,
            "final_size": size,
        }),
        Frame::Credit { stream, until } => json!({
            "frame_type": "max_stream_data",
            "stream_id": stream,
            "maximum": until,
        }),
        Frame::SessionCredit { until } => json!({ "frame_type": "max_data", "maximum": until }),
        Frame::Datagram { channel, bytes } => json!({
            "frame_type": "datagram",
            "length": bytes,
            "pepd_channel": channel,
        }),
        Frame::MtuAck { id } => own(0x05, "mtu_ack", json!({ "id": id })),
        Frame::Segment { number } => own(0x02, "segment", json!({ "number": number })),
        Frame::Source { channel } => own(0x0a, "source", json!({ "channel": channel })),
        Frame::Repair { channel, bytes } => own(
            0x0a,
            "repair",
            json!({ "channel": channel, "length": bytes }),
        ),
        Frame::Open { stream } => own(0x40, "open", json!({ "stream_id": stream })),
        Frame::Reclass { stream } => own(0x49, "reclass", json!({ "stream_id": stream })),
        Frame::Hold { stream, until } => own(
            0x4a,
            "hold",
            json!({ "stream_id": stream, "maximum": until }),
        ),
        Frame::Further { frames } => own(0xff, "further", json!({ "frames": frames })),
        Frame::Later { kind, bytes } => own(kind.into(), "later", json!({ "length": bytes })),
        Frame::Unreadable => own(0xff, "unreadable", json!({})),
    }
}

/// Returns a frame unknown to QUIC, by its type on the wire (docs/protocol.md) and its name.
fn own(kind: u64, name: &str, data: Value) -> Value {
    let mut frame = Map::new();
    frame.insert("frame_type".to_owned(), json!("unknown"));
    frame.insert("raw_frame_type".to_owned(), json!(kind));
    frame.insert("pepd_frame".to_owned(), json!(name));
    if let Value::Object(data) = data {
        frame.extend(data);
    }
    Value::Object(frame)
}

fn ranges_of(ranges: &Ranges) -> Value {
    ranges
        .iter()
        .map(|(first, last)| json!([first, last]))
        .collect()
}

fn metrics_of(metrics: &Metrics) -> Value {
    let Metrics {
        latest_rtt,
        smoothed_rtt,
        min_rtt,
        rtt_variance,
        pacing_rate,
        link_rate,
        congestion_window,
        bytes_in_flight,
    } = *metrics;
    let mut data = json!({
        "min_rtt": millis(min_rtt),
        "smoothed_rtt": millis(smoothed_rtt),
        "latest_rtt": millis(latest_rtt),
    });
    if let Some(variance) = rtt_variance {
        data["rtt_variance"] = json!(millis(variance));
    }
    let numbers = [
        ("congestion_window", congestion_window),
        ("bytes_in_flight", bytes_in_flight),
        ("pacing_rate", pacing_rate),
        ("pepd_link_rate", link_rate),
    ];
    for (key, number) in numbers {
        if let Some(number) = number {
            data[key] = json!(number);
        }
    }
    data
}
