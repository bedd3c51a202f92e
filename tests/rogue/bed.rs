//! Hub and boat, flows between them, servers, and the place of a rogue peer.

use std::{
    io::{Read as _, Write as _},
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::{Dial, Host},
    pep::Pep,
    serve::Server,
    tunnel::{End, TunnelBed},
    wait::{PATIENCE, wait_within},
};
use rogue::{Side, floods::Target};

use crate::{
    attacker::{Carrier, rogue_hub},
    load::Load,
};

const LINK: &str = "delay=10ms,queue=1MB";
/// `limits.memory` of both ends, in bytes.
pub const MEMORY: u64 = 512 << 20;
const ECHO: u16 = 7000;
const SINK: u16 = 7001;
const REFUSED: u16 = 7002;
const SOURCE: u16 = 7003;
/// Server to which sites of mode `packet` go.
const PACKETS: u16 = 7010;
/// Destination of the flows that a boat opens by a rogue hub.
const BAIT: u16 = 7100;
/// Honest flows in streams of the tunnel, and in packets of packet mode.
const FLOWS: usize = 6;
const PACKET_FLOWS: usize = 2;
/// Host for which the rogue may speak, and its port to which a boat's site of mode `packet` goes.
const INNER: ([u8; 4], u16) = ([10, 250, 0, 1], 7011);
const INNER6: ([u16; 8], u16) = ([0xfd00, 0x250, 0, 0, 0, 0, 0, 1], 7011);
/// Network beside the victim that answers nothing.
const SILENT: [u8; 4] = [10, 251, 0, 0];

/// Counter of what the hub sends on.
const COUNTER: &str = "table inet watch {
    counter forged {}
    chain out {
        type filter hook postrouting priority 400;
        oifname \"lo\" accept;
        th dport 7010 ip saddr != { 10.250.0.0/16, CLIENT } counter name forged;
        th dport 7010 meta nfproto ipv6 counter name forged;
    }
}";

/// Counters of what comes to the host beside the victim. Packets to groups pass by the filter of
/// the victim.
const COUNTERS_BESIDE: &str = "table inet watch {
    counter right {}
    counter forged {}
    chain in {
        type filter hook prerouting priority -400;
        ip saddr 10.250.0.0/16 counter name right;
        ip saddr 10.250.0.0/16 ip daddr 224.0.0.0/24 counter name forged;
        ip saddr 10.250.0.0/16 ip protocol igmp counter name forged;
        ip saddr 10.250.0.0/16 icmp type destination-unreachable counter name forged;
        ip6 saddr fd00:250::/32 counter name forged;
    }
}";
/// Tracking of connections by the victim's kernel, for which it reassembles fragments.
const TRACKING: &str = "table inet tracking {
    chain in {
        type filter hook prerouting priority 0;
        ct state invalid counter
    }
}";
/// Site for all groups.
const GROUPS: &str = "[[site]]\nname = \"groups\"\nmode = \"packet\"\npeer = \"boat2\"\n\
    match = { dst = [\"224.0.0.0/4\", \"ff00::/8\"] }\n";

/// Bytes of the rogue that have reached the server, and packets with forged sources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outgoing {
    /// Bytes.
    pub bytes: u64,
    /// Packets.
    pub forged: u64,
}

/// Hub and boat with honest flows, and servers.
pub struct Bed {
    // It ends first: flows are reset when the others end.
    pub load: Load,
    /// Side of the rogue.
    pub side: Side,
    /// The pepd that the rogue attacks.
    pub victim: Pep,
    /// Rounds per second before all kinds.
    usual: f64,
    /// Bytes that the server got on streams of the rogue.
    sunk: Arc<AtomicU64>,
    _bait: Option<Bait>,
    _other: Pep,
    _servers: (EchoServer, EchoServer, [Server; 2], UdpSocket),
    pub bed: TunnelBed,
}

/// Site of mode `packet` toward a peer.
fn packet_site(name: &str, peer: &str, matching: &str) -> String {
    format!(
        "[[site]]\nname = \"{name}\"\nmode = \"packet\"\npeer = \"{peer}\"\n\
         match = {{ protocol = [\"tcp\", \"udp\"], {matching} }}\n"
    )
}

fn tunnel_site(name: &str, peer: &str, matching: &str) -> String {
    format!("[[site]]\nname = \"{name}\"\nmode = \"tunnel\"\npeer = \"{peer}\"\n{matching}\n")
}

fn config_of_hub(bed: &TunnelBed) -> String {
    let client = bed.address("client", Family::V4);
    let second = bed.peer(End::Hub, End::SecondBoat);
    let sites = [
        packet_site(
            "boat",
            "boat",
            &format!("dst = \"{client}\", sport = {PACKETS}"),
        ),
        packet_site("rogue", "boat2", &format!("sport = {PACKETS}")),
    ];
    let more = format!(
        "{second}from = [\"10.250.0.0/16\", \"fd00:250::/32\"]\n{}{}{GROUPS}",
        limits(),
        sites.concat()
    );
    bed.config(End::Hub, "", "", &more)
}

fn config_of_boat(bed: &TunnelBed, rogue: Option<Carrier>) -> String {
    let mut sites = vec![
        packet_site("packets", "hub", &format!("dport = {PACKETS}")),
        tunnel_site("all", "hub", ""),
    ];
    let mut second = String::new();
    if let Some(carrier) = rogue {
        let carrier = if carrier == Carrier::Udp {
            "udp"
        } else {
            "tcp"
        };
        second = format!(
            "{}endpoint = \"{}\"\ncarrier = \"{carrier}\"\n",
            bed.peer(End::Boat, End::SecondBoat),
            rogue_hub(bed)
        );
        let bait = format!("match = {{ dport = {BAIT} }}");
        sites.insert(0, tunnel_site("bait", "boat2", &bait));
        sites.insert(1, packet_site("rogue", "boat2", "dport = 7011"));
        sites.insert(2, GROUPS.to_owned());
    }
    let more = format!("{second}{}{}", limits(), sites.concat());
    bed.config(End::Boat, "", "", &more)
}

/// Name of the victim's machine.
fn host_of_victim(side: Side) -> &'static str {
    match side {
        Side::Caller => "hub",
        Side::Called => "boat",
    }
}

/// Name of the machine beside the victim to which the rogue's flows go.
fn host_beside(side: Side) -> &'static str {
    match side {
        Side::Caller => "server",
        Side::Called => "client",
    }
}

fn address_beside(bed: &TunnelBed, side: Side) -> IpAddr {
    match side {
        Side::Caller => bed.server_at(Family::V4, 0).ip(),
        Side::Called => bed.address("client", Family::V4),
    }
}

fn limits() -> String {
    format!("[limits]\nmemory = \"{}MiB\"\nflows = 4096\n", MEMORY >> 20)
}

impl Bed {
    /// Starts both ends. A rogue that is called is a second hub of the boat, by this carrier.
    pub fn new(side: Side, carrier: Carrier) -> Self {
        let bed = TunnelBed::with_a_boat_beside_the_hub(LINK);
        let quiet = |config: String| config.replace("level = \"debug\"", "level = \"info\"");
        let rogue = (side == Side::Called).then_some(carrier);
        let hub = bed.start(End::Hub, &quiet(config_of_hub(&bed)));
        let boat = bed.start(End::Boat, &quiet(config_of_boat(&bed, rogue)));
        let client = bed.address("client", Family::V4).to_string();
        bed.host("hub").nft(&COUNTER.replace("CLIENT", &client));
        let server = bed.host("server");
        let at = |port| bed.server_at(Family::V4, port);
        let echo = EchoServer::start(server.listen(at(ECHO)));
        let packets = EchoServer::start(server.listen(at(PACKETS)));
        // Beside the victim: floods beyond the boat's link would fill that.
        let beside = |port| SocketAddr::new(address_beside(&bed, side), port);
        let host = bed.host(host_beside(side));
        // Packets to a closed port would be answered.
        let udp = host.enter(|| UdpSocket::bind(beside(PACKETS)).expect("a free port"));
        host.nft(COUNTERS_BESIDE);
        let silent = IpAddr::from(SILENT);
        let via = address_beside(&bed, side);
        let victim = bed.host(host_of_victim(side));
        victim.ip(&format!("route add {silent}/16 via {via}"));
        // The kernel forwards no packets whose source it cannot reach.
        let [back, _] = match side {
            Side::Caller => bed.addresses_toward("boat2", "hub"),
            Side::Called => bed.addresses_toward("hub", "boat"),
        };
        victim.ip(&format!("route add 10.250.0.0/16 via {back}"));
        victim.nft(TRACKING);
        let sunk = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sunk);
        let sink = Server::start(host.listen(beside(SINK)), move |mut stream, _| {
            let mut buffer = vec![0; 1 << 16];
            while let Ok(length @ 1..) = stream.read(&mut buffer) {
                counted.fetch_add(length as u64, Relaxed);
            }
        });
        let source = Server::start(host.listen(beside(SOURCE)), |mut stream, _| {
            while stream.write_all(&[7; 1 << 16]).is_ok() {}
        });
        for pep in [&hub, &boat] {
            pep.wait_counter("tunnel_peers_up", |peers| peers == 1);
        }
        let servers = [(at(ECHO), FLOWS), (at(PACKETS), PACKET_FLOWS)];
        let load = Load::start(&bed.host("client"), &servers);
        load.measure();
        thread::sleep(Duration::from_millis(500));
        let usual = load.measure().rate;
        let bait = rogue.map(|_| Bait::start(&bed.host("client"), at(BAIT)));
        let (victim, other) = match side {
            Side::Caller => (hub, boat),
            Side::Called => (boat, hub),
        };
        Self {
            load,
            side,
            victim,
            usual,
            sunk,
            _bait: bait,
            _other: other,
            _servers: (echo, packets, [sink, source], udp),
            bed,
        }
    }

    /// Waits until the flows work again after what was done to the victim.
    pub fn recover(&self, share: f64) {
        self.load.measure();
        wait_within(PATIENCE, || {
            thread::sleep(Duration::from_millis(100));
            (self.load.measure().rate > self.usual * share).then_some(())
        });
    }

    /// Returns the destinations of floods.
    pub fn target(&self) -> Target {
        let at = |port| SocketAddr::new(address_beside(&self.bed, self.side), port);
        let other = match self.side {
            Side::Caller => Side::Called,
            Side::Called => Side::Caller,
        };
        Target {
            side: self.side,
            server: at(SINK),
            source: at(SOURCE),
            refused: at(REFUSED),
            silent: (SILENT, REFUSED).into(),
            client: INNER.into(),
            packets: at(PACKETS),
            inner: INNER.into(),
            inner6: INNER6.into(),
            other: SocketAddr::new(address_beside(&self.bed, other), PACKETS),
        }
    }

    /// Returns the victim's resident bytes, and those that the kernel holds for it unread.
    pub fn memory_of_victim(&self) -> u64 {
        let host = self.bed.host(host_of_victim(self.side));
        self.victim.resident_bytes() + host.unread_bytes()
    }

    /// Returns the shares in use of the victim's kernel: of its memory for fragments of IPv4, and
    /// of its table of connections.
    pub fn of_kernel(&self) -> [f64; 2] {
        let host = self.bed.host(host_of_victim(self.side));
        let share = |used: [&str; 2], most: &str| {
            let number = |text: String| -> f64 {
                let last = text.split_whitespace().last();
                let number = last.and_then(|word| word.parse().ok());
                number.expect("a number")
            };
            number(host.run("grep", &used)) / number(host.run("sysctl", &[most]))
        };
        [
            share(
                ["FRAG:", "/proc/net/sockstat"],
                "net.ipv4.ipfrag_high_thresh",
            ),
            share(
                ["", "/proc/sys/net/netfilter/nf_conntrack_count"],
                "net.netfilter.nf_conntrack_max",
            ),
        ]
    }

    /// Returns what the rogue has sent to others so far.
    pub fn outgoing(&self) -> Outgoing {
        let beside = host_beside(self.side);
        let count = |host, name, unit: &str| -> u64 {
            let words = ["list", "counter", "inet", "watch", name];
            let text = self.bed.host(host).run("nft", &words);
            let mut words = text.split_whitespace().skip_while(|word| *word != unit);
            let number = words.nth(1).and_then(|number| number.parse().ok());
            number.expect("a counter")
        };
        let forged = ["hub", beside].map(|host| count(host, "forged", "packets"));
        Outgoing {
            bytes: self.sunk.load(Relaxed) + count(beside, "right", "bytes"),
            forged: forged.iter().sum(),
        }
    }
}

/// A host whose flows go by the rogue hub, one after the other.
struct Bait {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Bait {
    fn start(client: &Host, to: SocketAddr) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (client, stop) = (client.clone(), Arc::clone(&over));
        let thread = thread::spawn(move || {
            let dial = Dial::to(to).limit(Duration::from_secs(1));
            while !stop.load(Relaxed) {
                // Whatever the rogue makes of it is right.
                if let Ok(mut stream) = client.dial(&dial) {
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(500)));
                    let _ = stream.write_all(&[7; 2000]);
                    let _ = stream.read(&mut [0; 2000]);
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        let thread = Some(thread);
        Self { over, thread }
    }
}

impl Drop for Bait {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
