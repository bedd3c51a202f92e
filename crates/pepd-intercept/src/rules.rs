//! What our packet filter table says, as data: built here from the configuration, written out
//! as nft text (what pepd installs) or iptables commands by its siblings.
//!
//! ```text
//! chain from_hosts    prerouting, before conntrack: packets from hosts and out of our TUNs
//! chain not_from_lan  what comes in by other interfaces: which
//! chain gate          empty, or what lets new flows pass unaccelerated
//! chain no_route      lets new flows pass to where no route leads; empty while the link is down
//! chain elsewhere     lets new flows pass whose route does not lead by the link
//! chain host_at_cap   lets new flows of hosts pass that have as many as one may have
//! chain lost_N         empty, or the fate of flows of site N while redirected SYNs do not arrive
//! chain held_rate     lets SYNs pass that come faster than they are to be held
//! chain sites         one or more rules per site, in the order of the configuration
//! chain hold_K        a SYN from LAN interface K goes into TUN K
//! chain site_N        a SYN goes to the listener of site N
//! chain packet_N      a packet of the Nth site of mode packet goes into its TUN
//! chain block_N       a packet of site N of mode block is refused
//! chain packet_sites  what is of no flow: one or more rules per site, where some site looks at packets
//! chain from_servers  prerouting, after de-NAT: answers of the servers
//! chain kept_marks    keeps the mark that another program has set on a SYN, for the server leg
//! chain marks_again   prerouting, last: puts back marks that another program's rules have changed
//! chain to_hosts      output, before conntrack: what we send to hosts
//! chain handshakes    postrouting, last: counts listeners' answers to hosts
//! chain errors        output: ICMP errors about packets of a peer go into the TUN out of which these came
//! chain into_tunnels  forward: connections whose packets go into a TUN
//! ```
//!
//! The order of rules within `from_hosts` matters; each rule's comment says why it is there.

mod build;
mod errors;
mod marks;
mod packets;

use build::site_chain;
pub(crate) use packets::looks_at_packets;
pub use packets::{PacketLane, lanes, passing_tun};
use pepd_sys::gate::Gate;

use std::borrow::Cow;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use pep_core::{
    config::Config,
    site::{InterceptionLoss, Mode, PortRange, Protocol, SiteId},
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
    /// Those of `nets` that are of the family, joined where they touch or overlap (a set of
    /// intervals may not hold overlapping ones).
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

/// One condition or action of a rule; a rule's terms are taken from left to right and the
/// first condition that does not hold ends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// The packet came in on one of these interfaces.
    From(Vec<String>),
    /// The packet came in on any other interface.
    NotFrom(Vec<String>),
    /// TCP, or ICMP that may quote TCP.
    TcpOrIcmp,
    /// Anything else.
    NotTcpOrIcmp,
    /// The packet goes out by one of these interfaces.
    To(Vec<String>),
    /// What is above IP is one of these.
    Protocol(Vec<Protocol>),
    /// TCP that opens a connection, or answers that: of SYN and RST only SYN is set.
    Opens,
    /// TCP that opens a connection: of FIN, SYN, RST and ACK only SYN is set.
    Syn,
    /// TCP in the middle of a connection: of FIN, SYN, RST and ACK only ACK is set.
    Ack,
    /// TCP that ends one direction: of FIN, SYN, RST and ACK only FIN and ACK are set.
    Fin,
    /// TCP that aborts: of SYN and RST only RST is set.
    Rst,
    /// TCP with urgent data.
    Urgent,
    /// TCP that answers a SYN: of FIN, SYN, RST and ACK only SYN and ACK are set.
    SynAck,
    /// The source address lies in one of the prefixes.
    Source(Prefixes),
    /// The destination address lies in one of the prefixes.
    Destination(Prefixes),
    /// The source port lies in one of the ranges, whatever protocol with ports it is of.
    TransportSource(Vec<PortRange>),
    /// The destination port, likewise.
    TransportDestination(Vec<PortRange>),
    /// The source port of TCP lies in one of the ranges.
    SourcePort(Vec<PortRange>),
    /// The destination port of TCP lies in one of the ranges.
    DestinationPort(Vec<PortRange>),
    /// The packet is of the family and its DSCP is one of these.
    Dscp(Family, Vec<u8>),
    /// The destination is this machine, or not a single machine.
    ForThisMachine,
    /// The source is this machine, or not a single machine.
    AsThisMachine,
    /// The packet's source is not reached by the interface by which it came.
    NotBehind,
    /// No route leads to the packet's destination, or one that refuses.
    NoRoute,
    /// With its present mark, the packet would leave by this interface.
    RoutedTo(String),
    /// With its present mark, the packet would leave by one of these.
    RoutedToAny(Vec<String>),
    /// With its present mark, the packet has a route, and it leads by another interface than this
    /// one.
    RoutedByOther(String),
    /// A full socket (no handshake, no TIME_WAIT) with this mark takes the packet.
    SocketMark(u32),
    /// A transparent socket takes the packet, in whatever state.
    SocketTransparent,
    /// The packet's mark is this one, within the mask.
    Mark(u32),
    /// The packet is of the family, and goes to a network that this machine is in, and that no
    /// uplink leads to.
    ToNear(Family),
    /// The packet's mark has no bits beyond the mask.
    NoOtherMark,
    /// Keep the packet's mark as that of a SYN with its four addresses, of the family.
    KeepMark(Family),
    /// Forget the mark that is kept under its four addresses, if any; packets of the family.
    ForgetMark(Family),
    /// The packet is of the family.
    Of(Family),
    /// TCP with an option of this kind.
    TcpOption(u8),
    /// The TTL or hop limit of a packet of the family is above this.
    HopsAbove(Family, u8),
    /// The four addresses of the packet are those of a SYN we took in lately.
    IsRecent(Family),
    /// Remember the four addresses for [`Term::IsRecent`].
    Remember(Family),
    /// Forget them; a condition too: only packets of the family that lead to some go on.
    Forget(Family),
    /// The packet is of the family, and of a host that has as many flows as one may have.
    AtCap(Family),
    /// The packet is of the family, and its host's packets that come here are more than this many a
    /// second.
    FasterPerHost(Family, u32),
    /// All packets that come here are more than this many a second.
    Faster(u32),
    /// Set the packet's mark within the mask; 0 clears it.
    SetMark(u32),
    /// Set the packet's priority to 5045:N, N being [the number](pepd_sys::marks::MarkSet::number) of
    /// a mark, by which the packet is known again whatever becomes of its mark.
    Tag(u16),
    /// The packet's priority is 5045:N.
    Tagged(u16),
    /// Keep the packet out of conntrack.
    Notrack,
    /// Give the packet to the loopback listener on this port; a condition too: false when
    /// nobody listens.
    Tproxy(Family, u16),
    /// Lower the MSS that a connection is told of to what fits on the packet's way.
    ClampMss,
    /// Drop the packet, and tell its sender by ICMP that the port cannot be reached.
    Reject,
    /// Drop the packet.
    Drop,
    /// Add to a counter.
    Count(Counter),
    /// Remember by which interface the packet came in.
    Seen,
    /// A redirect: a router tells a host of a shorter way.
    IcmpRedirect(Family),
    /// An ICMP error of the family: unreachable, too big, no hop left, a bad header.
    IcmpError(Family),
    /// What no peer takes of another's ICMP of the family: errors, and what routers say to hosts of
    /// their own link.
    IcmpNotCarried(Family),
    /// Remember who sends the packet, for [`Term::HasSpoken`] of the same lane; packets of the
    /// family only.
    RememberPeer(Family, usize),
    /// The packet goes to a host of whom packets have come out of the TUN of that lane of late.
    HasSpoken(Family, usize),
    /// What the ICMP error quotes has a header without options, and is of one of these protocols.
    QuotedProtocol(Family, Vec<Protocol>),
    /// The source port of what the ICMP error quotes lies in one of the ranges.
    QuotedSource(Family, Vec<PortRange>),
    /// The destination port, likewise.
    QuotedDestination(Family, Vec<PortRange>),
    /// Done with this hook.
    Accept,
    /// Back to the chain that jumped here.
    Return,
    /// Go through this chain, then on.
    Jump(String),
    /// Go through this chain instead of the rest of the present one.
    Goto(String),
}

/// What is counted, in packets, since the table was installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counter {
    /// SYNs that passed unaccelerated, as the gate was closed.
    Passed,
    /// SYNs that passed unaccelerated, as their host had as many flows as one may have.
    PassedHosts,
    /// SYNs that passed unaccelerated, as there were too many of late to be remembered.
    PassedRecent,
    /// SYNs that passed unaccelerated, as more came within a second than are to be held.
    PassedRate,
    /// SYNs that passed unaccelerated, as their connections are not to be split.
    PassedEndToEnd,
    /// SYNs that passed unaccelerated, as no route leads to their destination, or no server answers
    /// over IPv6.
    PassedNoRoute,
    /// SYNs that passed unaccelerated, as those that are redirected do not arrive.
    PassedLost,
    /// SYNs that were dropped for the same reason.
    BlockedLost,
    /// SYNs that passed unaccelerated, as their route does not lead by the link.
    PassedOtherRoute,
    /// SYNs that came in by LAN interfaces.
    Syns,
    /// Packets that listeners were given: SYNs, and answers to SYN cookies.
    Intercepted,
    /// SYNs that we sent to servers.
    Connecting,
    /// SYN-ACKs of servers that found the socket they are for.
    Answered,
    /// SYN-ACKs of IPv6 that came in, whoever they are for.
    AnsweredV6,
    /// Packets of flows with urgent data, which arrives in the stream.
    Urgent,
    /// Packets of a family that the listener of a site was given.
    Redirected(Family, SiteId),
    /// SYNs of a family that went into the TUNs of LAN interfaces.
    Held(Family),
    /// Packets of a family by which hosts have aborted a handshake with a listener.
    Aborted(Family),
    /// SYN-ACKs of a family that listeners have sent to hosts.
    Handshakes(Family),
    /// SYNs of a family whose source is not behind the interface by which they came: the kernel may
    /// drop them.
    OtherMarks(Family),
    /// SYNs that another program had marked, and for whose marks there was no more room.
    Unkept,
    /// Packets that went into the TUN of the site of mode `packet` with this number.
    IntoTunnel(usize),
    /// Packets that were refused.
    Refused,
    /// Packets from a peer that are for this machine itself, or for many.
    NotForHosts,
    /// Packets from a peer that bear an address of this machine as source, or of many.
    NotFromHosts,
}

impl Counter {
    /// Counters that are in every table.
    pub const ALL: [Self; 14] = [
        Self::Passed,
        Self::PassedHosts,
        Self::PassedRecent,
        Self::PassedRate,
        Self::PassedEndToEnd,
        Self::PassedNoRoute,
        Self::PassedLost,
        Self::BlockedLost,
        Self::PassedOtherRoute,
        Self::Syns,
        Self::Intercepted,
        Self::Connecting,
        Self::Answered,
        Self::Urgent,
    ];

    /// SYNs that pepd did not take, by why.
    pub const PASSED: [Self; 9] = *Self::ALL.first_chunk().expect("they come first");

    /// SYNs that passed because a limit was reached, by which.
    pub const PASSED_LIMITS: [Self; 4] = *Self::ALL.first_chunk().expect("they come first");

    /// As it is called in the table.
    pub fn name(self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::Passed => "passed",
            Self::PassedHosts => "passed_hosts",
            Self::PassedRecent => "passed_recent",
            Self::PassedRate => "passed_rate",
            Self::PassedEndToEnd => "passed_end_to_end",
            Self::PassedNoRoute => "passed_no_route",
            Self::PassedLost => "passed_lost",
            Self::BlockedLost => "blocked_lost",
            Self::PassedOtherRoute => "passed_elsewhere",
            Self::Syns => "syns",
            Self::Intercepted => "intercepted",
            Self::Connecting => "called",
            Self::Answered => "answered",
            Self::AnsweredV6 => "answered6",
            Self::Urgent => "urgent",
            Self::Redirected(family, site) => {
                return format!("redirected{}_{site}", family.number()).into();
            }
            Self::Held(family) => return format!("held{}", family.number()).into(),
            Self::Aborted(family) => return format!("aborted{}", family.number()).into(),
            Self::Handshakes(family) => return format!("handshakes{}", family.number()).into(),
            Self::OtherMarks(family) => return format!("foreign{}", family.number()).into(),
            Self::Unkept => "marks_unkept",
            Self::IntoTunnel(number) => return format!("packets_into_tunnel_{number}").into(),
            Self::Refused => "packets_refused",
            Self::NotForHosts => "packets_not_for_hosts",
            Self::NotFromHosts => "packets_not_from_hosts",
        })
    }
}

/// A rule: what it does and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Conditions, then actions.
    pub terms: Vec<Term>,
    /// For people who list the table; at most 128 bytes without double quotes.
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

/// Where a base chain is hooked in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Incoming packets before conntrack (priority raw, -300).
    PreroutingRaw,
    /// Incoming packets after conntrack and de-NAT (priority dstnat + 1, -99).
    PreroutingDnat,
    /// Incoming packets after all other programs' rules, before the kernel routes them (priority
    /// 1000).
    PreroutingLast,
    /// Our own packets before conntrack (priority raw, -300).
    OutputRaw,
    /// Our own packets, and forwarded ones, after all other programs' rules (priority 1000).
    PostroutingLast,
    /// Our own packets before conntrack, which then go where their mark leads (a chain of type `route`).
    OutputRoute,
    /// Packets that are forwarded (priority mangle, -150).
    ForwardMangle,
}

/// A chain of rules, hooked in or jumped to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name.
    pub name: String,
    /// `None` when other chains jump to it.
    pub hook: Option<Hook>,
    /// Its rules in order.
    pub rules: Vec<Rule>,
}

fn chain(name: &str, hook: Option<Hook>, rules: Vec<Rule>) -> Chain {
    Chain {
        name: name.to_owned(),
        hook,
        rules,
    }
}

/// What the kernel can do beyond what we cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Features {
    /// Whether there is IPv6.
    pub ipv6: bool,
    /// Sets filled by rules (nft_dynset, 4.1): without, no flow opened by a SYN cookie.
    pub recent: bool,
    /// Removing from sets by rules (5.4): without, what is repeated after the end of a flow that a
    /// SYN cookie opened may open another.
    pub forget: bool,
    /// Route look-ups in rules (nft_fib, 4.10): without, SYNs to this machine itself are
    /// intercepted too, and a daemon killed in `defer` leaves SYNs out of conntrack.
    pub fib: bool,
    /// Limits of rates (nft_limit), one for each element of a set too (nft_dynset): without, a
    /// flood of SYNs that are to be held keeps others' out.
    pub rate: bool,
    /// Sets of the names of interfaces filled by rules: without, `pepd check` cannot tell where
    /// connections arrive.
    pub seen: bool,
    /// Setting and matching the priority of packets; iptables cannot, before routing.
    pub tags: bool,
    /// Maps filled by rules, and hashes (nft_hash): without, server legs do not follow marks that
    /// other programs set on hosts' packets.
    pub marks: bool,
    /// Chains of type `route` in a table of both families (5.2), and sets filled by rules: without,
    /// ICMP errors about a peer's packets go out by the link.
    pub errors: bool,
}

impl Features {
    /// Everything.
    pub const FULL: Self = Self {
        ipv6: true,
        recent: true,
        forget: true,
        fib: true,
        rate: true,
        seen: true,
        tags: true,
        marks: true,
        errors: true,
    };

    /// The families in use.
    pub fn families(self) -> &'static [Family] {
        if self.ipv6 {
            &Family::ALL
        } else {
            &Family::ALL[..1]
        }
    }
}

/// A LAN interface and the TUN through which its held SYNs go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lan {
    /// The interface on which hosts' connections arrive.
    pub interface: String,
    /// The TUN, where some site defers.
    pub tun: Option<String>,
}

/// Our whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ruleset {
    /// The table's name; its family is `inet`.
    pub table: String,
    /// The bits of marks that are ours.
    pub mask: u32,
    /// Families for which there is a set of recent SYNs; empty without nft_dynset.
    pub recent: Vec<Family>,
    /// Families whose recent SYNs can be forgotten again.
    pub forgotten: Vec<Family>,
    /// Families for which there is a set of hosts that have as many flows as one may have.
    pub hosts: Vec<Family>,
    /// Families for which there is a set of networks that this machine is in; empty where none is
    /// asked for.
    pub near: Vec<Family>,
    /// Families for which there is a set of hosts by how fast their SYNs come; empty where none are
    /// held.
    pub rates: Vec<Family>,
    /// True where there is a map of the marks that other programs have set on SYNs.
    pub marked: bool,
    /// Whether there is a set of the interfaces by which SYNs came in.
    pub seen: bool,
    /// The sets of hosts that a peer has sent packets of, by the TUN out of which these came.
    pub spoken: Vec<(Family, usize)>,
    /// What is counted.
    pub counters: Vec<Counter>,
    /// All chains; those hooked in come last, so that what they jump to exists.
    pub chains: Vec<Chain>,
}

/// The LAN interfaces of the configuration with the names of their TUNs: the table's name
/// and a number, within the 15 characters of an interface's name.
pub fn lans(config: &Config) -> Vec<Lan> {
    let defers = config.defers();
    let table = config.intercept.table.as_str();
    let prefix = &table[..table.len().min(12)];
    let name = |(index, interface): (usize, &pep_core::config::IfName)| Lan {
        interface: interface.to_string(),
        tun: defers.then(|| format!("{prefix}{index}")),
    };
    config.intercept.lan.iter().enumerate().map(name).collect()
}

/// The rules of the chain `gate`.
///
/// Where the kernel already knows the packet (a handshake that has begun, a TIME_WAIT), the
/// flow is ours and goes on even when the gate is closed.
pub fn gate(gate: Gate) -> Vec<Rule> {
    match gate {
        Gate::Open => Vec::new(),
        Gate::Closed => vec![
            goes_on(),
            rule(
                "new flows pass unaccelerated",
                [Term::Count(Counter::Passed), Term::Accept],
            ),
        ],
    }
}

fn goes_on() -> Rule {
    rule(
        "a handshake that has begun goes on",
        [Term::SocketTransparent, Term::Return],
    )
}

/// The chain that new flows go through which would otherwise be answered at once.
pub(super) const NO_ROUTE: &str = "no_route";

/// Purposes of the chain [`NO_ROUTE`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum NoRoute {
    /// To where no route leads, flows pass.
    #[default]
    Asked,
    /// So do all flows of IPv6, over which no server answers.
    SilentV6,
    /// None pass: with the link its routes may be gone, and flows wait for it.
    LinkDown,
}

/// The rules of the chain [`NO_ROUTE`].
pub(super) fn no_route(now: NoRoute) -> Vec<Rule> {
    let passes = |comment, condition| {
        let passes = [condition, Term::Count(Counter::PassedNoRoute), Term::Accept];
        rule(comment, passes)
    };
    let asked = passes("no route leads there: the kernel says so", Term::NoRoute);
    let silent = passes(
        "no server answers over IPv6: hosts are to notice",
        Term::Of(Family::V6),
    );
    match now {
        NoRoute::Asked => vec![goes_on(), asked],
        NoRoute::SilentV6 => vec![goes_on(), asked, silent],
        NoRoute::LinkDown => Vec::new(),
    }
}

/// The chain by which new flows of a site do not go further while redirected SYNs do not arrive.
pub(super) fn lost_chain(id: SiteId) -> String {
    format!("lost_{id}")
}

/// True for the name of a chain by which flows of a site stop while their SYNs do not arrive.
pub fn is_lost_chain(name: &str) -> bool {
    name.starts_with("lost_")
}

/// The rules of the chain [`lost_chain`] while SYNs of these families do not arrive.
pub(super) fn lost<'a>(
    families: impl IntoIterator<Item = &'a Family>,
    instead: InterceptionLoss,
    forgotten: &[Family],
) -> Vec<Rule> {
    let rules = families.into_iter().flat_map(|&family| {
        let (comment, counter, end) = match instead {
            InterceptionLoss::Pass => (LOST_PASS, Counter::PassedLost, Term::Accept),
            InterceptionLoss::Block => (LOST_BLOCK, Counter::BlockedLost, Term::Drop),
        };
        let forget = forgotten.contains(&family).then(|| {
            let forget = [Term::Of(family), Term::Forget(family)];
            rule("an answer to its server is none to a SYN cookie", forget)
        });
        let end = rule(comment, [Term::Of(family), Term::Count(counter), end]);
        forget.into_iter().chain([end])
    });
    rules.collect()
}

const LOST_PASS: &str = "redirected SYNs do not arrive: new flows pass";
const LOST_BLOCK: &str = "redirected SYNs do not arrive: new flows are blocked";

/// The chain that new flows of split sites go through where the link is known.
pub(super) const OTHER_ROUTE: &str = "elsewhere";

/// The rules of the chain [`OTHER_ROUTE`].
fn other_route(link: &str) -> Vec<Rule> {
    let passes = [
        Term::RoutedByOther(link.to_owned()),
        Term::Count(Counter::PassedOtherRoute),
        Term::Accept,
    ];
    vec![
        goes_on(),
        rule("its route leads by another interface than the link", passes),
    ]
}

/// The rules of the chain `host_at_cap`.
fn host_at_cap() -> Vec<Rule> {
    vec![
        goes_on(),
        rule(
            "its new flows pass unaccelerated",
            [Term::Count(Counter::PassedHosts), Term::Accept],
        ),
    ]
}

/// The chain that a site has for itself, which can be changed without others noticing. Sites of
/// mode `bypass` have none.
pub(super) fn own_chain(config: &Config, id: SiteId) -> Option<String> {
    match config.sites[id].mode {
        Mode::Split | Mode::Tunnel => Some(site_chain(id)),
        Mode::Packet => packets::lane_of(config, id),
        Mode::Block => Some(packets::block_chain(id)),
        Mode::Bypass => None,
    }
}

/// The rules of a site's own chain of this name while what it takes is left to the kernel; `None`
/// for other chains.
pub fn left_alone(chain: &str) -> Option<Vec<Rule>> {
    let (of, _) = chain.split_once('_')?;
    match of {
        "site" => Some(vec![
            goes_on(),
            rule(
                "its peer or the link is gone, or it is off: new flows pass",
                [Term::Accept],
            ),
        ]),
        "packet" | "block" => Some(vec![rule(
            "its peer is gone, or it is off: packets pass",
            [Term::Accept],
        )]),
        _ => None,
    }
}

/// The rules that a chain of this name may have instead of its own: while a peer or the link is
/// down, its site off, or nothing heard over IPv6.
pub fn instead(chain: &str) -> Vec<Vec<Rule>> {
    match chain {
        NO_ROUTE => [NoRoute::LinkDown, NoRoute::SilentV6].map(no_route).into(),
        _ => left_alone(chain).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests;
