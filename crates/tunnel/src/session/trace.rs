//! Trace events of a session: packets as on the wire, before the seal.

use std::time::Duration;

use fec::wire::Header;
use trace::{Event, Frame as Traced, Metrics, Packet, Ranges, Trace};

use super::{Event as Happened, Session};
use crate::{
    ecn::Ecn,
    wire::{DATAGRAM_OVERHEAD, Frame, Frames, Part, Parts, Report},
};

impl Session {
    /// Returns the trace of this session, off by default. Its clock is that of `now`.
    pub fn trace(&mut self) -> &mut Trace {
        &mut self.trace
    }

    pub(super) fn trace_sent(&mut self, number: u64, packet: &[u8], bytes: usize, ecn: Ecn) {
        self.trace
            .push(|| Event::Sent(packet_of(number, packet, bytes, ecn)));
    }

    pub(super) fn trace_received(&mut self, number: u64, packet: &[u8], datagram: usize, ecn: Ecn) {
        // Size on the link, as for sent packets.
        let bytes = datagram + self.config.overhead.saturating_sub(DATAGRAM_OVERHEAD);
        self.trace
            .push(|| Event::Received(packet_of(number, packet, bytes, ecn)));
    }

    pub(super) fn trace_event(&mut self, event: &Happened) {
        let (stream, state) = match *event {
            Happened::Opened { stream, .. } => (stream, "open"),
            Happened::Finished { stream } => (stream, "data_received"),
            Happened::Reset { stream, .. } => (stream, "reset_received"),
            Happened::Closed { stream } => (stream, "closed"),
            Happened::LinkDown => return self.trace.push(|| Event::Link { up: false }),
            Happened::LinkUp => return self.trace.push(|| Event::Link { up: true }),
            Happened::Readable { .. } | Happened::Acked { .. } | Happened::PeerClosed { .. } => {
                return;
            }
        };
        self.trace.push(|| Event::Stream { stream, state });
    }

    /// Traces a state of a stream that the local end has caused.
    pub(super) fn trace_stream(&mut self, stream: u64, state: &'static str) {
        self.trace.push(|| Event::Stream { stream, state });
    }

    /// Traces losses shown by a report, the path, and FEC overhead other than `overhead`.
    pub(super) fn trace_report(&mut self, overhead: f64) {
        if !self.trace.is_on() {
            return;
        }
        for loss in &self.losses {
            let first = self.skips.number(loss.first);
            self.trace.push(|| Event::Lost {
                first,
                packets: loss.packets,
                cause: loss.cause.as_str(),
            });
        }
        let path = self.path();
        let (latest_rtt, rtt_variance) =
            (self.delivery.latest_rtt(), self.delivery.rtt_variation());
        let in_flight = self.delivery.in_flight().bytes;
        self.trace.push(|| {
            Event::Metrics(Metrics {
                latest_rtt,
                smoothed_rtt: path.rtt,
                min_rtt: path.rtt_min,
                rtt_variance: Some(rtt_variance),
                pacing_rate: Some(path.rate),
                link_rate: Some(path.link_rate),
                congestion_window: None,
                bytes_in_flight: Some(in_flight),
            })
        });
        if path.fec_overhead != overhead {
            let link_loss = self.link_loss();
            self.trace.push(|| Event::Overhead {
                loss: path.loss,
                link_loss,
                overhead: path.fec_overhead,
            });
        }
    }
}

/// Maximum number of listed frames and parts per event: a peer may send a thousand empty ones.
const FRAMES_MAX: usize = 64;

fn packet_of(number: u64, packet: &[u8], bytes: usize, ecn: Ecn) -> Packet {
    let mut frames = Listed::default();
    for frame in Frames::new(packet) {
        match frame {
            Ok(frame) => frames.push_frame(&frame),
            Err(_) => frames.push(Traced::Unreadable),
        }
    }
    Packet {
        number,
        bytes: bytes as u64,
        marked: ecn == Ecn::Ce,
        frames: frames.0,
    }
}

/// Frames being listed.
#[derive(Default)]
struct Listed(Vec<Traced>);

impl Listed {
    fn push(&mut self, frame: Traced) {
        let is_full = self.0.len() >= FRAMES_MAX;
        match (self.0.last_mut(), &frame) {
            (Some(Traced::Padding { bytes }), Traced::Padding { .. }) => *bytes += 1,
            (Some(Traced::Further { frames }), _) => *frames += 1,
            _ if is_full => self.0.push(Traced::Further { frames: 1 }),
            _ => self.0.push(frame),
        }
    }

    fn push_segment(&mut self, number: u32, parts: &[u8]) {
        self.push(Traced::Segment { number });
        for part in Parts::new(parts) {
            self.push(part.map_or(Traced::Unreadable, |part| part_of(&part)));
        }
    }

    fn push_frame(&mut self, frame: &Frame<'_>) {
        let traced = match *frame {
            Frame::Padding => Traced::Padding { bytes: 1 },
            Frame::Probe => Traced::Probe,
            Frame::Report(ref report) => report_of(report),
            Frame::MtuProbe { id } => Traced::MtuProbe { id },
            Frame::MtuAck { id } => Traced::MtuAck { id },
            Frame::PathChallenge { token } => Traced::PathChallenge { token },
            Frame::PathResponse { token } => Traced::PathResponse { token },
            Frame::Close { code, reason } => Traced::Close {
                code: code as u8,
                reason: reason.to_owned(),
            },
            Frame::Segment { seq, parts } => return self.push_segment(seq, parts),
            Frame::Coded { channel, protected } => match Header::parse(protected) {
                Ok((header, content)) if header.is_data() => {
                    self.push(Traced::Source { channel });
                    // A single segment, as in `handle_content`.
                    match Frames::new(content).next() {
                        Some(Ok(Frame::Segment { seq, parts })) => {
                            return self.push_segment(seq, parts);
                        }
                        _ => Traced::Unreadable,
                    }
                }
                Ok(_) => Traced::Repair {
                    channel,
                    bytes: protected.len() as u64,
                },
                Err(_) => Traced::Unreadable,
            },
            Frame::Packet {
                channel, message, ..
            } => Traced::Datagram {
                channel,
                bytes: message.len() as u64,
            },
            Frame::Later { kind, content } => later(kind, content),
        };
        self.push(traced);
    }
}

fn later(kind: u8, content: &[u8]) -> Traced {
    Traced::Later {
        kind,
        bytes: content.len() as u64,
    }
}

fn part_of(part: &Part<'_>) -> Traced {
    match *part {
        Part::Open { stream, .. } => Traced::Open { stream },
        Part::Data {
            stream,
            from,
            bytes,
            fin,
        } => Traced::Data {
            stream,
            offset: from,
            bytes: bytes.len() as u64,
            fin,
        },
        Part::Reset { stream, code, sent } => Traced::Reset {
            stream,
            code: code as u8,
            size: sent,
        },
        Part::Credit { stream, until } => Traced::Credit { stream, until },
        Part::SessionCredit { until } => Traced::SessionCredit { until },
        Part::Reclass { stream, .. } => Traced::Reclass { stream },
        Part::Hold { stream, until } => Traced::Hold { stream, until },
        Part::Later { kind, content } => later(kind, content),
    }
}

/// Converts a report to a traced frame. Packets between two gaps have arrived. Below the report's
/// oldest gap, only the packet right before it is known to have arrived.
fn report_of(report: &Report) -> Traced {
    let mut packets = Ranges::new();
    if let Some(highest) = report.highest {
        let mut last = highest.number;
        for gap in report.gaps.iter().rev() {
            let first = gap.before.saturating_add(gap.missing).saturating_add(1);
            if first <= last {
                packets.push((first, last));
            }
            last = gap.before.min(last);
        }
        packets.push((last, last));
    }
    let delay = report.highest.map_or(0, |highest| highest.held_us);
    let segments = report.ranges.iter().rev();
    Traced::Report {
        packets,
        delay: Duration::from_micros(delay),
        marked: report.marked,
        below: report.below,
        segments: segments.map(|range| (range.start, range.end - 1)).collect(),
    }
}
