//! Properties that hold for any text, and any flow.

use std::net::SocketAddr;

use pep_core::{
    config,
    site::{FlowKey, Matcher, PortRange, Protocol, Site, SiteId, SiteTable, SynHandling},
};
use proptest::{collection::vec, prelude::*};

/// Lines that look like a configuration, in any order and with any values.
fn lines() -> impl Strategy<Value = String> {
    let header = prop::sample::select(vec![
        "[intercept]",
        "[link]",
        "[limits]",
        "[timeouts]",
        "[[site]]",
        "[site.match]",
        "[peer.a]",
        "[site]",
        "[log]",
        "[identity]",
        "[site.timeouts]",
        "site = [1, {}]",
        "[peer]",
    ]);
    let key = prop::sample::select(vec![
        "lan",
        "listen_port",
        "mark",
        "mark_mask",
        "rate",
        "rtt",
        "flows",
        "memory",
        "ring_max",
        "rto_max",
        "user_timeout",
        "keepalive",
        "name",
        "match",
        "src",
        "dport",
        "dscp",
        "mode",
        "interface",
        "congestion",
        "pacing",
        "held",
        "timeouts",
        "peer",
        "public_key",
    ]);
    let value = prop::sample::select(vec![
        "0",
        "-1",
        "65535",
        "4294967295",
        "18446744073709551616",
        "\"\"",
        "\"off\"",
        "\"1s\"",
        "\"10Mbit/s\"",
        "\"1e300d\"",
        "[]",
        "[[]]",
        "[1, \"a\"]",
        "{}",
        "{ a = 1 }",
        "true",
        "\"10.0.0.0/8\"",
        "\"::/0\"",
        "\"1-2\"",
        "\"16MiB\"",
        "\"eth0\"",
        "1.5",
        "nan",
        "1979-05-27",
        "\"é\"",
    ]);
    let line = prop_oneof![
        1 => header.prop_map(str::to_owned),
        3 => (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
    ];
    vec(line, 0..12).prop_map(|lines| lines.join("\n"))
}

/// A matcher of few values, and flows over the same few, so that both outcomes are common.
fn port_range() -> impl Strategy<Value = PortRange> {
    (1u16..6, 0u16..3).prop_map(|(first, more)| PortRange::new(first, first + more).expect("some"))
}

fn prefixes() -> impl Strategy<Value = Vec<ipnet::IpNet>> {
    let prefix = prop::sample::select(vec![
        "10.0.0.0/8",
        "10.1.0.0/16",
        "10.1.1.1/32",
        "0.0.0.0/0",
        "0.0.0.0/1",
        "128.0.0.0/1",
        "192.0.2.0/24",
        "::/0",
        "2001:db8::/32",
    ]);
    vec(
        prefix.prop_map(|text| text.parse().expect("a prefix")),
        0..3,
    )
}

fn matcher() -> impl Strategy<Value = Matcher> {
    let interface = prop::sample::select(vec!["eth0", "eth1"]);
    let interfaces = vec(
        interface.prop_map(|name| name.parse().expect("a name")),
        0..2,
    );
    let ports = || vec(port_range(), 0..3);
    let protocols = vec((0u8..4).prop_map(Protocol), 0..3);
    (
        protocols,
        prefixes(),
        prefixes(),
        ports(),
        ports(),
        vec(0u8..4, 0..3),
        interfaces,
    )
        .prop_map(
            |(protocol, src, dst, sport, dport, dscp, interface)| Matcher {
                protocol,
                src,
                dst,
                sport,
                dport,
                dscp,
                interface,
            },
        )
}

fn address(ips: &'static [&'static str]) -> impl Strategy<Value = SocketAddr> {
    (prop::sample::select(ips), 1u16..9)
        .prop_map(|(ip, port)| SocketAddr::new(ip.parse().expect("an address"), port))
}

fn flow() -> impl Strategy<Value = FlowKey<'static>> {
    const V4: &[&str] = &["10.1.1.1", "10.1.2.3", "192.0.2.9", "200.0.0.1"];
    const V6: &[&str] = &["2001:db8::1", "2001:db9::1", "::1"];
    let ends = prop_oneof![(address(V4), address(V4)), (address(V6), address(V6))];
    let interface = prop::sample::select(vec!["eth0", "eth1", "eth2"]);
    (ends, 0u8..5, interface, 0u8..5).prop_map(|((src, dst), dscp, interface, number)| FlowKey {
        // Neither family carries the other's ICMP.
        protocol: match Protocol(number) {
            Protocol::ICMP if src.is_ipv6() => Protocol::ICMPV6,
            protocol => protocol,
        },
        src,
        dst,
        dscp,
        interface,
    })
}

/// Reference: the same test, bit by bit and port by port.
fn naive(matcher: &Matcher, flow: &FlowKey<'_>) -> bool {
    fn bits(address: std::net::IpAddr) -> (u8, u128) {
        match address {
            std::net::IpAddr::V4(v4) => (32, u32::from(v4).into()),
            std::net::IpAddr::V6(v6) => (128, v6.into()),
        }
    }
    let in_prefix = |net: &ipnet::IpNet, address: SocketAddr| {
        let ((net_width, net_bits), (width, bits)) = (bits(net.addr()), bits(address.ip()));
        let bit = |value: u128, n: u8| value >> (width - 1 - n) & 1;
        net_width == width && (0..net.prefix_len()).all(|n| bit(net_bits, n) == bit(bits, n))
    };
    let any_port = |ranges: &[PortRange], port: u16| {
        ranges
            .iter()
            .flat_map(|range| range.first()..=range.last())
            .any(|other| other == port)
    };
    (matcher.protocol.is_empty() || matcher.protocol.contains(&flow.protocol))
        && (matcher.src.is_empty() || matcher.src.iter().any(|net| in_prefix(net, flow.src)))
        && (matcher.dst.is_empty() || matcher.dst.iter().any(|net| in_prefix(net, flow.dst)))
        && (matcher.sport.is_empty() || any_port(&matcher.sport, flow.src.port()))
        && (matcher.dport.is_empty() || any_port(&matcher.dport, flow.dst.port()))
        && (matcher.dscp.is_empty() || matcher.dscp.contains(&flow.dscp))
        && (matcher.interface.is_empty()
            || matcher
                .interface
                .iter()
                .any(|name| name.to_string() == flow.interface))
}

fn site(matcher: Matcher) -> Site {
    let timeouts = config::Timeouts::default();
    Site {
        matcher,
        ..Site::with_defaults("a", SynHandling::Spoof, &timeouts)
    }
}

proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "(?s).{0,200}") {
        let _ = config::parse(&text);
    }

    #[test]
    fn no_configuration_makes_it_panic(text in lines()) {
        let lines = text.lines().count().max(1);
        if let Err(errors) = config::parse(&text) {
            prop_assert!(!errors.is_empty());
            for error in errors {
                prop_assert!((1..=lines).contains(&error.line), "{error} in {text}");
                prop_assert!(!error.key.is_empty() && !error.message.is_empty());
            }
        }
    }

    #[test]
    fn the_first_site_that_matches_has_the_flow(matchers in vec(matcher(), 0..6), flow in flow()) {
        let expected = matchers.iter().position(|matcher| naive(matcher, &flow));
        let expected = expected.unwrap_or(matchers.len());
        let table = SiteTable::new(
            matchers.into_iter().map(site).collect(),
            site(Matcher::default()),
        );
        prop_assert_eq!(table.find(&flow).index(), expected);
    }

    #[test]
    fn what_is_covered_is_never_needed(wide in matcher(), narrow in matcher(), flows in vec(flow(), 40)) {
        let covered = wide.covers(&narrow);
        for flow in flows {
            prop_assert!(!(covered && narrow.matches(&flow) && !wide.matches(&flow)), "{flow:?}");
            prop_assert!(!(narrow.is_impossible() && narrow.matches(&flow)), "{flow:?}");
        }
    }
}

#[test]
fn a_matcher_covers_itself_and_all_cover_nothing_less() {
    let any = Matcher::default();
    let directions = ["0.0.0.0/1", "128.0.0.0/1", "::/0"].map(|net| net.parse().expect("a prefix"));
    let both_directions = Matcher {
        src: directions.to_vec(),
        ..Matcher::default()
    };
    let one_direction = Matcher {
        src: directions[..1].to_vec(),
        ..Matcher::default()
    };
    assert!(any.covers(&both_directions) && both_directions.covers(&any) && any.covers(&any));
    assert!(any.covers(&one_direction) && !one_direction.covers(&any));
    assert_eq!(
        SiteTable::new(Vec::new(), site(any))
            .iter()
            .next()
            .map(|(id, _)| id),
        Some(SiteId(0))
    );
}
