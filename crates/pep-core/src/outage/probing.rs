//! Probes of the gateway beyond the link, by ICMP echo (RFC 792, RFC 4443 section 4).

use std::{collections::VecDeque, net::IpAddr, time::Duration};

use etherparse::{
    IcmpEchoHeader, Icmpv4Header, Icmpv4Slice, Icmpv4Type, Icmpv6Header, Icmpv6Slice, Icmpv6Type,
    Ipv4HeaderSlice,
};

/// Interval between probes of a gateway that does not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Probes of one gateway, and the link state that follows. Times are by a steady clock.
#[derive(Debug)]
pub struct Probing {
    gateway: IpAddr,
    identifier: u16,
    every: Duration,
    patience: Duration,
    /// Unanswered probes: number and deadline, in order.
    open: VecDeque<(u16, Duration)>,
    next: u16,
    ask_at: Duration,
    /// True after the first answer: before that, silence proves nothing.
    answers: bool,
    /// Unanswered probes since the last answer.
    unanswered: u32,
}

impl Probing {
    /// Unanswered probes in a row after which the link counts as down.
    pub const UNANSWERED_MAX: u32 = 3;

    /// Probes, from the first one on, after which a gateway that has never answered counts as mute.
    pub const MUTE: u32 = 10;

    /// Returns a prober that sends at once, then at this interval. It waits `patience` for an
    /// answer; `identifier` separates pepd's probes from those of other programs.
    pub fn new(
        now: Duration,
        gateway: IpAddr,
        identifier: u16,
        every: Duration,
        patience: Duration,
    ) -> Self {
        Self {
            gateway,
            identifier,
            every,
            patience,
            open: VecDeque::new(),
            next: 0,
            ask_at: now,
            answers: false,
            unanswered: 0,
        }
    }

    /// Records that the gateway answered an earlier process.
    pub fn expect_answers(&mut self) {
        self.answers = true;
    }

    /// Time of the next poll.
    pub fn deadline(&self) -> Duration {
        let answer = self.open.front().map_or(Duration::MAX, |open| open.1);
        self.ask_at.min(answer)
    }

    /// Returns the packet to send now, if it is time: ICMP without an IP header, as raw sockets
    /// take it (with IPv6, the kernel fills in the checksum).
    pub fn poll_question(&mut self, now: Duration) -> Option<Vec<u8>> {
        if now < self.ask_at {
            return None;
        }
        let header = IcmpEchoHeader {
            id: self.identifier,
            seq: self.next,
        };
        self.open.push_back((self.next, now + self.patience));
        self.next = self.next.wrapping_add(1);
        self.ask_at = now + self.pause();
        let packet = match self.gateway {
            IpAddr::V4(_) => Icmpv4Header::with_checksum(Icmpv4Type::EchoRequest(header), &[])
                .to_bytes()
                .to_vec(),
            IpAddr::V6(_) => Icmpv6Header::new(Icmpv6Type::EchoRequest(header))
                .to_bytes()
                .to_vec(),
        };
        Some(packet)
    }

    /// Expires probes that have waited too long. Returns true when the link counts as down.
    pub fn poll_silence(&mut self, now: Duration) -> bool {
        let before = self.unanswered;
        while self.open.front().is_some_and(|open| open.1 <= now) {
            self.open.pop_front();
            self.unanswered = self.unanswered.saturating_add(1);
        }
        if self.unanswered > before {
            self.ask_at = self.ask_at.min(now + self.pause());
        }
        self.unanswered > before && self.answers && self.unanswered >= Self::UNANSWERED_MAX
    }

    /// Handles a packet from the gateway, as a raw socket delivers it: with its IP header in IPv4,
    /// without in IPv6. Returns true when it answers an open probe, so that the link is up.
    pub fn receive(&mut self, packet: &[u8]) -> bool {
        let answer = match self.gateway {
            IpAddr::V4(_) => echo_reply_v4(packet),
            IpAddr::V6(_) => echo_reply_v6(packet),
        };
        let Some(answer) = answer.filter(|answer| answer.id == self.identifier) else {
            return false;
        };
        let Some(place) = self.open.iter().position(|open| open.0 == answer.seq) else {
            return false;
        };
        // Earlier probes were lost, or are late: they no longer matter.
        self.open.drain(..=place);
        (self.answers, self.unanswered) = (true, 0);
        true
    }

    /// Reports whether the gateway never answered repeated probes: it may be the wrong address, or
    /// a firewall drops them.
    pub fn is_mute(&self) -> bool {
        !self.answers && self.unanswered >= Self::MUTE
    }

    fn pause(&self) -> Duration {
        match self.unanswered {
            0 => self.every,
            _ => self.every.min(AGAIN),
        }
    }
}

fn echo_reply_v4(packet: &[u8]) -> Option<IcmpEchoHeader> {
    let header = Ipv4HeaderSlice::from_slice(packet).ok()?;
    let icmp = packet.get(header.slice().len()..)?;
    match Icmpv4Slice::from_slice(icmp).ok()?.icmp_type() {
        Icmpv4Type::EchoReply(header) => Some(header),
        _ => None,
    }
}

fn echo_reply_v6(packet: &[u8]) -> Option<IcmpEchoHeader> {
    match Icmpv6Slice::from_slice(packet).ok()?.icmp_type() {
        Icmpv6Type::EchoReply(header) => Some(header),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    const EVERY: Duration = Duration::from_secs(5);
    const PATIENCE: Duration = Duration::from_secs(4);

    fn probing(gateway: &str) -> Probing {
        let gateway = gateway.parse().unwrap();
        Probing::new(Duration::ZERO, gateway, 77, EVERY, PATIENCE)
    }

    fn reply_v4(id: u16, seq: u16) -> Vec<u8> {
        let builder = PacketBuilder::ipv4([192, 0, 2, 1], [10, 0, 0, 1], 64);
        let mut packet = Vec::new();
        let builder = builder.icmpv4_echo_reply(id, seq);
        builder.write(&mut packet, &[]).unwrap();
        packet
    }

    /// Polls until then. Returns the number of probes, and the times at which the link went down.
    fn run(probing: &mut Probing, until: u64) -> (usize, Vec<Duration>) {
        let (mut questions, mut downs) = (0, Vec::new());
        while probing.deadline() <= Duration::from_secs(until) {
            let now = probing.deadline();
            questions += usize::from(probing.poll_question(now).is_some());
            if probing.poll_silence(now) {
                downs.push(now);
            }
        }
        (questions, downs)
    }

    #[test]
    fn one_that_has_never_answered_says_nothing() {
        let mut probing = probing("192.0.2.1");
        let (questions, downs) = run(&mut probing, 100);
        assert!(questions > 90, "{questions}");
        assert_eq!(downs, []);
        assert!(probing.is_mute());
        assert!(probing.receive(&reply_v4(77, questions as u16 - 1)));
        assert!(!probing.is_mute());
        run(&mut probing, 200);
        assert!(!probing.is_mute(), "a silent gateway is not a mute one");
    }

    #[test]
    fn one_that_is_asked_for_the_first_times_is_not_taken_for_mute() {
        let mut probing = probing("192.0.2.1");
        // Expired at 4 s, and then every second from 5 s on.
        run(&mut probing, 12);
        assert!(!probing.is_mute());
        run(&mut probing, 20);
        assert!(probing.is_mute());
    }

    #[test]
    fn one_that_has_answered_a_process_before_is_missed() {
        let mut probing = probing("192.0.2.1");
        probing.expect_answers();
        // Expired at 4 s, 5 s and 6 s or so.
        let (_, downs) = run(&mut probing, 20);
        assert!(
            downs.first().is_some_and(|at| at.as_secs() < 15),
            "{downs:?}"
        );
    }

    #[test]
    fn three_unanswered_probes_mean_that_the_link_is_down() {
        let mut probing = probing("192.0.2.1");
        assert!(probing.poll_question(Duration::ZERO).is_some());
        assert!(probing.receive(&reply_v4(77, 0)));
        // Sent at 5 s, expired at 9 s; then at 10 s, 11 s and so on.
        let (questions, downs) = run(&mut probing, 15);
        assert_eq!(downs.first(), Some(&Duration::from_secs(15)));
        assert!(probing.receive(&reply_v4(77, questions as u16)));
        assert_eq!(probing.deadline(), Duration::from_secs(16), "as before");
        assert_eq!(run(&mut probing, 24).1, [], "the counter restarts");
    }

    #[test]
    fn only_answers_to_open_questions_count_once() {
        let mut probing = probing("192.0.2.1");
        probing.poll_question(Duration::ZERO);
        assert!(!probing.receive(&reply_v4(78, 0)), "another program's");
        assert!(!probing.receive(&reply_v4(77, 1)), "not asked");
        assert!(!probing.receive(&reply_v4(77, 0)[..20]), "cut off");
        assert!(!probing.receive(&[]));
        assert!(probing.receive(&reply_v4(77, 0)));
        assert!(!probing.receive(&reply_v4(77, 0)), "again");
    }

    #[test]
    fn questions_are_icmp_echo_of_either_version() {
        let question = probing("192.0.2.1").poll_question(Duration::ZERO).unwrap();
        let request = |id, seq| Icmpv4Type::EchoRequest(IcmpEchoHeader { id, seq });
        let header = Icmpv4Header::from_slice(&question).unwrap().0;
        assert_eq!(header.icmp_type, request(77, 0));
        assert_eq!(header.checksum, header.icmp_type.calc_checksum(&[]));
        let mut probing = probing("2001:db8::1");
        let mut question = probing.poll_question(Duration::ZERO).unwrap();
        assert_eq!(question[..2], [128, 0]);
        question[0] = 129;
        assert!(probing.receive(&question));
    }
}
