//! Trace events, named as in RFC 9000 and RFC 9002 where possible.

use std::time::Duration;

/// Ranges of numbers, each from first to last inclusive, in descending order.
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
    /// The FEC overhead changed, or the loss estimate behind it.
    Overhead {
        /// Estimated share of lost packets, 0 to 1.
        loss: f64,
        /// Estimated share of packets lost on the link, without congestion, 0 to 1.
        link_loss: f64,
        /// Repair packets per packet of normal streams.
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
    /// A session began, or ended. Packet numbers and stream numbers restart with the next one.
    Session {
        /// `true` at the beginning.
        begins: bool,
    },
    /// A stream changed state.
    Stream {
        /// Number of the stream.
        stream: u64,
        /// A state of qlog's `stream_state_updated`: `open`, `closed`, `reset_received` and so on.
        state: &'static str,
    },
    /// A relay moved bytes, or was blocked.
    Relay {
        /// `up`, from client to server, or `down`.
        direction: &'static str,
        /// Step of the relay, such as `received`, `sent`, `send_blocked`.
        step: &'static str,
        /// Bytes moved, or the new size of the ring where that has grown.
        bytes: u64,
        /// Bytes in the ring after the step.
        held: u64,
    },
    /// A booster's counter increased.
    Booster {
        /// `sender` for a local chain, `receiver` for the decoder of the peer's chain.
        place: &'static str,
        /// Number of the chain.
        chain: u64,
        /// Name of the booster, as in the configuration.
        booster: &'static str,
        /// The counter, as `pepd status --json` names it.
        counter: &'static str,
        /// The increase.
        by: u64,
    },
}

/// A packet of a tunnel.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// Packet number.
    pub number: u64,
    /// Bytes on the link: with headers of IP and UDP for sent packets, of the datagram for received
    /// ones.
    pub bytes: u64,
    /// `true` if the packet carries the ECN mark CE (RFC 3168).
    pub marked: bool,
    /// Frames of the packet. Frames of a segment follow [`Frame::Segment`].
    pub frames: Vec<Frame>,
}

/// A frame of a packet, or of a segment.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// Padding.
    Padding {
        /// Bytes of padding.
        bytes: u64,
    },
    /// A request for a report.
    Probe,
    /// A report of received packets.
    Report {
        /// Numbers of received packets, the newest ones as far as the report lists them.
        packets: Ranges,
        /// Time between the arrival of the highest and the report.
        delay: Duration,
        /// Packets received with the mark CE since the session began.
        marked: u64,
        /// All segments below this number were received.
        below: u64,
        /// Segments received beyond `below`.
        segments: Ranges,
    },
    /// A path MTU probe (RFC 8899).
    MtuProbe {
        /// Identifier of the probe.
        id: u16,
    },
    /// The answer to an MTU probe.
    MtuAck {
        /// Identifier of the probe.
        id: u16,
    },
    /// A challenge of the peer's address (RFC 9000, section 8.2).
    PathChallenge {
        /// Token to be answered.
        token: u64,
    },
    /// The answer to a challenge.
    PathResponse {
        /// Token of the challenge.
        token: u64,
    },
    /// A close of the session.
    Close {
        /// The code on the wire.
        code: u8,
        /// The reason, for people.
        reason: String,
    },
    /// A segment, with its content in the frames that follow; retransmitted until acknowledged.
    Segment {
        /// The low 32 bits of its number.
        number: u32,
    },
    /// A segment protected by FEC, in its first transmission.
    Source {
        /// The FEC channel: 0 for interactive, 1 for normal streams.
        channel: u8,
    },
    /// A repair packet.
    Repair {
        /// The FEC channel.
        channel: u8,
        /// Bytes of the symbol and its header.
        bytes: u64,
    },
    /// A new stream.
    Open {
        /// Number of the stream.
        stream: u64,
    },
    /// Bytes of a stream.
    Data {
        /// The stream's number.
        stream: u64,
        /// Offset of the first byte.
        offset: u64,
        /// Count of bytes.
        bytes: u64,
        /// `true` if the data ends the stream.
        fin: bool,
    },
    /// A reset of a stream, which ends both directions.
    Reset {
        /// Number of the stream.
        stream: u64,
        /// The code on the wire.
        code: u8,
        /// Bytes sent on the stream.
        size: u64,
    },
    /// Flow control credit of a stream.
    Credit {
        /// Number of the stream.
        stream: u64,
        /// The first offset beyond the credit.
        until: u64,
    },
    /// Flow control credit of the session.
    SessionCredit {
        /// Bytes that may be sent since the session began.
        until: u64,
    },
    /// A request to send no further bytes of a stream until there is more credit.
    Hold {
        /// Number of the stream.
        stream: u64,
        /// Position of the credit that the peer has.
        until: u64,
    },
    /// A change of a stream's class.
    Reclass {
        /// Number of the stream.
        stream: u64,
    },
    /// A datagram (RFC 9221) with a packet of a host; sent once.
    Datagram {
        /// Channel of the datagram.
        channel: u8,
        /// Count of bytes.
        bytes: u64,
    },
    /// Frames beyond the maximum that an event lists.
    Further {
        /// Count of them.
        frames: u64,
    },
    /// A frame or part of a later version.
    Later {
        /// Type on the wire.
        kind: u8,
        /// Bytes of its content.
        bytes: u64,
    },
    /// Bytes that are no valid frame.
    Unreadable,
}

/// Measurements of a path (RFC 9002 §5, appendix A.3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metrics {
    /// Latest round-trip time.
    pub latest_rtt: Duration,
    /// Smoothed round-trip time.
    pub smoothed_rtt: Duration,
    /// Minimum round-trip time.
    pub min_rtt: Duration,
    /// Variation of the round-trip time; `None` where it is not measured.
    pub rtt_variance: Option<Duration>,
    /// Pacing rate in bits per second; `None` without pacing.
    pub pacing_rate: Option<u64>,
    /// Estimated capacity of the link in bits per second.
    pub link_rate: Option<u64>,
    /// Congestion window in bytes; `None` where only a rate limits.
    pub congestion_window: Option<u64>,
    /// Bytes in flight; `None` where they are not counted.
    pub bytes_in_flight: Option<u64>,
}

impl Event {
    /// Returns the memory use of the event, in units of some hundred bytes.
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
