//! Copies of retransmissions, so that few segments are lost again and again.
//!
//! All bytes after a missing segment wait for it, and both ends hold them. Each further loss takes
//! another round trip.

use std::{collections::VecDeque, time::Duration};

use super::{Delivery, Flight};

/// Losses of a segment after which its retransmissions may be copied. The smaller number that keeps
/// copies within [`SHARE_MAX`] applies.
const LOSSES: [u8; 2] = [2, 3];
/// Maximum share of sent packets that are copies.
const SHARE_MAX: f64 = 0.01;
/// Maximum number of copies saved up.
const BURST_MAX: f64 = 16.0;
/// Copies stop while this part (one in eight) of the segments in flight waits for retransmission.
/// Then an outage took them, and no single segment holds up the others.
const WAITING_PART: u64 = 8;
/// First segments that are copied after a long silence, as much data waits for them.
const FIRST_SEGMENTS: usize = 8;
/// Part of a round trip after which a copy follows, so that a burst does not take both.
const DELAY_PART: u32 = 32;

/// Copies to be sent.
#[derive(Clone, Debug, Default)]
pub(super) struct Copies {
    /// Retransmissions to copy, oldest first. Entries of segments that were acknowledged or
    /// retransmitted since are ignored.
    flights: VecDeque<Flight>,
    /// Number of losses of a segment from which its retransmissions are copied, if any are.
    losses_min: Option<u8>,
    /// Copies that may be sent now.
    budget: f64,
}

impl Copies {
    /// Records that any packet is sent.
    pub(super) fn on_packet(&mut self) {
        self.budget = (self.budget + SHARE_MAX).min(BURST_MAX);
    }
}

impl<T> Delivery<T> {
    /// Sets the share of packets that are lost, 0 to 1, which limits copies. `None`: no copies,
    /// except after a long silence.
    pub fn set_copies(&mut self, loss: Option<f64>) {
        let few = |loss: f64, losses: u8| loss.powi(losses.into()) <= SHARE_MAX;
        self.copies.losses_min =
            loss.and_then(|loss| LOSSES.into_iter().find(|losses| few(loss, *losses)));
    }

    /// Returns a retransmitted segment to send once more, its content, and the time of its
    /// transmission. `None` if none is due; see [`copy_at`](Self::copy_at).
    pub fn next_copy(&mut self, now: Duration) -> Option<(u64, &mut T, Duration)> {
        self.copy_at().filter(|at| *at <= now)?;
        let seq = self.copies.flights.pop_front()?.seq;
        let segment = self.segments.get_mut(seq)?;
        Some((seq, &mut segment.content, segment.last.at))
    }

    /// Returns when the next copy is due.
    pub fn copy_at(&mut self) -> Option<Duration> {
        while let Some(Flight { number, seq }) = self.copies.flights.front().copied() {
            let segment = self.segments.sent_as(seq, number);
            if let Some(segment) = segment.filter(|segment| segment.flying) {
                return Some(segment.last.at + self.rtt.smoothed() / DELAY_PART);
            }
            self.copies.flights.pop_front();
        }
        None
    }

    /// Records that a lost segment is retransmitted. A copy follows if the segment was lost often,
    /// or is one of the first after a long silence.
    pub(super) fn on_retransmitted(&mut self, now: Duration, flight: Flight) {
        let Some(segment) = self.segments.get_mut(flight.seq) else {
            return;
        };
        let (losses, before) = (segment.losses, segment.before);
        let few_wait = self.lost.len() as u64 * WAITING_PART < self.in_flight.segments;
        let is_allowed = few_wait && self.copies.budget >= 1.0;
        let often = is_allowed && self.copies.losses_min.is_some_and(|min| losses >= min);
        let round_trip = self.rtt.smoothed();
        self.long_until = self.long_until.filter(|until| now < *until + round_trip);
        let after_silence = self.long_until.is_some_and(|until| {
            let once = before.is_some_and(|before| before.at < until);
            let mut first = self.segments.first(FIRST_SEGMENTS);
            once && first.any(|(seq, _)| seq == flight.seq)
        });
        if !self.reliable && (often || after_silence) {
            self.copies.budget = (self.copies.budget - 1.0).max(0.0);
            self.copies.flights.push_back(flight);
        }
    }
}
