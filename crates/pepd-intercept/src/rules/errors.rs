//! ICMP errors about packets that came from a peer: back to it by its tunnel, as their hosts' answers go.
//!
//! The kernel makes them here (no hop left, no such host, too long for the LAN), and routers behind us do. Their way is toward the peer's hosts, which without
//! these rules is the link: in the clear, with the beginning of the packet, and past NAT that knows nothing of it. Which packet an error is about only its
//! quotation says; so hosts that a peer has sent packets of are remembered, by the TUN out of which these came.

use pep_core::site::{Matcher, SiteId};

use super::{
    Chain, Family, Hook, Rule, Term,
    build::{Builder, joined},
    chain,
    packets::lane_chain,
    rule,
};

impl Builder<'_> {
    /// The lanes, each with the families in which its peers' hosts are remembered.
    pub(super) fn spoken(&self) -> Vec<(Family, usize)> {
        if !self.features.errors {
            return Vec::new();
        }
        let lanes = 0..self.lanes.len();
        let both = |lane| {
            self.features
                .families()
                .iter()
                .map(move |&family| (family, lane))
        };
        lanes.flat_map(both).collect()
    }

    /// Who sends what comes out of a TUN.
    pub(super) fn remember_peers(&self) -> impl Iterator<Item = Rule> + '_ {
        self.spoken().into_iter().map(|(family, lane)| {
            let from = Term::From(vec![self.lanes[lane].tun.clone()]);
            // Of its own: where the set is full, a rule ends there.
            rule(
                "errors about it go back the same way",
                [from, Term::RememberPeer(family, lane)],
            )
        })
    }

    /// The errors of routers behind us, which come in as hosts' packets do.
    pub(super) fn errors_of_routers(&self) -> Vec<Rule> {
        let goes = |lane| vec![Term::Goto(lane_chain(lane))];
        self.errors("an error about a peer's packet", goes)
    }

    /// The others are about what hosts got by another way than a peer's packets, or are for a link: the far end would not let them in, though a site takes ICMP.
    pub(super) fn not_carried(&self) -> impl Iterator<Item = Rule> + '_ {
        let families = match self.features.errors {
            true => self.features.families(),
            false => &[],
        };
        families.iter().map(|&family| {
            rule(
                "errors about what no peer sent, and what is of one link",
                [Term::IcmpNotCarried(family), Term::Return],
            )
        })
    }

    /// The kernel's own errors. Without the TUN they go as they would without us.
    pub(super) fn error_chain(&self) -> Option<Chain> {
        let goes = |lane| {
            let mark = self.marks.packet(self.lans.len(), lane);
            vec![Term::SetMark(mark), Term::Notrack, Term::Accept]
        };
        let rules = self.errors("our own error about a peer's packet", goes);
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

    /// An error about what this site takes the answers of.
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
        // What answers have as their source the packet has as its destination.
        if !sport.is_empty() {
            terms.push(Term::QuotedDestination(family, joined(sport)));
        }
        if !dport.is_empty() {
            terms.push(Term::QuotedSource(family, joined(dport)));
        }
        terms
    }
}
