//! TUN devices: of a LAN interface, into which held SYNs go and out of which they come back; of a site of mode `packet`.

mod run;

use std::{
    cell::Cell,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    sys::uio::{readv, writev},
};

use pep_core::site::SiteId;

pub use run::{Run, Single};

use super::{setup, setup::SetupError};

/// What of `virtio_net_hdr` says that a packet is whole, and needs nothing done to it.
const WHOLE: [u8; run::HEADER] = [0; run::HEADER];

/// A TUN device; it and its routes vanish with this value, or with the process.
#[derive(Debug)]
pub struct Tun {
    name: String,
    device: OwnedFd,
    runs: Cell<Runs>,
}

/// Whether the kernel is given datagrams of a flow as one (Linux 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// It has taken none, and refused so many.
    Unknown { refused: u8 },
    /// It has taken some. Some kernels refuse those of a few bytes each.
    Taken,
    /// Each packet goes alone.
    Never,
}

/// One that refuses so many, and takes none, takes none.
const REFUSED_MAX: u8 = 8;

/// The TUN through which the packets of a site go.
#[derive(Debug)]
pub struct PacketTun {
    /// Which site.
    pub site: SiteId,
    /// What hosts send is read from it; what is written comes in by it, and is never captured again.
    pub tun: Tun,
    /// Its interface, as [`Netlink::set_mtu`](super::netlink::Netlink::set_mtu) has it.
    pub index: u32,
}

/// The TUNs of the sites of mode `packet`.
#[derive(Debug, Default)]
pub struct PacketTuns {
    /// One for each site, in their order.
    pub sites: Vec<PacketTun>,
    /// By which packets of hosts come back that are to pass, as their peer is gone: tracked as ever, other than what a peer sends.
    /// Where there is a site.
    pub passing: Option<Tun>,
}

impl Tun {
    /// Creates the device, down and without addresses.
    ///
    /// # Errors
    /// When the kernel has no TUN, another process uses the name, or `/proc/sys` is read-only.
    pub fn create(name: &str, ipv6: bool) -> Result<Self, SetupError> {
        let failed = |err| SetupError::Tun {
            name: name.to_owned(),
            err,
        };
        let device = pepd_sys::tun::open().map_err(SetupError::NoTun)?;
        let device = pepd_sys::tun::create(device, name).map_err(failed)?;
        configure(name, ipv6)?;
        Ok(Self {
            name: name.to_owned(),
            device,
            runs: Cell::new(Runs::Unknown { refused: 0 }),
        })
    }

    /// Each packet is to go to the kernel alone.
    pub(crate) fn one_by_one(&self) {
        self.runs.set(Runs::Never);
    }

    /// The interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one packet into `buffer`, cut off at its end; `None` when there is none. Never waits.
    ///
    /// # Errors
    /// When the device is gone or down.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut header = WHOLE;
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        match readv(&self.device, &mut parts) {
            Ok(length) => Ok(Some(length.saturating_sub(WHOLE.len()))),
            Err(Errno::EAGAIN) => Ok(None),
            Err(err) => Err(err.into()),
        }
    }

    /// Lets a packet come in by this interface. Never waits.
    ///
    /// # Errors
    /// When the device is gone or down.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        writev(&self.device, &[IoSlice::new(&WHOLE), IoSlice::new(packet)])?;
        Ok(())
    }

    /// Lets packets come in by this interface, at one go where the kernel can; how many it took. Never waits.
    pub fn write_run(&self, run: &Run) -> usize {
        if run.packets().len() > 1 && self.runs.get() != Runs::Never {
            match run.write(&self.device) {
                Ok(()) => {
                    self.runs.set(Runs::Taken);
                    return run.packets().len();
                }
                Err(Errno::EINVAL) => self.note_refusal(),
                // Smaller ones may do.
                Err(_) => {}
            }
        }
        let packets = run.packets().iter();
        packets.filter(|packet| self.write(packet).is_ok()).count()
    }

    fn note_refusal(&self) {
        let Runs::Unknown { refused } = self.runs.get() else {
            return;
        };
        if refused + 1 < REFUSED_MAX {
            let refused = refused + 1;
            return self.runs.set(Runs::Unknown { refused });
        }
        tracing::info!(
            interface = self.name,
            "the kernel takes datagrams of a flow one by one, which costs more of the processor: Linux 6.2 and later take them together"
        );
        self.runs.set(Runs::Never);
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// The kernel's defaults do not fit a device without hosts behind it.
fn configure(name: &str, ipv6: bool) -> Result<(), SetupError> {
    // The source addresses of SYNs are reached by other interfaces: loose reverse path check
    // (the stricter of this and `all` counts, so 0 would not do).
    setup::write_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "2")?;
    if ipv6 {
        // No link-local address, hence no duplicate address detection, and no router discovery.
        setup::write_sysctl(&format!("net/ipv6/conf/{name}/addr_gen_mode"), "1")?;
        setup::write_sysctl(&format!("net/ipv6/conf/{name}/accept_ra"), "0")?;
        setup::write_sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "0")?;
    }
    Ok(())
}
