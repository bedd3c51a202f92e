//! End of a link: a TUN interface in a namespace.

use std::{
    fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    str::FromStr,
};

use ipnet::IpNet;

use super::sys;
use crate::netns::{Netns, NetnsError};

/// Packets that the kernel queues for a TUN. A sender may have a whole window in flight and does
/// not learn of drops there, so the queue must hold more than any window: 16,384 full packets are
/// 24 MB.
const TRANSMIT_QUEUE: u32 = 16_384;

/// Failure to create an end of a link.
#[derive(Debug, thiserror::Error)]
pub enum TunError {
    /// Malformed description.
    #[error("`{text}` is not NETNS/IF or NETNS/IF=ADDRESS/LENGTH[,...]: {problem}")]
    Description {
        /// Description as found.
        text: String,
        /// Error in it.
        problem: String,
    },
    /// The interface could not be created: no permission (`CAP_NET_ADMIN`, access to
    /// `/dev/net/tun`), a name that is taken, or one longer than 15 bytes.
    #[error("cannot create interface {name}{}", reason(source))]
    Create {
        /// Name of the interface.
        name: String,
        /// Reason given by the kernel.
        #[source]
        source: io::Error,
    },
    /// Failure of the namespace, an address or the MTU.
    #[error(transparent)]
    Netns(#[from] NetnsError),
}

fn reason(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => ": name already in use",
        Some(libc::EINVAL) | None => ": names have 1 to 15 bytes",
        Some(libc::EPERM) => ": needs CAP_NET_ADMIN",
        Some(libc::EACCES) => ": no permission to open /dev/net/tun",
        Some(libc::ENOENT) => ": no /dev/net/tun; load the kernel module tun",
        _ => "",
    }
}

/// Namespace, interface name and addresses of an end:
/// `NETNS/IF[=ADDRESS/LENGTH[,ADDRESS/LENGTH...]]`.
///
/// NETNS is a name of `ip netns`, a process id, or a path such as `/proc/PID/ns/net`. An empty
/// NETNS or `.` is the caller's own namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndSpec {
    /// Namespace as written.
    pub netns: String,
    /// Name of the interface to create, 1 to 15 bytes.
    pub interface: String,
    /// Addresses of the interface, IPv4 and IPv6.
    pub addresses: Vec<IpNet>,
}

impl FromStr for EndSpec {
    type Err = TunError;

    fn from_str(text: &str) -> Result<Self, TunError> {
        let error = |problem: &str| TunError::Description {
            text: text.to_owned(),
            problem: problem.to_owned(),
        };
        let (place, addresses) = text.split_once('=').unwrap_or((text, ""));
        let (netns, interface) = place.rsplit_once('/').ok_or_else(|| error("no `/`"))?;
        if !(1..=15).contains(&interface.len()) {
            return Err(error("an interface name has 1 to 15 bytes"));
        }
        let addresses = addresses.split(',').filter(|address| !address.is_empty());
        let address = |text: &str| {
            text.parse::<IpNet>()
                .map_err(|_| error(&format!("`{text}` is not ADDRESS/LENGTH")))
        };
        Ok(Self {
            netns: netns.to_owned(),
            interface: interface.to_owned(),
            addresses: addresses.map(address).collect::<Result<_, _>>()?,
        })
    }
}

impl EndSpec {
    /// Opens the namespace.
    ///
    /// # Errors
    /// No namespace of that name.
    pub fn open_netns(&self) -> Result<Netns, NetnsError> {
        let named = Path::new("/run/netns").join(&self.netns).exists();
        match self.netns.parse() {
            _ if self.netns.is_empty() || self.netns == "." => Netns::current(),
            _ if self.netns.contains('/') => Netns::by_path(Path::new(&self.netns)),
            Ok(pid) if !named => Netns::by_pid(pid),
            _ => Netns::by_name(&self.netns),
        }
    }

    /// Creates the interface, with addresses and up.
    ///
    /// # Errors
    /// [`TunError`].
    pub fn create(&self, mtu: u32) -> Result<Tun, TunError> {
        Tun::create(&self.open_netns()?, &self.interface, &self.addresses, mtu)
    }
}

/// TUN interface, removed on drop.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
    netns: Netns,
    name: String,
}

impl Tun {
    /// Creates an interface in a namespace, adds addresses and sets it up. The kernel numbers a
    /// name such as `wink%d`.
    ///
    /// # Errors
    /// [`TunError`], mostly without `CAP_NET_ADMIN` there or access to `/dev/net/tun`.
    pub fn create(
        netns: &Netns,
        name: &str,
        addresses: &[IpNet],
        mtu: u32,
    ) -> Result<Self, TunError> {
        let created = netns.enter(|| sys::create_tun(name))?;
        let (fd, name) = created.map_err(|source| TunError::Create {
            name: name.to_owned(),
            source,
        })?;
        // By netlink, because the older ioctl requires root outside user namespaces.
        netns.set_transmit_queue(&name, TRANSMIT_QUEUE)?;
        netns.set_mtu(&name, mtu)?;
        for address in addresses {
            netns.add_address(&name, *address)?;
        }
        netns.set_up(&name)?;
        Ok(Self {
            fd,
            netns: netns.clone(),
            name,
        })
    }

    /// Packets that the kernel dropped because the link did not read them in time (`tx_dropped`).
    ///
    /// # Errors
    /// The namespace or `/proc` cannot be read.
    pub fn drops(&self) -> io::Result<u64> {
        let read = || fs::read_to_string("/proc/thread-self/net/dev");
        let table = self.netns.enter(read).map_err(io::Error::other)??;
        transmit_drops(&table, &self.name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Twelfth number of an interface's line in `/proc/net/dev`.
fn transmit_drops(table: &str, name: &str) -> Option<u64> {
    let mut lines = table.lines().filter_map(|line| line.split_once(':'));
    let (_, numbers) = lines.find(|(interface, _)| interface.trim() == name)?;
    numbers.split_whitespace().nth(11)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_read_with_names_paths_and_several_addresses() {
        let end: EndSpec = "sat/link0=10.0.0.1/24,fd00::1/64".parse().unwrap();
        assert_eq!(
            (end.netns.as_str(), end.interface.as_str()),
            ("sat", "link0")
        );
        assert_eq!(end.addresses.len(), 2);
        let end: EndSpec = "/proc/1/ns/net/link0".parse().unwrap();
        assert_eq!(end.netns, "/proc/1/ns/net");
        assert_eq!("./link0".parse::<EndSpec>().unwrap().netns, ".");
        for text in ["link0", "a/", "a/sixteen-letters-", "a/b=10.0.0.1"] {
            let error = text.parse::<EndSpec>().unwrap_err().to_string();
            assert!(error.contains("NETNS/IF"), "{error}");
        }
    }

    #[test]
    fn drops_are_found_in_the_kernels_table() {
        let table = "Inter-| Receive | Transmit\n face |bytes\n  \
            lo: 1 2 3 4 5 6 7 8 9 10 11 12\nlink0: 1 2 3 4 5 6 7 8 9 10 11 77 13\n";
        assert_eq!(transmit_drops(table, "link0"), Some(77));
        assert_eq!(transmit_drops(table, "link"), None);
    }
}
