//! `congestion`: signals congestion to senders before the queue in front of the link is full
//! (congestion-control booster, ramakrishnan2000 §2.3).
//!
//! The law is CoDel's (RFC 8289 §5). Once packets have waited longer than the target for an
//! interval, one is marked, and further ones ever sooner while the delay lasts. Senders that
//! support ECN (RFC 3168) get a mark. Other TCP senders are signalled once per round trip, by an
//! apparent or real loss:
//!
//! - Without SACK, by three duplicates of the last acknowledgement seen for the sender. It halves
//!   its window and retransmits one segment (RFC 5681 §3.2). No segment is lost.
//! - With SACK, or if SACK support is unknown, by a loss: such senders ignore duplicates without
//!   SACK ranges (RFC 6675 §2). The next new segment of the sender is dropped, as CoDel does.
//!   Retransmissions are never dropped.
//!
//! Packets of other protocols without ECN are only counted (`not_signalled`).

use std::time::Duration;

use crate::{
    booster::Out,
    ecn,
    flow::Flows,
    packet::Packet,
    queue::{AtQueue, Queue},
    rule::Path,
    tcp::{Tcp, flags, is_after},
};

pub use pep_core::site::boost::CongestionMark as Mark;

/// Settings of the booster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Maximum waiting time of packets before senders are signalled. Default 100 ms.
    pub target: Duration,
    /// Kind of signal.
    pub mark: Mark,
    /// Connections tracked at a time. Default 4096.
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

/// Number of duplicates upon which a sender acts.
const DUPLICATES: usize = 3;
/// Minimum interval of the law.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Signals congestion to senders.
#[derive(Debug)]
pub struct Congestion {
    config: Config,
    interval: Duration,
    /// Time at which packets will have waited too long for an interval.
    first_above: Option<Duration>,
    /// Time of the next signal, and the number of signals so far.
    next_signal: Option<(Duration, u32)>,
    /// State of each sender.
    flows: Flows<Flow>,
    marked: u64,
    duplicated: u64,
    dropped: u64,
    not_signalled: u64,
}

/// State of a sender.
#[derive(Debug, Default)]
struct Flow {
    /// Last acknowledgement for it, if it was plain, and its number.
    ack: Option<(u32, Vec<u8>)>,
    /// Number after the highest byte that it has sent.
    highest: Option<u32>,
    /// Offer of SACK in each end's SYN (RFC 2018 §2): the sender, the other.
    sack: [Option<bool>; 2],
    /// Time of the last signal to it.
    signalled: Option<Duration>,
    /// True if its next new segment is to be dropped.
    drops: bool,
}

impl Flow {
    /// Returns whether the sender reacts to plain duplicates.
    fn counts_duplicates(&self) -> bool {
        self.sack.contains(&Some(false))
    }

    /// Handles a SYN of one end; the first one begins a new connection.
    fn on_syn(&mut self, end: usize, tcp: &Tcp<'_>) {
        if !tcp.has(flags::ACK) {
            *self = Self::default();
        }
        self.sack[end] = Some(tcp.options().any(|option| option.kind == SACK_PERMITTED));
        (self.ack, self.highest) = (None, None);
    }
}

/// Option by which an end of a connection offers SACK.
const SACK_PERMITTED: u8 = 4;

impl Congestion {
    /// Creates a booster that has signalled no sender.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            flows: Flows::new(config.flows_max),
            config,
            interval: INTERVAL_MIN,
            first_above: None,
            next_signal: None,
            marked: 0,
            duplicated: 0,
            dropped: 0,
            not_signalled: 0,
        }
    }

    /// Returns whether this packet's sender is to be signalled.
    fn is_due(&mut self, now: Duration, waited: Duration) -> bool {
        if waited < self.config.target {
            (self.first_above, self.next_signal) = (None, None);
            return false;
        }
        let first = *self.first_above.get_or_insert(now + self.interval);
        let (next, count) = self.next_signal.unwrap_or((first, 0));
        if now < next {
            return false;
        }
        let count = count.saturating_add(1);
        let pause = self.interval.div_f64(f64::from(count).sqrt());
        self.next_signal = Some((now + pause, count));
        true
    }

    /// Signals the sender now, or marks its next new segment to be dropped. Returns true if done.
    fn mark_or_notify(&mut self, now: Duration, packet: &Packet, out: &mut Out) -> bool {
        let Some(tcp) = Tcp::read(&packet.bytes) else {
            return false;
        };
        let Some(flow) = self.flows.get(&tcp.ip.key()) else {
            return false;
        };
        if tcp.data().is_empty()
            || flow
                .signalled
                .is_some_and(|signalled| now < signalled + self.interval)
        {
            return false;
        }
        if !flow.counts_duplicates() {
            flow.signalled = Some(now);
            flow.drops = true;
            return true;
        }
        let Some((_, ack)) = &flow.ack else {
            return false;
        };
        flow.signalled = Some(now);
        for _ in 0..DUPLICATES {
            out.up.push(Packet::new(ack.clone(), now));
        }
        self.duplicated += 1;
        true
    }

    /// Returns whether this is the new segment to be dropped.
    fn is_dropped(&mut self, now: Duration, packet: &Packet) -> bool {
        let Some(tcp) = Tcp::read(&packet.bytes) else {
            return false;
        };
        if tcp.has(flags::RST) {
            self.flows.remove(&tcp.ip.key());
            return false;
        }
        if !tcp.has(flags::SYN) && tcp.data().is_empty() {
            return false;
        }
        let (flow, _) = self.flows.entry(tcp.ip.key(), Flow::default);
        if tcp.has(flags::SYN) {
            flow.on_syn(0, &tcp);
            return false;
        }
        let is_new = flow
            .highest
            .is_some_and(|highest| is_after(tcp.end(), highest));
        if is_new || flow.highest.is_none() {
            flow.highest = Some(tcp.end());
        }
        // An earlier queue does not count.
        let recent = flow
            .signalled
            .is_some_and(|signalled| now < signalled + self.interval);
        flow.drops &= recent;
        // A lost FIN or urgent segment would delay the connection.
        let drops = flow.drops && is_new && !tcp.has(flags::FIN | flags::URG);
        flow.drops &= !drops;
        drops && !packet.ecn.is_capable()
    }
}

impl AtQueue for Congestion {
    fn arriving(
        &mut self,
        now: Duration,
        packet: Packet,
        _queue: &mut Queue,
        _out: &mut Out,
    ) -> Option<Packet> {
        if self.config.mark != Mark::Ecn && self.is_dropped(now, &packet) {
            self.dropped += 1;
            return None;
        }
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
        } else if self.config.mark == Mark::Ecn || !self.mark_or_notify(now, &packet, out) {
            self.not_signalled += 1;
        }
        packet
    }

    fn seen_up(&mut self, _now: Duration, packet: &Packet) {
        if self.config.mark == Mark::Ecn {
            return;
        }
        let Some(tcp) = Tcp::read(&packet.bytes) else {
            return;
        };
        let sender = tcp.ip.key().reversed();
        if tcp.has(flags::RST) {
            self.flows.remove(&sender);
            return;
        }
        let (flow, _) = self.flows.entry(sender, Flow::default);
        if tcp.has(flags::SYN) {
            flow.on_syn(1, &tcp);
        } else if tcp.is_plain_ack() && !tcp.has_sack() {
            flow.ack = Some((tcp.ack, packet.bytes.clone()));
        } else if tcp.has(flags::ACK) {
            // Its sender knows more than the kept acknowledgement contains.
            flow.ack = flow.ack.take().filter(|(ack, _)| !is_after(tcp.ack, *ack));
        }
        if tcp.has(flags::FIN) {
            flow.ack = None;
        }
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.interval = path.rtt.max(INTERVAL_MIN);
    }

    fn reset(&mut self) {
        self.flows.clear();
        (self.first_above, self.next_signal) = (None, None);
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("marked", self.marked);
        each("duplicated", self.duplicated);
        each("dropped", self.dropped);
        each("not_signalled", self.not_signalled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::{
        seal,
        tests::{answer, segment, with_options},
    };

    /// Opens a connection with these offers of SACK.
    fn open(booster: &mut Congestion, sack: [bool; 2]) {
        let options = |sack: bool| if sack { &[4, 2][..] } else { &[] };
        let flag = |mut bytes: Vec<u8>, flags| {
            bytes[20 + 13] = flags;
            seal(&mut bytes);
            bytes
        };
        let syn = with_options(&segment(99, 0, flags::SYN, &[]), options(sack[0]));
        let answer = with_options(&answer(8, 100, flags::SYN, &[]), options(sack[1]));
        arrive(booster, Duration::ZERO, flag(syn, flags::SYN));
        let answer = flag(answer, flags::SYN | flags::ACK);
        booster.seen_up(Duration::ZERO, &Packet::new(answer, Duration::ZERO));
    }

    /// Returns whether the packet is to be queued.
    fn arrive(booster: &mut Congestion, now: Duration, bytes: Vec<u8>) -> bool {
        let packet = Packet::new(bytes, now);
        let (mut queue, mut out) = (Queue::new(1000, None), Out::default());
        let arrived = booster.arriving(now, packet, &mut queue, &mut out);
        arrived.is_some()
    }

    /// Sends segments of a connection, each of which has waited for `waited`. Returns how many were
    /// marked, signalled by duplicates, by loss, or not at all.
    fn run(mark: Mark, ecn: u8, waited: Duration, sack: [bool; 2]) -> [u64; 4] {
        let mut booster = Congestion::new(Config {
            mark,
            ..Config::default()
        });
        booster.set_path(Duration::ZERO, &Path::default());
        open(&mut booster, sack);
        let (queue, mut out) = (Queue::new(1000, None), Out::default());
        let ack = Packet::new(answer(9, 100, flags::ACK, &[]), Duration::ZERO);
        booster.seen_up(Duration::ZERO, &ack);
        for number in 0..1000u32 {
            let now = Duration::from_secs(10) + Duration::from_millis(u64::from(number) * 2);
            let mut bytes = segment(100 + number * 4, 9, flags::ACK, b"data");
            bytes[1] = ecn;
            crate::checksum::replace_u16(&mut bytes, 10, 0x4500, 0x4500 | u16::from(ecn));
            if !arrive(&mut booster, now, bytes.clone()) {
                // Retransmitted until it arrives.
                assert!(arrive(&mut booster, now, bytes.clone()));
            }
            let packet = Packet::new(bytes, now - waited);
            let before = packet.clone();
            let after = booster.leaving(now, number.into(), packet, &queue, &mut out);
            assert_eq!(after.bytes.len(), before.bytes.len());
            assert!(crate::checksum::is_valid(&after.bytes[..20]));
        }
        assert!(out.up.iter().all(|packet| packet.bytes == ack.bytes));
        assert_eq!(out.up.len() as u64, booster.duplicated * 3);
        [
            booster.marked,
            booster.duplicated,
            booster.dropped,
            booster.not_signalled,
        ]
    }

    #[test]
    fn a_standing_queue_is_signalled_by_marks_duplicates_or_loss_and_a_short_one_is_not() {
        let (long, short) = (Duration::from_millis(300), Duration::from_millis(50));
        for mark in [Mark::Ecn, Mark::DupAck, Mark::Both] {
            for sack in [[true; 2], [false; 2]] {
                assert_eq!(run(mark, 2, short, sack), [0; 4]);
            }
        }
        let [marked, duplicated, dropped, _] = run(Mark::Both, 2, long, [true; 2]);
        assert!((40..200).contains(&marked), "{marked}");
        assert_eq!((duplicated, dropped), (0, 0));
        for sack in [[false, false], [true, false], [false, true]] {
            let [marked, duplicated, dropped, _] = run(Mark::Both, 0, long, sack);
            assert!((15..22).contains(&duplicated), "{duplicated}");
            assert_eq!((marked, dropped), (0, 0));
        }
        let [marked, duplicated, dropped, _] = run(Mark::Both, 0, long, [true; 2]);
        assert!((15..22).contains(&dropped), "{dropped}");
        assert_eq!((marked, duplicated), (0, 0));
        let [marked, duplicated, dropped, not_signalled] = run(Mark::Ecn, 0, long, [true; 2]);
        assert!(marked + duplicated + dropped == 0 && not_signalled > 0);
    }

    #[test]
    fn nothing_is_dropped_for_a_queue_of_long_ago() {
        let mut booster = Congestion::new(Config::default());
        let data = |number: u32| segment(100 + number * 4, 9, flags::ACK, b"data");
        let (queue, mut out) = (Queue::new(1000, None), Out::default());
        let second = Duration::from_secs(1);
        assert!(arrive(&mut booster, second, data(0)));
        for ms in 0..120 {
            let now = second + Duration::from_millis(ms);
            let packet = Packet::new(data(0), Duration::ZERO);
            booster.leaving(now, 0, packet, &queue, &mut out);
        }
        assert!(arrive(&mut booster, second * 5, data(1)));
        assert!(arrive(&mut booster, second * 5, data(2)));
        assert_eq!((booster.dropped, booster.next_signal.is_some()), (0, true));
    }

    #[test]
    fn a_newer_acknowledgement_with_bytes_makes_the_older_one_useless() {
        let mut booster = Congestion::new(Config::default());
        open(&mut booster, [false; 2]);
        let mut seen = |bytes| booster.seen_up(Duration::ZERO, &Packet::new(bytes, Duration::ZERO));
        seen(answer(9, 104, flags::ACK, &[]));
        seen(answer(9, 100, flags::ACK, b"late"));
        seen(crate::tcp::tests::damaged(&answer(
            9,
            9999,
            flags::ACK,
            b"wrong",
        )));
        let key = Tcp::read(&segment(1, 1, flags::ACK, &[]))
            .expect("whole")
            .ip
            .key();
        let kept = |booster: &Congestion| booster.flows.peek(&key).is_some_and(|f| f.ack.is_some());
        assert!(kept(&booster));
        let newer = Packet::new(answer(9, 108, flags::ACK, b"bytes"), Duration::ZERO);
        booster.seen_up(Duration::ZERO, &newer);
        assert!(!kept(&booster));
    }
}
