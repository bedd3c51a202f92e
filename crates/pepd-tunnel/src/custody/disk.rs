//! The calls that spilling needs of a file system, so that tests can have one that fails.

use std::{
    fmt, fs, io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::PathBuf,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    libc::off_t,
};

/// A folder with files.
pub trait Disk: fmt::Debug + Send + 'static {
    /// One of its files.
    type File: fmt::Debug + Send;

    /// Makes a file that there was not.
    ///
    /// # Errors
    /// As open(2).
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// The names of all files.
    ///
    /// # Errors
    /// As getdents(2).
    fn names(&self) -> io::Result<Vec<String>>;

    /// A file that there is, and its length.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, name: &str) -> io::Result<(Self::File, u64)>;

    /// Writes all of it.
    ///
    /// # Errors
    /// As pwrite(2); some of it may have been written.
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Reads as much as there is room for.
    ///
    /// # Errors
    /// As pread(2), or when there is less.
    fn read(&self, file: &Self::File, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// What was written is on the disk, as far as that says.
    ///
    /// # Errors
    /// As fdatasync(2): what was written since the last time may be lost.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Gives back the room of a part of a file. Returns whether the file system can do that.
    fn punch(&self, file: &Self::File, offset: u64, len: u64) -> bool;

    /// Removes a file.
    ///
    /// # Errors
    /// As unlink(2).
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A folder of the machine's.
#[derive(Debug)]
pub struct Directory(pub(super) PathBuf);

impl Disk for Directory {
    type File = fs::File;

    fn create(&self, name: &str) -> io::Result<fs::File> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.open(self.0.join(name))
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.0)?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn open(&self, name: &str) -> io::Result<(fs::File, u64)> {
        let mut options = fs::OpenOptions::new();
        let flags = libc::O_NOFOLLOW;
        let file = options.read(true).write(true).custom_flags(flags);
        let file = file.open(self.0.join(name))?;
        let len = file.metadata()?.len();
        Ok((file, len))
    }

    fn write(&self, file: &fs::File, bytes: &[u8], offset: u64) -> io::Result<()> {
        file.write_all_at(bytes, offset)
    }

    fn read(&self, file: &fs::File, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(bytes, offset)
    }

    fn sync(&self, file: &fs::File) -> io::Result<()> {
        file.sync_data()
    }

    fn punch(&self, file: &fs::File, offset: u64, len: u64) -> bool {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (Ok(offset), Ok(len)) = (off_t::try_from(offset), off_t::try_from(len)) else {
            return false;
        };
        loop {
            match fallocate(file, flags, offset, len) {
                Err(Errno::EINTR) => {}
                result => return result.is_ok(),
            }
        }
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }
}
