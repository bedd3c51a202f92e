//! Conditions of rules that select the packets of a site.

use ipnet::IpNet;
use pep_core::{
    config::IfName,
    site::{Matcher, PortRange},
};

use super::{Family, Lan, Prefixes, Term, build::Builder};

impl Builder<'_> {
    /// Returns the LAN interfaces whose flows a site may take.
    pub(super) fn interfaces<'a>(
        &'a self,
        matcher: &'a Matcher,
    ) -> impl Iterator<Item = (usize, &'a Lan)> {
        self.lans.iter().enumerate().filter(|(_, lan)| {
            let named = |name: &IfName| name.as_str() == lan.interface;
            matcher.interface.is_empty() || matcher.interface.iter().any(named)
        })
    }

    pub(super) fn interface_condition(&self, matcher: &Matcher) -> Vec<Term> {
        if matcher.interface.is_empty() {
            return Vec::new();
        }
        let names = self
            .interfaces(matcher)
            .flat_map(|(_, lan)| [Some(lan.interface.clone()), lan.tun.clone()]);
        vec![Term::From(names.flatten().collect())]
    }

    /// Returns the conditions of a site except for the interface: one list of terms for both
    /// families, or one for each family that can match.
    pub(super) fn conditions(&self, matcher: &Matcher, ports: &[Term]) -> Vec<Vec<Term>> {
        let any_family =
            matcher.src.is_empty() && matcher.dst.is_empty() && matcher.dscp.is_empty();
        if any_family {
            return vec![ports.to_vec()];
        }
        let families = self.features.families().iter();
        families
            .filter_map(|&family| {
                Some([family_conditions(family, matcher)?.as_slice(), ports].concat())
            })
            .collect()
    }
}

/// Returns the condition that the source is in one of these prefixes; `None` if none is of the
/// family.
pub(super) fn source_prefixes(family: Family, nets: &[IpNet]) -> Option<Term> {
    let prefixes = Prefixes::for_family(family, nets);
    (!prefixes.is_empty()).then_some(Term::Source(prefixes))
}

pub(super) fn family_conditions(family: Family, matcher: &Matcher) -> Option<Vec<Term>> {
    let mut terms = Vec::new();
    for (nets, term) in [
        (&matcher.src, Term::Source as fn(Prefixes) -> Term),
        (&matcher.dst, Term::Destination),
    ] {
        if nets.is_empty() {
            continue;
        }
        let prefixes = Prefixes::for_family(family, nets);
        if prefixes.is_empty() {
            return None;
        }
        terms.push(term(prefixes));
    }
    if !matcher.dscp.is_empty() {
        let mut values = matcher.dscp.clone();
        values.sort_unstable();
        values.dedup();
        terms.push(Term::Dscp(family, values));
    }
    Some(terms)
}

pub(super) fn ports(matcher: &Matcher) -> Vec<Term> {
    let mut terms = Vec::new();
    if !matcher.sport.is_empty() {
        terms.push(Term::SourcePort(joined(&matcher.sport)));
    }
    if !matcher.dport.is_empty() {
        terms.push(Term::DestinationPort(joined(&matcher.dport)));
    }
    terms
}

/// Returns the ranges in order, merged where they touch or overlap.
pub(super) fn joined(ranges: &[PortRange]) -> Vec<PortRange> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<PortRange> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.first() <= last.last().saturating_add(1) => {
                let end = last.last().max(range.last());
                *last = PortRange::new(last.first(), end).expect("ends after it begins");
            }
            _ => joined.push(range),
        }
    }
    joined
}
