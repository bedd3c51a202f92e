//! The table of sites with `clear = "never"`: it drops their packets outside of the tunnel, and
//! outlives pepd.
//!
//! A policy rule drops packets of their hosts that this table has not marked, so that they are also
//! dropped while the table is missing (`clear_hold.rs`). So the table marks every packet of these
//! hosts that has no mark of pepd, and decides itself which ones it drops.

use ipnet::IpNet;
use pep_core::{
    config::Config,
    site::{Clear, Matcher, Protocol, Site},
};

use super::{
    Chain, Counter, Features, Hook, Rule, Ruleset, Term,
    build::{Builder, source_prefixes},
    chain,
    packets::{ports, protocols},
    rule,
};

/// Name of the chain that finds the site of a packet.
const SITES: &str = "sites";

impl Ruleset {
    /// Returns the table that drops packets of sites with `clear = "never"`; `None` without such a
    /// site. Its name is that of pepd's table and `_clear`.
    pub fn clear(config: &Config, features: Features) -> Option<Self> {
        let builder = Builder::new(config, features);
        config.holds_clear().then(|| Self {
            table: format!("{}_clear", config.intercept.table),
            mask: config.intercept.marks.mask(),
            recent: Vec::new(),
            hosts: Vec::new(),
            near: Vec::new(),
            rates: Vec::new(),
            marked: false,
            seen: false,
            spoken: Vec::new(),
            counters: vec![Counter::NotInClear],
            chains: builder.clear_chains(),
        })
    }
}

/// Returns the prefixes of hosts of sites with `clear = "never"`.
pub(crate) fn hosts_never_in_clear(config: &Config) -> Vec<IpNet> {
    let sites = config.sites.iter();
    let never = sites.filter(|(_, site)| site.clear == Clear::Never);
    let prefixes = never.flat_map(|(_, site)| site.matcher.src.iter().copied());
    IpNet::aggregate(&prefixes.collect::<Vec<_>>())
}

impl Builder<'_> {
    fn clear_chains(&self) -> Vec<Chain> {
        let jump = || Term::Jump(SITES.to_owned());
        let inside = Term::To([self.hosts_only(), self.lane_names()].concat());
        let forwarded = vec![
            rule(
                "to hosts of this side, or into a tunnel",
                [inside.clone(), Term::Accept],
            ),
            rule("towards an uplink", [jump()]),
        ];
        let sent = vec![
            rule(
                "of this machine itself",
                [Term::AsThisMachine, Term::Accept],
            ),
            rule(
                "to hosts of this side, or into a tunnel",
                [inside, Term::Accept],
            ),
            rule("in the name of a host", [jump()]),
        ];
        vec![
            chain(SITES, None, self.sites_in_clear()),
            chain("checked", Some(Hook::PreroutingVeryLast), self.checked()),
            chain("forwarded", Some(Hook::ForwardMangle), forwarded),
            chain("sent", Some(Hook::OutputLast), sent),
        ]
    }

    /// Returns rules that mark packets of the hosts for the policy rule.
    fn checked(&self) -> Vec<Rule> {
        let hosts = hosts_never_in_clear(self.config);
        let families = self.features.families().iter();
        let prefixes = families.filter_map(|&family| source_prefixes(family, &hosts));
        let mark = |prefixes| {
            let unmarked = Term::Mark(0);
            let terms = [prefixes, unmarked, Term::SetMark(self.marks.passed())];
            rule("the chains below decide, not the policy rule", terms)
        };
        prefixes.map(mark).collect()
    }

    /// Returns the rules that find the site of a packet: the first that matches decides.
    fn sites_in_clear(&self) -> Vec<Rule> {
        let sites: Vec<_> = self.config.sites.iter().map(|(_, site)| site).collect();
        let last = sites.iter().rposition(|site| site.clear == Clear::Never);
        let until_last = &sites[..last.map_or(0, |last| last + 1)];
        let rules = until_last.iter().flat_map(|site| match site.clear {
            Clear::Never => self.dropped(site),
            Clear::Allowed => self.allowed(site),
        });
        rules.collect()
    }

    fn allowed(&self, site: &Site) -> Vec<Rule> {
        let interface = self.on_interfaces(&site.matcher);
        let protocols = protocols(&site.matcher);
        let variants = self.conditions(&site.matcher, &ports(&site.matcher));
        let rules = variants.into_iter().map(|conditions| {
            let terms = [&interface, &protocols, &conditions, &vec![Term::Return]];
            rule(&site.name, terms.map(Vec::as_slice).concat())
        });
        rules.collect()
    }

    /// Returns rules that drop packets of all protocols, or with ports those of TCP and UDP: QUIC
    /// carries the same contents as TCP.
    fn dropped(&self, site: &Site) -> Vec<Rule> {
        let ports = ports(&site.matcher);
        let protocols = match ports.is_empty() {
            true => Vec::new(),
            false => vec![Term::Protocol(vec![Protocol::TCP, Protocol::UDP])],
        };
        let variants = self.conditions(&site.matcher, &ports).into_iter();
        let drop = [Term::Count(Counter::NotInClear), Term::Drop];
        let rules = variants.map(|conditions| {
            let terms = [&protocols[..], &conditions, &drop].concat();
            rule(&site.name, terms)
        });
        rules.collect()
    }

    fn on_interfaces(&self, matcher: &Matcher) -> Vec<Term> {
        if matcher.interface.is_empty() {
            return Vec::new();
        }
        let lans = self.interfaces(matcher);
        vec![Term::From(
            lans.map(|(_, lan)| lan.interface.clone()).collect(),
        )]
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::nft;

    /// Configuration before the sites.
    pub(crate) const HEAD: &str = r#"
        [intercept]
        lan = ["lan0", "lan1", "sat0"]
        [link]
        interface = "sat0"
        [identity]
        key_file = "key"
        [peer.hub]
        endpoint = "192.0.2.1:5001"
        on_peer_loss = "hold"
        public_key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
    "#;

    const OF_SITES: &str = r#"
        [[site]]
        name = "dns"
        mode = "bypass"
        match = { src = ["10.0.0.0/8"], dport = [53], protocol = ["udp"] }
        [[site]]
        name = "web"
        mode = "tunnel"
        peer = "hub"
        clear = "never"
        match = { src = ["10.0.0.0/8"], dport = [443] }
        [[site]]
        name = "all"
        mode = "tunnel"
        peer = "hub"
        clear = "never"
        match = { src = ["fd00::/8"] }
        [[site]]
        name = "later"
        mode = "bypass"
    "#;

    #[test]
    fn the_first_site_decides_and_nothing_depends_on_the_input_interface() {
        let config = pep_core::config::parse(&format!("{HEAD}{OF_SITES}")).expect("valid");
        let table = Ruleset::clear(&config, Features::FULL).expect("a site never in the clear");
        let text = nft::install_transaction(&table);
        let mut rules = text.lines().filter(|line| line.contains("comment"));
        let mark = "meta mark & 0xff000000 == 0x00000000 meta mark set";
        let inside = "oifname { \"lan0\", \"lan1\" } accept";
        let expected: [&[&str]; 10] = [
            &[
                "meta l4proto 17 ip saddr 10.0.0.0/8 th dport 53 return",
                "dns",
            ],
            &[
                "meta l4proto { 6, 17 } ip saddr 10.0.0.0/8 th dport 443",
                "counter name not_in_clear drop",
            ],
            &["ip6 saddr fd00::/8 counter name not_in_clear drop", "all"],
            &["ip saddr 10.0.0.0/8", mark],
            &["ip6 saddr fd00::/8", mark],
            &[inside],
            &["jump sites"],
            &["fib saddr type", "accept"],
            &[inside],
            &["jump sites"],
        ];
        for words in expected {
            let rule = rules.next().expect("another rule");
            assert!(
                words.iter().all(|word| rule.contains(word)),
                "{rule}: {words:?}"
            );
        }
        assert_eq!(rules.next(), None);
        assert!(!text.contains("iifname"), "{text}");
    }

    #[test]
    fn without_such_a_site_there_is_no_table() {
        let sites = OF_SITES.replace("clear = \"never\"", "clear = \"allowed\"");
        let config = pep_core::config::parse(&format!("{HEAD}{sites}")).expect("valid");
        assert_eq!(Ruleset::clear(&config, Features::FULL), None);
    }
}
