//! Connections met midway: segments of connections whose beginning this machine has not seen.
//!
//! Another gateway has forwarded them until now, or this one before it lost power. If no pepd stood
//! between, the numbers of both ends agree, and the connection goes on. If one did, each end counts
//! the bytes of its own leg. It answers a segment of the other end with a challenge (RFC 9293,
//! 3.10.7.4), and both hang until their TCP gives up.
//!
//! ```text
//!   host ---- seq 1000, ack 5000 ---->            no socket, no entry of conntrack
//!        <--- seq 777000, ack 42 ----- server     does not fit: both ends get a reset
//! ```

use std::{net::SocketAddr, time::Duration};

use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};

use crate::{
    expiring::Expiring,
    hosts::Host,
    syn::{Counts, packet},
};

/// Largest distance of numbers that fit, in bytes: this, and the larger window that the ends state,
/// by the largest scale (RFC 7323, 2.3), but no more than [`NEAR_MAX`].
const NEAR: u32 = 16 << 20;
const SCALE: u32 = 14;
/// Far above the windows in use. Two random numbers are nearer in one of eight cases, and both
/// pairs of a connection in one of 64; with usual windows in one of thousands.
const NEAR_MAX: u32 = 1 << 28;

/// Time for an answer of the other end.
const PATIENCE: Duration = Duration::from_secs(30);

/// Maximum of segments that wait for an answer; the oldest is forgotten.
const WAITING_MAX: usize = 4096;

/// Maximum of these from one source (an IPv4 address, an IPv6 /64); further ones are not judged. An
/// end repeats its segment.
const WAITING_PER_SOURCE_MAX: u32 = 512;

/// A segment in the middle of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub from: SocketAddr,
    /// Receiver.
    pub to: SocketAddr,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgment number.
    pub acknowledgment: u32,
    /// Window, without its scale.
    pub window: u16,
}

impl Segment {
    /// Parses a packet that starts with its IP header and may be cut behind that of TCP; `None`
    /// unless it acknowledges, and neither opens nor aborts a connection.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let sliced = LaxSlicedPacket::from_ip(packet).ok()?;
        let (source, destination) = match sliced.net.as_ref()? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                let (from, to) = (header.source_addr(), header.destination_addr());
                (from.into(), to.into())
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                let (from, to) = (header.source_addr(), header.destination_addr());
                (from.into(), to.into())
            }
            LaxNetSlice::Arp(_) => return None,
        };
        let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
            return None;
        };
        (tcp.ack() && !tcp.syn() && !tcp.rst()).then(|| Self {
            from: SocketAddr::new(source, tcp.source_port()),
            to: SocketAddr::new(destination, tcp.destination_port()),
            sequence: tcp.sequence_number(),
            acknowledgment: tcp.acknowledgment_number(),
            window: tcp.window_size(),
        })
    }

    /// Returns whether the ends of this segment and of an answer to it speak with each other.
    fn fits(&self, answer: &Self) -> bool {
        let window = u32::from(self.window.max(answer.window));
        let near = (NEAR + (window << SCALE)).min(NEAR_MAX);
        let is_near = |one: u32, other: u32| {
            let distance = one.wrapping_sub(other) as i32;
            distance.unsigned_abs() < near
        };
        is_near(answer.acknowledgment, self.sequence)
            && is_near(answer.sequence, self.acknowledgment)
    }

    /// Returns the reset that its sender accepts: with the number that it expects next (RFC 5961,
    /// 3.2).
    fn reset(&self) -> Reset {
        Reset {
            from: self.to,
            to: self.from,
            sequence: self.acknowledgment,
        }
    }
}

/// A reset for one end, in the name of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reset {
    /// The end in whose name it is.
    pub from: SocketAddr,
    /// The end that gets it.
    pub to: SocketAddr,
    sequence: u32,
}

impl Reset {
    /// Returns the packet, from its IP header on.
    ///
    /// # Panics
    /// When the addresses are of different families.
    pub fn packet(&self) -> Vec<u8> {
        packet::abort(self.from, self.to, self.sequence)
    }
}

/// Conclusion from the segments of both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing yet.
    Waits,
    /// Both speak with each other.
    Fits,
    /// Each has spoken with a gateway between them. The first reset is for the sender of the first
    /// segment.
    Split([Reset; 2]),
}

/// Judge of connections that are met midway.
#[derive(Debug)]
pub struct Judge {
    /// Segments without an answer yet, by sender and receiver.
    waiting: Expiring<Ends, Segment>,
    sources: Counts<Host>,
}

/// Sender and receiver.
type Ends = (SocketAddr, SocketAddr);

impl Default for Judge {
    fn default() -> Self {
        Self {
            waiting: Expiring::new(),
            sources: Counts::new(),
        }
    }
}

impl Judge {
    /// Takes a segment of a connection that nothing here knows, or the first answer to one. Times
    /// are since any epoch.
    pub fn handle(&mut self, segment: Segment, now: Duration) -> Verdict {
        while let Some((ends, _)) = self.waiting.pop_expired(now) {
            self.sources.remove(&source(&ends));
        }
        let answered = (segment.to, segment.from);
        let Some(first) = self.waiting.remove(&answered) else {
            self.wait(segment, now);
            return Verdict::Waits;
        };
        self.sources.remove(&source(&answered));
        if first.fits(&segment) {
            Verdict::Fits
        } else {
            Verdict::Split([first.reset(), segment.reset()])
        }
    }

    fn wait(&mut self, segment: Segment, now: Duration) {
        let ends = (segment.from, segment.to);
        let host = source(&ends);
        let is_new = self.waiting.get(&ends).is_none();
        if is_new && self.sources.get(&host) >= WAITING_PER_SOURCE_MAX {
            return;
        }
        if is_new
            && self.waiting.len() >= WAITING_MAX
            && let Some((oldest, _)) = self.waiting.pop_first()
        {
            self.sources.remove(&source(&oldest));
        }
        self.waiting.insert(ends, segment, now + PATIENCE);
        if is_new {
            self.sources.add(host);
        }
    }
}

fn source(ends: &Ends) -> Host {
    Host::from_address(ends.0.ip())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::*;

    fn address(number: u32) -> SocketAddr {
        SocketAddr::from((number.to_be_bytes(), 7))
    }

    fn segment(ends: [u32; 2], sequence: u32, acknowledgment: u32) -> Segment {
        Segment {
            from: address(ends[0]),
            to: address(ends[1]),
            sequence,
            acknowledgment,
            window: u16::MAX,
        }
    }

    proptest! {
        /// Whatever is in flight, in either direction.
        #[test]
        fn ends_that_speak_with_each_other_fit(
            [sent, came] in any::<[u32; 2]>(),
            [ahead, behind, lost] in [0_u32..1 << 27, 0_u32..1 << 27, 0_u32..1 << 26],
        ) {
            let mut judge = Judge::default();
            let first = segment([1, 2], sent, came);
            prop_assert_eq!(judge.handle(first, Duration::ZERO), Verdict::Waits);
            let (sequence, acknowledgment) = (came.wrapping_add(ahead), sent.wrapping_sub(behind));
            let answer = segment([2, 1], sequence, acknowledgment.wrapping_add(lost));
            prop_assert_eq!(judge.handle(answer, Duration::ZERO), Verdict::Fits);
        }

        /// Each end gets a reset with the number that it expects, whichever speaks first.
        #[test]
        fn ends_of_different_legs_are_reset(
            host in any::<[u32; 2]>(),
            server in any::<[u32; 2]>(),
            host_first in any::<bool>(),
        ) {
            let far = |one: u32, other: u32| {
                let distance = one.wrapping_sub(other);
                distance.min(distance.wrapping_neg()) >= NEAR_MAX
            };
            prop_assume!(far(host[0], server[1]) || far(host[1], server[0]));
            let of_host = segment([1, 2], host[0], host[1]);
            let of_server = segment([2, 1], server[0], server[1]);
            let mut order = [of_host, of_server];
            if !host_first {
                order.reverse();
            }
            let mut judge = Judge::default();
            prop_assert_eq!(judge.handle(order[0], Duration::ZERO), Verdict::Waits);
            let Verdict::Split(resets) = judge.handle(order[1], Duration::ZERO) else {
                panic!("they do not fit");
            };
            for (reset, end) in resets.iter().zip(order) {
                prop_assert_eq!((reset.to, reset.from), (end.from, end.to));
                prop_assert_eq!(reset.sequence, end.acknowledgment);
            }
        }

        #[test]
        fn a_packet_cut_behind_its_header_is_a_segment(
            (v6, bytes, cut) in (any::<bool>(), 0_usize..1400, any::<bool>()),
            [sequence, acknowledgment] in any::<[u32; 2]>(),
        ) {
            let builder = if v6 {
                PacketBuilder::ipv6([1; 16], [2; 16], 9)
            } else {
                PacketBuilder::ipv4([1; 4], [2; 4], 9)
            };
            let builder = builder.tcp(5, 6, sequence, 100).ack(acknowledgment).psh();
            let mut packet = Vec::new();
            builder.write(&mut packet, &vec![0; bytes]).unwrap();
            if cut {
                packet.truncate(packet.len().min(128));
            }
            let parsed = Segment::parse(&packet).expect("a segment");
            prop_assert_eq!((parsed.sequence, parsed.acknowledgment), (sequence, acknowledgment));
            prop_assert_eq!((parsed.from.port(), parsed.to.port()), (5, 6));
            prop_assert_eq!(parsed.from.is_ipv6(), v6);
        }

        #[test]
        fn any_bytes_are_a_segment_or_none(packet in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Segment::parse(&packet);
        }
    }

    #[test]
    fn segments_that_open_abort_or_acknowledge_nothing_are_not_judged() {
        let parsed = |ack: bool, syn: bool, rst: bool| {
            let mut builder = PacketBuilder::ipv4([1; 4], [2; 4], 9).tcp(5, 6, 7, 100);
            if ack {
                builder = builder.ack(1);
            }
            if syn {
                builder = builder.syn();
            }
            if rst {
                builder = builder.rst();
            }
            let mut packet = Vec::new();
            builder.write(&mut packet, &[]).unwrap();
            Segment::parse(&packet).is_some()
        };
        assert!(parsed(true, false, false));
        for (ack, syn, rst) in [
            (false, false, false),
            (false, true, false),
            (true, true, false),
            (true, false, true),
            (false, false, true),
        ] {
            assert!(!parsed(ack, syn, rst), "{ack} {syn} {rst}");
        }
    }

    #[test]
    fn with_small_windows_numbers_must_be_nearer() {
        let fits = |window, distance| {
            let first = Segment {
                window,
                ..segment([1, 2], 0, 0)
            };
            let answer = Segment {
                window: 0,
                ..segment([2, 1], distance, 0)
            };
            first.fits(&answer)
        };
        assert!(fits(0, NEAR - 1) && !fits(0, NEAR));
        let window = 500 << SCALE;
        assert!(fits(500, NEAR + window - 1) && !fits(500, NEAR + window));
        assert!(fits(u16::MAX, NEAR_MAX - 1) && !fits(u16::MAX, NEAR_MAX));
    }

    #[test]
    fn few_segments_wait_and_none_for_long() {
        let mut judge = Judge::default();
        let first = segment([1, 2], 0, 0);
        judge.handle(first, Duration::ZERO);
        let answer = segment([2, 1], NEAR_MAX, NEAR_MAX);
        let verdict = judge.handle(answer, PATIENCE);
        assert_eq!(verdict, Verdict::Waits, "the first is forgotten");
        for number in 0..2 * WAITING_MAX as u32 {
            let now = PATIENCE + Duration::from_micros(number.into());
            judge.handle(segment([100 + number, 9], 0, 0), now);
        }
        assert_eq!(judge.waiting.len(), WAITING_MAX);
    }

    /// One host may send many, such as to addresses that no machine has.
    #[test]
    fn segments_of_one_source_leave_those_of_others_judged() {
        let mut judge = Judge::default();
        let other = segment([1, 2], 0, 0);
        judge.handle(other, Duration::ZERO);
        let flood = |judge: &mut Judge, now| {
            for number in 0..2 * WAITING_MAX as u32 {
                judge.handle(segment([9, 100 + number], 0, 0), now);
            }
        };
        flood(&mut judge, Duration::ZERO);
        let answer = segment([2, 1], NEAR_MAX, NEAR_MAX);
        let verdict = judge.handle(answer, Duration::ZERO);
        assert!(matches!(verdict, Verdict::Split(_)));
        assert_eq!(judge.waiting.len(), WAITING_PER_SOURCE_MAX as usize);
        // Forgotten in time, and when answered.
        flood(&mut judge, PATIENCE);
        assert_eq!(judge.waiting.len(), WAITING_PER_SOURCE_MAX as usize);
        let answer = segment([100, 9], 0, 0);
        assert_eq!(judge.handle(answer, PATIENCE), Verdict::Fits);
        judge.handle(segment([9, 1], 0, 0), PATIENCE);
        assert_eq!(judge.waiting.len(), WAITING_PER_SOURCE_MAX as usize);
    }

    #[test]
    fn a_reset_is_a_packet_with_nothing_but_its_number() {
        let reset = segment([1, 2], 3, 0xdead_beef).reset();
        let packet = reset.packet();
        let sliced = etherparse::SlicedPacket::from_ip(&packet).unwrap();
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else {
            panic!("no TCP");
        };
        assert!(tcp.rst() && !tcp.ack() && !tcp.syn());
        assert_eq!(tcp.sequence_number(), 0xdead_beef);
        assert_eq!((tcp.source_port(), tcp.destination_port()), (7, 7));
    }
}
