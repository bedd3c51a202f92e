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
/// Host for which the rogue may speak.
const INNER: ([u8; 4], u16) = ([10, 250, 0, 1], 4000);

/// Counters of what the hub sends on.
const COUNTERS: &str = "table inet watch {
    counter right {}
    counter forged {}
    chain out {
        type filter hook postrouting priority 400;
        oifname \"lo\" accept;
        ip saddr 10.250.0.0/16 counter name right;
        th dport 7010 ip saddr != { 10.250.0.0/16, CLIENT } counter name forged;
        th dport 7010 meta nfproto ipv6 counter name forged;
    }
}";

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
        "{second}from = [\"10.250.0.0/16\"]\n{}{}",
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
    }
    let more = format!("{second}{}{}", limits(), sites.concat());
    bed.config(End::Boat, "", "", &more)
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
        let bed = TunnelBed::with_two_boats(LINK);
        let quiet = |config: String| config.replace("level = \"debug\"", "level = \"info\"");
        let rogue = (side == Side::Called).then_some(carrier);
        let hub = bed.start(End::Hub, &quiet(config_of_hub(&bed)));
        let boat = bed.start(End::Boat, &quiet(config_of_boat(&bed, rogue)));
        let client = bed.address("client", Family::V4).to_string();
        // The kernel forwards no packets whose source it cannot reach.
        let [boat2, _] = bed.addresses_toward("boat2", "hub");
        bed.host("hub")
            .ip(&format!("route add 10.250.0.0/16 via {boat2} dev boat2"));
        bed.host("hub").nft(&COUNTERS.replace("CLIENT", &client));
        let server = bed.host("server");
        let at = |port| bed.server_at(Family::V4, port);
        let echo = EchoServer::start(server.listen(at(ECHO)));
        let packets = EchoServer::start(server.listen(at(PACKETS)));
        // Packets to a closed port would be answered.
        let udp = server.enter(|| UdpSocket::bind(at(PACKETS)).expect("a free port"));
        // Beside the victim: floods beyond the boat's link would fill that.
        let beside = |port| SocketAddr::new(address_beside(&bed, side), port);
        let host = bed.host(host_beside(side));
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
        Target {
            side: self.side,
            server: at(SINK),
            source: at(SOURCE),
            refused: at(REFUSED),
            client: INNER.into(),
            packets: self.bed.server_at(Family::V4, PACKETS),
            inner: INNER.into(),
        }
    }

    /// Returns the victim's resident bytes, and those that the kernel holds for it unread.
    pub fn memory_of_victim(&self) -> u64 {
        let host = match self.side {
            Side::Caller => "hub",
            Side::Called => "boat",
        };
        self.victim.resident_bytes() + self.bed.host(host).unread_bytes()
    }

    /// Returns what the rogue has sent to others so far.
    pub fn outgoing(&self) -> Outgoing {
        let count = |name, unit: &str| -> u64 {
            let words = ["list", "counter", "inet", "watch", name];
            let text = self.bed.host("hub").run("nft", &words);
            let mut words = text.split_whitespace().skip_while(|word| *word != unit);
            let number = words.nth(1).and_then(|number| number.parse().ok());
            number.expect("a counter")
        };
        Outgoing {
            bytes: self.sunk.load(Relaxed) + count("right", "bytes"),
            forged: count("forged", "packets"),
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
