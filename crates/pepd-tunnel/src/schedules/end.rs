//! A machine with a pepd. Its kernel's sockets, its arena and its disk outlive the process.

use std::{
    net::SocketAddr,
    os::fd::OwnedFd,
    rc::Rc,
    sync::{Arc, atomic::Ordering::Relaxed},
    task::Context,
    time::Duration,
};

use pep_core::{
    custody::{Bounds, Place},
    reach::Reach,
    relay::Side,
    site::{KeepWhen, SiteId},
    stats::Stats,
};
use pepd_relay::{
    arena::{Arena, Geometry},
    flow::FlowInfo,
    survive::recovery::Recovery,
};
use pepd_sys::{
    crash_point::CrashPoint,
    leg::{SiteRuntime, testing::site},
};
use tokio::task::LocalSet;
use trace::Taken;
use tunnel::{
    class::Class,
    ecn::Ecn,
    endpoint::{Endpoint, EndpointConfig, Limits, PeerId},
    session::{LinkHint, Rate, SessionConfig},
};

use super::{
    kernel::{Connection, Kernel, Reached, Shared as Socket},
    plan::{Broken, Plan},
};
use crate::{
    AcceptedFlow, Inherited,
    core::{BEGINNING, Core, Peers, Shared},
    credit::Pool,
    custody::{
        Left,
        tests::{Faulty, ManualDisk},
    },
    far, near,
    peers::Statuses,
    recover,
    rig::{ADDRESSES, context_over, peer_config},
    shards::Member,
    table::{Custody, Key, Sizes, Table},
    tcp::{self, Connections},
};

/// Extent of each direction of a flow.
pub(super) const EXTENT: u64 = 1 << 19;
/// Initial bytes of each direction.
pub(super) const INITIAL: u64 = 1 << 14;
const SLOTS: u32 = 8;
/// Initial credit of an end.
const CREDIT: u64 = 1 << 18;
const HOUR: Duration = Duration::from_secs(3600);

/// Returns the site that serves the schedules' flows.
pub(super) fn policy(plan: &Plan) -> SiteRuntime {
    let mut site = SiteRuntime {
        hold: plan.hold,
        keep: KeepWhen::Outage,
        compress: plan.compress,
        ..site()
    };
    // Timeouts are not under test.
    (site.timeouts.connect, site.timeouts.orphan) = (8 * HOUR, 8 * HOUR);
    site.timeouts.idle = Some(24 * HOUR);
    site
}

/// A running pepd.
pub(super) struct Process {
    pub(super) core: Shared,
    local: LocalSet,
    pub(super) crash_point: Arc<CrashPoint>,
    disk: Option<ManualDisk<Key>>,
    custody: Rc<Custody>,
    site: Arc<SiteRuntime>,
    peer: PeerId,
    /// Start of its clock, in the time of the simulation.
    began: Duration,
    next_second: Duration,
}

/// A machine.
pub(super) struct Machine {
    index: usize,
    pub(super) kernel: Kernel,
    memory: Option<OwnedFd>,
    pub(super) disk: Faulty,
    pub(super) process: Option<Process>,
    /// Counters of ended processes.
    pub(super) before: Vec<Stats>,
    /// Maximum of its budget taken, and of bytes held in memory and on disk.
    pub(super) peaks: [u64; 3],
}

impl Machine {
    pub(super) fn new(index: usize) -> Self {
        Self {
            index,
            kernel: Kernel::default(),
            memory: None,
            disk: Faulty::default(),
            process: None,
            before: Vec::new(),
            peaks: [0; 3],
        }
    }

    /// Starts a pepd with the existing state.
    pub(super) fn start(&mut self, plan: &Plan, now: Duration) {
        let crash_point = Arc::new(CrashPoint::default());
        let (context, is_first) = match self.memory.take() {
            None => {
                let geometry = Geometry {
                    slots: SLOTS,
                    extent: plan.extent,
                    initial: INITIAL,
                };
                (
                    context_over(
                        Arena::new(geometry).unwrap(),
                        plan.memory,
                        plan.extent,
                        INITIAL,
                    ),
                    true,
                )
            }
            Some(fd) => {
                let arena = Arena::open(fd, INITIAL).unwrap();
                (
                    context_over(arena, plan.memory, plan.extent, INITIAL),
                    false,
                )
            }
        };
        context.arena.end_with(&crash_point);
        if plan.broken == Some(Broken::Stores) {
            crash_point.lose(50);
        }
        let (own, other) = [(1, 2), (2, 1)][self.index];
        let generation = self.before.len() as u64;
        let mut seed = [own; 32];
        seed[..8].copy_from_slice(&plan.seed.to_be_bytes());
        seed[8..16].copy_from_slice(&generation.to_be_bytes());
        let mut endpoint = Endpoint::new(&EndpointConfig {
            private_key: [own; 32],
            seed,
            limits: Limits::default(),
        });
        let calls = self.index == 0 || plan.far_calls;
        let address = calls.then(|| SocketAddr::from(ADDRESSES[1 - self.index]));
        let mut config = peer_config(other, address);
        config.session = session(&config.session, plan);
        let id = endpoint.add_peer(config).unwrap();
        let text = "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n[peer.other]\n\
                    public_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n";
        let parsed = pep_core::config::parse(text).unwrap();
        let bounds = Bounds {
            memory: plan.custody,
            disk: plan.disk.unwrap_or(0),
        };
        let opened = plan
            .disk
            .map(|most| ManualDisk::with_room(&self.disk, most, generation as u32));
        let (spill, disk, left) = match opened {
            Some((spill, disk, left)) => (Some(spill), Some(disk), left),
            None => (None, None, Left::default()),
        };
        let custody = Custody::within(bounds, spill, &context.counters);
        let mut peers = Peers::new(&Pool::new(&context.budget));
        let sizes = Sizes {
            first: CREDIT,
            unsent: EXTENT / 2,
            hold: plan.hold,
        };
        let mut table = Table::new(&context, sizes, SLOTS);
        let servers = Reached {
            kernel: self.kernel.clone(),
            crash_point: Arc::clone(&crash_point),
            buffers: plan.buffers,
        };
        let site = policy(plan);
        let far = far::Sites::new(&site, Box::new(servers));
        table.keep_in(&custody, 0, far.policy());
        table.belong_to(&parsed.peers[0].name);
        peers.credits.add(CREDIT, CREDIT, table.memory());
        let peer = (parsed.peers[0].clone(), Reach::default());
        peers.push(id, peer, table, None);
        let tcp = Connections::new(tcp::Options {
            leg: site.server.clone(),
            clamps: Arc::default(),
            from: None,
        });
        let statuses = Statuses::new(&parsed);
        let kept = Rc::clone(&custody);
        let core = Core::new(
            context,
            (endpoint, peers, statuses),
            far,
            tcp,
            kept,
            Member::alone(),
        );
        let process = Process {
            core,
            local: LocalSet::new(),
            crash_point,
            disk,
            custody,
            site: Arc::new(site),
            peer: id,
            began: now,
            next_second: now + Duration::from_secs(1),
        };
        if !is_first {
            self.take_over(&process, left, plan.broken);
        }
        self.process = Some(process);
    }

    /// Recovers the flows of the previous process.
    fn take_over(&self, process: &Process, left: Left, broken: Option<Broken>) {
        let _guard = process.local.enter();
        let arena = Arc::clone(&process.core.borrow().context.arena);
        let kept = self.kernel.kept(&process.crash_point);
        let wrong = u64::from(broken == Some(Broken::Counters));
        let counted = |leg: &Connection, _, fin_published| {
            let mut counters = leg.counters(fin_published);
            counters.read += wrong;
            Ok(counters)
        };
        let recovery = Recovery::sort(&arena, kept, counted);
        assert_eq!(recovery.lost, 0, "a flow's record is invalid");
        let inherited = Inherited {
            survivors: recovery.survivors,
            sites: vec![Arc::clone(&process.site)],
        };
        recover::flows(&process.core, (inherited, left), |leg: Connection| {
            Ok(Box::new(leg))
        });
        let mut accepted = recovery.accepted;
        accepted.sort_by_key(|leg| leg.socket().lock().cookie);
        for leg in accepted {
            let is_new = {
                let socket = leg.socket().lock();
                socket.side == Side::Client && socket.read + socket.written == 0
            };
            if is_new {
                process.serve(leg);
            }
        }
    }

    /// Ends the process.
    pub(super) fn end(&mut self) {
        let Some(mut process) = self.process.take() else {
            return;
        };
        process.crash_point.arm(0);
        let context = Arc::clone(&process.core.borrow().context);
        self.memory = Some(context.arena.fd().try_clone_to_owned().unwrap());
        self.before.push(context.counters.snapshot());
        // Pending requests are not performed.
        if let Some(disk) = process.disk.take() {
            disk.crash();
        }
        drop(process);
    }

    /// Makes the disk fail in one respect, or work again.
    pub(super) fn break_disk(&mut self, what: usize, fails: bool) {
        let faults = &self.disk.0;
        let all = [&faults.create, &faults.write, &faults.sync, &faults.read];
        all[what].store(fails, Relaxed);
    }

    /// Ends all faults.
    pub(super) fn be_calm(&mut self) {
        (0..4).for_each(|what| self.break_disk(what, false));
    }

    /// Returns the sum of a counter over all processes.
    pub(super) fn count(&self, of: impl Fn(&Stats) -> u64) -> u64 {
        let now = self.process.as_ref().map(Process::stats);
        self.before.iter().chain(&now).map(of).sum()
    }

    /// Returns what is left of any flow; `None` if nothing is.
    pub(super) fn leftovers(&self) -> Option<String> {
        let process = self.process.as_ref()?;
        let mut core = process.core.borrow_mut();
        let flows = core.table(0).len();
        let taken = core.table(0).taken();
        let budget = core.context.budget.taken() - core.peers.credits.granted();
        let occupied = core.context.arena.occupied().len();
        let held = Place::ALL.map(|place| process.custody.held(place));
        let disk = self.disk.0.bytes();
        let open = core.context.counters.snapshot().flows_open;
        let nothing = flows as u64 + taken + budget + open + held[0] + held[1] + disk == 0;
        (!nothing || occupied > 0).then(|| {
            format!(
                "{flows} flows ({open} open, {occupied} published), {taken} bytes taken, {budget} of the budget, \
                 {held:?} held, {disk} on disk"
            )
        })
    }

    /// Records the maximum of held bytes.
    pub(super) fn note(&mut self) {
        let Some(process) = &self.process else { return };
        let budget = process.core.borrow().context.budget.taken();
        let [memory, disk] = Place::ALL.map(|place| process.custody.held(place));
        let on_disk = self.disk.0.bytes().max(disk);
        for (peak, now) in self.peaks.iter_mut().zip([budget, memory, on_disk]) {
            *peak = (*peak).max(now);
        }
    }
}

fn session(base: &SessionConfig, plan: &Plan) -> SessionConfig {
    SessionConfig {
        rate: Rate::Stated(plan.rate),
        rtt: 2 * plan.delay,
        stream_credit: pep_core::chunks::window(plan.extent),
        session_credit: CREDIT,
        streams_max: 2 * SLOTS,
        ..base.clone()
    }
}

impl Process {
    /// Passes a report of the link's state.
    pub(super) fn hint(&self, hint: LinkHint) {
        self.core.borrow_mut().hint(hint);
    }

    /// Returns the counters.
    pub(super) fn stats(&self) -> Stats {
        self.core.borrow().context.counters.snapshot()
    }

    /// Converts the time of the simulation to the process's own.
    fn clock(&self, now: Duration) -> Duration {
        BEGINNING + (now - self.began)
    }

    /// Returns the time of the next timer.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let deadline = self.core.borrow().endpoint.deadline();
        let own = deadline.map(|at| self.began + at.saturating_sub(BEGINNING));
        own.into_iter().chain([self.next_second]).min()
    }

    /// Runs its tasks.
    pub(super) fn run(&mut self, cx: &mut Context<'_>, now: Duration) {
        let guard = self.local.enter();
        self.core.borrow_mut().driver = Some(cx.waker().clone());
        if now >= self.next_second {
            self.next_second = now + Duration::from_secs(1);
            self.core.borrow_mut().tick();
        }
        Core::dispatch(&self.core);
        drop(guard);
        let _ = std::pin::Pin::new(&mut self.local).poll(cx);
    }

    /// Takes the trace of its sessions, and the reading of their clock at the start of the
    /// simulation.
    pub(super) fn take_trace(&self) -> (Taken, Duration) {
        let trace = self
            .core
            .borrow_mut()
            .endpoint
            .trace(self.peer)
            .map(|trace| {
                trace.begin(usize::MAX);
                trace.take()
            });
        (
            trace.unwrap_or_default(),
            BEGINNING.saturating_sub(self.began),
        )
    }

    /// Handles a datagram.
    pub(super) fn handle(&mut self, now: Duration, from: usize, datagram: &mut [u8]) {
        let _guard = self.local.enter();
        let now = self.clock(now);
        let from = SocketAddr::from(ADDRESSES[from]).into();
        let mut core = self.core.borrow_mut();
        core.handle_datagram(now, from, None, Ecn::NotEct, datagram);
    }

    /// Returns the next datagram to send.
    pub(super) fn poll_transmit(&mut self, now: Duration, into: &mut Vec<u8>) -> bool {
        let _guard = self.local.enter();
        let now = self.clock(now);
        let sent = self.core.borrow_mut().poll_transmit(now, into).is_some();
        Core::dispatch(&self.core);
        sent && !self.crash_point.has_fired()
    }

    /// Performs pending disk requests. Returns whether there were any.
    pub(super) fn work(&mut self) -> bool {
        let Some(disk) = &mut self.disk else {
            return false;
        };
        if self.crash_point.has_fired() {
            return false;
        }
        let answers = disk.work();
        let any = !answers.is_empty();
        for answered in answers {
            self.core.borrow_mut().on_disk_answered(answered);
        }
        any
    }

    /// Returns whether disk requests are pending.
    pub(super) fn waits_for_disk(&self) -> bool {
        self.custody.waits_for_disk()
    }

    /// Serves an accepted client.
    pub(super) fn serve(&self, client: Connection) {
        let flow = client.socket().lock().flow as u16;
        let context = Arc::clone(&self.core.borrow().context);
        // Without a free slot, the client waits in the listener's queue.
        let memory = context.take_memory().expect("a slot and memory");
        let site = Arc::clone(&self.site);
        let accepted = AcceptedFlow {
            peer: 0,
            site: SiteId(0),
            class: Class::Normal,
            ends: FlowInfo {
                client: ([10, 0, 0, 1], flow + 1).into(),
                destination: ([10, 0, 0, 2], flow + 1).into(),
                site,
                peer: None,
            },
            dscp: 0,
            memory,
            permit: context.admission.admit(&self.site.site_counters, None),
        };
        let leg = Ok(Box::new(client) as Box<_>);
        let served = near::serve(Rc::clone(&self.core), accepted, leg);
        self.local.spawn_local(served);
    }

    /// Returns whether there is memory for one more flow.
    pub(super) fn has_room(&self) -> bool {
        let core = self.core.borrow();
        let occupied = core.context.arena.occupied().len();
        core.context.next_flow_fits() && occupied + 1 < SLOTS as usize
    }

    /// Accepts a client, if the process still runs.
    pub(super) fn accept(&self, socket: &Socket) {
        self.serve(Connection::new(socket, &self.crash_point));
    }
}
