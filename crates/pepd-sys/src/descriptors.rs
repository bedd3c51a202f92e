//! Open file descriptors of this process.

use std::{fs, os::fd::RawFd};

const LIST: &str = "/proc/self/fd";
/// Maximum slots of the descriptor table per open descriptor for which all slots are tried. Beyond
/// it, listing the open ones costs less, although the kernel creates an inode for each.
const SLOTS_TRIED: u64 = 8;

/// Returns numbers that include those of all open descriptors; none if `/proc` cannot be read.
pub fn numbers() -> impl Iterator<Item = RawFd> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let slots = table_size(&status);
    let tried = slots.filter(|slots| u64::from(*slots) <= counted() * SLOTS_TRIED);
    let listed = tried.is_none().then(listed);
    let tried = (0..tried.unwrap_or(0)).filter_map(|slot| RawFd::try_from(slot).ok());
    tried.chain(listed.into_iter().flatten())
}

/// Returns the number of open descriptors; 0 if `/proc` cannot be read.
pub fn open() -> u64 {
    match counted() {
        0 => listed().count() as u64,
        count => count,
    }
}

/// Returns the number of open descriptors; 0 before Linux 6.2.
fn counted() -> u64 {
    fs::metadata(LIST).map_or(0, |list| list.len())
}

fn listed() -> impl Iterator<Item = RawFd> {
    let entries = fs::read_dir(LIST).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the number of slots of the descriptor table, from `/proc/PID/status`
/// (proc_pid_status(5)).
fn table_size(status: &str) -> Option<u32> {
    let mut lines = status.lines();
    let size = lines.find_map(|line| line.strip_prefix("FDSize:"))?;
    size.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd as _};

    use super::*;

    #[test]
    fn every_open_descriptor_is_among_the_numbers() {
        let open_some = |count| {
            let files = (0..count).map(|_| File::open("/dev/null").unwrap());
            let files: Vec<_> = files.collect();
            let numbers: Vec<_> = numbers().collect();
            let is_known = |file: &File| numbers.contains(&file.as_raw_fd());
            assert!(files.iter().all(is_known));
            assert!(open() >= count);
        };
        open_some(600);
        // The table does not shrink.
        open_some(5);
    }

    #[test]
    fn the_table_size_is_read_from_the_status() {
        let status = "Name:\tpepd\nFDSize:\t256\nGroups:\t0\n";
        assert_eq!(table_size(status), Some(256));
        assert_eq!(table_size("Name:\tpepd\n"), None);
    }
}
