//! File system calls of spilling, as a trait so that tests can make them fail.

use std::{
    cell::RefCell,
    collections::VecDeque,
    fmt, fs, io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
    libc::off_t,
};
use pep_core::custody::FILES_OPEN;

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

/// A directory in the file system. Files beyond [`FILES_OPEN`] are opened again when they are
/// needed: there may be many thousands, and flows need the descriptors.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Open files with their names, the one used last first.
    open: RefCell<VecDeque<(String, fs::File)>>,
}

impl Directory {
    /// Creates the value for the directory of that path.
    pub(super) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            open: RefCell::default(),
        }
    }

    /// Closes files until there is room for one.
    fn make_room(&self) {
        self.open.borrow_mut().truncate(FILES_OPEN - 1);
    }

    fn keep_open(&self, name: &str, file: fs::File) {
        let open = &mut *self.open.borrow_mut();
        open.push_front((name.to_owned(), file));
    }

    /// Calls a function with a file, which it opens if it must.
    fn with<T>(&self, name: &str, call: impl FnOnce(&fs::File) -> io::Result<T>) -> io::Result<T> {
        let known = {
            let open = &mut *self.open.borrow_mut();
            let at = open.iter().position(|(other, _)| other == name);
            at.and_then(|at| open.remove(at))
        };
        let file = match known {
            Some((_, file)) => file,
            None => self.opened(name)?,
        };
        self.keep_open(name, file);
        call(&self.open.borrow()[0].1)
    }

    fn opened(&self, name: &str) -> io::Result<fs::File> {
        self.make_room();
        let mut options = fs::OpenOptions::new();
        let flags = libc::O_NOFOLLOW;
        let file = options.read(true).write(true).custom_flags(flags);
        file.open(self.path.join(name))
    }
}

impl Disk for Directory {
    /// Name of the file.
    type File = String;

    fn create(&self, name: &str) -> io::Result<String> {
        let mut options = fs::OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        self.make_room();
        self.keep_open(name, options.open(self.path.join(name))?);
        Ok(name.to_owned())
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.path)?;
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn open(&self, name: &str) -> io::Result<(String, u64)> {
        let len = self.with(name, |file| Ok(file.metadata()?.len()))?;
        Ok((name.to_owned(), len))
    }

    fn write(&self, file: &String, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.with(file, |file| file.write_all_at(bytes, offset))
    }

    fn read(&self, file: &String, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.with(file, |file| file.read_exact_at(bytes, offset))
    }

    fn sync(&self, file: &String) -> io::Result<()> {
        self.with(file, fs::File::sync_data)
    }

    fn punch(&self, file: &String, offset: u64, len: u64) -> bool {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let (Ok(offset), Ok(len)) = (off_t::try_from(offset), off_t::try_from(len)) else {
            return false;
        };
        let punched = self.with(file, |file| {
            loop {
                match fallocate(file, flags, offset, len) {
                    Err(Errno::EINTR) => {}
                    result => return Ok(result?),
                }
            }
        });
        punched.is_ok()
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.open.borrow_mut().retain(|(other, _)| other != name);
        fs::remove_file(self.path.join(name))
    }
}
