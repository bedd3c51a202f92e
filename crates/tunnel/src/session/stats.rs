//! Counters and measurements of a session.

use std::time::Duration;

use crate::{outage::State, rate::Found};

/// State of the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathState {
    /// Current sending rate, in bits per second.
    pub rate: u64,
    /// Estimated capacity of the link for this session, in bits per second.
    pub link_rate: u64,
    /// Stated rate in bits per second, if any.
    pub stated: Option<u64>,
    /// Measured rate, if the link is slower than stated.
    pub found: Option<Found>,
    /// Smoothed round trip time.
    pub rtt: Duration,
    /// Recent minimum round trip time.
    pub rtt_min: Duration,
    /// Share of sent packets that are lost, 0 to 1.
    pub loss: f64,
    /// Repair packets per packet of normal streams.
    pub fec_overhead: f64,
    /// Maximum packet, in bytes of plain text.
    pub packet: usize,
    /// State of the link.
    pub link: State,
}

/// Counters since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Packets sent, of all kinds.
    pub packets_sent: u64,
    /// Bytes sent on the link.
    pub bytes_sent: u64,
    /// Reports sent.
    pub reports_sent: u64,
    /// Repair packets sent.
    pub repairs_sent: u64,
    /// Lost segments retransmitted.
    pub segments_retransmitted: u64,
    /// Segments repeated during silences, and copies of retransmissions.
    pub segments_repeated: u64,
    /// Packets sent with a datagram.
    pub messages_sent: u64,
    /// Packets received, of all kinds.
    pub packets_received: u64,
    /// Packets received with a datagram, and delivered.
    pub messages_received: u64,
    /// Packets received with a datagram, and dropped as the local end does not accept datagrams.
    pub messages_ignored: u64,
    /// Segments received more than once.
    pub segments_doubled: u64,
    /// Segments restored by FEC.
    pub segments_restored: u64,
    /// Segments dropped for lack of room, which the peer retransmits. They need room for parts that
    /// came before the opening of their stream, bytes beyond missing ones, answers, and events.
    pub segments_not_held: u64,
    /// Parts handled, those that waited for the opening of their stream once.
    pub parts_handled: u64,
    /// Streams woken by credit of the session for which they had waited.
    pub streams_woken: u64,
    /// Outages: nothing came from the peer for long.
    pub outages: u64,
}

/// Measurements for an observer of the path, from [`Session::measures`](super::Session::measures).
/// Each count has the packets examined, the lost ones, and loss bursts, since the session began,
/// outages excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// Last RTT sample.
    pub rtt: Duration,
    /// Counts of sent packets, as reported by the peer.
    pub sent: [u64; 3],
    /// Counts of received packets.
    pub received: [u64; 3],
}
