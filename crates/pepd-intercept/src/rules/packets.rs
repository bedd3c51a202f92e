//! Sites that handle single packets: into a TUN of the site, or rejected.
//!
//! They are stateless: the first site that matches a packet decides, as for flows, so that all
//! packets of a connection take the same path. Packets of pepd's flows leave the chain earlier.

use ipnet::{IpNet, Ipv6Net};
use pep_core::{
    config::Config,
    site::{Matcher, Mode, PortRange, Protocol, Site, SiteId},
};

use super::{
    Chain, Counter, Family, Hook, Prefixes, Rule, Term, build::Builder, chain, conditions::joined,
    rule,
};

/// Packets that go through a TUN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaneKind {
    /// From hosts to a peer, and back: mode `packet`.
    Peer,
    /// From hosts to the link: mode `boost`.
    ToLink,
    /// From the link to hosts: mode `boost`.
    ToHosts,
}

/// A site of mode `packet` or `boost` and a TUN of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketLane {
    /// Site whose packets go through the TUN.
    pub site: SiteId,
    /// Packets of the site that go through the TUN.
    pub kind: LaneKind,
    /// Name of the TUN.
    pub tun: String,
    /// True if the MSS of connections is clamped to the tunnel's packets.
    pub mss_clamp: bool,
    /// True if datagrams of a flow that arrive together leave the TUN as one.
    pub join: bool,
}

/// Returns the TUNs of packets, in the order of their sites. A name is that of the table and a
/// number that no TUN for held SYNs of any table can have.
pub fn lanes(config: &Config) -> Vec<PacketLane> {
    let prefix = prefix(config);
    let mut lanes = Vec::new();
    for of in config.packet_sites() {
        let kinds: &[LaneKind] = match of.peer {
            Some(_) => &[LaneKind::Peer],
            None => &[LaneKind::ToLink, LaneKind::ToHosts],
        };
        for &kind in kinds {
            lanes.push(PacketLane {
                site: of.id,
                kind,
                tun: format!("{prefix}-{}", lanes.len()),
                mss_clamp: of.policy.mss_clamp && kind == LaneKind::Peer,
                join: of.policy.join && kind == LaneKind::Peer,
            });
        }
    }
    lanes
}

/// Returns the TUN for packets of hosts that the kernel forwards: those that bypass the tunnel, and
/// those of mode `boost`. `None` without such sites.
pub fn passing_tun(config: &Config) -> Option<String> {
    config.packet_sites().next()?;
    Some(format!("{}-p", prefix(config)))
}

fn prefix(config: &Config) -> &str {
    let table = config.intercept.table.as_str();
    &table[..table.len().min(12)]
}

/// Returns true if a site handles packets.
pub(crate) fn looks_at_packets(config: &Config) -> bool {
    config
        .sites
        .iter()
        .any(|(_, site)| site.mode.takes_packets())
}

/// Name of the chain for packets of no flow. `packets` is a keyword of nft.
const PACKETS: &str = "packet_sites";

/// Name of the chain for packets from the link to hosts of sites of mode `boost`.
pub(crate) const BOOSTED: &str = "boosted_sites";

impl Builder<'_> {
    fn looks_at_packets(&self) -> bool {
        looks_at_packets(self.config)
    }

    pub(super) fn lane_names(&self) -> Vec<String> {
        self.lanes.iter().map(|lane| lane.tun.clone()).collect()
    }

    /// Returns the additional counters.
    pub(super) fn packet_counters(&self) -> Vec<Counter> {
        let lanes = (0..self.lanes.len()).map(Counter::IntoTunnel);
        let blocks = self.has_sites(Mode::Block);
        let out = [Counter::NotForHosts, Counter::NotFromHosts];
        let out = out.into_iter().filter(|_| !self.lanes.is_empty());
        let refused = blocks.then_some(Counter::Refused);
        lanes.chain(out).chain(refused).collect()
    }

    pub(super) fn has_sites(&self, mode: Mode) -> bool {
        let mut sites = self.config.sites.iter();
        sites.any(|(_, site)| site.mode == mode)
    }

    /// Returns rules for packets out of the TUNs of sites, which come from a peer, or from the link
    /// with mode `boost`.
    ///
    /// Its hosts may reach hosts of this end, but not this machine: in `input` they would look like
    /// local hosts. Answers of local hosts go into the TUN untracked, so conntrack must not see the
    /// peer's packets either: it considers one direction of a connection `invalid`. Sources that
    /// are addresses of this machine are dropped, since the kernel accepts them for IPv6.
    ///
    /// Packets from the link were tracked, and their addresses translated back, before they entered
    /// the TUN.
    pub(super) fn out_of_lanes(&self) -> Vec<Rule> {
        if self.lanes.is_empty() {
            return Vec::new();
        }
        let from = || Term::From(self.lane_names());
        let refused = |what, counter| [from(), what, Term::Count(counter), Term::Drop];
        let mut rules = vec![
            rule(
                "a peer must not address this machine itself",
                refused(Term::ForThisMachine, Counter::NotForHosts),
            ),
            rule(
                "a peer must not use an address of this machine as source",
                refused(Term::AsThisMachine, Counter::NotFromHosts),
            ),
        ];
        rules.extend(self.not_of_this_end());
        rules.extend(self.remember_peers());
        rules.extend(self.lanes.iter().enumerate().map(|(number, lane)| {
            let from = Term::From(vec![lane.tun.clone()]);
            let behind = self.behind_tun(self.lans.len() + number);
            let comment = match lane.kind {
                LaneKind::Peer => "from a peer: untracked, like packets to it",
                LaneKind::ToLink | LaneKind::ToHosts => "from the link: tracked before",
            };
            rule(
                comment,
                [&[from], &behind[..], &[Term::Notrack, Term::Accept]].concat(),
            )
        }));
        rules.extend(passing_tun(self.config).map(|tun| {
            rule(
                "of hosts, past a peer that is down or through boosters: forward and track",
                [Term::From(vec![tun]), Term::Accept],
            )
        }));
        rules
    }

    /// Returns rules for packets from peers in the name of hosts of this end: their packets do not
    /// come from a peer. Peers with `from` speak for the hosts that it names.
    fn not_of_this_end(&self) -> impl Iterator<Item = Rule> {
        let is_free = |lane: &&PacketLane| {
            let mut sites = self.config.packet_sites();
            let peer = sites.find(|of| of.id == lane.site).and_then(|of| of.peer);
            peer.is_some_and(|peer| self.config.peers[peer].from.is_none())
        };
        let may_lie = self.lanes.iter().filter(is_free);
        let tuns: Vec<_> = may_lie.map(|lane| lane.tun.clone()).collect();
        let families = self.near().iter().filter(|_| !tuns.is_empty());
        let rules = families.map(|&family| {
            let from = Term::From(tuns.clone());
            let counted = Term::Count(Counter::NotFromHosts);
            rule(
                "a peer must not speak for hosts in a network of this machine",
                [from, Term::FromNear(family), counted, Term::Drop],
            )
        });
        rules.collect::<Vec<_>>().into_iter()
    }

    /// Returns rules for a packet of no flow that meets these conditions.
    pub(super) fn to_packets(
        &self,
        comment: &str,
        conditions: &[Term],
        ends: bool,
    ) -> Option<Rule> {
        let chain = PACKETS.to_owned();
        let end = match ends {
            true => Term::Goto(chain),
            false => Term::Jump(chain),
        };
        let terms = [conditions, &[end]].concat();
        self.looks_at_packets().then(|| rule(comment, terms))
    }

    /// Returns the chains that others jump to, in the order of their creation.
    pub(super) fn packet_chains(&self) -> Vec<Chain> {
        if !self.looks_at_packets() {
            return Vec::new();
        }
        let lanes = self.lanes.iter().enumerate();
        let mut chains: Vec<_> = lanes
            .map(|(number, lane)| chain(&lane_chain(number), None, self.lane_rules(number, lane)))
            .collect();
        chains.extend(self.block_chains());
        chains.push(chain(PACKETS, None, self.packets()));
        if self.has_sites(Mode::Boost) {
            chains.push(chain(BOOSTED, None, self.boosted()));
        }
        chains
    }

    /// Returns the rules of a lane. As for held SYNs, a packet enters the TUN only while a route
    /// into it exists.
    fn lane_rules(&self, number: usize, lane: &PacketLane) -> Vec<Rule> {
        use Term::{Accept, Count, Notrack, RoutedByOther, SetMark};
        let into = self.route_into_tun(self.lans.len() + number, &lane.tun);
        let counted = Count(Counter::IntoTunnel(number));
        let mut rules = match lane.kind {
            LaneKind::Peer | LaneKind::ToLink => self.near_rules(true, &[], &[Accept]),
            LaneKind::ToHosts => Vec::new(),
        };
        let link = self.link_alone().filter(|_| lane.kind == LaneKind::ToLink);
        rules.extend(link.map(|link| {
            let other = [RoutedByOther(vec![link.to_owned()]), Accept];
            rule("route does not lead by the link", other)
        }));
        let untracked: &[Term] = match lane.kind {
            LaneKind::Peer | LaneKind::ToLink => &[Notrack],
            LaneKind::ToHosts => &[],
        };
        rules.extend([
            rule(
                "into the TUN, which exists while pepd runs",
                [&into[..], untracked, &[counted, Accept]].concat(),
            ),
            rule("pepd has ended: forward and track", [SetMark(0), Accept]),
        ]);
        rules
    }

    fn block_chains(&self) -> impl Iterator<Item = Chain> + '_ {
        let sites = self.config.sites.iter();
        let blocking = sites.filter(|(_, site)| site.mode == Mode::Block);
        blocking.map(|(id, site)| {
            let refused = [Term::Count(Counter::Refused), Term::Reject];
            chain(&block_chain(id), None, vec![rule(&site.name, refused)])
        })
    }

    fn packets(&self) -> Vec<Rule> {
        let mut rules = vec![rule(
            "for this machine itself, or not unicast",
            [Term::ForThisMachine, Term::Return],
        )];
        if self.features.ipv6 {
            let local: Ipv6Net = "fe80::/10".parse().expect("a prefix");
            let local = Term::Destination(Prefixes::for_family(Family::V6, &[IpNet::V6(local)]));
            rules.push(rule("link-local: not forwarded", [local, Term::Return]));
        }
        rules.extend(self.errors_of_routers());
        let sites: Vec<_> = self.config.sites.iter().collect();
        let last = sites
            .iter()
            .rposition(|(_, site)| site.mode.takes_packets());
        let carries_icmp =
            |(_, site): &(SiteId, &Site)| site.mode == Mode::Packet && takes_icmp(&site.matcher);
        let first = sites.iter().position(carries_icmp);
        for (place, (id, site)) in sites[..last.map_or(0, |last| last + 1)].iter().enumerate() {
            if first == Some(place) {
                rules.extend(self.not_carried());
            }
            rules.extend(self.packet_site(*id, site));
        }
        rules
    }

    fn packet_site(&self, id: SiteId, site: &Site) -> Vec<Rule> {
        let interface = match site.matcher.interface.is_empty() {
            true => Vec::new(),
            false => {
                let lans = self.interfaces(&site.matcher);
                vec![Term::From(
                    lans.map(|(_, lan)| lan.interface.clone()).collect(),
                )]
            }
        };
        let ends = match site.mode {
            Mode::Packet => vec![self.lane_mark(id, LaneKind::Peer)],
            Mode::Boost => vec![self.lane_mark(id, LaneKind::ToLink)],
            Mode::Block => vec![Term::Goto(block_chain(id))],
            Mode::Split | Mode::Tunnel | Mode::Bypass => vec![Term::Return],
        };
        let protocols = protocols(&site.matcher);
        let variants = self.conditions(&site.matcher, &ports(&site.matcher));
        let rules = variants.into_iter().map(|conditions| {
            let terms = [&interface, &protocols, &conditions, &ends].map(Vec::as_slice);
            rule(&site.name, terms.concat())
        });
        rules.collect()
    }

    fn lane_mark(&self, id: SiteId, kind: LaneKind) -> Term {
        let mut lanes = self.lanes.iter();
        let number = lanes.position(|lane| lane.site == id && lane.kind == kind);
        Term::Goto(lane_chain(number.expect("each has one")))
    }

    /// Returns the rule for packets from the link to hosts, after conntrack and de-NAT.
    pub(super) fn link_packets(&self) -> Option<Rule> {
        let from = match &self.config.link {
            Some(link) => Term::From(vec![link.interface.to_string()]),
            None => {
                let tuns = passing_tun(self.config)
                    .into_iter()
                    .chain(self.lane_names());
                Term::NotFrom(self.host_names().into_iter().chain(tuns).collect())
            }
        };
        let boosted = [from, Term::Goto(BOOSTED.to_owned())];
        let rule = rule("from the link, perhaps to hosts of mode boost", boosted);
        self.has_sites(Mode::Boost).then_some(rule)
    }

    /// Returns the rules for packets from the link: the first site whose answer they are decides,
    /// as for packets of hosts.
    fn boosted(&self) -> Vec<Rule> {
        let mut rules = vec![rule(
            "for this machine itself, or not unicast",
            [Term::ForThisMachine, Term::Return],
        )];
        let sites: Vec<_> = self.config.sites.iter().collect();
        let last = sites.iter().rposition(|(_, site)| site.mode == Mode::Boost);
        for (id, site) in &sites[..last.map_or(0, |last| last + 1)] {
            let lans = self.interfaces(&site.matcher);
            let to = Term::RoutedToAny(lans.map(|(_, lan)| lan.interface.clone()).collect());
            let end = match site.mode {
                Mode::Boost => self.lane_mark(*id, LaneKind::ToHosts),
                _ => Term::Return,
            };
            let mirrored = site.matcher.mirrored();
            let protocols = protocols(&mirrored);
            let variants = self.conditions(&mirrored, &ports(&mirrored)).into_iter();
            rules.extend(variants.map(|conditions| {
                let terms = [&protocols[..], &conditions, &[to.clone(), end.clone()]];
                rule(&site.name, terms.concat())
            }));
        }
        rules
    }

    /// Returns the chain that clamps the MSS of connections to the tunnel's packets.
    pub(super) fn clamp_chain(&self) -> Option<Chain> {
        let clamped = self.lanes.iter().filter(|lane| lane.mss_clamp);
        let names: Vec<_> = clamped.map(|lane| lane.tun.clone()).collect();
        let clamp = rule(
            "clamp the MSS to packets of the tunnel",
            [Term::Opens, Term::To(names.clone()), Term::ClampMss],
        );
        let hook = Some(Hook::ForwardMangle);
        (!names.is_empty()).then(|| chain("into_tunnels", hook, vec![clamp]))
    }
}

pub(super) fn lane_chain(number: usize) -> String {
    format!("packet_{number}")
}

/// Returns the chains of a site of mode `packet` or `boost`.
pub(super) fn lanes_of(config: &Config, id: SiteId) -> Vec<String> {
    let lanes = lanes(config).into_iter().enumerate();
    let of_site = lanes.filter(|(_, lane)| lane.site == id);
    of_site.map(|(number, _)| lane_chain(number)).collect()
}

/// Returns the chain of a site of mode `block`.
pub(super) fn block_chain(id: SiteId) -> String {
    format!("block_{id}")
}

pub(super) fn protocols(matcher: &Matcher) -> Vec<Term> {
    let mut protocols = matcher.protocol.clone();
    protocols.sort_unstable();
    protocols.dedup();
    match protocols.len() {
        0 => Vec::new(),
        _ => vec![Term::Protocol(protocols)],
    }
}

/// Returns port conditions for any protocol with ports: the offset is the same. The kernel has
/// reassembled fragments before: it does so for any redirecting rule (tproxy), and the built-in
/// site has some in every table.
pub(super) fn ports(matcher: &Matcher) -> Vec<Term> {
    let term = |ranges: &[PortRange], term: fn(Vec<PortRange>) -> Term| {
        (!ranges.is_empty()).then(|| term(joined(ranges)))
    };
    let source = term(&matcher.sport, Term::TransportSource);
    let destination = term(&matcher.dport, Term::TransportDestination);
    source.into_iter().chain(destination).collect()
}

/// Returns true if a site may take connections.
pub(super) fn takes_tcp(matcher: &Matcher) -> bool {
    matcher.protocol.is_empty() || matcher.protocol.contains(&Protocol::TCP)
}

fn takes_icmp(matcher: &Matcher) -> bool {
    let icmp = [Protocol::ICMP, Protocol::ICMPV6];
    matcher.protocol.is_empty() || matcher.protocol.iter().any(|of| icmp.contains(of))
}

#[cfg(test)]
#[path = "packets_tests.rs"]
mod tests;
