//! Senders on loopback, with the kernel's real sockets and pacing.

use std::{
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream, UdpSocket},
    time::Duration,
};

use nix::sys::socket::{setsockopt, sockopt::SndBufForce};
use pep_core::{
    config,
    share::Priority,
    site::{IpVersion, SiteId},
};
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// In IPv4 packets of 1500 bytes, of which 1448 are payload.
const LINK_BITS: u64 = 12_000_000;
const FULL: u64 = LINK_BITS / 8 * 1448 / 1500;

fn terms() -> Terms {
    let text = format!(
        "[intercept]\nlan = [\"eth0\"]\n[link]\ninterface = \"sat0\"\nrate = {LINK_BITS}\n"
    );
    let config = config::parse(&text).unwrap();
    let (_, site) = config.sites.iter().next().unwrap();
    Terms::new(site, config.link.as_ref(), IpVersion::V4).unwrap()
}

fn link() -> Arc<SharedLink> {
    SharedLink::new(Rate::from_bits_per_second(LINK_BITS).unwrap(), None)
}

fn place(host: u64) -> Place {
    Place {
        priority: Priority::Middle,
        site: SiteId(0),
        host,
    }
}

/// Link leg of a flow, and the server.
struct Flow {
    share: FlowShare,
    leg: Arc<OwnedFd>,
    stream: TcpStream,
    server: TcpStream,
    /// True if the flow writes nothing more; bytes in its socket are still sent.
    silent: bool,
}

impl Flow {
    fn new(link: &Arc<SharedLink>) -> Self {
        Self::at(link, place(0))
    }

    fn at(link: &Arc<SharedLink>, place: Place) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        for socket in [&stream, &server] {
            socket.set_nonblocking(true).unwrap();
        }
        Self {
            share: FlowShare::new(Arc::clone(link), terms(), place, true),
            leg: Arc::new(stream.try_clone().unwrap().into()),
            stream,
            server,
            silent: false,
        }
    }

    fn send(&mut self, bytes: usize) {
        match self.stream.write(&vec![0; bytes]) {
            Ok(count) => {
                assert!(count > 0);
                self.share.on_sent(&self.leg);
            }
            Err(err) => assert_eq!(err.kind(), ErrorKind::WouldBlock),
        }
    }

    fn receive(&mut self) {
        let mut buffer = vec![0; 1 << 16];
        while self.server.read(&mut buffer).is_ok_and(|count| count > 0) {}
    }

    fn pace(&self) -> u64 {
        socket::max_pacing_rate(self.leg.as_fd()).unwrap()
    }
}

/// Lets flows send as much as they can until a condition holds.
async fn send_until(flows: &mut [Flow], mut holds: impl FnMut(&[Flow]) -> bool) {
    let sending = async {
        while !holds(flows) {
            for flow in &mut *flows {
                if !flow.silent {
                    flow.send(1 << 16);
                }
                flow.receive();
            }
            sleep(Duration::from_millis(2)).await;
        }
    };
    timeout(PATIENCE, sending).await.expect("timeout");
}

async fn wait_until(holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            yield_now().await;
        }
    };
    timeout(PATIENCE, waiting).await.expect("timeout");
}

fn near(pace: u64, wanted: u64) -> bool {
    pace.abs_diff(wanted) <= wanted / 50
}

#[tokio::test]
async fn flows_that_want_everything_are_paced_alike() {
    let link = link();
    tokio::spawn(Sampler::new(Arc::clone(&link)).run());
    let mut flows = vec![Flow::new(&link)];
    flows[0].send(1);
    assert_eq!(flows[0].pace(), FULL, "alone");
    flows.extend([Flow::new(&link), Flow::new(&link)]);
    let alike = |flows: &[Flow]| flows.iter().all(|flow| near(flow.pace(), FULL / 3));
    send_until(&mut flows, alike).await;
    assert_eq!(link.senders(), 3);
    flows.truncate(1);
    send_until(&mut flows, |flows| flows[0].pace() == FULL).await;
    wait_until(|| link.senders() == 1 && link.limit_bits() == LINK_BITS).await;
}

#[tokio::test]
async fn hosts_share_equally_and_interactive_flows_go_first() {
    let link = link();
    tokio::spawn(Sampler::new(Arc::clone(&link)).run());
    let mut flows: Vec<_> = [1, 1, 1, 2]
        .map(|host| Flow::at(&link, place(host)))
        .into_iter()
        .collect();
    send_until(&mut flows, |flows| {
        let [of_one, of_other] = [0, 3].map(|which| flows[which].pace());
        near(of_one, FULL / 6) && near(of_other, FULL / 2)
    })
    .await;
    let first = Place {
        priority: Priority::First,
        ..place(3)
    };
    flows.push(Flow::at(&link, first));
    // Loopback passes all that the interactive flow may send, so the others keep a 64th.
    send_until(&mut flows, |flows| {
        near(flows[3].pace(), FULL / 128) && near(flows[4].pace(), FULL - FULL / 64)
    })
    .await;
}

/// The flows' own packets leave by the loopback interface, too, where they do not count.
#[tokio::test]
async fn other_packets_of_the_interface_reduce_the_limits() {
    let rate = Rate::from_bits_per_second(LINK_BITS).unwrap();
    let link = SharedLink::new(rate, Some("lo".to_owned()));
    tokio::spawn(Sampler::new(Arc::clone(&link)).run());
    let mut flows = [Flow::new(&link)];
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let (mut due, mut reduced) = (tokio::time::Instant::now(), false);
    send_until(&mut flows, |flows| {
        // A quarter of the link, with 28 bytes of headers: with the flow's own packets it would be
        // more, and only half would be left.
        while due <= tokio::time::Instant::now() {
            other.send_to(&[0; 1472], address).unwrap();
            due += Duration::from_millis(4);
        }
        reduced |= (FULL * 13 / 20..FULL * 4 / 5).contains(&flows[0].pace());
        reduced
    })
    .await;
    let bits = link.other_bits().expect("counted");
    assert!(bits >= LINK_BITS / 6, "{bits}");
    assert!(link.other_bytes() > 0);
}

/// Several seconds' worth is in its socket, and nothing more is written to it.
#[tokio::test]
async fn a_flow_that_waits_for_its_socket_gets_a_new_pace() {
    let link = link();
    tokio::spawn(Sampler::new(Arc::clone(&link)).run());
    let mut flows = vec![Flow::new(&link), Flow::new(&link)];
    // More than it can send before a busy machine has looked.
    setsockopt(&flows[0].stream, SndBufForce, &(32 << 20)).unwrap();
    flows[0].send(64 << 20);
    flows[0].silent = true;
    assert_eq!(flows[0].pace(), FULL);
    send_until(&mut flows, |flows| near(flows[0].pace(), FULL / 2)).await;
    flows.truncate(1);
    send_until(&mut flows, |flows| flows[0].pace() == FULL).await;
}

#[tokio::test]
async fn flows_that_are_done_are_forgotten_until_they_send_again() {
    let link = link();
    tokio::spawn(Sampler::new(Arc::clone(&link)).run());
    let mut flows = [Flow::new(&link), Flow::new(&link)];
    for _ in 0..3 {
        for flow in &mut flows {
            flow.send(1);
        }
        assert_eq!(link.senders(), 2);
        wait_until(|| link.senders() == 0).await;
    }
    for flow in &mut flows {
        assert!(flow.share.sender.is_some());
        flow.share.on_quiet();
        assert!(flow.share.sender.is_none());
        // The bytes that it sends next are its own from the first on.
        assert!(flow.share.before.is_some());
        flow.send(1);
        assert!(flow.share.before.is_none());
    }
}

#[tokio::test]
async fn nothing_happens_for_a_lone_flow() {
    let link = link();
    let mut flow = Flow::new(&link);
    flow.send(1);
    assert!(!link.is_shared());
    flow.share.on_quiet();
    assert!(flow.share.sender.is_some(), "flow no longer listed");
}

#[test]
fn newcomers_begin_with_less() {
    let link = link();
    let mut flows: Vec<_> = (0..4).map(|_| Flow::new(&link)).collect();
    for flow in &mut flows {
        flow.send(1);
    }
    let paces: Vec<_> = flows.iter().map(Flow::pace).collect();
    assert_eq!(paces, [FULL, FULL / 2, FULL / 3, FULL / 4]);
}
