//! The table in libnftables' JSON (schema 1, `man libnftables-json`).
#![expect(
    clippy::needless_pass_by_value,
    reason = "values are made where they are passed, and json! copies them either way"
)]

use std::collections::BTreeSet;

use pep_core::{hosts::Host, site::PortRange};
use serde_json::{Value, json};

use super::{
    Family, HOST_MASK, Hook, RATE_ELEMENTS, RATE_SECONDS, RECENT_ELEMENTS, RECENT_SECONDS,
    SEEN_ELEMENTS, SEEN_SECONDS, SEEN_SET, SPOKEN_ELEMENTS, SPOKEN_SECONDS, kept_bits,
};
use crate::{
    gate::Gate,
    intercept::rules::{self, Chain, Counter, Prefixes, Rule, Ruleset, Term},
};

/// Commands that replace any earlier table of that name by this one, all at once or not at all.
pub fn install_transaction(ruleset: &Ruleset) -> Value {
    let writer = Writer::new(&ruleset.table, ruleset.mask);
    let table = json!({"table": {"family": "inet", "name": ruleset.table}});
    let mut commands = vec![
        json!({"add": table}), // so that the deletion finds one
        json!({"delete": table}),
        json!({"add": table}),
    ];
    commands.extend(
        ruleset
            .counters
            .iter()
            .map(|&counter| writer.counter(counter)),
    );
    if ruleset.seen {
        commands.push(writer.seen_set());
    }
    commands.extend(
        ruleset
            .recent
            .iter()
            .map(|&family| writer.recent_set(family)),
    );
    commands.extend(ruleset.hosts.iter().map(|&family| writer.hosts_set(family)));
    commands.extend(ruleset.rates.iter().map(|&family| writer.rates_set(family)));
    let spoken = ruleset.spoken.iter();
    commands.extend(spoken.map(|&(family, lane)| writer.spoken_set(family, lane)));
    commands.extend(ruleset.chains.iter().map(|chain| writer.chain(chain)));
    for chain in &ruleset.chains {
        commands.extend(
            chain
                .rules
                .iter()
                .map(|rule| writer.rule(&chain.name, rule)),
        );
    }
    transaction(commands)
}

/// Commands that open or close the gate of an installed table.
pub fn gate_transaction(table: &str, mask: u32, gate: Gate) -> Value {
    chain_transaction(table, mask, "gate", &rules::gate(gate))
}

/// Commands that give a chain of an installed table these rules instead of those that it has.
pub fn chain_transaction(table: &str, mask: u32, name: &str, rules: &[Rule]) -> Value {
    let writer = Writer::new(table, mask);
    let chain = json!({"chain": {"family": "inet", "table": table, "name": name}});
    let mut commands = vec![json!({"flush": chain})];
    commands.extend(rules.iter().map(|rule| writer.rule(name, rule)));
    transaction(commands)
}

/// Commands that make these hosts, and no others, those of an installed table with sets for `families` that have as many flows as one may.
pub fn hosts_transaction(table: &str, families: &[Family], hosts: &BTreeSet<Host>) -> Value {
    let sets = families.iter().flat_map(|&family| {
        let set = family.hosts_set();
        let of_family = |host: &&Host| host.address().is_ipv4() == (family == Family::V4);
        let hosts = hosts.iter().filter(of_family);
        let hosts: Vec<_> = hosts.map(|host| host.address().to_string()).collect();
        let flush = json!({"flush": {"set": {"family": "inet", "table": table, "name": set}}});
        let add = (!hosts.is_empty()).then(|| {
            json!({"add": {"element": {"family": "inet", "table": table, "name": set, "elem": hosts}}})
        });
        [Some(flush), add]
    });
    transaction(sets.flatten().collect())
}

/// Commands that remove the table if it is there.
pub fn remove_transaction(table: &str) -> Value {
    let table = json!({"table": {"family": "inet", "name": table}});
    transaction(vec![json!({"add": table}), json!({"delete": table})])
}

/// Commands that try a single rule in a table of its own; to be checked, not carried out.
pub fn probe_transaction(terms: &[Term]) -> Value {
    let table = "pepd_probe";
    let writer = Writer::new(table, u32::MAX);
    let hook = Chain {
        name: "probe".to_owned(),
        hook: Some(match terms {
            _ if terms.contains(&Term::ClampMss) => Hook::ForwardMangle,
            [Term::IcmpError(_), ..] => Hook::OutputRoute,
            _ => Hook::PreroutingRaw,
        }),
        rules: Vec::new(),
    };
    let rule = Rule {
        terms: terms.to_vec(),
        comment: "probe".to_owned(),
    };
    let remembered = terms.iter().filter_map(|term| match term {
        Term::Remember(family) | Term::Forget(family) => Some(writer.recent_set(*family)),
        Term::FasterPerHost(family, _) => Some(writer.rates_set(*family)),
        Term::Seen => Some(writer.seen_set()),
        Term::HasSpoken(family, lane) => Some(writer.spoken_set(*family, *lane)),
        _ => None,
    });
    let mut commands = vec![json!({"add": {"table": {"family": "inet", "name": table}}})];
    commands.extend(remembered);
    commands.push(writer.chain(&hook));
    commands.push(writer.rule("probe", &rule));
    transaction(commands)
}

fn transaction(commands: Vec<Value>) -> Value {
    let version = json!({"metainfo": {"json_schema_version": 1}});
    let commands: Vec<Value> = std::iter::once(version).chain(commands).collect();
    json!({ "nftables": commands })
}

struct Writer<'a> {
    table: &'a str,
    mask: u32,
}

impl<'a> Writer<'a> {
    fn new(table: &'a str, mask: u32) -> Self {
        Self { table, mask }
    }

    fn recent_set(&self, family: Family) -> Value {
        let address = family.address_type();
        json!({"add": {"set": {
            "family": "inet", "table": self.table, "name": family.recent_set(),
            "type": [address, "inet_service", address, "inet_service"],
            "size": RECENT_ELEMENTS, "flags": ["timeout"], "timeout": RECENT_SECONDS,
        }}})
    }

    fn hosts_set(&self, family: Family) -> Value {
        json!({"add": {"set": {
            "family": "inet", "table": self.table, "name": family.hosts_set(), "type": family.address_type(),
        }}})
    }

    fn rates_set(&self, family: Family) -> Value {
        json!({"add": {"set": {
            "family": "inet", "table": self.table, "name": family.rates_set(), "type": family.address_type(),
            "size": RATE_ELEMENTS, "flags": ["timeout"], "timeout": RATE_SECONDS,
        }}})
    }

    fn spoken_set(&self, family: Family, lane: usize) -> Value {
        json!({"add": {"set": {
            "family": "inet", "table": self.table, "name": family.spoken_set(lane), "type": family.address_type(),
            "size": SPOKEN_ELEMENTS, "flags": ["timeout"], "timeout": SPOKEN_SECONDS,
        }}})
    }

    fn seen_set(&self) -> Value {
        json!({"add": {"set": {
            "family": "inet", "table": self.table, "name": SEEN_SET, "type": "ifname",
            "size": SEEN_ELEMENTS, "flags": ["timeout"], "timeout": SEEN_SECONDS,
        }}})
    }

    fn counter(&self, counter: Counter) -> Value {
        let name = counter.name();
        json!({"add": {"counter": {"family": "inet", "table": self.table, "name": name}}})
    }

    fn chain(&self, chain: &Chain) -> Value {
        let mut value = json!({"family": "inet", "table": self.table, "name": chain.name});
        if let Some(hook) = chain.hook {
            value["type"] = json!(hook.kind());
            value["hook"] = json!(hook.name());
            value["prio"] = json!(hook.priority());
            value["policy"] = json!("accept");
        }
        json!({"add": {"chain": value}})
    }

    fn rule(&self, chain: &str, rule: &Rule) -> Value {
        let terms = rule.terms.iter().flat_map(|term| self.term(term));
        let terms: Vec<Value> = terms.collect();
        json!({"add": {"rule": {
            "family": "inet", "table": self.table, "chain": chain,
            "expr": terms, "comment": rule.comment,
        }}})
    }

    fn term(&self, term: &Term) -> Vec<Value> {
        match term {
            Term::From(names) => vec![equal(meta("iifname"), one_or_set(names.iter().collect()))],
            Term::To(names) => vec![equal(meta("oifname"), one_or_set(names.iter().collect()))],
            Term::Protocol(all) => {
                let numbers = all.iter().map(|protocol| protocol.0).collect();
                vec![equal(meta("l4proto"), one_or_set(numbers))]
            }
            Term::Opens => {
                let flags = json!({"&": [payload("tcp", "flags"), ["syn", "rst"]]});
                vec![equal(flags, json!("syn"))]
            }
            Term::NotFrom(names) => vec![matches("!=", meta("iifname"), json!({"set": names}))],
            Term::TcpOrIcmp => vec![equal(meta("l4proto"), protocols())],
            Term::NotTcpOrIcmp => vec![matches("!=", meta("l4proto"), protocols())],
            Term::Syn => vec![equal(tcp_flags(), json!("syn"))],
            Term::Ack => vec![equal(tcp_flags(), json!("ack"))],
            Term::Fin => vec![equal(tcp_flags(), json!({"|": ["fin", "ack"]}))],
            Term::SynAck => vec![equal(tcp_flags(), json!({"|": ["syn", "ack"]}))],
            Term::Source(nets) => vec![prefixes("saddr", nets)],
            Term::Destination(nets) => vec![prefixes("daddr", nets)],
            Term::TransportSource(ranges) => vec![ports("th", "sport", ranges)],
            Term::TransportDestination(ranges) => vec![ports("th", "dport", ranges)],
            Term::SourcePort(ranges) => vec![ports("tcp", "sport", ranges)],
            Term::DestinationPort(ranges) => vec![ports("tcp", "dport", ranges)],
            Term::Dscp(family, values) => {
                vec![equal(
                    payload(family.payload(), "dscp"),
                    one_or_set(values.iter().collect()),
                )]
            }
            Term::ForThisMachine => vec![no_single_machine_elsewhere("daddr")],
            Term::AsThisMachine => vec![no_single_machine_elsewhere("saddr")],
            Term::RoutedTo(name) => vec![equal(way_out(), json!(name))],
            Term::RoutedToAny(names) => {
                vec![equal(way_out(), one_or_set(names.iter().collect()))]
            }
            Term::SocketMark(mark) => {
                vec![equal(
                    self.masked(json!({"socket": {"key": "mark"}})),
                    json!(mark),
                )]
            }
            Term::SocketTransparent => {
                vec![equal(json!({"socket": {"key": "transparent"}}), json!(1))]
            }
            Term::Mark(mark) => vec![equal(self.masked(meta("mark")), json!(mark))],
            Term::IsRecent(family) => vec![equal(
                four_addresses(*family),
                json!(format!("@{}", family.recent_set())),
            )],
            Term::AtCap(family) => {
                let set = json!(format!("@{}", family.hosts_set()));
                vec![equal(host(*family), set)]
            }
            Term::FasterPerHost(family, rate) => {
                let set = format!("@{}", family.rates_set());
                let faster = [faster(*rate)];
                vec![
                    json!({"set": {"op": "update", "elem": host(*family), "set": set, "stmt": faster}}),
                ]
            }
            Term::Faster(rate) => vec![faster(*rate)],
            Term::Remember(family) => vec![in_recent("update", *family)],
            Term::Forget(family) => vec![in_recent("delete", *family)],
            Term::SetMark(mark) => vec![self.set_mark(*mark)],
            Term::Notrack => vec![json!({"notrack": null})],
            Term::Tproxy(family, port) => tproxy(*family, *port),
            Term::Count(counter) => vec![json!({"counter": counter.name()})],
            Term::Seen => {
                let set = format!("@{SEEN_SET}");
                vec![json!({"set": {"op": "update", "elem": meta("iifname"), "set": set}})]
            }
            Term::IcmpError(family) => icmp_types(*family, family.icmp_errors().to_vec()),
            Term::IcmpNotCarried(family) => icmp_types(*family, family.icmp_not_carried()),
            Term::RememberPeer(family, lane) => {
                let set = format!("@{}", family.spoken_set(*lane));
                let source = payload(family.payload(), "saddr");
                vec![json!({"set": {"op": "update", "elem": source, "set": set}})]
            }
            Term::HasSpoken(family, lane) => {
                let set = format!("@{}", family.spoken_set(*lane));
                vec![equal(payload(family.payload(), "daddr"), json!(set))]
            }
            Term::QuotedProtocol(family, all) => {
                let numbers = all.iter().map(|protocol| protocol.0).collect();
                let raw = raw(family.quoted().protocol, 8);
                vec![equal(raw, one_or_set(numbers))]
            }
            Term::QuotedSource(family, ranges) => {
                vec![equal(raw(family.quoted().source, 16), port_set(ranges))]
            }
            Term::QuotedDestination(family, ranges) => {
                vec![equal(
                    raw(family.quoted().destination, 16),
                    port_set(ranges),
                )]
            }
            Term::ClampMss => {
                let size = json!({"tcp option": {"name": "maxseg", "field": "size"}});
                vec![json!({"mangle": {"key": size, "value": {"rt": {"key": "mtu"}}}})]
            }
            Term::Reject => vec![json!({"reject": {"type": "icmpx", "expr": "port-unreachable"}})],
            Term::Drop => vec![json!({"drop": null})],
            Term::Accept => vec![json!({"accept": null})],
            Term::Return => vec![json!({"return": null})],
            Term::Jump(chain) => vec![json!({"jump": {"target": chain}})],
            Term::Goto(chain) => vec![json!({"goto": {"target": chain}})],
        }
    }

    fn masked(&self, value: Value) -> Value {
        json!({"&": [value, self.mask]})
    }

    fn set_mark(&self, mark: u32) -> Value {
        let kept = json!({"&": [meta("mark"), kept_bits(self.mask, mark)]});
        let value = if mark == 0 {
            kept
        } else {
            json!({"|": [kept, mark]})
        };
        json!({"mangle": {"key": meta("mark"), "value": value}})
    }
}

fn matches(op: &str, left: Value, right: Value) -> Value {
    json!({"match": {"op": op, "left": left, "right": right}})
}

fn equal(left: Value, right: Value) -> Value {
    matches("==", left, right)
}

fn no_single_machine_elsewhere(end: &str) -> Value {
    equal(
        json!({"fib": {"result": "type", "flags": [end]}}),
        json!({"set": ["local", "broadcast", "anycast", "multicast"]}),
    )
}

fn way_out() -> Value {
    json!({"fib": {"result": "oifname", "flags": ["daddr", "mark"]}})
}

fn meta(key: &str) -> Value {
    json!({"meta": {"key": key}})
}

fn payload(protocol: &str, field: &str) -> Value {
    json!({"payload": {"protocol": protocol, "field": field}})
}

fn protocols() -> Value {
    json!({"set": ["icmp", "tcp", "ipv6-icmp"]})
}

fn tcp_flags() -> Value {
    json!({"&": [payload("tcp", "flags"), ["fin", "syn", "rst", "ack"]]})
}

fn icmp_types(family: Family, types: Vec<&str>) -> Vec<Value> {
    vec![equal(payload(family.icmp(), "type"), one_or_set(types))]
}

fn one_or_set<T: serde::Serialize>(mut values: Vec<T>) -> Value {
    if values.len() == 1 {
        json!(values.remove(0))
    } else {
        json!({ "set": values })
    }
}

fn prefixes(field: &str, nets: &Prefixes) -> Value {
    let prefix = |addr: String, len: u8, full: u8| {
        if len == full {
            json!(addr)
        } else {
            json!({"prefix": {"addr": addr, "len": len}})
        }
    };
    match nets {
        Prefixes::V4(nets) => {
            let nets = nets
                .iter()
                .map(|net| prefix(net.addr().to_string(), net.prefix_len(), 32));
            equal(payload("ip", field), one_or_set(nets.collect()))
        }
        Prefixes::V6(nets) => {
            let nets = nets
                .iter()
                .map(|net| prefix(net.addr().to_string(), net.prefix_len(), 128));
            equal(payload("ip6", field), one_or_set(nets.collect()))
        }
    }
}

/// Bits behind the beginning of what is above IP.
fn raw(offset: u16, len: u16) -> Value {
    json!({"payload": {"base": "th", "offset": offset, "len": len}})
}

fn ports(protocol: &str, field: &str, ranges: &[PortRange]) -> Value {
    equal(payload(protocol, field), port_set(ranges))
}

fn port_set(ranges: &[PortRange]) -> Value {
    let ranges = ranges.iter().map(|range| {
        if range.first() == range.last() {
            json!(range.first())
        } else {
            json!({"range": [range.first(), range.last()]})
        }
    });
    one_or_set(ranges.collect())
}

fn four_addresses(family: Family) -> Value {
    let ip = family.payload();
    json!({"concat": [
        payload(ip, "saddr"), payload("tcp", "sport"), payload(ip, "daddr"), payload("tcp", "dport"),
    ]})
}

fn host(family: Family) -> Value {
    let source = payload(family.payload(), "saddr");
    match family {
        Family::V4 => source,
        Family::V6 => json!({"&": [source, HOST_MASK]}),
    }
}

fn faster(rate: u32) -> Value {
    json!({"limit": {"rate": rate, "burst": rate, "per": "second", "inv": true}})
}

fn in_recent(operation: &str, family: Family) -> Value {
    let set = format!("@{}", family.recent_set());
    json!({"set": {"op": operation, "elem": four_addresses(family), "set": set}})
}

fn tproxy(family: Family, port: u16) -> Vec<Value> {
    vec![
        equal(meta("nfproto"), json!(family.nfproto())),
        equal(meta("l4proto"), json!("tcp")),
        json!({"tproxy": {"family": family.payload(), "addr": family.listen_address(), "port": port}}),
    ]
}
