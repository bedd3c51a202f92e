//! Memory limit of a process by its cgroups.

use std::{fs, path::Path};

/// Returns the bytes of memory that a process may have, by its number or `self`: the minimum of its
/// cgroup and those above. `None` without a limit.
pub fn memory_limit(process: &str) -> Option<u64> {
    let cgroups = fs::read_to_string(format!("/proc/{process}/cgroup")).ok()?;
    minimum(&cgroups, |file| fs::read_to_string(file).ok())
}

fn minimum(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let (root, files, path) = cgroups.lines().find_map(of_memory)?;
    let limit = |path: &Path| {
        let limit = |file| {
            let limit = read(&Path::new(root).join(path).join(file))?;
            // Without a limit it is `max`.
            limit.trim().parse::<u64>().ok()
        };
        files.iter().filter_map(limit).min()
    };
    let path = Path::new(path.trim_start_matches('/'));
    // Version 1 without a limit has the number of all pages.
    let limits = path.ancestors().filter_map(limit);
    limits.min().filter(|limit| *limit < UNLIMITED)
}

/// Above this, in bytes, version 1 has no limit.
const UNLIMITED: u64 = 1 << 62;

/// Returns the directory of the memory limits for a line of `/proc/PID/cgroup`, and the files:
/// `ID:CONTROLLERS:PATH`. Version 2 lists no controllers; a version 1 line for memory comes first.
/// Above `memory.high` the kernel slows the processes down to nearly nothing.
fn of_memory(line: &str) -> Option<(&'static str, &'static [&'static str], &str)> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    if controllers.split(',').any(|name| name == "memory") {
        return Some(("/sys/fs/cgroup/memory", &["memory.limit_in_bytes"], path));
    }
    let is_second = controllers.is_empty();
    is_second.then_some(("/sys/fs/cgroup", &["memory.max", "memory.high"], path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(cgroups: &str, files: &[(&str, &str)]) -> Option<u64> {
        let read = |path: &Path| {
            let mut found = files.iter().filter(|(file, _)| Path::new(file) == path);
            found.next().map(|(_, text)| (*text).to_owned())
        };
        minimum(cgroups, read)
    }

    #[test]
    fn the_least_of_all_above_counts() {
        let files = [
            ("/sys/fs/cgroup/system.slice/memory.max", "1000\n"),
            (
                "/sys/fs/cgroup/system.slice/pepd.service/memory.max",
                "max\n",
            ),
        ];
        let of = |cgroups| limit(cgroups, &files);
        assert_eq!(of("0::/system.slice/pepd.service\n"), Some(1000));
        assert_eq!(of("0::/system.slice/other.service/a\n"), Some(1000));
        assert_eq!(of("0::/\n"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn version_1_has_names_of_its_own() {
        let files = [("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "77\n")];
        let cgroups = "5:cpu,cpuacct:/b\n4:memory:/a\n0::/\n";
        assert_eq!(limit(cgroups, &files), Some(77));
        let files = [(
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        )];
        assert_eq!(limit(cgroups, &files), None);
    }

    #[test]
    fn where_the_kernel_slows_processes_down_is_a_limit_too() {
        let files = [
            ("/sys/fs/cgroup/a/memory.max", "77\n"),
            ("/sys/fs/cgroup/a/memory.high", "66\n"),
        ];
        assert_eq!(limit("0::/a\n", &files), Some(66));
    }
}
