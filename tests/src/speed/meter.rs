//! Resource use of a process.

use std::{fs, time::Duration};

use nix::{time::ClockId, unistd::Pid};

use super::Result;

/// Returns the CPU time of a process with all its threads since its start, in nanoseconds.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    let clock = ClockId::pid_cpu_clock_id(Pid::from_raw(i32::try_from(pid)?))?;
    Ok(Duration::from(clock.now()?))
}

/// Returns how often the threads of a process have waited (voluntary context switches).
pub(super) fn waits(pid: Pid) -> Result<u64> {
    const FIELD: &str = "voluntary_ctxt_switches:";
    let mut sum = 0;
    for thread in fs::read_dir(format!("/proc/{pid}/task"))? {
        // A thread may end in between.
        let status = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(FIELD));
        sum += line.map_or(Ok(0), |line| line.trim().parse::<u64>())?;
    }
    Ok(sum)
}

/// Resident memory in bytes: all of it, and the anonymous part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resident {
    /// All memory, including the program's code and shared memory.
    pub total: u64,
    /// Heap and stacks.
    pub anonymous: u64,
    /// Shared memory, which contains pepd's rings.
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

/// Parses a field that the kernel prints as `NAME  123 kB`.
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
    fn this_process_can_be_measured() {
        let own = std::process::id();
        assert!(resident(own).unwrap().total > 0);
        assert!(cpu_time(own).unwrap() > Duration::ZERO);
    }
}
