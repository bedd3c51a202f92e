//! The table of sites with `clear = "never"`: it drops their packets outside of the tunnel, and
//! outlives pepd.
//!
//! A policy rule drops packets of their hosts that have none of pepd's marks, so that they are also
//! dropped while the table is missing (`clear_hold.rs`). So the table marks every packet of these
//! hosts that pepd does not take, and decides itself which ones it drops.
//!
//! Names of interfaces may change. So the installed table has indices instead, and networks: a
//! packet stays at this end only if its destination is in a network of the interface by which it
//! goes out. Another router in that network would lead it elsewhere.

use std::collections::BTreeSet;

use ipnet::IpNet;
use pep_core::{
    config::Config,
    site::{Clear, Matcher, Protocol, Site},
};

use super::{
    Chain, Counter, Family, Features, Hook, Prefixes, Rule, Ruleset, Term,
    build::Builder,
    chain,
    conditions::{family_conditions, source_prefixes},
    packets::{ports, protocols},
    rule,
};

/// Name of the chain that finds the site of a packet.
const SITES: &str = "sites";

/// Name of the chain that accepts packets to hosts of this end.
const INSIDE: &str = "inside";

/// A LAN interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Device {
    /// Name in the configuration; the interface may have another one now.
    pub name: String,
    pub index: u32,
    /// Networks with an address of this machine there.
    pub networks: BTreeSet<IpNet>,
}

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
            off_link: Vec::new(),
            judged_link: None,
            filtered: Vec::new(),
            asked: Vec::new(),
            rates: Vec::new(),
            marked: false,
            seen: false,
            spoken: Vec::new(),
            counters: vec![Counter::NotInClear],
            chains: builder.clear_chains(),
        })
    }

    /// Returns the chains of this table that depend on interfaces, for these ones. Packets may stay
    /// at this end only behind interfaces of `hosts_only`.
    pub(crate) fn chains_for(&self, devices: &[Device], hosts_only: &[String]) -> Vec<Chain> {
        let of_sites = self.chains.iter().filter(|part| part.name == SITES);
        let rules = of_sites.flat_map(|part| &part.rules);
        let rules = rules.filter_map(|rule| by_index(rule, devices)).collect();
        let inside = devices.iter().filter(|of| hosts_only.contains(&of.name));
        let inside = inside.flat_map(to_networks).collect();
        vec![chain(SITES, None, rules), chain(INSIDE, None, inside)]
    }

    /// Returns the table for these interfaces; see [`chains_for`](Self::chains_for).
    pub(crate) fn for_devices(&self, devices: &[Device], hosts_only: &[String]) -> Self {
        let mut table = self.clone();
        for new in self.chains_for(devices, hosts_only) {
            let of_name = table.chains.iter_mut().filter(|old| old.name == new.name);
            of_name.for_each(|old| old.rules.clone_from(&new.rules));
        }
        table
    }
}

/// Returns a rule with indices for names of interfaces; `None` if there is none of these.
fn by_index(rule: &Rule, devices: &[Device]) -> Option<Rule> {
    let mut rule = rule.clone();
    for term in &mut rule.terms {
        if let Term::From(names) = term {
            let named = devices.iter().filter(|device| names.contains(&device.name));
            let indices: Vec<_> = named.map(|device| device.index).collect();
            if indices.is_empty() {
                return None;
            }
            *term = Term::FromDevices(indices);
        }
    }
    Some(rule)
}

fn to_networks(device: &Device) -> impl Iterator<Item = Rule> {
    let networks: Vec<_> = device.networks.iter().copied().collect();
    let out = Term::ToDevice(device.index);
    Family::ALL.into_iter().filter_map(move |family| {
        let prefixes = Prefixes::for_family(family, &networks);
        let is_empty = prefixes.is_empty();
        let terms = [out.clone(), Term::Destination(prefixes), Term::Accept];
        (!is_empty).then(|| rule("to hosts of this end", terms))
    })
}

/// Returns the LAN interfaces that lead to hosts only, not to the link.
pub(crate) fn hosts_only(config: &Config) -> Vec<String> {
    Builder::new(config, Features::FULL).hosts_only()
}

/// Returns pepd's marks on packets of hosts. The policy rules drop packets with any other mark.
pub(crate) fn marks_that_pass(config: &Config) -> Vec<u32> {
    let builder = Builder::new(config, Features::FULL);
    let passed = builder.marks.passed();
    [passed].into_iter().chain(builder.taken()).collect()
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
        let inside = rule(
            "perhaps to hosts of this end",
            [Term::Jump(INSIDE.to_owned())],
        );
        let inside: Vec<_> = [inside].into_iter().chain(self.accepted_lanes()).collect();
        let forwarded = [&inside[..], &[rule("towards an uplink", [jump()])]].concat();
        let own = rule(
            "of this machine itself",
            [Term::AsThisMachine, Term::Accept],
        );
        let named = rule("in the name of a host", [jump()]);
        let sent = [&[own], &inside[..], &[named]].concat();
        vec![
            chain(SITES, None, self.sites_in_clear()),
            chain(INSIDE, None, Vec::new()),
            chain("checked", Some(Hook::PreroutingVeryLast), self.checked()),
            chain("forwarded", Some(Hook::ForwardMangle), forwarded),
            chain("sent", Some(Hook::OutputLast), sent),
        ]
    }

    /// Returns rules that accept packets into TUNs of sites. Another interface may have the name of
    /// a TUN while pepd does not run, so only packets with the mark of the TUN pass.
    fn accepted_lanes(&self) -> impl Iterator<Item = Rule> {
        self.lanes.iter().enumerate().map(|(number, lane)| {
            let mark = Term::Mark(self.marks.packet(self.lans.len(), number));
            let tun = Term::To(vec![lane.tun.clone()]);
            rule("into a tunnel", [mark, tun, Term::Accept])
        })
    }

    /// Returns the marks of packets that pepd takes.
    fn taken(&self) -> impl Iterator<Item = u32> {
        [self.marks.local()].into_iter().chain(self.tun_marks())
    }

    /// Returns rules that mark packets of the hosts for the policy rule, also those with a mark of
    /// another program among pepd's bits.
    fn checked(&self) -> Vec<Rule> {
        let hosts = hosts_never_in_clear(self.config);
        let families = self.features.families().iter();
        let prefixes = families.filter_map(|&family| source_prefixes(family, &hosts));
        let mark = |prefixes| {
            let not_taken = Term::NotMarked(self.taken().collect());
            let terms = [prefixes, not_taken, Term::SetMark(self.marks.passed())];
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
    /// carries the same contents as TCP. Without pepd the kernel may not reassemble fragments, of
    /// which only the first has ports; so the others are dropped, too.
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
        let families = self.features.families().iter();
        let families = families.filter(|_| !ports.is_empty());
        let fragments = families.filter_map(|&family| {
            let conditions = family_conditions(family, &site.matcher)?;
            // In IPv6 the number of the protocol may be in another fragment.
            let protocols = match family {
                Family::V4 => &protocols[..],
                Family::V6 => &[],
            };
            let fragment = [Term::LaterFragment(family)];
            let terms = [protocols, &conditions, &fragment, &drop].concat();
            Some(rule(&site.name, terms))
        });
        rules.chain(fragments).collect()
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
        forward = "ignore"
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
        let mark = "meta mark & 0xff000000 != { 0x53000000 } meta mark set";
        let expected: [&[&str]; 11] = [
            &[
                "meta l4proto 17 ip saddr 10.0.0.0/8 th dport 53 return",
                "dns",
            ],
            &[
                "meta l4proto { 6, 17 } ip saddr 10.0.0.0/8 th dport 443",
                "counter name not_in_clear drop",
            ],
            &[
                "meta l4proto { 6, 17 } ip saddr 10.0.0.0/8 ip frag-off & 0x1fff != 0",
                "counter name not_in_clear drop",
            ],
            &["ip6 saddr fd00::/8 counter name not_in_clear drop", "all"],
            &["ip saddr 10.0.0.0/8", mark],
            &["ip6 saddr fd00::/8", mark],
            &["jump inside"],
            &["jump sites"],
            &["fib saddr type", "accept"],
            &["jump inside"],
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
        assert!(!text.contains("ifname"), "{text}");
    }

    fn device(name: &str, index: u32, networks: &[&str]) -> Device {
        let networks = networks.iter();
        let networks = networks.map(|net| net.parse().expect("a prefix"));
        Device {
            name: name.to_owned(),
            index,
            networks: networks.collect(),
        }
    }

    #[test]
    fn packets_stay_at_this_end_only_in_networks_of_lan_interfaces() {
        let config = pep_core::config::parse(&format!("{HEAD}{OF_SITES}")).expect("valid");
        let table = Ruleset::clear(&config, Features::FULL).expect("a site never in the clear");
        let devices = [
            device("lan0", 7, &["10.1.0.0/24", "fd01::/64"]),
            device("lan1", 8, &[]),
            device("sat0", 9, &["192.0.2.0/24"]),
        ];
        let lans = ["lan0".to_owned(), "lan1".to_owned()];
        let text = nft::install_transaction(&table.for_devices(&devices, &lans));
        let inside = "\tchain inside {\n\
            \t\toif 7 ip daddr 10.1.0.0/24 accept comment \"to hosts of this end\"\n\
            \t\toif 7 ip6 daddr fd01::/64 accept comment \"to hosts of this end\"\n\t}\n";
        assert!(text.contains(inside), "{text}");
    }

    #[test]
    fn sites_of_an_interface_keep_to_its_index() {
        let sites = OF_SITES.replace(
            "src = [\"10.0.0.0/8\"], dport = [53]",
            "interface = [\"lan1\"]",
        );
        assert_ne!(sites, OF_SITES);
        let config = pep_core::config::parse(&format!("{HEAD}{sites}")).expect("valid");
        let table = Ruleset::clear(&config, Features::FULL).expect("a site never in the clear");
        let text = |device: Device| {
            let devices = [device];
            nft::install_transaction(&table.for_devices(&devices, &[]))
        };
        let known = text(device("lan1", 8, &[]));
        assert!(known.contains("iif 8 meta l4proto 17 return"), "{known}");
        let unknown = text(device("lan0", 7, &[]));
        assert!(
            !unknown.contains("return") && !unknown.contains("iif"),
            "{unknown}"
        );
    }

    #[test]
    fn a_tun_of_a_site_is_known_by_its_mark() {
        let lane = "[[site]]\nname = \"rest\"\nmode = \"packet\"\npeer = \"hub\"\n";
        let config = pep_core::config::parse(&format!("{HEAD}{OF_SITES}{lane}"));
        let config = config.expect("valid");
        let table = Ruleset::clear(&config, Features::FULL).expect("a site never in the clear");
        let text = nft::install_transaction(&table);
        let into = "meta mark & 0xff000000 == 0x57000000 oifname \"pepd-0\" accept";
        assert_eq!(text.matches(into).count(), 2, "{text}");
        assert_eq!(
            marks_that_pass(&config),
            [0x5200_0000, 0x5300_0000, 0x5700_0000]
        );
    }

    #[test]
    fn without_such_a_site_there_is_no_table() {
        let sites = OF_SITES.replace("clear = \"never\"", "clear = \"allowed\"");
        let config = pep_core::config::parse(&format!("{HEAD}{sites}")).expect("valid");
        assert_eq!(Ruleset::clear(&config, Features::FULL), None);
    }
}
