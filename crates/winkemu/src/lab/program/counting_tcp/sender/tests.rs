use std::collections::{BTreeSet, VecDeque};

use super::*;

const MS: Duration = Duration::from_millis(1);
const ISS: u32 = 0xffff_f000;

/// Receiver at the far end of a path in virtual time.
struct Path {
    one_way: Duration,
    /// Serial numbers of the data segments to lose.
    lost: BTreeSet<u64>,
    /// Number of ACKs per segment.
    parts: u32,
    out: VecDeque<(Duration, Segment)>,
    back: VecDeque<(Duration, Segment)>,
    sent: u64,
    expected: u32,
    /// Data received beyond a gap.
    ahead: BTreeSet<(u32, u32)>,
}

impl Path {
    fn new(one_way: Duration) -> Self {
        Self {
            one_way,
            lost: BTreeSet::new(),
            parts: 1,
            out: VecDeque::new(),
            back: VecDeque::new(),
            sent: 0,
            expected: ISS.wrapping_add(1),
            ahead: BTreeSet::new(),
        }
    }

    fn carry(&mut self, segment: Segment, now: Duration) {
        if segment.len > 0 {
            self.sent += 1;
            if self.lost.contains(&self.sent) {
                return;
            }
        }
        self.out.push_back((now + self.one_way, segment));
    }

    fn answer(&mut self, flags: u8, ack: u32, at: Duration) {
        let syn = flags & SYN != 0;
        let segment = Segment {
            seq: 77,
            ack,
            flags,
            window: 0x7fff,
            mss: syn.then_some(1460),
            scale: syn.then_some(7),
            len: 0,
        };
        self.back.push_back((at + self.one_way, segment));
    }

    /// Delivers a segment to the receiver.
    fn arrive(&mut self, segment: &Segment, at: Duration) {
        if segment.has(SYN) {
            return self.answer(SYN | ACK, self.expected, at);
        }
        if segment.len == 0 {
            return;
        }
        let before = self.expected;
        self.ahead
            .insert((segment.seq, segment.seq.wrapping_add(segment.len as u32)));
        while let Some(next) = self
            .ahead
            .iter()
            .copied()
            .find(|(from, to)| self.expected.wrapping_sub(*from) < to.wrapping_sub(*from))
        {
            self.expected = next.1;
        }
        let parts = if self.expected == before {
            1
        } else {
            self.parts
        };
        for part in 1..parts {
            self.answer(ACK, self.expected.wrapping_sub(self.parts - part), at);
        }
        self.answer(ACK, self.expected, at);
    }
}

fn due(in_flight: &mut VecDeque<(Duration, Segment)>, now: Duration) -> Option<Segment> {
    in_flight.front().filter(|(at, _)| *at <= now)?;
    in_flight.pop_front().map(|(_, segment)| segment)
}

/// Runs until all is acknowledged, and returns the time that it took.
fn run(sender: &mut Sender, path: &mut Path) -> Duration {
    let mut now = Duration::ZERO;
    while !sender.is_done() {
        while let Some(segment) = sender.poll_transmit(now) {
            path.carry(segment, now);
        }
        let next = [
            path.out.front().map(|(at, _)| *at),
            path.back.front().map(|(at, _)| *at),
            sender.poll_timeout(),
        ];
        now = next
            .into_iter()
            .flatten()
            .min()
            .expect("no event is pending");
        assert!(now < Duration::from_secs(600), "{sender:?}");
        if let Some(segment) = due(&mut path.out, now) {
            path.arrive(&segment, now);
        } else if let Some(segment) = due(&mut path.back, now) {
            sender.handle(&segment, now);
        } else {
            sender.handle_timeout(now);
        }
    }
    now
}

fn upload(segments: u64, path: &mut Path) -> (Sender, Duration) {
    let mut sender = Sender::calling(segments * MSS, ISS, Duration::ZERO);
    let took = run(&mut sender, path);
    (sender, took)
}

#[test]
fn slow_start_doubles_with_an_ack_for_each_segment() {
    // 2, 4, 8, 16 segments take one round trip each; one more is the handshake.
    let (sender, took) = upload(30, &mut Path::new(50 * MS));
    assert_eq!(took, 500 * MS);
    assert_eq!((sender.counts.segments, sender.counts.acks), (30, 30));
    assert_eq!(sender.counts.cwnd_max, 32 * MSS);
    assert_eq!(sender.counts.retransmitted_bytes, 0);
}

#[test]
fn each_of_the_divided_acks_opens_the_window() {
    let mut path = Path::new(50 * MS);
    path.parts = 13;
    // 2, then 28: thirteen ACKs per segment.
    let (sender, took) = upload(30, &mut path);
    assert_eq!(took, 300 * MS);
    assert_eq!(sender.counts.acks, 30 * 13);
    assert_eq!(sender.counts.segments, 30, "whole segments only");
}

#[test]
fn congestion_avoidance_adds_a_segment_a_round_trip() {
    let mut sender = Sender::calling(1000 * MSS, ISS, Duration::ZERO);
    sender.ssthresh = 4 * MSS;
    let mut path = Path::new(50 * MS);
    run(&mut sender, &mut path);
    // The sum 2 + 4 + 5 + 6 + ... is a thousand at a window of 44; it grows by slightly less than a
    // segment per round trip.
    let segments = sender.counts.cwnd_max / MSS;
    assert!((40..=46).contains(&segments), "{segments}");
}

#[test]
fn three_duplicates_have_one_segment_sent_again() {
    let mut path = Path::new(50 * MS);
    path.lost.insert(20);
    let (sender, took) = upload(60, &mut path);
    let counts = sender.counts;
    assert_eq!((counts.fast_retransmits, counts.timeouts), (1, 0));
    assert_eq!(counts.retransmitted_bytes, MSS);
    assert!(took < 1000 * MS, "{took:?}");
}

#[test]
fn a_last_segment_that_is_lost_waits_for_the_timer() {
    let mut path = Path::new(50 * MS);
    path.lost.insert(6);
    let (sender, took) = upload(6, &mut path);
    assert_eq!(sender.counts.timeouts, 1);
    // Handshake, two round trips of data, and a second after the last ACK but one.
    assert!(took >= 1300 * MS && took < 1500 * MS, "{took:?}");
}

#[test]
fn the_timer_backs_off_and_begins_with_one_segment() {
    let mut path = Path::new(50 * MS);
    path.lost.extend(3..=9);
    let (sender, took) = upload(6, &mut path);
    let counts = sender.counts;
    // Four of the second round trip, then the same segment at 1, 3 and 7 s.
    assert_eq!((counts.timeouts, counts.fast_retransmits), (4, 0));
    assert!(took > Duration::from_secs(15), "{took:?}");
    assert!(sender.ssthresh == 2 * MSS, "once only: {}", sender.ssthresh);
}

#[test]
fn who_listens_is_called() {
    let mut sender = Sender::listening(4 * MSS, ISS);
    assert_eq!(sender.poll_transmit(Duration::ZERO), None);
    let call = Segment {
        seq: 5,
        flags: SYN,
        window: 0xffff,
        mss: Some(1000),
        scale: Some(3),
        ..Segment::default()
    };
    sender.handle(&call, MS);
    let answer = sender.poll_transmit(MS).unwrap();
    assert_eq!((answer.seq, answer.ack, answer.flags), (ISS, 6, SYN | ACK));
    assert!(answer.scale.is_some() && answer.mss.is_some());
    // The SYN is repeated, because the SYN-ACK was lost.
    sender.handle(&call, 900 * MS);
    assert_eq!(sender.poll_transmit(900 * MS), Some(answer));
    let ack = Segment {
        seq: 6,
        ack: ISS.wrapping_add(1),
        flags: ACK,
        window: 0xff,
        ..Segment::default()
    };
    sender.handle(&ack, 950 * MS);
    let first = sender.poll_transmit(950 * MS).unwrap();
    assert_eq!((first.seq, first.len), (ISS.wrapping_add(1), 1000));
    assert_eq!(sender.poll_transmit(950 * MS).unwrap().len, 1000);
    assert_eq!(sender.poll_transmit(950 * MS), None, "the initial window");
    let reset = Segment { flags: RST, ..ack };
    sender.handle(&reset, 960 * MS);
    assert!(sender.is_reset() && sender.poll_timeout().is_none());
}

#[test]
fn the_peers_window_is_scaled_and_kept() {
    let mut sender = Sender::calling(100 * MSS, ISS, Duration::ZERO);
    sender.poll_transmit(Duration::ZERO);
    let answer = Segment {
        seq: 5,
        ack: ISS.wrapping_add(1),
        flags: SYN | ACK,
        window: 2000,
        mss: Some(1460),
        scale: Some(7),
        len: 0,
    };
    sender.handle(&answer, MS);
    assert_eq!(sender.poll_transmit(MS).unwrap().flags, ACK);
    assert_eq!(sender.poll_transmit(MS).unwrap().len as u64, MSS);
    assert_eq!(sender.poll_transmit(MS), None, "2000 bytes, not scaled");
    let ack = Segment {
        flags: ACK,
        ack: ISS.wrapping_add(1 + MSS as u32),
        window: 100,
        ..answer
    };
    sender.handle(&ack, 2 * MS);
    let count = std::iter::from_fn(|| sender.poll_transmit(2 * MS)).count();
    assert_eq!(count, 3, "the congestion window, of 12,800 bytes");
}

#[test]
fn acks_of_what_was_never_sent_are_nothing() {
    let mut sender = Sender::calling(10 * MSS, ISS, Duration::ZERO);
    let mut path = Path::new(MS);
    while let Some(segment) = sender.poll_transmit(Duration::ZERO) {
        path.carry(segment, Duration::ZERO);
    }
    let wild = Segment {
        ack: ISS.wrapping_add(5000),
        flags: SYN | ACK,
        ..Segment::default()
    };
    sender.handle(&wild, MS);
    assert!(!sender.is_done() && sender.poll_transmit(MS).is_none());
}
