//! Two machines, a link, and hosts, in virtual time.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use pep_core::relay::Side;
use splitmix::SplitMix64;
use tokio::time::{Instant, sleep_until};
use tunnel::session::LinkHint;
use winkemu_link::{Direction, Engine, LinkOptions};

use super::{
    checks,
    end::{Machine, Process},
    hosts::Host,
    kernel::Shared as Socket,
    plan::{Crash, Fault, Plan},
    recording::Recording,
};

/// Resolution of the event loop's timers.
const TICK: Duration = Duration::from_millis(1);
/// Maximum of turns within one instant: more are a livelock.
const TURNS: u32 = 20_000;

/// Result of a schedule.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Summary {
    pub(super) flows: u64,
    /// Flows that both hosts have completely.
    pub(super) whole: u64,
    pub(super) crashes: u64,
    pub(super) resumed: u64,
    pub(super) recovered: u64,
    pub(super) repaired: u64,
    pub(super) spilled: u64,
    /// Flows lost at an end: expired, or unreadable.
    pub(super) expired: u64,
    pub(super) damaged: u64,
    /// Bytes before and after compression.
    pub(super) packed: [u64; 2],
    pub(super) datagrams: u64,
    /// Maximum of an end's budget taken, and of bytes held in memory and on disk.
    pub(super) peaks: [u64; 3],
    /// Time at which the last byte was taken from a host, and at which everything was over.
    pub(super) taken: Duration,
    pub(super) took: Duration,
}

impl Summary {
    /// Adds the result of another schedule.
    pub(super) fn add(&mut self, other: &Self) {
        self.flows += other.flows;
        self.whole += other.whole;
        self.crashes += other.crashes;
        self.resumed += other.resumed;
        self.recovered += other.recovered;
        self.repaired += other.repaired;
        self.spilled += other.spilled;
        self.expired += other.expired;
        self.damaged += other.damaged;
        for (sum, more) in self.packed.iter_mut().zip(other.packed) {
            *sum += more;
        }
        self.datagrams += other.datagrams;
        self.taken = self.taken.max(other.taken);
        self.took += other.took;
        for (most, peak) in self.peaks.iter_mut().zip(other.peaks) {
            *most = (*most).max(peak);
        }
    }
}

/// State of a flow's hosts.
#[derive(Debug, Default)]
pub(super) struct FlowState {
    /// Hosts by side; the last server.
    pub(super) hosts: [Option<usize>; 2],
    /// A client that has not been accepted.
    pub(super) waiting: Option<Socket>,
    pub(super) servers: usize,
}

/// The whole simulation.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) machines: [Machine; 2],
    link: Engine,
    pub(super) hosts: Vec<Host>,
    pub(super) flows: Vec<FlowState>,
    /// Connections that servers answer, with the time.
    answers: Vec<(Duration, Socket)>,
    begun: usize,
    crashes: Vec<Crash>,
    faults: Vec<Fault>,
    /// Time of the next start of pepd on a machine.
    restarts: [Option<Duration>; 2],
    downtime: [Duration; 2],
    disk_at: [Duration; 2],
    draw: SplitMix64,
    now: Duration,
    turns: u32,
    /// An outage is in progress.
    out: bool,
    summary: Summary,
    pub(super) trace: bool,
    recording: Option<Recording>,
}

impl World {
    fn new(plan: Plan, trace: bool) -> Self {
        let link = format!(
            "rate={},delay={}us,loss={},queue={}",
            plan.rate,
            plan.delay.as_micros(),
            plan.loss,
            plan.queue,
        );
        let link: LinkOptions = link.parse().expect("a link");
        let link = link.resolve_without_files().expect("a link");
        let reversed = |mut all: Vec<_>| {
            all.reverse();
            all
        };
        let machines = [0, 1].map(Machine::new);
        let kernels = machines.iter().map(|machine| &machine.kernel);
        kernels.for_each(|kernel| kernel.set_text(plan.text));
        Self {
            machines,
            link: Engine::new(&link, plan.seed),
            hosts: Vec::new(),
            flows: plan.flows.iter().map(|_| FlowState::default()).collect(),
            answers: Vec::new(),
            begun: 0,
            crashes: reversed(plan.crashes.clone()),
            faults: plan.faults.iter().rev().copied().collect(),
            restarts: [Some(Duration::ZERO); 2],
            downtime: [Duration::ZERO; 2],
            disk_at: [Duration::ZERO; 2],
            draw: SplitMix64::new(!plan.seed),
            now: Duration::ZERO,
            turns: 0,
            out: false,
            summary: Summary::default(),
            plan,
            trace,
            recording: None,
        }
    }

    /// Runs a schedule to its end.
    ///
    /// # Panics
    /// If an invariant is violated.
    pub(super) fn run(plan: Plan, trace: bool) -> Summary {
        Self::run_recorded(plan, trace, None)
    }

    /// Runs it and records both ends' traces.
    pub(super) fn run_recorded(
        mut plan: Plan,
        trace: bool,
        recording: Option<Recording>,
    ) -> Summary {
        plan.flows.sort_by_key(|flow| flow.begins);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let start = Instant::now();
            let mut world = Self::new(plan, trace);
            world.recording = recording;
            let mut timer = pin!(sleep_until(start));
            poll_fn(|cx| {
                let now = start.elapsed();
                world.turns = if now > world.now { 0 } else { world.turns + 1 };
                world.now = now;
                if world.turn(cx) {
                    cx.waker().wake_by_ref();
                } else if world.is_over() {
                    return Poll::Ready(());
                } else {
                    let next = world.next().max(now + TICK);
                    timer.as_mut().reset(start + next);
                    if timer.as_mut().poll(cx).is_ready() {
                        cx.waker().wake_by_ref();
                    }
                }
                Poll::Pending
            })
            .await;
            world.finish()
        })
    }

    fn finish(mut self) -> Summary {
        checks::at_the_end(&self);
        let both = |of: &dyn Fn(&pep_core::stats::Stats) -> u64| {
            self.machines.iter().map(|machine| machine.count(of)).sum()
        };
        self.summary.resumed = both(&|stats| stats.tunnel_flows_resumed);
        self.summary.recovered = both(&|stats| stats.flows_recovered);
        self.summary.repaired = both(&|stats| stats.bytes_corrected);
        self.summary.spilled = both(&|stats| stats.custody_spilled_bytes);
        self.summary.expired = both(&|stats| stats.ended_expired);
        self.summary.damaged = both(&|stats| stats.custody_flows_damaged);
        self.summary.packed = [
            both(&|stats| stats.tunnel_uncompressed_bytes),
            both(&|stats| stats.tunnel_compressed_bytes),
        ];
        self.summary.flows = self.flows.len() as u64;
        self.summary.whole = checks::whole(&self);
        let taken = self.hosts.iter().filter_map(|host| host.given);
        self.summary.taken = taken.max().unwrap_or_default();
        self.summary.took = self.now;
        for machine in &self.machines {
            for (most, peak) in self.summary.peaks.iter_mut().zip(machine.peaks) {
                *most = (*most).max(peak);
            }
        }
        self.summary
    }

    pub(super) fn now(&self) -> Duration {
        self.now
    }

    fn trace(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>12.6} {}", self.now.as_secs_f64(), what());
        }
    }

    /// Returns whether the schedule is over and nothing is left.
    fn is_over(&self) -> bool {
        let is_late = self.now > self.plan.deadline();
        let hosts = self.hosts.iter().all(Host::is_over) && self.answers.is_empty();
        let begun =
            self.begun == self.flows.len() && self.flows.iter().all(|flow| flow.waiting.is_none());
        let calm = self.now >= self.plan.calm();
        let leftovers = || {
            self.machines
                .iter()
                .any(|machine| machine.leftovers().is_some())
        };
        let runs = self
            .machines
            .iter()
            .all(|machine| machine.process.is_some());
        is_late || hosts && begun && calm && runs && !leftovers()
    }

    /// Returns the time of the next event.
    fn next(&self) -> Duration {
        let link = self.link.poll_timeout().map(Duration::from_nanos);
        let processes = self
            .machines
            .iter()
            .filter_map(|machine| machine.process.as_ref());
        let processes = processes.filter_map(Process::deadline);
        let hosts = self.hosts.iter().filter_map(Host::due);
        let answers = self.answers.iter().map(|(at, _)| *at);
        let flows = self.plan.flows.get(self.begun).map(|flow| flow.begins);
        let crashes = self.crashes.last().map(|crash| crash.at);
        let faults = self.faults.last().map(|fault| fault.at);
        let disks = (0..2).filter(|end| {
            let process = self.machines[*end].process.as_ref();
            process.is_some_and(Process::waits_for_disk)
        });
        let disks = disks.map(|end| self.disk_at[end]);
        let outages = self.plan.outages.iter().flat_map(|(from, to)| [*from, *to]);
        let outages = outages.filter(|at| *at > self.now);
        let restarts = self.restarts.iter().copied().flatten();
        let single = [link, flows, crashes, faults].into_iter().flatten();
        let all = single
            .chain(processes)
            .chain(hosts)
            .chain(answers)
            .chain(restarts)
            .chain(outages)
            .chain(disks);
        all.min().unwrap_or(self.now + Duration::from_secs(1))
    }

    /// Handles all events of this instant. Returns whether there may be more.
    fn turn(&mut self, cx: &mut Context<'_>) -> bool {
        assert!(self.turns < TURNS, "no progress at {:?}", self.now);
        self.fail();
        self.log_outages();
        self.begin_flows();
        let mut moved = self.hosts_turn();
        self.answer();
        for end in 0..2 {
            if let Some(process) = &mut self.machines[end].process {
                process.run(cx, self.now);
            }
            moved |= self.disk(end);
            self.on_process_end(end);
        }
        moved |= self.deliver();
        for end in 0..2 {
            moved |= self.send(end);
            self.on_process_end(end);
            self.machines[end].note();
        }
        self.call();
        self.record();
        checks::always(self);
        moved
    }

    fn record(&self) {
        if let Some(recording) = &self.recording {
            for (end, machine) in self.machines.iter().enumerate() {
                if let Some(process) = &machine.process {
                    recording.take(end, process);
                }
            }
        }
    }

    /// Applies the schedule's faults of this instant.
    fn fail(&mut self) {
        for end in 0..2 {
            if self.restarts[end].is_some_and(|at| at <= self.now) {
                self.restarts[end] = None;
                self.machines[end].start(&self.plan, self.now);
                self.trace(|| format!("{end}: a pepd starts"));
            }
        }
        while let Some(crash) = self.crashes.pop_if(|crash| crash.at <= self.now) {
            if let Some(process) = &self.machines[crash.end].process {
                process.crash_point.arm(crash.steps);
                self.downtime[crash.end] = crash.downtime;
            }
        }
        while let Some(fault) = self.faults.pop_if(|fault| fault.at <= self.now) {
            self.machines[fault.end].break_disk(fault.what, fault.fails);
        }
        if self.now >= self.plan.calm() {
            for machine in &mut self.machines {
                machine.be_calm();
            }
        }
    }

    /// Handles the end of an end's process.
    fn on_process_end(&mut self, end: usize) {
        let fired = |process: &Process| process.crash_point.has_fired();
        if self.machines[end].process.as_ref().is_some_and(fired) {
            self.machines[end].end();
            self.restarts[end] = Some(self.now + self.downtime[end]);
            self.summary.crashes += 1;
            self.trace(|| format!("{end}: its pepd has ended"));
        }
    }

    fn begin_flows(&mut self) {
        while let Some(flow) = self.plan.flows.get(self.begun) {
            if flow.begins > self.now {
                break;
            }
            let kernel = &self.machines[0].kernel;
            let socket = kernel.socket(self.begun as u64, Side::Client, self.plan.buffers);
            socket.lock().is_held = false;
            self.flows[self.begun].waiting = Some(Arc::clone(&socket));
            self.add_host(socket);
            self.begun += 1;
        }
        let Some(process) = &self.machines[0].process else {
            return;
        };
        for flow in &mut self.flows {
            if flow.waiting.is_some() && process.has_room() && !process.crash_point.has_fired() {
                let socket = flow.waiting.take().expect("one");
                socket.lock().is_held = true;
                process.accept(&socket);
            }
        }
    }

    fn add_host(&mut self, socket: Socket) {
        let (flow, side) = {
            let socket = socket.lock();
            (socket.flow as usize, socket.side)
        };
        let draw = SplitMix64::new(self.plan.seed ^ (flow as u64) << 32 ^ (side as u64) << 48);
        let host = Host::new(socket, (flow, &self.plan.flows[flow]), self.now, draw);
        self.flows[flow].hosts[side as usize] = Some(self.hosts.len());
        self.hosts.push(host);
    }

    /// Passes new connections to servers.
    fn call(&mut self) {
        for socket in self.machines[1].kernel.calls() {
            let flow = socket.lock().flow as usize;
            self.flows[flow].servers += 1;
            self.trace(|| format!("flow {flow}: its server is called"));
            let at = self.now + self.plan.flows[flow].answers_after;
            self.add_host(Arc::clone(&socket));
            self.answers.push((at, socket));
        }
    }

    /// Lets servers answer.
    fn answer(&mut self) {
        let now = self.now;
        let (due, later) = self.answers.drain(..).partition(|(at, _)| *at <= now);
        self.answers = later;
        let due: Vec<(Duration, Socket)> = due;
        for (_, socket) in due {
            let mut socket = socket.lock();
            if self.plan.flows[socket.flow as usize].refused {
                socket.abort(libc::ECONNREFUSED);
            } else {
                socket.connecting = false;
            }
            socket.is_news = true;
            socket.wake();
        }
    }

    fn hosts_turn(&mut self) -> bool {
        let mut moved = false;
        for host in &mut self.hosts {
            if host.due().is_some_and(|due| due <= self.now) {
                let was = (host.has_reset, host.was_reset);
                moved |= host.turn(self.now);
                if self.trace && was != (host.has_reset, host.was_reset) {
                    let (flow, side) = (host.flow, host.side);
                    let by = if host.has_reset { "host" } else { "pepd" };
                    println!(
                        "{:>12.6} flow {flow}: {side:?} reset by {by}",
                        self.now.as_secs_f64()
                    );
                }
            }
        }
        moved
    }

    /// Lets the disk of an end work, at random times.
    fn disk(&mut self, end: usize) -> bool {
        if self.now < self.disk_at[end] {
            return false;
        }
        self.disk_at[end] = self.now + Duration::from_millis(self.draw.below(20));
        let process = &mut self.machines[end].process;
        process.as_mut().is_some_and(Process::work)
    }

    /// Updates whether an outage is in progress, and notifies the ends if the plan demands it.
    fn log_outages(&mut self) {
        let mut outages = self.plan.outages.iter();
        let out = outages.any(|(from, to)| (*from..*to).contains(&self.now));
        if std::mem::replace(&mut self.out, out) != out && self.plan.notified {
            let hint = if out { LinkHint::Down } else { LinkHint::Up };
            let machines = self.machines.iter();
            let processes = machines.filter_map(|machine| machine.process.as_ref());
            processes.for_each(|process| process.hint(hint));
        }
    }

    fn deliver(&mut self) -> bool {
        let now = self.now.as_nanos() as u64;
        let out = self.out;
        let mut any = false;
        while let Some((direction, mut packet)) = self.link.poll_deliver(now) {
            let (from, to) = match direction {
                Direction::AtoB => (0, 1),
                Direction::BtoA => (1, 0),
            };
            any = true;
            if let Some(process) = self.machines[to].process.as_mut().filter(|_| !out) {
                process.handle(self.now, from, &mut packet.bytes);
            }
            self.link.recycle(packet);
        }
        any
    }

    fn send(&mut self, end: usize) -> bool {
        let out = self.out;
        let direction = [Direction::AtoB, Direction::BtoA][end];
        let mut any = false;
        let mut datagram = Vec::new();
        while let Some(process) = &mut self.machines[end].process {
            datagram.clear();
            if !process.poll_transmit(self.now, &mut datagram) {
                break;
            }
            any = true;
            self.summary.datagrams += 1;
            if !out {
                let now = self.now.as_nanos() as u64;
                self.link.handle_packet(direction, &datagram, now);
            }
        }
        any
    }
}
