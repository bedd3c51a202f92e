//! Open file descriptors of this process.

use std::{fs, ops::Range, os::fd::RawFd};

/// Returns the numbers that open descriptors of this process may have. Empty if `/proc` is missing.
///
/// Trying each costs less than listing `/proc/self/fd`, for which the kernel creates an inode per
/// descriptor.
pub fn possible() -> Range<RawFd> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    0..table_size(&status).unwrap_or(0)
}

/// Returns the number of open descriptors.
pub fn open() -> u64 {
    let open = |fd: &RawFd| {
        // SAFETY: F_GETFD only reads the flags, of whatever the number stands for now.
        unsafe { libc::fcntl(*fd, libc::F_GETFD) >= 0 }
    };
    possible().filter(open).count() as u64
}

/// Returns the slots of the descriptor table, from `/proc/PID/status` (proc_pid_status(5)).
fn table_size(status: &str) -> Option<RawFd> {
    let size = status
        .lines()
        .find_map(|line| line.strip_prefix("FDSize:"))?;
    size.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::{fs::File, os::fd::AsRawFd as _};

    use super::*;

    #[test]
    fn every_open_descriptor_is_among_the_possible_ones() {
        let files: Vec<_> = (0..200).map(|_| File::open("/dev/null").unwrap()).collect();
        let possible = possible();
        assert!(
            files
                .iter()
                .all(|file| possible.contains(&file.as_raw_fd()))
        );
        assert!(open() >= 200);
    }

    #[test]
    fn the_table_size_is_read_from_the_status() {
        let status = "Name:\tpepd\nFDSize:\t256\nGroups:\t0\n";
        assert_eq!(table_size(status), Some(256));
        assert_eq!(table_size("Name:\tpepd\n"), None);
    }
}
