//! `data_filter`: TCP data that the other side is known to have does not cross the link again (packet control, paul2006 §6.2.3.1).
//!
//! A segment all of which has been acknowledged is answered with the last acknowledgement instead. Of two identical retransmissions within a round trip of
//! the link the second is answered likewise: the first is still on its way. The next one passes, as does any after a round trip, so that none that is needed
//! is kept back for longer. Keepalives, probes of closed windows, and what has flags pass.

use std::time::Duration;

use crate::{
    booster::{Booster, Out},
    flow::Flows,
    ip::Ip,
    packet::Packet,
    rule::Path,
    tcp::{Tcp, flags, is_after},
};

/// Connections that are known at a time.
pub const FLOWS_MAX: usize = 4096;
/// After so long a retransmission passes whatever the round trip.
const PATIENCE_MAX: Duration = Duration::from_millis(800);
const PATIENCE_MIN: Duration = Duration::from_millis(20);

/// Keeps needless segments from the link.
#[derive(Debug)]
pub struct DataFilter {
    flows: Flows<Flow>,
    rtt: Duration,
    known: u64,
    repeated: u64,
}

/// What our hosts send in one direction of a connection.
#[derive(Clone, Debug, Default)]
struct Flow {
    /// The last acknowledgement that came for it, and what it says.
    ack: Option<(u32, Vec<u8>)>,
    /// After the highest byte that was sent.
    highest: Option<u32>,
    /// The last retransmission that passed: its number and length, when, and whether one like it has been answered.
    again: Option<(u32, usize, Duration, bool)>,
}

impl DataFilter {
    /// Knows no connection yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            flows: Flows::new(FLOWS_MAX),
            rtt: Path::default().rtt,
            known: 0,
            repeated: 0,
        }
    }

    /// The acknowledgement that answers this segment here.
    fn answer(&mut self, now: Duration, tcp: &Tcp<'_>) -> Option<Vec<u8>> {
        let key = tcp.ip.key();
        if tcp.has(flags::SYN | flags::RST) {
            self.flows.remove(&key);
            return None;
        }
        let plain = tcp.flags & !(flags::PSH | flags::ACK) == 0;
        if tcp.data().is_empty() {
            return None;
        }
        let patience = self.rtt.clamp(PATIENCE_MIN, PATIENCE_MAX);
        let (flow, _) = self.flows.entry(key, Flow::default);
        let highest = *flow.highest.get_or_insert(tcp.seq);
        if is_after(tcp.end(), highest) {
            flow.highest = Some(tcp.end());
            flow.again = None;
            return None;
        }
        // One byte may be a keepalive or a probe, whose answer is for the far host to give.
        if !plain || tcp.data().len() == 1 {
            return None;
        }
        let (acked, answer) = flow.ack.as_ref()?;
        if !is_after(tcp.end(), *acked) {
            self.known += 1;
            return Some(answer.clone());
        }
        let like = (tcp.seq, tcp.data().len());
        match &mut flow.again {
            Some((seq, len, at, answered))
                if (*seq, *len) == like && now < *at + patience && !*answered =>
            {
                *answered = true;
                self.repeated += 1;
                Some(answer.clone())
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
        let tcp = Ip::parse(&packet.bytes).and_then(Tcp::parse);
        match tcp.and_then(|tcp| self.answer(now, &tcp)) {
            Some(ack) => out.up.push(Packet::new(ack, now)),
            None => out.down.push(packet),
        }
    }

    fn up(&mut self, _now: Duration, packet: Packet, out: &mut Out) {
        if let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) {
            let sender = tcp.ip.key().reversed();
            if tcp.has(flags::SYN | flags::RST) {
                self.flows.remove(&sender);
            } else if tcp.is_plain_ack()
                && let Some(flow) = self.flows.get(&sender)
                // Of bytes that were sent, and not older than what was said before.
                && flow.highest.is_some_and(|highest| !is_after(tcp.ack, highest))
                && flow.ack.as_ref().is_none_or(|(ack, _)| !is_after(*ack, tcp.ack))
            {
                flow.ack = Some((tcp.ack, packet.bytes.clone()));
            }
        }
        out.up.push(packet);
    }

    fn set_path(&mut self, _now: Duration, path: &Path) {
        self.rtt = path.rtt;
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
    use crate::tcp::tests::{answer, segment};

    fn at(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// What becomes of a packet of our host: goes down, or is answered.
    fn down(filter: &mut DataFilter, ms: u64, bytes: &[u8]) -> (usize, Vec<Packet>) {
        let mut out = Out::default();
        filter.down(at(ms), Packet::new(bytes.to_vec(), at(ms)), &mut out);
        (out.down.len(), out.up)
    }

    fn up(filter: &mut DataFilter, bytes: &[u8]) {
        let mut out = Out::default();
        filter.up(at(0), Packet::new(bytes.to_vec(), at(0)), &mut out);
        assert_eq!(out.up.len(), 1);
    }

    #[test]
    fn what_has_been_acknowledged_and_what_is_under_way_is_answered_here() {
        let mut filter = DataFilter::new();
        let data = |seq| segment(seq, 1, flags::ACK, &[7; 100]);
        assert_eq!(down(&mut filter, 0, &data(1000)).0, 1);
        assert_eq!(down(&mut filter, 0, &data(1100)).0, 1);
        let ack = answer(1, 1100, flags::ACK, &[]);
        up(&mut filter, &ack);
        // The receiver has it.
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
        let data = |seq| segment(seq, 1, flags::ACK, &[7; 100]);
        assert_eq!(down(&mut filter, 0, &data(1000)).0, 1);
        // Nobody has sent that.
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
        // The port is used again.
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
