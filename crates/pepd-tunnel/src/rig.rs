//! Two ends in one thread for tests: flows over loopback, and between the ends a wire that can be
//! cut.

use std::{
    cell::Cell,
    collections::BTreeMap,
    future::{Future, poll_fn},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    rc::Rc,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use pep_core::{
    budget::MemoryBudget,
    chunks::window,
    config::Peer,
    custody::Bounds,
    key::PublicKey,
    reach::{Forbidden, Place, Reach, Request},
    relay::RelayLimits,
    site::SiteId,
    stats::Stats,
};
use pepd_relay::{
    arena::{Arena, Geometry},
    flow::{FlowContext, FlowInfo, rounds},
    limits::Admission,
};
use pepd_sys::{
    leg::{self, SiteRuntime, testing::site},
    stats::Counters,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{LocalSet, spawn_local, yield_now},
    time::{sleep, timeout},
};
use tunnel::{
    class::Class,
    crypto::public_key,
    ecn::Ecn,
    endpoint::{Carriers, Endpoint, EndpointConfig, Limits, PeerConfig, Remote},
    session::{Outages, Rate, SessionConfig, SkipConfig, Unreached},
};

use super::{
    AcceptedFlow,
    core::{Core, Peers, Shared},
    credit::Pool,
    far::{self, Servers},
    leg::Leg,
    near,
    peers::Statuses,
    register,
    shards::Member,
    table::{Custody, Sizes, Table},
    tcp::{self, Connections},
};

/// Time limit of every wait.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Resolution of the event loop's timers.
const TICK: Duration = Duration::from_millis(1);
pub(super) const RING: u64 = 1 << 18;
pub(super) const INITIAL: u64 = 1 << 14;
/// Maximum of flows that a peer may open.
pub(super) const FLOWS: u32 = 6;
pub(super) const SIZES: Sizes = Sizes {
    first: CREDIT,
    unsent: RING,
    hold: Duration::from_secs(5),
};
/// Initial credit of an end.
const CREDIT: u64 = 2 * RING;
/// Slots for flows of an end.
pub(super) const SLOTS: u32 = 8;

/// Address of each end, as seen by the other.
pub(super) const ADDRESSES: [([u8; 4], u16); 2] = [([127, 0, 0, 1], 1), ([127, 0, 0, 1], 2)];

/// The near and the far end.
pub(super) struct Rig {
    pub(super) near: Shared,
    pub(super) far: Shared,
    wire: Rc<Wire>,
    /// New flows are compressed.
    pub(super) compress: Cell<bool>,
}

/// The wire between the ends.
#[derive(Default)]
struct Wire {
    is_cut: Cell<bool>,
    /// Datagrams lost while the wire was cut.
    lost: Cell<u64>,
}

/// Time that datagrams take in a simulation.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// Time that each datagram from an address takes.
    pub(super) costs: BTreeMap<SocketAddr, Duration>,
    /// Times at which they were handled.
    pub(super) handled: BTreeMap<SocketAddr, Vec<Duration>>,
}

/// Lets a boat and a hub exchange datagrams until the boat has sealed one, which it returns. The
/// boat has that index at the hub; `from` and `at` are their addresses.
pub(super) fn next_data(
    (hub, index): (&Shared, usize),
    boat: &Shared,
    (from, at): (Remote, SocketAddr),
) -> Vec<u8> {
    const DATA: u8 = 5;
    let poll = |end: &Shared| {
        let (core, mut datagram) = (&mut *end.borrow_mut(), Vec::new());
        let now = core.now();
        let (transmit, _) = core.poll_transmit(now, &mut datagram)?;
        Some((transmit.peer.map(|peer| core.peers.index(peer)), datagram))
    };
    let take = |end: &Shared, from: Remote, datagram: &mut [u8]| {
        let core = &mut *end.borrow_mut();
        let now = core.now();
        core.handle_datagram(now, from, None, Ecn::NotEct, datagram);
    };
    for _ in 0..100_000 {
        let sent = poll(boat);
        match sent {
            Some((_, datagram)) if datagram[0] == DATA => return datagram,
            Some((_, mut datagram)) => take(hub, from, &mut datagram),
            None => {}
        }
        if let Some((to, mut datagram)) = poll(hub)
            && to.is_none_or(|to| to == index)
        {
            take(boat, at.into(), &mut datagram);
        }
        for end in [hub, boat] {
            Core::dispatch(end);
            end.borrow_mut().pass_time(Duration::from_millis(10));
        }
    }
    panic!("the boat sends nothing");
}

/// Returns a datagram that is no peer's.
pub(super) fn junk() -> Vec<u8> {
    vec![5; 25]
}

/// Creates the context of an end's flows, with so many slots and bytes for their rings.
pub(super) fn context(slots: u32, budget: u64) -> Arc<FlowContext> {
    context_with(slots, budget, RING, INITIAL)
}

/// Creates the context with the maximum and the initial bytes per direction of a flow.
pub(super) fn context_with(slots: u32, budget: u64, extent: u64, initial: u64) -> Arc<FlowContext> {
    let geometry = Geometry {
        slots,
        extent,
        initial,
    };
    context_over(Arena::new(geometry).unwrap(), budget, extent, initial)
}

/// Creates the context over existing memory.
pub(super) fn context_over(
    arena: Arc<Arena>,
    budget: u64,
    extent: u64,
    initial: u64,
) -> Arc<FlowContext> {
    let counters = Arc::new(Counters::default());
    let slots = arena.layout().slots();
    Arc::new(FlowContext {
        arena,
        budget: Arc::new(MemoryBudget::new(budget)),
        limits: RelayLimits {
            ring_initial: initial,
            ring_max: extent,
            turn_bytes: extent,
        },
        busy_poll: Duration::ZERO,
        admission: Admission::new(slots, Arc::clone(&counters)),
        counters,
        held: None,
        other_marks: None,
        end_lines: Default::default(),
        client_ports: Default::default(),
        unanswered: Arc::default(),
        silence: Default::default(),
        heartbeat: Default::default(),
        outage: pepd_relay::outage::unknown_link(),
        link: None,
        watchers: Arc::default(),
        recorders: Arc::default(),
    })
}

/// Returns the configuration of the other end.
pub(super) fn peer_config(other: u8, address: Option<SocketAddr>) -> PeerConfig {
    PeerConfig {
        public_key: public_key(&[other; 32]),
        psk: [7; 32],
        addresses: address.into_iter().collect(),
        last: None,
        carriers: match address {
            Some(_) => Carriers::Udp,
            None => Carriers::Both,
        },
        counters: tunnel::endpoint::Counters::default(),
        session: SessionConfig {
            initiator: false,
            rate: Rate::Stated(100_000_000),
            return_rate: None,
            rtt: Duration::from_millis(1),
            packet_start: 1200,
            packet_max: 1400,
            overhead: 53,
            outages: Outages::After(Duration::from_secs(1)),
            stream_credit: window(RING),
            session_credit: CREDIT,
            kept_max: 64 << 20,
            streams_max: 2 * SLOTS,
            packets: false,
            unreached: Unreached::default(),
            peer_packets: false,
            peer_rests: false,
            memory: None,
            overhead_max: 1.0,
            skips: SkipConfig::default(),
        },
    }
}

/// Servers on loopback addresses, which count as those of 10.0.0.0/8. 127.1.0.0/16 is this machine,
/// and 127.2.0.0/16 a network of it.
#[derive(Debug)]
struct Loopback;

impl Servers for Loopback {
    fn check(&self, reach: &Reach, request: &Request) -> Result<(), Forbidden> {
        let elsewhere = |address: IpAddr| match address {
            IpAddr::V4(v4) if v4.is_loopback() => {
                let [_, rest @ ..] = v4.octets();
                Ipv4Addr::new(10, rest[0], rest[1], rest[2]).into()
            }
            other => other,
        };
        let destination = request.destination;
        let request = Request {
            client: elsewhere(request.client),
            destination: SocketAddr::new(elsewhere(destination.ip()), destination.port()),
            ..*request
        };
        reach.check(&request, |address| match address {
            IpAddr::V4(v4) if v4.octets()[..2] == [10, 1] => Place::Own,
            IpAddr::V4(v4) if v4.octets()[..2] == [10, 2] => Place::Attached,
            _ => Place::Elsewhere,
        })
    }

    fn connect(
        &self,
        context: &FlowContext,
        ends: &FlowInfo,
        dscp: u8,
        publish: &dyn Fn(io::Result<u64>),
    ) -> io::Result<Box<dyn Leg>> {
        far::connect_by_kernel(context, ends, dscp, publish)
    }
}

/// Returns an end that knows others by their keys, and the address of each or none.
pub(super) fn core(own: u8, others: &[(u8, Option<SocketAddr>)]) -> Shared {
    let mut text = "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n".to_owned();
    for (other, _) in others {
        let key = PublicKey([*other; 32]);
        let section = format!("[peer.p{other}]\npublic_key = \"{key}\"\nlost_after = \"60s\"\n");
        text.push_str(&section);
    }
    let config = pep_core::config::parse(&text).unwrap();
    // Each peer has credit.
    let context = context(SLOTS, others.len().max(16) as u64 * (1 << 20));
    let mut endpoint = Endpoint::new(&EndpointConfig {
        private_key: [own; 32],
        seed: [own; 32],
        limits: Limits::default(),
    });
    let mut peers = Peers::new(&Pool::new(&context.budget));
    for (index, (other, address)) in others.iter().enumerate() {
        let id = endpoint.add_peer(peer_config(*other, *address)).unwrap();
        let table = Table::new(&context, SIZES, FLOWS);
        peers.credits.add(CREDIT, CREDIT, table.memory());
        let reach = Peer::reach(&config.peers, index);
        peers.push(id, (config.peers[index].clone(), reach), table, None);
    }
    let far = far::Sites::new(&site(), Box::new(Loopback));
    let tcp = Connections::new(tcp::Options {
        leg: site().server,
        clamps: Arc::default(),
        from: None,
    });
    let custody = Custody::within(Bounds::NONE, None, &context.counters);
    Core::new(
        context,
        (endpoint, peers, Statuses::new(&config)),
        far,
        tcp,
        custody,
        Member::alone(),
    )
}

impl Rig {
    /// Runs a test in which the near end knows the far end's address.
    pub(super) fn run<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F) {
        Self::run_with(Some(ADDRESSES[1].into()), test);
    }

    /// Runs a test in which the near end knows that address of the far end, or none.
    pub(super) fn run_with<F: Future<Output = ()>>(
        address: Option<SocketAddr>,
        test: impl FnOnce(Self) -> F,
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let rig = Self {
                near: core(1, &[(2, address)]),
                far: core(2, &[(1, None)]),
                wire: Rc::default(),
                compress: Cell::new(false),
            };
            let ends = [Rc::clone(&rig.near), Rc::clone(&rig.far)];
            spawn_local(carry(ends, Rc::clone(&rig.wire)));
            spawn_local(rounds::run());
            let ends = [Rc::clone(&rig.near), Rc::clone(&rig.far)];
            let test = timeout(TIMEOUT, test(rig)).await;
            let stats = ends.each_ref().map(Self::stats);
            assert!(test.is_ok(), "the test makes no progress: {stats:?}");
        });
    }

    /// Makes an end forget its session and call the other at once.
    pub(super) fn forget(end: &Shared, is_near: bool) {
        let (other, there) = if is_near { (2, 1) } else { (1, 0) };
        let config = peer_config(other, Some(ADDRESSES[there].into()));
        end.borrow_mut().replace_peer(0, &config);
    }

    /// Cuts the wire. Returns when `lost` more datagrams were lost.
    pub(super) async fn cut_wire(&self, lost: u64) {
        self.wire.is_cut.set(true);
        let until = self.wire.lost.get() + lost;
        while self.wire.lost.get() < until {
            sleep(TICK).await;
        }
    }

    /// Restores the wire.
    pub(super) fn restore_wire(&self) {
        self.wire.is_cut.set(false);
    }

    pub(super) fn stats(end: &Shared) -> Stats {
        end.borrow().context.counters.snapshot()
    }

    /// Waits until the counters of an end satisfy the condition.
    pub(super) async fn wait(end: &Shared, holds: impl Fn(&Stats) -> bool) {
        while !holds(&Self::stats(end)) {
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until both ends have ended all flows.
    pub(super) async fn wait_idle(&self) {
        for end in [&self.near, &self.far] {
            Self::wait(end, |stats| stats.flows_open == 0).await;
            assert_eq!(end.borrow_mut().table(0).len(), 0);
            let core = end.borrow();
            assert_eq!(core.context.budget.taken(), core.peers.credits.granted());
        }
    }

    /// Connects a client whose flow goes to `destination`.
    pub(super) async fn client(&self, destination: SocketAddr) -> TcpStream {
        let (client, leg) = host().await;
        let context = Arc::clone(&self.near.borrow().context);
        let accepted = AcceptedFlow {
            peer: 0,
            site: SiteId(0),
            class: Class::Normal,
            ends: FlowInfo {
                client: client.local_addr().unwrap(),
                destination,
                site: Arc::new(SiteRuntime {
                    compress: self.compress.get(),
                    ..site()
                }),
                peer: None,
            },
            dscp: 0,
            memory: context.take_memory().unwrap(),
            permit: context.admission.admit(&Arc::default(), None),
        };
        let leg = register(leg.into());
        spawn_local(near::serve(Rc::clone(&self.near), accepted, leg));
        client
    }
}

/// Returns a host and the leg that leads to it.
async fn host() -> (TcpStream, std::net::TcpStream) {
    let listener = listener().await;
    let address = listener.local_addr().unwrap();
    let host = TcpStream::connect(address).await.unwrap();
    let leg = listener.accept().await.unwrap().0.into_std().unwrap();
    leg::set_reset_on_close(std::os::fd::AsFd::as_fd(&leg), true).unwrap();
    (host, leg)
}

/// Returns a server's listener.
pub(super) async fn listener() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

/// Drives both ends as the drivers and the network do.
async fn carry(ends: [Shared; 2], wire: Rc<Wire>) {
    loop {
        while exchange(&ends, &wire) {
            yield_now().await;
        }
        let deadline = |end: &Shared| end.borrow().endpoint.deadline();
        let next = ends.iter().filter_map(|end| {
            let at = deadline(end)?;
            Some(at.saturating_sub(end.borrow().now()))
        });
        // A deadline in the past is checked again soon, because other tasks have to run.
        let next = next.min().unwrap_or(TIMEOUT).max(TICK);
        // On timeout or wakeup there may be something to carry.
        let _ = timeout(next, woken(&ends)).await;
    }
}

/// Carries a datagram from each end. Returns whether there were any.
fn exchange(ends: &[Shared; 2], wire: &Wire) -> bool {
    let mut any = false;
    for (from, to) in [(0, 1), (1, 0)] {
        let mut datagram = Vec::new();
        let sent = {
            let mut sender = ends[from].borrow_mut();
            let now = sender.now();
            sender.poll_transmit(now, &mut datagram)
        };
        Core::dispatch(&ends[from]);
        if sent.is_none() {
            continue;
        }
        any = true;
        if wire.is_cut.get() {
            wire.lost.set(wire.lost.get() + 1);
        } else {
            let address = SocketAddr::from(ADDRESSES[from]).into();
            let mut receiver = ends[to].borrow_mut();
            let now = receiver.now();
            receiver.receive(now, (address, None), Ecn::NotEct, &mut datagram);
        }
        Core::dispatch(&ends[to]);
        let overloaded = ends[to].borrow().is_overloaded();
        if overloaded {
            any |= Core::work_off(&ends[to]);
        }
        check_written_down(ends);
    }
    any
}

/// Checks that bytes dropped as acknowledged by one end are published at the other: after a crash,
/// that end resumes from there.
fn check_written_down(ends: &[Shared; 2]) {
    for (from, to) in [(0, 1), (1, 0)] {
        let given_up = ends[from].borrow_mut().table(0).given_up();
        let mut other = ends[to].borrow_mut();
        for (token, direction, position) in given_up {
            if let Some(tail) = other.table(0).written_down(token, direction) {
                assert!(tail >= position, "{tail} of {position} are published");
            }
        }
    }
}

async fn woken(ends: &[Shared; 2]) {
    let mut asked = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut asked, true) {
            return Poll::Ready(());
        }
        for end in ends {
            end.borrow_mut().driver = Some(cx.waker().clone());
        }
        Poll::Pending
    })
    .await;
}
