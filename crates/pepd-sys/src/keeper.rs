//! A process that shares our table of descriptors, and does nothing but live.
//!
//! Whatever we open or accept is in its table before the call returns, so that there is no moment at which our end could
//! close a socket; and nothing has to be handed over.

use std::{ffi::CStr, io, time::Duration};

use nix::{
    sys::{
        prctl,
        signal::{SigSet, SigmaskHow},
    },
    unistd::Pid,
};

/// Its name, as /proc shows it.
pub const NAME: &CStr = c"pepd-keeper";

/// Descriptors among which TUN devices are looked for at most. What is opened first has the lowest numbers; a million of calls take
/// a tenth of a second.
const DESCRIPTORS_MAX: libc::c_int = 1 << 20;

/// Starts one. When this process has gone it closes the TUN devices: nobody reads them, and their packets are to be forwarded. It ends by SIGKILL, or when this process has been gone for as long as `patience`.
///
/// It is a copy of this process, and shares its memory until that is written to: the earlier it is made, the less
/// memory it keeps.
///
/// # Errors
/// As clone(2).
pub fn spawn(patience: Duration) -> io::Result<Pid> {
    let patience = libc::c_int::try_from(patience.as_millis()).unwrap_or(libc::c_int::MAX);
    let parent = Pid::this().as_raw();
    // The child has all signals blocked from its first moment on, so that only SIGKILL ends it, and its name, by which others know
    // what it is.
    let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let name = prctl::get_name()?;
    prctl::set_name(NAME)?;
    let flags = (libc::CLONE_FILES | libc::SIGCHLD) as libc::c_ulong;
    // Everywhere else flags come first, and then the stack.
    let (first, second) = if cfg!(target_arch = "s390x") {
        (0, flags)
    } else {
        (flags, 0)
    };
    // SAFETY: without a stack and without CLONE_VM this is fork(2), but for the table of descriptors. The arguments that
    // are 0 may come in any order, as they do. The child only makes system calls, and never returns.
    let result = unsafe { libc::syscall(libc::SYS_clone, first, second, 0, 0, 0) };
    if result == 0 {
        // SAFETY: this is the child of `clone`.
        unsafe { keep(parent, patience) }
    }
    let child = super::socket::check(result as libc::c_int);
    prctl::set_name(&name)?;
    mask.thread_set_mask()?;
    Ok(Pid::from_raw(child?))
}

/// # Safety
/// To be called in a process of its own. Others may have held locks when it was made: nothing here allocates or
/// takes one.
unsafe fn keep(parent: libc::pid_t, patience: libc::c_int) -> ! {
    // SAFETY: system calls with integers, and with pointers to what lives through them; nothing is shared with the parent
    // but descriptors, of which those opened here are closed, and others once the parent has ended.
    unsafe {
        // Who takes over has to look into its table: a process with capabilities of its file, or under Yama, may not otherwise.
        libc::prctl(libc::PR_SET_DUMPABLE, 1);
        libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY);
        let score = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if score >= 0 {
            let least = b"-1000";
            libc::write(score, least.as_ptr().cast(), least.len());
            libc::close(score);
        }
        // Fails where the parent has ended already.
        let process = libc::syscall(libc::SYS_pidfd_open, parent, 0) as libc::c_int;
        if process >= 0 {
            let mut end = libc::pollfd {
                fd: process,
                events: libc::POLLIN,
                revents: 0,
            };
            while libc::poll(&raw mut end, 1, -1) < 1 {}
        }
        close_tuns();
        libc::poll(std::ptr::null_mut(), 0, patience);
        libc::_exit(0)
    }
}

/// # Safety
/// To be called where nobody else uses the table of descriptors any more. Makes system calls only.
unsafe fn close_tuns() {
    // SAFETY: the structure is of integers, of which all zeroes is valid, and outlives the call, which writes no more than it:
    // TUNGETIFF has a number of its own, which means nothing to what is no TUN device.
    unsafe {
        for descriptor in 0..DESCRIPTORS_MAX {
            let mut request: libc::ifreq = std::mem::zeroed();
            if libc::ioctl(descriptor, libc::TUNGETIFF as _, &raw mut request) == 0 {
                libc::close(descriptor);
            }
        }
    }
}
