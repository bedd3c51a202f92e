//! Seat: a side with its environment.

use std::{collections::VecDeque, time::Duration};

use allocation_counter::measure;

use crate::{
    ledger::{Ledger, View},
    plan::Plan,
    side::{Address, End, News, Setup, Side},
};

/// Maximum datagrams queued at a socket without a reader.
const INBOX_MAX: usize = 300;

/// Side, with the state to check it.
#[derive(Debug)]
pub(super) struct Seat<S> {
    pub(super) side: S,
    pub(super) address: Address,
    /// Initial address of the other end.
    pub(super) first_peer: Address,
    /// Time of the next wake-up.
    pub(super) wake: Option<Duration>,
    /// True if an event has occurred for it.
    pub(super) due: bool,
    pub(super) frozen_until: Duration,
    pub(super) inbox: VecDeque<(Address, Vec<u8>)>,
    pub(super) incarnation: u64,
    pub(super) sessions: u64,
    pub(super) link_up: bool,
    /// Credit granted to all streams together.
    pub(super) allowed: u64,
    pub(super) held: i64,
    pub(super) held_most: i64,
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) idle_wakes: u64,
    /// Bytes sent ahead of the configured rate, and the time of the last update.
    pub(super) ahead: (f64, Duration),
    /// Number of deadlines in the past without anything to do, at this time.
    pub(super) spins: (u32, Duration),
}

impl<S: Side> Seat<S> {
    pub(super) fn new(plan: &Plan, end: End) -> Self {
        let mut side = None;
        let setup = setup(plan, end, 0);
        let held = measure(|| side = Some(S::new(&setup, Duration::ZERO))).bytes_current;
        Self {
            side: side.expect("made just now"),
            address: end as Address + 1,
            first_peer: 2 - end as Address,
            wake: None,
            due: true,
            frozen_until: Duration::ZERO,
            inbox: VecDeque::new(),
            incarnation: 0,
            sessions: 0,
            link_up: true,
            allowed: plan.sessions[end].session_credit,
            held,
            held_most: held,
            sent: 0,
            received: 0,
            idle_wakes: 0,
            ahead: (0.0, Duration::ZERO),
            spins: (0, Duration::ZERO),
        }
    }

    /// Replaces the side by a new one without state.
    pub(super) fn restart(&mut self, plan: &Plan, end: End, now: Duration) {
        self.incarnation += 1;
        let setup = setup(plan, end, self.incarnation);
        let mut side = None;
        self.held = measure(|| side = Some(S::new(&setup, now))).bytes_current;
        self.side = side.expect("made just now");
        self.wake = Some(now);
        self.due = true;
        self.link_up = true;
        self.sessions = 0;
    }

    /// Runs a closure on the side, and counts its memory.
    pub(super) fn with<R>(
        &mut self,
        ledger: &mut Ledger,
        end: End,
        now: Duration,
        act: impl FnOnce(&mut S, &mut View<'_>) -> R,
    ) -> R {
        let (mut result, mut view) = (None, View { ledger, end, now });
        let side = &mut self.side;
        let used = measure(|| result = Some(act(side, &mut view)));
        self.held += used.bytes_current;
        self.held_most = self.held_most.max(self.held);
        result.expect("done just now")
    }

    /// Runs an application's call to the session, if there is one.
    pub(super) fn with_streams<R>(&mut self, act: impl FnOnce(&mut S::Streams) -> R) -> Option<R> {
        self.say(|side| side.streams().map(act))
    }

    pub(super) fn say<R>(&mut self, act: impl FnOnce(&mut S) -> R) -> R {
        let mut result = None;
        let side = &mut self.side;
        let used = measure(|| result = Some(act(side)));
        self.held += used.bytes_current;
        self.held_most = self.held_most.max(self.held);
        self.due = true;
        result.expect("done just now")
    }

    pub(super) fn ask(&mut self) -> Option<News> {
        self.say(S::poll_event)
    }

    pub(super) fn next_wake(&self) -> Option<Duration> {
        let wake = if self.due {
            Some(Duration::ZERO)
        } else {
            self.wake
        };
        let thaw = (!self.inbox.is_empty()).then_some(self.frozen_until);
        let wake = wake.into_iter().chain(thaw).min();
        wake.map(|wake| wake.max(self.frozen_until))
    }

    pub(super) fn keep(&mut self, from: Address, datagram: &[u8]) {
        if self.inbox.len() < INBOX_MAX {
            self.inbox.push_back((from, datagram.to_vec()));
        }
    }
}

fn setup(plan: &Plan, end: End, incarnation: u64) -> Setup {
    Setup {
        end,
        seed: plan.seed,
        incarnation,
        // End 0 is the initiator, end 1 the responder.
        peer: (end == 0).then_some(2),
        session: plan.sessions[end].clone(),
    }
}
