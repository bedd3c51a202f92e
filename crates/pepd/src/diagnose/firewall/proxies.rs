//! Other transparent proxies, whose rules would leave connections that they mean to take to pepd.
//!
//! Their recipes begin with a rule that accepts packets of an existing socket (`-m socket`, nft
//! `socket transparent`), ahead of the one that redirects (`TPROXY`). pepd's rules come first, and
//! assign its listener to SYNs: those are packets of a socket, too.

use pep_core::{
    config::Config,
    site::{Mode, Site},
};
use pepd_intercept::{iptables::is_installed, rules::lans};
use serde_json::Value;

use super::{
    Finding, OURS, redirected_syns,
    walk::{Hook, Packet, Rule, Table, Verdict},
};

const WHAT: &str = "another transparent proxy";

/// Returns a finding for each family in which rules of another proxy do not get their connections.
/// `obstacles` prevent that SYNs pass rules of others first, by family.
pub(super) fn findings(
    config: &Config,
    tables: &[Table],
    families: &[bool],
    obstacles: [bool; 2],
) -> Vec<Finding> {
    let found = families.iter().filter_map(|&is_v6| {
        let is_obstacle = obstacles[usize::from(is_v6)];
        let takes = takes_at_once(config, is_obstacle);
        takes.then(|| of_family(config, tables, is_v6, is_installed(config)))?
    });
    found.collect()
}

/// Returns whether SYNs of a site are redirected before rules of others see them. Sites behind one
/// that matches all of their connections do not count.
fn takes_at_once(config: &Config, is_obstacle: bool) -> bool {
    let sites: Vec<_> = config.sites.iter().map(|(_, site)| site).collect();
    let is_covered = |place: usize| {
        let mut before = sites[..place].iter();
        before.any(|site| site.matcher.covers(&sites[place].matcher))
    };
    let mut at_once = sites.iter().enumerate().filter(|(_, site)| {
        let asks = config.asks_forward(site) && !is_obstacle;
        site.mode.takes_flows() && !site.is_deferred() && !asks
    });
    at_once.any(|(place, _)| !is_covered(place))
}

/// Returns the finding of a family. With rules of iptables, pepd's come ahead of all others in the
/// table `mangle`, and end there.
fn of_family(config: &Config, tables: &[Table], is_v6: bool, is_first: bool) -> Option<Finding> {
    let syn = syn(config, is_v6)?;
    let tables = || tables.iter().filter(|table| table.sees(&syn));
    let proxy = tables().find_map(|table| {
        let mut rules = rules(table);
        rules.find_map(|(_, rule)| Some(Ports::of_proxy(rule)?).filter(|ports| !ports.pass(config)))
    })?;
    let by = match is_first {
        true => "pepd's rules of iptables come ahead of it".to_owned(),
        false => tables().find_map(|table| accepted(table, &syn))?,
    };
    let (to, dport) = (proxy.described(), proxy.dport());
    Some(Finding::warn(
        WHAT,
        format!(
            "a rule redirects {} connections{to} to it, but it gets none of those that pepd takes: {by}",
            if is_v6 { "IPv6" } else { "IPv4" },
        ),
        format!(
            "to leave them to it: a site of mode \"bypass\"{dport} ahead of the others, `syn = \"defer\"`, or \
             `intercept.forward = \"obey\"` (docs/interception.md, \"Only what crosses the link\")"
        ),
    ))
}

/// Returns a host's SYN that was redirected to pepd, before routing.
fn syn(config: &Config, is_v6: bool) -> Option<Packet> {
    let lan = lans(config).into_iter().next()?;
    let syns = redirected_syns(config, is_v6, lan.interface);
    syns.into_iter().find(|syn| syn.hook == Hook::Prerouting)
}

/// Iterates over the rules that packets meet before routing and behind pepd's, and over those of
/// chains to which these may lead.
fn rules(table: &Table) -> impl Iterator<Item = (&str, &Rule)> {
    let mut bases = table.chains.values().filter_map(|chain| chain.base);
    let is_behind = bases.any(|base| base.hook == Hook::Prerouting && base.priority > OURS);
    let chains = table.chains.iter().filter(move |_| is_behind);
    chains.flat_map(|(name, chain)| chain.rules.iter().map(move |rule| (name.as_str(), rule)))
}

/// Describes the first rule that accepts a SYN because a socket takes it.
fn accepted(table: &Table, syn: &Packet) -> Option<String> {
    let accepts = |rule: &Rule| {
        let mut steps = rule.steps(syn).into_iter();
        steps.any(|step| step.matches != Some(false) && step.verdict == Verdict::Accept)
    };
    let ends = |rule: &Rule| {
        let led = rule.steps(syn).into_iter().any(|step| match step.verdict {
            Verdict::Jump(to) | Verdict::Goto(to) if step.matches != Some(false) => {
                let chain = table.chains.get(&to);
                chain.is_some_and(|chain| chain.rules.iter().any(accepts))
            }
            _ => false,
        });
        led || accepts(rule)
    };
    let (chain, rule) = rules(table).find(|(_, rule)| asks_for_socket(rule) && ends(rule))?;
    let text = match rule {
        Rule::Iptables(words) => format!("`{}`", words.join(" ")),
        Rule::Nft(_) => "a rule with `socket`".to_owned(),
    };
    Some(format!(
        "{}, chain {chain}, {text} accepts them first",
        table.name
    ))
}

fn asks_for_socket(rule: &Rule) -> bool {
    match rule {
        Rule::Iptables(words) => words.windows(2).any(|pair| pair == ["-m", "socket"]),
        Rule::Nft(statements) => statements.iter().any(|one| {
            one["match"]["left"].get("socket").is_some() || one["xt"]["name"] == "socket"
        }),
    }
}

/// Destination ports that a rule redirects; all if empty.
#[derive(Debug, PartialEq, Eq)]
struct Ports(Vec<[u16; 2]>);

impl Ports {
    /// Returns the ports that a rule redirects; `None` if it redirects none.
    fn of_proxy(rule: &Rule) -> Option<Self> {
        match rule {
            Rule::Iptables(words) => {
                let after = |options: &[&str]| {
                    let at = words.iter().position(|word| options.contains(&&**word))?;
                    words.get(at + 1)
                };
                (after(&["-j"])? == "TPROXY").then_some(())?;
                let ports = after(&["--dport", "--dports"]);
                let ports = ports.into_iter().flat_map(|ports| ports.split(','));
                Some(Self(ports.filter_map(range).collect()))
            }
            Rule::Nft(statements) => {
                let is_tproxy =
                    |one: &Value| one.get("tproxy").is_some() || one["xt"]["name"] == "TPROXY";
                statements.iter().any(is_tproxy).then_some(())?;
                let right = statements.iter().find_map(|one| {
                    let is_dport = one["match"]["left"]["payload"]["field"] == "dport";
                    is_dport.then(|| &one["match"]["right"])
                });
                Some(Self(right.map(numbers).unwrap_or_default()))
            }
        }
    }

    /// Returns whether a site leaves connections to these ports to others.
    fn pass(&self, config: &Config) -> bool {
        let mut passing = config.sites.iter().map(|(_, site)| site);
        let passes = |site: &Site, ports: Option<&[u16; 2]>| {
            let theirs = &site.matcher.dport;
            let has = |[first, last]: &[u16; 2]| {
                let mut ranges = theirs.iter();
                ranges.any(|range| range.contains(*first) && range.contains(*last))
            };
            site.mode == Mode::Bypass && ports.map_or(theirs.is_empty(), has)
        };
        match &self.0[..] {
            [] => passing.any(|site| passes(site, None)),
            ports => ports.iter().all(|range| {
                let mut sites = config.sites.iter().map(|(_, site)| site);
                sites.any(|site| passes(site, Some(range)))
            }),
        }
    }

    fn text(&self, between: &str) -> String {
        let one = |[first, last]: &[u16; 2]| match first == last {
            true => first.to_string(),
            false => format!("{first}{between}{last}"),
        };
        self.0.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    fn described(&self) -> String {
        match &self.0[..] {
            [] => String::new(),
            [[first, last]] if first == last => format!(" to port {first}"),
            _ => format!(" to ports {}", self.text("-")),
        }
    }

    /// Returns a condition of a site for these ports.
    fn dport(&self) -> String {
        match &self.0[..] {
            [] => String::new(),
            [[first, last]] if first == last => format!(" with `dport = {first}`"),
            ranges => {
                let quoted = |[first, last]: &[u16; 2]| match first == last {
                    true => first.to_string(),
                    false => format!("\"{first}-{last}\""),
                };
                let list: Vec<_> = ranges.iter().map(quoted).collect();
                format!(" with `dport = [{}]`", list.join(", "))
            }
        }
    }
}

/// Parses a port or a range of iptables.
fn range(text: &str) -> Option<[u16; 2]> {
    let (first, last) = text.split_once(':').unwrap_or((text, text));
    Some([first.parse().ok()?, last.parse().ok()?])
}

/// Returns the ports on the right of a comparison of nft.
fn numbers(right: &Value) -> Vec<[u16; 2]> {
    let number = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    if let Some(items) = right["set"].as_array() {
        return items.iter().flat_map(numbers).collect();
    }
    if let Some([first, last]) = right["range"].as_array().map(Vec::as_slice) {
        let range = number(first).zip(number(last));
        return range
            .map(|(first, last)| [first, last])
            .into_iter()
            .collect();
    }
    number(right).map(|port| [port; 2]).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{
        super::{iptables, nft},
        *,
    };

    fn config(sites: &str) -> Config {
        let text = format!("[intercept]\nlan = [\"lan0\"]\n{sites}");
        pep_core::config::parse(&text).expect("valid")
    }

    fn bypass(ports: &str) -> String {
        let bypass = "[[site]]\nname = \"proxied\"\nmode = \"bypass\"\nmatch = { dport = ";
        format!("{bypass}{ports} }}\n")
    }

    /// As for squid, xray and sing-box.
    fn recipe(socket: &str, tproxy: &str) -> Vec<Table> {
        let dump = format!(
            "*mangle\n:PREROUTING ACCEPT [0:0]\n:DIVERT - [0:0]\n-A PREROUTING {socket} -j DIVERT\n\
             -A PREROUTING {tproxy} -j TPROXY --on-port 3129 --on-ip 0.0.0.0 --tproxy-mark 0x1/0x1\n\
             -A DIVERT -j MARK --set-xmark 0x1/0xffffffff\n-A DIVERT -j ACCEPT\nCOMMIT\n"
        );
        iptables::tables(&dump, false, "iptables")
    }

    fn found(config: &Config, tables: &[Table]) -> Option<String> {
        let finding = of_family(config, tables, false, false)?;
        Some(format!(
            "{}; {}",
            finding.seen,
            finding.remedy.expect("a remedy")
        ))
    }

    #[test]
    fn a_rule_for_sockets_ahead_of_one_that_redirects_is_named_with_the_ports() {
        for options in ["-p tcp -m socket", "-p tcp -m socket --transparent"] {
            let tables = recipe(options, "-p tcp -m tcp --dport 8080");
            let text = found(&config(""), &tables).expect("a finding");
            for part in [
                &format!("`{options} -j DIVERT`"),
                "port 8080",
                "`dport = 8080`",
            ] {
                assert!(text.contains(part), "no {part}: {text}");
            }
            assert_eq!(found(&config(&bypass("8080")), &tables), None);
            assert!(found(&config(&bypass("80")), &tables).is_some());
        }
        let tables = recipe(
            "-p tcp -m socket",
            "-p tcp -m multiport --dports 80,8000:8100",
        );
        let text = found(&config(&bypass("80")), &tables).expect("8000 is left");
        assert!(text.contains("`dport = [80, \"8000-8100\"]`"), "{text}");
        assert_eq!(
            found(&config(&bypass("[80, \"8000-8100\"]")), &tables),
            None
        );
        let all = recipe("-p tcp -m socket", "-p tcp");
        assert!(found(&config(""), &all).is_some());
    }

    #[test]
    fn a_rule_that_leaves_packets_with_marks_to_others_is_none() {
        let tables = recipe(
            "-p tcp -m socket -m mark --mark 0x0",
            "-p tcp -m tcp --dport 80",
        );
        assert_eq!(found(&config(""), &tables), None);
        // Without a rule that redirects, or without one for sockets.
        let accepts =
            "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -m socket -j ACCEPT\n";
        assert_eq!(
            found(&config(""), &iptables::tables(accepts, false, "iptables")),
            None
        );
        let redirects =
            "*mangle\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j TPROXY --on-port 1\n";
        let redirects = iptables::tables(redirects, false, "iptables");
        assert_eq!(found(&config(""), &redirects), None);
        // Rules of pepd by iptables come ahead of it.
        assert!(of_family(&config(""), &redirects, false, true).is_some());
        assert_eq!(
            of_family(&config(""), &redirects, true, true),
            None,
            "of IPv4"
        );
    }

    #[test]
    fn rules_of_nft_are_understood() {
        let table = |mark: &[Value], port: &Value| {
            let chain = json!({"chain": {
                "family": "inet", "table": "others", "name": "divert", "type": "filter",
                "hook": "prerouting", "prio": -150, "policy": "accept",
            }});
            let rule = |statements: Vec<Value>| {
                json!({"rule": {
                    "family": "inet", "table": "others", "chain": "divert", "expr": statements,
                }})
            };
            let socket = json!({"match": {
                "op": "==", "left": {"socket": {"key": "transparent"}}, "right": 1,
            }});
            let accept = json!({"accept": null});
            let dport = json!({"match": {
                "op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": port,
            }});
            let tproxy = json!({"tproxy": {"family": "ip", "addr": "127.0.0.1", "port": 3129}});
            let first = [&[socket][..], mark, std::slice::from_ref(&accept)].concat();
            let listing =
                json!({"nftables": [chain, rule(first), rule(vec![dport, tproxy, accept])]});
            nft::tables(&listing, "pepd")
        };
        let text = found(&config(""), &table(&[], &json!(8080))).expect("a finding");
        assert!(
            text.contains("chain divert") && text.contains("port 8080"),
            "{text}"
        );
        let several = json!({"set": [80, {"range": [8000, 8100]}]});
        let text = found(&config(""), &table(&[], &several)).expect("a finding");
        assert!(text.contains("ports 80, 8000-8100"), "{text}");
        let unmarked =
            json!({"match": {"op": "==", "left": {"meta": {"key": "mark"}}, "right": 0}});
        assert_eq!(found(&config(""), &table(&[unmarked], &json!(8080))), None);
    }

    #[test]
    fn only_what_is_redirected_before_rules_of_others_is_taken_from_them() {
        let taken = |config: &str, is_obstacle| {
            let config = pep_core::config::parse(config).expect("valid");
            takes_at_once(&config, is_obstacle)
        };
        let lan = "[intercept]\nlan = [\"lan0\"]\n";
        let defer = format!("{lan}[[site]]\nname = \"all\"\nsyn = \"defer\"\n");
        let ignore = format!("{lan}forward = \"ignore\"\n");
        assert!(taken(&ignore, false) && !taken(&defer, false));
        assert_eq!(
            [false, true].map(|obstacle| taken(lan, obstacle)),
            [false, true]
        );
    }
}
