//! `congestion`: senders hear of a queue that stands here before it is full (congestion-control booster, ramakrishnan2000 §2.3).
//!
//! The law is CoDel's (RFC 8289 §5): once packets have waited for longer than the target for an interval, one is marked, and others the sooner the longer it
//! lasts. Who understands marks (ECN, RFC 3168) gets one; a TCP sender who does not gets three duplicates of the last acknowledgement that was
//! seen for it, once a round trip, upon which it halves its window and sends one segment again (RFC 5681 §3.2). Nothing is dropped.

use std::time::Duration;

use crate::{
    booster::Out,
    ecn,
    flow::Flows,
    ip::Ip,
    packet::Packet,
    queue::{AtQueue, Queue},
    rule::Path,
    tcp::{Tcp, flags},
};

/// How a sender hears of congestion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// By ECN, where its packets allow it.
    Ecn,
    /// By duplicate acknowledgements, where it speaks TCP.
    DupAck,
    /// By ECN where its packets allow it, else by duplicate acknowledgements.
    #[default]
    Both,
}

/// When senders hear of it, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Packets wait for longer than this. Default 100 ms.
    pub target: Duration,
    /// How.
    pub mark: Mark,
    /// Connections that are known at a time. Default 4096.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(100),
            mark: Mark::Both,
            flows_max: 4096,
        }
    }
}

/// Duplicates upon which a sender acts.
const DUPLICATES: usize = 3;
/// The interval of the law at least.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Tells senders.
#[derive(Debug)]
pub struct Congestion {
    config: Config,
    interval: Duration,
    /// When packets will have waited for too long for an interval.
    first_above: Option<Duration>,
    /// When the next one is told, and how many were.
    telling: Option<(Duration, u32)>,
    /// The last acknowledgement for each sender, and when it was told last.
    flows: Flows<(Vec<u8>, Option<Duration>)>,
    marked: u64,
    duplicated: u64,
    untold: u64,
}

impl Congestion {
    /// Has told nobody yet.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            flows: Flows::new(config.flows_max),
            config,
            interval: INTERVAL_MIN,
            first_above: None,
            telling: None,
            marked: 0,
            duplicated: 0,
            untold: 0,
        }
    }

    /// Whether this packet's sender is to hear of it.
    fn is_due(&mut self, now: Duration, waited: Duration) -> bool {
        if waited < self.config.target {
            (self.first_above, self.telling) = (None, None);
            return false;
        }
        let first = *self.first_above.get_or_insert(now + self.interval);
        let (next, count) = self.telling.unwrap_or((first, 0));
        if now < next {
            return false;
        }
        let count = count.saturating_add(1);
        let pause = self.interval.div_f64(f64::from(count).sqrt());
        self.telling = Some((now + pause, count));
        true
    }

    fn duplicate(&mut self, now: Duration, packet: &Packet, out: &mut Out) -> bool {
        let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) else {
            return false;
        };
        let Some((ack, told)) = self.flows.get(&tcp.ip.key()) else {
            return false;
        };
        if tcp.data().is_empty() || told.is_some_and(|told| now < told + self.interval) {
            return false;
        }
        *told = Some(now);
        for _ in 0..DUPLICATES {
            out.up.push(Packet::new(ack.clone(), now));
        }
        true
    }
}

impl AtQueue for Congestion {
    fn arriving(
        &mut self,
        _now: Duration,
        packet: Packet,
        _queue: &mut Queue,
        _out: &mut Out,
    ) -> Option<Packet> {
        Some(packet)
    }

    fn leaving(
        &mut self,
        now: Duration,
        _number: u64,
        mut packet: Packet,
        _queue: &Queue,
        out: &mut Out,
    ) -> Packet {
        if !self.is_due(now, now.saturating_sub(packet.since)) {
            return packet;
        }
        if self.config.mark != Mark::DupAck && ecn::mark(&mut packet.bytes) {
            packet.ecn = ecn::Ecn::Ce;
            self.marked += 1;
        } else if self.config.mark != Mark::Ecn && self.duplicate(now, &packet, out) {
            self.duplicated += 1;
        } else {
            self.untold += 1;
        }
        packet
    }

    fn seen_up(&mut self, _now: Duration, packet: &Packet) {
        if self.config.mark == Mark::Ecn {
            return;
        }
        let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) else {
            return;
        };
        let sender = tcp.ip.key().reversed();
        if tcp.has(flags::RST | flags::SYN | flags::FIN) {
            self.flows.remove(&sender);
        } else if tcp.is_plain_ack() {
            let bytes = packet.bytes.clone();
            let (flow, _) = self.flows.entry(sender, Default::default);
            flow.0 = bytes;
        }
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.interval = path.rtt.max(INTERVAL_MIN);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("marked", self.marked);
        each("duplicated", self.duplicated);
        each("untold", self.untold);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::tests::{answer, segment};

    /// So many packets, each of which has waited for so long; how many were marked and how often acknowledgements were doubled.
    fn run(mark: Mark, ecn: u8, waited: Duration) -> (u64, u64, u64) {
        let mut booster = Congestion::new(Config {
            mark,
            ..Config::default()
        });
        booster.set_path(Duration::ZERO, &Path::default());
        let (queue, mut out) = (Queue::new(1000, None), Out::default());
        let ack = Packet::new(answer(9, 100, flags::ACK, &[]), Duration::ZERO);
        booster.seen_up(Duration::ZERO, &ack);
        for number in 0..1000u64 {
            let now = Duration::from_secs(10) + Duration::from_millis(number * 2);
            let mut bytes = segment(100, 9, flags::ACK, b"data");
            bytes[1] = ecn;
            crate::checksum::replace_u16(&mut bytes, 10, 0x4500, 0x4500 | u16::from(ecn));
            let packet = Packet::new(bytes, now - waited);
            let before = packet.clone();
            let after = booster.leaving(now, number, packet, &queue, &mut out);
            assert_eq!(after.bytes.len(), before.bytes.len());
            assert!(crate::checksum::is_valid(&after.bytes[..20]));
        }
        assert!(out.up.iter().all(|packet| packet.bytes == ack.bytes));
        assert_eq!(out.up.len() as u64, booster.duplicated * 3);
        (booster.marked, booster.duplicated, booster.untold)
    }

    #[test]
    fn a_queue_that_stands_is_told_by_marks_or_duplicates_and_a_short_one_is_not() {
        let (long, short) = (Duration::from_millis(300), Duration::from_millis(50));
        for mark in [Mark::Ecn, Mark::DupAck, Mark::Both] {
            assert_eq!(run(mark, 2, short), (0, 0, 0));
        }
        let (marked, duplicated, _) = run(Mark::Both, 2, long);
        assert!((40..200).contains(&marked) && duplicated == 0, "{marked}");
        let (marked, duplicated, _) = run(Mark::Both, 0, long);
        assert!(
            (15..22).contains(&duplicated) && marked == 0,
            "{duplicated}"
        );
        let (marked, duplicated, untold) = run(Mark::Ecn, 0, long);
        assert!(marked == 0 && duplicated == 0 && untold > 0);
    }
}
