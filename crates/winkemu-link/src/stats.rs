//! Counters of packets and of the causes of their loss.

use serde::{Deserialize, Serialize};

/// Cause of a packet's loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The queue was full.
    QueueFull,
    /// CoDel dropped it.
    CoDel,
    /// The link was down when the packet left the serialiser.
    Outage,
    /// The link went down while the packet was in flight, and `in-flight` is `drop`.
    OutageInFlight,
    /// Packet error ratio (`loss`).
    PacketLoss,
    /// Bit errors (`ber`).
    BitErrors,
    /// Gilbert-Elliott (`gilbert`).
    BurstLoss,
    /// Loss trace (`loss=@FILE`).
    LossTrace,
    /// More bytes were in flight than the emulator holds; see [`super::FLIGHT_BYTES_MAX`].
    PipeFull,
}

impl Cause {
    /// All causes, in the order a packet meets them.
    pub const ALL: [Self; 9] = [
        Self::QueueFull,
        Self::CoDel,
        Self::Outage,
        Self::OutageInFlight,
        Self::PacketLoss,
        Self::BitErrors,
        Self::BurstLoss,
        Self::LossTrace,
        Self::PipeFull,
    ];
}

/// Packets dropped, by cause.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// See [`Cause::QueueFull`].
    pub queue_full: u64,
    /// See [`Cause::CoDel`].
    pub codel: u64,
    /// See [`Cause::Outage`].
    pub outage: u64,
    /// See [`Cause::OutageInFlight`].
    pub outage_in_flight: u64,
    /// See [`Cause::PacketLoss`].
    pub packet_loss: u64,
    /// See [`Cause::BitErrors`].
    pub bit_errors: u64,
    /// See [`Cause::BurstLoss`].
    pub burst_loss: u64,
    /// See [`Cause::LossTrace`].
    pub loss_trace: u64,
    /// See [`Cause::PipeFull`].
    pub pipe_full: u64,
}

impl Drops {
    /// Counter of a cause.
    pub fn by_cause(&self, cause: Cause) -> u64 {
        let mut copy = *self;
        *copy.counter(cause)
    }

    /// Total over all causes.
    pub fn total(&self) -> u64 {
        Cause::ALL.iter().map(|cause| self.by_cause(*cause)).sum()
    }

    pub(crate) fn counter(&mut self, cause: Cause) -> &mut u64 {
        match cause {
            Cause::QueueFull => &mut self.queue_full,
            Cause::CoDel => &mut self.codel,
            Cause::Outage => &mut self.outage,
            Cause::OutageInFlight => &mut self.outage_in_flight,
            Cause::PacketLoss => &mut self.packet_loss,
            Cause::BitErrors => &mut self.bit_errors,
            Cause::BurstLoss => &mut self.burst_loss,
            Cause::LossTrace => &mut self.loss_trace,
            Cause::PipeFull => &mut self.pipe_full,
        }
    }
}

/// Counters of one direction. Always `offered + duplicated = delivered + dropped.total() + held`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStats {
    /// Packets offered.
    pub offered: u64,
    /// Bytes offered.
    pub offered_bytes: u64,
    /// Packets delivered, duplicates included.
    pub delivered: u64,
    /// Bytes delivered, duplicates included.
    pub delivered_bytes: u64,
    /// Duplicates made.
    pub duplicated: u64,
    /// Packets with a bit flipped.
    pub corrupted: u64,
    /// Packets lost, by cause.
    pub dropped: Drops,
    /// Packets queued, being sent, or in flight.
    pub held: u64,
    /// Maximum bytes ever queued.
    pub queue_bytes_peak: u64,
}
