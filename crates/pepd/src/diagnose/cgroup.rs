//! Memory limit of a process by its cgroups.

use std::{fs, path::Path};

/// Returns the minimum limit of its cgroup and those above; `None` without a limit. `cgroups` is
/// the contents of `/proc/PID/cgroup`.
pub(super) fn memory_limit(cgroups: &str) -> Option<u64> {
    minimum(cgroups, |file| fs::read_to_string(file).ok())
}

fn minimum(cgroups: &str, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    let (root, file, path) = cgroups.lines().find_map(of_memory)?;
    let limit = |path: &Path| {
        let limit = read(&Path::new(root).join(path).join(file))?;
        // Without a limit it is `max`.
        limit.trim().parse().ok()
    };
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().filter_map(limit).min()
}

/// Returns the directory of the memory limits for a line of `/proc/PID/cgroup`:
/// `ID:CONTROLLERS:PATH`. Version 2 lists no controllers; a version 1 line for memory comes first.
fn of_memory(line: &str) -> Option<(&'static str, &'static str, &str)> {
    let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
    if controllers.split(',').any(|name| name == "memory") {
        return Some(("/sys/fs/cgroup/memory", "memory.limit_in_bytes", path));
    }
    let is_second = controllers.is_empty();
    is_second.then_some(("/sys/fs/cgroup", "memory.max", path))
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
        assert_eq!(of("0::/\n"), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn version_1_has_names_of_its_own() {
        let files = [("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "77\n")];
        let cgroups = "5:cpu,cpuacct:/b\n4:memory:/a\n0::/\n";
        assert_eq!(limit(cgroups, &files), Some(77));
    }
}
