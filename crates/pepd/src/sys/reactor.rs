//! Letting tokio wait for a descriptor.

use std::{io, os::fd::OwnedFd};

use tokio::io::{
    Interest,
    unix::{AsyncFd, AsyncFdRegisterError},
};

/// Registers a non-blocking descriptor with the runtime this is called in.
///
/// # Errors
/// When the descriptor cannot be waited for (a regular file), or is registered already.
///
/// # Panics
/// Outside a tokio runtime.
pub fn register(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    register_or_return(fd, interest).map_err(|(_, err)| err)
}

/// As [`register`], but gives the descriptor back where it fails.
///
/// # Errors
/// As there.
///
/// # Panics
/// As there.
pub fn register_or_return(
    fd: OwnedFd,
    interest: Interest,
) -> Result<AsyncFd<OwnedFd>, (OwnedFd, io::Error)> {
    // SAFETY: an `OwnedFd` is open, stays open for as long as it exists, which is inside the
    // `AsyncFd`, and always names the same descriptor.
    let registered = unsafe { AsyncFd::register_with_interest(fd, interest) };
    registered.map_err(AsyncFdRegisterError::into_parts)
}
