//! The queue ahead of the link.

use std::collections::VecDeque;

use super::{
    Nanos, Packet,
    config::{Aqm, QueueConfig},
};

/// FIFO bounded in bytes or packets. The packet on the wire is not part of it.
#[derive(Debug)]
pub(crate) struct Queue {
    packets: VecDeque<Packet>,
    bytes: u64,
    bytes_max: u64,
    packets_max: u64,
    bytes_peak: u64,
    drop_head: bool,
    codel: Option<CoDel>,
}

impl Queue {
    /// Creates a queue for a link of this bandwidth-delay product, in bytes.
    pub(crate) fn new(config: &QueueConfig, bandwidth_delay_product: u64) -> Self {
        let (bytes_max, packets_max) = config.limits(bandwidth_delay_product);
        Self {
            packets: VecDeque::new(),
            bytes: 0,
            bytes_max,
            packets_max,
            bytes_peak: 0,
            drop_head: config.aqm == Aqm::Head,
            codel: match config.aqm {
                Aqm::CoDel { target, interval } => Some(CoDel::new(target.0, interval.0)),
                Aqm::Tail | Aqm::Head => None,
            },
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn bytes_peak(&self) -> u64 {
        self.bytes_peak
    }

    /// Adds a packet; hands the packets that do not fit, this one or older ones, to `dropped`.
    pub(crate) fn push(&mut self, packet: Packet, mut dropped: impl FnMut(Packet)) {
        let size = packet.bytes.len() as u64;
        while self.drop_head && !self.fits(size) {
            match self.take() {
                Some(oldest) => dropped(oldest),
                None => break,
            }
        }
        if !self.fits(size) {
            return dropped(packet);
        }
        self.bytes += size;
        self.bytes_peak = self.bytes_peak.max(self.bytes);
        self.packets.push_back(packet);
    }

    fn fits(&self, size: u64) -> bool {
        self.bytes + size <= self.bytes_max && (self.packets.len() as u64) < self.packets_max
    }

    /// Takes the next packet to send; hands packets that CoDel drops to `dropped`.
    pub(crate) fn pop(&mut self, now: Nanos, dropped: impl FnMut(Packet)) -> Option<Packet> {
        match self.codel.take() {
            None => self.take(),
            Some(mut codel) => {
                let packet = codel.dequeue(self, now, dropped);
                self.codel = Some(codel);
                packet
            }
        }
    }

    fn take(&mut self) -> Option<Packet> {
        let packet = self.packets.pop_front()?;
        self.bytes -= packet.bytes.len() as u64;
        Some(packet)
    }
}

/// Controlled delay (RFC 8289, section 5), dropping only.
#[derive(Debug)]
struct CoDel {
    target: Nanos,
    interval: Nanos,
    /// Time at which the delay will have been above target for an interval.
    first_above: Option<Nanos>,
    dropping: bool,
    drop_next: Nanos,
    count: u64,
    last_count: u64,
    /// Largest packet seen: a backlog of one packet is no standing queue.
    bytes_largest: u64,
}

impl CoDel {
    fn new(target: std::time::Duration, interval: std::time::Duration) -> Self {
        Self {
            target: super::config::nanos(target),
            interval: super::config::nanos(interval),
            first_above: None,
            dropping: false,
            drop_next: 0,
            count: 0,
            last_count: 0,
            bytes_largest: 0,
        }
    }

    /// RFC 8289, section 5.5: the deque routine.
    fn dequeue(
        &mut self,
        queue: &mut Queue,
        now: Nanos,
        mut dropped: impl FnMut(Packet),
    ) -> Option<Packet> {
        let (mut packet, mut may_drop) = self.next(queue, now);
        if self.dropping {
            self.dropping = may_drop;
            while self.dropping && now >= self.drop_next {
                packet.into_iter().for_each(&mut dropped);
                self.count += 1;
                (packet, may_drop) = self.next(queue, now);
                self.dropping = may_drop;
                if may_drop {
                    self.drop_next = self.control_law(self.drop_next);
                }
            }
        } else if may_drop {
            packet.into_iter().for_each(&mut dropped);
            packet = self.next(queue, now).0;
            self.start_dropping(now);
        }
        packet
    }

    /// Starts to drop, from the drop rate of last time if that is recent (RFC 8289, section 5.4).
    fn start_dropping(&mut self, now: Nanos) {
        self.dropping = true;
        let delta = self.count - self.last_count;
        let recent = now.saturating_sub(self.drop_next) < 16 * self.interval;
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.control_law(now);
        self.last_count = self.count;
    }

    /// RFC 8289, section 5.6: the dodequeue routine. Returns the packet, and whether CoDel may drop
    /// it.
    fn next(&mut self, queue: &mut Queue, now: Nanos) -> (Option<Packet>, bool) {
        let Some(packet) = queue.take() else {
            self.first_above = None;
            return (None, false);
        };
        self.bytes_largest = self.bytes_largest.max(packet.bytes.len() as u64);
        let sojourn = now.saturating_sub(packet.offered);
        if sojourn < self.target || queue.bytes <= self.bytes_largest {
            self.first_above = None;
            return (Some(packet), false);
        }
        let first_above = *self.first_above.get_or_insert(now + self.interval);
        (Some(packet), now >= first_above)
    }

    fn control_law(&self, time: Nanos) -> Nanos {
        time + (self.interval as f64 / (self.count as f64).sqrt()) as u64
    }
}
