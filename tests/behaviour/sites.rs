//! The site of a flow, and the effect of its policy.

use std::{
    io::Write as _,
    net::{SocketAddr, UdpSocket},
};

use pepd_tests::{
    bed::{Bed, Family, LAN, Path, Place},
    echo::EchoServer,
    host::{Dial, Host},
    matrix::{matrix, matrix_pepd_only},
    outcome::Connected,
    pep::Pep,
    wait::wait_until,
};

use crate::support::{
    PORT, assert_reset_after_connect, assert_socket_has, connect, counter, echo_once, socket_toward,
};

/// Returns one site per criterion, in an order that matters.
fn sites(family: Family) -> String {
    let second = Place::Second.address(family);
    let other_client = family.address(1, 3);
    let servers = match family {
        Family::V4 => "10.2.0.0/24",
        Family::V6 => "fd02::/64",
    };
    format!(
        "[[site]]
        name = \"marked\"
        match = {{ dscp = [46] }}
        [[site]]
        name = \"to-second\"
        match = {{ dst = [\"{second}\"] }}
        [[site]]
        name = \"from-other\"
        match = {{ src = [\"{other_client}\"] }}
        [[site]]
        name = \"one-port\"
        match = {{ dport = [7001] }}
        [[site]]
        name = \"one-port-again\"
        match = {{ dport = [7001] }}
        [[site]]
        name = \"range\"
        match = {{ dport = [\"7002-7004\"] }}
        [[site]]
        name = \"left-alone\"
        mode = \"bypass\"
        match = {{ dport = [7005] }}
        [[site]]
        name = \"source-port\"
        match = {{ sport = [40000] }}
        [[site]]
        name = \"servers\"
        match = {{ dst = [\"{servers}\"], interface = [\"lan0\"] }}"
    )
}

/// A connection, and its expected site.
struct Choice {
    dial: Dial,
    site: &'static str,
}

fn choices(bed: &Bed) -> Vec<Choice> {
    let server = |port| Dial::to(bed.at(Place::Server, port));
    let second = Dial::to(bed.at(Place::Second, 7001));
    let choice = |dial, site| Choice { dial, site };
    vec![
        choice(server(7001), "one-port"),
        choice(server(7002), "range"),
        choice(server(7003), "range"),
        choice(server(7004), "range"),
        choice(server(7000), "servers"),
        choice(server(7000).from(bed.client_at(40_000)), "source-port"),
        choice(server(7001).from(bed.other_client_at(0)), "from-other"),
        // If several match, the first in the file decides.
        choice(second, "to-second"),
        choice(second.dscp(46), "marked"),
        choice(server(7005).dscp(46), "marked"),
        choice(server(7001).dscp(10), "one-port"),
    ]
}

#[test]
fn the_first_site_that_matches_has_the_flow() {
    matrix(|bed| {
        let listen = |place, port| EchoServer::start(bed.server.listen(bed.at(place, port)));
        let _servers: Vec<_> = (7000..=7005)
            .map(|port| listen(Place::Server, port))
            .collect();
        let _second = listen(Place::Second, 7001);
        let pep = bed.start_with(&sites(bed.family));
        for Choice { dial, site } in choices(bed) {
            let mut stream = bed.client.dial(&dial).expect("the server listens");
            echo_once(&mut stream, b"x");
            let client = stream.local_addr().expect("connected").to_string();
            drop(stream);
            if let Some(pep) = &pep {
                let end = pep.wait_flow_end(|end| end.client == client);
                assert_eq!(end.site, site, "{dial:?}");
                assert_eq!((end.up_bytes, end.down_bytes), (1, 1));
                assert_eq!(end.reason, "closed");
            }
        }
        let mut bypassed = bed.client.connect(bed.at(Place::Server, 7005));
        echo_once(bypassed.as_mut().expect("the server listens"), b"x");
        if let Some(mut pep) = pep {
            let accepted = pep.counter("flows_accepted");
            assert_eq!(accepted, choices(bed).len() as u64, "one flow is bypassed");
            pep.assert_healthy();
        }
    });
}

/// Hosts on two sides, each with a separate site.
#[test]
fn a_site_is_for_the_interface_it_names() {
    matrix_pepd_only(|bed| {
        let sites = "[[site]]\nname = \"wan\"\nmatch = { interface = [\"wan0\"] }\n\
                     [[site]]\nname = \"lan\"\nmatch = { interface = [\"lan0\"] }";
        let config = bed.config(sites).expect("not direct");
        let config = config.replace("[\"lan0\"]\nsyn", "[\"lan0\", \"wan0\"]\nsyn");
        let pep = Pep::start(&bed.gateway, &config);
        let to_server = bed.at(Place::Server, PORT);
        let to_client = bed.client_at(PORT);
        let _at_server = EchoServer::start(bed.server.listen(to_server));
        let _at_client = EchoServer::start(bed.client.listen(to_client));
        for (host, to, site) in [
            (&bed.client, to_server, "lan"),
            (&bed.server, to_client, "wan"),
        ] {
            let mut stream = host.connect(to).expect("it listens");
            echo_once(&mut stream, b"x");
            drop(stream);
            let end = pep.wait_flow_end(|end| end.destination == to.to_string());
            assert_eq!(end.site, site);
        }
    });
}

#[test]
fn flows_of_no_site_have_the_default_one() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let site = "[[site]]\nname = \"web\"\nmatch = { dport = [80, 443] }";
        let pep = bed.start_with(site).expect("not direct");
        echo_once(&mut connect(bed), b"x");
        assert_eq!(pep.wait_flow_end(|_| true).site, "default");
    });
}

#[test]
fn each_site_answers_syns_in_its_own_way() {
    matrix_pepd_only(|bed| {
        let sites = "
            [[site]]
            name = \"at-once\"
            syn = \"spoof\"
            match = { dport = [7001] }
            [[site]]
            name = \"later\"
            syn = \"defer\"
            match = { dport = [7002] }";
        let _pep = bed.start_with(sites);
        let spoofed = bed.client.connect(bed.at(Place::Server, 7001));
        assert_reset_after_connect(spoofed);
        let deferred = bed.client.connect(bed.at(Place::Server, 7002));
        let refused = Connected::No(nix::errno::Errno::ECONNREFUSED);
        assert_eq!(Connected::from_result(&deferred), refused);
    });
}

/// Counts the packets of a port that arrive at a machine, with and without this DSCP.
fn watch_dscp(host: &Host, family: Family, direction: &str, dscp: u8) {
    let ip = family.nft();
    host.nft(&format!(
        "table inet dscp {{
            counter right {{ }}
            counter wrong {{ }}
            chain input {{
                type filter hook input priority 0;
                tcp {direction} {PORT} {ip} dscp {dscp} counter name right accept
                tcp {direction} {PORT} {ip} version != 0 counter name wrong
            }}
        }}"
    ));
}

/// Sends marked data through a flow; counts packets at the server, and at the client, right and
/// wrong.
fn marked_flow(bed: &Bed, sent: u8, expected: u8, site: &str) {
    watch_dscp(&bed.server, bed.family, "dport", expected);
    let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
    let _pep = bed.start_with(&format!("[[site]]\nname = \"all\"\n{site}"));
    let dial = Dial::to(bed.at(Place::Server, PORT)).dscp(sent);
    let mut stream = bed.client.dial(&dial).expect("the server listens");
    for _ in 0..3 {
        echo_once(&mut stream, &[7; 5000]);
    }
    stream.flush().expect("connected");
    drop(stream);
    let packets = |name| counter(&bed.server, "dscp", name);
    assert!(packets("right") >= 5, "{} marked packets", packets("right"));
    assert_eq!(packets("wrong"), 0, "packets without the mark");
}

#[test]
fn the_dscp_of_the_client_is_kept() {
    matrix(|bed| marked_flow(bed, 46, 46, "dscp = \"keep\""));
}

#[test]
fn no_dscp_stays_none() {
    matrix(|bed| marked_flow(bed, 0, 0, ""));
}

#[test]
fn the_dscp_of_a_site_is_set() {
    matrix_pepd_only(|bed| marked_flow(bed, 46, 10, "dscp = 10"));
}

/// Packets toward the client carry the client's DSCP, too.
#[test]
fn the_dscp_is_kept_toward_the_client() {
    matrix_pepd_only(|bed| {
        watch_dscp(&bed.client, bed.family, "sport", 46);
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let _pep = bed.start();
        let dial = Dial::to(bed.at(Place::Server, PORT)).dscp(46);
        let mut stream = bed.client.dial(&dial).expect("the server listens");
        for _ in 0..5 {
            echo_once(&mut stream, &[7; 5000]);
        }
        let right = counter(&bed.client, "dscp", "right");
        assert!(right >= 5, "{right} marked packets");
    });
}

/// Checks for words in the output of `ss -i` for the client leg and the server leg.
fn legs_have(bed: &Bed, site: &str, client_leg: &str, server_leg: &str) {
    let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
    let _pep = bed.start_with(site);
    let mut stream = connect(bed);
    echo_once(&mut stream, &[7; 20_000]);
    let client = stream.local_addr().expect("connected");
    for (remote, word) in [
        (client, client_leg),
        (bed.at(Place::Server, PORT), server_leg),
    ] {
        assert_socket_has(bed, remote, word);
    }
}

#[test]
fn each_leg_has_its_own_congestion_control() {
    matrix_pepd_only(|bed| {
        let site = "[[site]]\nname = \"all\"\ncongestion = [\"bbr\"]\ncongestion_lan = [\"reno\"]";
        legs_have(bed, site, "reno", "bbr");
    });
}

#[test]
fn where_pepd_is_at_the_far_end_the_legs_swap_roles() {
    matrix_pepd_only(|bed| {
        let site = "[[site]]\nname = \"all\"\nlink_leg = \"client\"\n\
                    congestion = [\"bbr\"]\ncongestion_lan = [\"reno\"]";
        legs_have(bed, site, "bbr", "reno");
    });
}

#[test]
fn of_a_list_the_first_congestion_control_the_kernel_has_is_taken() {
    matrix_pepd_only(|bed| {
        let site = "[[site]]\nname = \"all\"\ncongestion = [\"no_such_one\", \"reno\", \"bbr\"]\n\
                    congestion_lan = [\"bbr\"]";
        legs_have(bed, site, "bbr", "reno");
    });
}

#[test]
fn the_segments_of_a_site_are_capped() {
    matrix_pepd_only(|bed| {
        let _echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let _pep = bed.start_with("[[site]]\nname = \"all\"\nmss = 700");
        let mut stream = connect(bed);
        echo_once(&mut stream, &[7; 20_000]);
        let socket = socket_toward(bed, bed.at(Place::Server, PORT));
        let mut words = socket.split_whitespace();
        let mss = words.find_map(|word| word.strip_prefix("mss:")?.parse().ok());
        assert!(mss.is_some_and(|mss: u32| mss <= 700), "mss in {socket}");
    });
}

#[test]
fn a_congestion_control_the_kernel_lacks_is_an_error_that_names_what_there_is() {
    matrix_pepd_only(|bed| {
        let site = "[[site]]\nname = \"all\"\ncongestion = [\"no_such_one\"]";
        let config = bed.config(site).expect("not direct");
        let mut pep = Pep::spawn(&bed.gateway, &config, |command| command);
        assert_eq!(pep.wait().code(), Some(3));
        wait_until("the log to be complete", || pep.log().ended());
        let log = pep.log().text();
        for words in [
            "no_such_one",
            "site[1].congestion",
            "reno",
            "cubic",
            "pepd.toml:",
        ] {
            assert!(log.contains(words), "no `{words}` in {log}");
        }
        pep.assert_nothing_left();
    });
}

/// Packets enter and leave by the only interface, and must not be intercepted twice.
#[test]
fn one_armed_it_works_as_with_two() {
    matrix(|bed| {
        let bed = &Bed::one_armed(bed.path, bed.family);
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut stream = connect(bed);
        echo_once(&mut stream, &[9; 100_000]);
        let closed = bed.client.connect(bed.at(Place::Second, PORT));
        if bed.path == Path::Spoof {
            assert_reset_after_connect(closed);
        } else {
            let refused = Connected::No(nix::errno::Errno::ECONNREFUSED);
            assert_eq!(Connected::from_result(&closed), refused);
        }
        // The reverse case: a connection that the server opens.
        let back = bed.client_at(PORT);
        let _client_echo = EchoServer::start(bed.client.listen(back));
        let mut stream_back = bed.server.connect(back).expect("the client listens");
        echo_once(&mut stream_back, &[9; 100_000]);
        drop((stream, stream_back));
        wait_until("the server to see the end", || echo.open() == 0);
        if let Some(mut pep) = pep {
            assert!(pep.counter("flows_accepted") >= 2);
            pep.wait_idle();
            pep.assert_healthy();
            pep.stop();
        }
    });
}

/// Returns the redirects that the kernel of a machine has generated, dropped ones included.
fn redirects(host: &Host, family: Family) -> u64 {
    let name = match family {
        Family::V4 => "IcmpOutRedirects",
        Family::V6 => "Icmp6OutRedirects",
    };
    let counters = host.run("nstat", &["-asz", name]);
    let count = counters.lines().find_map(|line| line.strip_prefix(name));
    let count = count.and_then(|line| line.split_whitespace().next());
    count.and_then(|count| count.parse().ok()).expect("a count")
}

/// Linux sends ICMP redirects for packets that it forwards on the same wire, and hosts apply them
/// to open connections, too.
#[test]
fn one_armed_hosts_learn_of_no_way_past_pepd() {
    matrix(|bed| {
        let bed = &Bed::one_armed(bed.path, bed.family);
        let echo = EchoServer::start(bed.server.listen(bed.at(Place::Server, PORT)));
        let pep = bed.start();
        let mut open = connect(bed);
        echo_once(&mut open, b"before");
        for interface in ["all", LAN] {
            let key = format!("net.ipv4.conf.{interface}.send_redirects");
            bed.gateway.sysctl(&key, "1");
        }
        for version in ["ipv4", "ipv6"] {
            let key = format!("net.{version}.conf.eth0.accept_redirects");
            bed.client.sysctl(&key, "1");
        }
        let discard = bed.at(Place::Server, 9);
        let any = SocketAddr::new(bed.client_at(0).ip(), 0);
        let datagrams = bed.client.netns().enter(|| UdpSocket::bind(any));
        let datagrams = datagrams.expect("a namespace").expect("a socket");
        // The first redirect makes the host look for the server on the wire, a later one changes
        // its route.
        wait_until("the gateway to have sent two redirects", || {
            // The answer to the last one, port unreachable, is not needed.
            datagrams.send_to(b"forwarded", discard).ok();
            redirects(&bed.gateway, bed.family) >= 2
        });
        let way = bed.client.ip(&format!("route get {}", discard.ip()));
        let is_told = !way.contains(&format!("via {}", bed.family.address(1, 1)));
        // In IPv6, hosts accept redirects from link-local addresses only.
        let is_without_pepd = bed.path == Path::Direct && bed.family == Family::V4;
        assert_eq!(is_told, is_without_pepd, "{way}");
        if let Some(pep) = pep {
            echo_once(&mut open, b"after");
            echo_once(&mut connect(bed), b"new");
            assert_eq!(pep.counter("flows_accepted"), 2);
            drop(open);
            wait_until("the server to see the end", || echo.open() == 0);
            pep.wait_idle();
            pep.stop();
        }
    });
}
