//! Handing a capability down to the programs we start.

use std::io;

/// CAP_NET_ADMIN, in linux/capability.h.
pub const NET_ADMIN: u32 = 12;
/// CAP_NET_RAW.
pub const NET_RAW: u32 = 13;
/// CAP_NET_BIND_SERVICE.
pub const NET_BIND_SERVICE: u32 = 10;

/// _LINUX_CAPABILITY_VERSION_3: two words of each set.
const VERSION: u32 = 0x2008_0522;

/// `struct __user_cap_header_struct`.
#[repr(C)]
struct Header {
    version: u32,
    pid: libc::c_int,
}

/// `struct __user_cap_data_struct`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Sets {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// Gives a capability of the calling thread to what it starts from now on (capabilities(7), the
/// ambient set). Those that come from the file of a program, by setcap(8), end with it otherwise.
///
/// # Errors
/// `EPERM` when the thread does not have it, or its securebits forbid it.
///
/// # Panics
/// For a capability beyond 31.
pub fn hand_down(capability: u32) -> io::Result<()> {
    assert!(capability < 32, "the sets' first words end there");
    let mut header = Header {
        version: VERSION,
        pid: 0,
    };
    let mut sets = [Sets::default(); 2];
    // SAFETY: version 3 reads one header and writes two sets; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capget, &raw mut header, sets.as_mut_ptr()) })?;
    sets[0].inheritable |= 1 << capability;
    // SAFETY: version 3 reads one header and two sets; both outlive the call.
    check(unsafe { libc::syscall(libc::SYS_capset, &raw mut header, sets.as_ptr()) })?;
    let (raise, capability) = (libc::PR_CAP_AMBIENT_RAISE, libc::c_ulong::from(capability));
    // SAFETY: takes integers only; the last two must be zero.
    let raised = unsafe { libc::prctl(libc::PR_CAP_AMBIENT, raise, capability, 0, 0) };
    check(raised.into())
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
