//! Packets that go into the TUN of their site, or are refused: with the kernel, a host in a network namespace of its own.
//! Needs root.

use std::{
    io::ErrorKind,
    net::{TcpStream, UdpSocket},
    process::Command,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::signal::{Signal, kill},
    unistd::{Pid, gettid},
};
use pepd::intercept::{Interception, PacketTun, PacketTuns, netlink::Netlink};

const CONFIG: &str = r#"
[intercept]
lan = ["lan0"]
[[site]]
name = "quic"
mode = "block"
match = { protocol = "udp", dport = 443 }
[[site]]
name = "voice"
mode = "packet"
peer = "hub"
match = { dport = "5060-5070" }
[[site]]
name = "ping"
mode = "packet"
peer = "hub"
match = { protocol = "icmp" }
[peer.hub]
endpoint = "192.0.2.1:1"
public_key = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA="
[identity]
key_file = "k"
"#;

fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

fn ip(words: &str) -> String {
    run("ip", &words.split(' ').collect::<Vec<_>>())
}

/// A thread in a network namespace of its own, which does what it is told.
struct Host(mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Host {
    /// Behind the interface `lan0` of the calling thread's namespace, as 10.9.0.2.
    fn new() -> Self {
        let (tell_id, id) = mpsc::channel();
        let (orders, todo) = mpsc::channel::<Box<dyn FnOnce() + Send>>();
        thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("root");
            tell_id.send(gettid()).expect("waits");
            todo.iter().for_each(|order| order());
        });
        let id = id.recv().expect("a host");
        ip(&format!(
            "link add lan0 type veth peer name host0 netns {id}"
        ));
        ip("address add 10.9.0.1/24 dev lan0");
        ip("link set lan0 up");
        let host = Self(orders);
        host.on(|| {
            ip("address add 10.9.0.2/24 dev host0");
            ip("link set host0 up");
            ip("route add default via 10.9.0.1");
        });
        host
    }

    fn on<T: Send + 'static>(&self, order: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, told) = mpsc::channel();
        let order = move || tell.send(order()).expect("waits");
        self.0.send(Box::new(order)).expect("runs");
        told.recv().expect("does not panic")
    }

    /// Sends a datagram; whether it is told at once that nobody is there.
    fn is_refused(&self, port: u16) -> bool {
        self.on(move || {
            let socket = UdpSocket::bind("10.9.0.2:7000").expect("a socket of the host");
            socket
                .connect(("203.0.113.5", port))
                .expect("a socket of the host");
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .expect("a socket of the host");
            socket.send(b"hello").expect("a socket of the host");
            let err = socket.recv(&mut [0; 9]).expect_err("nobody answers");
            err.kind() == ErrorKind::ConnectionRefused
        })
    }
}

/// The next packet out of a TUN, if there is one within a moment.
fn next(tun: &PacketTun) -> Option<Vec<u8>> {
    let mut buffer = [0; 2048];
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        if let Some(length) = tun.tun.read(&mut buffer).expect("reads") {
            return Some(buffer[..length].to_vec());
        }
        thread::sleep(Duration::from_millis(5));
    }
    None
}

fn counter(name: &str) -> bool {
    let text = run("nft", &["list", "counter", "inet", "pepd", name]);
    !text.contains("packets 0 ")
}

/// The MSS of a TCP packet without options of IP.
fn mss(packet: &[u8]) -> Option<u16> {
    let mut options = &packet[40..];
    loop {
        match options {
            [1, rest @ ..] => options = rest,
            [2, 4, high, low, ..] => return Some(u16::from_be_bytes([*high, *low])),
            [_, length, ..] if *length > 1 => options = options.get(usize::from(*length)..)?,
            _ => return None,
        }
    }
}

/// In a namespace of its own, with a host behind it and everything in place.
fn in_place(test: impl AsyncFnOnce(&Host, Interception, PacketTuns) + Send + 'static) {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root");
        ip("link set lo up");
        let host = Host::new();
        // What lies beyond.
        ip("link add far0 type veth peer name far1");
        ip("link set far0 up");
        ip("link set far1 up");
        ip("neighbour add 203.0.113.5 lladdr 02:00:00:00:00:05 dev far0");
        ip("route add 203.0.113.0/24 dev far0");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let config = pep_core::config::parse(CONFIG).expect("valid");
            let mut interception = Interception::install(&config, false).await.expect("root");
            let tuns = interception.take_packet_tuns();
            assert_eq!(tuns.sites.len(), 2);
            test(&host, interception, tuns).await;
        });
    });
    thread.join().expect("the test's thread");
}

#[test]
fn packets_of_a_site_go_into_its_tun_and_no_others() {
    in_place(async |host, interception, tuns| {
        assert!(!host.is_refused(5060));
        let packet = next(&tuns.sites[0]).expect("a datagram");
        assert_eq!(
            (&packet[12..20], packet[9]),
            (&[10, 9, 0, 2, 203, 0, 113, 5][..], 17)
        );
        assert_eq!(packet.get(28..), Some(&b"hello"[..]));
        assert!(!host.is_refused(1234));
        host.on(|| {
            Command::new("ping")
                .args(["-c1", "-W1", "10.9.0.1"])
                .output()
                .map(drop)
        })
        .ok();
        assert_eq!(next(&tuns.sites[0]), None, "another port");
        assert_eq!(next(&tuns.sites[1]), None, "for this machine");
        assert!(counter("packets_into_tunnel_0") && !counter("packets_into_tunnel_1"));
        // What the far end sends comes to the host, and nowhere else.
        let answered = host.on(|| UdpSocket::bind("10.9.0.2:7000").expect("a socket of the host"));
        let mut answer = packet.clone();
        answer[12..20].rotate_left(4);
        answer[20..24].rotate_left(2);
        tuns.sites[0].tun.write(&answer).expect("writes");
        answered
            .set_read_timeout(Some(Duration::from_secs(1)))
            .expect("a socket of the host");
        assert_eq!(answered.recv(&mut [0; 9]).expect("a datagram"), 5);
        assert_eq!(next(&tuns.sites[0]), None, "never captured again");
        interception.remove().await.expect("removed");
    });
}

#[test]
fn a_long_datagram_goes_into_the_tun_of_its_ports_with_all_its_fragments() {
    in_place(async |host, _interception, tuns| {
        host.on(|| {
            let socket = UdpSocket::bind("10.9.0.2:7000").expect("a socket of the host");
            let sent = socket.send_to(&[7; 4000], "203.0.113.5:5060");
            sent.expect("a socket of the host");
        });
        let fragments: Vec<_> = std::iter::from_fn(|| next(&tuns.sites[0])).collect();
        let bytes = fragments.iter().map(|packet| packet.len() - 20);
        assert_eq!(bytes.sum::<usize>(), 4008);
    });
}

#[test]
fn who_is_blocked_hears_of_it_at_once() {
    in_place(async |host, _interception, tuns| {
        assert!(host.is_refused(443));
        assert!(counter("packets_refused"));
        assert_eq!(next(&tuns.sites[0]), None);
    });
}

#[test]
fn connections_learn_how_much_a_packet_of_the_tunnel_holds() {
    in_place(async |host, _interception, tuns| {
        let netlink = Netlink::connect().expect("netlink");
        netlink
            .set_mtu(tuns.sites[0].index, 1300)
            .await
            .expect("an MTU");
        host.on(|| {
            let to = "203.0.113.5:5061".parse().expect("a socket of the host");
            TcpStream::connect_timeout(&to, Duration::from_millis(50)).expect_err("nobody answers");
        });
        let syn = next(&tuns.sites[0]).expect("a SYN");
        assert_eq!((syn[9], syn[33] & 0x3f), (6, 2));
        assert_eq!(mss(&syn), Some(1260));
    });
}

#[test]
fn a_site_that_is_off_takes_no_packets_and_refuses_none() {
    in_place(async |host, mut interception, tuns| {
        let config = pep_core::config::parse(CONFIG).expect("valid");
        let sites = config
            .sites
            .iter()
            .filter(|(_, site)| site.mode.takes_packets());
        let all = sites.map(|(id, _)| id).collect();
        interception.set_bypassed(all).await.expect("switched off");
        assert!(!host.is_refused(443) && !host.is_refused(5060));
        assert_eq!(next(&tuns.sites[0]), None);
        interception
            .set_bypassed(Default::default())
            .await
            .expect("switched on");
        assert!(host.is_refused(443) && !host.is_refused(5060));
        assert!(next(&tuns.sites[0]).is_some());
    });
}

#[test]
fn without_pepd_packets_pass() {
    in_place(async |host, interception, tuns| {
        drop(interception); // the rules stay, as after a crash
        drop(tuns);
        let sent = || {
            let text = ip("-s link show dev far0");
            let last = text.lines().last().unwrap_or_default().to_owned();
            last.split_whitespace().nth(1).map(str::to_owned)
        };
        let before = sent();
        assert!(!host.is_refused(5060));
        assert_ne!(sent(), before);
        assert!(!counter("packets_into_tunnel_0"));
    });
}

/// Rules of an operator's firewall, in a chain at this hook.
fn firewall(hook: &str, rules: &[&str]) {
    run("nft", &["add", "table", "inet", "own"]);
    let name = hook.split(' ').next().expect("a hook");
    let chain = format!("add chain inet own {name} {{ type {hook}; }}");
    run("nft", &[&chain]);
    for rule in rules {
        run("nft", &[&format!("add rule inet own {name} {rule}")]);
    }
}

/// Packets that a rule of the operator's with a counter has seen.
fn seen_by_rule(rule: &str) -> bool {
    let rules = run("nft", &["list", "table", "inet", "own"]);
    let line = rules.lines().find(|line| line.contains(rule));
    !line.expect("the rule").contains("packets 0 ")
}

/// The sum of the Internet (RFC 1071).
fn checksum(bytes: &[u8], begin: u32) -> [u8; 2] {
    let words = bytes.chunks(2).map(|word| {
        u32::from(u16::from_be_bytes([
            word[0],
            word.get(1).copied().unwrap_or(0),
        ]))
    });
    let sum = words.sum::<u32>() + begin;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    (!(sum as u16)).to_be_bytes()
}

/// What a server answers to this SYN: its SYN and ACK.
fn syn_ack(syn: &[u8]) -> Vec<u8> {
    let mut packet = [&syn[..20], &syn[20..40]].concat();
    packet[2..4].copy_from_slice(&40_u16.to_be_bytes());
    packet[12..20].rotate_left(4);
    packet[20..24].rotate_left(2);
    let number = u32::from_be_bytes(syn[24..28].try_into().expect("four bytes"));
    packet[24..28].copy_from_slice(&9000_u32.to_be_bytes());
    packet[28..32].copy_from_slice(&(number + 1).to_be_bytes());
    packet[32..34].copy_from_slice(&[0x50, 0x12]);
    packet[10..12].fill(0);
    packet[36..40].fill(0);
    let header = checksum(&packet[..20], 0);
    packet[10..12].copy_from_slice(&header);
    let pseudo = packet[12..20].chunks(2);
    let pseudo = pseudo.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let tcp = checksum(&packet[20..], pseudo.sum::<u32>() + 6 + 20);
    packet[36..38].copy_from_slice(&tcp);
    packet
}

#[test]
fn connections_live_behind_a_firewall_that_drops_what_is_invalid() {
    in_place(async |host, _interception, tuns| {
        firewall(
            "filter hook forward priority 0",
            &["ct state invalid counter drop", "ct state new counter"],
        );
        let connected = host.0.clone();
        let (tell, told) = mpsc::channel();
        let order = move || {
            let to = "203.0.113.5:5061".parse().expect("an address");
            let stream = TcpStream::connect_timeout(&to, Duration::from_secs(3));
            tell.send(stream.is_ok()).expect("waits");
        };
        connected.send(Box::new(order)).expect("runs");
        let syn = next(&tuns.sites[0]).expect("a SYN");
        tuns.sites[0].tun.write(&syn_ack(&syn)).expect("writes");
        let ack = next(&tuns.sites[0]).expect("an ACK");
        assert_eq!((ack[9], ack[33] & 0x3f), (6, 0x10));
        assert!(told.recv().expect("it tells"), "connected");
        assert!(!seen_by_rule("invalid"));
        // Of what passes conntrack sees all, from the first packet.
        let passing = tuns.passing.expect("a TUN for what passes");
        passing.write(&syn).expect("writes");
        assert!(seen_by_rule("new"));
    });
}

#[test]
fn what_passes_is_masqueraded_as_ever() {
    in_place(async |host, _interception, tuns| {
        firewall(
            "nat hook postrouting priority 100",
            &["oifname \"far0\" masquerade"],
        );
        ip("address add 198.51.100.1/32 dev far0");
        run(
            "nft",
            &["add chain inet own seen { type filter hook postrouting priority 200; }"],
        );
        for source in ["10.9.0.2", "198.51.100.1"] {
            let rule = format!("add rule inet own seen oifname far0 ip saddr {source} counter");
            run("nft", &[&rule]);
        }
        assert!(!host.is_refused(5060));
        let packet = next(&tuns.sites[0]).expect("a datagram");
        let passing = tuns.passing.expect("a TUN for what passes");
        passing.write(&packet).expect("writes");
        assert!(!seen_by_rule("saddr 10.9.0.2"));
        assert!(seen_by_rule("saddr 198.51.100.1"));
    });
}

#[test]
fn a_peer_reaches_hosts_but_not_this_machine() {
    in_place(async |host, _interception, tuns| {
        let service = UdpSocket::bind("10.9.0.1:7000").expect("a service here");
        service
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("a socket");
        assert!(!host.is_refused(5060));
        let mut packet = next(&tuns.sites[0]).expect("a datagram");
        packet[12..20].rotate_left(4);
        packet[20..24].rotate_left(2);
        for address in [[10, 9, 0, 1], [10, 9, 0, 255]] {
            packet[16..20].copy_from_slice(&address);
            packet[10..12].fill(0);
            let header = checksum(&packet[..20], 0);
            packet[10..12].copy_from_slice(&header);
            packet[26..28].fill(0);
            tuns.sites[0].tun.write(&packet).expect("writes");
        }
        assert!(service.recv(&mut [0; 9]).is_err());
        assert!(counter("packets_not_for_hosts"));
    });
}

#[test]
fn the_rules_of_a_site_that_a_reload_takes_away_go_with_it() {
    in_place(async |_host, interception, tuns| {
        let rules =
            || ip("rule").matches("proto 80").count() + ip("-6 rule").matches("proto 80").count();
        assert_eq!(rules(), 6);
        // As another process finds it.
        drop((interception, tuns));
        let less = CONFIG.replace(
            "mode = \"packet\"\npeer = \"hub\"\nmatch = { protocol = \"icmp\" }",
            "mode = \"bypass\"",
        );
        let config = pep_core::config::parse(&less).expect("valid");
        let interception = Interception::install(&config, true).await.expect("root");
        assert_eq!(rules(), 4);
        interception.remove().await.expect("removed");
        assert_eq!(rules(), 0);
    });
}

/// The processes of which this one is the parent, with their names.
fn children(parent: u32) -> Vec<(u32, String)> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let child = |id: u32| {
        let text = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        let (before, after) = text.rsplit_once(')')?;
        let of: u32 = after.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then(|| (id, before.split_once('(').unwrap_or_default().1.to_owned()))
    };
    numbers.filter_map(child).collect()
}

fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn has_tun() -> Option<()> {
    let output = Command::new("ip").args(["link", "show", "pepd-0"]).output();
    output.expect("ip starts").status.success().then_some(())
}

fn send(process: u32, signal: Signal) {
    let process = Pid::from_raw(i32::try_from(process).expect("a process"));
    kill(process, signal).expect("a process of ours");
}

#[test]
fn a_crash_takes_the_tuns_although_the_keeper_lives_and_the_next_one_has_them() {
    let thread = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("root");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root");
        ip("link set lo up");
        ip("link add lan0 type veth peer name host0");
        let folder = tempfile::tempdir().expect("a folder");
        let pepd = env!("CARGO_BIN_EXE_pepd");
        let in_folder = |name: &str| folder.path().join(name);
        let key = in_folder("k");
        run(pepd, &["keygen", "--out", key.to_str().expect("text")]);
        let no_socket = "[admin]\nsocket = \"off\"\n";
        std::fs::write(in_folder("pepd.toml"), format!("{CONFIG}{no_socket}")).expect("writes");
        let mut supervisor = Command::new(pepd)
            .args(["run", "--config"])
            .arg(in_folder("pepd.toml"))
            .spawn()
            .expect("starts");
        let worker = || {
            children(supervisor.id())
                .into_iter()
                .next()
                .map(|(id, _)| id)
        };
        let keeper = |worker| {
            let all = children(worker).into_iter();
            all.filter(|(_, name)| name == "pepd-keeper")
                .map(|(id, _)| id)
                .next()
        };
        eventually("a TUN", has_tun);
        let first = worker().expect("a worker");
        let kept = keeper(first).expect("a keeper");
        // Nobody starts the next one.
        send(supervisor.id(), Signal::SIGSTOP);
        send(first, Signal::SIGKILL);
        eventually("the TUN is gone", || has_tun().is_none().then_some(()));
        let name = std::fs::read_to_string(format!("/proc/{kept}/comm"));
        assert_eq!(name.expect("it lives").trim(), "pepd-keeper");
        send(supervisor.id(), Signal::SIGCONT);
        eventually("a TUN once more", has_tun);
        send(supervisor.id(), Signal::SIGTERM);
        supervisor.wait().expect("ends");
    });
    thread.join().expect("the test's thread");
}
