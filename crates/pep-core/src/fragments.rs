//! Bound on what a peer's fragments take of the kernel's memory for reassembly.
//!
//! A machine that tracks connections reassembles what it forwards. Fragments of datagrams that are
//! never whole wait there for half a minute, in memory that all share: up to
//! `net.ipv4.ipfrag_high_thresh`, or `net.ipv6.ip6frag_high_thresh`. Beyond it the kernel drops new
//! ones of everybody.
//!
//! The kernel forgets none of them sooner, so that room cannot be made. A host that loses or leaves
//! out fragments would take it from the other hosts of its peer. So a host may have half of what
//! the other hosts leave.
//!
//! What is counted is to be no less than what the kernel holds. Where it may have given up earlier
//! fragments of a datagram, or not, the next one is refused.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
    time::Duration,
};

use etherparse::{Ipv6ExtensionSlice, LaxIpSlice};

use crate::hosts::Host;

/// Maximum that fragments of a peer take while they wait, as the kernel counts it: half of the
/// default of both thresholds.
const MEMORY_MAX: usize = 2 << 20;
/// Length of the longest datagram.
const LEN_MAX: usize = 65_535;
/// Maximum error of the time at which the kernel forgets a datagram: it begins to count later, and
/// its timers are coarse. A quarter of that time, if it is less.
const INEXACT: Duration = Duration::from_secs(1);
/// Interval between two searches for what the kernel no longer keeps.
const SEARCH: Duration = Duration::from_secs(1);

/// Settings of the kernel for reassembly. The default is that of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reassembly {
    /// Time for which a datagram of IPv4 may stay incomplete (`net.ipv4.ipfrag_time`).
    pub kept: Duration,
    /// Time for one of IPv6 (`net.netfilter.nf_conntrack_frag6_timeout`).
    pub kept6: Duration,
    /// Fragments of a source after which the kernel gives up earlier ones of a datagram of IPv4,
    /// and begins it anew with the next (`net.ipv4.ipfrag_max_dist`). It does not if this is 0.
    pub distance: u64,
}

impl Default for Reassembly {
    fn default() -> Self {
        Self {
            kept: Duration::from_secs(30),
            kept6: Duration::from_secs(60),
            distance: 64,
        }
    }
}

impl Reassembly {
    /// Returns the age from which on a datagram may be forgotten, and that at which it is.
    fn forgets(&self, name: &Name) -> (Duration, Duration) {
        let kept = if name.protocol.is_some() {
            self.kept
        } else {
            self.kept6
        };
        let inexact = INEXACT.min(kept / 4);
        (kept - inexact, kept + inexact)
    }

    /// Returns whether that many fragments of a source are too many between two of a datagram.
    fn is_far(&self, name: &Name, distance: u64) -> bool {
        self.distance > 0 && name.protocol.is_some() && distance > self.distance
    }
}

/// Fragments of a peer that wait in the kernel for the rest of their datagrams.
#[derive(Debug, Default)]
pub struct Fragments {
    kernel: Reassembly,
    waiting: HashMap<Name, Datagram>,
    /// Recent fragments by source.
    sources: HashMap<IpAddr, u64>,
    /// Recent fragments by all but the identification. Rules may drop some of a source before they
    /// are reassembled, but hardly some of these.
    ways: HashMap<Way, u64>,
    /// Memory by host.
    hosts: HashMap<Host, usize>,
    memory: usize,
    searched: Duration,
}

/// Ends and, with IPv4, protocol of a datagram.
type Way = (IpAddr, IpAddr, Option<u8>);

/// Identity of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    from: IpAddr,
    to: IpAddr,
    /// Only with IPv4.
    protocol: Option<u8>,
    id: u32,
}

impl Name {
    fn way(&self) -> Way {
        (self.from, self.to, self.protocol)
    }

    fn host(&self) -> Host {
        Host::from_address(self.from)
    }
}

#[derive(Debug)]
struct Datagram {
    began: Duration,
    /// Ends of the fragments by their offsets; none overlap.
    parts: BTreeMap<usize, usize>,
    received: usize,
    /// Length of the whole, once its last fragment was seen.
    len: Option<usize>,
    memory: usize,
    /// Numbers of its last fragment, among those of its way and of its source.
    numbers: [u64; 2],
}

impl Fragments {
    /// Returns a bound for a kernel with these settings.
    pub fn new(kernel: Reassembly) -> Self {
        Self {
            kernel,
            ..Self::default()
        }
    }

    /// Returns whether a packet may go to the kernel. Fragments may not that the kernel might drop,
    /// that overlap others or contradict them (RFC 5722; the kernel drops such datagrams of IPv4
    /// too), or that exceed the memory. Other packets always may.
    pub fn admit(&mut self, now: Duration, packet: &[u8]) -> bool {
        let Some((name, fragment)) = Fragment::read(packet) else {
            return true;
        };
        if now >= self.searched + SEARCH {
            self.search(now);
        }
        let Fragment { from, to, .. } = fragment;
        if !fragment.arrives || from >= to || to > LEN_MAX {
            return false;
        }
        let Some(begins) = self.begins(now, &name) else {
            return false;
        };
        let earlier = self.waiting.get(&name);
        if earlier.is_some_and(|datagram| !begins && !datagram.fits(fragment)) {
            return false;
        }
        let freed = earlier.map_or(0, |datagram| if begins { datagram.memory } else { 0 });
        let is_whole = earlier.is_some_and(|datagram| !begins && datagram.is_whole_with(fragment));
        let memory = memory(packet);
        // What completes a datagram frees its memory at once.
        if !is_whole && !self.has_room(name.host(), freed, memory) {
            return false;
        }
        if begins || is_whole {
            self.remove(&name);
        }
        let numbers = self.count(&name);
        if !is_whole {
            let datagram = self
                .waiting
                .entry(name)
                .or_insert_with(|| Datagram::new(now));
            datagram.add(fragment);
            datagram.memory += memory;
            datagram.numbers = numbers;
            *self.hosts.entry(name.host()).or_default() += memory;
            self.memory += memory;
        }
        true
    }

    /// Returns whether the kernel begins a datagram with its next fragment, as it has forgotten or
    /// gives up earlier ones of that name; `None` if it may.
    fn begins(&self, now: Duration, name: &Name) -> Option<bool> {
        let Some(datagram) = self.waiting.get(name) else {
            return Some(true);
        };
        let age = now.saturating_sub(datagram.began);
        let (may_forget, forgets) = self.kernel.forgets(name);
        let [near, all] = datagram.numbers;
        let number = |count: Option<&u64>| count.map_or(0, |count| count + 1);
        let near = number(self.ways.get(&name.way())).saturating_sub(near);
        let all = number(self.sources.get(&name.from)).saturating_sub(all);
        if self.kernel.is_far(name, near) || age >= forgets {
            return Some(true);
        }
        let is_certain = !self.kernel.is_far(name, all) && age < may_forget;
        is_certain.then_some(false)
    }

    /// Returns whether a host may have `memory` more, after some of its own was freed.
    fn has_room(&self, host: Host, freed: usize, memory: usize) -> bool {
        let own = self.hosts.get(&host).copied().unwrap_or_default();
        let others = self.memory - own;
        own - freed + memory <= (MEMORY_MAX - others) / 2
    }

    /// Counts a fragment that goes to the kernel. Returns its numbers.
    fn count(&mut self, name: &Name) -> [u64; 2] {
        let near = self.ways.entry(name.way()).or_default();
        let all = self.sources.entry(name.from).or_default();
        (*near, *all) = (*near + 1, *all + 1);
        [*near, *all]
    }

    fn remove(&mut self, name: &Name) {
        let Some(datagram) = self.waiting.remove(name) else {
            return;
        };
        self.memory -= datagram.memory;
        if let Some(own) = self.hosts.get_mut(&name.host()) {
            *own -= datagram.memory;
            if *own == 0 {
                self.hosts.remove(&name.host());
            }
        }
    }

    /// Removes what the kernel has forgotten.
    fn search(&mut self, now: Duration) {
        self.searched = now;
        let kernel = self.kernel;
        let is_gone =
            |(name, datagram): &(&Name, &Datagram)| now >= datagram.began + kernel.forgets(name).1;
        let gone: Vec<_> = self
            .waiting
            .iter()
            .filter(is_gone)
            .map(|(name, _)| *name)
            .collect();
        for name in &gone {
            self.remove(name);
        }
        let ways: HashSet<_> = self.waiting.keys().map(Name::way).collect();
        self.ways.retain(|way, _| ways.contains(way));
        let sources: HashSet<_> = ways.iter().map(|(source, ..)| *source).collect();
        self.sources.retain(|source, _| sources.contains(source));
    }
}

impl Datagram {
    fn new(began: Duration) -> Self {
        Self {
            began,
            parts: BTreeMap::new(),
            received: 0,
            len: None,
            memory: 0,
            numbers: [0; 2],
        }
    }

    /// Returns whether a fragment fits to the others.
    fn fits(&self, fragment: Fragment) -> bool {
        let Fragment { from, to, more, .. } = fragment;
        let before = self.parts.range(..to).next_back();
        let last = self.parts.last_key_value().map_or(0, |(_, end)| *end);
        let fits = match (self.len, more) {
            (Some(len), true) => to <= len,
            (Some(_), false) => false,
            (None, true) => true,
            (None, false) => last <= to,
        };
        fits && before.is_none_or(|(_, end)| *end <= from)
    }

    /// Returns whether a fragment that fits is the last one missing.
    fn is_whole_with(&self, fragment: Fragment) -> bool {
        let Fragment { from, to, more, .. } = fragment;
        let len = if more { self.len } else { Some(to) };
        len == Some(self.received + to - from)
    }

    /// Adds a fragment that fits.
    fn add(&mut self, fragment: Fragment) {
        let Fragment { from, to, more, .. } = fragment;
        if !more {
            self.len = Some(to);
        }
        self.parts.insert(from, to);
        self.received += to - from;
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
        let name = Name {
            from: ip.source_addr(),
            to: ip.destination_addr(),
            protocol,
            id,
        };
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
mod tests;
