//! Registration of descriptors with tokio.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

/// A descriptor that stays open and unchanged while the value exists.
pub trait Descriptor: AsRawFd + sealed::Sealed {}

impl Descriptor for OwnedFd {}
impl Descriptor for Arc<OwnedFd> {}

mod sealed {
    use super::{Arc, OwnedFd};

    /// Sealed: other implementations might break the guarantee.
    pub trait Sealed {}

    impl Sealed for OwnedFd {}
    impl Sealed for Arc<OwnedFd> {}
}

/// Registers a non-blocking descriptor with the current runtime.
///
/// # Errors
/// When epoll does not support the descriptor (a regular file), or has it already; the descriptor
/// is then closed, or no longer shared.
///
/// # Panics
/// Outside a tokio runtime.
pub fn register<T: Descriptor>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: a `Descriptor` stays open and unchanged while it exists, which is inside the
    // `AsyncFd`. The trait is sealed, and both implementations ensure that.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(|err| AsyncFdRegisterError::into_parts(err).1)
}
