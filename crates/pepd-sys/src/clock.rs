//! The system's clock.

use std::{io, mem::MaybeUninit};

use super::socket::check;

/// Whether somebody keeps it right, by NTP for example (adjtimex(2)).
///
/// # Errors
/// Where that must not be asked: in some containers.
pub fn is_synchronised() -> io::Result<bool> {
    let mut state = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: all of `timex` is integers, for which zeroes are values; modes of 0 only ask, and the kernel writes no more than
    // the struct, which lives through the call.
    let (result, state) = unsafe {
        let result = libc::adjtimex(state.as_mut_ptr());
        (result, state.assume_init())
    };
    check(result)?;
    Ok(state.status & libc::STA_UNSYNC == 0)
}
