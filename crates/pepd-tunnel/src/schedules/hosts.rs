//! Hosts as seen by a machine's TCP, which send and take bytes at random times.

use std::time::Duration;

use pep_core::relay::Side;
use splitmix::SplitMix64;

use super::{kernel::Shared, plan::FlowPlan};

/// Time at which a host that has sent everything closes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Closes {
    AtOnce,
    /// After the end of the received bytes.
    Second,
}

/// One end of a flow.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) socket: Shared,
    pub(super) flow: usize,
    pub(super) side: Side,
    len: u64,
    closes: Closes,
    /// Resets the flow once it has sent and taken so many bytes together.
    resets_at: Option<u64>,
    pub(super) has_reset: bool,
    /// The connection was reset by pepd.
    pub(super) was_reset: bool,
    /// Time at which its last byte was taken.
    pub(super) given: Option<Duration>,
    /// Maximum of pauses in milliseconds.
    pace: u64,
    /// Time of its next turn, if it is busy.
    pub(super) next: Option<Duration>,
    draw: SplitMix64,
}

impl Host {
    pub(super) fn new(
        socket: Shared,
        (number, plan): (usize, &FlowPlan),
        now: Duration,
        draw: SplitMix64,
    ) -> Self {
        let side = socket.lock().side;
        let part = &plan.hosts[side as usize];
        Self {
            socket,
            flow: number,
            side,
            len: part.len,
            closes: part.closes,
            resets_at: part.resets_at,
            has_reset: false,
            was_reset: false,
            given: None,
            pace: part.pace,
            next: Some(now),
            draw,
        }
    }

    /// Returns whether it has sent and received all bytes and the end.
    pub(super) fn is_whole(&self, expected: u64) -> bool {
        let socket = self.socket.lock();
        socket.fin_arrived
            && socket.fin_acked
            && socket.acked == expected
            && socket.arrived == self.len
    }

    /// Returns whether the host neither sends nor receives any more.
    pub(super) fn is_over(&self) -> bool {
        let socket = self.socket.lock();
        self.has_reset || self.was_reset || socket.fin_arrived && socket.fin_acked
    }

    /// Returns when it has something to do, if at all.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.is_over() {
            return None;
        }
        let is_news = self.socket.lock().is_news;
        if is_news && self.next.is_none() {
            return Some(Duration::ZERO);
        }
        self.next
    }

    /// Runs its turn. Returns whether anything has happened.
    pub(super) fn turn(&mut self, now: Duration) -> bool {
        let mut socket = self.socket.lock();
        if socket.connecting {
            self.next = None;
            socket.is_news = false;
            return false;
        }
        socket.is_news = false;
        if socket.reset_by_us {
            self.was_reset = true;
            return true;
        }
        let take = (socket.written - socket.acked).min(1 + self.draw.below(60_000));
        let room = socket.buffers[0] - (socket.arrived - socket.read);
        let give = (self.len - socket.arrived)
            .min(room)
            .min(1 + self.draw.below(40_000));
        // Bytes after its last one do not matter to it.
        socket.acked += take;
        socket.arrived += give;
        if give > 0 && socket.arrived == self.len {
            self.given = Some(now);
        }
        let mut moved = take + give > 0;
        if socket.fin_given && !socket.fin_acked && socket.acked == socket.written {
            socket.fin_acked = true;
            moved = true;
        }
        if self
            .resets_at
            .is_some_and(|at| socket.acked + socket.arrived >= at)
        {
            socket.abort(libc::ECONNRESET);
            self.has_reset = true;
            return true;
        }
        let ends = self.closes == Closes::AtOnce || socket.fin_acked;
        if socket.arrived == self.len && ends && !socket.fin_arrived {
            socket.fin_arrived = true;
            moved = true;
        }
        let busy = socket.acked < socket.written
            || socket.arrived < self.len && socket.buffers[0] > socket.arrived - socket.read
            || moved;
        if moved {
            socket.wake();
        }
        self.next = busy.then(|| now + Duration::from_millis(1 + self.draw.below(self.pace)));
        moved
    }
}
