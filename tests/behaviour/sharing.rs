//! Flows that share a slow link.
//!
//! The sites differ in their congestion controls, and the queue is deep: without `share`, the later
//! flow gets about two thirds of the link.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread,
};

use pepd_tests::{
    host::Host,
    pep::Pep,
    serve::Server,
    wait::{wait_for, wait_until},
};
use winkemu::{
    lab::{LinkEdge, Topology},
    link::LinkOptions,
};

/// 250 kB of queue are 2 s at this rate.
const LINK: &str = "rate=1Mbit/s,delay=100ms,queue=250kB";
const LINK_BITS: u64 = 1_000_000;

const CONFIG: &str = "[intercept]
lan = [\"client\"]

[link]
interface = \"server\"
rate = \"1Mbit/s\"
rtt = \"200ms\"

[log]
format = \"json\"

[[site]]
name = \"reno\"
match = { dport = 7001 }
congestion = [\"reno\"]

[[site]]
name = \"other\"
congestion = [\"cubic\", \"reno\"]
";

/// Bytes received by a server, until it must close.
#[derive(Default)]
pub struct Sink {
    received: AtomicU64,
    closed: AtomicBool,
}

impl Sink {
    /// Receives until the end of the stream, or until the sink is closed.
    pub fn serve(&self, mut stream: TcpStream) {
        let mut buffer = vec![0; 1 << 16];
        while !self.closed.load(SeqCst)
            && let Ok(count @ 1..) = stream.read(&mut buffer)
        {
            self.received.fetch_add(count as u64, SeqCst);
        }
    }

    /// Bytes received by all connections.
    pub fn received(&self) -> u64 {
        self.received.load(SeqCst)
    }

    /// Closes all connections once they receive again.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
    }
}

/// Client, pepd, a slow link and two servers.
struct Bed {
    nodes: Topology,
    pep: Pep,
    servers: [(Server, Arc<Sink>); 2],
}

impl Bed {
    fn new() -> Self {
        let link: LinkOptions = LINK.parse().expect("valid options");
        let link = link.resolve_without_files().expect("no files");
        let nodes = Topology::builder()
            .veth("client", "pepd")
            .link("pepd", "server", LinkEdge::new("sat", link))
            .build()
            .expect("namespaces can be made (run the tests as root)");
        let pep = Pep::start(&Host::in_netns(nodes.node("pepd").netns()), CONFIG);
        let servers = [7001, 7002].map(|port| {
            let host = Host::in_netns(nodes.node("server").netns());
            let address = SocketAddr::new(nodes.node("server").ipv4().into(), port);
            let sink = Arc::new(Sink::default());
            let serving = Arc::clone(&sink);
            let server =
                Server::start(host.listen(address), move |stream, _| serving.serve(stream));
            (server, sink)
        });
        Self {
            nodes,
            pep,
            servers,
        }
    }

    /// Uploads until the server closes.
    fn upload(&self, which: usize) {
        let client = Host::in_netns(self.nodes.node("client").netns());
        let stream = client.connect(self.servers[which].0.address());
        let mut stream = stream.expect("pepd answers");
        thread::spawn(move || while stream.write_all(&[0; 1 << 16]).is_ok() {});
    }

    fn received(&self, which: usize) -> u64 {
        self.servers[which].1.received()
    }

    fn wait_received(&self, which: usize, bytes: u64) {
        wait_until("bytes to arrive", || self.received(which) >= bytes);
    }
}

#[test]
fn uploads_share_a_link_equally_whatever_their_congestion_controls() {
    let mut bed = Bed::new();
    let [reno, cubic] = [0, 1];
    bed.upload(cubic);
    bed.wait_received(cubic, 400_000);

    let before = bed.received(cubic);
    bed.upload(reno);
    bed.wait_received(reno, 1);
    let meanwhile = bed.received(cubic) - before;
    assert!(meanwhile < 250_000, "{meanwhile} bytes before the first");

    // Bytes queued before do not count for the share.
    bed.wait_received(reno, 150_000);
    let before = [reno, cubic].map(|which| bed.received(which));
    let got = || [reno, cubic].map(|which| bed.received(which) - before[which]);
    let got = wait_for("a megabyte to arrive", || {
        Some(got()).filter(|got| got.iter().sum::<u64>() >= 1_000_000)
    });
    let share = got[reno] as f64 / got.iter().sum::<u64>() as f64;
    assert!((0.45..=0.55).contains(&share), "{share}: {got:?}");
    assert_eq!(bed.pep.counter("link_senders"), 2);

    bed.servers[cubic].1.close();
    bed.pep
        .wait_counter("link_level_bits", |bits| bits == LINK_BITS);
    bed.wait_received(reno, bed.received(reno) + 300_000);
    bed.pep.assert_healthy();
}
