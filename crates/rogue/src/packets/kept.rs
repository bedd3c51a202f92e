//! Messages for which a receiver keeps something: until others come, or until its session is over.

use fec::wire::Header;
use splitmix::SplitMix64;

use super::{ROOM, expanding_message, message, udp};
use crate::{Step, floods::Target, wire::Writer};

/// Messages of a turn, and turns until held ones are released.
const EACH: u64 = 20;
const TURNS: u64 = 100;
/// Messages apart from which ARQ takes numbers for those of another sender.
const APART: u64 = 1 << 20;

/// A message of ARQ, before which others are waited for so many milliseconds.
fn arq(number: u64, wait: u64, inner: &[u8]) -> Vec<u8> {
    let header = Writer::new(0x11).fixed(8, 1).fixed(32, number);
    header.fixed(16, wait).bytes(inner).0
}

/// Messages behind a missing one, and after many turns that one, which releases all.
fn released(n: u64, inner: &[u8]) -> Vec<Step> {
    let missing = n / TURNS * TURNS * EACH + 1;
    let others = (n * EACH..(n + 1) * EACH).filter(|number| *number != missing);
    let last = (n % TURNS == TURNS - 1).then_some(missing);
    let numbers = others.chain(last);
    numbers
        .map(|number| message(0, &arq(number, 1000, inner)))
        .collect()
}

pub(crate) fn released_by_arq(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    released(n, &udp(target.inner, target.packets, b""))
}

pub(crate) fn released_and_expanding(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    released(n, &expanding_message(target))
}

/// Packets held for two seconds, and after many turns one of another clock, which releases all.
pub(crate) fn released_by_jitter(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let header = Writer::new(0x14).fixed(32, n / TURNS * 8_000_000);
    let packet = udp(target.inner, target.packets, b"");
    let held = header.fixed(16, 2000).bytes(&packet).0;
    vec![message(0, &held); EACH as usize]
}

/// Two senders in turns, which leave messages behind a missing one under the same numbers.
pub(crate) fn restarted_senders(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    let packet = udp(target.inner, target.packets, b"");
    let first = n % 2 * APART;
    let numbers = (0..EACH).filter(|at| *at != 1).map(|at| first + at);
    let channel = (n / 8 % 16) as u8;
    numbers
        .map(|number| message(channel, &arq(number, 0xffff, &packet)))
        .collect()
}

/// Receivers of all channels with large decoders and a message that waits for a minute, and a new
/// session.
pub(crate) fn abandoned_receivers(n: u64, target: &Target, _: &mut SplitMix64) -> Vec<Step> {
    const CHANNELS: u64 = 16;
    let channel = n % (CHANNELS + 1);
    if channel == CHANNELS {
        return vec![Step::Renew];
    }
    let headers = [
        Header::WindowData { id: 0 },
        Header::BlockData { block: 0, index: 0 },
    ];
    let packet = udp(target.inner, target.packets, b"");
    let mut messages: Vec<_> = [0, 2].map(|at| arq(at, 0xffff, &packet)).into();
    for (id, header) in headers.iter().enumerate() {
        let mut long = vec![0x10];
        header.emit(&mut long);
        long.resize(8900, 0x45);
        let pieces = long.chunks(ROOM);
        let last = pieces.len() as u64 - 1;
        messages.extend(pieces.zip(0..).map(|(bytes, index)| {
            let piece = Writer::new(0x02).fixed(16, id as u64).fixed(8, index);
            piece.fixed(8, last).bytes(bytes).0
        }));
    }
    let messages = messages.iter();
    messages
        .map(|bytes| message(channel as u8, bytes))
        .collect()
}

/// Messages with hundreds to thousands of missing numbers between them.
pub(crate) fn jumping_numbers(n: u64, target: &Target, random: &mut SplitMix64) -> Vec<Step> {
    let number = n * 2000 + random.below(1900);
    let packet = udp(target.inner, target.packets, b"");
    vec![message(0, &arq(number, 0xffff, &packet))]
}
