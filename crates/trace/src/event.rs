//! Events, in the words of RFC 9000 and RFC 9002 where these have one.

use std::time::Duration;

/// Ranges of numbers, each from its first to its last, in falling order.
pub type Ranges = Vec<(u64, u64)>;

/// An event within a tunnel's session, a relay or a booster.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A packet of the tunnel left.
    Sent(Packet),
    /// A packet of the tunnel arrived for the first time.
    Received(Packet),
    /// Consecutive packets did not arrive.
    Lost {
        /// Number of the first of them.
        first: u64,
        /// Count of them.
        packets: u64,
        /// The cause: `link`, `congestion` or `outage`.
        cause: &'static str,
    },
    /// The state of congestion control after a report of the peer.
    Metrics(Metrics),
    /// FEC overhead was set anew, or the loss behind it.
    Overhead {
        /// Share of packets that are lost, 0 to 1.
        loss: f64,
        /// Share of packets that the link itself loses, 0 to 1: congestion is left out.
        link_loss: f64,
        /// Repair packets for each packet of normal streams.
        overhead: f64,
    },
    /// FEC restored segments that were lost.
    Restored {
        /// Count of segments.
        segments: u64,
    },
    /// An outage began or ended.
    Link {
        /// `true` at the end of an outage.
        up: bool,
    },
    /// A session began, or ended. Packet numbers and streams of the next one restart.
    Session {
        /// `true` at the begin.
        begins: bool,
    },
    /// A stream changed its state.
    Stream {
        /// Number of the stream.
        stream: u64,
        /// A state of qlog's `stream_state_updated`: `open`, `closed`, `reset_received` and so on.
        state: &'static str,
    },
    /// A flow's relay moved bytes, or came upon something that holds it up.
    Relay {
        /// `up`, from client to server, or `down`.
        direction: &'static str,
        /// Step of the relay, such as `received`, `sent`, `send_blocked`.
        step: &'static str,
        /// Bytes that it moved, or the new size of the ring where that has grown.
        bytes: u64,
        /// Bytes in the ring afterwards.
        held: u64,
    },
    /// A booster counted something that it did to packets.
    Booster {
        /// `sender` for a chain of this end, `receiver` for what unwraps a chain of the peer's.
        place: &'static str,
        /// Number of the chain.
        chain: u64,
        /// Name of the booster, as in the configuration.
        booster: &'static str,
        /// The counter, as `pepd status --json` names it.
        counter: &'static str,
        /// By how much it has grown.
        by: u64,
    },
}

/// A packet of a tunnel.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// Packet number.
    pub number: u64,
    /// Bytes on the link, headers of IP and UDP included for those sent; of the datagram for those
    /// received.
    pub bytes: u64,
    /// `true` with the congestion mark CE (RFC 3168).
    pub marked: bool,
    /// Frames of the packet. Those of a segment follow [`Frame::Segment`].
    pub frames: Vec<Frame>,
}

/// A frame of a packet, or a part of a segment.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Padding.
    Padding {
        /// Bytes of it.
        bytes: u64,
    },
    /// A request for a report.
    Probe,
    /// A report of what has arrived.
    Report {
        /// Packet numbers that have arrived, the newest ones as far as the report tells of them.
        packets: Ranges,
        /// Time between the arrival of the highest and the report.
        delay: Duration,
        /// Packets that arrived with the mark CE since the session began.
        marked: u64,
        /// All segments below this number have arrived.
        below: u64,
        /// Segments beyond that have arrived.
        segments: Ranges,
    },
    /// A packet as long as the path may carry (RFC 8899).
    MtuProbe {
        /// Identifier of the probe.
        id: u16,
    },
    /// The answer to that.
    MtuAck {
        /// Identifier of the probe.
        id: u16,
    },
    /// The session's end.
    Close {
        /// The code on the wire.
        code: u8,
        /// The reason, for people.
        reason: String,
    },
    /// The beginning of a segment: what follows is retransmitted until it is acknowledged.
    Segment {
        /// The low 32 bits of its number.
        number: u32,
    },
    /// A segment protected by FEC, as it was sent first.
    Source {
        /// The channel of FEC: 0 for interactive, 1 for normal streams.
        channel: u8,
    },
    /// A repair packet.
    Repair {
        /// The channel of FEC.
        channel: u8,
        /// Bytes of the symbol and its header.
        bytes: u64,
    },
    /// A stream's opening.
    Open {
        /// Number of the stream.
        stream: u64,
    },
    /// Bytes of a stream.
    Data {
        /// The stream's number.
        stream: u64,
        /// Position of the first byte.
        offset: u64,
        /// Count of bytes.
        bytes: u64,
        /// `true` where the stream ends after them.
        fin: bool,
    },
    /// A stream's end in both directions at once.
    Reset {
        /// Number of the stream.
        stream: u64,
        /// The code on the wire.
        code: u8,
        /// Bytes that were sent of it.
        size: u64,
    },
    /// Credit for a stream.
    Credit {
        /// Number of the stream.
        stream: u64,
        /// The first position that may not be sent.
        until: u64,
    },
    /// Credit for all streams together.
    SessionCredit {
        /// Bytes that may be sent since the session began.
        until: u64,
    },
    /// Another class for a stream.
    Reclass {
        /// Number of the stream.
        stream: u64,
    },
    /// A packet of a host, which is sent once (a datagram of RFC 9221).
    Datagram {
        /// Channel of the datagram.
        channel: u8,
        /// Count of bytes.
        bytes: u64,
    },
    /// Frames that are not listed, after as many as an event holds.
    Further {
        /// Count of them.
        frames: u64,
    },
    /// Bytes that make no frame.
    Unreadable,
}

/// Measurements of a path (RFC 9002 §5, appendix A.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Latest round trip.
    pub latest_rtt: Duration,
    /// Smoothed round trip.
    pub smoothed_rtt: Duration,
    /// Minimum round trip.
    pub min_rtt: Duration,
    /// Variation of the round trip; `None` where it is not measured.
    pub rtt_variance: Option<Duration>,
    /// Rate at which packets leave, in bits a second; `None` while they are not paced.
    pub pacing_rate: Option<u64>,
    /// Rate that the link is taken to carry, in bits a second.
    pub link_rate: Option<u64>,
    /// Bytes that may be in flight; `None` where a rate decides alone.
    pub congestion_window: Option<u64>,
    /// Bytes sent and neither acknowledged nor lost; `None` where they are not counted.
    pub bytes_in_flight: Option<u64>,
}

impl Event {
    /// Room that it takes, in pieces of some hundred bytes.
    pub fn weight(&self) -> usize {
        let (Self::Sent(packet) | Self::Received(packet)) = self else {
            return 1;
        };
        let frames = packet.frames.iter().map(|frame| match frame {
            Frame::Report {
                packets, segments, ..
            } => 1 + (packets.len() + segments.len()) / 4,
            Frame::Close { reason, .. } => 1 + reason.len() / 64,
            _ => 1,
        });
        1 + frames.sum::<usize>()
    }
}
