use std::time::Duration;

/// What one report says of the path: taken whenever the highest packet number has risen.
///
/// Two samples of a session give the rate at which packets arrive, the share that does not, and the trend
/// of the one-way delay, whose clocks need not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSample {
    /// When the report came.
    pub now: Duration,
    /// The highest packet number that has arrived.
    pub number: u64,
    /// When that packet was sent.
    pub sent_at: Duration,
    /// When it arrived, in microseconds of the receiver's clock.
    pub received_us: u64,
    /// The round trip time by that packet, without the time that the receiver held the report.
    pub rtt: Duration,
    /// Packets that have arrived since the session began.
    pub packets: u64,
    /// Bytes of the datagrams that have arrived since the session began.
    pub bytes: u64,
    /// Packets that arrived marked with congestion experienced since the session began.
    pub marked: u64,
    /// Packets sent since the session began, up to that packet and with it.
    pub sent_packets: u64,
    /// Whether, when that packet was sent or since the one before it, there was less to send than the
    /// rate allows: arrivals say nothing of what the link can do then.
    pub app_limited: bool,
}
