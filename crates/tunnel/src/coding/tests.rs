use std::time::Duration;

use super::{CODED_OVERHEAD, Channel, Decoding, Encoding};
use crate::wire::{Frame, Frames};

const PACKET_MAX: usize = 1400;
const PACKET: Duration = Duration::from_micros(1200);

fn content(number: u32) -> Vec<u8> {
    let len = 1 + (number as usize * 37) % (PACKET_MAX - CODED_OVERHEAD);
    (0..len).map(|i| (i as u32 ^ number) as u8).collect()
}

/// Returns the decoded packets if those for which `lost` returns true do not arrive.
fn carried(
    encoding: &mut Encoding,
    channel: Channel,
    count: u32,
    lost: impl Fn(usize) -> bool,
) -> Vec<Vec<u8>> {
    let mut decoding = Decoding::new(PACKET_MAX);
    let mut sent = 0;
    let mut arrived = Vec::new();
    let mut carry = |packet: &[u8]| {
        assert!(packet.len() <= PACKET_MAX, "{} bytes", packet.len());
        sent += 1;
        if lost(sent - 1) {
            return;
        }
        let Some(Ok(Frame::Coded { channel, protected })) = Frames::new(packet).next() else {
            panic!("not protected: {packet:?}");
        };
        let take = |packet: &[u8], _| arrived.push(packet.to_vec());
        decoding.handle(channel, protected, take).expect("ours");
    };
    for number in 0..count {
        let now = Duration::from_millis(number.into());
        let mut out = Vec::new();
        encoding.protect(channel, &content(number), now, &mut out);
        carry(&out);
        out.clear();
        while encoding.poll_repair(channel, now, &mut out) {
            carry(&out);
            out.clear();
        }
    }
    arrived
}

#[test]
fn a_message_that_is_lost_comes_with_the_repair_of_the_next() {
    let mut encoding = Encoding::new(PACKET_MAX, 1.0);
    // Message, repair, message, repair: the first pair and the third message are lost.
    let arrived = carried(&mut encoding, Channel::Interactive, 6, |i| {
        [0, 1, 4].contains(&i)
    });
    assert_eq!(arrived.len(), 6);
    for number in 0..6 {
        assert!(arrived.contains(&content(number)), "{number}");
    }
}

#[test]
fn a_clean_link_has_no_repair_packets_and_a_lossy_one_as_many_as_allowed() {
    let mut encoding = Encoding::new(PACKET_MAX, 1.0);
    assert_eq!(encoding.share(), 0.0);
    encoding.on_counts([10_000, 0, 0], false, PACKET);
    assert_eq!(encoding.share(), 0.0);
    encoding.on_counts([20_000, 200, 198], false, PACKET);
    let share = encoding.share();
    assert!((0.04..0.12).contains(&share), "{share}");
    // Overtaken counts are ignored.
    encoding.on_counts([15_000, 100, 98], false, PACKET);
    assert_eq!(encoding.share(), share);

    let mut frugal = Encoding::new(PACKET_MAX, 0.02);
    frugal.on_counts([20_000, 400, 396], false, PACKET);
    assert!(frugal.share() <= 0.02, "{}", frugal.share());
}

#[test]
fn what_a_normal_stream_loses_is_restored() {
    let mut encoding = Encoding::new(PACKET_MAX, 1.0);
    encoding.on_counts([10_000, 200, 198], false, PACKET);
    let arrived = carried(&mut encoding, Channel::Normal, 1000, |i| i % 50 == 17);
    assert!(arrived.len() >= 995, "{}", arrived.len());
}

#[test]
fn nonsense_is_refused() {
    let mut decoding = Decoding::new(PACKET_MAX);
    let nothing = |_: &[u8], _| panic!("nothing was sent");
    assert!(decoding.handle(2, &[0x20, 0, 0, 0, 0], nothing).is_err());
    assert!(decoding.handle(0, &[], nothing).is_err());
    assert!(decoding.handle(1, &[0x20, 0, 0], nothing).is_err());
}

#[test]
fn where_losses_come_in_bursts_a_message_is_repaired_when_they_are_over() {
    let repaired = |counts, packet| {
        let mut encoding = Encoding::new(PACKET_MAX, 1.0);
        encoding.on_counts(counts, false, packet);
        let mut out = Vec::new();
        encoding.protect(Channel::Interactive, b"message", Duration::ZERO, &mut out);
        let mut due = |ms: &u64| {
            let now = Duration::from_millis(*ms);
            encoding.poll_repair(Channel::Interactive, now, &mut out)
        };
        (0..100).filter(|ms| due(ms)).collect::<Vec<_>>()
    };
    assert_eq!(repaired([10_000, 200, 198], PACKET), [0], "by themselves");
    assert_eq!(repaired([10_000, 1000, 200], PACKET), [18, 36], "of five");
    assert_eq!(repaired([10_000, 1000, 200], PACKET / 10), [2, 4]);
    assert_eq!(repaired([10_000, 1000, 200], PACKET * 10), [20, 40]);
    // The initial setting of an encoder can change.
    let mut encoding = Encoding::new(PACKET_MAX, 1.0);
    let mut out = Vec::new();
    let mut at_once = |encoding: &mut Encoding| {
        encoding.protect(Channel::Interactive, b"message", Duration::ZERO, &mut out);
        encoding.poll_repair(Channel::Interactive, Duration::ZERO, &mut out)
    };
    assert!(at_once(&mut encoding));
    encoding.on_counts([10_000, 1000, 200], false, PACKET);
    assert!(!at_once(&mut encoding));
}
