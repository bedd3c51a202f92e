//! `ack_filter`: acknowledgements that a later one makes needless do not take the slow way back (packet control, paul2006 §3).
//!
//! An acknowledgement that is older than one that has come already is dropped; one that waits is replaced by a newer plain one of the same
//! connection, in its place. Of duplicates of the same number, which say that something is missing, as many go on as are needed to say so: the first
//! `high`, then one in `high - low`. Whatever has SACK that was not seen yet, bytes or flags goes as it is.

use std::time::Duration;

use crate::{
    booster::Out,
    flow::Flows,
    ip::Ip,
    packet::Packet,
    queue::{AtQueue, Queue},
    tcp::{Tcp, flags, is_after},
};

/// How acknowledgements are thinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Duplicates that a sender needs at least, 1 to 255. Default 2.
    pub low: u8,
    /// Duplicates of a number that all go on, `low` to 255, and at least 3, which fast retransmit asks for (RFC 5681 §3.2). Default 8.
    pub high: u8,
    /// Connections that are known at a time. Default 4096.
    pub flows_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            low: 2,
            high: 8,
            flows_max: 4096,
        }
    }
}

/// Thins acknowledgements.
#[derive(Debug)]
pub struct AckFilter {
    high: u32,
    /// Beyond them one of so many goes on.
    step: u32,
    flows: Flows<Flow>,
    old: u64,
    replaced: u64,
    thinned: u64,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    last: Option<(u32, u16)>,
    sack: Vec<u8>,
    duplicates: u32,
    /// A plain acknowledgement that waits.
    standing: Option<u64>,
    coming: bool,
}

impl AckFilter {
    /// Knows no connection yet. Values out of range are brought into it.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let high = config.high.max(config.low).max(3);
        Self {
            high: high.into(),
            step: u32::from(high - config.low.min(high - 1)).max(2),
            flows: Flows::new(config.flows_max),
            old: 0,
            replaced: 0,
            thinned: 0,
        }
    }
}

fn sack(tcp: &Tcp<'_>) -> Vec<u8> {
    let option = tcp.options().find(|option| option.kind == 5);
    option.map_or_else(Vec::new, |option| option.data.to_vec())
}

impl AtQueue for AckFilter {
    fn arriving(
        &mut self,
        _now: Duration,
        packet: Packet,
        queue: &mut Queue,
        _out: &mut Out,
    ) -> Option<Packet> {
        let Some(tcp) = Ip::parse(&packet.bytes).and_then(Tcp::parse) else {
            return Some(packet);
        };
        let (flow, _) = self.flows.entry(tcp.ip.key(), Flow::default);
        let standing = flow.standing.take();
        if tcp.has(flags::SYN | flags::RST) {
            // Another connection, or none any more.
            *flow = Flow::default();
            return Some(packet);
        }
        if !tcp.is_plain_ack() {
            if tcp.has(flags::ACK) {
                flow.last = Some((tcp.ack, tcp.window));
                flow.duplicates = 0;
            }
            return Some(packet);
        }
        let sack = sack(&tcp);
        let news = !sack.is_empty() && sack != flow.sack;
        let said = flow.last;
        if let Some((last, _)) = said
            && is_after(last, tcp.ack)
            && !news
        {
            flow.standing = standing;
            self.old += 1;
            return None;
        }
        flow.sack = sack;
        if said == Some((tcp.ack, tcp.window)) {
            flow.duplicates += 1;
            let beyond = flow.duplicates.saturating_sub(self.high);
            if !news && beyond > 0 && !beyond.is_multiple_of(self.step) {
                self.thinned += 1;
                return None;
            }
            return Some(packet);
        }
        flow.last = Some((tcp.ack, tcp.window));
        flow.duplicates = 0;
        let plain = flow.sack.is_empty();
        if plain
            && let Some(number) = standing
            && queue.replace(number, packet.clone()).is_some()
        {
            flow.standing = Some(number);
            self.replaced += 1;
            return None;
        }
        flow.coming = plain;
        Some(packet)
    }

    fn queued(&mut self, number: u64, packet: &Packet) {
        let key = Ip::parse(&packet.bytes).map(|ip| ip.key());
        if let Some(flow) = key.and_then(|key| self.flows.get(&key))
            && std::mem::take(&mut flow.coming)
        {
            flow.standing = Some(number);
        }
    }

    fn counters(&self, each: &mut dyn FnMut(&'static str, u64)) {
        each("old", self.old);
        each("replaced", self.replaced);
        each("thinned", self.thinned);
        each("connections", self.flows.len() as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tcp::tests::segment;

    fn through(filter: &mut AckFilter, queue: &mut Queue, bytes: Vec<u8>) -> bool {
        let packet = Packet::new(bytes, Duration::ZERO);
        match filter.arriving(Duration::ZERO, packet, queue, &mut Out::default()) {
            Some(packet) => {
                let number = queue.push(packet.clone()).expect("room");
                filter.queued(number, &packet);
                true
            }
            None => false,
        }
    }

    #[test]
    fn newer_ones_replace_those_that_wait_and_old_ones_are_dropped() {
        let (mut filter, mut queue) =
            (AckFilter::new(Config::default()), Queue::new(1 << 20, None));
        assert!(through(
            &mut filter,
            &mut queue,
            segment(1, 100, flags::ACK, &[])
        ));
        assert!(!through(
            &mut filter,
            &mut queue,
            segment(1, 200, flags::ACK, &[])
        ));
        assert!(!through(
            &mut filter,
            &mut queue,
            segment(1, 150, flags::ACK, &[])
        ));
        let (_, packet) = queue.pop(Duration::ZERO).unwrap();
        assert_eq!(packet.bytes, segment(1, 200, flags::ACK, &[]));
        // It has left: the next one stands for itself.
        assert!(through(
            &mut filter,
            &mut queue,
            segment(1, 300, flags::ACK, &[])
        ));
        // Bytes between are never overtaken.
        assert!(through(
            &mut filter,
            &mut queue,
            segment(1, 300, flags::ACK, b"x")
        ));
        assert!(through(
            &mut filter,
            &mut queue,
            segment(2, 400, flags::ACK, &[])
        ));
        // Port reuse.
        assert!(through(
            &mut filter,
            &mut queue,
            segment(9, 0, flags::SYN, &[])
        ));
        assert!(through(
            &mut filter,
            &mut queue,
            segment(10, 7, flags::ACK, &[])
        ));
    }

    #[test]
    fn duplicates_are_thinned_but_enough_go_on_for_fast_retransmit() {
        let (mut filter, mut queue) =
            (AckFilter::new(Config::default()), Queue::new(1 << 20, None));
        let passed =
            (0..101).filter(|_| through(&mut filter, &mut queue, segment(1, 100, flags::ACK, &[])));
        // The first, eight duplicates, and every sixth of the other 92.
        assert_eq!(passed.count(), 1 + 8 + 15);
    }
}
