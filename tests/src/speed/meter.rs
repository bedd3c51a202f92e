//! What a process has used.

use std::{fs, time::Duration};

use nix::{time::ClockId, unistd::Pid};

use super::Result;

/// Processor time of a process with all its threads since it began, to the nanosecond.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?))?;
    Ok(Duration::from(clock.now()?))
}

/// Resident memory in bytes: all of it, and the part that no file backs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resident {
    /// Everything, the program's own code and shared memory included.
    pub total: u64,
    /// Heap and stacks.
    pub anonymous: u64,
    /// Shared memory, in which pepd keeps its rings.
    pub shared: u64,
}

/// Reads the resident memory of a process.
pub(super) fn resident(pid: u32) -> Result<Resident> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    Ok(Resident {
        total: status_bytes(&status, "VmRSS:")?,
        anonymous: status_bytes(&status, "RssAnon:")?,
        shared: status_bytes(&status, "RssShmem:")?,
    })
}

/// A field that the kernel prints as `NAME  123 kB`.
fn status_bytes(status: &str, field: &str) -> Result<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field));
    let number = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let number = number.ok_or_else(|| format!("/proc/PID/status has no {field}"))?;
    Ok(number.parse::<u64>()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_bytes() {
        let status = "VmRSS:\t    2048 kB\nRssAnon:\t 4 kB\n";
        assert_eq!(status_bytes(status, "VmRSS:").unwrap(), 2048 * 1024);
        assert!(status_bytes(status, "RssShmem:").is_err());
    }

    #[test]
    fn our_own_use_can_be_read() {
        let own = std::process::id();
        assert!(resident(own).unwrap().total > 0);
        assert!(cpu_time(own).unwrap() > Duration::ZERO);
    }
}
