//! Rules of pepd's nft table, as data: built here from the configuration, and written by sibling
//! modules as nft text (installed by pepd) or iptables commands.
//!
//! ```text
//! chain from_hosts    prerouting, before conntrack: packets from hosts and out of pepd's TUNs
//! chain not_from_lan  packets that arrive by other interfaces
//! chain gate          empty, or lets new flows pass unaccelerated
//! chain no_route      passes new flows without a route; empty while the link is down
//! chain elsewhere     lets new flows pass whose route does not lead by the link
//! chain host_at_cap   lets new flows pass of hosts that have reached their flow limit
//! chain lost_N        empty; passes or blocks flows of site N while redirected SYNs do not arrive,
//!                     and refuses those to hosts that its peer does not reach
//! chain unforwarded_N empty; takes flows of site N that this machine does not forward
//! chain held_rate     lets SYNs pass that exceed the rate of SYNs that pepd takes
//! chain tunnel_rate   drops such SYNs to tunnels
//! chain sites         one or more rules per site, in the order of the configuration
//! chain ask_K         a SYN from LAN interface K is forwarded, to meet rules of other programs;
//!                     ask_tunnel_K: to a tunnel
//! chain hold_K        a SYN from LAN interface K goes into TUN K
//! chain site_N        a SYN goes to the listener of site N
//! chain packet_N      a packet of a site of mode packet or boost goes into the Nth TUN
//! chain block_N       a packet of site N of mode block is rejected
//! chain packet_sites  packets of no flow: one or more rules per site, if a site handles packets
//! chain boosted_sites packets from the link: one or more rules per site, if one has mode boost
//! chain from_servers  prerouting, after de-NAT: answers of the servers, packets from the link
//! chain kept_marks    keeps the mark that another program has set on a SYN, for the server leg
//! chain marks_again   prerouting, last: restores marks that rules of other programs have changed
//! chain to_hosts      output, before conntrack: packets of pepd to hosts
//! chain handshakes    postrouting, last: counts listeners' answers to hosts
//! chain errors        output: ICMP errors about packets of a peer go into the TUN of that peer
//! chain into_tunnels  forward: connections whose packets go into a TUN
//! chain permitted     forward, last: SYNs that no rule has dropped go to pepd, by the kernel's log
//! chain copy_SIDE     limits the rate of packets that are copied to pepd, per source
//! chain midway        forward: pepd gets copies of packets of connections that began elsewhere
//! ```
//!
//! The order of rules within `from_hosts` matters; each rule's comment gives its reason.

mod build;
mod clear;
mod conditions;
mod copies;
mod ended;
mod errors;
mod filtered;
mod hops;
mod marks;
mod packets;
mod recent;
mod state;

#[cfg(test)]
pub(crate) use clear::tests::HEAD as CLEAR_HEAD;
pub(crate) use clear::{Device, hosts_never_in_clear, hosts_only, marks_that_pass};
pub(crate) use packets::{BOOSTED, looks_at_packets};
pub use packets::{LaneKind, PacketLane, lanes, passing_tun};
pub(crate) use state::{
    NO_ROUTE, NoRoute, OTHER_ROUTE, known, lost, lost_chain, no_route, off_chain, own_chains,
    unforwarded, unforwarded_chain, unreached,
};
pub use state::{follows_state, gate, instead, left_alone};

use std::{borrow::Cow, net::Ipv4Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pep_core::{
    config::Config,
    site::{PortRange, Protocol, SiteId},
};

pub use pepd_sys::leg::Family;

/// Prefixes of one family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prefixes {
    /// IPv4.
    V4(Vec<Ipv4Net>),
    /// IPv6.
    V6(Vec<Ipv6Net>),
}

impl Prefixes {
    /// Returns the prefixes of the family, merged where they touch or overlap (intervals of a set
    /// must not overlap).
    fn for_family(family: Family, nets: &[IpNet]) -> Self {
        let joined = IpNet::aggregate(&nets.to_vec());
        match family {
            Family::V4 => Self::V4(joined.iter().filter_map(v4).collect()),
            Family::V6 => Self::V6(joined.iter().filter_map(v6).collect()),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::V4(nets) => nets.is_empty(),
            Self::V6(nets) => nets.is_empty(),
        }
    }
}

fn v4(net: &IpNet) -> Option<Ipv4Net> {
    match net {
        IpNet::V4(net) => Some(net.trunc()),
        IpNet::V6(_) => None,
    }
}

fn v6(net: &IpNet) -> Option<Ipv6Net> {
    match net {
        IpNet::V4(_) => None,
        IpNet::V6(net) => Some(net.trunc()),
    }
}

/// One condition or action of a rule. A rule's terms are evaluated from left to right, and the
/// first condition that fails ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// The packet came in on one of these interfaces.
    From(Vec<String>),
    /// The packet came in on any other interface.
    NotFrom(Vec<String>),
    /// TCP, or ICMP that may quote TCP.
    TcpOrIcmp,
    /// Any other protocol.
    NotTcpOrIcmp,
    /// The packet goes out by one of these interfaces.
    To(Vec<String>),
    /// The packet goes out by another interface than these.
    NotTo(Vec<String>),
    /// The packet goes out by the interface of this index, whatever its name.
    ToDevice(u32),
    /// The packet came in on an interface of one of these indices.
    FromDevices(Vec<u32>),
    /// The packet is a fragment of the family, but not the first one: it has no ports.
    LaterFragment(Family),
    /// The protocol above IP is one of these.
    Protocol(Vec<Protocol>),
    /// TCP that opens a connection, or answers such a packet: of SYN and RST only SYN is set.
    Opens,
    /// TCP that opens a connection: of FIN, SYN, RST and ACK only SYN is set.
    Syn,
    /// TCP in the middle of a connection: of FIN, SYN, RST and ACK only ACK is set.
    Ack,
    /// TCP that ends one direction: of FIN, SYN, RST and ACK only FIN and ACK are set.
    Fin,
    /// TCP that aborts: of SYN and RST only RST is set.
    Rst,
    /// TCP that neither opens nor aborts: of SYN and RST none is set.
    Midway,
    /// conntrack has not seen the packet's connection before.
    NewTracked,
    /// The first packet by which the other end answers one that was new to conntrack in the middle
    /// of a connection.
    FirstAnswer,
    /// Packets of all hosts reach this rule no faster than this many a second.
    Within(u32),
    /// Copies the packet's first bytes to pepd.
    Copy(CopyTo),
    /// Remembers the four addresses of a SYN for [`Term::IsAsked`], of the family. Also a
    /// condition: false if there is no room.
    Ask(Family),
    /// Forgets them. Also a condition: false if they were not remembered.
    Unask(Family),
    /// The four addresses are those of a SYN that meets rules of other programs now.
    IsAsked(Family),
    /// The packet has more bytes than this.
    Longer(u16),
    /// TCP with urgent data.
    Urgent,
    /// TCP that answers a SYN: of FIN, SYN, RST and ACK only SYN and ACK are set.
    SynAck,
    /// The source address lies in one of the prefixes.
    Source(Prefixes),
    /// The destination address lies in one of the prefixes.
    Destination(Prefixes),
    /// The source port lies in one of the ranges, for any protocol with ports.
    TransportSource(Vec<PortRange>),
    /// The destination port, likewise.
    TransportDestination(Vec<PortRange>),
    /// The source port of TCP lies in one of the ranges.
    SourcePort(Vec<PortRange>),
    /// The destination port of TCP lies in one of the ranges.
    DestinationPort(Vec<PortRange>),
    /// The packet is of the family and its DSCP is one of these.
    Dscp(Family, Vec<u8>),
    /// The destination is this machine, or not unicast.
    ForThisMachine,
    /// The source is this machine, or not unicast.
    AsThisMachine,
    /// The route to the packet's source does not lead by its input interface.
    NotBehind,
    /// The packet is of IPv4, with options in its header.
    IpOptions,
    /// The packet's destination has no route, or a route of type unreachable or prohibit.
    NoRoute,
    /// With its present mark, the packet would leave by this interface.
    RoutedTo(String),
    /// With its present mark, the packet would leave by one of these.
    RoutedToAny(Vec<String>),
    /// With its present mark, the packet has a route by another interface than these.
    RoutedByOther(Vec<String>),
    /// A full socket (no handshake, no TIME_WAIT) with this mark takes the packet.
    SocketMark(u32),
    /// A transparent socket takes the packet, in any state.
    SocketTransparent,
    /// A listener for any address takes the packet: one of another program, as pepd's have
    /// addresses.
    WildcardSocket,
    /// The packet's mark is this, within the mask.
    Mark(u32),
    /// The packet's mark is none of these, within the mask.
    NotMarked(Vec<u32>),
    /// The packet is of the family, and its destination is in a network of this machine that is not
    /// that of an uplink.
    ToNear(Family),
    /// The packet is of the family, and its source is in such a network.
    FromNear(Family),
    /// The packet's mark has no bits beyond the mask.
    NoOtherMark,
    /// Keeps the packet's mark as that of a SYN with its four addresses, of the family.
    KeepMark(Family),
    /// Deletes the mark kept under its four addresses, if any; packets of the family.
    ForgetMark(Family),
    /// The packet is of the family.
    Of(Family),
    /// TCP with an option of this kind.
    TcpOption(u8),
    /// The TTL or hop limit of a packet of the family is above this.
    HopsAbove(Family, u8),
    /// The four addresses of the packet are those of a SYN that pepd took recently.
    IsRecent(Family),
    /// Remembers the four addresses for [`Term::IsRecent`].
    Remember(Family),
    /// Deletes them. Also a condition: matches only packets of the family whose addresses were
    /// remembered.
    Forget(Family),
    /// The packet is of the family, and packets of such connections did not reach pepd.
    IsFiltered(Filtered, Family),
    /// Remembers the packet's connection for that.
    Filtered(Filtered, Family),
    /// The four addresses are those of a packet of a handshake that may not have reached pepd.
    IsUnheard(Family),
    /// Remembers the four addresses for that.
    Unheard(Family),
    /// Forgets them. Also a condition: false if they were not remembered.
    Heard(Family),
    /// Remembers the connection of the packet, which pepd has reset.
    Ended(Way, Family),
    /// The packet belongs to such a connection.
    IsEnded(Way, Family),
    /// Forgets the connection of the packet. Also a condition: false if it was not remembered.
    Begins(Way, Family),
    /// Remembers the four addresses: a server leg leaves by another interface than the link.
    OffLink(Family),
    /// Forgets them.
    OnLink(Family),
    /// Remembers the four addresses for half a second.
    Fresh(Family),
    /// The packet is of the family, and its four addresses are not remembered so.
    NotFresh(Family),
    /// The packet is of the family, and its host has reached its flow limit.
    AtCap(Family),
    /// The packet is of the family, and packets of its host reach rules for this purpose faster
    /// than this many a second.
    FasterPerHost(Limited, Family, u32),
    /// Packets of all hosts reach this rule faster than this many a second.
    Faster(u32),
    /// Sets the packet's mark within the mask; 0 clears it.
    SetMark(u32),
    /// Sets the packet's priority to 5045:N. N is [the number](pepd_sys::marks::MarkSet::number) of
    /// a mark, by which later rules recognise the packet even if its mark has changed.
    Tag(u16),
    /// The packet's priority is 5045:N.
    Tagged(u16),
    /// Exempts the packet from conntrack.
    Notrack,
    /// Redirects the packet to the loopback listener on this port. Also a condition: false without
    /// a listener.
    Tproxy(Family, u16),
    /// Clamps the MSS of a connection to the MTU of the packet's route.
    ClampMss,
    /// Drops the packet, and sends its sender the ICMP error "port unreachable".
    Reject,
    /// Drops a TCP packet, and resets its connection.
    Reset,
    /// Drops the packet.
    Drop,
    /// Increments a counter.
    Count(Counter),
    /// Remembers the packet's input interface.
    Seen,
    /// An ICMP redirect: a router names a shorter path to a host.
    IcmpRedirect(Family),
    /// An ICMP error of the family: unreachable, too big, time exceeded, parameter problem.
    IcmpError(Family),
    /// ICMP of the family that no peer accepts from another: errors, and messages of routers to
    /// hosts of their own link.
    IcmpNotCarried(Family),
    /// Remembers the packet's source, for [`Term::HasSpoken`] of the same lane; packets of the
    /// family only.
    RememberPeer(Family, usize),
    /// The packet's destination is a host whose packets came out of the TUN of that lane recently.
    HasSpoken(Family, usize),
    /// The packet quoted by the ICMP error has a header without options, and one of these
    /// protocols.
    QuotedProtocol(Family, Vec<Protocol>),
    /// The source port of the packet quoted by the ICMP error lies in one of the ranges.
    QuotedSource(Family, Vec<PortRange>),
    /// The destination port, likewise.
    QuotedDestination(Family, Vec<PortRange>),
    /// Ends this hook.
    Accept,
    /// Returns to the calling chain.
    Return,
    /// Continues with this chain, then returns.
    Jump(String),
    /// Continues with this chain, and does not return.
    Goto(String),
}

/// Direction of a packet, from which a connection is the same either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From a host to a server.
    ToServer,
    /// From a server to a host.
    ToHost,
}

/// Packets whose rates are limited per host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limited {
    /// SYNs that pepd takes before the kernel answers them.
    Held,
    /// Packets of connections that began elsewhere, which are copied to pepd.
    Copied,
}

/// Connections whose packets rules of other programs drop on their way to pepd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filtered {
    /// Connections of a host to a port: its packets do not arrive.
    Host,
    /// Connections to a port of a server: its SYN-ACKs do not arrive.
    Server,
}

/// Receiver of copied packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyTo {
    /// Number of the kernel's log (NFLOG) that pepd reads.
    pub group: u16,
    /// Bytes of each packet that are copied, at most.
    pub bytes: u16,
    /// Text before the packet in the log.
    pub prefix: String,
}

impl CopyTo {
    /// Returns the number of the log of connections that began elsewhere.
    pub const fn midway(config: &Config) -> u16 {
        config.intercept.listen_port
    }

    /// Returns the number of the log of SYNs that no rule has dropped. Another pepd has other
    /// listening ports.
    pub const fn permitted(config: &Config) -> u16 {
        !config.intercept.listen_port
    }
}

/// Bytes that hold the headers of IP and TCP, with options.
pub(crate) const HEADERS: u16 = 128;

/// Most bytes of a SYN that passes rules of other programs. Longer ones pass pepd.
pub(crate) const SYN_BYTES: u16 = 2000;

/// Text before a packet in the log, by the side from which it came.
pub(crate) const FROM_HOSTS: &str = "from_hosts";
const TO_HOSTS: &str = "to_hosts";

/// Packet counters of the table, since its installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// SYNs that passed unaccelerated because the gate was closed.
    Passed,
    /// SYNs that passed unaccelerated because their host had reached its flow limit.
    PassedHosts,
    /// SYNs that passed unaccelerated because the set of recent SYNs was full.
    PassedRecent,
    /// SYNs that passed unaccelerated because they exceeded the rate of held SYNs.
    PassedRate,
    /// SYNs to tunnels that were dropped because they exceeded that rate, or because the set of
    /// recent SYNs was full.
    DroppedRate,
    /// SYNs that passed unaccelerated because their connections must not be split.
    PassedEndToEnd,
    /// SYNs that passed unaccelerated because their destination has no route, or no server answers
    /// over IPv6.
    PassedNoRoute,
    /// SYNs that passed unaccelerated because redirected ones do not arrive.
    PassedLost,
    /// SYNs that were dropped because redirected ones do not arrive.
    BlockedLost,
    /// SYNs that passed unaccelerated because packets of such connections do not reach pepd.
    PassedFiltered,
    /// SYNs that passed unaccelerated because their route does not lead by the link.
    PassedOtherRoute,
    /// SYNs that were refused because the peer of their tunnel reaches no hosts of their family.
    RefusedUnreached,
    /// SYNs that were forwarded to meet rules of other programs.
    Asked,
    /// SYNs that none of these has dropped.
    Permitted,
    /// SYNs that arrived by LAN interfaces.
    Syns,
    /// Packets redirected to listeners: SYNs, and answers to SYN cookies.
    Intercepted,
    /// SYNs that pepd sent to servers.
    Connecting,
    /// SYNs that pepd retransmitted to servers while rules dropped the one before on its way out.
    Unsent,
    /// SYN-ACKs of servers that matched a socket of pepd.
    Answered,
    /// SYN-ACKs of IPv6 that arrived, for any destination.
    AnsweredV6,
    /// Packets of flows with urgent data, which pepd delivers in the stream.
    Urgent,
    /// Packets of a family redirected to the listener of a site.
    Redirected(Family, SiteId),
    /// SYNs of a family that went into the TUNs of LAN interfaces.
    Held(Family),
    /// Packets of a family by which hosts aborted a handshake with a listener.
    Aborted(Family),
    /// SYN-ACKs of a family that listeners have sent to hosts.
    Handshakes(Family),
    /// SYNs of a family whose source is not behind their input interface: the kernel may drop them.
    NoSource(Family),
    /// SYNs that were dropped because their mark of another program found no room in the map.
    Unkept,
    /// Packets that entered the TUN of this number of a site of mode `packet` or `boost`.
    IntoTunnel(usize),
    /// Packets that pepd rejected.
    Refused,
    /// Packets from a peer whose destination is this machine itself, or not unicast.
    NotForHosts,
    /// Packets from a peer whose source is an address of this machine, or not unicast.
    NotFromHosts,
    /// Packets of sites with `clear = "never"` that would have left outside of the tunnel.
    NotInClear,
}

impl Counter {
    /// Counters that are in every table.
    pub const ALL: [Self; 17] = [
        Self::Passed,
        Self::PassedHosts,
        Self::PassedRecent,
        Self::PassedRate,
        Self::PassedEndToEnd,
        Self::PassedNoRoute,
        Self::PassedLost,
        Self::BlockedLost,
        Self::PassedFiltered,
        Self::PassedOtherRoute,
        Self::RefusedUnreached,
        Self::Syns,
        Self::Intercepted,
        Self::Connecting,
        Self::Unsent,
        Self::Answered,
        Self::Urgent,
    ];

    /// Causes for which SYNs did not reach pepd.
    pub const PASSED: [Self; 11] = *Self::ALL.first_chunk().expect("they come first");

    /// Limits because of which SYNs passed pepd.
    pub const PASSED_LIMITS: [Self; 4] = *Self::ALL.first_chunk().expect("they come first");

    /// Returns the counter's name in the table.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Passed => "passed",
            Self::PassedHosts => "passed_hosts",
            Self::PassedRecent => "passed_recent",
            Self::PassedRate => "passed_rate",
            Self::DroppedRate => "dropped_rate",
            Self::PassedEndToEnd => "passed_end_to_end",
            Self::PassedNoRoute => "passed_no_route",
            Self::PassedLost => "passed_lost",
            Self::BlockedLost => "blocked_lost",
            Self::PassedFiltered => "passed_filtered",
            Self::PassedOtherRoute => "passed_elsewhere",
            Self::RefusedUnreached => "refused_unreached",
            Self::Asked => "asked",
            Self::Permitted => "permitted",
            Self::Syns => "syns",
            Self::Intercepted => "intercepted",
            Self::Connecting => "called",
            Self::Unsent => "unsent",
            Self::Answered => "answered",
            Self::AnsweredV6 => "answered6",
            Self::Urgent => "urgent",
            Self::Redirected(family, site) => {
                return format!("redirected{}_{site}", family.number()).into();
            }
            Self::Held(family) => return format!("held{}", family.number()).into(),
            Self::Aborted(family) => return format!("aborted{}", family.number()).into(),
            Self::Handshakes(family) => return format!("handshakes{}", family.number()).into(),
            Self::NoSource(family) => return format!("no_source{}", family.number()).into(),
            Self::Unkept => "marks_unkept",
            Self::IntoTunnel(number) => return format!("packets_into_tunnel_{number}").into(),
            Self::Refused => "packets_refused",
            Self::NotForHosts => "packets_not_for_hosts",
            Self::NotFromHosts => "packets_not_from_hosts",
            Self::NotInClear => "not_in_clear",
        })
    }
}

/// A rule: terms and purpose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Conditions, then actions.
    pub terms: Vec<Term>,
    /// Comment in the listed table; at most 128 bytes, without double quotes.
    pub comment: String,
}

fn rule(comment: &str, terms: impl Into<Vec<Term>>) -> Rule {
    let comment = comment.to_owned();
    assert!(comment.len() <= 128, "nft keeps 128 bytes of a comment");
    Rule {
        terms: terms.into(),
        comment,
    }
}

/// Hook of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Incoming packets before conntrack, and before rules of other programs that prepare it
    /// (`CT --helper`): behind these `notrack` has no effect (priority raw - 1, -301).
    PreroutingRaw,
    /// Incoming packets after that and before conntrack (priority raw + 1, -299).
    PreroutingRawNext,
    /// Incoming packets after conntrack and de-NAT (priority dstnat + 1, -99).
    PreroutingDnat,
    /// Incoming packets after the rules of all other programs, before the routing decision
    /// (priority 1000).
    PreroutingLast,
    /// Incoming packets right after that (priority 1001).
    PreroutingVeryLast,
    /// Packets to this machine, after the rules of all other programs (the last priority).
    InputLast,
    /// Packets of this machine, likewise (priority raw - 1, -301).
    OutputRaw,
    /// Packets of this machine and forwarded ones, before source NAT (priority srcnat - 1, 99).
    PostroutingSnat,
    /// Packets of this machine before conntrack, routed again by their mark (a chain of type
    /// `route`).
    OutputRoute,
    /// Packets of this machine, after the rules of all other programs (priority 1000).
    OutputLast,
    /// Forwarded packets (priority mangle, -150).
    ForwardMangle,
    /// Forwarded packets, after the rules of all other programs (the last priority).
    ForwardLast,
}

/// A chain of rules, hooked in or jumped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Name of the chain.
    pub name: String,
    /// `None` when other chains jump to it.
    pub hook: Option<Hook>,
    /// Rules in their order.
    pub rules: Vec<Rule>,
}

fn chain(name: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.to_owned(),
        hook,
        rules,
    }
}

/// Optional features of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// True with IPv6.
    pub ipv6: bool,
    /// Sets filled by rules (nft_dynset, 4.1); required for flows opened by a SYN cookie.
    pub recent: bool,
    /// Removal from sets by rules (5.4). Without it, packets repeated after the end of a flow that
    /// a SYN cookie opened may open another. A new flow from the port of a recent one is reset if
    /// it passes.
    pub forget: bool,
    /// Route look-ups in rules (nft_fib, 4.10). Without them SYNs to this machine itself are
    /// intercepted too, and a daemon killed in `defer` leaves SYNs untracked.
    pub fib: bool,
    /// Rate limits (nft_limit), also per element of a set (nft_dynset). Without them a flood of
    /// SYNs to be held displaces those of other hosts.
    pub rate: bool,
    /// Recognition of listeners for any address (5.10). Without it connections to a port on which
    /// a transparent proxy listens for any address end there.
    pub wildcard: bool,
    /// Sets of interface names filled by rules. Without them `pepd check` cannot tell where
    /// connections arrive.
    pub seen: bool,
    /// Setting and matching the priority of packets; iptables cannot do so before routing.
    pub tags: bool,
    /// Maps filled by rules, and hashes (nft_hash). Without them server legs ignore marks that
    /// other programs set on packets of hosts.
    pub marks: bool,
    /// Copies of packets to programs (nfnetlink_log). Without them connections that another pepd
    /// has split hang when this one takes over.
    pub copies: bool,
    /// Chains of type `route` in a table of both families (5.2), and sets filled by rules. Without
    /// them ICMP errors about packets of a peer leave by the link.
    pub errors: bool,
}

impl Features {
    /// All features.
    pub const FULL: Self = Self {
        ipv6: true,
        recent: true,
        forget: true,
        fib: true,
        rate: true,
        wildcard: true,
        seen: true,
        tags: true,
        marks: true,
        copies: true,
        errors: true,
    };

    /// Returns whether rules of other programs in the forward hook can hold.
    pub const fn can_obey(self) -> bool {
        self.recent && self.fib && self.tags && self.copies
    }

    /// Returns the families in use.
    pub fn families(self) -> &'static [Family] {
        if self.ipv6 {
            &Family::ALL
        } else {
            &Family::ALL[..1]
        }
    }
}

/// IPv4's dummy address (RFC 7600, section 6) for TUN devices. On an interface without any address
/// the loose reverse path check drops everything (`__fib_validate_source`, "last resort").
pub(crate) const DUMMY_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);

/// A LAN interface and the TUN through which its held SYNs go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lan {
    /// The interface on which hosts' connections arrive.
    pub interface: String,
    /// The TUN, if a site defers.
    pub tun: Option<String>,
}

/// The whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The table's name; its family is `inet`.
    pub table: String,
    /// Bits of marks that belong to pepd.
    pub mask: u32,
    /// Families with a set of recent SYNs; empty without nft_dynset.
    pub recent: Vec<Family>,
    /// Families with a set of hosts at their flow limit.
    pub hosts: Vec<Family>,
    /// Families with a set of networks of this machine; empty if not needed.
    pub near: Vec<Family>,
    /// Families with sets of connections whose packets do not reach pepd, and of those that pepd
    /// has reset; empty if the kernel cannot remember them.
    pub filtered: Vec<Family>,
    /// Families with a set of SYNs that meet rules of other programs; empty if those do not apply.
    pub asked: Vec<Family>,
    /// Packets and families with a set of hosts and their rates.
    pub rates: Vec<(Limited, Family)>,
    /// Families with a set of server legs that leave by another interface than the link; empty if
    /// no rule asks for the link.
    pub off_link: Vec<Family>,
    /// The link's interface, if rules pass connections by others.
    pub judged_link: Option<String>,
    /// True if a map keeps the marks that other programs have set on SYNs.
    pub marked: bool,
    /// True if a set keeps the interfaces by which SYNs arrived.
    pub seen: bool,
    /// Sets of hosts that have sent packets through a peer, by the TUN out of which these came.
    pub spoken: Vec<(Family, usize)>,
    /// Counters of the table.
    pub counters: Vec<Counter>,
    /// All chains; base chains come last, so that the targets of their jumps exist.
    pub chains: Vec<Chain>,
}

impl Ruleset {
    /// Returns whether SYNs meet rules of other programs first.
    pub(crate) fn asks(&self) -> bool {
        !self.asked.is_empty()
    }

    /// Returns whether a rule copies packets to this log.
    pub(crate) fn copies_to(&self, group: u16) -> bool {
        let rules = self.chains.iter().flat_map(|chain| &chain.rules);
        let mut terms = rules.flat_map(|rule| &rule.terms);
        terms.any(|term| matches!(term, Term::Copy(to) if to.group == group))
    }
}

/// Returns the LAN interfaces of the configuration with the names of their TUNs: the table's name
/// and a number, within the 15 characters of an interface's name.
pub fn lans(config: &Config) -> Vec<Lan> {
    let takes = config.takes_syns();
    let table = config.intercept.table.as_str();
    let prefix = &table[..table.len().min(12)];
    let name = |(index, interface): (usize, &pep_core::config::IfName)| Lan {
        interface: interface.to_string(),
        tun: takes.then(|| format!("{prefix}{index}")),
    };
    config.intercept.lan.iter().enumerate().map(name).collect()
}

#[cfg(test)]
mod tests;
