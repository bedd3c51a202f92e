//! Connections that do not cross the link: to another local network, and by another uplink.

use std::net::{IpAddr, SocketAddr, TcpListener};

use pepd_tests::{
    bed::{Bed, Family, LAN, PAST_FORWARD, Path, Place, add_addresses, add_route, forward, join},
    echo::EchoServer,
    host::Host,
    matrix::matrix_pepd_only,
    pep::Pep,
    pep_binary::pepd,
    programs::install,
    tunnel::TunnelBed,
    wait::wait_until,
};
use socket2::SockRef;

use crate::{
    support::{PORT, connect, echo_once},
    tunnel::{self, Running},
};

pub const LINK: &str = "[link]\ninterface = \"wan0\"\nrate = \"2Mbit/s\"\nrtt = \"600ms\"\n";

/// A machine behind another interface of the gateway, in a separate network.
pub struct Other {
    /// The machine.
    pub host: Host,
    /// The address of its echo server.
    pub address: SocketAddr,
    _echo: EchoServer,
}

/// Adds such a machine behind this interface.
pub fn other(bed: &Bed, interface: &str, net: u8) -> Other {
    behind(&bed.gateway, bed.family, interface, net)
}

/// Adds a machine behind this interface of a gateway.
pub fn behind(gateway: &Host, family: Family, interface: &str, net: u8) -> Other {
    let host = Host::new();
    join(gateway, interface, &host, "eth0");
    add_addresses(gateway, interface, family, &[(net, 1)]);
    add_addresses(&host, "eth0", family, &[(net, 2)]);
    let everything = match family {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    add_route(&host, everything, family.address(net, 1));
    let address = SocketAddr::new(family.address(net, 2), PORT);
    let echo = EchoServer::start(host.listen(address));
    Other {
        host,
        address,
        _echo: echo,
    }
}

fn echo_at(bed: &Bed, address: SocketAddr) {
    let mut stream = bed.client.connect(address).expect("it is there");
    echo_once(&mut stream, b"hello");
}

/// Runs `ip` on the gateway, for the bed's family.
pub fn ip(bed: &Bed, words: &str) {
    let version = match bed.family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    bed.gateway.ip(&format!("{version} {words}"));
}

/// Formats an address for `ip`.
pub fn alone(address: IpAddr) -> String {
    format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 })
}

/// Returns the counters of passed and accepted flows.
pub fn counts(pep: &Pep) -> [u64; 2] {
    ["syns_passed_other_route", "flows_accepted"].map(|name| pep.counter(name))
}

#[test]
fn only_what_the_route_takes_over_the_link_is_carried() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let uplink = other(bed, "wan1", 8);
        let pep = bed.start_with(LINK).expect("not direct");
        for _ in 0..3 {
            echo_at(bed, uplink.address);
        }
        assert_eq!(counts(&pep), [3, 0], "by another uplink");
        let logged = pep.log().expect("all connections pass unaccelerated");
        assert!(logged.message().contains("wan0"), "{}", logged.message());
        echo_once(&mut connect(bed), b"hello");
        assert_eq!(counts(&pep), [3, 1], "by the link");

        // The other uplink leads to the server, too, and the link has failed.
        let server: IpAddr = bed.at(Place::Server, PORT).ip();
        join(&uplink.host, "eth1", &bed.server, "eth1");
        add_addresses(&uplink.host, "eth1", bed.family, &[(9, 1)]);
        add_addresses(&bed.server, "eth1", bed.family, &[(9, 2)]);
        forward(&uplink.host);
        add_route(&uplink.host, &alone(server), bed.family.address(9, 2));
        let client = bed.client_at(0).ip();
        add_route(&bed.server, &alone(client), bed.family.address(9, 1));
        ip(
            bed,
            &format!("route add {} via {}", alone(server), uplink.address.ip()),
        );
        // Only the far end goes down: the gateway's own addresses and routes stay unchanged. The
        // server would lose its IPv6 address with the interface.
        bed.server
            .ip(&format!("address add {} dev eth1 nodad", alone(server)));
        bed.server.ip("link set eth0 down");
        pep.log().expect("link down");
        echo_once(&mut connect(bed), b"hello");
        assert_eq!(counts(&pep), [4, 1], "by the uplink that is up");
        ip(bed, &format!("route del {}", alone(server)));
        bed.server.ip("link set eth0 up");
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn the_operator_may_have_everything_carried() {
    matrix_pepd_only(|bed| {
        let uplink = other(bed, "wan1", 8);
        let all = format!("{LINK}elsewhere = \"split\"\n");
        let pep = bed.start_with(&all).expect("not direct");
        echo_at(bed, uplink.address);
        assert_eq!(counts(&pep), [0, 1]);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn networks_of_this_side_reach_each_other_without_pepd() {
    matrix_pepd_only(|bed| {
        let other = other(bed, "lan1", 8);
        let config = bed.config(LINK).expect("not direct");
        let lans = format!("[\"{LAN}\", \"lan1\"]");
        let config = config.replace(&format!("[\"{LAN}\"]"), &lans);
        let pep = Pep::start(&bed.gateway, &config);
        echo_at(bed, other.address);
        assert_eq!(counts(&pep), [1, 0]);
        pep.stop();
    });
}

#[test]
fn a_network_of_this_machine_is_reached_past_the_tunnel() {
    let bed = TunnelBed::new(tunnel::LINK);
    let server = bed.server_at(Family::V4, PORT);
    let _echo = EchoServer::start(bed.host("server").listen(server));
    let running = Running::start(&bed, "", tunnel::SITE);
    let counts =
        || ["syns_passed_other_route", "tunnel_flows_near"].map(|name| running.boat.counter(name));
    // The interface appears while pepd runs, is not in `intercept.lan`, and the hub has no route to
    // its network.
    let [boat, client] = ["boat", "client"].map(|name| bed.host(name));
    let networks = [Family::V4, Family::V6].map(|family| {
        let net = 8 + u8::from(family == Family::V6);
        behind(&boat, family, &format!("lan{net}"), net)
    });
    for network in &networks {
        let ip = network.address.ip();
        let set = if ip.is_ipv4() { "near4" } else { "near6" };
        // All but the last digit.
        let net = ip.to_string();
        let net = net.trim_end_matches('2');
        wait_until("pepd knows the network", || {
            boat.run("nft", &["list", "set", "inet", "pepd", set])
                .contains(net)
        });
        let via = bed.address("boat", if ip.is_ipv4() { Family::V4 } else { Family::V6 });
        add_route(&client, &alone(ip), via);
        let mut stream = client.connect(network.address).expect("it is there");
        echo_once(&mut stream, b"past the tunnel");
    }
    assert_eq!(counts(), [2, 0]);
    let mut stream = client.connect(server).expect("it is there");
    echo_once(&mut stream, b"by the tunnel");
    assert_eq!(counts(), [2, 1]);
}

/// Marks hosts' packets and adds a policy rule that routes the mark by `wan1`, as another program
/// would.
fn mark_for(bed: &Bed, uplink: &Other) {
    bed.gateway.nft(
        "table inet others {\nchain marks {\ntype filter hook prerouting priority mangle\n\
         iifname \"lan0\" meta mark set 0x100\n}\n}",
    );
    let via = uplink.address.ip();
    ip(bed, &format!("route add default via {via} table 66"));
    ip(bed, "rule add pref 30000 fwmark 0x100/0xff00 lookup 66");
}

/// Starts a server at the other uplink under the server's address.
fn server_by(bed: &Bed, uplink: &Other) -> EchoServer {
    let server = bed.at(Place::Server, PORT);
    let nodad = if server.is_ipv6() { " nodad" } else { "" };
    let address = alone(server.ip());
    uplink
        .host
        .ip(&format!("address add {address} dev lo{nodad}"));
    EchoServer::start(uplink.host.listen(server))
}

/// The pacing rate that `ss` shows, in bits a second; infinite where it shows none.
fn pacing_rate(leg: &str) -> f64 {
    let mut words = leg
        .split_whitespace()
        .skip_while(|word| *word != "pacing_rate");
    let Some(rate) = words.nth(1) else {
        return f64::INFINITY;
    };
    rate.trim_end_matches("bps").parse().expect("a rate")
}

#[test]
fn a_mark_that_another_program_sets_leads_server_legs_as_it_leads_packets() {
    matrix_pepd_only(|bed| {
        let uplink = other(bed, "wan1", 8);
        let _echo = server_by(bed, &uplink);
        mark_for(bed, &uplink);
        // The first has no link whose options could apply.
        for (link, control) in [("", None), (LINK, Some("reno"))] {
            let site = "[[site]]\nname = \"all\"\ncongestion = [\"reno\"]\n";
            let pep = bed.start_with(&format!("{link}{site}"));
            let pep = pep.expect("not direct");
            let mut stream = connect(bed);
            echo_once(&mut stream, b"by the uplink");
            assert_eq!(counts(&pep), [0, 1]);
            let leg = bed
                .gateway
                .run("ss", &["-tinOH", "dport", "=", &format!(":{PORT}")]);
            assert!(
                leg.contains(&bed.at(Place::Server, PORT).to_string()),
                "{leg}"
            );
            if let Some(control) = control {
                assert!(!leg.contains(control), "{leg}");
                // The link's rate would be the upper bound of the leg's pacing.
                assert!(pacing_rate(&leg) > 4e6, "{leg}");
            }
            drop(stream);
            pep.wait_idle();
            pep.stop();
        }
        ip(bed, "rule del pref 30000");
        ip(bed, "route flush table 66");
    });
}

/// As for squid: TPROXY in mangle, and local delivery of all marked packets.
#[test]
fn another_transparent_proxy_keeps_its_ports() {
    const MINE: u16 = 3129;
    const PROXIED: u16 = 8080;
    matrix_pepd_only(|bed| {
        let (table, loopback, far) = match bed.family {
            Family::V4 => ("ip", "127.0.0.1", "0.0.0.0/0"),
            Family::V6 => ("ip6", "::1", "::/0"),
        };
        let to = SocketAddr::new(loopback.parse().expect("an address"), MINE);
        let listener = bed.gateway.listen(to);
        transparent(&listener, bed.family);
        let proxy = EchoServer::start(listener);
        ip(bed, "rule add fwmark 0x1 lookup 100");
        ip(bed, &format!("route add local {far} dev lo table 100"));
        let to = match bed.family {
            Family::V4 => format!("{loopback}:{MINE}"),
            Family::V6 => format!("[{loopback}]:{MINE}"),
        };
        bed.gateway.nft(&format!(
            "table {table} squid {{
             chain prerouting {{
             type filter hook prerouting priority mangle; policy accept;
             meta l4proto tcp socket transparent 1 meta mark 0 meta mark set 1 accept
             tcp dport {PROXIED} tproxy to {to} meta mark set 1 accept
             }}
             }}"
        ));
        let place = |port| bed.at(Place::Server, port);
        let servers = [PORT, PROXIED].map(|port| bed.server.listen(place(port)));
        let [split, proxied] = servers.map(EchoServer::start);
        let bypass = format!(
            "[[site]]\nname = \"proxied\"\nmode = \"bypass\"\nmatch = {{ dport = [{PROXIED}] }}\n"
        );
        let pep = bed.start_with(&bypass).expect("not direct");
        echo_at(bed, place(PROXIED));
        assert_eq!((proxy.accepted(), proxied.accepted()), (1, 0));
        echo_at(bed, place(PORT));
        pep.wait_counter("flows_accepted", |flows| flows == 1);
        assert_eq!((proxy.accepted(), split.accepted()), (1, 1));
        pep.wait_idle();
        pep.stop();
    });
}

/// Rules as in the recipes of squid, xray and sing-box, by a program of iptables, or by nft.
fn redirect_by_recipe(bed: &Bed, program: &str, to: SocketAddr, port: u16) {
    let gateway = &bed.gateway;
    if program == "nft" {
        let family = match bed.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        return gateway.nft(&format!(
            "table {family} others {{\nchain divert {{\n\
             type filter hook prerouting priority mangle; policy accept;\n\
             meta l4proto tcp socket transparent 1 meta mark set 1 accept\n\
             tcp dport {port} tproxy to {to} meta mark set 1 accept\n}}\n}}"
        ));
    }
    let (ip, on) = (to.ip(), to.port());
    for rule in [
        "-N DIVERT".to_owned(),
        "-A DIVERT -j MARK --set-mark 1".to_owned(),
        "-A DIVERT -j ACCEPT".to_owned(),
        "-A PREROUTING -p tcp -m socket -j DIVERT".to_owned(),
        format!(
            "-A PREROUTING -p tcp --dport {port} -j TPROXY --tproxy-mark 1/1 --on-port {on} --on-ip {ip}"
        ),
    ] {
        let words: Vec<_> = ["-t", "mangle"]
            .into_iter()
            .chain(rule.split(' '))
            .collect();
        gateway.run(program, &words);
    }
}

fn remove_recipe(bed: &Bed, program: &str) {
    if program == "nft" {
        let family = match bed.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        return bed.gateway.nft(&format!("delete table {family} others"));
    }
    for words in [
        &["-t", "mangle", "-F"][..],
        &["-t", "mangle", "-X", "DIVERT"],
    ] {
        bed.gateway.run(program, words);
    }
}

/// Returns the report of `pepd check`.
fn check(bed: &Bed, pep: &Pep) -> String {
    let (program, file) = (pepd(), pep.path("pepd.toml"));
    let [program, file] = [program, &file].map(|path| path.to_str().expect("a path"));
    let output = bed.gateway.output(program, &["check", "--config", file]);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// With `-m socket` ahead of its TPROXY, another proxy gets no connection that pepd redirects.
#[test]
fn another_transparent_proxy_of_the_usual_recipe_gets_its_ports_or_is_named() {
    const MINE: u16 = 3129;
    const PROXIED: u16 = 8080;
    const WHAT: &str = "another transparent proxy";
    install(&["iptables"]);
    matrix_pepd_only(|bed| {
        let (loopback, far, tables) = match bed.family {
            Family::V4 => (
                "127.0.0.1",
                "0.0.0.0/0",
                ["iptables-nft", "iptables-legacy"],
            ),
            Family::V6 => ("::1", "::/0", ["ip6tables-nft", "ip6tables-legacy"]),
        };
        let to = SocketAddr::new(loopback.parse().expect("an address"), MINE);
        let listener = bed.gateway.listen(to);
        transparent(&listener, bed.family);
        let proxy = EchoServer::start(listener);
        let place = bed.at(Place::Server, PROXIED);
        let server = EchoServer::start(bed.server.listen(place));
        ip(bed, "rule add fwmark 0x1 lookup 100");
        ip(bed, &format!("route add local {far} dev lo table 100"));
        let admin = "[admin]\nsocket = \"admin.sock\"\n";
        let bypass = format!(
            "[[site]]\nname = \"proxied\"\nmode = \"bypass\"\nmatch = {{ dport = [{PROXIED}] }}\n"
        );
        let is_spoof = bed.path == Path::Spoof;
        for program in tables.into_iter().chain(["nft"]) {
            redirect_by_recipe(bed, program, to, PROXIED);
            let accepted = || [proxy.accepted(), server.accepted()];
            let [before, passed] = accepted();
            let mut pep = bed.start_past_forward(admin).expect("not direct");
            let checked = check(bed, &pep);
            if is_spoof {
                pep.log().expect(WHAT);
                let dport = format!("`dport = {PROXIED}`");
                assert!(
                    checked.contains(WHAT) && checked.contains(&dport),
                    "{checked}"
                );
            } else {
                assert!(!checked.contains(WHAT), "{checked}");
            }
            echo_at(bed, place);
            let gets = usize::from(!is_spoof);
            assert_eq!(accepted(), [before + gets, passed + 1 - gets], "{program}");
            pep.wait_idle();
            // The counters of the recipe's rules have changed.
            pep.terminate();
            // As the remedies say. Held SYNs pass rules in the forward hook anyway.
            let config = bed.config(admin).expect("not direct");
            let ignores = config.replacen("[intercept]\n", PAST_FORWARD, 1);
            for config in [format!("{ignores}{bypass}"), config] {
                let mut pep = Pep::start(&bed.gateway, &config);
                let checked = check(bed, &pep);
                assert!(!checked.contains(WHAT), "{checked}");
                let [before, passed] = accepted();
                echo_at(bed, place);
                assert_eq!(accepted(), [before + 1, passed], "{program}");
                pep.terminate();
            }
            remove_recipe(bed, program);
        }
    });
}

/// Lets a listener take connections to any address.
pub fn transparent(listener: &TcpListener, family: Family) {
    let socket = SockRef::from(listener);
    let set = match family {
        Family::V4 => socket.set_ip_transparent_v4(true),
        Family::V6 => socket.set_ip_transparent_v6(true),
    };
    set.expect("root may");
}
