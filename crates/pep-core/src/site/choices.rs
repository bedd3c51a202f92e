//! What keys of a site choose among.

use std::time::Duration;

use units::{ByteSize, Rate};

use super::{headers::Dscp, names::CongestionName};
use crate::reading::{
    values::{BitRate, Map, Reading, Size, Span, WordOr, text},
    words,
};

words! {
    /// How a site's flows, or packets, are carried.
    pub enum Mode {
        /// Two legs of kernel TCP, joined here.
        Split = "split",
        /// To the site's peer, in a tunnel; split, held or left alone while that is gone.
        Tunnel = "tunnel",
        /// Packet by packet to the site's peer, in a tunnel, with boosters.
        Packet = "packet",
        /// Left alone: the kernel forwards the packets.
        Bypass = "bypass",
        /// Refused, by ICMP.
        Block = "block",
    }
}

impl Mode {
    /// Whether flows of such a site come to us.
    pub const fn takes_flows(self) -> bool {
        matches!(self, Self::Split | Self::Tunnel)
    }

    /// Whether it looks at packets other than of TCP.
    pub const fn takes_packets(self) -> bool {
        matches!(self, Self::Packet | Self::Block)
    }
}

words! {
    /// What a tunnel's flows are to the people who wait for them.
    pub enum Class {
        /// Small messages that somebody waits for: before everything else, each with its repair.
        Interactive = "interactive",
        /// Delay matters, and so does rate.
        Normal = "normal",
        /// Only the rate matters.
        Bulk = "bulk",
        /// Whenever nobody else needs the link.
        DelayTolerant = "delay_tolerant",
    }
}

words! {
    /// Which leg of a flow crosses the link.
    pub enum LinkLeg {
        /// pepd stands with the hosts that open connections; the servers are across the link.
        Server = "server",
        /// pepd stands with the servers; connections arrive over the link.
        Client = "client",
    }
}

words! {
    /// Whose address the server sees.
    pub enum Source {
        /// The client's own address and port.
        Client = "client",
        /// An address and port of this machine.
        Self_ = "self",
    }
}

words! {
    /// When a host's SYN is answered.
    pub enum SynHandling {
        /// At once, before the server is known to answer: saves a round trip.
        Spoof = "spoof",
        /// Once the server has answered, so that refusals and timeouts look as they would without
        /// us.
        Defer = "defer",
    }
}

/// The DSCP of the packets we send for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DscpPolicy {
    /// As the client's SYN.
    Keep,
    /// Always this value, 0 to 63.
    Set(u8),
}

/// The size of a socket's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Buffer {
    /// On the link leg, sending follows from the link's bandwidth-delay product where it is stated,
    /// and receiving grows with what arrives; else the kernel's autotuning.
    Auto,
    /// So many bytes, each way.
    Bytes(ByteSize),
}

/// How much unsent data the kernel holds for the link leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lowat {
    /// 256 KiB where the link's rate is stated, else as [`Off`](Self::Off).
    Auto,
    /// As much as the send buffer takes.
    Off,
    /// So many bytes.
    Bytes(ByteSize),
}

/// How fast one flow may send into the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pacing {
    /// At most the link's stated rate; unlimited where it is not stated.
    Auto,
    /// Unlimited.
    Off,
    /// At most this.
    Rate(Rate),
}

words! {
    /// Whether flows that share the link do so by rules of ours.
    pub enum Sharing {
        /// Each gets an equal share of the stated rate, or less if it wants less.
        Fair = "fair",
        /// What their congestion controls make of it.
        Off = "off",
    }
}

words! {
    /// When more of a tunnel's flows is taken from their hosts than may soon be sent.
    pub enum KeepWhen {
        /// Never: while the link is away, hosts wait.
        Never = "never",
        /// While the link is away.
        Outage = "outage",
        /// At all times.
        Always = "always",
    }
}

impl KeepWhen {
    /// Where nothing is stated, of flows of this class.
    pub(super) const fn for_class(class: Class) -> Self {
        match class {
            Class::DelayTolerant => Self::Always,
            _ => Self::Outage,
        }
    }
}

words! {
    /// When a client that has sent its last byte gets our FIN for its own.
    pub enum Close {
        /// Once the server has ended, and its TCP has acknowledged everything: a close in
        /// order means what it would without us.
        Confirmed = "confirmed",
        /// While the link is away, at once: the client need not wait, nor learns what becomes of
        /// its bytes.
        Early = "early",
    }
}

words! {
    /// What becomes of new flows of a site while the link is known to be away.
    pub enum WhileDown {
        /// They are accepted, and wait for the link.
        Custody = "custody",
        /// They are accepted and reset at once, so that programs need not wait to know.
        Refuse = "refuse",
        /// The kernel forwards them: there may be another way.
        Bypass = "bypass",
    }
}

words! {
    /// What becomes of new flows of a site whose SYNs pepd's rules redirect and the machine drops,
    /// by another program's firewall for example.
    pub enum InterceptionLoss {
        /// The kernel forwards them, unaccelerated and outside of any tunnel.
        Pass = "pass",
        /// Their SYNs are dropped: nothing leaves the machine outside of the tunnel.
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
