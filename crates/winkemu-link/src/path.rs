//! One direction of a link.

use std::collections::VecDeque;

use super::{
    Cause, Decision, Direction, Fate, Nanos, Packet, PathStats, QueueHistory,
    config::{InFlight, LinkConfig, Queued},
    decision::{Draw, Recording},
    delay::Delay,
    loss::Loss,
    outage::Gate,
    queue::Queue,
    random::{Model, Stream},
    serialiser::{Pace, RateSchedule, Serialiser, Step},
};

/// Maximum bytes in flight in one direction; packets beyond it are dropped and counted
/// ([`Cause::PipeFull`]). 1 GiB is 10 Gbit/s over 850 ms.
pub const FLIGHT_BYTES_MAX: u64 = 1 << 30;

/// Pool of packet buffers for reuse.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    buffers: Vec<Vec<u8>>,
}

impl Pool {
    pub(crate) fn copy(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut buffer = self.buffers.pop().unwrap_or_default();
        buffer.clear();
        buffer.extend_from_slice(bytes);
        buffer
    }

    pub(crate) fn put(&mut self, buffer: Vec<u8>) {
        self.buffers.push(buffer);
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }
}

/// Stages of one direction, in the order of the diagram in [`super`].
#[derive(Debug)]
pub(crate) struct Path {
    queue: Queue,
    history: QueueHistory,
    rate: RateSchedule,
    overhead: u64,
    serialiser: Serialiser,
    sending: Option<Packet>,
    gate: Gate,
    queued: Queued,
    in_flight: InFlight,
    loss: Loss,
    delay: Delay,
    delay_min: Nanos,
    reorder: bool,
    duplicate: (f64, Stream),
    corrupt: (f64, Stream),
    corrupt_bit: Stream,
    /// Packets in flight, in the order of delivery.
    flight: VecDeque<Packet>,
    flight_bytes: u64,
    due_last: Nanos,
    recording: Option<Recording>,
    ledger: Ledger,
}

impl Path {
    pub(crate) fn new(link: &LinkConfig, direction: Direction, seed: u64) -> Self {
        let config = link.path(direction);
        let stream = |model| Stream::of_direction(seed, link.id, direction, model);
        let delay = Delay::new(&config.delay, seed, link.id, direction);
        Self {
            queue: Queue::new(&config.queue, link.bandwidth_delay_product(direction)),
            history: QueueHistory::default(),
            rate: RateSchedule::new(&config.rate),
            overhead: u64::from(config.overhead_bytes),
            serialiser: Serialiser::default(),
            sending: None,
            gate: Gate::new(&config.outages, seed, link.id),
            queued: config.queued,
            in_flight: config.in_flight,
            loss: Loss::new(&config.loss, seed, link.id, direction),
            delay_min: delay.minimum(),
            delay,
            reorder: config.delay.reorder,
            duplicate: (config.duplicate.get(), stream(Model::Duplicate)),
            corrupt: (config.corrupt.get(), stream(Model::Corrupt)),
            corrupt_bit: stream(Model::CorruptBit),
            flight: VecDeque::new(),
            flight_bytes: 0,
            due_last: 0,
            recording: None,
            ledger: Ledger {
                direction,
                stats: PathStats::default(),
                decisions: None,
            },
        }
    }

    pub(crate) fn record(&mut self) {
        self.ledger.decisions.get_or_insert_default();
    }

    pub(crate) fn replay(&mut self, decision: &Decision) {
        self.recording.get_or_insert_default().add(decision);
    }

    pub(crate) fn poll_decision(&mut self) -> Option<Decision> {
        self.ledger.decisions.as_mut()?.pop_front()
    }

    pub(crate) fn stats(&self) -> PathStats {
        let sending = u64::from(self.sending.is_some());
        PathStats {
            held: (self.queue.len() + self.flight.len()) as u64 + sending,
            queue_bytes_peak: self.queue.bytes_peak(),
            ..self.ledger.stats
        }
    }

    #[cfg(test)]
    pub(crate) fn fill_flight(&mut self, bytes: u64) {
        self.flight_bytes += bytes;
    }

    pub(crate) fn queue_bytes(&self) -> u64 {
        self.queue.bytes()
    }

    pub(crate) fn queue_history(&self, now: Nanos) -> QueueHistory {
        let mut history = self.history.clone();
        history.extend(now);
        history
    }

    /// Accepts a packet. `now` must not lie before that of the last call.
    pub(crate) fn handle_packet(&mut self, bytes: &[u8], now: Nanos, pool: &mut Pool) {
        self.advance(now, pool);
        let packet = Packet {
            bytes: pool.copy(bytes),
            index: self.ledger.stats.offered,
            offered: now,
            due: now,
        };
        self.ledger.stats.offered += 1;
        self.ledger.stats.offered_bytes += bytes.len() as u64;
        if self.sending.is_none() {
            self.send(packet, now);
            // Without a rate limit the packet passes at once.
            return self.advance(now, pool);
        }
        let ledger = &mut self.ledger;
        self.queue
            .push(packet, |packet| ledger.drop(packet, Cause::QueueFull, pool));
        self.history.note(now, self.queue.bytes());
    }

    /// Runs every event up to `now`, each at its exact time.
    pub(crate) fn advance(&mut self, now: Nanos, pool: &mut Pool) {
        while let Some(deadline) = self.serialiser.deadline().filter(|at| *at <= now) {
            match self.serialiser.step() {
                Step::Repace => {
                    let pace = self.pace(deadline);
                    self.serialiser.resume(deadline, pace);
                }
                Step::Finished => self.finish(deadline, pool),
            }
        }
    }

    /// Next packet due by `now`. Call [`Self::advance`] first.
    pub(crate) fn poll_deliver(&mut self, now: Nanos) -> Option<Packet> {
        self.next_due().filter(|due| *due <= now)?;
        let packet = self.flight.pop_front()?;
        self.flight_bytes -= packet.bytes.len() as u64;
        self.ledger.stats.delivered += 1;
        self.ledger.stats.delivered_bytes += packet.bytes.len() as u64;
        Some(packet)
    }

    pub(crate) fn next_due(&self) -> Option<Nanos> {
        self.flight.front().map(|packet| packet.due)
    }

    /// Time before which no packet comes out.
    pub(crate) fn poll_timeout(&self) -> Option<Nanos> {
        // A packet in transmission arrives no sooner than the minimum delay after its last bit.
        let sent = self.serialiser.deadline();
        let sent = sent.map(|at| at.saturating_add(self.delay_min));
        let earliest = [self.next_due(), sent].into_iter().flatten().min();
        earliest.filter(|at| *at != super::FOREVER)
    }

    fn pace(&mut self, now: Nanos) -> Pace {
        let pace = self.rate.at(now);
        if self.queued == Queued::Drop {
            return pace;
        }
        let link = self.gate.at(now);
        Pace {
            rate: if link.up { pace.rate } else { Some(0) },
            until: pace.until.min(link.until),
        }
    }

    fn send(&mut self, packet: Packet, now: Nanos) {
        let bytes = packet.bytes.len() as u64 + self.overhead;
        let pace = self.pace(now);
        self.serialiser.start(bytes, now, pace);
        self.sending = Some(packet);
    }

    /// Ends the transmission of a packet at `now`: decides its fate and starts the next one.
    fn finish(&mut self, now: Nanos, pool: &mut Pool) {
        if let Some(packet) = self.sending.take() {
            self.pass(packet, now, pool);
        }
        let ledger = &mut self.ledger;
        let next = self
            .queue
            .pop(now, |packet| ledger.drop(packet, Cause::CoDel, pool));
        self.history.note(now, self.queue.bytes());
        match next {
            Some(packet) => self.send(packet, now),
            None => self.serialiser.idle(),
        }
    }

    /// Passes a packet from the gate to the pipe.
    fn pass(&mut self, packet: Packet, now: Nanos, pool: &mut Pool) {
        let recorded = self.recording.as_ref().and_then(|r| r.draw(packet.index));
        let is_recorded = recorded.is_some();
        let flight = match recorded.unwrap_or_else(|| self.draw(&packet, now)) {
            Draw::Lost(cause) => Err(cause),
            Draw::Passes {
                jitter,
                duplicate,
                corrupt_bit,
            } => self
                .due(&packet, now, jitter, is_recorded)
                .map(|due| Flight {
                    due,
                    jitter,
                    duplicate,
                    corrupt_bit,
                }),
        };
        match flight {
            Err(cause) => self.ledger.drop(packet, cause, pool),
            Ok(flight) => self.fly(packet, flight, pool),
        }
    }

    /// Draws the fate of a packet.
    fn draw(&mut self, packet: &Packet, now: Nanos) -> Draw {
        let bytes = packet.bytes.len() as u64 + self.overhead;
        // Draw even when the link is down, because the burst state advances with each packet.
        let lost = self.loss.verdict(packet.index, bytes);
        let down = self.queued == Queued::Drop && !self.gate.at(now).up;
        match (down, lost) {
            (true, _) => Draw::Lost(Cause::Outage),
            (false, Some(cause)) => Draw::Lost(cause),
            (false, None) => self.draw_passing(packet),
        }
    }

    fn draw_passing(&self, packet: &Packet) -> Draw {
        let index = packet.index;
        let happens = |(share, draws): (f64, Stream)| draws.happens(index, share);
        let bits = packet.bytes.len() as u64 * 8;
        let corrupt = happens(self.corrupt) && bits > 0;
        Draw::Passes {
            jitter: self.delay.jitter(index),
            duplicate: happens(self.duplicate),
            corrupt_bit: corrupt.then(|| (self.corrupt_bit.bits(index) % bits) as u32),
        }
    }

    /// Arrival time of a packet sent at `now`, or the cause of its loss. For a replayed packet the
    /// recording decides the loss in flight.
    fn due(
        &mut self,
        packet: &Packet,
        now: Nanos,
        jitter: Nanos,
        is_recorded: bool,
    ) -> Result<Nanos, Cause> {
        if self.flight_bytes + packet.bytes.len() as u64 > FLIGHT_BYTES_MAX {
            return Err(Cause::PipeFull);
        }
        let delay = self.delay.base(now).saturating_add(jitter);
        let mut due = now.saturating_add(delay);
        if !self.reorder {
            due = due.max(self.due_last);
        }
        match self.in_flight {
            InFlight::Drop if !is_recorded && !self.gate.is_up_throughout(now, due) => {
                Err(Cause::OutageInFlight)
            }
            InFlight::Hold => Ok(self.gate.next_up(due)),
            InFlight::Pass | InFlight::Drop => Ok(due),
        }
    }

    /// Puts a packet into the pipe, followed by its duplicate.
    fn fly(&mut self, mut packet: Packet, flight: Flight, pool: &mut Pool) {
        packet.due = flight.due;
        self.due_last = self.due_last.max(flight.due);
        self.ledger.deliver(&packet, flight);
        if let Some(bit) = flight.corrupt_bit {
            packet.bytes[bit as usize / 8] ^= 0x80 >> (bit % 8);
        }
        if flight.duplicate {
            let copy = Packet {
                bytes: pool.copy(&packet.bytes),
                ..packet
            };
            self.insert(copy);
        }
        self.insert(packet);
    }

    /// Inserts behind all packets due at the same time or before. Packets keep their order unless
    /// they may overtake.
    fn insert(&mut self, packet: Packet) {
        self.flight_bytes += packet.bytes.len() as u64;
        let earlier = self.flight.iter().rev().position(|p| p.due <= packet.due);
        let overtaken = earlier.unwrap_or(self.flight.len());
        self.flight.insert(self.flight.len() - overtaken, packet);
    }
}

/// Passage of a packet through the pipe.
#[derive(Debug, Clone, Copy)]
struct Flight {
    due: Nanos,
    jitter: Nanos,
    duplicate: bool,
    corrupt_bit: Option<u32>,
}

/// Counters, and the decisions if they are recorded.
#[derive(Debug)]
struct Ledger {
    direction: Direction,
    stats: PathStats,
    decisions: Option<VecDeque<Decision>>,
}

impl Ledger {
    fn drop(&mut self, packet: Packet, cause: Cause, pool: &mut Pool) {
        *self.stats.dropped.counter(cause) += 1;
        self.note(&packet, Fate::Dropped { cause });
        pool.put(packet.bytes);
    }

    fn deliver(&mut self, packet: &Packet, flight: Flight) {
        self.stats.duplicated += u64::from(flight.duplicate);
        self.stats.corrupted += u64::from(flight.corrupt_bit.is_some());
        let fate = Fate::Delivered {
            due: flight.due,
            jitter: flight.jitter,
            duplicate: flight.duplicate,
            corrupt_bit: flight.corrupt_bit,
        };
        self.note(packet, fate);
    }

    fn note(&mut self, packet: &Packet, fate: Fate) {
        if let Some(decisions) = &mut self.decisions {
            decisions.push_back(Decision {
                direction: self.direction,
                index: packet.index,
                bytes: packet.bytes.len() as u32,
                offered: packet.offered,
                fate,
            });
        }
    }
}
