//! `[limits]`: upper bounds on pepd's resources.

use std::time::Duration;

use units::ByteSize;

use super::addresses::{Addresses, TUNNEL_EXTENT_MIN};
use crate::reading::{
    Section, section,
    values::{Integer, PowerOfTwo, Size, Span, some},
};
use crate::site::custody::MEMORY;

section! {
    /// `[limits]`: upper bounds on pepd's resources. Connections beyond a limit pass unaccelerated,
    /// and are counted.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Limits(s, addresses: Addresses, tunnels: bool) {
        /// Initial ring of one direction of a flow; grows up to [`ring_max`](Self::ring_max).
        ring_initial: ByteSize =
            PowerOfTwo(ByteSize::kib(4)..=ByteSize::mib(16)), ByteSize::kib(64);
        /// Flows at one time.
        flows: u32 = Integer(1..=1_000_000), flows_fair(addresses, ring_initial, tunnels);
        /// SYNs held at one time (`syn = "defer"`).
        held: u32 = Integer(1..=100_000), 2048;
        /// SYNs per second that pepd holds, of all hosts; also the burst.
        held_rate: u32 = Integer(1..=1_000_000), 10_000;
        /// Flows of one host (a client's IPv4 address, or its IPv6 /64) at one time. `None`: a
        /// quarter of all flows, but no fewer than 256.
        flows_per_host: Option<u32> = some(Integer(1..=flows)), None;
        /// Bytes of all rings together: an upper bound, not a reservation.
        memory: ByteSize = Size(ByteSize::kib(64)..=ByteSize::mib(1 << 24)),
            MEMORY.min(ByteSize(addresses.bytes / 4));
        /// Maximum ring of one direction of a flow.
        ring_max: ByteSize = PowerOfTwo(ByteSize::kib(64)..=ByteSize::mib(16)), ByteSize::mib(1);
        /// SYNs held for one host (an IPv4 address, or an IPv6 /64).
        held_per_source: u32 = Integer(1..=held), 1024.min(held);
        /// SYNs held for one destination address.
        held_per_destination: u32 = Integer(1..=held), 512.min(held);
        /// SYNs per second that pepd holds for one host (an IPv4 address, or an IPv6 /64); also the
        /// burst.
        held_rate_per_source: u32 = Integer(1..=held_rate), 5000.min(held_rate);
        /// Descriptors reserved for everything that is not a flow (netlink, nft, logs).
        descriptors: u32 = Integer(16..=10_000), 64;
        /// Bytes that one flow may move before other flows get their turn.
        relay_budget: ByteSize = Size(ByteSize::kib(4)..=ByteSize::mib(64)), ByteSize::mib(1);
        /// Threads that share the tunnels, at most one per peer.
        tunnel_threads: u32 = Integer(1..=16), 1;
        /// Maximum time that a worker busy-polls for the next bytes of a flow; 0 disables it.
        busy_poll: Duration =
            Span(Duration::ZERO..=Duration::from_millis(1)), Duration::from_micros(50);
        /// Connections that the kernel may complete before pepd accepts them, per site, address
        /// family and CPU. The kernel caps it at `net.core.somaxconn`.
        backlog: u32 = Integer(1..=65_535), 4096;
    }
}

impl Default for Limits {
    /// Limits without tunnels, with unlimited addresses.
    fn default() -> Self {
        Section::missing(|s| Self::read_keys(s, Addresses::of_bits(64), false))
    }
}

/// Minimum default of flows per host: a browser with many open pages has some hundred connections.
pub const HOST_FLOWS_MIN: u32 = 256;

impl Limits {
    /// Flows that one host may have while `flows` may be open in all. `flows` is below
    /// [`flows`](Self::flows) when descriptors are short. `None`: no limit per host.
    pub fn flows_per_host(&self, flows: u32) -> Option<u32> {
        let default = || (flows / 4).max(HOST_FLOWS_MIN);
        let most = self.flows_per_host.unwrap_or_else(default);
        (most < flows).then_some(most)
    }

    /// Bytes of the initial rings of `flows` flows.
    pub fn initial_rings(&self, flows: u32) -> u64 {
        2 * u64::from(flows) * self.ring_initial.bytes()
    }
}

/// Minimum buffer of each direction of a flow, in bytes: its ring, or more in a tunnel.
fn extent_min(ring_initial: ByteSize, tunnels: bool) -> u64 {
    let tunnel = if tunnels { TUNNEL_EXTENT_MIN } else { 0 };
    ring_initial.bytes().max(tunnel)
}

/// Size to which the buffer of each direction can grow where [`Limits::flows`] is not configured.
const EXTENT_FAIR: u64 = 256 << 10;

/// Default number of flows. With all else at its default, the number that 20,000 descriptors carry;
/// fewer where addresses are short.
fn flows_fair(addresses: Addresses, ring_initial: ByteSize, tunnels: bool) -> u32 {
    let extent = extent_min(ring_initial, tunnels).max(EXTENT_FAIR);
    addresses.flows(extent).clamp(1, 8192)
}

impl Limits {
    /// Reads the section for a process with these addresses, with or without flows in tunnels.
    pub(super) fn read(mut section: Section<'_>, addresses: Addresses, tunnels: bool) -> Self {
        let limits = Self::read_keys(&mut section, addresses, tunnels);
        limits.check(&section);
        limits.check_addresses(&section, addresses, tunnels);
        section.finish();
        limits
    }

    /// Reports flows that have no addresses for their first buffers.
    fn check_addresses(&self, section: &Section<'_>, addresses: Addresses, tunnels: bool) {
        let minimum = extent_min(self.ring_initial, tunnels);
        let most = addresses.flows(minimum);
        if self.flows > most {
            let (room, minimum) = (ByteSize(addresses.bytes), ByteSize(minimum));
            section.error(
                "flows",
                format!(
                    "{} flows with two buffers of {minimum} each exceed the {room} of address space \
                     for them on this CPU; accepted: at most {most}",
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

    /// Reports one error with a sufficient remedy: the initial rings of all flows, and the full
    /// rings of one flow, have to fit.
    fn check_memory(&self, section: &Section<'_>) {
        let (memory, rings) = (self.memory, self.initial_rings(self.flows));
        let full = 2 * self.ring_max.bytes();
        let minimum = ByteSize(rings.max(full));
        if full > memory.bytes() {
            section.error(
                "memory",
                format!(
                    "{memory} does not hold one flow with two full rings (`ring_max` {}); \
                     accepted: \"{minimum}\" or more",
                    self.ring_max,
                ),
            );
        } else if rings > memory.bytes() {
            let flows = memory.bytes() / self.initial_rings(1).max(1);
            section.error(
                "memory",
                format!(
                    "{memory} does not hold two initial rings ({}) for each of {} flows; accepted: \
                     \"{minimum}\" or more, or `flows` of at most {flows}",
                    self.ring_initial, self.flows,
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use toml::de::DeTable;

    use super::*;
    use crate::reading::Findings;

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

    /// Reads limits for addresses of `bits` bits; returns errors as text.
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
