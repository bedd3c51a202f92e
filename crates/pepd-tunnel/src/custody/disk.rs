//! File system calls of spilling, as a trait so that tests can make them fail.

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

/// A directory with files.
pub trait Disk: fmt::Debug + Send + 'static {
    /// One of its files.
    type File: fmt::Debug + Send;

    /// Creates a new file.
    ///
    /// # Errors
    /// As open(2).
    fn create(&self, name: &str) -> io::Result<Self::File>;

    /// Lists the names of all files.
    ///
    /// # Errors
    /// As getdents(2).
    fn names(&self) -> io::Result<Vec<String>>;

    /// Opens an existing file. Returns its length as well.
    ///
    /// # Errors
    /// As open(2).
    fn open(&self, name: &str) -> io::Result<(Self::File, u64)>;

    /// Writes all bytes.
    ///
    /// # Errors
    /// As pwrite(2). Some bytes may have been written.
    fn write(&self, file: &Self::File, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Fills the buffer.
    ///
    /// # Errors
    /// As pread(2), or if the file is shorter.
    fn read(&self, file: &Self::File, bytes: &mut [u8], offset: u64) -> io::Result<()>;

    /// Flushes written bytes to the disk.
    ///
    /// # Errors
    /// As fdatasync(2): bytes written since the last call may be lost.
    fn sync(&self, file: &Self::File) -> io::Result<()>;

    /// Frees the blocks of a part of a file. Returns whether the file system can do that.
    fn punch(&self, file: &Self::File, offset: u64, len: u64) -> bool;

    /// Removes a file.
    ///
    /// # Errors
    /// As unlink(2).
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A directory in the file system.
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
