//! A program as a child of this process.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, Write as _},
    os::{
        fd::AsFd as _,
        unix::{fs::OpenOptionsExt as _, process::ExitStatusExt as _},
    },
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::Pid,
};
use pepd_sys::process::pidfd_open;

use super::{Order, PEPD, allowed, file, own_path};

/// The maximum of an input, in bytes: a hundred times the rules of the largest configuration.
const INPUT_MAX: u64 = 64 << 20;

/// Lock that all programs of the legacy backend of iptables hold.
const LOCK: &str = "/run/xtables.lock";

/// Files of an order.
#[derive(Debug)]
pub(super) struct Files {
    /// Takes the result. The program is killed once the other end is closed.
    pub report: io::PipeWriter,
    pub stdout: File,
    pub stderr: File,
    pub input: Option<File>,
}

/// Result of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The program has ended.
    Status(ExitStatus),
    /// No such program is installed.
    Missing,
    /// Start failed with this error number.
    Failed(i32),
    /// Timeout, or closed report.
    Killed,
}

impl Ended {
    /// Length of its form in bytes: a kind, then a number.
    pub const BYTES: usize = 5;

    fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, number) = match self {
            Self::Status(status) => (0, status.into_raw()),
            Self::Missing => (1, 0),
            Self::Failed(error) => (2, error),
            Self::Killed => (3, 0),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, a, b, c, d]
    }

    /// Returns the result of this form. An unknown kind counts as a failure.
    pub fn from_bytes([kind, number @ ..]: [u8; Self::BYTES]) -> Self {
        let number = i32::from_ne_bytes(number);
        match kind {
            0 => Self::Status(ExitStatus::from_raw(number)),
            1 => Self::Missing,
            3 => Self::Killed,
            _ => Self::Failed(number),
        }
    }
}

/// Carries out an order, if pepd gives such ones, and reports its result.
pub(super) fn carry_out(order: &Order, mut files: Files) {
    let ended = attempt(order, &mut files).unwrap_or_else(|err| match err.kind() {
        io::ErrorKind::NotFound => Ended::Missing,
        _ => Ended::Failed(err.raw_os_error().unwrap_or(libc::EIO)),
    });
    // Who does not wait any more does not need it.
    let _ = files.report.write_all(&ended.to_bytes());
}

fn attempt(order: &Order, files: &mut Files) -> io::Result<Ended> {
    if !allowed::is_allowed(order) {
        return Err(Errno::EACCES.into());
    }
    let mut command = Command::new(match order.program == PEPD {
        true => own_path()?.into(),
        false => order.program.clone(),
    });
    command.args(&order.args);
    command.stdin(match &mut files.input {
        Some(theirs) => Stdio::from(checked(order, theirs)?),
        None => Stdio::null(),
    });
    command.stdout(files.stdout.try_clone()?);
    command.stderr(files.stderr.try_clone()?);
    if files.input.is_some() && is_iptables(order) && is_locked_out() {
        command.env("XTABLES_LOCKFILE", "/dev/null");
    }
    let mut child = command.spawn()?;
    let waited = wait(&child, &files.report, order.patience());
    if !matches!(waited, Ok(true)) {
        // Fails if it has just ended.
        let _ = child.kill();
    }
    let status = child.wait()?;
    Ok(match waited? {
        true => Ended::Status(status),
        false => Ended::Killed,
    })
}

/// Returns a copy of the input, which its owner cannot change after the check.
fn checked(order: &Order, theirs: &mut File) -> io::Result<File> {
    let mut text = Vec::new();
    theirs.rewind()?;
    theirs.take(INPUT_MAX + 1).read_to_end(&mut text)?;
    if text.len() as u64 > INPUT_MAX {
        return Err(Errno::EFBIG.into());
    }
    if is_iptables(order) && allowed::runs_another(&text) {
        return Err(Errno::EACCES.into());
    }
    let mut copy = file(c"rules")?;
    copy.write_all(&text)?;
    copy.rewind()?;
    Ok(copy)
}

fn is_iptables(order: &Order) -> bool {
    order.program.to_string_lossy().ends_with("-restore")
}

/// Returns whether this process may not use the lock, which belongs to root. Without it the kernel
/// still rejects one of two changes at once.
fn is_locked_out() -> bool {
    let mut options = OpenOptions::new();
    let lock = options.append(true).create(true).mode(0o600).open(LOCK);
    lock.is_err()
}

/// Waits for the end of a program. Returns false after a timeout, or once the report is closed.
fn wait(child: &Child, report: &io::PipeWriter, patience: Duration) -> io::Result<bool> {
    let process = i32::try_from(child.id()).map_err(io::Error::other)?;
    let end = pidfd_open(Pid::from_raw(process))?;
    let limit = Instant::now() + patience;
    loop {
        let mut events = [
            PollFd::new(end.as_fd(), PollFlags::POLLIN),
            // Reports an error once the other end is closed.
            PollFd::new(report.as_fd(), PollFlags::empty()),
        ];
        let left = limit.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut events, timeout) {
            Err(Errno::EINTR) => continue,
            found => found?,
        };
        if events[0].any() == Some(true) {
            return Ok(true);
        }
        if events[1].any() == Some(true) || left.is_zero() {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_keep_their_form() {
        for ended in [
            Ended::Status(ExitStatus::from_raw(0x0100)),
            Ended::Status(ExitStatus::from_raw(9)),
            Ended::Missing,
            Ended::Failed(libc::ENOMEM),
            Ended::Killed,
        ] {
            assert_eq!(Ended::from_bytes(ended.to_bytes()), ended);
        }
    }

    fn child(seconds: &str) -> Child {
        Command::new("sleep").arg(seconds).spawn().unwrap()
    }

    #[test]
    fn a_program_is_waited_for_until_it_ends_or_nobody_needs_it() {
        let (reader, report) = io::pipe().unwrap();
        let long = Duration::from_secs(60);
        let mut ends = child("0");
        assert!(wait(&ends, &report, long).unwrap());
        ends.wait().unwrap();
        let mut stays = child("60");
        assert!(!wait(&stays, &report, Duration::from_millis(10)).unwrap());
        drop(reader);
        assert!(!wait(&stays, &report, long).unwrap());
        stays.kill().unwrap();
        stays.wait().unwrap();
    }
}
