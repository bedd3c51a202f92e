use std::time::Duration;

/// Path sample from one report, taken when the highest packet number has risen.
///
/// Two samples of a session give the arrival rate, the loss rate, and the trend of the one-way
/// delay, for which the clocks need not agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathSample {
    /// Arrival time of the report.
    pub now: Duration,
    /// Highest packet number that has arrived.
    pub number: u64,
    /// Send time of that packet.
    pub sent_at: Duration,
    /// Arrival time of that packet, in microseconds of the receiver's clock.
    pub received_us: u64,
    /// Round trip time of that packet, without the time for which the receiver held the report.
    pub rtt: Duration,
    /// Packets that have arrived since the session began.
    pub packets: u64,
    /// Bytes of datagrams that have arrived since the session began.
    pub bytes: u64,
    /// Packets that arrived marked with congestion experienced since the session began.
    pub marked: u64,
    /// Packets sent since the session began, up to and including that packet.
    pub sent_packets: u64,
    /// True if the sender was application-limited when that packet was sent, or since the previous
    /// one: arrivals then do not measure the link's capacity.
    pub app_limited: bool,
}
