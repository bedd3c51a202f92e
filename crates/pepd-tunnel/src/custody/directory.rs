//! The folder for what does not fit into memory: is it ours alone, can we write there.

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

/// Why there is nothing to spill to.
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

/// What is wrong with a folder.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The folder in which it should be is not there.
    #[error("there is no folder to make it in: make that, or name another one")]
    Parent,
    /// The kernel shows itself there, and keeps nothing.
    #[error(
        "it is in {0}, where the kernel shows its state and nothing can be kept: name a folder on a disk, such as /var/lib/pepd/custody"
    )]
    NoPlace(&'static str),
    /// A file has its name, or a link.
    #[error("it is a file or a link and no folder: remove it, or name another one")]
    NotADirectory,
    /// It cannot be made there.
    #[error("it cannot be made: {0}; make it, or name another one")]
    Unmakeable(io::Error),
    /// It cannot be made or looked into.
    #[error("it cannot be used: {0}")]
    System(io::Error),
    /// Somebody else could take our files away and put others there.
    #[error(
        "it belongs to user {owner}, and pepd runs as user {us}: `chown` it, or name another one"
    )]
    Owner {
        /// Whose it is.
        owner: u32,
        /// Who we are.
        us: u32,
    },
    /// The same.
    #[error("others may write there (mode {0:03o}): `chmod 700` it, or name another one")]
    Mode(u32),
    /// A file cannot be made there.
    #[error("a file cannot be written there: {0}")]
    Unwritable(io::Error),
    /// It has another user.
    #[error("another pepd uses it: give each one a folder of its own")]
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

/// A folder that nobody else uses as long as this lives.
#[derive(Debug)]
pub struct Claimed {
    pub(super) path: PathBuf,
    _lock: Flock<fs::File>,
}

/// Who had it before may take so long to end.
const PATIENCE: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(20);

/// Makes the folder if need be.
///
/// # Errors
/// When it cannot be used, with what to do.
pub fn claim(path: &Path) -> Result<Claimed, DirectoryError> {
    claim_within(path, PATIENCE)
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

/// File systems without files of anybody (linux/magic.h), by what they are called.
const NO_PLACE: [(u32, &str); 7] = [
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x1cd1, "devpts"),
    (0x0027_e0eb, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
];

/// The magic number of the file system on which something is (statfs(2)), whose type is another in each C library.
pub(super) fn file_system(path: &Path) -> Option<u32> {
    let told = statfs(path).ok()?;
    Some(told.filesystem_type().0 as u32)
}

/// Whether files can be there at all, or where the folder is to be made.
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
    // That the disk is full now is no fault: flows wait for room.
    let written = match file.write_all(b"pepd") {
        Err(err) if is_full(&err) => Ok(()),
        result => result,
    };
    fs::remove_file(&name)?;
    written
}

/// Whether the disk has no room now.
pub(super) fn is_full(err: &io::Error) -> bool {
    matches!(err.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT))
}
