//! `data_filter`: keeps TCP data off the link that the other side is known to have (packet control,
//! paul2006 §6.2.3.1).
//!
//! A segment whose bytes have all been acknowledged is answered with the last acknowledgement
//! instead. Of two identical retransmissions within a round trip of the link, the second is
//! answered the same way: the first is still in flight. The next one passes, and so does any after
//! a round trip, so that no needed one is held back for longer. Keepalives, window probes and
//! segments with flags pass.
//!
//! The state of a connection may be wrong: it was seen in part, its ports were reused, or packets
//! were forged. So segments with a wrong checksum do not change it. A connection is forgotten when
//! a segment does not fit. A sender that was answered but sends the same segment again is let
//! through.

use std::time::Duration;

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    packet::Packet,
    rule::Path,
    tcp::{Tcp, flags, is_after},
};

/// Connections tracked at a time.
pub const FLOWS_MAX: usize = 4096;
/// Time after which a retransmission passes whatever the round trip.
const PATIENCE_MAX: Duration = Duration::from_millis(800);
const PATIENCE_MIN: Duration = Duration::from_millis(20);
/// Numbers farther apart are not of the same connection: its window is no larger (RFC 7323 §2.3).
const FAR: u32 = 1 << 30;
/// Maximum segments answered in a row without progress of the sender; the next one passes.
const ANSWERS_MAX: u32 = 16;

/// Keeps needless segments off the link.
#[derive(Debug)]
pub struct DataFilter {
    flows: Flows<Flow>,
    rtt: Duration,
    known: u64,
    repeated: u64,
}

/// One direction of a connection, with a local host as sender.
#[derive(Clone, Debug, Default)]
struct Flow {
    ack: Option<Acked>,
    /// Number after the highest byte sent.
    highest: Option<u32>,
    /// Last retransmission that passed: its number and length, its time, and whether an identical
    /// one has been answered.
    again: Option<(u32, usize, Duration, bool)>,
    /// Last segment answered as delivered, and the number of answers since one passed.
    answered: Option<(u32, usize)>,
    answers: u32,
}

/// Last acknowledgement received.
#[derive(Clone, Debug)]
struct Acked {
    number: u32,
    at: Duration,
    packet: Vec<u8>,
}

impl Flow {
    /// Returns whether a segment with this end belongs to the known connection.
    fn fits(&self, end: u32) -> bool {
        let far = |from: u32| end.wrapping_sub(from).min(from.wrapping_sub(end)) > FAR;
        !self.highest.is_some_and(far)
    }

    /// Handles an acknowledgement. Returns false if it does not fit the connection.
    fn hear(&mut self, now: Duration, ack: u32, packet: &[u8], patience: Duration) -> bool {
        if self.highest.is_some_and(|highest| is_after(ack, highest)) {
            return false;
        }
        match &self.ack {
            Some(acked) if is_after(acked.number, ack) => {
                // Reordered, or the known state was never right.
                return now < acked.at + patience;
            }
            Some(acked) if acked.number == ack => {}
            _ => (self.answered, self.answers) = (None, 0),
        }
        self.ack = Some(Acked {
            number: ack,
            at: now,
            packet: packet.to_vec(),
        });
        true
    }
}

impl DataFilter {
    /// Creates a filter without connections.
    #[must_use]
    pub fn new() -> Self {
        Self {
            flows: Flows::new(FLOWS_MAX),
            rtt: Path::default().rtt,
            known: 0,
            repeated: 0,
        }
    }

    fn patience(&self) -> Duration {
        self.rtt.clamp(PATIENCE_MIN, PATIENCE_MAX)
    }

    /// Returns the acknowledgement with which to answer this segment locally.
    fn answer(&mut self, now: Duration, tcp: &Tcp<'_>) -> Option<Vec<u8>> {
        let key = tcp.ip.key();
        if tcp.has(flags::SYN | flags::RST) {
            self.flows.remove(&key);
            return None;
        }
        if tcp.data().is_empty() {
            return None;
        }
        let patience = self.patience();
        let (flow, _) = self.flows.entry(key, Flow::default);
        if !flow.fits(tcp.end()) {
            *flow = Flow::default();
        }
        let highest = *flow.highest.get_or_insert(tcp.seq);
        if is_after(tcp.end(), highest) {
            flow.highest = Some(tcp.end());
            (flow.again, flow.answered, flow.answers) = (None, None, 0);
            return None;
        }
        // One byte may be a keepalive or a window probe, which the far host has to answer.
        let plain = tcp.flags & !(flags::PSH | flags::ACK) == 0;
        if !plain || tcp.data().len() == 1 {
            return None;
        }
        let acked = flow.ack.as_ref()?;
        let like = (tcp.seq, tcp.data().len());
        if !is_after(tcp.end(), acked.number) {
            // The sender has not received it, or does not accept it.
            if flow.answered == Some(like) || flow.answers >= ANSWERS_MAX {
                (flow.answered, flow.answers) = (None, 0);
                return None;
            }
            flow.answered = Some(like);
            flow.answers += 1;
            self.known += 1;
            return Some(acked.packet.clone());
        }
        match &mut flow.again {
            Some((seq, len, at, answered))
                if (*seq, *len) == like && now < *at + patience && !*answered =>
            {
                *answered = true;
                self.repeated += 1;
                Some(acked.packet.clone())
            }
            again => {
                *again = Some((like.0, like.1, now, false));
                None
            }
        }
    }
}

impl Default for DataFilter {
    fn default() -> Self {
        Self::new()
    }
}

impl Booster for DataFilter {
    fn down(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        match Tcp::read(&packet.bytes).and_then(|tcp| self.answer(now, &tcp)) {
            Some(ack) => out.up.push(Packet::new(ack, now)),
            None => out.down.push(packet),
        }
    }

    fn up(&mut self, now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Tcp::read(&packet.bytes) {
            let sender = tcp.ip.key().reversed();
            let patience = self.patience();
            let fits = match self.flows.get(&sender) {
                _ if tcp.has(flags::SYN | flags::RST) => false,
                Some(flow) if tcp.is_plain_ack() => {
                    flow.hear(now, tcp.ack, &packet.bytes, patience)
                }
                _ => true,
            };
            if !fits {
                self.flows.remove(&sender);
            }
        }
        out.up.push(packet);
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.rtt = path.rtt;
    }

    fn reset(&mut self) {
        self.flows.clear();
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("known", self.known);
        each("repeated", self.repeated);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::tests::{answer, damaged, segment, segment6};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Sends a packet of a local host: it goes down, or is answered.
    fn down(filter: &mut DataFilter, ms: u64, bytes: &[u8]) -> (usize, Vec<Packet>) {
        let mut out = Out::default();
        filter.down(at(ms), Packet::new(bytes.to_vec(), at(ms)), &mut out);
        (out.down.len(), out.up)
    }

    fn up(filter: &mut DataFilter, bytes: &[u8]) {
        up_at(filter, 0, bytes);
    }

    fn up_at(filter: &mut DataFilter, ms: u64, bytes: &[u8]) {
        let mut out = Out::default();
        filter.up(at(ms), Packet::new(bytes.to_vec(), at(ms)), &mut out);
        assert_eq!(out.up.len(), 1);
    }

    fn data(seq: u32) -> Vec<u8> {
        segment(seq, 1, flags::ACK, &[7; 100])
    }

    /// Returns a filter with a connection acknowledged up to this number.
    fn begun(to: u32) -> DataFilter {
        let mut filter = DataFilter::new();
        assert_eq!(down(&mut filter, 0, &data(to - 100)).0, 1);
        up(&mut filter, &answer(1, to, flags::ACK, &[]));
        assert_eq!(
            down(&mut filter, 0, &data(to - 100)).0,
            0,
            "connection not known"
        );
        filter
    }

    #[test]
    fn new_data_pass_whatever_was_before() {
        // Another connection, unseen: on the same ports, or after many bytes.
        for seq in [1000, 1_000_000_000, 3_000_000_000] {
            let mut filter = begun(2_000_000_000);
            for round in 0..5 {
                let passed = (0..40u32).filter(|number| {
                    let ms = u64::from(round * 40 + number) * 1000;
                    let once = data(seq + number * 100);
                    down(&mut filter, ms, &once).0 + down(&mut filter, ms + 500, &once).0 > 0
                });
                assert_eq!(passed.count(), 40, "{seq} {round}");
            }
        }
        // Many segments, each once, repeatedly: a sixteenth or more pass.
        let mut filter = begun(2_000_000_000);
        let passed = (0..1600u32).filter(|number| {
            let seq = 1_999_000_000 + number % 50 * 100;
            down(&mut filter, u64::from(*number), &data(seq)).0 > 0
        });
        assert!(passed.count() >= 1600 / 17);
        // When the receiver's acknowledgements go back without reordering, the known state is
        // dropped.
        let mut filter = begun(2_000_000_000);
        up_at(
            &mut filter,
            10_000,
            &answer(1, 1_999_000_000, flags::ACK, &[]),
        );
        for number in 0..10 {
            assert_eq!(
                down(&mut filter, 10_001, &data(1_999_000_000 + number * 100)).0,
                1
            );
        }
        // After a time switched off.
        let mut filter = begun(2_000_000_000);
        filter.reset();
        for number in 0..10 {
            assert_eq!(
                down(&mut filter, 1, &data(1_999_000_000 + number * 100)).0,
                1
            );
        }
    }

    #[test]
    fn nothing_is_learned_of_what_is_damaged() {
        let mut filter = DataFilter::new();
        for number in 0..10 {
            assert_eq!(down(&mut filter, 0, &data(1000 + number * 100)).0, 1);
        }
        up(&mut filter, &answer(1, 1100, flags::ACK, &[]));
        up(&mut filter, &damaged(&answer(1, 2000, flags::ACK, &[])));
        assert_eq!(down(&mut filter, 1, &damaged(&data(1_000_000))).0, 1);
        assert_eq!(down(&mut filter, 1, &damaged(&data(1000))).0, 1);
        assert_eq!(
            down(&mut filter, 1, &data(1500)).0,
            1,
            "not acknowledged yet, must pass"
        );
        assert_eq!(
            down(&mut filter, 1, &data(2000)).0,
            1,
            "new data, must pass"
        );
        assert_eq!(down(&mut filter, 1, &data(1000)).0, 0);
    }

    #[test]
    fn ipv6_is_answered_too() {
        let mut filter = DataFilter::new();
        let data = segment6(1000, 1, &[7; 100]);
        assert_eq!(down(&mut filter, 0, &data).0, 1);
        // The answer, with ports and addresses swapped.
        let mut ack = segment6(1, 1100, &[]);
        ack[8..24].fill(2);
        ack[24..40].fill(1);
        ack[40..44].copy_from_slice(&[0, 80, 0, 1]);
        crate::tcp::seal(&mut ack);
        up(&mut filter, &ack);
        let (passed, answers) = down(&mut filter, 1, &data);
        assert_eq!((passed, &answers[0].bytes), (0, &ack));
    }

    #[test]
    fn acknowledged_segments_and_those_in_flight_are_answered_locally() {
        let mut filter = DataFilter::new();
        assert_eq!(down(&mut filter, 0, &data(1000)).0, 1);
        assert_eq!(down(&mut filter, 0, &data(1100)).0, 1);
        let ack = answer(1, 1100, flags::ACK, &[]);
        up(&mut filter, &ack);
        // The receiver has these bytes.
        let (passed, answers) = down(&mut filter, 10, &data(1000));
        assert_eq!((passed, &answers[0].bytes), (0, &ack));
        // Once more, and again at once, and again; and after a round trip.
        assert_eq!(down(&mut filter, 20, &data(1100)).0, 1);
        assert_eq!(down(&mut filter, 30, &data(1100)).0, 0);
        assert_eq!(down(&mut filter, 40, &data(1100)).0, 1);
        assert_eq!(down(&mut filter, 300, &data(1100)).0, 1);
        assert_eq!((filter.known, filter.repeated), (1, 1));
    }

    #[test]
    fn keepalives_probes_and_other_connections_pass_and_forged_numbers_do_no_harm() {
        let mut filter = DataFilter::new();
        assert_eq!(down(&mut filter, 0, &data(1000)).0, 1);
        // Bytes that were never sent.
        up(&mut filter, &answer(1, 9_000_000, flags::ACK, &[]));
        assert_eq!(down(&mut filter, 1, &data(1000)).0, 1);
        up(&mut filter, &answer(1, 1100, flags::ACK, &[]));
        assert_eq!(
            down(&mut filter, 2, &segment(1099, 1, flags::ACK, &[0])).0,
            1
        );
        assert_eq!(
            down(&mut filter, 2, &segment(1099, 1, flags::ACK, &[])).0,
            1
        );
        // The port is reused.
        assert_eq!(down(&mut filter, 3, &segment(5, 0, flags::SYN, &[])).0, 1);
        assert_eq!(
            down(&mut filter, 4, &segment(6, 1, flags::ACK, &[7; 100])).0,
            1
        );
        for cut in 0..60 {
            assert_eq!(down(&mut filter, 5, &data(1000)[..cut]).0, 1);
        }
    }
}
