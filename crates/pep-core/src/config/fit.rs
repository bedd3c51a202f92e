//! Limits fitted to the memory that the machine permits.

use units::ByteSize;

use super::{Config, ConfigError, ConfigWarning, packet};

/// Memory that the processes of pepd take besides the buffers of flows: code, stacks, tables, and
/// some socket buffers of the kernel. 96 MiB of a cgroup hold 48 MiB of buffers.
const OWN: u64 = 32 << 20;
/// Minimum memory of flows with which pepd starts.
const FLOWS_MIN: u64 = 1 << 20;
const KEY: &str = "limits.memory";

/// Returns the bytes for flows in a cgroup of `cgroup` bytes: half, but all of [`OWN`] stays free.
/// The kernel charges socket buffers to the other half.
fn for_flows(cgroup: u64) -> u64 {
    (cgroup / 2).min(cgroup.saturating_sub(OWN))
}

/// Returns the bytes of the smallest cgroup with `bytes` for flows.
fn cgroup_for(bytes: u64) -> u64 {
    bytes.saturating_add(bytes.max(OWN))
}

impl Config {
    /// Lowers limits to what a cgroup of `cgroup` bytes has for flows: half of it, and no more than
    /// it leaves beside 32 MiB. Above its limit the kernel kills processes, and with them
    /// acknowledged bytes. Returns a warning if it lowers `limits.memory`.
    ///
    /// What depends on `limits.memory` follows: `custody.memory`, `limits.flows` and
    /// `limits.ring_max`.
    ///
    /// # Errors
    /// When the cgroup is too small for flows, or for the packets of the sites.
    pub fn fit_memory(&mut self, cgroup: u64) -> Result<Option<ConfigWarning>, ConfigError> {
        let stated = self.limits.memory;
        let most = for_flows(cgroup);
        if stated.bytes() <= most {
            return Ok(None);
        }
        self.is_enough(cgroup, most)?;
        let memory = ByteSize(most);
        let limits = &mut self.limits;
        limits.memory = memory;
        self.custody.memory = self.custody.memory.min(memory);
        let flows = u32::try_from(most / limits.initial_rings(1)).unwrap_or(u32::MAX);
        limits.flows = limits.flows.min(flows);
        while 2 * limits.ring_max.bytes() > most && limits.ring_max > limits.ring_initial {
            limits.ring_max = ByteSize(limits.ring_max.bytes() / 2);
        }
        let message = format!(
            "{stated} exceeds the memory for flows in the cgroup (container, unit) of {}, and above \
             its limit the kernel kills pepd: using {memory} and {} flows; raise the limit \
             (MemoryMax=) to {}, or state these values",
            ByteSize(cgroup),
            limits.flows,
            ByteSize(cgroup_for(stated.bytes())),
        );
        Ok(Some(ConfigWarning {
            line: self.line_of(KEY),
            key: KEY.to_owned(),
            message,
        }))
    }

    /// Checks that `most` bytes in a cgroup of `cgroup` bytes are enough for flows and packets.
    fn is_enough(&self, cgroup: u64, most: u64) -> Result<(), ConfigError> {
        let of_flow = self.limits.initial_rings(1).max(FLOWS_MIN);
        let of_packets = packet::memory(self);
        let (needed, what, or) = if of_packets > most.max(of_flow) {
            let smaller =
                ", or set a smaller `packet.queue`, `boost.arq.cache` or `boost.snoop.cache`";
            (of_packets, "queues and caches of packets", smaller)
        } else if of_flow > most {
            (of_flow, "flows", "")
        } else {
            return Ok(());
        };
        Err(ConfigError {
            line: self.line_of(KEY),
            key: KEY.to_owned(),
            message: format!(
                "the cgroup (container, unit) of {} is too small for {what}, which need {}: raise its \
                 limit (MemoryMax=) to {} or more{or}",
                ByteSize(cgroup),
                ByteSize(needed),
                ByteSize(cgroup_for(needed)),
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config(more: &str) -> Config {
        super::super::parse(&format!("intercept.lan = [\"lo\"]\n{more}")).expect("valid")
    }

    #[test]
    fn limits_follow_the_cgroup() {
        // The default is smaller on a 32-bit CPU.
        let mut fitted = config("limits.memory = \"1GiB\"\n");
        let warning = fitted.fit_memory(96 * MIB).expect("enough").expect("less");
        assert_eq!(
            warning.to_string(),
            "2: limits.memory: 1GiB exceeds the memory for flows in the cgroup (container, unit) of \
             96MiB, and above its limit the kernel kills pepd: using 48MiB and 384 flows; raise the \
             limit (MemoryMax=) to 2GiB, or state these values"
        );
        let memory = ByteSize(48 * MIB);
        assert_eq!(fitted.limits.memory, memory);
        assert_eq!(fitted.custody.memory, memory);
        assert_eq!(fitted.limits.flows, 384);
        assert_eq!(fitted.limits.ring_max, ByteSize::mib(1));
        let stated = "limits.memory = \"48MiB\"\nlimits.flows = 384\n";
        let stated = config(stated);
        assert_eq!(
            (&fitted.limits, &fitted.custody),
            (&stated.limits, &stated.custody)
        );
        // Fitted limits fit.
        assert_eq!(fitted.clone().fit_memory(96 * MIB), Ok(None));
    }

    #[test]
    fn stated_values_are_lowered_only_if_they_exceed_it() {
        let stated = "limits = { memory = \"64MiB\", flows = 10, ring_max = \"16MiB\" }\n\
                      custody.memory = \"5MiB\"\n";
        let mut unchanged = config(stated);
        for cgroup in [128 * MIB, u64::MAX] {
            assert_eq!(unchanged.fit_memory(cgroup), Ok(None));
        }
        assert_eq!(unchanged, config(stated));
        let mut lowered = config(stated);
        assert!(lowered.fit_memory(40 * MIB).expect("enough").is_some());
        assert_eq!(
            lowered.limits.memory,
            ByteSize(8 * MIB),
            "32 MiB are for pepd"
        );
        assert_eq!(lowered.limits.ring_max, ByteSize::mib(4));
        assert_eq!(lowered.limits.flows, 10);
        assert_eq!(lowered.custody.memory, ByteSize(5 * MIB));
    }

    #[test]
    fn a_cgroup_without_memory_for_flows_is_an_error_with_a_remedy() {
        let error = |more, cgroup| config(more).fit_memory(cgroup).expect_err("too small");
        assert_eq!(
            error("", 16 * MIB).to_string(),
            "1: limits.memory: the cgroup (container, unit) of 16MiB is too small for flows, which \
             need 1MiB: raise its limit (MemoryMax=) to 33MiB or more"
        );
        assert!(config("").fit_memory(33 * MIB).is_ok());
        let packets =
            "[[site]]\nname = \"a\"\nmode = \"boost\"\nboost = { snoop = { cache = \"60MiB\" } }\n";
        let message = error(packets, 96 * MIB).to_string();
        assert!(message.contains("snoop.cache"), "{message}");
        assert!(config(packets).fit_memory(200 * MIB).is_ok());
    }
}
