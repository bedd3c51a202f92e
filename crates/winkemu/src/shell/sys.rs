//! System calls without a safe wrapper.
#![expect(unsafe_code, reason = "TUN requests and scheduling policies need it")]

use std::{
    fs::OpenOptions,
    io, mem,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

use nix::net::if_::if_nametoindex;

/// Creates a TUN interface in the calling thread's namespace; it goes away with the descriptor.
///
/// Packets are bare IP, one per read or write, and no longer than the MTU: without offloads the
/// kernel segments TCP data before it reaches the interface. The kernel numbers a name such as
/// `wink%d`; the actual name is returned.
pub(super) fn create_tun(name: &str) -> io::Result<(OwnedFd, String)> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")?;
    let mut request = named_request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes an ifreq, which this is, and which outlives the call.
    let outcome = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    if outcome < 0 {
        let error = io::Error::last_os_error();
        // The kernel returns EINVAL where the interface of that name is no TUN.
        let is_taken = error.raw_os_error() == Some(libc::EINVAL) && if_nametoindex(name).is_ok();
        return Err(match is_taken {
            true => io::Error::from_raw_os_error(libc::EEXIST),
            false => error,
        });
    }
    let name = request.ifr_name.iter().take_while(|byte| **byte != 0);
    let name = name.map(|byte| char::from(*byte as u8)).collect();
    Ok((device.into(), name))
}

fn named_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain data for which all zeroes is valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// Gives the calling thread SCHED_FIFO scheduling.
pub(super) fn set_realtime(priority: i32) -> io::Result<()> {
    // SAFETY: sched_param is plain data for which all zeroes is valid.
    let mut parameters: libc::sched_param = unsafe { mem::zeroed() };
    parameters.sched_priority = priority;
    // SAFETY: the call reads the parameters, which outlive it; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
