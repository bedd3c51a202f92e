//! Fragments admitted, against a model of the kernel.

use proptest::prelude::*;

use super::*;

const KEPT: Duration = Duration::from_secs(30);

/// Builds the fragment `from..to` of an IPv4 datagram.
fn fragment(id: u16, from: u16, to: u16, more: bool) -> Vec<u8> {
    fragment_of([2, 2], id, from, to, more)
}

/// Builds it for other ends: 10.1.0.x and 10.2.0.x.
fn fragment_of(ends: [u8; 2], id: u16, from: u16, to: u16, more: bool) -> Vec<u8> {
    let len = usize::from(to - from);
    let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
    packet.extend([10, 1, 0, ends[0], 10, 2, 0, ends[1]]);
    packet.resize(20 + len, 7);
    let word = |value: u16| value.to_be_bytes();
    packet[2..4].copy_from_slice(&word(20 + to - from));
    packet[4..6].copy_from_slice(&word(id));
    packet[6..8].copy_from_slice(&word((from / 8) | (u16::from(more) << 13)));
    let sum = |sum: u32, word: &[u8]| sum + u32::from(u16::from_be_bytes([word[0], word[1]]));
    let sum = packet[..20].chunks(2).fold(0, sum);
    packet[10..12].copy_from_slice(&word(!(sum as u16 + (sum >> 16) as u16)));
    packet
}

#[test]
fn whole_datagrams_take_nothing_and_the_rest_is_bounded() {
    let mut fragments = Fragments::default();
    let mut now = Duration::from_secs(100);
    for id in 0..10_000 {
        assert!(fragments.admit(now, &fragment(id, 1400, 3000, false)));
        assert!(fragments.admit(now, &fragment(id, 0, 1400, true)));
    }
    assert!(fragments.waiting.is_empty() && fragments.memory == 0);
    let first = |id| fragment(id, 0, 1400, true);
    let admitted = (0..10_000).filter(|id| fragments.admit(now, &first(*id)));
    assert_eq!(admitted.count(), MEMORY_MAX / 2 / (2048 + 512));
    now += KEPT + INEXACT;
    assert!(fragments.admit(now, &first(1)), "the kernel has forgotten");
    assert_eq!(fragments.waiting.len(), 1);
    assert!(fragments.admit(now, &[0x45; 3]), "no fragment");
}

#[test]
fn headers_behind_that_of_an_ipv6_fragment_belong_to_the_datagram() {
    let fragment = |from: u16, more: bool, bytes: &[u8]| {
        let place = (from | u16::from(more)).to_be_bytes();
        let header = [60, 0, place[0], place[1], 0, 0, 0, 9];
        let len = (header.len() + bytes.len()) as u8;
        let ends = [[1; 16], [2; 16]].concat();
        [&[0x60, 0, 0, 0, 0, len, 44, 64][..], &ends, &header, bytes].concat()
    };
    let options = [17, 0, 1, 4, 0, 0, 0, 0];
    let mut fragments = Fragments::default();
    let mut admit = |packet: &[u8]| fragments.admit(Duration::ZERO, packet);
    assert!(admit(&fragment(0, true, &[options, [7; 8]].concat())));
    assert!(!admit(&fragment(8, true, &[7; 8])), "overlapping");
    assert!(admit(&fragment(16, false, &options)));
    assert!(fragments.waiting.is_empty() && fragments.memory == 0);
}

#[test]
fn what_the_kernel_drops_completes_no_datagram() {
    let mut fragments = Fragments::default();
    let mut admit = |packet: &[u8]| fragments.admit(Duration::ZERO, packet);
    assert!(admit(&fragment(1, 0, 8, true)));
    let mut damaged = fragment(1, 8, 16, false);
    damaged[11] ^= 1;
    assert!(!admit(&damaged));
    let ends = [[1; 16], [2; 16]].concat();
    let options = [44, 0, 0x5e, 4, 0, 0, 0, 0];
    let header = [17, 0, 0, 8, 0, 0, 0, 9, 7, 7, 7, 7, 7, 7, 7, 7];
    let optional = [&[0x60, 0, 0, 0, 0, 24, 0, 64][..], &ends, &options, &header].concat();
    assert!(!admit(&optional));
    assert_eq!(fragments.waiting.len(), 1);
}

#[test]
fn what_the_kernel_gives_up_for_later_ones_completes_no_datagram() {
    let mut fragments = Fragments::default();
    let mut admit = |id, last: bool| {
        let packet = match last {
            false => fragment(id, 0, 8, true),
            true => fragment(id, 8, 16, false),
        };
        fragments.admit(Duration::ZERO, &packet)
    };
    for (step, ids) in [(64, 1..=64), (65, 101..=165)] {
        assert!(ids.clone().all(|id| admit(id, false)), "{step}");
        assert!(ids.clone().all(|id| admit(id, true)), "{step}");
    }
    assert_eq!(fragments.waiting.len(), 65, "those too far apart");
    assert_eq!(
        fragments.memory,
        65 * 1536,
        "nor does it keep the first ones"
    );
    assert!(fragments.admit(KEPT + INEXACT, &fragment(1, 0, 8, true)));
    assert_eq!((fragments.waiting.len(), fragments.sources.len()), (1, 1));
}

#[test]
fn what_does_not_fit_is_not_admitted() {
    let mut fragments = Fragments::default();
    let mut admit = |from, to, more| fragments.admit(Duration::ZERO, &fragment(1, from, to, more));
    assert!(admit(800, 1600, true));
    for (from, to, more) in [
        (800, 1600, true),
        (0, 808, true),
        (1592, 2400, true),
        (808, 816, true),
        (8, 800, false),
        (2400, 2400, true),
    ] {
        assert!(!admit(from, to, more), "{from}..{to} {more}");
    }
    assert!(admit(2400, 2500, false));
    for (from, to, more) in [(2496, 2600, true), (2504, 2600, false), (3200, 4000, true)] {
        assert!(!admit(from, to, more), "{from}..{to} {more}");
    }
    assert!(admit(0, 800, true) && admit(1600, 2400, true));
    assert!(fragments.waiting.is_empty());
}

#[test]
fn a_host_has_half_of_what_other_hosts_leave() {
    let mut fragments = Fragments::default();
    let mut admitted = |host| {
        let first = |id| fragment_of([host, 2], id, 0, 8, true);
        let count = (0..2000).filter(|id| fragments.admit(Duration::ZERO, &first(*id)));
        count.count()
    };
    let all = MEMORY_MAX / 1536;
    assert_eq!(
        [1, 2, 3].map(&mut admitted),
        [all / 2, all / 4, all / 8 + 1]
    );
    // What completes a datagram needs no room.
    assert!(fragments.admit(Duration::ZERO, &fragment_of([1, 2], 680, 8, 16, false)));
    assert_eq!(
        fragments.hosts[&Host::from_address([10, 1, 0, 1].into())],
        (all / 2 - 1) * 1536
    );
}

#[test]
fn a_datagram_that_lost_a_fragment_does_not_block_its_identification() {
    let (mut fragments, mut now) = (Fragments::default(), Duration::ZERO);
    // 10,000 a second, of which each thousandth loses its end.
    for turn in 0..3 {
        for id in 0..=u16::MAX {
            now += Duration::from_micros(100);
            let mut admit = |from, to, more| fragments.admit(now, &fragment(id, from, to, more));
            assert!(admit(0, 8, true), "{turn} {id}");
            let is_lost = id % 1000 == turn;
            assert!(is_lost || admit(8, 16, false), "{turn} {id}");
        }
        let waiting = fragments.waiting.keys().map(|name| name.id % 1000);
        assert!(
            waiting.into_iter().all(|id| id == u32::from(turn)),
            "{turn}"
        );
    }
}

#[test]
fn what_the_kernel_may_have_forgotten_is_not_completed() {
    let second = Duration::from_secs(1);
    for (age, admitted, left) in [
        (KEPT - 2 * second, true, 0),
        (KEPT - second / 2, false, 1),
        (KEPT + second / 2, false, 1),
        (KEPT + second, true, 1),
    ] {
        let mut fragments = Fragments::default();
        assert!(fragments.admit(Duration::ZERO, &fragment(1, 0, 8, true)));
        let last = fragments.admit(age, &fragment(1, 8, 16, false));
        assert_eq!((last, fragments.waiting.len()), (admitted, left), "{age:?}");
    }
}

/// A datagram that waits in a kernel.
#[derive(Debug, Default)]
struct Queue {
    began: Duration,
    bytes: Vec<bool>,
    len: Option<usize>,
    memory: usize,
    number: u64,
}

/// Reassembly of IPv4 as in `ip_frag_queue` of Linux.
#[derive(Debug, Default)]
struct Kernel {
    queues: HashMap<Name, Queue>,
    sources: HashMap<IpAddr, u64>,
}

impl Kernel {
    fn take(&mut self, now: Duration, packet: &[u8], distance: u64) {
        let (name, Fragment { from, to, more, .. }) = Fragment::read(packet).expect("a fragment");
        let number = self.sources.entry(name.from).or_default();
        *number += 1;
        let queue = self.queues.entry(name).or_default();
        let is_far = distance > 0 && *number - queue.number > distance;
        if queue.memory == 0 || is_far {
            *queue = Queue {
                began: now,
                ..Queue::default()
            };
        }
        queue.number = *number;
        let end = queue.bytes.len();
        let contradicts = match more {
            true => queue.len.is_some_and(|len| to > len),
            false => to < end || queue.len.is_some_and(|len| to != len),
        };
        queue.bytes.resize(end.max(to), false);
        let place = &mut queue.bytes[from..to];
        if !contradicts && place.iter().all(|byte| *byte) {
            return; // A duplicate.
        }
        if contradicts || place.iter().any(|byte| *byte) {
            self.queues.remove(&name);
            return;
        }
        place.fill(true);
        queue.memory += memory(packet);
        if !more {
            queue.len = Some(to);
        }
        if queue.len.is_some() && queue.bytes.iter().all(|byte| *byte) {
            self.queues.remove(&name);
        }
    }

    /// Returns the memory of what it has not forgotten at that age.
    fn memory(&mut self, now: Duration, kept: Duration) -> usize {
        self.queues.retain(|_, queue| now < queue.began + kept);
        self.queues.values().map(|queue| queue.memory).sum()
    }
}

proptest! {
    /// Against a naive reassembly of the admitted fragments.
    #[test]
    fn memory_is_that_of_datagrams_that_are_not_whole(
        sent in prop::collection::vec((0_u16..3, 0_u16..5, 1_u16..4, any::<bool>()), 0..60),
    ) {
        let mut fragments = Fragments::default();
        let mut naive: HashMap<u16, (Vec<bool>, Option<usize>, usize)> = HashMap::new();
        for (id, from, blocks, more) in sent {
            let more = more || from == 0;
            let packet = fragment(id, from * 8, (from + blocks) * 8, more);
            if !fragments.admit(Duration::ZERO, &packet) {
                continue;
            }
            let (bytes, len, held) = naive.entry(id).or_default();
            let to = usize::from(from + blocks);
            bytes.resize(bytes.len().max(to), false);
            for byte in &mut bytes[from.into()..to] {
                prop_assert!(!std::mem::replace(byte, true), "overlapping");
            }
            *held += memory(&packet);
            if !more {
                prop_assert_eq!(len.replace(to), None);
            }
            prop_assert!(len.is_none_or(|len| len >= bytes.len()));
            if *len == Some(bytes.len()) && bytes.iter().all(|byte| *byte) {
                naive.remove(&id);
            }
        }
        prop_assert_eq!(fragments.memory, naive.values().map(|(_, _, held)| held).sum::<usize>());
    }

    /// Packets of one way never arrive there.
    #[test]
    fn a_kernel_holds_no_more_than_is_counted(
        sent in prop::collection::vec(
            (0_u8..3, 0_u16..3, 0_u16..4, 1_u16..3, any::<bool>(), 0_usize..12),
            0..200,
        ),
        distance in 0_u64..5,
        kept in 29_100_u64..30_900,
    ) {
        let kernel = Reassembly { distance, ..Reassembly::default() };
        let mut fragments = Fragments::new(kernel);
        let (mut model, mut now) = (Kernel::default(), Duration::ZERO);
        let kept = Duration::from_millis(kept);
        for (to, id, from, blocks, more, pause) in sent {
            let more = more || from == 0;
            let packet = fragment_of([1, to], id, from * 8, (from + blocks) * 8, more);
            now += Duration::from_millis([29_500, 14_900, 3000, 10].get(pause).copied().unwrap_or(0));
            model.memory(now, kept);
            if fragments.admit(now, &packet) && to > 0 {
                model.take(now, &packet, distance);
            }
            prop_assert!(model.memory(now, kept) <= fragments.memory);
            prop_assert_eq!(fragments.memory, fragments.hosts.values().sum::<usize>());
        }
    }
}
