//! TUN devices: of a LAN interface, into which held SYNs go and out of which they return; and of a
//! site of mode `packet`.

mod run;
mod split;

use std::{
    cell::Cell,
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use nix::{
    errno::Errno,
    ifaddrs::getifaddrs,
    net::if_::InterfaceFlags,
    sys::uio::{readv, writev},
    unistd::read,
};

use pep_core::site::SiteId;

pub use run::{Run, Single};

use super::{
    rules::{DUMMY_ADDRESS, LaneKind},
    setup,
    setup::SetupError,
};

/// `virtio_net_hdr` of a whole packet without offloads.
const WHOLE: [u8; run::HEADER] = [0; run::HEADER];

/// A TUN device. It and its routes vanish with this value, or with the process.
#[derive(Debug)]
pub struct Tun {
    name: String,
    device: OwnedFd,
    runs: Cell<Runs>,
}

/// Support of the kernel for several datagrams of a flow as one (Linux 6.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Runs {
    /// Unknown: none accepted yet, and this many rejected.
    Unknown { refused: u8 },
    /// Supported. Some kernels reject those of a few bytes each.
    Taken,
    /// Not supported: each packet is written alone.
    Never,
}

/// The longest packet that the kernel passes, in bytes.
pub const PACKET_MAX: u32 = 65_535;

/// Maximum of bytes that [`Tun::read_each`] reads: the longest packet and its virtio header.
pub const READ_MAX: usize = PACKET_MAX as usize + run::HEADER;

/// Rejections without an acceptance after which the kernel counts as lacking support.
const REFUSED_MAX: u8 = 8;

/// A TUN through which packets of a site go.
#[derive(Debug)]
pub struct PacketTun {
    /// Site of the packets.
    pub site: SiteId,
    /// Packets of the site that go through the TUN.
    pub kind: LaneKind,
    /// Packets of hosts are read from it. Packets written to it arrive by it, and are never
    /// captured again.
    pub tun: Tun,
    /// Interface index, for [`Netlink::set_mtu`](super::netlink::Netlink::set_mtu).
    pub index: u32,
}

/// The TUNs of the sites of mode `packet`, or of those of mode `boost`.
#[derive(Debug, Default)]
pub struct PacketTuns {
    /// TUNs of the sites, in their order.
    pub sites: Vec<PacketTun>,
    /// TUN for packets of hosts that the kernel forwards and tracks, unlike those of a peer: while
    /// the peer is down, or with mode `boost`. `None` without such a site.
    pub passing: Option<Tun>,
}

impl PacketTuns {
    /// Takes out the TUNs of the sites of mode `boost`.
    ///
    /// # Errors
    /// When no descriptors are left.
    pub fn split_off_boosted(&mut self) -> io::Result<Self> {
        let of_boosts = |tun: &mut PacketTun| tun.kind != LaneKind::Peer;
        let sites: Vec<_> = self.sites.extract_if(.., of_boosts).collect();
        let passing = match self.sites.is_empty() {
            true => self.passing.take(),
            false => self.passing.as_ref().map(Tun::try_clone).transpose()?,
        };
        Ok(Self { sites, passing })
    }
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

    fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            name: self.name.clone(),
            device: self.device.try_clone()?,
            runs: self.runs.clone(),
        })
    }

    /// Writes each packet alone from now on.
    pub(crate) fn one_by_one(&self) {
        self.runs.set(Runs::Never);
    }

    /// Lets the kernel deliver several packets of a flow as one, to
    /// [`read_each`](Self::read_each) only.
    pub(crate) fn deliver_joined(&self) {
        let interface = &self.name;
        match pepd_sys::tun::offload(self.as_fd()) {
            Ok(true) => {}
            Ok(false) => tracing::info!(
                interface,
                "datagrams are read one by one, which costs more CPU: Linux 6.2 and later deliver several of a flow at once"
            ),
            Err(error) => tracing::info!(
                interface,
                %error,
                "packets are read one by one, which costs more CPU: the kernel delivers no segments of a connection at once"
            ),
        }
    }

    /// Returns the interface's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Reads one packet into `buffer`, truncated to its length; `None` when none is queued. Never
    /// blocks.
    ///
    /// # Errors
    /// When the device is removed or down.
    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let mut header = WHOLE;
        let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(buffer)];
        match readv(&self.device, &mut parts) {
            Ok(length) => Ok(Some(length.saturating_sub(WHOLE.len()))),
            Err(Errno::EAGAIN) => Ok(None),
            Err(err) => Err(err.into()),
        }
    }

    /// Reads what the kernel delivers at once into `buffer` of [`READ_MAX`] bytes, and calls `each`
    /// with the packets that it stands for. Returns their number, 0 for a malformed packet; `None`
    /// when none is queued. Never blocks.
    ///
    /// # Errors
    /// When the device is removed or down.
    pub fn read_each(
        &self,
        buffer: &mut [u8],
        each: impl FnMut(&mut [u8]),
    ) -> io::Result<Option<usize>> {
        // One buffer: for several, the kernel would copy and check their list with each packet.
        match read(&self.device, buffer) {
            Ok(length) => {
                let header = buffer[..length].split_first_chunk_mut();
                Ok(Some(header.map_or(0, |(header, packet)| {
                    split::split(*header, packet, each)
                })))
            }
            Err(Errno::EAGAIN) => Ok(None),
            // The kernel has dropped a packet that no header can describe.
            Err(Errno::EINVAL) => Ok(Some(0)),
            Err(err) => Err(err.into()),
        }
    }

    /// Writes a packet, which arrives by this interface. Never blocks.
    ///
    /// # Errors
    /// When the device is removed or down.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        writev(&self.device, &[IoSlice::new(&WHOLE), IoSlice::new(packet)])?;
        Ok(())
    }

    /// Writes packets, which arrive by this interface, in one call if the kernel can. Returns the
    /// number written. Never blocks.
    pub fn write_run(&self, run: &Run) -> usize {
        if run.packets().len() > 1 && self.runs.get() != Runs::Never {
            match run.write(&self.device) {
                Ok(()) => {
                    self.runs.set(Runs::Taken);
                    return run.packets().len();
                }
                Err(Errno::EINVAL) => self.note_refusal(),
                // Smaller runs may work.
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
            "datagrams are written one by one, which costs more CPU: Linux 6.2 and later accept several of a flow at once"
        );
        self.runs.set(Runs::Never);
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Returns the TUNs among `names` that are down, or have lost their address or their loose reverse
/// path check: a network manager has flushed what it does not know, or a script has set
/// `net.ipv4.conf.*.rp_filter`. The kernel drops SYNs of IPv4 that come out of such a TUN.
///
/// # Errors
/// When the kernel does not answer.
pub(crate) fn spoilt<'a>(
    names: impl Iterator<Item = &'a str>,
) -> io::Result<impl Iterator<Item = &'a str>> {
    let addresses: Vec<_> = getifaddrs()?.collect();
    Ok(names.filter(move |name| {
        let mut of_tun = addresses.iter();
        let is_whole = of_tun.any(|address| {
            let socket = address
                .address
                .as_ref()
                .and_then(|own| own.as_sockaddr_in());
            address.interface_name == *name
                && address.flags.contains(InterfaceFlags::IFF_UP)
                && socket.is_some_and(|own| own.ip() == DUMMY_ADDRESS)
        });
        !is_whole || !has_loose_check(name)
    }))
}

/// Returns whether the kernel takes packets out of the TUN whatever their source (the higher of two
/// sysctls applies).
fn has_loose_check(name: &str) -> bool {
    let filter = |name: &str| -> u8 {
        let value = pepd_sys::sysctl(&format!("net/ipv4/conf/{name}/rp_filter"));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    };
    filter(name).max(filter("all")) != 1
}

/// Sets sysctls of the device: the kernel's defaults do not fit one without hosts behind it.
pub(crate) fn configure(name: &str, ipv6: bool) -> Result<(), SetupError> {
    // The source addresses of SYNs are behind other interfaces: loose reverse path check (the
    // higher of this and `all` applies, so 0 would have no effect). Where /proc/sys is read-only,
    // as in containers, the kernel's own value may do.
    let is_loose = || has_loose_check(name);
    setup::set_sysctl(&format!("net/ipv4/conf/{name}/rp_filter"), "2", is_loose)?;
    if ipv6 {
        // No link-local address, hence no duplicate address detection and no router discovery.
        // They disturb nothing but cost a few packets.
        for (key, value) in [("addr_gen_mode", "1"), ("accept_ra", "0")] {
            setup::set_sysctl(&format!("net/ipv6/conf/{name}/{key}"), value, || true)?;
        }
        let path = format!("net/ipv6/conf/{name}/disable_ipv6");
        let is_on = || pepd_sys::sysctl(&path).as_deref() == Some("0");
        setup::set_sysctl(&path, "0", is_on)?;
    }
    Ok(())
}
