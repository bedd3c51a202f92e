//! Test bed: a machine with pepd's rules in its own network namespace, and a host behind it.

use std::{
    io::ErrorKind,
    net::{Ipv4Addr, Ipv6Addr, UdpSocket},
    process::Command,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sched::{CloneFlags, unshare},
    unistd::gettid,
};
use pepd_intercept::{Interception, PacketTun, PacketTuns, tun::READ_MAX};

pub(crate) const CONFIG: &str = r#"
[intercept]
forward = "ignore"
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

/// Address of the host.
pub(crate) const HOST_V4: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
pub(crate) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 9, 0, 0, 0, 0, 2);

/// Adds addresses of IPv6, and a network beyond.
pub(crate) fn with_ipv6(host: &Host) {
    std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").expect("root");
    let (here, there) = ("02:00:00:00:09:01", "02:00:00:00:09:02");
    ip(&format!("link set lan0 address {here}"));
    ip("address add 2001:db8:9::1/64 dev lan0 nodad");
    ip(&format!(
        "neighbour add 2001:db8:9::2 lladdr {there} dev lan0"
    ));
    ip("address add 2001:db8:e::1/64 dev far0 nodad");
    ip("neighbour add 2001:db8:e::5 lladdr 02:00:00:00:00:05 dev far0");
    ip("route add 2001:db8:f::/48 via 2001:db8:e::5");
    host.on(move || {
        ip(&format!("link set host0 address {there}"));
        ip("address add 2001:db8:9::2/64 dev host0 nodad");
        ip(&format!(
            "neighbour add 2001:db8:9::1 lladdr {here} dev host0"
        ));
        ip("route add default via 2001:db8:9::1");
    });
}

pub(crate) fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output().expect("starts");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args:?}: {stderr}");
    String::from_utf8(output.stdout).expect("text")
}

pub(crate) fn ip(words: &str) -> String {
    run("ip", &words.split(' ').collect::<Vec<_>>())
}

/// A thread in its own network namespace, which runs closures.
pub(crate) struct Host(pub(crate) mpsc::Sender<Box<dyn FnOnce() + Send>>);

impl Host {
    /// Returns a host behind the interface `lan0` of the calling thread's namespace, as 10.9.0.2.
    pub(crate) fn new() -> Self {
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

    pub(crate) fn on<T: Send + 'static>(&self, order: impl FnOnce() -> T + Send + 'static) -> T {
        let (tell, reported) = mpsc::channel();
        let order = move || tell.send(order()).expect("waits");
        self.0.send(Box::new(order)).expect("runs");
        reported.recv().expect("does not panic")
    }

    /// Sends a datagram. Returns true if it is refused at once.
    pub(crate) fn is_refused(&self, port: u16) -> bool {
        self.on(move || {
            let socket = socket_of_host();
            socket
                .connect(("203.0.113.5", port))
                .expect("a socket of the host");
            socket
                .set_read_timeout(Some(Duration::from_millis(200)))
                .expect("a socket of the host");
            socket.send(b"hello").expect("a socket of the host");
            let err = socket.recv(&mut [0; 9]).expect_err("no answer");
            err.kind() == ErrorKind::ConnectionRefused
        })
    }
}

/// Returns a socket; must be called on the host. A process started by another test may hold the
/// previous one for a moment.
pub(crate) fn socket_of_host() -> UdpSocket {
    let bind = || UdpSocket::bind("10.9.0.2:7000");
    for _ in 0..200 {
        if let Ok(socket) = bind() {
            return socket;
        }
        thread::sleep(Duration::from_millis(5));
    }
    bind().expect("a socket of the host")
}

/// Waits until the condition is met. A process started by another test may hold descriptors of this
/// one until it runs its program: a TUN that the test has closed is still there until then.
pub(crate) fn wait_until(what: &str, met: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !met() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the next packet out of a TUN, if one arrives within a moment.
pub(crate) fn next(tun: &PacketTun) -> Option<Vec<u8>> {
    let mut packets = next_all(tun);
    assert!(packets.len() < 2, "joined");
    packets.pop()
}

/// Returns the packets that the next one out of a TUN stands for; none if none arrives within a
/// moment.
pub(crate) fn next_all(tun: &PacketTun) -> Vec<Vec<u8>> {
    let mut buffer = vec![0; READ_MAX];
    let mut packets = Vec::new();
    let deadline = Instant::now() + Duration::from_millis(300);
    while Instant::now() < deadline {
        let each = |packet: &mut [u8]| packets.push(packet.to_vec());
        if tun
            .tun
            .read_each(&mut buffer, each)
            .expect("reads")
            .is_some()
        {
            break;
        }
        thread::sleep(Duration::from_millis(5));
    }
    packets
}

pub(crate) fn counter(name: &str) -> bool {
    let text = run("nft", &["list", "counter", "inet", "pepd", name]);
    !text.contains("packets 0 ")
}

/// Runs a test in its own namespace, with a host and everything installed.
pub(crate) fn in_place(test: impl AsyncFnOnce(&Host, Interception, PacketTuns) + Send + 'static) {
    in_place_for(CONFIG.to_owned(), test);
}

/// Runs a test likewise, with this configuration.
pub(crate) fn in_place_for(
    config: String,
    test: impl AsyncFnOnce(&Host, Interception, PacketTuns) + Send + 'static,
) {
    let thread = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("root");
        std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("root");
        ip("link set lo up");
        let host = Host::new();
        // Network beyond this machine.
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
            let config = pep_core::config::parse(&config).expect("valid");
            let mut interception = Interception::install(&config, false, Arc::default())
                .await
                .expect("root");
            let tuns = interception.take_packet_tuns();
            assert_eq!(tuns.sites.len(), 2);
            test(&host, interception, tuns).await;
        });
    });
    thread.join().expect("the test's thread");
}

/// Installs rules of an operator's firewall, in a chain at this hook.
pub(crate) fn firewall(hook: &str, rules: &[&str]) {
    run("nft", &["add", "table", "inet", "own"]);
    let name = hook.split(' ').next().expect("a hook");
    let chain = format!("add chain inet own {name} {{ type {hook}; }}");
    run("nft", &[&chain]);
    for rule in rules {
        run("nft", &[&format!("add rule inet own {name} {rule}")]);
    }
}

/// Returns true if an operator's rule with a counter has matched a packet.
pub(crate) fn seen_by_rule(rule: &str) -> bool {
    let rules = run("nft", &["list", "table", "inet", "own"]);
    let line = rules.lines().find(|line| line.contains(rule));
    !line.expect("the rule").contains("packets 0 ")
}
