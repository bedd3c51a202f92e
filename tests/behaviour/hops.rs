//! Routes with several next hops: the link is one of them, another uplink the other.

use std::{
    net::{IpAddr, SocketAddr, TcpStream},
    ops::Range,
};

use pepd_tests::{
    bed::{Bed, Family, Path},
    echo::EchoServer,
    host::Host,
    matrix::matrix_pepd_only,
    pep::Pep,
    pep_binary::pepd,
    tunnel::TunnelBed,
    wait::{PATIENCE, wait_until},
};

use crate::{
    elsewhere::{LINK, Other, alone, behind, counts, ip, other},
    support::echo_once,
    tunnel::{self, Running},
};

/// The port of servers that are behind both uplinks.
const MANY: u16 = 7001;
/// The network of these servers, and their numbers in it. With weights 1 and 3 all take one hop
/// once in 100,000 times.
const NET: u8 = 10;
const SERVERS: Range<u8> = 1..41;
/// Shows that a leg has the link's options; host legs use another control.
const SITE: &str = "[[site]]\nname = \"all\"\ncongestion = [\"reno\"]\n";

/// Servers with the same addresses behind the link and behind another uplink.
struct Both<'a> {
    bed: &'a Bed,
    uplink: Other,
    by_link: EchoServer,
    by_other: EchoServer,
    /// False if legs have an address of the gateway.
    keeps_clients: bool,
}

fn both(bed: &Bed) -> Both<'_> {
    let uplink = other(bed, "wan1", 8);
    let servers = |host: &Host| {
        let nodad = match bed.family {
            Family::V4 => "",
            Family::V6 => " nodad",
        };
        for number in SERVERS {
            let address = alone(bed.family.address(NET, number));
            host.ip(&format!("address add {address} dev lo{nodad}"));
        }
        let any: IpAddr = match bed.family {
            Family::V4 => [0; 4].into(),
            Family::V6 => [0; 16].into(),
        };
        EchoServer::start(host.listen(SocketAddr::new(any, MANY)))
    };
    let (by_link, by_other) = (servers(&bed.server), servers(&uplink.host));
    Both {
        bed,
        uplink,
        by_link,
        by_other,
        keeps_clients: true,
    }
}

impl Both<'_> {
    fn network(&self) -> String {
        let address = self.bed.family.address(NET, 0);
        let length = match self.bed.family {
            Family::V4 => 24,
            Family::V6 => 64,
        };
        format!("{address}/{length}")
    }

    fn by_link(&self) -> String {
        format!("via {} dev wan0", self.bed.family.address(2, 2))
    }

    fn by_other(&self) -> String {
        format!("via {} dev wan1", self.uplink.address.ip())
    }

    /// Routes the servers' network in these words of `ip`, instead of by an earlier route.
    fn route(&self, hops: &str) {
        // At once: pepd must not see a moment without the route.
        let network = self.network();
        ip(self.bed, &format!("route replace {network} {hops}"));
    }

    /// Routes it by both, in this order.
    fn route_by(&self, first: (&str, u8), second: (&str, u8)) {
        let hop = |(by, weight)| format!("nexthop {by} weight {weight}");
        self.route(&format!("{} {}", hop(first), hop(second)));
    }

    fn server(&self, number: u8) -> SocketAddr {
        SocketAddr::new(self.bed.family.address(NET, number), MANY)
    }

    /// Connects to a server. Returns the connection, and whether it has left by the link.
    fn open(&self, number: u8) -> (TcpStream, bool) {
        let before = [&self.by_link, &self.by_other].map(EchoServer::accepted);
        let connected = self.bed.client.connect(self.server(number));
        let mut stream = connected.expect("both hops lead to a server");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        echo_once(&mut stream, b"by which hop?");
        let after = [&self.by_link, &self.by_other].map(EchoServer::accepted);
        let [by_link, by_other] = [0, 1].map(|hop| after[hop] - before[hop]);
        assert_eq!(by_link + by_other, 1, "{number}");
        (stream, by_link == 1)
    }

    /// Returns what `ss` shows of the server leg to a server.
    fn leg(&self, number: u8) -> String {
        let to = match self.bed.family {
            Family::V4 => format!("{}", self.server(number).ip()),
            Family::V6 => format!("[{}]", self.server(number).ip()),
        };
        let to = [
            "-tinOH",
            "dst",
            &to,
            "and",
            "dport",
            "=",
            &format!(":{MANY}"),
        ];
        self.bed.gateway.run("ss", &to)
    }

    /// Returns whether the host's own packets would leave by the link, as the kernel tells.
    fn hosts_hop(&self, stream: &TcpStream) -> bool {
        let from = stream.local_addr().expect("connected");
        let to = stream.peer_addr().expect("connected");
        let query = format!(
            "route get {} from {} iif lan0 ipproto tcp sport {} dport {}",
            to.ip(),
            from.ip(),
            from.port(),
            to.port()
        );
        self.bed.gateway.ip(&query).contains("dev wan0")
    }

    /// Checks that all servers are reached through pepd, and that each leg has the options of its
    /// hop. Returns the servers that are reached by the other uplink.
    fn check(&self, pep: &Pep, what: &str) -> Vec<u8> {
        let [passed, accepted] = counts(pep);
        let (mut streams, mut beside) = (Vec::new(), Vec::new());
        for number in SERVERS {
            let (stream, is_by_link) = self.open(number);
            let leg = self.leg(number);
            let name = format!("{what}, {number}, by the link: {is_by_link}: {leg}");
            if self.bed.family == Family::V4 && self.keeps_clients {
                assert_eq!(self.hosts_hop(&stream), is_by_link, "{name}");
            }
            assert_eq!(leg.contains("reno"), is_by_link, "{name}");
            assert_eq!(is_limited(&leg), is_by_link, "{name}");
            streams.push(stream);
            beside.extend((!is_by_link).then_some(number));
        }
        let all = SERVERS.len();
        assert!((1..all).contains(&beside.len()), "{what}: {beside:?}");
        assert_eq!(counts(pep), [passed, accepted + all as u64], "{what}");
        drop(streams);
        pep.wait_idle();
        beside
    }

    /// Waits until pepd judges by these interfaces whether a route leads by the link.
    fn wait_judged_by(&self, names: &str) {
        wait_until("pepd knows the route", || {
            let chain = ["list", "chain", "inet", "pepd", "elsewhere"];
            let chain = self.bed.gateway.run("nft", &chain);
            chain.contains(&format!("oifname != {names} "))
        });
    }
}

/// Returns whether the pacing of a leg has a maximum, which is at most the link's rate. `ss` shows
/// it behind the present rate.
fn is_limited(leg: &str) -> bool {
    let mut words = leg.split_whitespace();
    let rates = words.find(|word| *word == "pacing_rate");
    let rates = rates.and_then(|_| words.next()).expect("it paces");
    let Some((_, limit)) = rates.split_once('/') else {
        return false;
    };
    let limit: f64 = limit.trim_end_matches("bps").parse().expect("a rate");
    limit <= 2e6
}

#[test]
fn each_flow_has_the_options_of_the_hop_that_it_takes() {
    matrix_pepd_only(|bed| {
        let both = both(bed);
        let (link, other) = (both.by_link(), both.by_other());
        // Routes to the servers come while pepd runs.
        let pep = bed
            .start_with(&format!("{LINK}{SITE}"))
            .expect("not direct");
        both.wait_judged_by("\"wan0\"");
        both.route_by((&link, 1), (&other, 3));
        both.wait_judged_by("{ \"wan0\", \"wan1\" }");
        both.check(&pep, "the link first");
        both.route_by((&other, 2), (&link, 1));
        both.check(&pep, "the link second");
        for version in ["ipv4", "ipv6"] {
            let policy = format!("net.{version}.fib_multipath_hash_policy");
            bed.gateway.sysctl(&policy, "1");
        }
        both.check(&pep, "by ports");
        ip(bed, &format!("nexthop add id 1 {link}"));
        ip(bed, &format!("nexthop add id 2 {other}"));
        bed.gateway.ip("nexthop add id 3 group 2,3/1,1");
        both.route("nhid 3");
        both.check(&pep, "next hop objects");
        bed.gateway.ip("nexthop replace id 3 group 1");
        both.wait_judged_by("\"wan0\"");
        let [passed, accepted] = counts(&pep);
        assert!(both.open(1).1, "the link alone");
        both.route(&other);
        assert!(!both.open(1).1, "the other alone");
        assert_eq!(counts(&pep), [passed + 1, accepted + 1]);
        pep.wait_idle();
        ip(bed, &format!("route del {}", both.network()));
        pep.stop();
    });
}

#[test]
fn legs_with_an_address_of_this_machine_have_the_options_of_their_hop() {
    matrix_pepd_only(|bed| {
        let both = Both {
            keeps_clients: false,
            ..both(bed)
        };
        let version = match bed.family {
            Family::V4 => "ipv4",
            Family::V6 => "ipv6",
        };
        // By ports, too: hosts' packets could have taken another hop than the leg.
        let policy = format!("net.{version}.fib_multipath_hash_policy");
        bed.gateway.sysctl(&policy, "1");
        both.route_by((&both.by_other(), 1), (&both.by_link(), 1));
        let config = format!("{LINK}{SITE}source = \"self\"\n");
        let pep = bed.start_with(&config).expect("not direct");
        both.check(&pep, "source = self");
        pep.stop();
    });
}

#[test]
fn while_the_link_is_down_flows_by_the_other_hop_go_on() {
    matrix_pepd_only(|bed| {
        // With `defer` the server answers first.
        if bed.path != Path::Spoof {
            return;
        }
        let both = both(bed);
        both.route_by((&both.by_other(), 1), (&both.by_link(), 1));
        let admin = "[admin]\nsocket = \"admin.sock\"\n";
        let pep = bed
            .start_with(&format!("{LINK}{admin}{SITE}"))
            .expect("not direct");
        let beside = both.check(&pep, "up");
        pep.ask(&["link", "down"]);
        let (other, is_by_link) = both.open(beside[0]);
        assert!(!is_by_link);
        let number = SERVERS.into_iter().find(|number| !beside.contains(number));
        let to = both.server(number.expect("some go by the link"));
        let mut waiting = bed.client.connect(to).expect("pepd answers");
        waiting.set_read_timeout(Some(PATIENCE)).expect("a socket");
        pep.wait_counter("link_waited", |waited| waited == 1);
        pep.ask(&["link", "auto"]);
        echo_once(&mut waiting, b"by the link");
        drop((waiting, other));
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn flows_keep_the_options_of_their_hop_when_another_process_takes_them_over() {
    matrix_pepd_only(|bed| {
        let both = both(bed);
        both.route_by((&both.by_other(), 1), (&both.by_link(), 1));
        let config = format!("{LINK}{SITE}");
        let mut pep = bed.start_with(&config).expect("not direct");
        let open = SERVERS.map(|number| (number, both.open(number)));
        let mut open: Vec<_> = open.collect();
        pep.succeed();
        for (number, (stream, is_by_link)) in &mut open {
            echo_once(stream, &[7; 30_000]);
            let leg = both.leg(*number);
            assert_eq!(is_limited(&leg), *is_by_link, "{number}: {leg}");
        }
        drop(open);
        pep.wait_idle();
        pep.stop();
    });
}

#[test]
fn check_names_routes_of_several_next_hops() {
    matrix_pepd_only(|bed| {
        let both = both(bed);
        both.route_by((&both.by_link(), 1), (&both.by_other(), 3));
        let pep = bed.start_with(LINK).expect("not direct");
        let config = pep.path("pepd.toml");
        let words = ["check", "--config", config.to_str().expect("a path")];
        let program = pepd();
        let found = bed
            .gateway
            .output(program.to_str().expect("a path"), &words);
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        let route = format!("{} by wan0 (weight 1), wan1 (weight 3)", both.network());
        assert!(found.contains(&route), "{found}");
        pep.stop();
    });
}

/// Hosts must not reach the network of another uplink past the tunnel: a router there could take
/// their traffic in the clear.
#[test]
fn networks_of_all_next_hops_are_reached_by_the_tunnel() {
    let bed = TunnelBed::new(tunnel::LINK);
    let _running = Running::start(&bed, "", tunnel::SITE);
    let boat = bed.host("boat");
    let uplink = behind(&boat, Family::V4, "wan1", 8);
    let near = || boat.run("nft", &["list", "set", "inet", "pepd", "near4"]);
    wait_until("pepd takes it for a network of hosts", || {
        near().contains("10.8.0.0")
    });
    let [hub, _] = bed.addresses_toward("hub", "boat");
    // A look-up finds the link nearly always.
    let other = uplink.address.ip();
    boat.ip(&format!(
        "route replace default nexthop via {hub} weight 255 nexthop via {other} weight 1"
    ));
    wait_until("pepd takes it for an uplink's", || {
        !near().contains("10.8.0.0")
    });
}
