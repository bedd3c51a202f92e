//! Choices of keys of a site.

use std::time::Duration;

use units::{ByteSize, Rate};

use super::{headers::Dscp, names::CongestionName};
use crate::reading::{
    values::{BitRate, Map, Reading, Size, Span, WordOr, text},
    words,
};

words! {
    /// Mode of a site.
    pub enum Mode {
        /// Two legs of kernel TCP, joined by pepd.
        Split = "split",
        /// In a tunnel to the site's peer; split, held or bypassed while the peer is down.
        Tunnel = "tunnel",
        /// Packet by packet to the site's peer, in a tunnel, with boosters.
        Packet = "packet",
        /// Packet by packet through boosters that need no peer, then as the kernel would forward
        /// them.
        Boost = "boost",
        /// Bypassed: the kernel forwards the packets.
        Bypass = "bypass",
        /// Rejected by ICMP.
        Block = "block",
    }
}

impl Mode {
    /// Reports whether pepd takes flows of such a site.
    pub const fn takes_flows(self) -> bool {
        matches!(self, Self::Split | Self::Tunnel)
    }

    /// Reports whether the site handles packets of protocols other than TCP.
    pub const fn takes_packets(self) -> bool {
        matches!(self, Self::Packet | Self::Boost | Self::Block)
    }

    /// Reports whether packets of the site pass boosters.
    pub const fn boosts(self) -> bool {
        matches!(self, Self::Packet | Self::Boost)
    }
}

words! {
    /// Permission for packets of a site in a tunnel to leave outside of it.
    pub enum Clear {
        /// At limits, and while pepd or the peer is down, as other keys state.
        Allowed = "allowed",
        /// Never: packet filter and routes drop them, also without pepd.
        Never = "never",
    }
}

words! {
    /// Traffic class of flows: their order on the link.
    pub enum Class {
        /// Small messages that a user waits for: sent before everything else, in a tunnel each
        /// with its own repair packets.
        Interactive = "interactive",
        /// Delay and rate matter.
        Normal = "normal",
        /// Only the rate matters.
        Bulk = "bulk",
        /// Sent when no other flow needs the link.
        DelayTolerant = "delay_tolerant",
    }
}

words! {
    /// Leg of a flow that crosses the link.
    pub enum LinkLeg {
        /// pepd is on the side of the hosts that open connections; the servers are across the link.
        Server = "server",
        /// pepd is on the side of the servers; connections arrive over the link.
        Client = "client",
    }
}

words! {
    /// Source address that the server sees.
    pub enum Source {
        /// The client's own address and port.
        Client = "client",
        /// An address and port of this machine.
        Self_ = "self",
    }
}

words! {
    /// Time of the answer to a host's SYN.
    pub enum SynHandling {
        /// At once, before the server is known to answer: saves a round trip.
        Spoof = "spoof",
        /// Once the server has answered, so that refusals and timeouts look as they would without
        /// pepd.
        Defer = "defer",
    }
}

/// DSCP of the packets that pepd sends for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DscpPolicy {
    /// Copied from the client's SYN.
    Keep,
    /// Fixed value, 0 to 63.
    Set(u8),
}

/// The size of a socket's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// On the link leg, the send buffer follows from the link's bandwidth-delay product if
    /// configured, and the receive buffer grows with the arriving data. Otherwise the kernel's
    /// autotuning.
    Auto,
    /// Fixed number of bytes, in each direction.
    Bytes(ByteSize),
}

/// Limit on unsent data in the kernel for the link leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lowat {
    /// 256 KiB where the link's rate is configured, else as [`Off`](Self::Off).
    Auto,
    /// As much as the send buffer takes.
    Off,
    /// Fixed number of bytes.
    Bytes(ByteSize),
}

/// Maximum rate of one flow into the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// The link's configured rate; unlimited where there is none.
    Auto,
    /// Unlimited.
    Off,
    /// Fixed rate.
    Rate(Rate),
}

words! {
    /// Sharing of the link between flows.
    pub enum Sharing {
        /// Each flow gets an equal share of the configured rate, or less if it wants less.
        Fair = "fair",
        /// Left to congestion controls.
        Off = "off",
    }
}

words! {
    /// Condition for taking more data of a tunnel's flows from hosts than pepd can soon send.
    pub enum KeepWhen {
        /// Never: while the link is down, hosts wait.
        Never = "never",
        /// While the link is down.
        Outage = "outage",
        /// At all times.
        Always = "always",
    }
}

impl KeepWhen {
    /// Default for flows of this class.
    pub(super) const fn for_class(class: Class) -> Self {
        match class {
            Class::DelayTolerant => Self::Always,
            _ => Self::Outage,
        }
    }
}

words! {
    /// Time at which pepd answers a client's FIN.
    pub enum Close {
        /// Once the server has closed, and its TCP has acknowledged everything: an orderly close
        /// means the same as without pepd.
        Confirmed = "confirmed",
        /// At once while the link is down: the client does not wait, and is not notified of the
        /// fate of its bytes.
        Early = "early",
    }
}

words! {
    /// Handling of new flows of a site while the link is known to be down.
    pub enum WhileDown {
        /// pepd accepts them; they wait for the link.
        Custody = "custody",
        /// pepd accepts and resets them at once, so that programs fail without a wait.
        Refuse = "refuse",
        /// The kernel forwards them: another route may exist.
        Bypass = "bypass",
    }
}

words! {
    /// Handling of new flows of a site whose SYNs pepd's rules redirect and the machine drops, by
    /// another program's firewall for example.
    pub enum InterceptionLoss {
        /// The kernel forwards them, unaccelerated and outside of any tunnel.
        Pass = "pass",
        /// pepd drops their SYNs: nothing leaves the machine outside the tunnel.
        Block = "block",
    }
}

pub(super) fn control() -> impl Reading<Value = CongestionName> {
    text("the name of a congestion control")
}

pub(super) fn rtt0() -> impl Reading<Value = Duration> {
    Span(Duration::from_millis(1)..=Duration::from_secs(1))
}

pub(super) fn lowat() -> impl Reading<Value = Lowat> {
    let bytes = Size(ByteSize::kib(4)..=ByteSize::mib(64));
    let bytes = WordOr("off", Lowat::Off, Map(bytes, Lowat::Bytes));
    WordOr("auto", Lowat::Auto, bytes)
}

pub(super) fn buffer() -> impl Reading<Value = Buffer> {
    let size = Size(ByteSize::kib(4)..=ByteSize::mib(1024));
    WordOr("auto", Buffer::Auto, Map(size, Buffer::Bytes))
}

pub(super) fn pacing() -> impl Reading<Value = Pacing> {
    let rate = WordOr("off", Pacing::Off, Map(BitRate, Pacing::Rate));
    WordOr("auto", Pacing::Auto, rate)
}

pub(super) fn dscp() -> impl Reading<Value = DscpPolicy> {
    WordOr("keep", DscpPolicy::Keep, Map(Dscp, DscpPolicy::Set))
}
