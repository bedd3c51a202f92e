//! Two ends, the link between them, and the clock that jumps from deadline to deadline.

mod apps;
mod checks;
mod recording;
mod seat;

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    panic::{AssertUnwindSafe, catch_unwind},
    thread,
    time::Duration,
};

use winkemu_link::{Direction, Engine};

use crate::{
    ledger::Ledger,
    plan::Plan,
    rng::Rng,
    side::{End, Side, Streams},
    violation::{Failure, Violation},
    wire::Header,
};
use recording::Recording;
use seat::Seat;

/// Number of datagrams after which an end forgets the out-of-order bytes of its peer.
const GIVE_UP_EVERY: u64 = 4;

/// Scheduled task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Task {
    /// Opens the stream of the plan.
    Open(usize),
    /// Writes to the flow.
    Write(usize, End),
    /// Resumes reading the flow.
    Resume(usize, End),
    /// Resets the flow.
    Reset(usize, End),
    /// Changes the flow's class.
    Reclass(usize),
    /// Sends the message of that number, of these messages of the plan.
    Message(usize, u64),
    /// Runs another event of the plan.
    Step(usize),
}

/// Two sides and the link between them.
#[derive(Debug)]
pub struct World<S> {
    /// Plan of the run.
    pub plan: Plan,
    /// Actions and reports of both ends.
    pub ledger: Ledger,
    /// True to print packets and events.
    pub trace: bool,
    now: Duration,
    link: Engine,
    seats: [Seat<S>; 2],
    agenda: BinaryHeap<Reverse<(Duration, u64, Task)>>,
    recording: Option<Recording>,
    tasks: u64,
    restarts: u64,
    rng: Rng,
    packet: Vec<u8>,
}

/// Result of a run without violations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Duration in virtual time.
    pub took: Duration,
    /// Packets sent by both ends.
    pub packets: u64,
    /// Bytes that streams carried, in both directions.
    pub bytes: u64,
    /// Messages outside streams that arrived.
    pub messages: u64,
    /// Maximum memory of an end.
    pub memory: u64,
}

impl<S: Side> World<S> {
    /// Creates the world of a plan, at time 0.
    ///
    /// # Panics
    /// Panics if winkemu rejects the plan's link.
    pub fn new(plan: Plan) -> Self {
        let config = plan
            .link()
            .unwrap_or_else(|error| panic!("{error}: {}", plan.link));
        let mut world = Self {
            ledger: Ledger::default(),
            trace: false,
            now: Duration::ZERO,
            link: Engine::new(&config, plan.seed),
            seats: [0, 1].map(|end| Seat::new(&plan, end)),
            agenda: BinaryHeap::new(),
            recording: None,
            tasks: 0,
            restarts: 0,
            rng: Rng::new(plan.seed ^ 0x77),
            packet: Vec::with_capacity(2048),
            plan,
        };
        for i in 0..world.plan.streams.len() {
            world.at(world.plan.streams[i].at, Task::Open(i));
        }
        for i in 0..world.plan.messages.len() {
            world.at(world.plan.messages[i].at, Task::Message(i, 0));
        }
        for i in 0..world.plan.steps.len() {
            world.at(world.plan.steps[i].0, Task::Step(i));
        }
        world
    }

    /// Runs a plan until all its streams have ended.
    ///
    /// # Errors
    /// Fails with the first violation.
    pub fn run(plan: Plan, trace: bool) -> Result<Summary, Box<Failure>> {
        let mut world = Self::new(plan);
        world.trace = trace;
        let outcome = world.run_caught();
        world.judged(outcome)
    }

    /// Runs to the end; catches a panic as the error of a joined thread.
    fn run_caught(&mut self) -> thread::Result<Result<(), (End, Violation)>> {
        catch_unwind(AssertUnwindSafe(|| self.run_to_end()))
    }

    fn judged(
        self,
        outcome: thread::Result<Result<(), (End, Violation)>>,
    ) -> Result<Summary, Box<Failure>> {
        let (end, violation) = match outcome {
            Ok(Ok(())) => return Ok(self.summary()),
            Ok(Err(failed)) => failed,
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned();
                let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&s| s.to_owned()));
                let message = text.unwrap_or_default();
                (0, Violation::Panicked { message })
            }
        };
        Err(Box::new(Failure {
            violation,
            end,
            at: self.now,
            plan: Box::new(self.plan),
        }))
    }

    fn run_to_end(&mut self) -> Result<(), (End, Violation)> {
        let last = self.plan.quiet_from + self.plan.patience;
        while !self.is_over() {
            if !self.step(last)? {
                return Err((0, self.stuck()));
            }
        }
        // Late packets must do no harm.
        let round_trip = self.plan.sessions[0].rtt;
        self.run_until(self.now + Duration::from_millis(500) + 2 * round_trip)
    }

    /// Runs until `until`, in any state.
    ///
    /// # Errors
    /// Fails with the first violation.
    pub fn run_until(&mut self, until: Duration) -> Result<(), (End, Violation)> {
        while self.step(until)? {}
        self.now = self.now.max(until);
        Ok(())
    }

    /// Advances to the next event, if it is not after `until`.
    fn step(&mut self, until: Duration) -> Result<bool, (End, Violation)> {
        let first = self.now.is_zero() && self.seats.iter().all(|seat| seat.wake.is_none());
        let Some(next) = self.next().filter(|next| *next <= until) else {
            if first {
                self.settle_all()?;
                return Ok(self.next().is_some_and(|next| next <= until));
            }
            return Ok(false);
        };
        self.now = self.now.max(next);
        self.thaw()?;
        self.deliver()?;
        // Applications react to the reports.
        for end in 0..2 {
            self.listen(end);
        }
        self.do_tasks();
        for end in 0..2 {
            let due = self.seats[end].wake.is_some_and(|wake| wake <= self.now);
            self.seats[end].due |= due;
        }
        let settled = self.settle_all();
        self.record();
        settled?;
        Ok(true)
    }

    /// Returns the time of the next event.
    fn next(&self) -> Option<Duration> {
        let task = self.agenda.peek().map(|Reverse((at, ..))| *at);
        let link = self.link.poll_timeout().map(Duration::from_nanos);
        let wakes = self.seats.iter().filter_map(Seat::next_wake);
        wakes.chain(task).chain(link).min()
    }

    /// Schedules a task.
    fn at(&mut self, at: Duration, task: Task) {
        self.tasks += 1;
        self.agenda.push(Reverse((at, self.tasks, task)));
    }

    fn do_tasks(&mut self) {
        while let Some(Reverse((at, _, task))) = self.agenda.peek().copied() {
            if at > self.now {
                break;
            }
            self.agenda.pop();
            let frozen = self.end_of(task).map(|end| self.seats[end].frozen_until);
            match frozen.filter(|until| *until > self.now) {
                Some(until) => self.at(until, task),
                None => self.do_task(task),
            }
        }
    }

    fn end_of(&self, task: Task) -> Option<End> {
        match task {
            Task::Open(i) => Some(self.plan.streams[i].opener),
            Task::Write(_, end) | Task::Resume(_, end) | Task::Reset(_, end) => Some(end),
            Task::Reclass(flow) => Some(self.ledger.flows[flow].plan.opener),
            Task::Message(i, _) => Some(self.plan.messages[i].end),
            Task::Step(_) => None,
        }
    }

    /// Thaws frozen ends: all packets received meanwhile are delivered at once.
    fn thaw(&mut self) -> Result<(), (End, Violation)> {
        for end in 0..2 {
            if self.seats[end].frozen_until > self.now {
                continue;
            }
            while let Some((from, mut datagram)) = self.seats[end].inbox.pop_front() {
                self.hand_over(end, from, &mut datagram)?;
            }
        }
        Ok(())
    }

    /// Takes due packets from the link.
    fn deliver(&mut self) -> Result<(), (End, Violation)> {
        let nanos = self.now.as_nanos() as u64;
        while let Some((direction, mut packet)) = self.link.poll_deliver(nanos) {
            let end = usize::from(direction == Direction::AtoB);
            let parsed = Header::parse(&mut packet.bytes);
            let parsed = parsed.filter(|(header, _)| header.to == self.seats[end].address);
            if let Some((header, datagram)) = parsed {
                if self.seats[end].frozen_until > self.now {
                    self.seats[end].keep(header.from, datagram);
                } else {
                    self.hand_over(end, header.from, datagram)?;
                }
            }
            self.link.recycle(packet);
        }
        Ok(())
    }

    fn hand_over(
        &mut self,
        end: End,
        from: u16,
        datagram: &mut [u8],
    ) -> Result<(), (End, Violation)> {
        if self.trace {
            println!(
                "{:>12.6} {end} < {}",
                self.now.as_secs_f64(),
                S::describe(datagram)
            );
        }
        let now = self.now;
        let seat = &mut self.seats[end];
        seat.received += 1;
        seat.due = true;
        let handled = seat.with(&mut self.ledger, end, now, |side, view| {
            side.handle_datagram(now, from, datagram, view)
        });
        handled.map_err(|why| (end, Violation::Refused { why }))
    }

    fn settle_all(&mut self) -> Result<(), (End, Violation)> {
        let start = self.now.is_zero();
        for end in 0..2 {
            let seat = &mut self.seats[end];
            if (seat.due || start) && seat.frozen_until <= self.now {
                seat.due = true;
                self.settle(end)?;
            }
        }
        self.ledger.violation().map_or(Ok(()), Err)
    }

    /// Lets an end complete its work and reports.
    fn settle(&mut self, end: End) -> Result<(), (End, Violation)> {
        let mut did = 0;
        loop {
            let before = did;
            did += self.listen(end);
            while self.send(end)? {
                did += 1;
            }
            if did == before {
                break;
            }
            self.ledger.violation().map_or(Ok(()), Err)?;
        }
        self.rest(end, did)
    }

    /// Takes the reports of an end. Returns their number.
    fn listen(&mut self, end: End) -> usize {
        let mut reported = 0;
        while self.seats[end].due
            && let Some(news) = self.seats[end].ask()
        {
            self.on_news(end, news);
            reported += 1;
        }
        if self.seats[end].received.is_multiple_of(GIVE_UP_EVERY) {
            self.abandon(end);
        }
        reported
    }

    /// Makes an end forget the peer's out-of-order bytes.
    fn abandon(&mut self, end: End) {
        let Some(streams) = self.seats[end].side.streams() else {
            return;
        };
        for stream in self.ledger.streams(end) {
            let runs = streams.acked_beyond(stream);
            self.ledger.abandon(end, stream, runs);
        }
    }

    fn send(&mut self, end: End) -> Result<bool, (End, Violation)> {
        let (now, mut packet) = (self.now, std::mem::take(&mut self.packet));
        packet.clear();
        let (from, to) = (self.seats[end].address, self.seats[end].first_peer);
        Header { from, to }.emit(&mut packet);
        let sent = self.seats[end].with(&mut self.ledger, end, now, |side, view| {
            side.poll_datagram(now, &mut packet, view)
        });
        if let Some(to) = sent {
            let begun = &mut packet[..crate::wire::HEADERS];
            if let Some(to) = to {
                let mut header = Vec::with_capacity(begun.len());
                Header { from, to }.emit(&mut header);
                begun.copy_from_slice(&header);
            }
            self.offer(end, &packet)?;
        }
        self.packet = packet;
        Ok(sent.is_some())
    }

    fn offer(&mut self, end: End, packet: &[u8]) -> Result<(), (End, Violation)> {
        if self.trace {
            let what = S::describe(&packet[crate::wire::HEADERS..]);
            println!(
                "{:>12.6} {end} > {} B {what}",
                self.now.as_secs_f64(),
                packet.len()
            );
        }
        self.check_packet(end, packet.len())?;
        if packet.len() <= self.plan.mtu(self.now) {
            let direction = Direction::BOTH[end];
            self.link
                .handle_packet(direction, packet, self.now.as_nanos() as u64);
        }
        Ok(())
    }

    /// Returns the time.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns the maximum memory of an end, without the streams' bytes.
    pub fn memory(&self, end: End) -> u64 {
        self.seats[end].held_most as u64
    }

    fn summary(&self) -> Summary {
        let sum = |count: fn(&Seat<S>) -> u64| self.seats.iter().map(count).sum();
        let flows = self.ledger.flows.iter();
        Summary {
            took: self.now,
            packets: sum(|seat| seat.sent),
            bytes: flows
                .map(|flow| flow.at[0].readable + flow.at[1].readable)
                .sum(),
            messages: self.ledger.beside.arrived,
            memory: self.memory(0).max(self.memory(1)),
        }
    }
}
