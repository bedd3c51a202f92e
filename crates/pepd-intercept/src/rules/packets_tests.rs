use ipnet::Ipv4Net;
use pep_core::site::{PortRange, Protocol};

use super::super::*;

const HEAD: &str = "[intercept]\nlan = [\"lan0\", \"lan1\"]\nforward = \"ignore\"\n[identity]\nkey_file = \"k\"\n[peer.hub]\nendpoint = \"192.0.2.1:1\"\n\
                    public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n";

fn ruleset(sites: &str) -> Ruleset {
    let config = pep_core::config::parse(&format!("{HEAD}{sites}")).expect("valid");
    Ruleset::new(&config, Features::FULL)
}

fn site(name: &str, mode: &str, matches: &str) -> String {
    let peer = if mode == "packet" {
        "peer = \"hub\"\n"
    } else {
        ""
    };
    format!("[[site]]\nname = \"{name}\"\nmode = \"{mode}\"\n{peer}match = {{ {matches} }}\n")
}

fn rules_of<'a>(ruleset: &'a Ruleset, chain: &str) -> Vec<&'a [Term]> {
    let chain = ruleset.chains.iter().find(|one| one.name == chain);
    let rules = &chain.expect("a chain of that name").rules;
    rules.iter().map(|rule| rule.terms.as_slice()).collect()
}

#[test]
fn who_looks_at_no_packets_has_no_rule_for_them() {
    let plain = ruleset(&site("a", "bypass", "protocol = \"udp\""));
    let names: Vec<_> = plain.chains.iter().map(|chain| &chain.name).collect();
    assert!(
        !names.iter().any(|name| name.contains("packet")),
        "{names:?}"
    );
    assert!(plain.counters.starts_with(&Counter::ALL));
    let of_packets = |counter: &Counter| counter.name().contains("packets");
    assert!(!plain.counters.iter().any(of_packets));
    let ends = |rule: &&[Term]| matches!(rule.last(), Some(Term::Goto(_) | Term::Jump(_)));
    let leads: Vec<_> = rules_of(&plain, "from_hosts")
        .into_iter()
        .filter(ends)
        .collect();
    let packets = Term::Goto("packet_sites".to_owned());
    assert!(!leads.iter().any(|rule| rule.contains(&packets)));
}

#[test]
fn sites_decide_in_their_order_whatever_their_mode() {
    let ruleset = ruleset(
        &[
            site("ssh", "split", "dport = 22"),
            site(
                "voice",
                "packet",
                "protocol = [\"udp\", 132], dport = 5060, interface = \"lan1\"",
            ),
            site("quic", "block", "protocol = \"udp\", dport = 443"),
            site(
                "ping",
                "bypass",
                "protocol = \"icmp\", dst = \"10.0.0.0/8\"",
            ),
            site("rest", "packet", ""),
            site("never", "bypass", "dport = 1"),
        ]
        .concat(),
    );
    let udp = || Term::Protocol(vec![Protocol::UDP]);
    let port = |port| Term::TransportDestination(vec![PortRange::single(port)]);
    let prefix: Ipv4Net = "10.0.0.0/8".parse().unwrap();
    let chain = rules_of(&ruleset, "packet_sites");
    let expected: [&[Term]; 7] = [
        &[Term::Protocol(vec![Protocol::TCP]), port(22), Term::Return],
        &[
            Term::From(vec!["lan1".to_owned()]),
            Term::Protocol(vec![Protocol::UDP, Protocol(132)]),
            port(5060),
            Term::Goto("packet_0".to_owned()),
        ],
        &[udp(), port(443), Term::Goto("block_2".to_owned())],
        &[
            Term::Protocol(vec![Protocol::ICMP]),
            Term::Destination(Prefixes::V4(vec![prefix])),
            Term::Return,
        ],
        &[Term::IcmpNotCarried(Family::V4), Term::Return],
        &[Term::IcmpNotCarried(Family::V6), Term::Return],
        &[Term::Goto("packet_1".to_owned())],
    ];
    assert_eq!(chain[0], [Term::ForThisMachine, Term::Return]);
    let errors = |rule: &&&[Term]| matches!(rule[0], Term::IcmpError(_));
    assert_eq!(chain[2..6].iter().filter(errors).count(), 4);
    assert_eq!(chain[6..], expected, "nothing behind the last that matters");
    assert_eq!(
        rules_of(&ruleset, "block_2"),
        [[Term::Count(Counter::Refused), Term::Reject]]
    );
    // Only sites that take TCP appear among the rules for SYNs.
    let sites = rules_of(&ruleset, "sites");
    let passing = [Counter::PassedEndToEnd, Counter::PassedOtherRoute].map(Term::Count);
    let passes = |rule: &&&[Term]| rule.iter().any(|term| passing.contains(term));
    let sites = sites[1..].iter().skip_while(passes);
    let goes_on = |rule: &&&[Term]| !matches!(rule.last(), Some(Term::Jump(_)));
    let sites = sites.filter(goes_on);
    let ends: Vec<_> = sites.map(|rule| rule.last().unwrap()).collect();
    let goto = |id| Term::Goto(format!("site_{id}"));
    assert_eq!(ends, [&goto(0), &Term::Accept, &Term::Accept, &goto(6)]);
}

#[test]
fn packets_of_flows_that_there_are_never_come_to_the_chain() {
    let ruleset = ruleset(&site("rest", "packet", ""));
    let rules = rules_of(&ruleset, "from_hosts");
    let position = |wanted: &dyn Fn(&[Term]) -> bool| {
        rules
            .iter()
            .position(|terms| wanted(terms))
            .expect("a rule")
    };
    let goes = |end: fn(String) -> Term| end("packet_sites".to_owned());
    let of_peers = || Term::From(vec!["pepd-0".to_owned()]);
    let to_us = position(&|terms| {
        terms.starts_with(&[of_peers(), Term::ForThisMachine]) && terms.ends_with(&[Term::Drop])
    });
    let as_us = position(&|terms| {
        terms.starts_with(&[of_peers(), Term::AsThisMachine]) && terms.ends_with(&[Term::Drop])
    });
    let own = position(&|terms| {
        terms.starts_with(&[of_peers()]) && terms.ends_with(&[Term::Notrack, Term::Accept])
    });
    let passing = Term::From(vec!["pepd-p".to_owned()]);
    let passing = position(&|terms| terms == [passing.clone(), Term::Accept]);
    let others = position(&|terms| terms.contains(&Term::NotTcpOrIcmp));
    let full = position(&|terms| {
        terms.starts_with(&[Term::SocketTransparent, Term::SocketMark(0x5000_0000)])
    });
    let syn = position(&|terms| terms.last() == Some(&goes(Term::Jump)));
    let gate = position(&|terms| terms.last() == Some(&Term::Jump("gate".to_owned())));
    let half_open = position(&|terms| matches!(terms, [Term::SocketTransparent, Term::Jump(_)]));
    let last = rules.len() - 1;
    let first = (others, to_us, as_us, own, passing);
    assert_eq!(first, (0, 1, 2, 7, 8), "before all others");
    for (number, family) in (3..).zip([Family::V4, Family::V6]) {
        let [from, near, ..] = rules[number] else {
            panic!("{:?}", rules[number]);
        };
        assert_eq!((from, near), (&of_peers(), &Term::FromNear(family)));
        let known = [of_peers(), Term::RememberPeer(family, 0)];
        assert_eq!(rules[number + 2], known);
    }
    assert_eq!(rules[others].last(), Some(&goes(Term::Goto)));
    assert!(others < full && full < syn && syn < gate && half_open < last);
    assert_eq!(rules[last].last(), Some(&goes(Term::Goto)));
}

#[test]
fn a_packet_is_marked_for_its_tun_and_left_alone_without_it() {
    let all = [
        site("a", "packet", "dport = 1"),
        site("b", "packet", "dport = 2"),
    ]
    .concat();
    let ruleset = ruleset(&format!("{all}[site.packet]\nmss_clamp = false\n"));
    let near = Family::ALL.map(|family| {
        // Only packets from LAN interfaces come here.
        [Term::ToNear(family), Term::Accept]
    });
    let expected: [&[Term]; 4] = [
        &near[0],
        &near[1],
        &[
            // After those of the two LAN interfaces.
            Term::SetMark(0x5700_0000),
            Term::RoutedTo("pepd-1".to_owned()),
            Term::SetMark(0),
            Term::Tag(0x57),
            Term::Notrack,
            Term::Count(Counter::IntoTunnel(1)),
            Term::Accept,
        ],
        &[Term::SetMark(0), Term::Accept],
    ];
    assert_eq!(rules_of(&ruleset, "packet_1"), expected);
    let counters = [
        Counter::IntoTunnel(0),
        Counter::IntoTunnel(1),
        Counter::NotForHosts,
        Counter::NotFromHosts,
    ];
    assert!(ruleset.counters.ends_with(&counters));
    let clamp = [
        Term::Opens,
        Term::To(vec!["pepd-0".to_owned()]),
        Term::ClampMss,
    ];
    assert_eq!(rules_of(&ruleset, "into_tunnels"), [clamp]);
}

#[test]
fn what_stays_on_this_side_goes_into_no_tun() {
    let first = |link: &str| {
        let site = site("a", "packet", "");
        let ruleset = ruleset(&format!("[link]\ninterface = \"{link}\"\n{site}"));
        rules_of(&ruleset, "packet_0")[0].to_vec()
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let between = [Term::RoutedToAny(names(&["lan0", "lan1"])), Term::Accept];
    assert_eq!(first("sat0"), between, "only packets from these come here");
    let between = [
        Term::From(names(&["lan0"])),
        Term::RoutedToAny(names(&["lan0"])),
        Term::Accept,
    ];
    assert_eq!(first("lan1"), between, "one-armed");
    let unknown = ruleset(&site("a", "packet", ""));
    let between = |terms: &&[Term]| {
        terms
            .iter()
            .any(|term| matches!(term, Term::RoutedToAny(_)))
    };
    assert!(!rules_of(&unknown, "packet_0").iter().any(between));
}

#[test]
fn errors_about_packets_of_a_peer_take_the_path_of_answers() {
    let all = [
        site("a", "packet", ""),
        site(
            "b",
            "packet",
            "protocol = [\"udp\", \"tcp\"], sport = 53, dport = [\"7-9\", 10]",
        ),
    ];
    let ruleset = ruleset(&all.concat());
    let about = |family, lane| vec![Term::IcmpError(family), Term::HasSpoken(family, lane)];
    let of_b = |family| {
        let mut terms = about(family, 1);
        terms.extend([
            Term::QuotedProtocol(family, vec![Protocol::TCP, Protocol::UDP]),
            Term::QuotedDestination(family, vec![PortRange::single(53)]),
            Term::QuotedSource(family, vec![PortRange::new(7, 10).unwrap()]),
        ]);
        terms
    };
    let own = |mut terms: Vec<Term>, mark| {
        terms.extend([Term::SetMark(mark), Term::Notrack, Term::Accept]);
        terms
    };
    let expected = [
        own(about(Family::V4, 0), 0x5600_0000),
        own(about(Family::V6, 0), 0x5600_0000),
        own(of_b(Family::V4), 0x5700_0000),
        own(of_b(Family::V6), 0x5700_0000),
    ];
    assert_eq!(rules_of(&ruleset, "errors"), expected);
    let of_routers = rules_of(&ruleset, "packet_sites")[2..6].to_vec();
    let goes = |mut terms: Vec<Term>, lane: &str| {
        terms.push(Term::Goto(lane.to_owned()));
        terms
    };
    assert_eq!(of_routers[0], goes(about(Family::V4, 0), "packet_0"));
    assert_eq!(of_routers[3], goes(of_b(Family::V6), "packet_1"));
    assert_eq!(ruleset.spoken.len(), 4);
}

#[test]
fn an_older_kernel_has_no_rules_for_errors() {
    let text = format!("{HEAD}{}", site("a", "packet", ""));
    let config = pep_core::config::parse(&text).expect("valid");
    let older = Features {
        tags: false,
        marks: false,
        errors: false,
        ..Features::FULL
    };
    let ruleset = Ruleset::new(&config, older);
    assert!(ruleset.spoken.is_empty());
    let all = ruleset.chains.iter().flat_map(|chain| &chain.rules);
    let mut terms = all.flat_map(|rule| &rule.terms);
    let of_errors = |term: &Term| {
        matches!(
            term,
            Term::IcmpError(_) | Term::IcmpNotCarried(_) | Term::RememberPeer(..)
        )
    };
    assert!(!terms.any(of_errors));
    assert!(ruleset.chains.iter().all(|chain| chain.name != "errors"));
}

#[test]
fn boosted_packets_come_from_both_sides_and_return_tracked_once() {
    let sites = [
        site("ssh", "bypass", "protocol = \"tcp\", dport = 22"),
        site("peer", "packet", "protocol = 50"),
        site(
            "radio",
            "boost",
            "protocol = \"tcp\", src = \"10.0.0.0/8\", dport = 80, interface = \"lan1\", dscp = 46",
        ),
        site("never", "bypass", "dport = 1"),
    ];
    let ruleset = ruleset(&format!("[link]\ninterface = \"sat0\"\n{}", sites.concat()));
    let to =
        |names: &[&str]| Term::RoutedToAny(names.iter().map(|name| (*name).to_owned()).collect());
    let lans = || to(&["lan0", "lan1"]);
    let port = |port| Term::TransportSource(vec![PortRange::single(port)]);
    let tcp = || Term::Protocol(vec![Protocol::TCP]);
    let prefix: Ipv4Net = "10.0.0.0/8".parse().unwrap();
    let expected: [&[Term]; 4] = [
        &[Term::ForThisMachine, Term::Return],
        &[tcp(), port(22), lans(), Term::Return],
        &[Term::Protocol(vec![Protocol(50)]), lans(), Term::Return],
        &[
            tcp(),
            Term::Destination(Prefixes::V4(vec![prefix])),
            port(80),
            to(&["lan1"]),
            Term::Goto("packet_2".to_owned()),
        ],
    ];
    assert_eq!(rules_of(&ruleset, "boosted_sites"), expected);
    let from_link = [
        Term::From(vec!["sat0".to_owned()]),
        Term::Goto("boosted_sites".to_owned()),
    ];
    assert_eq!(
        rules_of(&ruleset, "from_servers").last(),
        Some(&&from_link[..])
    );
    let goes = Term::Goto("packet_1".to_owned());
    let of_hosts = rules_of(&ruleset, "packet_sites").into_iter();
    assert_eq!(
        of_hosts.filter(|rule| rule.last() == Some(&goes)).count(),
        1
    );
    // Conntrack sees packets of hosts behind the boosters, and those from the link before.
    let into = |chain: &str| {
        let rules = rules_of(&ruleset, chain).into_iter();
        let mut into = rules.filter(|rule| {
            rule.iter()
                .any(|term| matches!(term, Term::Count(Counter::IntoTunnel(_))))
        });
        into.next().expect("one").contains(&Term::Notrack)
    };
    assert_eq!((into("packet_1"), into("packet_2")), (true, false));
    let beside = [Term::RoutedByOther(vec!["sat0".to_owned()]), Term::Accept];
    assert!(rules_of(&ruleset, "packet_1").contains(&&beside[..]));
    let of_errors = ruleset.spoken.iter().map(|(_, lane)| *lane);
    assert!(of_errors.eq([0, 0]));
    // Two marks and TUNs.
    assert_eq!(
        ruleset
            .counters
            .iter()
            .filter(|counter| matches!(counter, Counter::IntoTunnel(_)))
            .count(),
        3
    );
}

#[test]
fn without_a_stated_link_packets_to_hosts_come_from_any_other_interface() {
    let ruleset = ruleset(&site("radio", "boost", ""));
    let names = ["lan0", "lan1", "pepd-p", "pepd-0", "pepd-1"];
    let others = Term::NotFrom(names.map(str::to_owned).to_vec());
    let last = rules_of(&ruleset, "from_servers").pop().expect("one");
    assert_eq!(last[0], others);
}

/// A host has a whole network of 64 bits, and would fill a set of addresses.
#[test]
fn hosts_of_a_peer_are_remembered_by_their_network() {
    let ruleset = ruleset(&site("all", "packet", ""));
    let text = crate::nft::install_transaction(&ruleset);
    for rule in [
        "update @peers4_0 { ip saddr }",
        "update @peers6_0 { ip6 saddr & ffff:ffff:ffff:ffff:: }",
        "ip daddr @peers4_0",
        "ip6 daddr & ffff:ffff:ffff:ffff:: == @peers6_0",
    ] {
        assert!(text.contains(rule), "{rule} is missing");
    }
}
