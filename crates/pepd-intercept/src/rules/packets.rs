//! Sites that handle single packets: into the TUN of the site, or rejected.
//!
//! They are stateless: the first site that matches a packet decides, as for flows, so that all
//! packets of a connection take the same path. Packets of pepd's flows leave the chain earlier.

use ipnet::{IpNet, Ipv6Net};
use pep_core::{
    config::Config,
    site::{Matcher, Mode, PortRange, Protocol, Site, SiteId},
};

use super::{
    Chain, Counter, Family, Hook, Prefixes, Rule, Term,
    build::{Builder, joined},
    chain, rule,
};

/// A site of mode `packet` and its TUN.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PacketLane {
    /// Site whose packets go through the TUN.
    pub site: SiteId,
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
    let sites = config.packet_sites().enumerate();
    let lane = |(number, of): (usize, pep_core::config::PacketSite<'_>)| PacketLane {
        site: of.id,
        tun: format!("{prefix}-{number}"),
        mss_clamp: of.policy.mss_clamp,
        join: of.policy.join,
    };
    sites.map(lane).collect()
}

/// Returns the TUN for packets of hosts that bypass the tunnel, if such sites exist.
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
        let mut sites = self.config.sites.iter();
        let blocks = sites.any(|(_, site)| site.mode == Mode::Block);
        let out = [Counter::NotForHosts, Counter::NotFromHosts];
        let out = out.into_iter().filter(|_| !self.lanes.is_empty());
        let refused = blocks.then_some(Counter::Refused);
        lanes.chain(out).chain(refused).collect()
    }

    /// Returns rules for packets out of the TUNs of sites, which come from a peer.
    ///
    /// Its hosts may reach hosts of this end, but not this machine: in `input` they would look like
    /// local hosts. Answers of local hosts go into the TUN untracked, so conntrack must not see the
    /// peer's packets either: it considers one direction of a connection `invalid`. Sources that
    /// are addresses of this machine are dropped, since the kernel accepts them for IPv6.
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
        rules.extend(self.remember_peers());
        rules.extend(self.lanes.iter().enumerate().map(|(number, lane)| {
            let from = Term::From(vec![lane.tun.clone()]);
            let behind = self.behind_tun(self.lans.len() + number);
            rule(
                "from a peer: untracked, like packets to it",
                [&[from], &behind[..], &[Term::Notrack, Term::Accept]].concat(),
            )
        }));
        rules.extend(passing_tun(self.config).map(|tun| {
            rule(
                "peer is down: forward and track, past the TUN",
                [Term::From(vec![tun]), Term::Accept],
            )
        }));
        rules
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
            .map(|(number, lane)| {
                chain(
                    &lane_chain(number),
                    None,
                    self.lane_rules(number, &lane.tun),
                )
            })
            .collect();
        chains.extend(self.block_chains());
        chains.push(chain(PACKETS, None, self.packets()));
        chains
    }

    /// Returns the rules of a lane. As for held SYNs, a packet enters the TUN only while a route
    /// into it exists.
    fn lane_rules(&self, number: usize, tun: &str) -> Vec<Rule> {
        use Term::{Accept, Count, Notrack, SetMark};
        let into = self.route_into_tun(self.lans.len() + number, tun);
        let counted = Count(Counter::IntoTunnel(number));
        let mut rules = self.near_rules(&[], &[Accept]);
        rules.extend([
            rule(
                "into the TUN, which exists while pepd runs",
                [&into[..], &[Notrack, counted, Accept]].concat(),
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
            Mode::Packet => {
                let mut lanes = self.lanes.iter();
                let number = lanes.position(|lane| lane.site == id);
                vec![Term::Goto(lane_chain(number.expect("each has one")))]
            }
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

    /// Returns the chain that clamps the MSS of connections to the tunnel's packets.
    pub(super) fn clamp_chain(&self) -> Option<Chain> {
        let clamped = self.lanes.iter().filter(|lane| lane.mss_clamp);
        let names: Vec<_> = clamped.map(|lane| lane.tun.clone()).collect();
        let clamp = rule(
            "clamp the MSS to packets of the tunnel",
            [Term::To(names.clone()), Term::Opens, Term::ClampMss],
        );
        let hook = Some(Hook::ForwardMangle);
        (!names.is_empty()).then(|| chain("into_tunnels", hook, vec![clamp]))
    }
}

pub(super) fn lane_chain(number: usize) -> String {
    format!("packet_{number}")
}

/// Returns the chain of a site of mode `packet`.
pub(super) fn lane_of(config: &Config, id: SiteId) -> Option<String> {
    let number = config.packet_sites().position(|of| of.id == id);
    number.map(lane_chain)
}

/// Returns the chain of a site of mode `block`.
pub(super) fn block_chain(id: SiteId) -> String {
    format!("block_{id}")
}

fn protocols(matcher: &Matcher) -> Vec<Term> {
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
fn ports(matcher: &Matcher) -> Vec<Term> {
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
