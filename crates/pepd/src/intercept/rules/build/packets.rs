//! Rules for sites in modes `packet` and `block`. Each packet is looked at by itself, by the sites in their order: the first that
//! matches decides, as it does for flows.

use pep_core::site::{Matcher, Mode, Protocol, Site};

use super::{
    super::{Chain, Counter, Hook, Rule, Term, chain, rule},
    Builder, family_conditions, joined,
};
use crate::intercept::packets::{self, PacketSite};

impl Builder<'_> {
    /// Whether there is any such site.
    pub(super) fn takes_packets(&self) -> bool {
        let mut sites = self.config.sites.iter();
        sites.any(|(_, site)| site.mode.takes_packets())
    }

    /// `packets`, and one for each TUN.
    pub(super) fn packet_chains(&self) -> Vec<Chain> {
        if !self.takes_packets() {
            return Vec::new();
        }
        let sites = packets::sites(self.config);
        let into = |site: &PacketSite| {
            let mark = self.marks.hold(site.number);
            chain(&name(site), None, self.into_tun(mark, &site.tun))
        };
        let mut chains: Vec<Chain> = sites.iter().map(into).collect();
        chains.push(chain("packets", None, self.packet_rules(&sites)));
        chains
    }

    /// TCP through the TUNs of sites that want it so.
    pub(super) fn clamp_chain(&self) -> Option<Chain> {
        let sites = packets::sites(self.config).into_iter();
        let clamped = sites.filter(|site| site.clamps).map(|site| site.tun);
        let tuns: Vec<String> = clamped.collect();
        let rules = vec![rule(
            "segments that fit into the tunnel",
            [Term::To(tuns.clone()), Term::AnySyn, Term::ClampSegments],
        )];
        (!tuns.is_empty()).then(|| chain("clamp", Some(Hook::ForwardMangle), rules))
    }

    fn into_tun(&self, mark: u32, tun: &str) -> Vec<Rule> {
        use Term::{Accept, Count, Notrack, RoutedTo, SetMark};
        let taken = Count(Counter::PacketsTaken);
        if !self.features.fib {
            let terms = [SetMark(mark), taken, Notrack, Accept];
            return vec![rule("into the TUN", terms)];
        }
        vec![
            rule(
                "into the TUN, which is there as long as pepd is",
                [
                    SetMark(mark),
                    RoutedTo(tun.to_owned()),
                    taken,
                    Notrack,
                    Accept,
                ],
            ),
            rule("pepd is gone: forward", [SetMark(0), Accept]),
        ]
    }

    fn packet_rules(&self, sites: &[PacketSite]) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.features.fib {
            let here = [Term::ForThisMachine, Term::Return];
            rules.push(rule("for this machine itself", here));
        }
        for (id, site) in self.config.sites.iter() {
            let end = match site.mode {
                Mode::Packet => {
                    let site = sites.iter().find(|packets| packets.site == id);
                    let Some(site) = site else { continue };
                    vec![Term::Goto(name(site))]
                }
                Mode::Block => vec![Term::Count(Counter::Blocked), Term::Refuse],
                Mode::Split | Mode::Tunnel | Mode::Bypass => vec![Term::Return],
            };
            for conditions in self.packet_conditions(site) {
                rules.push(rule(&site.name, [conditions, end.clone()].concat()));
            }
        }
        rules
    }

    /// What a site's packets have in common: a list of terms for both families, or one for each that can match at all.
    fn packet_conditions(&self, site: &Site) -> Vec<Vec<Term>> {
        let matcher = &site.matcher;
        let mut common = Vec::new();
        if !matcher.interface.is_empty() {
            let names = matcher.interface.iter().map(ToString::to_string);
            common.push(Term::From(names.collect()));
        }
        let behind = [protocols(matcher), ports(matcher)].concat();
        if matcher.src.is_empty() && matcher.dst.is_empty() && matcher.dscp.is_empty() {
            return vec![[common, behind].concat()];
        }
        let families = self.features.families().iter();
        let of_family = families.filter_map(|&family| {
            let family = family_conditions(family, matcher)?;
            Some([common.clone(), family, behind.clone()].concat())
        });
        of_family.collect()
    }
}

fn name(site: &PacketSite) -> String {
    format!("packet_{}", site.site)
}

fn protocols(matcher: &Matcher) -> Vec<Term> {
    let with_ports = [Protocol::TCP.0, Protocol::UDP.0];
    let has_ports = !matcher.sport.is_empty() || !matcher.dport.is_empty();
    match &matcher.protocol[..] {
        [] if has_ports => vec![Term::Protocol(with_ports.to_vec())],
        [] => Vec::new(),
        protocols => vec![Term::Protocol(protocols.iter().map(|p| p.0).collect())],
    }
}

fn ports(matcher: &Matcher) -> Vec<Term> {
    let mut terms = Vec::new();
    if !matcher.sport.is_empty() {
        terms.push(Term::AnySourcePort(joined(&matcher.sport)));
    }
    if !matcher.dport.is_empty() {
        terms.push(Term::AnyDestinationPort(joined(&matcher.dport)));
    }
    terms
}
