//! Making TUN devices.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

/// Bare IP packets; and never a device that is there already, which would be somebody else's.
const FLAGS: libc::c_int = libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_TUN_EXCL;

/// Creates a TUN device that carries bare IP packets and vanishes when it is closed.
///
/// Reads and writes take one packet each and never wait.
///
/// # Errors
/// `EBUSY` when there is a device of that name, `ENOENT` without `/dev/net/tun`,
/// `EPERM` without CAP_NET_ADMIN, `EINVAL` for a name of more than 15 bytes.
pub fn create(name: &str) -> io::Result<OwnedFd> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut request = request(name)?;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is and which outlives the
    // call; the descriptor is open.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device.into())
}

fn request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: `ifreq` is a C struct of integers, addresses and pointers; all zeroes is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
    Ok(request)
}
