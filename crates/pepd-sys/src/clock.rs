//! The system clock.

use std::{io, mem::MaybeUninit};

use super::socket::check;

/// Returns whether the clock is synchronised, for example by NTP (adjtimex(2)).
///
/// # Errors
/// When the call is not permitted, as in some containers.
pub fn is_synchronised() -> io::Result<bool> {
    let mut state = MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: all of `timex` is integers, for which zeroes are values. Modes of 0 only read, and
    // the kernel writes no more than the struct, which outlives the call.
    let (result, state) = unsafe {
        let result = libc::adjtimex(state.as_mut_ptr());
        (result, state.assume_init())
    };
    check(result)?;
    Ok(state.status & libc::STA_UNSYNC == 0)
}
