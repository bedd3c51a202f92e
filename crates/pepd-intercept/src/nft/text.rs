//! The table in nft's own language: installed, and printed by `pepd rules`. JSON is no alternative:
//! nft before 1.0.6 silently ignores statements of sets, and before 1.0.0 rejects lists of flags.

use std::{collections::BTreeSet, fmt::Write as _};

use ipnet::IpNet;
use pep_core::{hosts::Host, site::PortRange};

use super::{
    ASKED_MS, ENDED_SECONDS, FILTERED_ELEMENTS, FILTERED_SECONDS, FRESH_MS, Family, HOST_MASK,
    Hook, MARKS_ELEMENTS, MARKS_MAP, MARKS_MODULUS, MARKS_SECONDS, Names, OFF_LINK_SECONDS,
    RATE_ELEMENTS, RATE_SECONDS, RECENT_ELEMENTS, RECENT_SECONDS, SEEN_ELEMENTS, SEEN_SECONDS,
    SEEN_SET, SPOKEN_ELEMENTS, SPOKEN_SECONDS, Set, kept_bits, marks_seed,
};
use crate::rules::{Chain, CopyTo, Counter, Filtered, Limited, Prefixes, Rule, Ruleset, Term, Way};

/// Upper half of the priorities that serve pepd as tags, in hexadecimal as in nft's language: "PE"
/// in ASCII.
const TAGS: &str = "5045";

/// Name of the table for checks, which is never installed.
const PROBE: &str = "pepd_probe";

/// Returns a transaction that replaces any earlier table of that name, as a whole or not at all.
pub fn install_transaction(ruleset: &Ruleset) -> String {
    let table = &ruleset.table;
    // The first line creates the table if it is missing, so that the deletion succeeds.
    let mut text = remove_transaction(table) + "\n";
    let counter = |counter: Counter| format!("\tcounter {} {{\n\t}}\n", counter.name());
    let mut parts: Vec<_> = ruleset.counters.iter().copied().map(counter).collect();
    if ruleset.seen {
        parts.push(seen_set());
    }
    parts.extend(ruleset.recent.iter().map(|&family| recent_set(family)));
    let filtered = ruleset.filtered.iter();
    parts.extend(filtered.flat_map(|&family| filtered_sets(family)));
    parts.extend(ruleset.asked.iter().map(|&family| asked_set(family)));
    parts.extend(ruleset.hosts.iter().map(|&family| hosts_set(family)));
    parts.extend(ruleset.near.iter().map(|&family| near_set(family)));
    parts.extend(ruleset.off_link.iter().map(|&family| off_link_set(family)));
    parts.extend(
        ruleset
            .rates
            .iter()
            .map(|&(of, family)| rates_set(of, family)),
    );
    if ruleset.marked {
        parts.push(marks_map());
    }
    let spoken = ruleset.spoken.iter();
    parts.extend(spoken.map(|&(family, lane)| spoken_set(family, lane)));
    parts.extend(ruleset.chains.iter().map(|part| chain(ruleset.mask, part)));
    let _ = write!(text, "table inet {table} {{\n{}}}\n", parts.join("\n"));
    text
}

/// Returns a transaction that replaces the rules of a chain of an installed table.
pub(crate) fn chain_transaction(table: &str, mask: u32, name: &str, rules: &[Rule]) -> String {
    let mut text = format!("flush chain inet {table} {name}\n");
    for rule in rules {
        let _ = writeln!(text, "add rule inet {table} {name} {}", line(mask, rule));
    }
    text
}

/// Returns a transaction that sets the hosts at their flow limit, in an installed table with sets
/// for `families`.
pub(crate) fn hosts_transaction(
    table: &str,
    families: &[Family],
    hosts: &BTreeSet<Host>,
) -> String {
    let mut text = String::new();
    for &family in families {
        let name = family.set(Set::Hosts);
        let _ = writeln!(text, "flush set inet {table} {name}");
        let of_family = |host: &&Host| host.address().is_ipv4() == (family == Family::V4);
        let hosts: Vec<_> = hosts.iter().filter(of_family).collect();
        if !hosts.is_empty() {
            let hosts = set(hosts.iter().map(|host| host.address().to_string()));
            let _ = writeln!(text, "add element inet {table} {name} {hosts}");
        }
    }
    text
}

/// Returns a transaction that removes the table if it exists.
pub(crate) fn remove_transaction(table: &str) -> String {
    format!("table inet {table}\ndelete table inet {table}\n")
}

/// Returns a transaction that needs nothing but nftables itself, for a check.
pub(crate) fn empty_transaction() -> String {
    format!("table inet {PROBE}\n")
}

/// Returns a transaction with a single rule in a table of its own, for a check.
pub(crate) fn probe_transaction(terms: &[Term]) -> String {
    let hook = match terms {
        _ if terms.contains(&Term::ClampMss) || terms.contains(&Term::Midway) => {
            Hook::ForwardMangle
        }
        [Term::IcmpError(_), ..] => Hook::OutputRoute,
        _ => Hook::PreroutingRaw,
    };
    let rule = Rule {
        terms: terms.to_vec(),
        comment: "probe".to_owned(),
    };
    let probe = Chain {
        name: "probe".to_owned(),
        hook: Some(hook),
        rules: vec![rule],
    };
    let sets = terms.iter().filter_map(|term| match term {
        Term::Remember(family) | Term::Forget(family) => Some(recent_set(*family)),
        Term::FasterPerHost(of, family, _) => Some(rates_set(*of, *family)),
        Term::Seen => Some(seen_set()),
        Term::KeepMark(_) | Term::ForgetMark(_) => Some(marks_map()),
        Term::HasSpoken(family, lane) => Some(spoken_set(*family, *lane)),
        _ => None,
    });
    let parts: String = sets.chain([chain(u32::MAX, &probe)]).collect();
    format!("table inet {PROBE} {{\n{parts}}}\n")
}

/// Returns a transaction that sets the networks of this machine.
pub(crate) fn networks_transaction(
    table: &str,
    families: &[Family],
    networks: &BTreeSet<IpNet>,
) -> String {
    let mut text = String::new();
    for &family in families {
        let name = family.set(Set::Near);
        let _ = writeln!(text, "flush set inet {table} {name}");
        let of_family = |net: &&IpNet| net.addr().is_ipv4() == (family == Family::V4);
        // Intervals of a set must not overlap.
        let networks: Vec<_> = networks.iter().filter(of_family).copied().collect();
        let networks = IpNet::aggregate(&networks);
        if !networks.is_empty() {
            let networks = set(networks.iter().map(ToString::to_string));
            let _ = writeln!(text, "add element inet {table} {name} {networks}");
        }
    }
    text
}

/// Returns a transaction that forgets which connections do not reach pepd.
pub(crate) fn forget_filtered_transaction(table: &str, families: &[Family]) -> String {
    let mut text = String::new();
    for family in families {
        for of in [Filtered::Host, Filtered::Server] {
            let _ = writeln!(
                text,
                "flush set inet {table} {}",
                family.set(Set::Filtered(of))
            );
        }
    }
    text
}

fn near_set(family: Family) -> String {
    let (name, address) = (family.set(Set::Near), family.address_type());
    format!("\tset {name} {{\n\t\ttype {address}\n\t\tflags interval\n\t}}\n")
}

fn seen_set() -> String {
    format!(
        "\tset {SEEN_SET} {{\n\t\ttype ifname\n\t\tsize {SEEN_ELEMENTS}\n\t\tflags timeout\n\t\ttimeout {SEEN_SECONDS}s\n\t}}\n"
    )
}

fn hosts_set(family: Family) -> String {
    let (name, address) = (family.set(Set::Hosts), family.address_type());
    format!("\tset {name} {{\n\t\ttype {address}\n\t}}\n")
}

fn rates_set(of: Limited, family: Family) -> String {
    let (name, address) = (family.set(Set::Rates(of)), family.address_type());
    format!(
        "\tset {name} {{\n\t\ttype {address}\n\t\tsize {RATE_ELEMENTS}\n\t\tflags dynamic,timeout\n\t\ttimeout {RATE_SECONDS}s\n\t}}\n"
    )
}

fn spoken_set(family: Family, lane: usize) -> String {
    let (name, address) = (family.spoken_set(lane), family.address_type());
    format!(
        "\tset {name} {{\n\t\ttype {address}\n\t\tsize {SPOKEN_ELEMENTS}\n\t\tflags dynamic,timeout\n\t\ttimeout {SPOKEN_SECONDS}s\n\t}}\n"
    )
}

fn recent_set(family: Family) -> String {
    connections_set(family, Set::Recent, &format!("{RECENT_SECONDS}s"))
}

fn asked_set(family: Family) -> String {
    connections_set(family, Set::Asked, &format!("{ASKED_MS}ms"))
}

fn off_link_set(family: Family) -> String {
    connections_set(family, Set::OffLink, &format!("{OFF_LINK_SECONDS}s"))
}

fn filtered_sets(family: Family) -> [String; 5] {
    let address = family.address_type();
    let [hosts, servers] = [Filtered::Host, Filtered::Server].map(|of| {
        format!(
            "\tset {} {{\n\t\ttype {address} . inet_service\n\t\tsize {FILTERED_ELEMENTS}\n\t\tflags timeout\n\
             \t\ttimeout {FILTERED_SECONDS}s\n\t}}\n",
            family.set(Set::Filtered(of))
        )
    });
    let timeout = format!("{RECENT_SECONDS}s");
    [
        hosts,
        servers,
        connections_set(family, Set::Unheard, &timeout),
        connections_set(family, Set::Fresh, &format!("{FRESH_MS}ms")),
        connections_set(family, Set::Ended, &format!("{ENDED_SECONDS}s")),
    ]
}

/// Returns a set of four addresses each.
fn connections_set(family: Family, set: Set, timeout: &str) -> String {
    let (name, address) = (family.set(set), family.address_type());
    format!(
        "\tset {name} {{\n\t\ttype {address} . inet_service . {address} . inet_service\n\
         \t\tsize {RECENT_ELEMENTS}\n\t\tflags timeout\n\t\ttimeout {timeout}\n\t}}\n"
    )
}

fn marks_map() -> String {
    format!(
        "\tmap {MARKS_MAP} {{\n\t\ttype mark : mark\n\t\tsize {MARKS_ELEMENTS}\n\t\tflags timeout\n\t\ttimeout {MARKS_SECONDS}s\n\t}}\n"
    )
}

fn chain(mask: u32, chain: &Chain) -> String {
    let mut text = format!("\tchain {} {{\n", chain.name);
    if let Some(hook) = chain.hook {
        let (kind, name, priority) = (hook.kind(), hook.name(), hook.priority());
        let _ = writeln!(
            text,
            "\t\ttype {kind} hook {name} priority {priority}; policy accept;"
        );
    }
    for rule in &chain.rules {
        let _ = writeln!(text, "\t\t{}", line(mask, rule));
    }
    text + "\t}\n"
}

fn line(mask: u32, rule: &Rule) -> String {
    let terms: Vec<String> = rule.terms.iter().map(|part| term(mask, part)).collect();
    format!("{} comment \"{}\"", terms.join(" "), rule.comment)
}

fn term(mask: u32, term: &Term) -> String {
    // By number: nft looks names up in /etc/protocols, which small images lack.
    let protocols = "{ 1, 6, 58 }";
    match term {
        Term::From(names) => format!("iifname {}", one_or_set(names.iter().map(quoted))),
        Term::To(names) => format!("oifname {}", one_or_set(names.iter().map(quoted))),
        Term::NotTo(names) => format!("oifname != {}", one_or_set(names.iter().map(quoted))),
        Term::ToDevice(index) => format!("oif {index}"),
        Term::FromDevices(indices) => {
            format!("iif {}", one_or_set(indices.iter().map(u32::to_string)))
        }
        Term::LaterFragment(Family::V4) => "ip frag-off & 0x1fff != 0".to_owned(),
        Term::LaterFragment(Family::V6) => "frag frag-off != 0".to_owned(),
        Term::Protocol(all) => {
            let numbers = one_or_set(all.iter().map(|protocol| protocol.0.to_string()));
            format!("meta l4proto {numbers}")
        }
        Term::Opens => "tcp flags & (syn|rst) == syn".to_owned(),
        Term::NotFrom(names) => format!("iifname != {}", set(names.iter().map(quoted))),
        Term::TcpOrIcmp => format!("meta l4proto {protocols}"),
        Term::NotTcpOrIcmp => format!("meta l4proto != {protocols}"),
        // By number: nft before 1.0.2 has no names for these.
        Term::TcpOption(kind) => format!("tcp option {kind} exists"),
        Term::HopsAbove(Family::V4, hops) => format!("ip ttl > {hops}"),
        Term::HopsAbove(Family::V6, hops) => format!("ip6 hoplimit > {hops}"),
        Term::Syn => "tcp flags & (fin|syn|rst|ack) == syn".to_owned(),
        Term::Ack => "tcp flags & (fin|syn|rst|ack) == ack".to_owned(),
        Term::Fin => "tcp flags & (fin|syn|rst|ack) == fin|ack".to_owned(),
        Term::Rst => "tcp flags & (syn|rst) == rst".to_owned(),
        Term::Urgent => "tcp flags & urg == urg".to_owned(),
        Term::Midway => "tcp flags & (syn|rst) == 0".to_owned(),
        Term::NewTracked => "ct state new".to_owned(),
        Term::FirstAnswer => "ct direction reply ct status & assured == 0".to_owned(),
        Term::Ask(family) => with_packet("update", Set::Asked, *family),
        Term::Unask(family) => with_packet("delete", Set::Asked, *family),
        Term::IsAsked(family) => is_in(Set::Asked, *family),
        Term::Longer(bytes) => format!("meta length > {bytes}"),
        Term::Within(rate) => format!("limit rate {rate}/second burst {rate} packets"),
        Term::Copy(CopyTo {
            group,
            bytes,
            prefix,
        }) => {
            let prefix = match prefix.as_str() {
                "" => String::new(),
                prefix => format!("prefix \"{prefix}\" "),
            };
            format!("log {prefix}group {group} snaplen {bytes} queue-threshold 1")
        }
        Term::Of(family) => format!("meta nfproto {}", family.nfproto()),
        Term::Tag(tag) => format!("meta priority set {TAGS}:{tag:x}"),
        Term::Tagged(tag) => format!("meta priority {TAGS}:{tag:x}"),
        Term::SynAck => "tcp flags & (fin|syn|rst|ack) == syn|ack".to_owned(),
        Term::Source(nets) => prefixes("saddr", nets),
        Term::Destination(nets) => prefixes("daddr", nets),
        Term::TransportSource(ranges) => {
            format!("th sport {}", one_or_set(ranges.iter().map(range)))
        }
        Term::TransportDestination(ranges) => {
            format!("th dport {}", one_or_set(ranges.iter().map(range)))
        }
        Term::SourcePort(ranges) => format!("tcp sport {}", one_or_set(ranges.iter().map(range))),
        Term::DestinationPort(ranges) => {
            format!("tcp dport {}", one_or_set(ranges.iter().map(range)))
        }
        Term::Dscp(family, values) => {
            let values = one_or_set(values.iter().map(u8::to_string));
            format!("{} dscp {values}", family.payload())
        }
        Term::ForThisMachine => {
            "fib daddr type { local, broadcast, anycast, multicast }".to_owned()
        }
        Term::AsThisMachine => "fib saddr type { local, broadcast, anycast, multicast }".to_owned(),
        Term::NotBehind => "fib saddr . iif oif missing".to_owned(),
        Term::IpOptions => "ip hdrlength > 5".to_owned(),
        Term::NoRoute => "fib daddr . mark oif missing".to_owned(),
        Term::RoutedTo(name) => format!("fib daddr . mark oifname \"{name}\""),
        Term::RoutedToAny(names) => {
            let names = one_or_set(names.iter().map(quoted));
            format!("fib daddr . mark oifname {names}")
        }
        Term::RoutedByOther(names) => {
            let names = one_or_set(names.iter().map(quoted));
            format!("fib daddr . mark oif exists fib daddr . mark oifname != {names}")
        }
        Term::SocketMark(mark) => format!("socket mark & {mask:#010x} == {mark:#010x}"),
        Term::SocketTransparent => "socket transparent 1".to_owned(),
        Term::WildcardSocket => "socket wildcard 1".to_owned(),
        Term::Mark(mark) => format!("meta mark & {mask:#010x} == {mark:#010x}"),
        Term::NotMarked(marks) => {
            let marks = set(marks.iter().map(|mark| format!("{mark:#010x}")));
            format!("meta mark & {mask:#010x} != {marks}")
        }
        Term::FromNear(family) => {
            format!("{} saddr @{}", family.payload(), family.set(Set::Near))
        }
        Term::ToNear(family) => format!("{} daddr @{}", family.payload(), family.set(Set::Near)),
        Term::NoOtherMark => format!("meta mark & {:#010x} == 0", !mask),
        Term::KeepMark(family) => in_marks("update", *family),
        Term::ForgetMark(family) => in_marks("delete", *family),
        Term::IsRecent(family) => is_in(Set::Recent, *family),
        Term::AtCap(Family::V4) => format!("{} @{}", host(Family::V4), Family::V4.set(Set::Hosts)),
        Term::AtCap(Family::V6) => {
            format!("{} == @{}", host(Family::V6), Family::V6.set(Set::Hosts))
        }
        Term::FasterPerHost(of, family, rate) => {
            let (set, faster) = (family.set(Set::Rates(*of)), faster(*rate));
            format!("update @{set} {{ {} {faster} }}", host(*family))
        }
        Term::Faster(rate) => faster(*rate),
        Term::IsFiltered(of, family) => {
            let port = match of {
                Filtered::Host => "saddr . tcp dport",
                Filtered::Server => "daddr . tcp dport",
            };
            format!(
                "{} {port} @{}",
                family.payload(),
                family.set(Set::Filtered(*of))
            )
        }
        Term::Filtered(of, family) => {
            let port = match of {
                Filtered::Host => "saddr . tcp dport",
                Filtered::Server => "saddr . tcp sport",
            };
            let set = family.set(Set::Filtered(*of));
            format!("update @{set} {{ {} {port} }}", family.payload())
        }
        Term::IsUnheard(family) => is_in(Set::Unheard, *family),
        Term::Ended(way, family) => {
            let (set, key) = (family.set(Set::Ended), connection(*way, *family));
            format!("update @{set} {{ {key} }}")
        }
        Term::IsEnded(way, family) => {
            format!("{} @{}", connection(*way, *family), family.set(Set::Ended))
        }
        Term::Begins(way, family) => {
            let (set, key) = (family.set(Set::Ended), connection(*way, *family));
            format!("delete @{set} {{ {key} }}")
        }
        Term::OffLink(family) => with_packet("update", Set::OffLink, *family),
        Term::OnLink(family) => with_packet("delete", Set::OffLink, *family),
        Term::Fresh(family) => with_packet("update", Set::Fresh, *family),
        Term::NotFresh(family) => {
            format!("{} != @{}", four_addresses(*family), family.set(Set::Fresh))
        }
        Term::Unheard(family) => with_packet("update", Set::Unheard, *family),
        Term::Heard(family) => with_packet("delete", Set::Unheard, *family),
        Term::Remember(family) => with_packet("update", Set::Recent, *family),
        Term::Forget(family) => with_packet("delete", Set::Recent, *family),
        Term::SetMark(mark) => set_mark(mask, *mark),
        Term::Notrack => "notrack".to_owned(),
        Term::Tproxy(family, port) => tproxy(*family, *port),
        Term::Count(counter) => format!("counter name {}", counter.name()),
        Term::Seen => format!("update @{SEEN_SET} {{ iifname }}"),
        Term::IcmpRedirect(family) => icmp_types(*family, vec![family.icmp_redirect()]),
        Term::IcmpError(family) => icmp_types(*family, family.icmp_errors().to_vec()),
        Term::IcmpNotCarried(family) => icmp_types(*family, family.icmp_not_carried()),
        Term::RememberPeer(family, lane) => {
            format!(
                "update @{} {{ {} }}",
                family.spoken_set(*lane),
                host(*family)
            )
        }
        Term::HasSpoken(Family::V4, lane) => {
            format!("ip daddr @{}", Family::V4.spoken_set(*lane))
        }
        // As with `@hosts6`, nft needs the operator behind a mask.
        Term::HasSpoken(Family::V6, lane) => {
            let set = Family::V6.spoken_set(*lane);
            format!("ip6 daddr & {HOST_MASK} == @{set}")
        }
        Term::QuotedProtocol(family, all) => {
            let numbers = one_or_set(all.iter().map(|protocol| protocol.0.to_string()));
            format!("@th,{},8 {numbers}", family.quoted().protocol)
        }
        Term::QuotedSource(family, ranges) => {
            let ports = one_or_set(ranges.iter().map(range));
            format!("@th,{},16 {ports}", family.quoted().source)
        }
        Term::QuotedDestination(family, ranges) => {
            let ports = one_or_set(ranges.iter().map(range));
            format!("@th,{},16 {ports}", family.quoted().destination)
        }
        Term::ClampMss => "tcp option maxseg size set rt mtu".to_owned(),
        // Later versions of nft omit `type` and still accept it.
        Term::Reject => "reject with icmpx type port-unreachable".to_owned(),
        Term::Reset => "reject with tcp reset".to_owned(),
        Term::Drop => "drop".to_owned(),
        Term::Accept => "accept".to_owned(),
        Term::Return => "return".to_owned(),
        Term::Jump(chain) => format!("jump {chain}"),
        Term::Goto(chain) => format!("goto {chain}"),
    }
}

fn host(family: Family) -> String {
    match family {
        Family::V4 => "ip saddr".to_owned(),
        Family::V6 => format!("ip6 saddr & {HOST_MASK}"),
    }
}

fn faster(rate: u32) -> String {
    format!("limit rate over {rate}/second burst {rate} packets")
}

/// Returns an operation with the four addresses of the packet on a set.
fn with_packet(operation: &str, set: Set, family: Family) -> String {
    let (set, element) = (family.set(set), four_addresses(family));
    format!("{operation} @{set} {{ {element} }}")
}

/// Returns the condition that these are in a set.
fn is_in(set: Set, family: Family) -> String {
    format!("{} @{}", four_addresses(family), family.set(set))
}

/// Returns the addresses of a connection as a host's packets have them.
fn connection(way: Way, family: Family) -> String {
    let ip = family.payload();
    match way {
        Way::ToServer => four_addresses(family),
        Way::ToHost => format!("{ip} daddr . tcp dport . {ip} saddr . tcp sport"),
    }
}

fn in_marks(operation: &str, family: Family) -> String {
    let (key, seed) = (four_addresses(family), marks_seed());
    format!(
        "{operation} @{MARKS_MAP} {{ jhash {key} mod {MARKS_MODULUS} seed {seed:#x} : meta mark }}"
    )
}

fn quoted(name: &String) -> String {
    format!("\"{name}\"")
}

fn set(values: impl Iterator<Item = String>) -> String {
    format!("{{ {} }}", values.collect::<Vec<_>>().join(", "))
}

fn icmp_types(family: Family, types: Vec<&str>) -> String {
    let types = set(types.into_iter().map(str::to_owned));
    format!("{} type {types}", family.icmp())
}

fn one_or_set(values: impl Iterator<Item = String>) -> String {
    let mut values: Vec<String> = values.collect();
    if values.len() == 1 {
        values.remove(0)
    } else {
        set(values.into_iter())
    }
}

fn range(range: &PortRange) -> String {
    range.to_string()
}

fn prefixes(field: &str, nets: &Prefixes) -> String {
    match nets {
        Prefixes::V4(nets) => {
            format!(
                "ip {field} {}",
                one_or_set(nets.iter().map(ToString::to_string))
            )
        }
        Prefixes::V6(nets) => {
            format!(
                "ip6 {field} {}",
                one_or_set(nets.iter().map(ToString::to_string))
            )
        }
    }
}

fn four_addresses(family: Family) -> String {
    let ip = family.payload();
    format!("{ip} saddr . tcp sport . {ip} daddr . tcp dport")
}

fn set_mark(mask: u32, mark: u32) -> String {
    let kept = kept_bits(mask, mark);
    if mark == 0 {
        format!("meta mark set meta mark & {kept:#010x}")
    } else {
        format!("meta mark set meta mark & {kept:#010x} | {mark:#010x}")
    }
}

fn tproxy(family: Family, port: u16) -> String {
    let (nfproto, ip) = (family.nfproto(), family.payload());
    let address = match family {
        Family::V4 => format!("{}:{port}", family.listen_address()),
        Family::V6 => format!("[{}]:{port}", family.listen_address()),
    };
    format!("meta nfproto {nfproto} meta l4proto 6 tproxy {ip} to {address}")
}
