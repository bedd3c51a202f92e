//! `clear = "never"`: packets of a site leave by its tunnel only, whatever happens to pepd.

use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    io::Write as _,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::{Dial, Host},
    pep::Pep,
    pep_binary::pepd,
    raw::Packets,
    tunnel::{End, TunnelBed},
    wait::wait_until,
};

use crate::{
    support::{counter, echo_once},
    survive::{crash, upgrade},
    tunnel::{LINK, PORT, STATED, connect},
};

/// The table that outlives pepd.
const TABLE: &str = "pepd_clear";
const HOLD: &str = "on_peer_loss = \"hold\"";
/// TTL of packets that no router has forwarded.
const TTL: u8 = 64;

fn site(bed: &TunnelBed, matches: &str) -> String {
    let hosts =
        [Family::V4, Family::V6].map(|family| format!("\"{}\"", bed.address("client", family)));
    format!(
        "[[site]]\nname = \"secret\"\nmode = \"tunnel\"\npeer = \"hub\"\nclear = \"never\"\n\
         match = {{ src = [{}]{matches} }}\n[limits]\nflows = 8\n[timeouts]\ndrain = \"0s\"\n\
         [admin]\nsocket = \"admin.sock\"\n",
        hosts.join(", ")
    )
}

fn config(bed: &TunnelBed) -> String {
    config_of(bed, "")
}

/// Returns a configuration whose site has further conditions.
fn config_of(bed: &TunnelBed, matches: &str) -> String {
    bed.config(End::Boat, STATED, HOLD, &site(bed, matches))
}

/// A client that opens connections by TCP and sends by UDP, over IPv4 and IPv6, while a guard
/// exists.
struct Load<'a> {
    bed: &'a TunnelBed,
    ends: AtomicBool,
    rounds: AtomicU64,
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl<'a> Load<'a> {
    fn new(bed: &'a TunnelBed) -> Self {
        Self {
            bed,
            ends: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
        }
    }

    fn run(&self) {
        let client = self.bed.host("client");
        // More than `limits.flows`.
        let mut open = VecDeque::new();
        while !self.ends.load(Relaxed) {
            for family in [Family::V4, Family::V6] {
                let server = self.bed.server_at(family, PORT);
                send(&client, server, b"secret");
                let dial = Dial::to(server).limit(Duration::from_millis(50));
                open.extend(client.dial(&dial).ok());
            }
            for stream in &mut open {
                let _ = stream.write_all(b"secret");
            }
            if open.len() > 12 {
                open.pop_front();
            }
            self.rounds.fetch_add(1, Relaxed);
        }
    }

    /// Returns a guard that ends the load, also when the test fails.
    fn ending(&self) -> Ending<'_> {
        Ending(&self.ends)
    }

    /// Waits until the client has tried everything a few times more.
    fn go_on(&self) {
        let before = self.rounds.load(Relaxed);
        wait_until("the client goes on", || {
            self.rounds.load(Relaxed) > before + 3
        });
    }
}

/// Sends a datagram, unless the client lacks an address at the moment.
fn send(client: &Host, server: SocketAddr, bytes: &[u8]) {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    client.enter(|| {
        let udp = UdpSocket::bind(SocketAddr::new(any, 0)).expect("a socket");
        let _ = udp.send_to(bytes, server);
    });
}

/// Returns the source and the TTL of an IP packet.
fn origin(packet: &[u8]) -> Option<(IpAddr, u8)> {
    match packet.first()? >> 4 {
        4 => {
            let source: [u8; 4] = packet.get(12..16)?.try_into().ok()?;
            Some((source.into(), packet[8]))
        }
        6 => {
            let source: [u8; 16] = packet.get(8..24)?.try_into().ok()?;
            Some((source.into(), packet[7]))
        }
        _ => None,
    }
}

/// Returns the packets of the client that crossed the link outside of the tunnel: some router has
/// forwarded them. Those that the hub sends in its name have their first TTL.
fn in_clear(bed: &TunnelBed, seen: &Packets) -> usize {
    let client = [Family::V4, Family::V6].map(|family| bed.address("client", family));
    let is_forwarded = |packet: &Vec<u8>| {
        origin(packet).is_some_and(|(source, ttl)| client.contains(&source) && ttl < TTL)
    };
    seen.into_iter().filter(is_forwarded).count()
}

fn has_holds(boat: &Host) -> bool {
    let table = boat
        .output("nft", &["list", "table", "inet", TABLE])
        .status
        .success();
    let rules = |version| boat.ip(&format!("{version} rule")).contains("blackhole");
    table && rules("-4") && rules("-6")
}

fn pepd_command(boat: &Host, pep: &Pep, words: &[&str]) {
    let config = pep.path("pepd.toml");
    let words = [words, &["--config", config.to_str().expect("a path")]].concat();
    boat.run(pepd().to_str().expect("a path"), &words);
}

#[test]
fn nothing_of_a_site_leaves_in_the_clear_whatever_happens() {
    let bed = TunnelBed::new(LINK);
    let boat = bed.host("boat");
    let server = bed.host("server");
    let _echo = [Family::V4, Family::V6]
        .map(|family| EchoServer::start(server.listen(bed.server_at(family, PORT))));
    let _hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let mut pep = bed.start(End::Boat, &config(&bed));
    pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
    assert!(has_holds(&boat));
    echo_once(&mut connect(&bed, Family::V4), b"through the tunnel");
    let load = Load::new(&bed);
    let seen = Packets::new(&bed.host("hub"));
    let nothing_leaves = |event: &str| {
        load.go_on();
        assert_eq!(in_clear(&bed, &seen), 0, "{event}");
    };
    thread::scope(|scope| {
        let _ending = load.ending();
        scope.spawn(|| load.run());
        nothing_leaves("at limits.flows");
        crash(&pep);
        nothing_leaves("after a crash");
        upgrade(&pep);
        nothing_leaves("after an upgrade");
        boat.nft("flush ruleset");
        nothing_leaves("without tables");
        wait_until("the holds are back", || has_holds(&boat));
        for version in ["-4", "-6"] {
            boat.ip(&format!("{version} rule flush"));
            boat.ip(&format!("{version} rule add lookup main priority 32766"));
            nothing_leaves("without policy rules");
            wait_until("the holds are back", || has_holds(&boat));
        }
        let elsewhere = config(&bed).replace("10.77.1.", "10.77.99.");
        assert_ne!(elsewhere, config(&bed));
        fs::write(pep.path("pepd.toml"), elsewhere).expect("writable");
        pepd_command(&boat, &pep, &["reload"]);
        nothing_leaves("with another hub, which does not answer");
        pep.kill();
        nothing_leaves("killed");
        boat.nft("flush ruleset");
        nothing_leaves("killed, and its tables flushed");
        pep = bed.start(End::Boat, &config(&bed));
        pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        nothing_leaves("started again");
        for words in [
            "link set client down",
            "link set client name other",
            "link set other up",
        ] {
            boat.ip(words);
        }
        pep.log().expect("an interface of `intercept.lan` is gone");
        nothing_leaves("with a renamed interface");
        pep.terminate();
        nothing_leaves("stopped");
        pepd_command(&boat, &pep, &["cleanup"]);
        nothing_leaves("cleaned up");
        assert!(counter(&boat, TABLE, "not_in_clear") > 0);
        // The test itself: without the holds the capture has packets.
        pepd_command(&boat, &pep, &["cleanup", "--lift"]);
        assert!(!has_holds(&boat));
        wait_until("packets in the clear", || in_clear(&bed, &seen) > 0);
    });
}

/// The holds and pepd's other rules move ahead of rules of other programs together: the holds' goto
/// would skip the rule that delivers packets.
#[test]
fn beside_a_rule_of_another_program_the_holds_let_hosts_into_the_tunnel() {
    let bed = TunnelBed::new(LINK);
    let boat = bed.host("boat");
    let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
    let _hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    let mut pep = bed.start(End::Boat, &config(&bed));
    pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
    boat.ip("route add unreachable default table 77");
    // The number before all others, and numbers within pepd's place and the holds'.
    for (flows, priority) in ["", "priority 99", "priority 97"].iter().enumerate() {
        boat.ip(&format!("rule add iif client table 77 {priority}"));
        wait_until("pepd's rules to be ahead", || {
            let rules = boat.ip("-4 rule");
            let numbers = |words: &str| -> Vec<u32> {
                let rules = rules.lines().filter(|rule| rule.contains(words));
                let numbers = rules.filter_map(|rule| rule.split_once(':')?.0.parse().ok());
                numbers.collect()
            };
            numbers("proto 80").iter().max() < numbers("lookup 77").iter().min()
        });
        echo_once(&mut connect(&bed, Family::V4), b"through the tunnel");
        assert_eq!(
            pep.counter("flows_accepted"),
            flows as u64 + 1,
            "{priority}"
        );
        boat.ip("rule del table 77");
    }
    pep.kill();
}

/// Swaps the names of the LAN interface and of the link, and keeps addresses and routes.
fn swap_names(boat: &Host) {
    let versions = ["-4", "-6"];
    let routes = versions.map(|version| boat.ip(&format!("{version} route")));
    for name in ["client", "hub"] {
        let key = format!("net.ipv6.conf.{name}.keep_addr_on_down=1");
        boat.run("sysctl", &["-qw", &key]);
        boat.ip(&format!("link set {name} down"));
    }
    for (old, new) in [("client", "spare"), ("hub", "client"), ("spare", "hub")] {
        boat.ip(&format!("link set {old} name {new}"));
    }
    for name in ["client", "hub"] {
        boat.ip(&format!("link set {name} up"));
    }
    for (version, routes) in versions.iter().zip(&routes) {
        for route in routes.lines().filter(|route| route.contains(" via ")) {
            let route = route.replace("dev hub", "dev client");
            boat.ip(&format!("{version} route replace {route}"));
        }
    }
}

#[test]
fn marks_of_other_programs_and_swapped_names_open_no_hold() {
    let bed = TunnelBed::new(LINK);
    let boat = bed.host("boat");
    let server = bed.host("server");
    let _echo = EchoServer::start(server.listen(bed.server_at(Family::V4, PORT)));
    let _hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
    // Of pepd's mask, but not of its marks.
    boat.nft(
        "table inet other { chain marks {
            type filter hook prerouting priority -150;
            meta mark set meta mark | 0x20000000;
        }; }",
    );
    let mut pep = bed.start(End::Boat, &config(&bed));
    pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
    echo_once(&mut connect(&bed, Family::V4), b"through the tunnel");
    let load = Load::new(&bed);
    let seen = Packets::new(&bed.host("hub"));
    let nothing_leaves = |event: &str| {
        load.go_on();
        assert_eq!(in_clear(&bed, &seen), 0, "{event}");
    };
    let dropped = || counter(&boat, TABLE, "not_in_clear");
    thread::scope(|scope| {
        let _ending = load.ending();
        scope.spawn(|| load.run());
        nothing_leaves("with another program's marks");
        boat.nft(&format!("delete table inet {TABLE}"));
        nothing_leaves("and without the table");
        wait_until("the holds are back", || has_holds(&boat));
        swap_names(&boat);
        let before = dropped();
        wait_until("packets reach the table", || dropped() > before);
        nothing_leaves("with swapped names");
        pep.terminate();
        nothing_leaves("stopped, with swapped names");
        boat.nft(&format!("delete table inet {TABLE}"));
        nothing_leaves("stopped, with another program's marks, and without the table");
        // The test itself: without the holds the capture has packets.
        pepd_command(&boat, &pep, &["cleanup", "--lift"]);
        wait_until("packets in the clear", || in_clear(&bed, &seen) > 0);
    });
}

#[test]
fn another_router_in_the_lan_gets_nothing_in_the_clear() {
    let bed = TunnelBed::new(LINK);
    let boat = bed.host("boat");
    let mut pep = bed.start(End::Boat, &config(&bed));
    // The client itself stands for that router.
    for (version, family) in [("-4", Family::V4), ("-6", Family::V6)] {
        let [server, router] = ["server", "client"].map(|name| bed.address(name, family));
        boat.ip(&format!(
            "{version} route replace {server} via {router} dev client"
        ));
    }
    let load = Load::new(&bed);
    let seen = Packets::new(&bed.host("client"));
    let dropped = || counter(&boat, TABLE, "not_in_clear");
    let nothing_leaves = |event: &str| {
        let before = dropped();
        wait_until("packets reach the table", || dropped() > before);
        load.go_on();
        assert_eq!(in_clear(&bed, &seen), 0, "{event}");
    };
    thread::scope(|scope| {
        let _ending = load.ending();
        scope.spawn(|| load.run());
        nothing_leaves("while pepd runs");
        pep.terminate();
        nothing_leaves("stopped");
        // The test itself: without the holds the capture has packets.
        pepd_command(&boat, &pep, &["cleanup", "--lift"]);
        wait_until("packets in the clear", || in_clear(&bed, &seen) > 0);
    });
}

/// Returns true for a fragment of an IP packet.
fn is_fragment(packet: &[u8]) -> bool {
    match packet[0] >> 4 {
        4 => packet[6] & 0x3f != 0 || packet[7] != 0,
        _ => packet[6] == 44,
    }
}

#[test]
fn fragments_of_a_site_with_ports_stay_without_pepd() {
    let bed = TunnelBed::new(LINK);
    let boat = bed.host("boat");
    let client = bed.host("client");
    let mut pep = bed.start(End::Boat, &config_of(&bed, ", dport = [443]"));
    pep.terminate();
    // Without pepd the kernel does not reassemble them.
    let send_to = |port, length| {
        for family in [Family::V4, Family::V6] {
            send(&client, bed.server_at(family, port), &vec![0; length]);
        }
    };
    let addresses = [Family::V4, Family::V6].map(|family| bed.address("client", family));
    let seen = Packets::new(&bed.host("hub"));
    let forwarded = || {
        let of_client = |packet: &Vec<u8>| {
            origin(packet).is_some_and(|(source, ttl)| addresses.contains(&source) && ttl < TTL)
        };
        seen.into_iter().filter(of_client).collect::<Vec<_>>()
    };
    let mut families = BTreeSet::new();
    wait_until("packets of other ports pass", || {
        send_to(443, 4000);
        send_to(9, 10);
        for packet in forwarded() {
            assert!(!is_fragment(&packet), "in the clear: {packet:?}");
            families.insert(packet[0] >> 4);
        }
        families.len() == 2
    });
    // The test itself: without the holds the capture has fragments.
    pepd_command(&boat, &pep, &["cleanup", "--lift"]);
    families.clear();
    wait_until("fragments in the clear", || {
        send_to(443, 4000);
        let fragments = forwarded().into_iter().filter(|packet| is_fragment(packet));
        families.extend(fragments.map(|packet| packet[0] >> 4));
        families.len() == 2
    });
}
