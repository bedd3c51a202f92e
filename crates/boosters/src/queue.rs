//! Queue before the link, and the boosters that inspect it.

use std::{collections::VecDeque, fmt::Debug, time::Duration};

use crate::{booster::Out, packet::Packet, rule::Path};

/// FIFO queue of packets. Each packet has a number while it is queued.
#[derive(Debug)]
pub struct Queue {
    /// Packets, each with the time at which its place was taken.
    packets: VecDeque<(Packet, Duration)>,
    /// Number of the first packet.
    first: u64,
    bytes: usize,
    bytes_max: usize,
    patience: Option<Duration>,
    /// Packets dropped because the queue was full.
    pub dropped_full: u64,
    /// Packets dropped because they had waited for too long.
    pub dropped_late: u64,
}

/// Assumed cost of a queued packet beyond its bytes, which also bounds the number of empty ones.
const PLACE: usize = 64;

impl Queue {
    /// Creates a queue of up to `bytes_max` bytes. Packets that wait for longer than `patience` are
    /// dropped.
    #[must_use]
    pub fn new(bytes_max: usize, patience: Option<Duration>) -> Self {
        Self {
            packets: VecDeque::new(),
            first: 0,
            bytes: 0,
            bytes_max,
            patience,
            dropped_full: 0,
            dropped_late: 0,
        }
    }

    /// Appends a packet. Returns its number, or `None` without room.
    pub fn push(&mut self, packet: Packet) -> Option<u64> {
        let cost = packet.bytes.len() + PLACE;
        if self.bytes + cost > self.bytes_max {
            self.dropped_full += 1;
            return None;
        }
        self.bytes += cost;
        let taken = packet.since;
        self.packets.push_back((packet, taken));
        Some(self.first + self.packets.len() as u64 - 1)
    }

    /// Returns the packet of that number, if it is still queued.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Packet> {
        let place = self.packets.get(self.place(number)?);
        place.map(|(packet, _)| packet)
    }

    /// Replaces a packet in its place, and returns the old one. If it has left, returns `None` and
    /// changes nothing. The waiting time of the place stays, or the queue would seem short whenever
    /// its first packet is replaced.
    pub fn replace(&mut self, number: u64, packet: Packet) -> Option<Packet> {
        let place = self.place(number)?;
        let (waiting, _) = self.packets.get_mut(place)?;
        let new = packet.bytes.len();
        let old = std::mem::replace(waiting, packet);
        self.bytes = self.bytes - old.bytes.len() + new;
        Some(old)
    }

    /// Returns the next packet.
    #[must_use]
    pub fn front(&self) -> Option<&Packet> {
        self.packets.front().map(|(packet, _)| packet)
    }

    /// Takes the next packet and its number. Packets that have waited for too long are dropped.
    pub fn pop(&mut self, now: Duration) -> Option<(u64, Packet)> {
        loop {
            let number = self.first;
            let (packet, _) = self.packets.pop_front()?;
            self.first += 1;
            self.bytes -= packet.bytes.len() + PLACE;
            if !self.is_late(now, &packet) {
                return Some((number, packet));
            }
            self.dropped_late += 1;
        }
    }

    /// Drops packets at the front that have waited for too long, so that they do not take the room
    /// of others.
    pub fn expire(&mut self, now: Duration) {
        while let Some((packet, _)) = self.packets.front()
            && self.is_late(now, packet)
        {
            self.bytes -= packet.bytes.len() + PLACE;
            self.dropped_late += 1;
            self.packets.pop_front();
            self.first += 1;
        }
    }

    fn is_late(&self, now: Duration, packet: &Packet) -> bool {
        self.patience
            .is_some_and(|patience| now.saturating_sub(packet.since) > patience)
    }

    /// Returns the maximum waiting time; `None` without a limit.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// Returns how long the first packet, or the one that it replaced, has been waiting.
    #[must_use]
    pub fn delay(&self, now: Duration) -> Duration {
        let first = self.packets.front();
        first.map_or(Duration::ZERO, |(_, taken)| now.saturating_sub(*taken))
    }

    /// Returns the number of packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns whether the queue is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Returns the queued bytes, including the cost per packet.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

/// Booster that inspects queued packets.
pub trait AtQueue: Debug + Send {
    /// Handles a packet about to be queued. Returns the packet, possibly changed, or `None` to drop
    /// it. May change queued packets.
    fn arriving(
        &mut self,
        now: Duration,
        packet: Packet,
        queue: &mut Queue,
        out: &mut Out,
    ) -> Option<Packet>;

    /// Notes that the packet was queued under this number.
    fn queued(&mut self, number: u64, packet: &Packet) {
        let _ = (number, packet);
    }

    /// Handles the packet of that number as it leaves for the link; the last chance to change it.
    /// `queue` holds the remaining ones.
    fn leaving(
        &mut self,
        now: Duration,
        number: u64,
        packet: Packet,
        queue: &Queue,
        out: &mut Out,
    ) -> Packet {
        let _ = (now, number, queue, out);
        packet
    }

    /// Returns whether [`leaving`](Self::leaving) is also called while the booster is off: it must
    /// still finish queued packets that it changed.
    fn finishes(&self) -> bool {
        false
    }

    /// Notes a packet from the link for a host.
    fn seen_up(&mut self, now: Duration, packet: &Packet) {
        let _ = (now, packet);
    }

    /// Updates the known properties of the path.
    fn set_path(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// Discards the state of connections: other packets may have passed while the booster was off,
    /// or the session is new.
    fn reset(&mut self) {}

    /// Reports its counters.
    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        let _ = each;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(byte: u8, at: u64) -> Packet {
        Packet::new(vec![byte; 36], Duration::from_millis(at))
    }

    #[test]
    fn a_place_is_as_old_as_what_was_first_in_it() {
        let ms = Duration::from_millis;
        let mut queue = Queue::new(1000, Some(ms(100)));
        let number = queue.push(packet(1, 0)).expect("room");
        assert!(queue.replace(number, packet(2, 90)).is_some());
        assert_eq!(queue.delay(ms(95)), ms(95));
        // The packet itself is not late.
        queue.expire(ms(150));
        assert_eq!(
            queue.pop(ms(150)).map(|(_, packet)| packet),
            Some(packet(2, 90))
        );
    }

    #[test]
    fn packets_keep_their_order_and_numbers_and_room_is_bounded() {
        let mut queue = Queue::new(1000, Some(Duration::from_millis(100)));
        let numbers: Vec<_> = (0..12)
            .map(|i| queue.push(packet(i, u64::from(i))))
            .collect();
        assert_eq!(numbers.iter().flatten().count(), 10);
        assert_eq!(queue.dropped_full, 2);
        let (number, first) = queue.pop(Duration::ZERO).unwrap();
        assert_eq!((number, first.bytes[0]), (0, 0));
        assert_eq!(queue.replace(3, packet(99, 3)).unwrap().bytes[0], 3);
        assert!(queue.get(0).is_none() && queue.replace(0, packet(1, 1)).is_none());
        assert_eq!(queue.get(5).unwrap().bytes[0], 5);
        let late = Duration::from_millis(105);
        let mut order = Vec::new();
        while let Some((number, packet)) = queue.pop(late) {
            assert_eq!(number, u64::from(packet.bytes[0]));
            order.push(number);
        }
        assert_eq!(order, [5, 6, 7, 8, 9]);
        assert_eq!(queue.dropped_late, 4);
        assert!(queue.is_empty() && queue.bytes() == 0);
        assert_eq!(queue.push(packet(1, 1)), Some(10));
    }
}
