//! Applications: they open, write, read, stall, finish and reset as planned.

use std::time::Duration;

use tunnel::session::{Event, LinkHint};

use super::{Task, World};
use crate::{
    flow::State,
    plan::Step,
    side::{End, News, Side, Streams},
    violation::Violation,
};

/// Wait before a stream without room is opened again.
const OPEN_AGAIN: Duration = Duration::from_millis(20);

impl<S: Side> World<S> {
    pub(super) fn do_task(&mut self, task: Task) {
        match task {
            Task::Open(plan) => self.open(plan),
            Task::Write(flow, end) => {
                self.ledger.flows[flow].at[end].write_due = false;
                self.write(flow, end);
            }
            Task::Resume(flow, end) => {
                self.ledger.flows[flow].at[end].stalled = false;
                self.read(flow, end);
            }
            Task::Reset(flow, end) => self.reset(flow, end),
            Task::Reclass(flow) => self.reclass(flow),
            Task::Message(of, number) => self.send_message(of, number),
            Task::Step(step) => self.do_step(step),
        }
    }

    fn do_step(&mut self, step: usize) {
        let (_, end, step) = self.plan.steps[step];
        let now = self.now;
        match step {
            Step::Freeze(time) => {
                let seat = &mut self.seats[end];
                seat.frozen_until = seat.frozen_until.max(now + time);
                seat.due = true;
            }
            Step::HintDown => self.hint(end, LinkHint::Down),
            Step::HintUp => self.hint(end, LinkHint::Up),
            Step::Restart => {
                self.restarts += 1;
                self.seats[end].restart(&self.plan, end, now);
                self.ledger.orphan(end);
            }
            Step::Roam => self.seats[end].address += 2,
        }
    }

    /// Sends a message if there is a session, and schedules the next one.
    fn send_message(&mut self, of: usize, number: u64) {
        let plan = self.plan.messages[of].clone();
        let end = plan.end;
        let mut queue = self.ledger.beside.queue(end, of);
        if queue.is_none() {
            let opened = self.seats[end].with_streams(|to| to.open_packets(plan.class, plan.site));
            queue = opened.flatten();
            queue
                .into_iter()
                .for_each(|queue| self.ledger.beside.opened(end, of, queue));
        }
        if let Some(queue) = queue {
            let channel = (number % 128) as u8;
            self.ledger.beside.send(end, queue, channel, plan.len);
            self.seats[end].with_streams(|to| to.packets_ready(queue));
        }
        if number + 1 < plan.count {
            self.at(self.now + plan.gap, Task::Message(of, number + 1));
        }
    }

    fn hint(&mut self, end: End, link: LinkHint) {
        let now = self.now;
        self.seats[end].with_streams(|to| to.hint(now, link));
    }

    fn open(&mut self, plan: usize) {
        let stream = self.plan.streams[plan].clone();
        let end = stream.opener;
        let stream_header = self.ledger.stream_header(&stream);
        let opened =
            self.seats[end].with_streams(|to| to.open(stream.class, stream.site, &stream_header));
        let Some(Ok(id)) = opened else {
            return self.at(self.now + OPEN_AGAIN, Task::Open(plan));
        };
        let credits = [0, 1].map(|end| self.plan.sessions[end].stream_credit);
        let most = self.plan.sessions[1 - end].streams_max;
        let reclass = stream.reclass;
        let flow = self.ledger.open(id, stream, credits, most);
        if let Some((after, _)) = reclass {
            self.at(self.now + after, Task::Reclass(flow));
        }
        self.begin(flow, end);
    }

    /// Begins the application of a flow at an end that has learned of it.
    fn begin(&mut self, flow: usize, end: End) {
        let plan = &self.ledger.flows[flow].plan;
        let who = usize::from(end != plan.opener);
        if let Some((_, after, _)) = plan.reset.filter(|(of, ..)| *of == who) {
            self.at(self.now + after, Task::Reset(flow, end));
        }
        if !self.ledger.flows[flow].habits(end).answers {
            self.write(flow, end);
        }
    }

    pub(super) fn on_news(&mut self, end: End, news: News) {
        if self.trace {
            println!("{:>12.6} {end} ! {news:?}", self.now.as_secs_f64());
        }
        match news {
            News::Fresh => self.on_fresh(end),
            News::Gone => self.ledger.orphan(end),
            News::Session(event) => self.on_event(end, &event),
        }
    }

    fn on_fresh(&mut self, end: End) {
        let seat = &mut self.seats[end];
        seat.sessions += 1;
        seat.link_up = true;
        // One to begin with, and each restarted end may cost two.
        if seat.sessions > 1 + 2 * self.restarts {
            self.ledger.blame(end, Violation::FreshUnasked);
        }
        self.ledger.orphan(end);
    }

    fn on_event(&mut self, end: End, event: &Event) {
        if matches!(event, Event::LinkDown | Event::LinkUp) {
            return self.on_link(end, event);
        }
        let Some(flow) = self.ledger.record(self.now, end, event) else {
            return;
        };
        match event {
            Event::Opened { .. } => self.begin(flow, end),
            Event::Readable { .. } => self.read(flow, end),
            Event::Acked { .. } => self.write(flow, end),
            Event::Reset { .. } | Event::Closed { .. } => self.allow_session(end),
            Event::Finished { .. } if self.ledger.flows[flow].habits(end).answers => {
                self.write(flow, end);
            }
            _ => {}
        }
    }

    fn on_link(&mut self, end: End, event: &Event) {
        let up = *event == Event::LinkUp;
        if self.seats[end].link_up == up {
            let event = event.clone();
            self.ledger.blame(end, Violation::NoNews { event });
        }
        self.seats[end].link_up = up;
    }

    /// Writes as much as is available and fits, then finishes or waits.
    fn write(&mut self, flow: usize, end: End) {
        let (now, state) = (self.now, &mut self.ledger.flows[flow]);
        let (habits, id) = (state.habits(end).clone(), state.id);
        let local = &mut state.at[end];
        let waits = habits.answers && !local.reported_finished;
        if local.state != State::Alive || local.finished || local.write_due || waits {
            return;
        }
        while local.written < habits.bytes {
            let room = habits.buffer - (local.written - local.acked).min(habits.buffer);
            let chunk = room.min(habits.chunk).min(habits.bytes - local.written);
            if chunk == 0 {
                return;
            }
            local.written += chunk;
            if self.ledger.notes {
                local.written_log.push((now, local.written));
            }
            let until = local.written;
            self.seats[end].with_streams(|to| to.written(id, until));
            if !habits.gap.is_zero() && local.written < habits.bytes {
                local.write_due = true;
                return self.at(now + habits.gap, Task::Write(flow, end));
            }
        }
        local.finished = true;
        self.seats[end].with_streams(|to| to.finish(id));
    }

    /// Reads available bytes, unless it has stalled, and grants more credit.
    fn read(&mut self, flow: usize, end: End) {
        let (now, state) = (self.now, &mut self.ledger.flows[flow]);
        let (habits, id) = (state.habits(end).clone(), state.id);
        let local = &mut state.at[end];
        if local.state != State::Alive || local.stalled {
            return;
        }
        let mut until = local.readable;
        if let Some((at, time)) = habits
            .stall
            .filter(|(at, _)| !local.stall_over && *at <= until)
        {
            until = at;
            local.stalled = true;
            local.stall_over = true;
            self.agenda_resume(now + time, flow, end);
        }
        let local = &mut self.ledger.flows[flow].at[end];
        local.consumed = until.max(local.consumed);
        let allowed = local.consumed + habits.window;
        if allowed > local.allowed {
            local.allowed = allowed;
            self.seats[end].with_streams(|to| to.allow(id, allowed));
        }
        // What it reads later makes more credit, which ends the hold.
        let local = &self.ledger.flows[flow].at[end];
        if local.stalled && local.readable + habits.window > local.allowed {
            self.seats[end].with_streams(|to| to.hold(id));
        }
        self.allow_session(end);
    }

    fn allow_session(&mut self, end: End) {
        let allowed = self.ledger.done_with(end) + self.plan.sessions[end].session_credit;
        if allowed > self.seats[end].allowed {
            self.seats[end].allowed = allowed;
            self.seats[end].with_streams(|to| to.allow_session(allowed));
        }
    }

    fn agenda_resume(&mut self, at: Duration, flow: usize, end: End) {
        self.at(at, Task::Resume(flow, end));
    }

    fn reset(&mut self, flow: usize, end: End) {
        let state = &self.ledger.flows[flow];
        let (id, alive) = (state.id, state.at[end].state == State::Alive);
        if let Some((_, _, code)) = state.plan.reset.filter(|_| alive) {
            self.ledger.reset(end, flow, code);
            self.seats[end].with_streams(|to| to.reset(id, code));
            self.allow_session(end);
        }
    }

    fn reclass(&mut self, flow: usize) {
        let state = &self.ledger.flows[flow];
        let (end, id) = (state.plan.opener, state.id);
        let alive = state.at[end].state == State::Alive;
        if let Some((_, class)) = state.plan.reclass.filter(|_| alive) {
            self.seats[end].with_streams(|to| to.set_class(id, class));
        }
    }
}
