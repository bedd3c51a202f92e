//! Letting tokio wait for a descriptor.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::Arc,
};

use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

/// An open descriptor, open and the same for as long as the value exists.
pub trait Descriptor: AsRawFd + sealed::Sealed {}

impl Descriptor for OwnedFd {}
impl Descriptor for Arc<OwnedFd> {}

mod sealed {
    use super::{Arc, OwnedFd};

    /// Others might not keep the promise.
    pub trait Sealed {}

    impl Sealed for OwnedFd {}
    impl Sealed for Arc<OwnedFd> {}
}

/// Registers a non-blocking descriptor with the runtime this is called in.
///
/// # Errors
/// When the descriptor cannot be waited for (a regular file), or is registered already; it is closed, or
/// no longer shared, then.
///
/// # Panics
/// Outside a tokio runtime.
pub fn register<T: Descriptor>(fd: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: a `Descriptor` is open, stays open and the same for as long as it exists, which
    // is inside the `AsyncFd`; the trait is sealed, and both types that have it keep that.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(|err| AsyncFdRegisterError::into_parts(err).1)
}
