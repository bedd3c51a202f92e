//! The custody directory: exclusive use, and checks that pepd can write there.

use std::{
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{Flock, FlockArg},
    sys::statfs::statfs,
    unistd::geteuid,
};

use super::segments::{PREFIX, SUFFIX};

/// Reason for which the directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep custody in {}: {fault}", directory.display())]
pub struct DirectoryError {
    directory: PathBuf,
    fault: Fault,
}

impl DirectoryError {
    pub(super) fn new(directory: &Path, fault: Fault) -> Self {
        let directory = directory.to_owned();
        Self { directory, fault }
    }
}

/// Fault of a directory.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The parent directory does not exist.
    #[error("the parent directory does not exist: create it, or configure another one")]
    Parent,
    /// The path is on a pseudo file system of the kernel.
    #[error(
        "it is on a pseudo file system ({0}): configure a directory on a disk, such as /var/lib/pepd/custody"
    )]
    NoPlace(&'static str),
    /// The path is a file or a link.
    #[error("it is a file or a link, not a directory: remove it, or configure another one")]
    NotADirectory,
    /// The directory cannot be created.
    #[error("it cannot be created: {0}; create it, or configure another one")]
    Unmakeable(io::Error),
    /// The directory cannot be created or opened.
    #[error("it cannot be used: {0}")]
    System(io::Error),
    /// The owner could remove or replace pepd's files.
    #[error(
        "it belongs to user {owner}, and pepd runs as user {us}: `chown` it, or configure another one"
    )]
    Owner {
        /// Owner of the directory.
        owner: u32,
        /// User of pepd.
        us: u32,
    },
    /// Other users could remove or replace pepd's files.
    #[error("other users can write to it (mode {0:03o}): `chmod 700` it, or configure another one")]
    Mode(u32),
    /// A file cannot be created there.
    #[error("cannot write a file in it: {0}")]
    Unwritable(io::Error),
    /// Another pepd uses the directory.
    #[error("another pepd uses it: configure a directory for each pepd")]
    InUse,
}

impl From<io::Error> for Fault {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::NotFound => Self::Parent,
            io::ErrorKind::NotADirectory => Self::NotADirectory,
            _ => Self::System(err),
        }
    }
}

/// A directory with exclusive use as long as the value lives.
#[derive(Debug)]
pub struct Claimed {
    pub(super) path: PathBuf,
    _lock: Flock<fs::File>,
}

/// Time limit for the previous user to end, and interval between attempts.
const TIMEOUT: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(20);

/// Claims the directory. Creates it if it is missing.
///
/// # Errors
/// If it cannot be used, with the remedy.
pub fn claim(path: &Path) -> Result<Claimed, DirectoryError> {
    claim_within(path, TIMEOUT)
}

pub(super) fn claim_within(path: &Path, patience: Duration) -> Result<Claimed, DirectoryError> {
    try_claim(path, patience).map_err(|fault| DirectoryError::new(path, fault))
}

fn try_claim(path: &Path, patience: Duration) -> Result<Claimed, Fault> {
    check_place(path)?;
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(err) if err.kind() != io::ErrorKind::AlreadyExists => return Err(err.into()),
        _ => {}
    }
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let directory = fs::OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    check(&directory.metadata()?)?;
    let lock = lock(directory, patience)?;
    try_writing(path).map_err(Fault::Unwritable)?;
    Ok(Claimed {
        path: path.to_owned(),
        _lock: lock,
    })
}

/// Pseudo file systems without regular files (linux/magic.h), with their names.
const NO_PLACE: [(u32, &str); 7] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x1cd1, "devpts"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
];

/// Returns the magic number of a path's file system (statfs(2)), whose type differs among C
/// libraries.
pub(super) fn file_system(path: &Path) -> Option<u32> {
    let found = statfs(path).ok()?;
    Some(found.filesystem_type().0 as u32)
}

/// Checks that the file system of the directory, or of its parent, can hold files.
pub(super) fn check_place(path: &Path) -> Result<(), Fault> {
    let parent = path.parent().into_iter();
    let kind = [path].into_iter().chain(parent).find_map(file_system);
    match NO_PLACE.iter().find(|(magic, _)| kind == Some(*magic)) {
        Some((_, name)) => Err(Fault::NoPlace(name)),
        None => Ok(()),
    }
}

fn check(directory: &fs::Metadata) -> Result<(), Fault> {
    let (owner, us) = (directory.uid(), geteuid().as_raw());
    if owner != us {
        return Err(Fault::Owner { owner, us });
    }
    check_mode(directory)
}

pub(super) fn check_mode(directory: &fs::Metadata) -> Result<(), Fault> {
    let mode = directory.mode() & 0o777;
    if mode & 0o022 != 0 {
        return Err(Fault::Mode(mode));
    }
    Ok(())
}

fn lock(mut directory: fs::File, patience: Duration) -> Result<Flock<fs::File>, Fault> {
    let give_up = Instant::now() + patience;
    loop {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((_, errno)) if errno != Errno::EAGAIN => {
                return Err(io::Error::from(errno).into());
            }
            Err(_) if Instant::now() >= give_up => return Err(Fault::InUse),
            Err((again, _)) => directory = again,
        }
        thread::sleep(AGAIN);
    }
}

fn try_writing(path: &Path) -> io::Result<()> {
    let name = path.join(format!("{PREFIX}probe{SUFFIX}"));
    match fs::remove_file(&name) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&name)?;
    // A full disk is no fault: flows wait for room.
    let written = match file.write_all(b"pepd") {
        Err(err) if is_full(&err) => Ok(()),
        result => result,
    };
    fs::remove_file(&name)?;
    written
}

/// Returns whether the error means that the disk is full.
pub(super) fn is_full(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
