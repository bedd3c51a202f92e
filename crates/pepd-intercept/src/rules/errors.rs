//! ICMP errors about packets of a peer, returned through its tunnel like the answers of hosts.
//!
//! The kernel sends them itself (time exceeded, host unreachable, too big for the LAN), as do
//! routers behind this machine. Without these rules they would leave by the link toward the peer's
//! hosts: in clear text, with the start of the packet, and past a NAT without matching state. Only
//! its quotation identifies an error's packet. So pepd remembers hosts that a peer has sent packets
//! of, by the TUN out of which these came.

use pep_core::site::{Matcher, SiteId};

use super::{
    Chain, Family, Hook, Rule, Term,
    build::Builder,
    chain,
    conditions::joined,
    packets::{LaneKind, lane_chain},
    rule,
};

impl Builder<'_> {
    /// Returns the lanes, each with the families in which its peers' hosts are remembered.
    pub(super) fn spoken(&self) -> Vec<(Family, usize)> {
        if !self.features.errors {
            return Vec::new();
        }
        let lanes = self.lanes.iter().enumerate();
        let of_peers = lanes.filter(|(_, lane)| lane.kind == LaneKind::Peer);
        let lanes = of_peers.map(|(number, _)| number);
        let both = |lane| {
            self.features
                .families()
                .iter()
                .map(move |&family| (family, lane))
        };
        lanes.flat_map(both).collect()
    }

    /// Returns rules that remember the sources of packets out of a TUN.
    pub(super) fn remember_peers(&self) -> impl Iterator<Item = Rule> + '_ {
        self.spoken().into_iter().map(|(family, lane)| {
            let from = Term::From(vec![self.lanes[lane].tun.clone()]);
            // A rule of its own: a full set ends the rule.
            rule(
                "errors about it return through the same tunnel",
                [from, Term::RememberPeer(family, lane)],
            )
        })
    }

    /// Returns rules for errors of routers behind this machine, which arrive like packets of hosts.
    pub(super) fn errors_of_routers(&self) -> Vec<Rule> {
        let goes = |lane| vec![Term::Goto(lane_chain(lane))];
        self.errors("an error about a peer's packet", goes)
    }

    /// Returns rules for the other errors. They concern packets that hosts received by another
    /// path, or a single network. The far end would reject them, even if a site takes ICMP.
    pub(super) fn not_carried(&self) -> impl Iterator<Item = Rule> + '_ {
        let families = match self.features.errors {
            true => self.features.families(),
            false => &[],
        };
        families.iter().map(|&family| {
            rule(
                "ICMP errors not about a peer's packets, and link-local ICMP",
                [Term::IcmpNotCarried(family), Term::Return],
            )
        })
    }

    /// Returns the chain for errors of the kernel itself. Without the TUN they take their normal
    /// route.
    pub(super) fn error_chain(&self) -> Option<Chain> {
        let goes = |lane| {
            let mark = self.marks.packet(self.lans.len(), lane);
            vec![Term::SetMark(mark), Term::Notrack, Term::Accept]
        };
        let rules = self.errors("an error of this machine about a peer's packet", goes);
        (!rules.is_empty()).then(|| chain("errors", Some(Hook::OutputRoute), rules))
    }

    fn errors(&self, comment: &str, goes: impl Fn(usize) -> Vec<Term>) -> Vec<Rule> {
        let spoken = self.spoken().into_iter();
        let rules = spoken.map(|(family, lane)| {
            let about = self.about(family, lane, self.lanes[lane].site);
            rule(comment, [about, goes(lane)].concat())
        });
        rules.collect()
    }

    /// Returns terms for an error about a packet whose answers this site takes.
    fn about(&self, family: Family, lane: usize, site: SiteId) -> Vec<Term> {
        let Matcher {
            protocol,
            sport,
            dport,
            ..
        } = &self.config.sites[site].matcher;
        let mut terms = vec![Term::IcmpError(family), Term::HasSpoken(family, lane)];
        if !protocol.is_empty() {
            let mut protocols = protocol.clone();
            protocols.sort_unstable();
            protocols.dedup();
            terms.push(Term::QuotedProtocol(family, protocols));
        }
        // An answer's source is the packet's destination.
        if !sport.is_empty() {
            terms.push(Term::QuotedDestination(family, joined(sport)));
        }
        if !dport.is_empty() {
            terms.push(Term::QuotedSource(family, joined(dport)));
        }
        terms
    }
}
