//! Creation of TUN devices.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

use super::interface::request;

/// IP packets behind the header of virtio. IFF_TUN_EXCL: an existing device would belong to another
/// program.
const FLAGS: libc::c_int =
    libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR | libc::IFF_TUN_EXCL;

/// Opens the control device for TUN devices.
///
/// # Errors
/// `ENOENT`, `ENODEV` or `ENXIO` where the kernel, or the container, has no `/dev/net/tun`;
/// `ENOTTY` or the like where another file has that name.
pub fn open() -> io::Result<File> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")?;
    let mut features: libc::c_uint = 0;
    // SAFETY: TUNGETFEATURES writes one unsigned int, which `features` is and which outlives the
    // call; the descriptor is open.
    let result = unsafe {
        libc::ioctl(
            device.as_raw_fd(),
            libc::TUNGETFEATURES as _,
            &raw mut features,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device)
}

/// Turns `device`, from [`open`], into a TUN device that disappears when it is closed.
///
/// Reads and writes carry one packet each, or several of a flow as one, behind the 10 bytes of a
/// `virtio_net_hdr` (`linux/virtio_net.h`), and never block. The kernel delivers whole packets only
/// until [`offload`] is called.
///
/// # Errors
/// `EBUSY` when a device has that name, `EPERM` without CAP_NET_ADMIN, `EINVAL` for a name of more
/// than 15 bytes.
pub fn create(device: File, name: &str) -> io::Result<OwnedFd> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = FLAGS as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one `ifreq`, which `request` is and which outlives the
    // call; the descriptor is open.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(device.into())
}

/// `TUN_F_CSUM`, with `TUN_F_TSO4` and `TUN_F_TSO6`: checksums, and segments of TCP.
const TCP: libc::c_ulong = 0x01 | 0x02 | 0x04;
/// `TUN_F_USO4` and `TUN_F_USO6`: datagrams of UDP (Linux 6.2).
const UDP: libc::c_ulong = 0x20 | 0x40;

/// Lets the kernel deliver several segments of a connection as one packet, and checksums
/// incomplete; several datagrams of a flow also, if it can. Returns whether it can.
///
/// # Errors
/// `EINVAL` when the kernel can do neither. It then delivers whole packets.
pub fn offload(device: BorrowedFd<'_>) -> io::Result<bool> {
    let set = |offloads: libc::c_ulong| {
        // SAFETY: TUNSETOFFLOAD takes its argument by value; the descriptor is open.
        let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETOFFLOAD as _, offloads) };
        match result {
            0.. => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    match set(TCP | UDP) {
        Ok(()) => Ok(true),
        Err(_) => set(TCP).map(|()| false),
    }
}
