//! Two namespaces joined by a link, with packets stamped at both ends.

use std::{
    io::{self, IoSliceMut},
    net::UdpSocket,
    os::fd::AsRawFd as _,
    time::Duration,
};

use nix::{
    sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt},
    time::{ClockId, clock_gettime},
};
use winkemu::{
    link::{LinkOptions, NANOS_PER_SECOND, Nanos},
    netns::Netns,
    shell::{LinkHandle, LinkReport, LinkSpec, MTU, Priority, Tun},
};

use super::floor::Wire;

/// Bytes of the IPv4 and UDP headers.
pub(crate) const HEADERS: usize = 28;

/// Two ends, and the link or relay between them.
pub(crate) struct Place<Between = LinkHandle> {
    pub(crate) a: Netns,
    pub(crate) b: Netns,
    between: Between,
}

impl Place {
    pub(crate) fn new(options: &str, priority: Priority) -> Self {
        let options: LinkOptions = options.parse().expect("valid options");
        let config = options.resolve_without_files().expect("no files");
        Self::joined(|a, b| {
            let spec = LinkSpec {
                priority,
                ..LinkSpec::new(a, b, config, 1)
            };
            LinkHandle::spawn(spec).expect("the link starts")
        })
    }

    pub(crate) fn stop(self) -> LinkReport {
        self.between.stop()
    }
}

impl Place<Wire> {
    pub(crate) fn bare() -> Self {
        Self::joined(Wire::new)
    }

    pub(crate) fn stop(self) -> u64 {
        self.between.stop()
    }
}

impl<Between> Place<Between> {
    fn joined(join: impl FnOnce(Tun, Tun) -> Between) -> Self {
        let netns = || Netns::new().expect("permission to create namespaces");
        let (a, b) = (netns(), netns());
        let tun = |netns: &Netns, address: &str| {
            let address = address.parse().expect("valid address");
            Tun::create(netns, "link0", &[address], MTU).expect("permission to create interfaces")
        };
        let between = join(tun(&a, "10.0.0.1/24"), tun(&b, "10.0.0.2/24"));
        Self { a, b, between }
    }

    /// Connected sender in A and stamping receiver in B.
    pub(crate) fn sockets(&self) -> (UdpSocket, Receiver) {
        let bind = |netns: &Netns, address: &str| {
            let socket = netns.enter(|| UdpSocket::bind(address)).expect("entered");
            socket.expect("the address is local")
        };
        let (sender, receiver) = (bind(&self.a, "10.0.0.1:9"), bind(&self.b, "10.0.0.2:9"));
        sender.connect("10.0.0.2:9").expect("a route exists");
        (sender, Receiver::new(receiver))
    }
}

/// Clock of the kernel's packet stamps, in nanoseconds.
pub(crate) fn wall_clock() -> Nanos {
    let time = clock_gettime(ClockId::CLOCK_REALTIME).expect("every kernel has this clock");
    time.tv_sec() as Nanos * NANOS_PER_SECOND + time.tv_nsec() as Nanos
}

/// Socket that reports the arrival time of each packet at the interface.
pub(crate) struct Receiver {
    socket: UdpSocket,
}

impl Receiver {
    fn new(socket: UdpSocket) -> Self {
        let patience = Some(Duration::from_secs(2));
        socket.set_read_timeout(patience).expect("a valid timeout");
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true).expect("every kernel stamps");
        setsockopt(&socket, sockopt::RcvBuf, &(8 << 20)).expect("a valid size");
        Self { socket }
    }

    /// First eight bytes and arrival time of the next packet; `None` after 2 s without one.
    pub(crate) fn receive(&self) -> Option<(u64, Nanos)> {
        let mut bytes = [0; 2048];
        let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let fd = self.socket.as_raw_fd();
        let message = recvmsg::<()>(fd, &mut parts, Some(&mut control), MsgFlags::empty());
        let message = match message.map_err(io::Error::from) {
            Ok(message) => message,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(error) => panic!("receiving: {error}"),
        };
        let stamp = message
            .cmsgs()
            .expect("space for the stamp")
            .find_map(|c| match c {
                ControlMessageOwned::ScmTimestampns(time) => Some(time),
                _ => None,
            });
        let stamp = stamp.expect("packets are stamped");
        let stamp = stamp.tv_sec() as Nanos * NANOS_PER_SECOND + stamp.tv_nsec() as Nanos;
        let head = bytes[..8].try_into().expect("eight bytes");
        Some((u64::from_be_bytes(head), stamp))
    }
}
