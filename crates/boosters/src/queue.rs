//! Packets before the link, and those who may look at them there.

use std::{collections::VecDeque, fmt::Debug, time::Duration};

use crate::{booster::Out, packet::Packet, rule::Path};

/// Packets that wait for their turn, in order. Each has a number for as long as it is here.
#[derive(Debug)]
pub struct Queue {
    /// Beside each, when its place was taken.
    packets: VecDeque<(Packet, Duration)>,
    /// Of the first packet.
    first: u64,
    bytes: usize,
    bytes_max: usize,
    patience: Option<Duration>,
    /// Packets for which there was no room.
    pub dropped_full: u64,
    /// Packets that had waited for too long to be of use.
    pub dropped_late: u64,
}

/// What a queued packet is taken to cost beyond its bytes, so that many empty ones are bounded too.
const PLACE: usize = 64;

impl Queue {
    /// Of at most so many bytes; who waits for longer than `patience` does not matter any more.
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

    /// Puts a packet at the end; its number, unless there is no room for it.
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

    /// The packet of that number, if it is still here.
    #[must_use]
    pub fn get(&self, number: u64) -> Option<&Packet> {
        let place = self.packets.get(self.place(number)?);
        place.map(|(packet, _)| packet)
    }

    /// Puts another packet in the place of one. Returns that, or `None`, with nothing changed, if it is not here any more. The place has been
    /// waiting for as long as before, or the queue would seem short whenever its first packet is replaced.
    pub fn replace(&mut self, number: u64, packet: Packet) -> Option<Packet> {
        let place = self.place(number)?;
        let (waiting, _) = self.packets.get_mut(place)?;
        let new = packet.bytes.len();
        let old = std::mem::replace(waiting, packet);
        self.bytes = self.bytes - old.bytes.len() + new;
        Some(old)
    }

    /// The next packet and its number. Those that have waited for too long are dropped.
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

    /// Drops those at the front that have waited for too long, so that they do not take the room of others.
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

    /// How long a packet may wait; `None` for ever.
    #[must_use]
    pub fn patience(&self) -> Option<Duration> {
        self.patience
    }

    /// For how long the first packet, or what it has replaced, has been waiting.
    #[must_use]
    pub fn delay(&self, now: Duration) -> Duration {
        let first = self.packets.front();
        first.map_or(Duration::ZERO, |(_, taken)| now.saturating_sub(*taken))
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// What is queued, in bytes, with what packets cost beyond theirs.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.first)?).ok()
    }
}

/// A booster that looks at what is queued.
pub trait AtQueue: Debug + Send {
    /// A packet is about to be queued: returned as it is to be, or `None` if it is done with. May change what is
    /// queued.
    fn arriving(
        &mut self,
        now: Duration,
        packet: Packet,
        queue: &mut Queue,
        out: &mut Out,
    ) -> Option<Packet>;

    /// It has been queued under this number.
    fn queued(&mut self, number: u64, packet: &Packet) {
        let _ = (number, packet);
    }

    /// The packet of that number leaves for the link; it may be changed for the last time. `queue` is what is left.
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

    /// Whether [`leaving`](Self::leaving) is called while it is switched off, too: what it began with queued packets is still to be finished.
    fn finishes(&self) -> bool {
        false
    }

    /// A packet has come by the link for a host.
    fn seen_up(&mut self, now: Duration, packet: &Packet) {
        let _ = (now, packet);
    }

    /// What is known of the path has changed.
    fn set_path(&mut self, now: Duration, path: &Path) {
        let _ = (now, path);
    }

    /// What was seen of connections counts no more: others may have passed since, as this was off or the session is another one.
    fn reset(&mut self) {}

    /// What it has done so far.
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
