//! TCP sender of the time before byte counting.
//!
//! Slow start and congestion avoidance count ACKs (RFC 2581, section 3.1). Fast retransmit and fast
//! recovery are those of Reno (section 3.2), and the timer is that of RFC 6298. The sender has no
//! SACK, no time stamps, and no limit except the peer's window. It never closes, and it does not
//! probe closed windows.

use std::time::Duration;

use super::segment::{ACK, RST, SYN, Segment};

/// Maximum payload of a segment; the peer may announce less. Leaves room for the time stamps of
/// other senders.
const MSS: u64 = 1448;
/// RFC 2581, section 3.1.
const INITIAL_SEGMENTS: u64 = 2;
/// RFC 6298, sections 2.1 and 2.4.
const RTO_FIRST: Duration = Duration::from_secs(1);
const RTO_MIN: Duration = Duration::from_secs(1);
/// RFC 6298, section 2.5.
const RTO_MAX: Duration = Duration::from_secs(60);
const DUPLICATES: u32 = 3;
/// Window scale. The sender receives no data, but without the option the peer may not scale its
/// window either.
const SCALE: u8 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Listening,
    Calling,
    Answering,
    Open,
    Reset,
}

/// Counters of the sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// Segments with data, retransmissions included.
    pub segments: u64,
    /// Bytes retransmitted.
    pub retransmitted_bytes: u64,
    /// Retransmissions after three duplicate ACKs.
    pub fast_retransmits: u64,
    /// Expirations of the retransmission timer.
    pub timeouts: u64,
    /// ACKs of new data.
    pub acks: u64,
    /// Maximum congestion window, in bytes.
    pub cwnd_max: u64,
}

/// Connection of the sender. Times count from any fixed instant. Positions count from the SYN,
/// which is 0, so data begins at 1.
#[derive(Debug)]
pub(super) struct Sender {
    state: State,
    iss: u32,
    peer_next: u32,
    end: u64,
    mss: u64,
    /// First unacknowledged position.
    una: u64,
    /// Next position to send; below `max` after a timeout.
    next: u64,
    /// First position never sent.
    max: u64,
    window: u64,
    scale: u8,
    cwnd: u64,
    ssthresh: u64,
    duplicates: u32,
    recovering: bool,
    /// Duplicate ACKs below this position stem from retransmissions after a timeout.
    recover: u64,
    timer: Timer,
    /// Segment to send at once: a handshake segment or a retransmission.
    urgent: Option<Segment>,
    pub counts: Counts,
}

impl Sender {
    /// Creates a passive sender of `size` bytes, 2^31 - 2 or fewer, for the first peer that
    /// connects.
    pub fn listening(size: u64, iss: u32) -> Self {
        Self {
            state: State::Listening,
            iss,
            peer_next: 0,
            end: size + 1,
            mss: MSS,
            una: 0,
            next: 0,
            max: 0,
            window: 0,
            scale: 0,
            cwnd: INITIAL_SEGMENTS * MSS,
            ssthresh: u64::MAX,
            duplicates: 0,
            recovering: false,
            recover: 0,
            timer: Timer::default(),
            urgent: None,
            counts: Counts::default(),
        }
    }

    /// Creates an active sender, which opens the connection.
    pub fn calling(size: u64, iss: u32, now: Duration) -> Self {
        let mut sender = Self::listening(size, iss);
        sender.state = State::Calling;
        sender.send_syn(now);
        sender
    }

    /// Reports whether all bytes are acknowledged.
    #[cfg(test)]
    pub fn is_done(&self) -> bool {
        self.una >= self.end
    }

    /// Reports whether the peer has reset the connection.
    pub fn is_reset(&self) -> bool {
        self.state == State::Reset
    }

    /// Time at which [`handle_timeout`](Self::handle_timeout) is due.
    pub fn poll_timeout(&self) -> Option<Duration> {
        self.timer.deadline
    }

    /// Processes a segment of the peer.
    pub fn handle(&mut self, segment: &Segment, now: Duration) {
        if segment.has(RST) {
            if self.state != State::Listening {
                self.state = State::Reset;
                self.timer.deadline = None;
            }
            return;
        }
        match self.state {
            State::Listening if segment.flags & (SYN | ACK) == SYN => {
                self.meet(segment);
                self.state = State::Answering;
                self.send_syn(now);
            }
            State::Answering if segment.flags & (SYN | ACK) == SYN => self.send_syn(now),
            State::Calling if segment.has(SYN | ACK) && self.position(segment.ack) == Some(1) => {
                self.meet(segment);
                self.open(segment, now);
            }
            State::Answering if segment.has(ACK) && self.position(segment.ack) == Some(1) => {
                self.open(segment, now);
                self.window <<= self.scale;
            }
            // A repeated SYN: the SYN-ACK was lost.
            State::Open if segment.has(SYN) => self.urgent = Some(self.plain()),
            State::Open if segment.has(ACK) => self.handle_ack(segment, now),
            _ => {}
        }
    }

    /// Handles the retransmission timeout (RFC 6298, sections 5.4 to 5.6): retransmits all
    /// unacknowledged data.
    pub fn handle_timeout(&mut self, now: Duration) {
        if self.timer.deadline.is_none_or(|deadline| now < deadline) {
            return;
        }
        self.counts.timeouts += 1;
        self.timer.back_off(now);
        if matches!(self.state, State::Calling | State::Answering) {
            return self.send_syn(now);
        }
        // RFC 5681, section 3.1: no further reduction for data that a timeout has retransmitted
        // already.
        if self.una >= self.recover {
            self.ssthresh = self.half_of_flight();
        }
        self.recover = self.max;
        self.cwnd = self.mss;
        (self.next, self.duplicates, self.recovering) = (self.una, 0, false);
    }

    /// Returns the next segment to send; poll until `None`, after each call of the other methods.
    pub fn poll_transmit(&mut self, now: Duration) -> Option<Segment> {
        if let Some(segment) = self.urgent.take() {
            return Some(segment);
        }
        if self.state != State::Open {
            return None;
        }
        let len = self.mss.min(self.end.checked_sub(self.next)?);
        let allowed = self.una + self.cwnd.min(self.window);
        // Whole segments only, so that divided ACKs do not cause small segments.
        if len == 0 || self.next + len > allowed {
            return None;
        }
        let segment = self.data(self.next, len, now);
        self.next += len;
        Some(segment)
    }

    fn handle_ack(&mut self, segment: &Segment, now: Duration) {
        let window = u64::from(segment.window) << self.scale;
        let Some(position) = self.position(segment.ack) else {
            return;
        };
        if position > self.una {
            self.window = window;
            self.handle_new_ack(position, now);
        } else if position == self.una
            && segment.len == 0
            && window == self.window
            && self.max > self.una
        {
            self.handle_duplicate(now);
        } else {
            self.window = window;
        }
    }

    /// Handles an ACK of new data, which counts as one whatever the number of its bytes.
    fn handle_new_ack(&mut self, position: u64, now: Duration) {
        self.counts.acks += 1;
        if self.recovering {
            self.cwnd = self.ssthresh;
        } else if self.cwnd < self.ssthresh {
            self.cwnd += self.mss;
        } else {
            self.cwnd += (self.mss * self.mss / self.cwnd).max(1);
        }
        self.counts.cwnd_max = self.counts.cwnd_max.max(self.cwnd);
        (self.una, self.duplicates, self.recovering) = (position, 0, false);
        self.next = self.next.max(position);
        self.timer.acknowledged(position, now);
        self.timer.restart(now, self.max > self.una);
    }

    fn handle_duplicate(&mut self, now: Duration) {
        self.duplicates += 1;
        if self.recovering {
            self.cwnd += self.mss;
        } else if self.duplicates == DUPLICATES && self.una >= self.recover {
            self.counts.fast_retransmits += 1;
            self.ssthresh = self.half_of_flight();
            self.cwnd = self.ssthresh + u64::from(DUPLICATES) * self.mss;
            self.recovering = true;
            let len = self.mss.min(self.end - self.una);
            self.urgent = Some(self.data(self.una, len, now));
            self.timer.restart(now, true);
        }
    }

    fn half_of_flight(&self) -> u64 {
        ((self.max - self.una) / 2).max(2 * self.mss)
    }

    fn data(&mut self, from: u64, len: u64, now: Duration) -> Segment {
        self.counts.segments += 1;
        let again = self.max.saturating_sub(from).min(len);
        self.counts.retransmitted_bytes += again;
        if again == 0 {
            self.timer.measure(from, now);
        } else {
            // Karn's algorithm: an acknowledgement of a retransmission is ambiguous.
            self.timer.measured = None;
        }
        self.max = self.max.max(from + len);
        if self.timer.deadline.is_none() {
            self.timer.restart(now, true);
        }
        Segment {
            seq: self.iss.wrapping_add(from as u32),
            len: usize::try_from(len).expect("no more than a segment"),
            ..self.plain()
        }
    }

    fn plain(&self) -> Segment {
        Segment {
            seq: self.iss.wrapping_add(self.next as u32),
            ack: self.peer_next,
            flags: ACK,
            window: u16::MAX,
            ..Segment::default()
        }
    }

    fn send_syn(&mut self, now: Duration) {
        let answering = self.state == State::Answering;
        if self.max == 0 {
            self.timer.measure(0, now);
        } else {
            self.timer.measured = None;
        }
        self.max = 1;
        self.timer.restart(now, true);
        self.urgent = Some(Segment {
            seq: self.iss,
            ack: if answering { self.peer_next } else { 0 },
            flags: if answering { SYN | ACK } else { SYN },
            window: u16::MAX,
            mss: Some(MSS as u16),
            scale: Some(SCALE),
            ..Segment::default()
        });
    }

    /// Processes the options of the peer's SYN.
    fn meet(&mut self, syn: &Segment) {
        self.peer_next = syn.seq.wrapping_add(1);
        self.mss = syn.mss.map_or(536, u64::from).clamp(64, MSS);
        self.cwnd = INITIAL_SEGMENTS * self.mss;
        self.scale = syn.scale.unwrap_or(0);
    }

    fn open(&mut self, segment: &Segment, now: Duration) {
        self.state = State::Open;
        (self.una, self.next) = (1, 1);
        // The window of a SYN is not scaled; later ones are.
        self.window = segment.window.into();
        self.timer.acknowledged(1, now);
        self.timer.restart(now, false);
        if segment.has(SYN) {
            self.urgent = Some(self.plain());
        }
    }

    /// Position of an acknowledgement; `None` if it lies beyond what was sent.
    fn position(&self, ack: u32) -> Option<u64> {
        let position = u64::from(ack.wrapping_sub(self.iss));
        (position <= self.max).then_some(position)
    }
}

/// Retransmission timer of RFC 6298.
#[derive(Debug)]
struct Timer {
    deadline: Option<Duration>,
    rto: Duration,
    /// Smoothed round-trip time and its variation.
    estimate: Option<(Duration, Duration)>,
    /// Measurement in progress: a position, and the time it was sent.
    measured: Option<(u64, Duration)>,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            deadline: None,
            rto: RTO_FIRST,
            estimate: None,
            measured: None,
        }
    }
}

impl Timer {
    fn measure(&mut self, position: u64, now: Duration) {
        self.measured.get_or_insert((position, now));
    }

    /// Takes a round-trip sample (RFC 6298, section 2) if the measured position is acknowledged.
    fn acknowledged(&mut self, position: u64, now: Duration) {
        let Some((_, sent)) = self.measured.take_if(|(of, _)| *of < position) else {
            return;
        };
        let sample = now.saturating_sub(sent);
        let (smoothed, variation) = match self.estimate {
            None => (sample, sample / 2),
            Some((smoothed, variation)) => (
                (smoothed * 7 + sample) / 8,
                (variation * 3 + smoothed.abs_diff(sample)) / 4,
            ),
        };
        self.estimate = Some((smoothed, variation));
        self.rto = (smoothed + variation * 4).clamp(RTO_MIN, RTO_MAX);
    }

    fn restart(&mut self, now: Duration, outstanding: bool) {
        self.deadline = outstanding.then(|| now + self.rto);
    }

    fn back_off(&mut self, now: Duration) {
        self.rto = (self.rto * 2).min(RTO_MAX);
        self.measured = None;
        self.restart(now, true);
    }
}

#[cfg(test)]
mod tests;
