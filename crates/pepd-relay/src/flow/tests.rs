//! Flows between plain TCP sockets on loopback, with the real kernel and without interception.

use std::{
    fs::File,
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    thread::{self, JoinHandle},
};

use pep_core::stats::Stats;
use pepd_sys::leg::{self, Family, testing::site};
use socket2::SockRef;
use tokio::sync::watch;

use super::*;
use crate::arena::Geometry;

const PATIENCE: Duration = Duration::from_secs(20);

/// Flow on its own thread, with the two hosts that it connects.
struct Rig {
    client: TcpStream,
    server: TcpStream,
    flow: Running,
}

struct Running {
    context: Arc<FlowContext>,
    thread: JoinHandle<()>,
    stop: watch::Sender<()>,
}

fn context() -> Arc<FlowContext> {
    let counters = Arc::new(Counters::default());
    let geometry = Geometry {
        slots: 2,
        extent: 1 << 17,
        initial: 1 << 14,
    };
    Arc::new(FlowContext {
        arena: Arena::new(geometry).unwrap(),
        budget: Arc::new(MemoryBudget::new(1 << 20)),
        limits: RelayLimits {
            ring_initial: 1 << 14,
            ring_max: 1 << 17,
            turn_bytes: 1 << 16,
        },
        busy_poll: Duration::from_micros(50),
        admission: Admission::new(2, Arc::clone(&counters)),
        counters,
        held: None,
        other_marks: None,
        end_lines: Default::default(),
        client_ports: Default::default(),
        unanswered: Arc::default(),
        silence: Default::default(),
        heartbeat: Default::default(),
        outage: crate::outage::unknown_link(),
        link: None,
        watchers: Arc::default(),
        recorders: Arc::default(),
    })
}

/// More than a host that does not read takes, less than that plus the buffer of its leg.
const TAIL_BYTES: usize = 400_000;

fn wait_until(holds: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "timeout");
        thread::yield_now();
    }
}

/// Returns a host and the leg that leads to it.
fn host() -> (TcpStream, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    for timeout in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        timeout(&host, Some(PATIENCE)).unwrap();
    }
    let (leg, _) = listener.accept().unwrap();
    leg.set_nonblocking(true).unwrap();
    SockRef::from(&leg).set_out_of_band_inline(true).unwrap();
    leg::set_reset_on_close(leg.as_fd(), true).unwrap();
    (host, leg.into())
}

fn ends(site: SiteRuntime) -> FlowInfo {
    FlowInfo {
        client: ([127, 0, 0, 1], 1).into(),
        destination: ([127, 0, 0, 1], 2).into(),
        site: Arc::new(site),
        peer: None,
    }
}

/// Runs a flow until it ends or is stopped.
fn start(site: SiteRuntime, client: OwnedFd, server: ServerLeg) -> Running {
    let context = context();
    let memory = context.take_memory().unwrap();
    start_with(&context, site, memory, client, server)
}

fn start_with(
    context: &Arc<FlowContext>,
    site: SiteRuntime,
    memory: FlowMemory,
    client: OwnedFd,
    server: ServerLeg,
) -> Running {
    let context = Arc::clone(context);
    let stop = watch::Sender::new(());
    let mut stopped = stop.subscribe();
    let of_flow = Arc::clone(&context);
    let thread = thread::spawn(move || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().build().unwrap().block_on(async {
            let flow = serve(of_flow, ends(site), memory, client, server);
            tokio::select! {
                () = flow => {}
                _ = stopped.changed() => {}
            }
        });
    });
    Running {
        context,
        thread,
        stop,
    }
}

impl Running {
    /// Waits for the end of the flow.
    fn end(self) -> Stats {
        self.thread.join().unwrap();
        assert_eq!(self.context.budget.taken(), 0, "memory budget not released");
        self.context.counters.snapshot()
    }
}

impl Rig {
    fn new() -> Self {
        Self::with(site())
    }

    fn with(site: SiteRuntime) -> Self {
        let (client, client_leg) = host();
        let (server, server_leg) = host();
        let flow = start(site, client_leg, ServerLeg::Connected(server_leg));
        Self {
            client,
            server,
            flow,
        }
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 % 253) as u8).collect()
}

/// Writes from another thread, then closes that direction.
fn send_all(stream: &TcpStream, bytes: Vec<u8>) -> JoinHandle<()> {
    let mut stream = stream.try_clone().unwrap();
    thread::spawn(move || {
        stream.write_all(&bytes).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
    })
}

fn read_all(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes
}

fn reset(stream: TcpStream) {
    leg::set_reset_on_close(stream.as_fd(), true).unwrap();
    drop(stream);
}

fn is_reset(stream: &mut TcpStream) -> bool {
    let mut rest = Vec::new();
    stream
        .read_to_end(&mut rest)
        .is_err_and(|err| err.kind() == ErrorKind::ConnectionReset)
}

#[test]
fn both_directions_at_once_are_complete() {
    let mut rig = Rig::new();
    let (up, down) = (pattern(5_000_000), pattern(3_000_001));
    let senders = [
        send_all(&rig.client, up.clone()),
        send_all(&rig.server, down.clone()),
    ];
    let mut server = rig.server.try_clone().unwrap();
    let reader = thread::spawn(move || read_all(&mut server));
    assert!(read_all(&mut rig.client) == down);
    assert!(reader.join().unwrap() == up);
    for sender in senders {
        sender.join().unwrap();
    }
    let stats = rig.flow.end();
    assert_eq!((stats.up_bytes, stats.down_bytes), (5_000_000, 3_000_001));
    assert_eq!((stats.ended_closed, stats.flows_open), (1, 0));
}

/// Both FINs are on the server leg while bytes of it still wait: no reset.
#[test]
fn a_download_after_a_half_close_survives_a_slow_reader() {
    let mut rig = Rig::new();
    let down = pattern(12_000_000);
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut rig.server), b"");
    let sender = send_all(&rig.server, down.clone());
    let mut received = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    // Slower than the server sends, so that the rings stay full.
    while received.len() < down.len() {
        let count = rig.client.read(&mut chunk).unwrap();
        received.extend_from_slice(&chunk[..count]);
        thread::yield_now();
    }
    assert!(received == down);
    assert_eq!(rig.client.read(&mut chunk).unwrap(), 0);
    sender.join().unwrap();
    assert_eq!(rig.flow.end().ended_closed, 1);
}

/// Kept open until the last byte is acknowledged, which never happens here.
#[test]
fn what_a_ring_grew_by_is_given_back_when_the_flow_closes() {
    let mut rig = Rig::new();
    let context = Arc::clone(&rig.flow.context);
    let initial = 2 * context.limits.ring_initial;
    rig.server.write_all(&pattern(TAIL_BYTES)).unwrap();
    wait_until(|| context.budget.taken() > initial);
    rig.server.shutdown(Shutdown::Write).unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut rig.server), b"");
    wait_until(|| context.budget.taken() == initial);
    assert_eq!(context.counters.snapshot().flows_open, 1);
    assert!(read_all(&mut rig.client) == pattern(TAIL_BYTES));
    assert_eq!(rig.flow.end().ended_closed, 1);
}

#[test]
fn a_half_close_leaves_the_other_half_open() {
    let mut rig = Rig::new();
    rig.client.write_all(b"question").unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut rig.server), b"question");
    let answer = pattern(2_000_000);
    let sender = send_all(&rig.server, answer.clone());
    assert!(read_all(&mut rig.client) == answer);
    sender.join().unwrap();
    assert_eq!(rig.flow.end().ended_closed, 1);
}

#[test]
fn a_server_reset_reaches_the_client_after_what_came_before() {
    let mut rig = Rig::new();
    rig.server.write_all(&pattern(100_000)).unwrap();
    let mut received = vec![0; 100_000];
    rig.client.read_exact(&mut received[..1]).unwrap();
    reset(rig.server);
    rig.client.read_exact(&mut received[1..]).unwrap();
    assert!(received == pattern(100_000));
    assert!(is_reset(&mut rig.client));
    assert_eq!(rig.flow.end().ended_server_reset, 1);
}

#[test]
fn a_client_reset_reaches_the_server() {
    let mut rig = Rig::new();
    rig.client.write_all(b"x").unwrap();
    rig.server.read_exact(&mut [0]).unwrap();
    reset(rig.client);
    assert!(is_reset(&mut rig.server));
    assert_eq!(rig.flow.end().ended_client_reset, 1);
}

/// No bytes are left to read from the client or to send to it.
#[test]
fn a_client_that_resets_after_its_fin_is_noticed() {
    let mut rig = Rig::new();
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut rig.server), b"");
    reset(rig.client);
    assert!(rig.server.write_all(&pattern(10_000_000)).is_err());
    assert_eq!(rig.flow.end().ended_client_reset, 1);
}

#[test]
fn a_reset_reaches_a_sender_that_is_stalled() {
    let mut rig = Rig::new();
    rig.client.set_nonblocking(true).unwrap();
    let chunk = pattern(1 << 16);
    // Until every buffer on the path is full, and stays full while the server reads nothing.
    let mut full_since = Instant::now();
    while full_since.elapsed() < Duration::from_millis(200) {
        match rig.client.write(&chunk) {
            Ok(written) if written > 0 => full_since = Instant::now(),
            Ok(_) => panic!("closed"),
            Err(err) => assert_eq!(err.kind(), ErrorKind::WouldBlock),
        }
    }
    reset(rig.server);
    rig.client.set_nonblocking(false).unwrap();
    assert!(rig.client.write_all(&pattern(50_000_000)).is_err());
    let stats = rig.flow.end();
    assert_eq!(stats.ended_server_reset, 1);
    assert!(stats.up_undelivered_bytes > 0);
}

#[test]
fn urgent_bytes_keep_their_place() {
    let mut rig = Rig::new();
    rig.client.write_all(b"ab").unwrap();
    SockRef::from(&rig.client).send_out_of_band(b"!").unwrap();
    rig.client.write_all(b"cd").unwrap();
    rig.client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut rig.server), b"ab!cd");
    drop(rig.server);
    assert_eq!(rig.flow.end().ended_closed, 1);
}

#[test]
fn a_refusal_resets_the_client_at_once() {
    let (mut client, client_leg) = host();
    let nobody = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let leg = leg::server_leg(&site(), nobody, nobody, leg::FromSyn::default()).unwrap();
    let flow = start(site(), client_leg, ServerLeg::Connecting(leg));
    assert!(is_reset(&mut client));
    assert_eq!(flow.end().ended_refused, 1);
}

#[test]
fn a_client_reset_ends_the_connecting() {
    let (client, client_leg) = host();
    // The backlog of one is full: the kernel drops SYNs.
    let full = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap().as_socket().unwrap();
    let _waiting = TcpStream::connect(address).unwrap();
    let leg = leg::ReservedLeg::new(&site(), Family::V4).unwrap();
    let leg = leg
        .connect(&site(), address, address, leg::FromSyn::default())
        .unwrap();
    let flow = start(site(), client_leg, ServerLeg::Connecting(leg));
    reset(client);
    assert_eq!(flow.end().ended_client_reset, 1);
}

#[test]
fn an_idle_flow_expires() {
    let mut site = site();
    site.timeouts.idle = Some(Duration::from_secs(1));
    let mut rig = Rig::with(site);
    assert!(is_reset(&mut rig.client) && is_reset(&mut rig.server));
    assert_eq!(rig.flow.end().ended_idle_timeout, 1);
}

#[test]
fn whoever_holds_the_memory_knows_which_sockets_a_flow_has_and_how_far_it_is() {
    let context = context();
    let (mut client, client_leg) = host();
    let (mut server, server_leg) = host();
    let expected = [&client_leg, &server_leg].map(|leg| SockRef::from(leg).cookie().unwrap());
    let memory = context.take_memory().unwrap();
    let slot = memory.slot.index();
    memory.publish_accepted(&context, &ends(site()), client_leg.as_fd());
    publish_leg(&memory.slot, Side::Server, server_leg.as_fd());
    let record = memory.slot.record().unwrap();
    assert_eq!(
        (record.state, record.cookies),
        (SlotState::Accepted, expected)
    );
    assert_eq!(record.identity.client, ends(site()).client);
    let server_leg = ServerLeg::Connected(server_leg);
    let flow = start_with(&context, site(), memory, client_leg, server_leg);
    client.write_all(b"abc").unwrap();
    server.read_exact(&mut [0; 3]).unwrap();
    server.write_all(b"defgh").unwrap();
    client.read_exact(&mut [0; 5]).unwrap();
    let path = format!("/proc/self/fd/{}", context.arena.fd().as_raw_fd());
    let other = Arena::open(
        File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap()
            .into(),
        0,
    );
    let other = other.unwrap();
    let record = || other.record(slot);
    wait_until(|| {
        record().is_some_and(|record| record.directions.map(|direction| direction.head) == [3, 5])
    });
    assert_eq!(record().unwrap().state, SlotState::Relaying);
    reset(client);
    flow.end();
    assert_eq!(record(), None);
}

#[test]
fn a_flow_that_is_stopped_is_reset_and_counted() {
    let mut rig = Rig::new();
    rig.client.write_all(b"x").unwrap();
    rig.server.read_exact(&mut [0]).unwrap();
    rig.flow.stop.send(()).unwrap();
    assert!(is_reset(&mut rig.client) && is_reset(&mut rig.server));
    let stats = rig.flow.end();
    assert_eq!((stats.ended_drained, stats.up_bytes), (1, 1));
}
