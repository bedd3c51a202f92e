//! What is done with the flows of a site.

use std::{fmt, time::Duration};

use units::{ByteSize, Rate};

use super::{Matcher, PacketPolicy, Protocol};
use super::{custody::Custody, link::Link, names::CongestionName, timeouts::Timeouts};

/// How a site's flows, or packets, are carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Two legs of kernel TCP, joined here (default).
    #[default]
    Split,
    /// To the site's peer, in a tunnel; split, held or left alone while that is gone.
    Tunnel,
    /// Packet by packet to the site's peer, in a tunnel, with boosters.
    Packet,
    /// Left alone: the kernel forwards the packets.
    Bypass,
    /// Refused, by ICMP.
    Block,
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

impl fmt::Display for Mode {
    /// Writes it as configurations have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Split => "split",
            Self::Tunnel => "tunnel",
            Self::Packet => "packet",
            Self::Bypass => "bypass",
            Self::Block => "block",
        })
    }
}

/// What a tunnel's flows are to the people who wait for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Class {
    /// Small messages that somebody waits for: before everything else, each with its repair.
    Interactive,
    /// Delay matters, and so does rate (default).
    #[default]
    Normal,
    /// Only the rate matters.
    Bulk,
    /// Whenever nobody else needs the link.
    DelayTolerant,
}

/// Which leg of a flow crosses the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkLeg {
    /// pepd stands with the hosts that open connections; the servers are across the link (default).
    #[default]
    Server,
    /// pepd stands with the servers; connections arrive over the link.
    Client,
}

/// Whose address the server sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// The client's own address and port (default).
    #[default]
    Client,
    /// An address and port of this machine.
    Self_,
}

/// When a host's SYN is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SynHandling {
    /// At once, before the server is known to answer (default): saves a round trip.
    #[default]
    Spoof,
    /// Once the server has answered, so that refusals and timeouts look as they would without us.
    Defer,
}

/// The DSCP of the packets we send for a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DscpPolicy {
    /// As the client's SYN (default).
    #[default]
    Keep,
    /// Always this value, 0 to 63.
    Set(u8),
}

/// The size of a socket's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Buffer {
    /// On the link leg, sending follows from the link's bandwidth-delay product where it is stated,
    /// and receiving grows with what arrives; else the kernel's autotuning.
    #[default]
    Auto,
    /// So many bytes, each way.
    Bytes(ByteSize),
}

/// How much unsent data the kernel holds for the link leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lowat {
    /// 256 KiB where the link's rate is stated, else as [`Off`](Self::Off) (default).
    #[default]
    Auto,
    /// As much as the send buffer takes.
    Off,
    /// So many bytes.
    Bytes(ByteSize),
}

/// How fast one flow may send into the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pacing {
    /// At most the link's stated rate; unlimited where it is not stated (default).
    #[default]
    Auto,
    /// Unlimited.
    Off,
    /// At most this.
    Rate(Rate),
}

/// Whether flows that share the link do so by rules of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sharing {
    /// Each gets an equal share of the stated rate, or less if it wants less (default).
    #[default]
    Fair,
    /// What their congestion controls make of it.
    Off,
}

/// When more of a tunnel's flows is taken from their hosts than may soon be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeepWhen {
    /// Never: while the link is away, hosts wait.
    Never,
    /// While the link is away (default).
    #[default]
    Outage,
    /// At all times.
    Always,
}

/// When a client that has sent its last byte gets our FIN for its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Close {
    /// Once the server has ended, and its TCP has acknowledged everything (default): a close in
    /// order means what it would without us.
    #[default]
    Confirmed,
    /// While the link is away, at once: the client need not wait, nor learns what becomes of its
    /// bytes.
    Early,
}

/// Socket buffers of a leg, in bytes as SO_SNDBUF and SO_RCVBUF take them (the kernel doubles
/// them).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffers {
    /// For SO_SNDBUF; `None` leaves it to the kernel's autotuning.
    pub send: Option<u64>,
    /// For SO_RCVBUF.
    pub receive: ReceiveBuffer,
}

/// Size of a socket's receive buffer, which bounds the window that it advertises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReceiveBuffer {
    /// The kernel's autotuning, within `net.ipv4.tcp_rmem`.
    #[default]
    System,
    /// So many bytes, always.
    Fixed(u64),
    /// The kernel's autotuning, and beyond `net.ipv4.tcp_rmem` pepd's, up to so many bytes.
    Grown(u64),
}

/// RTT0 of hybla where none is stated: what its authors and the kernel use.
pub const RTT0_DEFAULT: Duration = Duration::from_millis(25);

/// The version of IP by which packets go, as far as its header matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4, without options.
    V4,
    /// IPv6, without extension headers.
    V6,
}

impl IpVersion {
    /// Bytes of each packet that are no payload: IP, TCP and timestamps.
    pub const fn packet_headers(self) -> u64 {
        self.header() + TCP_HEADER + TIMESTAMPS
    }

    const fn header(self) -> u64 {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

/// What becomes of new flows of a site while the link is known to be away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhileDown {
    /// They are accepted, and wait for the link (default).
    #[default]
    Custody,
    /// They are accepted and reset at once, so that programs need not wait to know.
    Refuse,
    /// The kernel forwards them: there may be another way.
    Bypass,
}

/// What becomes of new flows of a site whose SYNs pepd's rules redirect and the machine drops, by
/// another program's firewall for example.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InterceptionLoss {
    /// The kernel forwards them, unaccelerated and outside of any tunnel (default).
    #[default]
    Pass,
    /// Their SYNs are dropped: nothing leaves the machine outside of the tunnel.
    Block,
}

/// A named policy and what it matches.
#[derive(Debug, Clone, PartialEq)]
pub struct Site {
    /// Unique; appears in logs and counters. 1 to 64 letters, digits, `-`, `_` or `.`.
    pub name: String,
    /// Which flows the policy is for; default all.
    pub matcher: Matcher,
    /// How they are carried; default [`Mode::Split`].
    pub mode: Mode,
    /// Congestion controls of the link leg, the first that the kernel has is used. Default
    /// none: the kernel's own choice (`net.ipv4.tcp_congestion_control`).
    pub congestion: Vec<CongestionName>,
    /// The same for the host leg. Default `cubic`, else `reno`: that leg is short and clean, and
    /// one that paces (bbr, which some systems have by default) costs two to three times the
    /// processor time per byte there. None: the kernel's own choice.
    pub congestion_lan: Vec<CongestionName>,
    /// Nobody else uses the link; default what the link says, which is false. Without it, controls
    /// that leave nothing to others ([`CongestionName::takes_the_whole_link`]) are refused.
    pub dedicated: bool,
    /// RTT0 of hybla and hybla_sat on the link leg, 1 ms to 1 s: they grow as if the round trip
    /// were this. Default 25 ms.
    pub rtt0: Duration,
    /// Which leg crosses the link; default [`LinkLeg::Server`].
    pub link_leg: LinkLeg,
    /// Whose address the server sees; default [`Source::Client`], so that the server's logs,
    /// access lists and the routers between keep their meaning.
    pub source: Source,
    /// When the client's SYN is answered; default `intercept.syn`.
    pub syn: SynHandling,
    /// The DSCP of both legs; default [`DscpPolicy::Keep`].
    pub dscp: DscpPolicy,
    /// TCP_NODELAY on the host leg; default true: what has crossed the link must not wait for
    /// an ACK on the last metre, and the host has already decided how to cut its data.
    pub nodelay_lan: bool,
    /// TCP_NODELAY on the link leg; default true: Nagle's wait would cost a round trip of the
    /// link per small message. Bulk data leaves in full segments either way.
    pub nodelay_link: bool,
    /// TCP_MAXSEG of the link leg in bytes, 88 to 32,767: caps what is announced and what is
    /// sent. Default none: the interface's and the path's.
    pub mss: Option<u16>,
    /// Timers of the flows; default those of `[timeouts]`.
    pub timeouts: Timeouts,
    /// Unsent bytes the kernel holds for the link leg (TCP_NOTSENT_LOWAT); the rest waits in
    /// the ring. Default [`Lowat::Auto`].
    pub notsent_lowat: Lowat,
    /// SO_MAX_PACING_RATE of the link leg; default [`Pacing::Auto`]: without it, bursts of a
    /// window overflow the modem's queue.
    pub pacing: Pacing,
    /// Whether its flows share the link's stated rate, with those of other such sites; default
    /// [`Sharing::Fair`]. Only with [`Pacing::Auto`].
    pub share: Sharing,
    /// Buffers of the link leg; default [`Buffer::Auto`]. Costs kernel memory up to twice the
    /// size each way for a flow that fills them.
    pub link_buffer: Buffer,
    /// Buffers of the host leg; default [`Buffer::Auto`], which there is the kernel's autotuning.
    pub lan_buffer: Buffer,
    /// The peer at the far end of its tunnel, by name. Default none; a site in [`Mode::Tunnel`] or
    /// [`Mode::Packet`] has one.
    pub peer: Option<String>,
    /// How its flows or packets are carried in a tunnel; default [`Class::Normal`].
    pub class: Class,
    /// Whether their bytes are compressed there; default no.
    pub compress: bool,
    /// When they are taken into custody; default [`KeepWhen::Outage`], for [`Class::DelayTolerant`]
    /// [`KeepWhen::Always`].
    pub custody: KeepWhen,
    /// How long they are held there without getting on, 1 s to 365 days; default `custody.hold`.
    pub hold: Duration,
    /// Bytes on disk of all its flows at most; default as many as `custody.disk` allows.
    pub disk: Option<ByteSize>,
    /// When a client's FIN is answered; default [`Close::Confirmed`].
    pub close: Close,
    /// What becomes of new flows while the link is known to be away; default
    /// [`WhileDown::Custody`].
    pub while_down: WhileDown,
    /// What becomes of new flows while pepd's rules redirect SYNs that never arrive; default
    /// [`InterceptionLoss::Pass`].
    pub on_interception_loss: InterceptionLoss,
    /// How packets are carried, in [`Mode::Packet`]; there alone it is `Some`.
    pub packet: Option<PacketPolicy>,
}

impl Site {
    /// True where pepd holds SYNs of hosts until their servers have answered.
    pub fn is_deferred(&self) -> bool {
        self.mode == Mode::Split && self.syn == SynHandling::Defer
    }

    /// True where flows are split, and hosts' SYNs answered before their servers have.
    pub fn answers_first(&self) -> bool {
        self.mode == Mode::Split && !self.is_deferred()
    }

    /// A site of this name with every default, which matches every flow.
    pub fn with_defaults(name: &str, syn: SynHandling, timeouts: Timeouts) -> Self {
        Self {
            name: name.to_owned(),
            matcher: Matcher {
                protocol: vec![Protocol::TCP],
                ..Matcher::default()
            },
            mode: Mode::default(),
            congestion: Vec::new(),
            congestion_lan: ["cubic", "reno"]
                .map(|name| name.parse().expect("valid names"))
                .into(),
            dedicated: false,
            rtt0: RTT0_DEFAULT,
            link_leg: LinkLeg::default(),
            source: Source::default(),
            syn,
            dscp: DscpPolicy::default(),
            nodelay_lan: true,
            nodelay_link: true,
            mss: None,
            timeouts,
            notsent_lowat: Lowat::default(),
            pacing: Pacing::default(),
            share: Sharing::default(),
            link_buffer: Buffer::default(),
            lan_buffer: Buffer::default(),
            peer: None,
            class: Class::default(),
            compress: false,
            custody: KeepWhen::default(),
            hold: Custody::default().hold,
            disk: None,
            close: Close::default(),
            while_down: WhileDown::default(),
            on_interception_loss: InterceptionLoss::default(),
            packet: None,
        }
    }

    /// Buffers of the link leg.
    ///
    /// Where they follow from the link, sending has four of its bandwidth-delay products: one is
    /// in flight, one waits behind a lost packet for its retransmission, and two wait for ACKs that
    /// stand in the queue of the return path. Never below 256 KiB, so that a wrongly stated slow
    /// link does not strangle flows that do not cross it, nor above 64 MiB.
    ///
    /// Receiving may have what is in flight on the faster direction and a modem's queue of four
    /// bandwidth-delay products in front of it, or [`Self::RECEIVE_MOST`] where the rate of what
    /// arrives is not stated.
    pub fn link_buffers(&self, link: Option<&Link>) -> Buffers {
        if let Buffer::Bytes(size) = self.link_buffer {
            return Buffers::fixed(size);
        }
        let bound = |bytes: u64| bytes.clamp(256 << 10, Self::RECEIVE_MOST);
        let sent = link.and_then(Link::bandwidth_delay_product);
        let received = link.and_then(Link::largest_bandwidth_delay_product);
        Buffers {
            send: sent.map(|bytes| bound(bytes.saturating_mul(4))),
            receive: ReceiveBuffer::Grown(received.map_or(Self::RECEIVE_MOST, |bytes| {
                bound(bytes.saturating_mul(1 + QUEUE_PRODUCTS))
            })),
        }
    }

    /// Bytes to which a receive buffer of a link leg grows at most.
    pub const RECEIVE_MOST: u64 = 64 << 20;

    /// Buffers of the host leg.
    pub fn lan_buffers(&self) -> Buffers {
        match self.lan_buffer {
            Buffer::Auto => Buffers::default(),
            Buffer::Bytes(size) => Buffers::fixed(size),
        }
    }

    /// Unsent bytes the kernel may hold for the link leg, or `None` for what the send buffer takes.
    ///
    /// 256 KiB keep a Gbit/s busy while a worker waits 2 ms for a processor. A link of unknown rate
    /// may be faster than that, and each byte costs up to a third more processor time in such
    /// portions.
    pub fn unsent_max(&self, link: Option<&Link>) -> Option<ByteSize> {
        match self.notsent_lowat {
            Lowat::Auto => link?.rate.map(|_| ByteSize::kib(256)),
            Lowat::Off => None,
            Lowat::Bytes(size) => Some(size),
        }
    }

    /// The rate beyond which one flow may not send into the link, counted in IP packets, or `None`
    /// for no limit.
    pub fn pacing_rate(&self, link: Option<&Link>) -> Option<Rate> {
        match self.pacing {
            Pacing::Auto => link?.rate,
            Pacing::Off => None,
            Pacing::Rate(rate) => Some(rate),
        }
    }

    /// The same counted in bytes of payload, which is what the kernel paces (SO_MAX_PACING_RATE).
    ///
    /// Full segments with timestamps are assumed: each packet has 12 bytes less than the MSS as
    /// payload, and 20 and those of the IP header more than the MSS in all. The MSS is the site's,
    /// or that of packets of 1500 bytes. Where segments are smaller a flow exceeds the rate by their
    /// headers.
    pub fn payload_rate(&self, link: Option<&Link>, ip: IpVersion) -> Option<Rate> {
        let stated = self.pacing_rate(link)?.bits_per_second();
        let headers = TCP_HEADER + ip.header();
        let mss = self.mss.map_or(ETHERNET - headers, u64::from);
        let (payload, packet) = (mss - TIMESTAMPS, mss + headers);
        let rate = u128::from(stated) * u128::from(payload) / u128::from(packet);
        // Smaller than the stated rate, which fits.
        Rate::from_bits_per_second(u64::try_from(rate).unwrap_or(stated).max(1))
    }

    /// Whether its flows are paced at fair shares of the link's stated rate (see [`crate::share`]).
    pub fn shares(&self, link: Option<&Link>) -> bool {
        let stated = link.is_some_and(|link| link.rate.is_some());
        self.share == Sharing::Fair && self.pacing == Pacing::Auto && stated
    }
}

impl Buffers {
    fn fixed(size: ByteSize) -> Self {
        Self {
            send: Some(size.bytes()),
            receive: ReceiveBuffer::Fixed(size.bytes()),
        }
    }
}

/// Bandwidth-delay products that the deepest usual queue of a modem holds.
const QUEUE_PRODUCTS: u64 = 4;
/// Bytes of a TCP header without options.
const TCP_HEADER: u64 = 20;
/// Bytes of the only option that every segment has: timestamps, padded.
const TIMESTAMPS: u64 = 12;
/// The largest packet of most paths.
const ETHERNET: u64 = 1500;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    fn payload_rates(site: &str) -> [u64; 2] {
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\nrate = \"15Mbit/s\"\n\
             [[site]]\nname = \"a\"\n{site}\n"
        );
        let config = config::parse(&text).expect("valid");
        let (_, site) = config.sites.iter().next().expect("a site");
        let rate = |ip| site.payload_rate(config.link.as_ref(), ip);
        [IpVersion::V4, IpVersion::V6].map(|ip| rate(ip).map_or(0, Rate::bits_per_second))
    }

    #[test]
    fn buffers_follow_the_direction_that_they_are_for() {
        let buffers = |link: &str, site: &str| {
            let text = format!(
                "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\n{link}\n\
                 [[site]]\nname = \"a\"\n{site}\n"
            );
            let config = config::parse(&text).expect("valid");
            let (_, site) = config.sites.iter().next().expect("a site");
            site.link_buffers(config.link.as_ref())
        };
        let grown = |send, most| Buffers {
            send,
            receive: ReceiveBuffer::Grown(most),
        };
        // 2 Mbit/s up at 600 ms are 150 kB in flight; 20 Mbit/s down are 1.5 MB.
        let up = "rate = \"2Mbit/s\"\nrtt = \"600ms\"";
        let down = format!("{up}\nrate_down = \"20Mbit/s\"");
        assert_eq!(buffers("", ""), grown(None, 64 << 20));
        assert_eq!(buffers(up, ""), grown(Some(600_000), 64 << 20));
        assert_eq!(buffers(&down, ""), grown(Some(600_000), 7_500_000));
        let only_down = "rate_down = \"20Mbit/s\"\nrtt = \"600ms\"";
        assert_eq!(buffers(only_down, ""), grown(None, 7_500_000));
        // The larger rate counts: ACKs of a download share the queue of an upload.
        let uploads = "rate = \"20Mbit/s\"\nrate_down = \"2Mbit/s\"\nrtt = \"600ms\"";
        assert_eq!(buffers(uploads, ""), grown(Some(6_000_000), 7_500_000));
        let slow = "rate = \"1kbit/s\"\nrate_down = \"1kbit/s\"\nrtt = \"600ms\"";
        assert_eq!(buffers(slow, ""), grown(Some(256 << 10), 256 << 10));
        let fixed = buffers(&down, "link_buffer = \"1MiB\"");
        assert_eq!(
            (fixed.send, fixed.receive),
            (Some(1 << 20), ReceiveBuffer::Fixed(1 << 20))
        );
    }

    #[test]
    fn payload_is_paced_at_its_share_of_the_stated_rate() {
        assert_eq!(payload_rates(""), [14_480_000, 14_280_000]);
        // 1188 of 1240 bytes, 1188 of 1260.
        assert_eq!(payload_rates("mss = 1200"), [14_370_967, 14_142_857]);
        assert_eq!(payload_rates("mss = 88"), [8_906_250, 7_702_702]);
        assert_eq!(
            payload_rates("pacing = \"1.5Mbit/s\""),
            [1_448_000, 1_428_000]
        );
        assert_eq!(payload_rates("pacing = \"1bit/s\""), [1, 1]);
        assert_eq!(payload_rates("pacing = \"off\""), [0, 0]);
    }

    #[test]
    fn only_a_rate_that_is_stated_and_not_overruled_is_shared() {
        let shares = |rate, site| {
            let text = format!(
                "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\n{rate}\n\
                 [[site]]\nname = \"a\"\n{site}\n"
            );
            let config = config::parse(&text).expect("valid");
            let (_, site) = config.sites.iter().next().expect("a site");
            site.shares(config.link.as_ref())
        };
        let stated = "rate = \"15Mbit/s\"";
        assert!(shares(stated, ""));
        assert!(shares(stated, "share = \"fair\""));
        assert!(!shares(stated, "share = \"off\""));
        assert!(!shares(stated, "pacing = \"off\""));
        assert!(!shares(stated, "pacing = \"1Mbit/s\""));
        assert!(!shares("", "share = \"fair\""));
    }
}
