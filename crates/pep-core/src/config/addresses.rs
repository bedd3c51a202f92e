//! Addresses for the buffers of flows.

/// Minimum buffer of each direction of a flow in a tunnel, in bytes.
pub const TUNNEL_EXTENT_MIN: u64 = 1 << 20;

/// Room for flows in a process. Flow buffers reserve addresses at the start, and take memory as
/// they fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Bytes of addresses for all buffers.
    pub bytes: u64,
    /// Flows beyond `limits.flows` that have room: those that the kernel had already answered when
    /// the gate closed. Sized for the 100 ms until the rule is in place, at 10,000 flows a second
    /// on a large machine.
    pub slack_flows: u32,
}

impl Addresses {
    /// Room on the architecture that pepd is compiled for.
    pub const HERE: Self = Self::of_bits(usize::BITS);

    /// Room with addresses of `bits` bits.
    pub const fn of_bits(bits: u32) -> Self {
        if bits < 64 {
            // A 32-bit kernel leaves a process 2 GiB or 3 GiB; code, stacks and heap need some of
            // it.
            Self {
                bytes: 1 << 30,
                slack_flows: 128,
            }
        } else {
            Self {
                bytes: 1 << 46,
                slack_flows: 1024,
            }
        }
    }

    /// Maximum number of flows with buffers of `extent` bytes in each direction.
    pub fn flows(self, extent: u64) -> u32 {
        let all = self.bytes / (2 * extent.max(1));
        u32::try_from(all)
            .unwrap_or(u32::MAX)
            .saturating_sub(self.slack_flows)
    }

    /// Bytes of the buffer of each direction that let `flows` flows fit: `wanted`, halved until
    /// they fit, but no less than `minimum`.
    pub fn extent(self, flows: u32, wanted: u64, minimum: u64) -> u64 {
        let mut extent = wanted;
        while extent > minimum && self.flows(extent) < flows {
            extent /= 2;
        }
        extent.max(minimum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;

    #[test]
    fn addresses_of_32_bits_hold_fewer_flows_the_more_each_may_buffer() {
        let narrow = Addresses::of_bits(32);
        assert_eq!(narrow.flows(MIB), 384);
        assert_eq!(narrow.flows(256 * KIB), 1920);
        assert_eq!(narrow.flows(16 * MIB), 0);
        assert!(Addresses::of_bits(64).flows(16 * MIB) > 1_000_000);
    }

    #[test]
    fn buffers_shrink_until_all_flows_fit() {
        let narrow = Addresses::of_bits(32);
        assert_eq!(narrow.extent(100, MIB, 64 * KIB), MIB);
        assert_eq!(narrow.extent(1920, MIB, 64 * KIB), 256 * KIB);
        assert_eq!(narrow.extent(384, 16 * MIB, MIB), MIB);
        assert_eq!(narrow.extent(5000, MIB, 256 * KIB), 256 * KIB);
        assert_eq!(
            Addresses::of_bits(64).extent(1_000_000, 16 * MIB, MIB),
            16 * MIB
        );
    }
}
