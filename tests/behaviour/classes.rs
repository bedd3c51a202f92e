//! Hosts, classes and UDP on a link whose rate is stated, in split mode.

use std::{
    io::Write as _,
    net::{SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
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

use crate::sharing::Sink;

/// 125 kB of queue are 100 ms at this rate.
const LINK: &str = "rate=10Mbit/s,delay=25ms,queue=125kB";

const CONFIG: &str = "[intercept]
lan = [\"one\", \"two\"]

[link]
interface = \"server\"
rate = \"10Mbit/s\"
rtt = \"50ms\"

[log]
format = \"json\"

[[site]]
name = \"shell\"
match = { dport = 7001 }
class = \"interactive\"
congestion = [\"cubic\", \"reno\"]

[[site]]
name = \"backup\"
match = { dport = 7002 }
class = \"delay_tolerant\"
congestion = [\"cubic\", \"reno\"]

[[site]]
name = \"others\"
congestion = [\"cubic\", \"reno\"]
";

/// Positions of the servers.
const SHELL: usize = 0;
const BACKUP: usize = 1;
const OTHERS: [usize; 2] = [2, 3];

/// Two hosts, pepd, a link and servers.
struct Bed {
    nodes: Topology,
    pep: Pep,
    servers: [(Server, Arc<Sink>); 4],
}

impl Bed {
    fn new() -> Self {
        let link: LinkOptions = LINK.parse().expect("valid options");
        let link = link.resolve_without_files().expect("no files");
        let nodes = Topology::builder()
            .veth("one", "pepd")
            .veth("two", "pepd")
            .link("pepd", "server", LinkEdge::new("sat", link))
            .build()
            .expect("namespaces can be made (run the tests as root)");
        let pep = Pep::start(&Host::in_netns(nodes.node("pepd").netns()), CONFIG);
        let servers = [7001, 7002, 7003, 7004].map(|port| {
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

    /// Uploads until the server closes, a part of this many bytes every `pause`.
    fn upload_parts(&self, host: &str, which: usize, bytes: usize, pause: Duration) {
        let client = Host::in_netns(self.nodes.node(host).netns());
        let stream = client.connect(self.servers[which].0.address());
        let mut stream = stream.expect("pepd answers");
        thread::spawn(move || {
            let mut due = Instant::now();
            while stream.write_all(&vec![0; bytes]).is_ok() {
                due += pause;
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
    }

    fn upload(&self, host: &str, which: usize) {
        self.upload_parts(host, which, 1 << 16, Duration::ZERO);
    }

    fn received(&self, which: usize) -> u64 {
        self.servers[which].1.received()
    }

    fn wait_received(&self, which: usize, bytes: u64) {
        let before = self.received(which);
        wait_until("bytes to arrive", || self.received(which) - before >= bytes);
    }

    /// Returns the parts of each server in the next bytes that arrive.
    fn parts_of(&self, bytes: u64) -> [f64; 4] {
        let all = || [0, 1, 2, 3].map(|which| self.received(which));
        let before = all();
        let got = wait_for("bytes to arrive", || {
            let now = all();
            let got: [u64; 4] = std::array::from_fn(|which| now[which] - before[which]);
            (got.iter().sum::<u64>() >= bytes).then_some(got)
        });
        let sum: u64 = got.iter().sum();
        got.map(|got| got as f64 / sum as f64)
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for (_, sink) in &self.servers {
            sink.close();
        }
    }
}

#[test]
fn a_host_with_one_flow_has_as_much_as_a_host_with_eight() {
    let mut bed = Bed::new();
    let [of_one, of_two] = OTHERS;
    for _ in 0..8 {
        bed.upload("one", of_one);
    }
    bed.upload("two", of_two);
    bed.wait_received(of_two, 1_500_000);
    let parts = bed.parts_of(6_000_000);
    assert!((0.4..0.6).contains(&parts[of_two]), "{parts:?}");
    bed.pep.assert_healthy();
}

/// By sites alone, each would have half.
#[test]
fn an_interactive_flow_has_what_it_needs_beside_bulk() {
    let mut bed = Bed::new();
    let [bulk, _] = OTHERS;
    for _ in 0..2 {
        bed.upload("two", bulk);
    }
    bed.wait_received(bulk, 1_000_000);
    // 7 Mbit/s.
    bed.upload_parts("one", SHELL, 8750, Duration::from_millis(10));
    bed.wait_received(SHELL, 1_500_000);
    let parts = bed.parts_of(6_000_000);
    assert!(parts[SHELL] > 0.65, "{parts:?}");
    assert!(parts[bulk] > 0.01, "{parts:?}");
    bed.pep.assert_healthy();
}

#[test]
fn a_delay_tolerant_flow_has_only_what_no_other_wants() {
    let mut bed = Bed::new();
    let [normal, _] = OTHERS;
    bed.upload("one", BACKUP);
    bed.wait_received(BACKUP, 1_500_000);
    bed.upload("two", normal);
    bed.wait_received(normal, 1_000_000);
    let parts = bed.parts_of(4_000_000);
    assert!(parts[BACKUP] < 0.1, "{parts:?}");
    // It still makes progress.
    bed.wait_received(BACKUP, 1);
    bed.servers[normal].1.close();
    bed.wait_received(BACKUP, 1_500_000);
    bed.pep.assert_healthy();
}

/// Payload bytes of UDP that the server has received, until dropped.
struct Datagrams {
    received: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Datagrams {
    /// Sends 500 datagrams of 1000 bytes per second: 4.1 Mbit/s of IP packets.
    fn send(nodes: &Topology) -> Self {
        let bind = |node: &str, port| {
            let host = Host::in_netns(nodes.node(node).netns());
            let address = SocketAddr::new(nodes.node(node).ipv4().into(), port);
            let socket = host.enter(|| UdpSocket::bind(address)).expect("bound");
            socket
                .set_read_timeout(Some(Duration::from_millis(100)))
                .expect("a valid time");
            socket
        };
        let (from, to) = (bind("one", 0), bind("server", 7100));
        let address = to.local_addr().expect("bound");
        let (received, ended) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (counted, receiving) = (Arc::clone(&received), Arc::clone(&ended));
        let receiver = thread::spawn(move || {
            let mut buffer = [0; 2000];
            while !receiving.load(SeqCst) {
                if let Ok(bytes) = to.recv(&mut buffer) {
                    counted.fetch_add(bytes as u64, SeqCst);
                }
            }
        });
        let sending = Arc::clone(&ended);
        let sender = thread::spawn(move || {
            let mut due = Instant::now();
            while !sending.load(SeqCst) {
                from.send_to(&[0; 1000], address).expect("sent");
                due += Duration::from_millis(2);
                thread::sleep(due.saturating_duration_since(Instant::now()));
            }
        });
        Self {
            received,
            ended,
            threads: vec![receiver, sender],
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.ended.store(true, SeqCst);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[test]
fn an_upload_leaves_room_for_udp() {
    let mut bed = Bed::new();
    let [upload, _] = OTHERS;
    let udp = Datagrams::send(&bed.nodes);
    bed.pep
        .wait_counter("link_other_bytes", |bytes| bytes > 1_000_000);
    bed.upload("two", upload);
    bed.wait_received(upload, 1_000_000);
    let datagrams = || udp.received.load(SeqCst);
    let before = (datagrams(), bed.received(upload));
    bed.wait_received(upload, 6_000_000);
    let got = [datagrams() - before.0, bed.received(upload) - before.1];
    let limit = bed.pep.counter("link_level_bits");
    bed.pep.assert_healthy();
    drop(udp);
    let (_, report) = bed.nodes.stop_links().remove(0);
    let packets = report.ab.packets;
    let dropped = packets.dropped.queue_full as f64 / packets.offered as f64;
    assert!(dropped < 0.01, "{dropped} of {}", packets.offered);
    // 5.6 of 9.6 Mbit/s.
    let part = got[1] as f64 / (got[0] + got[1]) as f64;
    assert!((0.45..0.68).contains(&part), "{part}: {got:?}");
    assert!((4_000_000..7_500_000).contains(&limit), "{limit}");
}
