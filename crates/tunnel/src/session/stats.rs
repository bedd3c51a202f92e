//! What a session has done.

use std::time::Duration;

use crate::{outage::State, rate::Found};

/// How things are on the path to the peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathState {
    /// How fast we send, in bits a second.
    pub rate: u64,
    /// What the link is thought to carry for us, in bits a second.
    pub link_rate: u64,
    /// The stated rate, in bits a second, if there is one.
    pub stated: Option<u64>,
    /// The truth of that, where the link is measured below it.
    pub found: Option<Found>,
    /// The round trip time, smoothed.
    pub rtt: Duration,
    /// The least round trip time of late.
    pub rtt_min: Duration,
    /// The share of our packets that the link loses, 0 to 1.
    pub loss: f64,
    /// Repair packets per packet of normal streams.
    pub fec_overhead: f64,
    /// The longest packet, in bytes of plain text.
    pub packet: usize,
    /// Whether the link is there.
    pub link: State,
}

/// Counts since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionStats {
    /// Packets sent, of all kinds.
    pub packets_sent: u64,
    /// What they took on the link, in bytes.
    pub bytes_sent: u64,
    /// Reports among them.
    pub reports_sent: u64,
    /// Repair packets among them.
    pub repairs_sent: u64,
    /// Segments that were lost and went again.
    pub segments_retransmitted: u64,
    /// Segments that went again into silence.
    pub segments_repeated: u64,
    /// Packets sent that carry one beside streams.
    pub messages_sent: u64,
    /// Packets received, of all kinds.
    pub packets_received: u64,
    /// Packets received that carry one beside streams, and handed on.
    pub messages_received: u64,
    /// The same, but not taken, as we have not said that we would.
    pub messages_ignored: u64,
    /// Segments received more than once.
    pub segments_doubled: u64,
    /// Segments restored by overcode.
    pub segments_restored: u64,
    /// Segments not taken, as they came before the opening of their stream and there was no room to
    /// hold them.
    pub segments_not_held: u64,
    /// Times that nothing came from the peer for long.
    pub outages: u64,
}

/// What one needs to know who looks at the path for a while, as [`Session::measures`](super::Session::measures) has it. Each of the counts has
/// packets that were looked for, those of them that did not arrive, and bursts of these, since the session began; what outages
/// have taken is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measures {
    /// The last round trip time alone.
    pub rtt: Duration,
    /// Of our packets, as far as the peer has said.
    pub sent: [u64; 3],
    /// Of the peer's.
    pub received: [u64; 3],
}
