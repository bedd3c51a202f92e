//! A shared mapping of a memfd, and socket calls that move bytes through it.
//!
//! The code never creates a plain Rust reference to a ring's bytes. The kernel gets their
//! addresses, and headers are atomics, for which any value is valid, written by any process.

use std::{
    io,
    num::NonZeroUsize,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
    sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use nix::{
    fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl},
    sys::{
        memfd::{MFdFlags, memfd_create},
        mman::{MapFlags, ProtFlags, mmap, munmap},
        stat::fstat,
    },
    unistd::ftruncate,
};
use pep_core::{arena::Words, ring::Ranges};

/// A sparse memfd of fixed size, mapped in one piece while this value lives.
#[derive(Debug)]
pub struct SharedMemory {
    fd: OwnedFd,
    base: NonNull<libc::c_void>,
    len: NonZeroUsize,
    #[cfg(any(test, feature = "testing"))]
    crash_point: std::sync::OnceLock<std::sync::Arc<crate::crash_point::CrashPoint>>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through
// atomics and system calls.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Creates and maps `len` bytes of zeroes. Pages are allocated when they are written to.
    ///
    /// # Errors
    /// As memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn new(name: &str, len: NonZeroUsize) -> io::Result<Self> {
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let fd = memfd_create(name, flags)?;
        ftruncate(
            &fd,
            libc::off_t::try_from(len.get()).map_err(io::Error::other)?,
        )?;
        // A mapping longer than its file faults; the seals prevent that.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(seals))?;
        Self::map(fd, len)
    }

    /// Maps memory that another process created with [`new`](Self::new).
    ///
    /// # Errors
    /// As fstat(2), fcntl(2) and mmap(2); `InvalidData` when it is not sealed, or empty.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let size = fstat(&fd)?.st_size;
        let seals = SealFlag::from_bits_truncate(fcntl(&fd, FcntlArg::F_GET_SEALS)?);
        let len = usize::try_from(size).ok().and_then(NonZeroUsize::new);
        let len = len.filter(|_| seals.contains(SealFlag::F_SEAL_SHRINK));
        Self::map(fd, len.ok_or(io::ErrorKind::InvalidData)?)
    }

    /// Maps a file, which must be `len` bytes long and sealed.
    fn map(fd: OwnedFd, len: NonZeroUsize) -> io::Result<Self> {
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: the kernel chooses a free address, so the mapping replaces no other. The file is
        // `len` bytes long and sealed, as both callers ensure.
        let base = unsafe { mmap(None, len, protection, flags, &fd, 0)? };
        Ok(Self {
            fd,
            base,
            len,
            #[cfg(any(test, feature = "testing"))]
            crash_point: std::sync::OnceLock::new(),
        })
    }

    /// Attaches a crash point: no store takes effect once it has fired.
    #[cfg(any(test, feature = "testing"))]
    pub fn end_with(&self, crash_point: &std::sync::Arc<crate::crash_point::CrashPoint>) {
        self.crash_point
            .set(std::sync::Arc::clone(crash_point))
            .expect("one process");
    }

    /// Returns whether stores take effect; always, except in tests.
    fn is_alive(&self) -> bool {
        #[cfg(any(test, feature = "testing"))]
        return self
            .crash_point
            .get()
            .is_none_or(|crash_point| crash_point.step());
        #[cfg(not(any(test, feature = "testing")))]
        true
    }

    /// Returns the length in bytes.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Returns the memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns the eight bytes at `offset` as an atomic.
    ///
    /// # Panics
    /// When they are not aligned, or not within the mapping.
    pub fn atomic(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.len.get());
        // SAFETY: within the mapping, which lives as long as `self`, aligned, valid for every
        // value, and never accessed by this process except through such atomics.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().byte_add(offset).cast()) }
    }

    /// Fills `into` from `offset` of the mapping.
    ///
    /// # Panics
    /// When the range is not within the mapping.
    pub fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let skew = offset % 8;
        let mut words = self.words(offset - skew, skew + into.len());
        let (edge, rest) = into.split_at_mut(edge(skew, into.len()));
        if let (false, Some((word, others))) = (edge.is_empty(), words.split_first()) {
            edge.copy_from_slice(&bytes_of(word)[skew..skew + edge.len()]);
            words = others;
        }
        let (whole, last) = rest.as_chunks_mut();
        let (words, over) = words.split_at(whole.len());
        load(words, whole);
        if let (false, Some(word)) = (last.is_empty(), over.first()) {
            last.copy_from_slice(&bytes_of(word)[..last.len()]);
        }
    }

    /// Copies bytes to `offset` of the mapping. Partly written words keep their other bytes, if no
    /// other process writes these at the same time.
    ///
    /// # Panics
    /// When the range is not within the mapping.
    pub fn copy_in(&self, offset: usize, bytes: &[u8]) {
        if !self.is_alive() {
            return;
        }
        let skew = offset % 8;
        let mut words = self.words(offset - skew, skew + bytes.len());
        let (edge, rest) = bytes.split_at(edge(skew, bytes.len()));
        if let (false, Some((word, others))) = (edge.is_empty(), words.split_first()) {
            patch(word, skew, edge);
            words = others;
        }
        let (whole, last) = rest.as_chunks();
        let (words, over) = words.split_at(whole.len());
        store(words, whole);
        if let (false, Some(word)) = (last.is_empty(), over.first()) {
            patch(word, 0, last);
        }
    }

    /// Returns the words that contain `len` bytes from `offset` on.
    fn words(&self, offset: usize, len: usize) -> &[AtomicU64] {
        let count = len.div_ceil(8);
        let end = count.checked_mul(8).and_then(|len| len.checked_add(offset));
        assert!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= self.len.get()));
        // SAFETY: within the mapping, which lives as long as `self`, aligned, valid for every
        // value, and never accessed by this process except through atomics of this size.
        unsafe {
            let first = self.base.as_ptr().byte_add(offset).cast();
            std::slice::from_raw_parts(first, count)
        }
    }

    /// Receives into `space`, whose offsets count from `extent`, without blocking.
    ///
    /// # Errors
    /// As recvmsg(2). EFAULT: there is no memory for a page; nothing was taken from the socket.
    ///
    /// # Panics
    /// When the space is not within the mapping.
    pub fn receive(&self, fd: BorrowedFd<'_>, extent: usize, space: &Ranges) -> io::Result<u64> {
        let mut vectors = self.vectors(extent, space);
        let mut message = message(&mut vectors);
        // SAFETY: `message` names up to two vectors within the mapping, which outlive the call; no
        // Rust reference to those bytes exists.
        let count = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Sends `data`, whose offsets count from `extent`, without blocking and without SIGPIPE.
    ///
    /// # Errors
    /// As sendmsg(2).
    ///
    /// # Panics
    /// When the data is not within the mapping.
    pub fn send(&self, fd: BorrowedFd<'_>, extent: usize, data: &Ranges) -> io::Result<u64> {
        let mut vectors = self.vectors(extent, data);
        let message = message(&mut vectors);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: as in `receive`.
        let count = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags) };
        u64::try_from(count).map_err(|_| io::Error::last_os_error())
    }

    /// Frees the pages of a range, which then reads as zeroes.
    ///
    /// # Errors
    /// As fallocate(2).
    pub fn punch(&self, offset: usize, len: usize) -> io::Result<()> {
        if !self.is_alive() {
            return Ok(());
        }
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let offset_len = |value| libc::off_t::try_from(value).map_err(io::Error::other);
        Ok(fallocate(
            &self.fd,
            flags,
            offset_len(offset)?,
            offset_len(len)?,
        )?)
    }

    fn vectors(&self, extent: usize, ranges: &Ranges) -> [libc::iovec; 2] {
        [&ranges.first, &ranges.second].map(|range| {
            let start = extent + range.start as usize;
            let len = (range.end - range.start) as usize;
            assert!(start + len <= self.len.get());
            libc::iovec {
                // SAFETY: within the mapping, as asserted.
                iov_base: unsafe { self.base.as_ptr().byte_add(start) },
                iov_len: len,
            }
        })
    }
}

impl Words for SharedMemory {
    fn load(&self, offset: usize) -> u64 {
        self.atomic(offset).load(Acquire)
    }

    fn store(&self, offset: usize, value: u64) {
        #[cfg(any(test, feature = "testing"))]
        if self
            .crash_point
            .get()
            .is_some_and(|crash_point| !crash_point.store())
        {
            return;
        }
        self.atomic(offset).store(value, Release);
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and all borrows of the mapping borrow `self`.
        let unmapped = unsafe { munmap(self.base, self.len.get()) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Unmaps this process's pages of program code; pages in use are mapped again, from the page cache,
/// when they run next.
///
/// Reading the configuration and setting up rules uses most of the program's code, relaying little
/// of it.
///
/// # Errors
/// When /proc is not mounted, or as madvise(2).
pub fn unmap_idle_code() -> io::Result<()> {
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let Some((start, end)) = code_of_file(line) else {
            continue;
        };
        // SAFETY: a private mapping of a file that is not writable, so its pages equal the file.
        // The kernel maps a page again on the next access.
        let result = unsafe {
            let start: *mut libc::c_void = std::ptr::without_provenance_mut(start);
            libc::madvise(start, end - start.addr(), libc::MADV_DONTNEED)
        };
        super::socket::check(result)?;
    }
    Ok(())
}

/// Parses the addresses of a mapping, if it is code of a file: `start-end r-xp offset device inode
/// path`.
fn code_of_file(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_code = fields.next()? == "r-xp";
    let of_file = fields.nth(3)?.starts_with('/');
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_code && of_file).then_some((address(start)?, address(end)?))
}

/// Returns the bytes before the first whole word.
fn edge(skew: usize, len: usize) -> usize {
    ((8 - skew) % 8).min(len)
}

fn bytes_of(word: &AtomicU64) -> [u8; 8] {
    word.load(Relaxed).to_ne_bytes()
}

/// Words copied in one step of a loop: compilers do not unroll loops over atomics.
const STEP: usize = 8;

/// Copies from words to as many groups of eight bytes.
fn load(words: &[AtomicU64], into: &mut [[u8; 8]]) {
    let ((words, odd), (into, rest)) = (words.as_chunks::<STEP>(), into.as_chunks_mut::<STEP>());
    for (words, into) in words.iter().zip(into) {
        for at in 0..STEP {
            into[at] = bytes_of(&words[at]);
        }
    }
    for (word, into) in odd.iter().zip(rest) {
        *into = bytes_of(word);
    }
}

/// Copies to words from as many groups of eight bytes.
fn store(words: &[AtomicU64], from: &[[u8; 8]]) {
    let ((words, odd), (from, rest)) = (words.as_chunks::<STEP>(), from.as_chunks::<STEP>());
    for (words, from) in words.iter().zip(from) {
        for at in 0..STEP {
            words[at].store(u64::from_ne_bytes(from[at]), Relaxed);
        }
    }
    for (word, from) in odd.iter().zip(rest) {
        word.store(u64::from_ne_bytes(*from), Relaxed);
    }
}

/// Writes some bytes of a word.
fn patch(word: &AtomicU64, at: usize, bytes: &[u8]) {
    let mut all = word.load(Relaxed).to_ne_bytes();
    all[at..at + bytes.len()].copy_from_slice(bytes);
    word.store(u64::from_ne_bytes(all), Relaxed);
}

fn message(vectors: &mut [libc::iovec; 2]) -> libc::msghdr {
    // SAFETY: all zeroes is a valid msghdr: null pointers with lengths of zero.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iovlen = if vectors[1].iov_len == 0 { 1 } else { 2 };
    message.msg_iov = vectors.as_mut_ptr();
    message
}
