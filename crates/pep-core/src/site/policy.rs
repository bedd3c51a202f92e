//! Policy of a site.

use std::time::Duration;

use toml::de::DeValue;
use units::{ByteSize, Rate};

use super::{Matcher, PacketPolicy, choices::*};
use super::{
    custody::{Custody, disk, hold},
    link::Link,
    names::{CongestionName, IfName},
    timeouts::Timeouts,
};
use crate::reading::{
    Section, section,
    values::{NonEmpty, Reading, Switch, short, some},
};

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
    /// Fixed number of bytes.
    Fixed(u64),
    /// The kernel's autotuning, and beyond `net.ipv4.tcp_rmem` pepd's, up to this many bytes.
    Grown(u64),
}

/// Default RTT0 of hybla: the value of its authors and of the kernel.
pub const RTT0_DEFAULT: Duration = Duration::from_millis(25);

/// IP version of packets, as far as the header size matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4, without options.
    V4,
    /// IPv6, without extension headers.
    V6,
}

impl IpVersion {
    /// Bytes of each packet other than payload: IP, TCP and timestamps.
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

/// Parts of the configuration that sites refer to.
pub(crate) struct Given<'a> {
    /// The bad hop, if configured.
    pub link: Option<&'a Link>,
    /// Interfaces on which hosts' connections arrive; empty where they are not known.
    pub lan: &'a [IfName],
    /// Default SYN handling.
    pub syn: SynHandling,
    /// Timers of all sites.
    pub timeouts: &'a Timeouts,
    /// Names of peers.
    pub peers: &'a [String],
    /// Default hold time.
    pub hold: Duration,
}

section! {
    /// A named policy and what it matches.
    #[derive(Debug, Clone, PartialEq)]
    pub struct Site(s, carried: Mode, given: &Given<'_>) {
        /// Unique; appears in logs and counters. 1 to 64 letters, digits, `-`, `_` or `.`.
        name: String = s.require("name", SiteName).unwrap_or_default();
        /// Flows of the site.
        matcher: Matcher = Matcher::read(s.section("match"), carried, given.lan);
        /// Mode of the site.
        mode: Mode = carried;
        /// Congestion controls of the link leg; the first that the kernel has is used. Empty: the
        /// kernel's default (`net.ipv4.tcp_congestion_control`).
        congestion: Vec<CongestionName> =
            s.list("congestion", control()).unwrap_or_else(|| controls_link(carried, given.link));
        /// Congestion controls of the host leg, `cubic` or else `reno` by default.
        congestion_lan: Vec<CongestionName> =
            s.list("congestion_lan", control()).unwrap_or_else(controls_lan);
        /// True where nothing else uses the link. Otherwise congestion controls that leave nothing
        /// to others ([`CongestionName::takes_the_whole_link`]) are refused.
        dedicated: bool = Switch, given.link.is_some_and(|link| link.dedicated);
        /// RTT0 of hybla and hybla_sat on the link leg: they grow as if the round trip were this.
        rtt0: Duration = rtt0(), RTT0_DEFAULT;
        /// Leg that crosses the link.
        link_leg: LinkLeg = LinkLeg::WORDS, LinkLeg::Server;
        /// Source address that the server sees.
        source: Source = Source::WORDS, Source::Client;
        /// Time of the answer to the client's SYN.
        syn: SynHandling = SynHandling::WORDS, given.syn;
        /// The DSCP of both legs.
        dscp: DscpPolicy = dscp(), DscpPolicy::Keep;
        /// TCP_NODELAY on the host leg.
        nodelay_lan: bool = Switch, true;
        /// TCP_NODELAY on the link leg.
        nodelay_link: bool = Switch, true;
        /// TCP_MAXSEG of the link leg in bytes: caps the announced MSS and the segments sent.
        /// `None`: that of the interface and the path.
        mss: Option<u16> = some(short(88..=32_767)), None;
        /// Timers of the flows; those not configured come from `[timeouts]`.
        timeouts: Timeouts = read_timeouts(s, given);
        /// Unsent bytes in the kernel for the link leg (TCP_NOTSENT_LOWAT); the rest waits in the
        /// ring.
        notsent_lowat: Lowat = lowat(), Lowat::Auto;
        /// SO_MAX_PACING_RATE of the link leg.
        pacing: Pacing = pacing(), Pacing::Auto;
        /// Shares the link's configured rate among its flows and those of other such sites. Only
        /// with [`Pacing::Auto`].
        share: Sharing = Sharing::WORDS, Sharing::Fair;
        /// Buffers of the link leg. A flow that fills them costs up to twice the size of kernel
        /// memory in each direction.
        link_buffer: Buffer = buffer(), Buffer::Auto;
        /// Buffers of the host leg, by default the kernel's autotuning.
        lan_buffer: Buffer = buffer(), Buffer::Auto;
        /// Name of the peer at the far end of the tunnel; a site in [`Mode::Tunnel`] or
        /// [`Mode::Packet`] has one.
        peer: Option<String> = read_peer(s, given.peers);
        /// Traffic class of its flows or packets on the link.
        class: Class = Class::WORDS, Class::Normal;
        /// Compresses the bytes of its flows in the tunnel.
        compress: bool = Switch, false;
        /// Maximum time in custody without progress.
        hold: Duration = hold(), given.hold;
        /// Maximum bytes on disk of all its flows; `None`: `custody.disk`.
        disk: Option<ByteSize> = some(disk()), None;
        /// Time at which pepd answers a client's FIN.
        close: Close = Close::WORDS, Close::Confirmed;
        /// Handling of new flows while the link is known to be down.
        while_down: WhileDown = WhileDown::WORDS, WhileDown::Custody;
        /// Handling of new flows while redirected SYNs do not arrive.
        on_interception_loss: InterceptionLoss = InterceptionLoss::WORDS, InterceptionLoss::Pass;
        /// Permission for packets of its flows to leave outside of the tunnel.
        clear: Clear = Clear::WORDS, Clear::Allowed;
        /// Condition for taking flows into custody.
        custody: KeepWhen = KeepWhen::WORDS, KeepWhen::for_class(class);
        /// Packet policy; `Some` exactly where the mode [boosts](Mode::boosts).
        packet: Option<PacketPolicy> = None;
    }
}

/// Default controls of the host leg, which is short and clean. Any control will do that does not
/// pace: pacing, as in bbr, costs two to three times the CPU time per byte there.
fn controls_lan() -> Vec<CongestionName> {
    controls(&["cubic", "reno"])
}

/// Controls of the link leg where none are configured. Those that need to know the rate, or do
/// better with it, come first where it is configured; every kernel has the last one.
fn controls_link(mode: Mode, link: Option<&Link>) -> Vec<CongestionName> {
    if mode.takes_flows() && link.is_some_and(|link| link.rate.is_some()) {
        controls(&["hybla_sat", "bbr", "cubic", "reno"])
    } else {
        Vec::new()
    }
}

fn controls(names: &[&str]) -> Vec<CongestionName> {
    let names = names.iter();
    names
        .map(|name| name.parse().expect("a valid name"))
        .collect()
}

fn read_timeouts(site: &mut Section<'_>, given: &Given<'_>) -> Timeouts {
    let section = site.section("timeouts");
    if !section.is_present() {
        return given.timeouts.clone();
    }
    section.whole(|s| Timeouts::read(s, given.timeouts, given.link))
}

/// Checks the peer name also for modes without a tunnel: a wrong name would fail after a change of
/// mode.
fn read_peer(section: &mut Section<'_>, peers: &[String]) -> Option<String> {
    let peer = section.read("peer", NonEmpty("the name of a [peer.NAME] section"))?;
    if !peers.contains(&peer) {
        let known = if peers.is_empty() {
            "none".to_owned()
        } else {
            peers.join(", ")
        };
        section.error(
            "peer",
            format!("there is no [peer.{peer}]; peers in this file: {known}"),
        );
    }
    Some(peer)
}

/// Name of a site. Logs and counters contain it, so it has no blanks.
struct SiteName;

impl Reading for SiteName {
    type Value = String;

    fn expected(&self) -> String {
        "a name of 1 to 64 letters, digits, `-`, `_` or `.`".to_owned()
    }

    fn read(&self, value: &DeValue<'_>) -> Result<String, String> {
        let name = self.text_of(value)?;
        let valid = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(valid) {
            return Err(format!("`{name}` is not {}", self.expected()));
        }
        Ok(name.to_owned())
    }
}

impl Site {
    /// Reports whether pepd holds SYNs of hosts until their servers have answered.
    pub fn is_deferred(&self) -> bool {
        self.mode == Mode::Split && self.syn == SynHandling::Defer
    }

    /// Reports whether flows are split, and pepd answers hosts' SYNs before their servers do.
    pub fn answers_first(&self) -> bool {
        self.mode == Mode::Split && !self.is_deferred()
    }

    /// A site of this name with every default, which matches every flow.
    pub fn with_defaults(name: &str, syn: SynHandling, timeouts: &Timeouts) -> Self {
        let given = Given {
            link: None,
            lan: &[],
            syn,
            timeouts,
            peers: &[],
            hold: Custody::default().hold,
        };
        Self::built_in(name, &given)
    }

    /// A site of this name with the defaults that follow from the rest of the file.
    pub(crate) fn built_in(name: &str, given: &Given<'_>) -> Self {
        Self {
            name: name.to_owned(),
            ..Section::missing(|s| Self::read_keys(s, Mode::Split, given))
        }
    }

    /// Buffers of the link leg.
    ///
    /// Where they follow from the link, the send buffer has four of its bandwidth-delay products:
    /// one is in flight, one waits behind a lost packet for its retransmission, and two wait for
    /// ACKs in the queue of the return path. Never below 256 KiB, so that a link with too low a
    /// configured rate does not throttle flows that do not cross it, nor above 64 MiB.
    ///
    /// The receive buffer has the bytes in flight of the faster direction, and four bandwidth-delay
    /// products for a modem's queue. It has [`Self::RECEIVE_MOST`] where the receive rate is not
    /// configured.
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

    /// Maximum receive buffer of a link leg, in bytes.
    pub const RECEIVE_MOST: u64 = 64 << 20;

    /// Buffers of the host leg.
    pub fn lan_buffers(&self) -> Buffers {
        match self.lan_buffer {
            Buffer::Auto => Buffers::default(),
            Buffer::Bytes(size) => Buffers::fixed(size),
        }
    }

    /// Maximum number of unsent bytes in the kernel for the link leg, or `None` for the whole send
    /// buffer.
    ///
    /// 256 KiB keep a Gbit/s busy while a worker waits 2 ms for a CPU. A link of unknown rate may
    /// be faster than that, and each byte costs up to a third more CPU time in such portions.
    pub fn unsent_max(&self, link: Option<&Link>) -> Option<ByteSize> {
        match self.notsent_lowat {
            Lowat::Auto => link?.rate.map(|_| ByteSize::kib(256)),
            Lowat::Off => None,
            Lowat::Bytes(size) => Some(size),
        }
    }

    /// Maximum rate of one flow into the link, counted in IP packets, or `None` for no limit.
    pub fn pacing_rate(&self, link: Option<&Link>) -> Option<Rate> {
        match self.pacing {
            Pacing::Auto => link?.rate,
            Pacing::Off => None,
            Pacing::Rate(rate) => Some(rate),
        }
    }

    /// Maximum rate of one flow counted in payload bytes, which the kernel paces
    /// (SO_MAX_PACING_RATE).
    ///
    /// Assumes full segments with timestamps: each packet has 12 payload bytes fewer than the MSS,
    /// and in all the MSS plus 20 bytes and the IP header. The MSS is the site's, or that of
    /// packets of 1500 bytes. Where segments are smaller, a flow exceeds the rate by their headers.
    pub fn payload_rate(&self, link: Option<&Link>, ip: IpVersion) -> Option<Rate> {
        let stated = self.pacing_rate(link)?.bits_per_second();
        let headers = TCP_HEADER + ip.header();
        let mss = self.mss.map_or(ETHERNET - headers, u64::from);
        let (payload, packet) = (mss - TIMESTAMPS, mss + headers);
        let rate = u128::from(stated) * u128::from(payload) / u128::from(packet);
        // Smaller than the configured rate, which fits.
        Rate::from_bits_per_second(u64::try_from(rate).unwrap_or(stated).max(1))
    }

    /// Reports whether its flows are paced at fair shares of the link's configured rate (see
    /// [`crate::share`]).
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

/// Depth of a modem's queue in bandwidth-delay products, the deepest usual.
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
