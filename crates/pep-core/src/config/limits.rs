//! `[limits]`: what pepd never exceeds.

use std::time::Duration;

use units::ByteSize;

use super::{
    addresses::{Addresses, TUNNEL_EXTENT_MIN},
    raw::Section,
    values::{Integer, PowerOfTwo, Size, Span},
};
use crate::site::custody::MEMORY;

/// `[limits]`: what pepd never exceeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Flows at one time, 1 to 1,000,000. Further ones pass unaccelerated and are counted.
    /// Default 8192: with all else at its default, what 20,000 descriptors carry; fewer where
    /// [addresses](Addresses) are short. Costs two descriptors and about 3 kB per flow, and
    /// address space, not memory, for its rings.
    pub flows: u32,
    /// Flows of one host (a client's IPv4 address, or its IPv6 /64) at one time, 1 to [`flows`](Self::flows). Further ones pass
    /// unaccelerated and are counted. `None`: a quarter of what there may be in all, but at least 256, so that
    /// three hosts can do their worst and there is still room. A NAT router is one host.
    pub flows_per_host: Option<u32>,
    /// Bytes of all rings together. Default 1 GiB, but at most a quarter of the addresses: room for
    /// the initial rings of [`flows`](Self::flows), and for hundreds of full-sized ones when there
    /// are fewer. An upper bound, not a reservation: a ring without data has no pages.
    pub memory: ByteSize,
    /// The ring of one direction of a flow to begin with, a power of two from 4 KiB to
    /// [`ring_max`](Self::ring_max). Default 64 KiB: a web page or a keystroke never needs more.
    pub ring_initial: ByteSize,
    /// The ring of one direction of a flow at most, a power of two from 64 KiB to 16 MiB.
    /// Default 1 MiB, as [`relay_budget`](Self::relay_budget): a ring grows while one call fills it
    /// and the next empties it, and beyond 1 MiB the bytes in between no longer stay in the cache.
    pub ring_max: ByteSize,
    /// SYNs held at one time (`syn = "defer"`), 1 to 100,000. Further ones pass
    /// unaccelerated. Default 2048. Costs one descriptor and about 2 kB each.
    pub held: u32,
    /// SYNs held for one client address, 1 to `held`. Default 1024 (or `held` if less): a whole network behind one
    /// NAT address still fits, and one scanning host leaves room for the others.
    pub held_per_source: u32,
    /// SYNs held for one destination address, 1 to `held`. Default 512 (or `held` if less): a server that
    /// swallows SYNs takes a quarter of the room at most, and at 600 ms of round trip a
    /// good one still takes 850 new flows a second.
    pub held_per_destination: u32,
    /// SYNs per second that are held, of all hosts, and as many at once; 1 to 1,000,000. Further ones pass unaccelerated.
    /// Default 10,000: some tens of percent of one processor at worst. What comes faster than it is taken in would keep out whoever else begins a flow.
    pub held_rate: u32,
    /// SYNs per second that are held of one host (an IPv4 address, an IPv6 /64), and as many at once; 1 to `held_rate`. Default 5000
    /// (or `held_rate` if less): half of what all have, and more than a network behind one address opens at a time.
    pub held_rate_per_source: u32,
    /// Descriptors kept back for everything that is not a flow (netlink, nft, logs), 16 to
    /// 10,000. Default 64.
    pub descriptors: u32,
    /// Bytes one flow may move before others get their turn, 4 KiB to 64 MiB. Default 1 MiB:
    /// about 300 us at full speed, for so long an interactive flow waits for each bulk flow in
    /// front of it. Smaller ones mean more system calls per byte.
    pub relay_budget: ByteSize,
    /// How long a worker may stay awake for the next bytes of a flow that exchanges small messages
    /// without pause, 0 to 1 ms. Default 50 us: about what the kernel needs to put a processor to
    /// sleep and wake it again, so that the time spent is at most about doubled, and only as
    /// long as answers come that fast; bulk transfers and flows over a slow link sleep. 0 never
    /// stays awake.
    pub busy_poll: Duration,
    /// Connections the kernel may have completed before pepd accepts them, per site, address
    /// family and processor, 1 to 65,535; the kernel caps it at `net.core.somaxconn`. Default
    /// 4096, as that is.
    pub backlog: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            flows: 8192,
            flows_per_host: None,
            memory: MEMORY,
            ring_initial: ByteSize::kib(64),
            ring_max: ByteSize::mib(1),
            held: 2048,
            held_per_source: 1024,
            held_per_destination: 512,
            held_rate: 10_000,
            held_rate_per_source: 5000,
            descriptors: 64,
            relay_budget: ByteSize::mib(1),
            busy_poll: Duration::from_micros(50),
            backlog: 4096,
        }
    }
}

/// What a host may have where nothing is said: a browser with many pages open has some hundred connections.
pub const HOST_FLOWS_LEAST: u32 = 256;

impl Limits {
    /// How many flows a host may have where `flows` may be open in all, which may be fewer than [`flows`](Self::flows) as descriptors
    /// are short. `None`: as many as all together.
    pub fn flows_per_host(&self, flows: u32) -> Option<u32> {
        let default = || (flows / 4).max(HOST_FLOWS_LEAST);
        let most = self.flows_per_host.unwrap_or_else(default);
        (most < flows).then_some(most)
    }

    /// Bytes of the initial rings of that many flows.
    pub fn initial_rings(&self, flows: u32) -> u64 {
        2 * u64::from(flows) * self.ring_initial.bytes()
    }
}

/// Minimum buffer of each direction of a flow, in bytes: its ring, or more in a tunnel.
fn extent_least(ring_initial: ByteSize, tunnels: bool) -> u64 {
    let tunnel = if tunnels { TUNNEL_EXTENT_MIN } else { 0 };
    ring_initial.bytes().max(tunnel)
}

/// Bytes that the buffer of each direction can grow to where [`Limits::flows`] is not stated.
const EXTENT_FAIR: u64 = 256 << 10;

const RING_MAX: std::ops::RangeInclusive<ByteSize> = ByteSize::kib(64)..=ByteSize::mib(16);

impl Limits {
    /// Reads them for a process that has these addresses, with or without flows in tunnels.
    pub(super) fn read(mut section: Section<'_>, addresses: Addresses, tunnels: bool) -> Self {
        let d = Self::default();
        let s = &mut section;
        let ring_initial = s
            .read(
                "ring_initial",
                PowerOfTwo(ByteSize::kib(4)..=*RING_MAX.end()),
            )
            .unwrap_or(d.ring_initial);
        let flows = s.read("flows", Integer(1..=1_000_000));
        let flows = flows.unwrap_or_else(|| {
            let extent = extent_least(ring_initial, tunnels).max(EXTENT_FAIR);
            d.flows.min(addresses.flows(extent)).max(1)
        });
        let held = s.read("held", Integer(1..=100_000)).unwrap_or(d.held);
        let held_rate = s
            .read("held_rate", Integer(1..=1_000_000))
            .unwrap_or(d.held_rate);
        let limits = Self {
            flows,
            flows_per_host: s.read("flows_per_host", Integer(1..=flows)),
            memory: s
                .read("memory", Size(ByteSize::kib(64)..=ByteSize::mib(1 << 24)))
                .unwrap_or(d.memory.min(ByteSize(addresses.bytes / 4))),
            ring_initial,
            ring_max: s
                .read("ring_max", PowerOfTwo(RING_MAX))
                .unwrap_or(d.ring_max),
            held,
            held_per_source: s
                .read("held_per_source", Integer(1..=held))
                .unwrap_or(d.held_per_source.min(held)),
            held_per_destination: s
                .read("held_per_destination", Integer(1..=held))
                .unwrap_or(d.held_per_destination.min(held)),
            held_rate,
            held_rate_per_source: s
                .read("held_rate_per_source", Integer(1..=held_rate))
                .unwrap_or(d.held_rate_per_source.min(held_rate)),
            descriptors: s
                .read("descriptors", Integer(16..=10_000))
                .unwrap_or(d.descriptors),
            relay_budget: s
                .read("relay_budget", Size(ByteSize::kib(4)..=ByteSize::mib(64)))
                .unwrap_or(d.relay_budget),
            busy_poll: s
                .read("busy_poll", Span(Duration::ZERO..=Duration::from_millis(1)))
                .unwrap_or(d.busy_poll),
            backlog: s.read("backlog", Integer(1..=65_535)).unwrap_or(d.backlog),
        };
        limits.check(&section);
        limits.check_addresses(&section, addresses, tunnels);
        section.finish();
        limits
    }

    /// Every flow needs addresses for its first buffers.
    fn check_addresses(&self, section: &Section<'_>, addresses: Addresses, tunnels: bool) {
        let least = extent_least(self.ring_initial, tunnels);
        let most = addresses.flows(least);
        if self.flows > most {
            let (room, least) = (ByteSize(addresses.bytes), ByteSize(least));
            section.error(
                "flows",
                format!(
                    "{} flows with two buffers of at least {least} do not fit the {room} of addresses \
                     that pepd has for them on this CPU; accepted: at most {most}",
                    self.flows
                ),
            );
        }
    }

    fn check(&self, section: &Section<'_>) {
        self.check_memory(section);
        if self.ring_initial > self.ring_max {
            let (initial, max) = (self.ring_initial, self.ring_max);
            section.error(
                "ring_initial",
                format!("{initial} exceeds `ring_max` ({max})"),
            );
        }
    }

    /// One error, whose remedy is enough: the initial rings of all flows and the full rings
    /// of one both have to fit.
    fn check_memory(&self, section: &Section<'_>) {
        let (memory, rings) = (self.memory, self.initial_rings(self.flows));
        let full = 2 * self.ring_max.bytes();
        let least = ByteSize(rings.max(full));
        if full > memory.bytes() {
            section.error(
                "memory",
                format!(
                    "{memory} does not hold one flow with two full rings (`ring_max` {}); \
                     accepted: at least \"{least}\"",
                    self.ring_max,
                ),
            );
        } else if rings > memory.bytes() {
            let flows = memory.bytes() / self.initial_rings(1).max(1);
            section.error(
                "memory",
                format!(
                    "{memory} does not hold two initial rings ({}) for each of {} flows; accepted: \
                     memory of at least \"{least}\", or `flows` of at most {flows}",
                    self.ring_initial, self.flows,
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::{super::findings::Findings, *};

    #[test]
    fn a_host_may_have_a_quarter_but_not_too_few() {
        let default = Limits::default();
        assert_eq!(default.flows_per_host(8192), Some(2048));
        assert_eq!(default.flows_per_host(400), Some(256));
        assert_eq!(default.flows_per_host(256), None);
        let stated = Limits {
            flows_per_host: Some(100),
            ..default
        };
        assert_eq!(stated.flows_per_host(8192), Some(100));
        assert_eq!(stated.flows_per_host(100), None);
    }

    /// Limits as a process with addresses of so many bits reads them; errors as text.
    fn read(text: &str, bits: u32, tunnels: bool) -> Result<Limits, String> {
        let findings = Findings::new(text);
        let document = DeTable::parse(text).expect("TOML");
        let section = Section::root(document.get_ref(), &findings);
        let limits = Limits::read(section, Addresses::of_bits(bits), tunnels);
        let errors = findings.finish().err().unwrap_or_default();
        let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
        errors.is_empty().then_some(limits).ok_or(errors.join("\n"))
    }

    #[test]
    fn defaults_fit_the_addresses_with_tunnels_and_without() {
        assert_eq!(read("", 64, true), Ok(Limits::default()));
        for (tunnels, flows) in [(false, 1920), (true, 384)] {
            let limits = read("", 32, tunnels).expect("defaults are accepted");
            assert_eq!((limits.flows, limits.memory), (flows, ByteSize::mib(256)));
        }
        let fewer = read("ring_initial = \"512KiB\"\nmemory = \"1GiB\"", 32, false);
        assert_eq!(fewer.expect("that fits too").flows, 1024 - 128);
    }

    #[test]
    fn more_flows_than_addresses_hold_are_refused_with_the_most_that_fit() {
        assert_eq!(
            read("flows = 2000", 32, false).map(|limits| limits.flows),
            Ok(2000)
        );
        for (text, tunnels, most) in [
            ("flows = 400", true, "384"),
            ("flows = 9000", false, "8064"),
        ] {
            let refused = read(text, 32, tunnels).expect_err("too many");
            assert!(refused.contains("flows"), "{refused}");
            assert!(refused.contains(&format!("at most {most}")), "{refused}");
        }
    }
}
