//! Bound on what a peer's fragments take of the kernel's memory for reassembly.
//!
//! A machine that tracks connections reassembles what it forwards. Fragments of datagrams that are
//! never whole wait there for half a minute, in memory that all share: up to
//! `net.ipv4.ipfrag_high_thresh`, or `net.ipv6.ip6frag_high_thresh`. Beyond it the kernel drops new
//! ones of everybody.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use etherparse::{Ipv6ExtensionSlice, LaxIpSlice};

/// Maximum that fragments of a peer take while they wait, as the kernel counts it: half of the
/// default of both thresholds.
const MEMORY_MAX: usize = 2 << 20;
/// Fragments of a source after which the kernel gives up earlier ones of a datagram of IPv4, and
/// begins it anew with the next (`net.ipv4.ipfrag_max_dist`).
const DISTANCE_MAX: u64 = 64;
/// Length of the longest datagram.
const LEN_MAX: usize = 65_535;
/// Time for which the kernel keeps fragments at most: `net.ipv6.ip6frag_time`. It is 30 s for IPv4.
const KEPT: Duration = Duration::from_secs(60);
/// Interval between two searches for what the kernel no longer keeps.
const SEARCH: Duration = Duration::from_secs(1);

/// Fragments of a peer that wait in the kernel for the rest of their datagrams.
#[derive(Debug, Default)]
pub struct Fragments {
    waiting: HashMap<Name, Datagram>,
    /// Recent fragments by source.
    sources: HashMap<IpAddr, u64>,
    memory: usize,
    searched: Duration,
}

/// Ends, identification and, with IPv4, protocol of a datagram.
type Name = (IpAddr, IpAddr, u32, Option<u8>);

#[derive(Debug)]
struct Datagram {
    began: Duration,
    /// Ends of the fragments by their offsets; none overlap.
    parts: BTreeMap<usize, usize>,
    received: usize,
    /// Length of the whole, once its last fragment was seen.
    len: Option<usize>,
    memory: usize,
    /// Number of its last fragment among those of its source.
    number: Option<u64>,
    /// True if the kernel may have given up fragments: it may never be whole there.
    begins_anew: bool,
}

impl Fragments {
    /// Returns whether a packet may go to the kernel. Fragments may not that the kernel might drop,
    /// that overlap others or contradict them (RFC 5722; the kernel drops such datagrams of IPv4
    /// too), or that exceed the memory. Other packets always may.
    pub fn admit(&mut self, now: Duration, packet: &[u8]) -> bool {
        let Some((name, fragment)) = Fragment::read(packet) else {
            return true;
        };
        if now >= self.searched + SEARCH {
            self.searched = now;
            self.waiting
                .retain(|_, datagram| now < datagram.began + KEPT);
            self.memory = self.waiting.values().map(|datagram| datagram.memory).sum();
            let sources: HashSet<_> = self.waiting.keys().map(|(source, ..)| *source).collect();
            self.sources.retain(|source, _| sources.contains(source));
        }
        let memory = memory(packet);
        let Fragment { from, to, .. } = fragment;
        if !fragment.arrives || from >= to || to > LEN_MAX || self.memory + memory > MEMORY_MAX {
            return false;
        }
        let datagram = self.waiting.entry(name).or_insert_with(|| Datagram {
            began: now,
            parts: BTreeMap::new(),
            received: 0,
            len: None,
            memory: 0,
            number: None,
            begins_anew: false,
        });
        if !datagram.add(fragment) {
            return false;
        }
        datagram.memory += memory;
        self.memory += memory;
        let number = self.sources.entry(name.0).or_default();
        *number += 1;
        let before = datagram.number.replace(*number);
        let is_far = before.is_some_and(|before| *number - before > DISTANCE_MAX);
        datagram.begins_anew |= is_far && name.3.is_some();
        if datagram.len == Some(datagram.received) && !datagram.begins_anew {
            self.memory -= datagram.memory;
            self.waiting.remove(&name);
        }
        true
    }
}

impl Datagram {
    /// Adds a fragment if it fits to the others.
    fn add(&mut self, fragment: Fragment) -> bool {
        let Fragment { from, to, more, .. } = fragment;
        let before = self.parts.range(..to).next_back();
        let last = self.parts.last_key_value().map_or(0, |(_, end)| *end);
        let fits = match (self.len, more) {
            (Some(len), true) => to <= len,
            (Some(_), false) => false,
            (None, true) => true,
            (None, false) => last <= to,
        };
        if !fits || before.is_some_and(|(_, end)| *end > from) {
            return false;
        }
        if !more {
            self.len = Some(to);
        }
        self.parts.insert(from, to);
        self.received += to - from;
        true
    }
}

/// Bytes `from..to` of a datagram; the last ones unless there are `more`.
#[derive(Debug, Clone, Copy)]
struct Fragment {
    from: usize,
    to: usize,
    more: bool,
    /// False if the kernel might drop it before it reassembles: its datagram would wait there while
    /// it looks whole here.
    arrives: bool,
}

impl Fragment {
    /// Returns `None` for whole packets, and what is none.
    fn read(packet: &[u8]) -> Option<(Name, Self)> {
        // A fragment may have bytes that do not parse as further headers.
        let (ip, _) = LaxIpSlice::from_slice(packet).ok()?;
        let payload = ip.payload().payload.as_ptr_range();
        let (start, arrives, offset, more, id, protocol) = match &ip {
            LaxIpSlice::Ipv4(ip) => {
                let header = ip.header();
                let (offset, more) = (header.fragments_offset(), header.more_fragments());
                let protocol = Some(header.protocol().0);
                let id = header.identification().into();
                let sum = header.to_header().calc_header_checksum();
                let arrives = sum == header.header_checksum();
                (payload.start, arrives, offset, more, id, protocol)
            }
            LaxIpSlice::Ipv6(ip) => {
                let mut extensions = ip.extensions().clone().into_iter();
                // An option may demand that it is dropped (RFC 8200, section 4.2).
                let arrives = !matches!(
                    extensions.clone().next(),
                    Some(Ipv6ExtensionSlice::HopByHop(_))
                );
                let header = extensions.find_map(|extension| match extension {
                    Ipv6ExtensionSlice::Fragment(header) => Some(header),
                    _ => None,
                })?;
                let (offset, more) = (header.fragment_offset(), header.more_fragments());
                // Headers behind this one belong to the datagram.
                let start = header.slice().as_ptr_range().end;
                let id = header.identification();
                (start, arrives, offset, more, id, None)
            }
        };
        let from = usize::from(offset.byte_offset());
        if from == 0 && !more {
            return None;
        }
        let to = from + (payload.end as usize).checked_sub(start as usize)?;
        let name = (ip.source_addr(), ip.destination_addr(), id, protocol);
        let fragment = Self {
            from,
            to,
            more,
            arrives,
        };
        Some((name, fragment))
    }
}

/// Memory of a packet in the kernel, with its descriptor.
fn memory(packet: &[u8]) -> usize {
    (packet.len() + 512).next_power_of_two() + 512
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds the fragment `from..to` of an IPv4 datagram.
    fn fragment(id: u16, from: u16, to: u16, more: bool) -> Vec<u8> {
        let len = usize::from(to - from);
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, 17, 0, 0];
        packet.extend([10, 1, 0, 2, 10, 2, 0, 2]);
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
        assert_eq!(admitted.count(), MEMORY_MAX / (2048 + 512));
        now += KEPT;
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
        assert!(fragments.admit(KEPT, &fragment(1, 0, 8, true)));
        assert_eq!((fragments.waiting.len(), fragments.sources.len()), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_not_admitted() {
        let mut fragments = Fragments::default();
        let mut admit =
            |from, to, more| fragments.admit(Duration::ZERO, &fragment(1, from, to, more));
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
    }
}
