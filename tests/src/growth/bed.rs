//! A sender, a link, a router and a receiver, with a record of the sender's window.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, SockRef, Socket, Type};
use winkemu::{
    lab::{LinkEdge, Topology, program::TcpInfo},
    link::LinkOptions,
};

use super::Result;

const PORT: u16 = 5000;
/// Buffers beyond any window.
const BUFFER: usize = 256 << 20;
/// The maximum queued in the socket beyond the window; it is refilled when half is left. Half of it
/// covers the bytes that ten acknowledgements with a rho of 10 release in slow start.
const UNSENT: u32 = 32 << 20;
/// The sampling interval of the window; several samples between bunched acknowledgements.
const LOOK: Duration = Duration::from_micros(200);

/// The receiver's acknowledgement policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Acknowledging {
    /// Each segment by itself.
    EachSegment,
    /// Many segments at once: the receiver's interface merges segments within this time (GRO).
    Stretched(Duration),
}

/// A sample of the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Look {
    /// Time since the connect.
    pub at: Duration,
    /// The kernel's state of the socket.
    pub tcp: TcpInfo,
}

/// The namespaces, ready for one connection.
#[derive(Debug)]
pub(super) struct Bed {
    nodes: Topology,
    listener: TcpListener,
}

impl Bed {
    pub(super) fn new(link: &str, acknowledging: Acknowledging) -> Result<Self> {
        let none = |_: &Path| Err(io::ErrorKind::NotFound.into());
        Self::with_files(link, none, acknowledging)
    }

    /// Builds the bed; `files` are the contents of files that the link's options name.
    pub(super) fn with_files(
        link: &str,
        mut files: impl FnMut(&Path) -> io::Result<String>,
        acknowledging: Acknowledging,
    ) -> Result<Self> {
        let link = link.parse::<LinkOptions>()?.resolve(&mut files)?;
        let nodes = Topology::builder()
            .link("sender", "router", LinkEdge::new("link", link))
            .veth("router", "receiver")
            .build()?;
        let listener = listen(&nodes)?;
        let bed = Self { nodes, listener };
        match acknowledging {
            Acknowledging::EachSegment => bed.acknowledge_each()?,
            Acknowledging::Stretched(wait) => bed.stretch(wait)?,
        }
        Ok(bed)
    }

    /// Drops the first segment with data on its arrival.
    pub(super) fn drop_first_segment(&self) -> Result<()> {
        let rules = format!(
            "table inet lose {{ chain first {{ type filter hook input priority 0; \
             tcp dport {PORT} meta length > 200 numgen inc mod 4294967295 == 0 drop; }}; }}"
        );
        self.on_receiver("nft", &[&rules])
    }

    /// Sends with a congestion control until `done` returns true, and returns a sample for each
    /// acknowledgement.
    pub(super) fn watch(
        self,
        congestion: &str,
        mut done: impl FnMut(&Look) -> bool,
    ) -> Result<Vec<Look>> {
        let socket = self.connect(congestion)?;
        let receiving = receive(self.listener.try_clone()?);
        let began = Instant::now();
        let mut looks: Vec<Look> = Vec::new();
        let data = vec![0; 1 << 18];
        loop {
            let look = Look {
                at: began.elapsed(),
                tcp: TcpInfo::read(&socket)?,
            };
            // Writes seldom: during a write the kernel merges arriving acknowledgements, and a
            // control that counts them sees too few.
            if is_half_empty(&socket)? {
                while socket.send(&data).is_ok() {}
            }
            if looks
                .last()
                .is_none_or(|last| last.tcp.segs_in != look.tcp.segs_in)
            {
                looks.push(look);
            }
            if done(&look) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        // A reset: the remaining bytes in buffers are not needed.
        socket.set_linger(Some(Duration::ZERO))?;
        drop(socket);
        receiving.join().map_err(|_| "the receiver panicked")?;
        Ok(looks)
    }

    fn connect(&self, congestion: &str) -> Result<Socket> {
        let to = SocketAddr::new(self.nodes.node("receiver").ipv4().into(), PORT);
        let sender = self.nodes.node("sender").netns();
        sender.enter(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
            force_buffer(&socket, nix::sys::socket::sockopt::SndBufForce)?;
            socket.set_tcp_notsent_lowat(UNSENT)?;
            socket.set_tcp_congestion(congestion.as_bytes())?;
            socket.connect(&to.into())?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        })?
    }

    /// Adds a route with quickack, because the socket option does not last.
    fn acknowledge_each(&self) -> Result<()> {
        let receiver = self.nodes.node("receiver");
        let net = self.nodes.node("sender").interface("router").ipv4.trunc();
        let router = self.nodes.node("router").interface("receiver").ipv4.addr();
        receiver.netns().set_offloads("router", false)?;
        let (net, router) = (net.to_string(), router.to_string());
        let route = ["route", "replace", &net, "via", &router, "quickack", "1"];
        self.on_receiver("ip", &route)
    }

    fn stretch(&self, wait: Duration) -> Result<()> {
        // An interface merges only segments that its peer sends one by one.
        let (router, receiver) = (self.nodes.node("router"), self.nodes.node("receiver"));
        router.netns().set_offloads("receiver", false)?;
        receiver.netns().set_offloads("router", true)?;
        // /sys shows the interfaces of the namespace in which it was mounted.
        let set = format!(
            "mount -t sysfs sysfs /sys && echo {} > /sys/class/net/router/gro_flush_timeout",
            wait.as_nanos()
        );
        self.on_receiver("unshare", &["--mount", "sh", "-c", &set])
    }

    fn on_receiver(&self, program: &str, arguments: &[&str]) -> Result<()> {
        let receiver = self.nodes.node("receiver").netns();
        let output = receiver.command(program).args(arguments).output()?;
        if output.status.success() {
            return Ok(());
        }
        Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

fn listen(nodes: &Topology) -> Result<TcpListener> {
    let receiver = nodes.node("receiver");
    let address = SocketAddr::new(receiver.ipv4().into(), PORT);
    receiver.netns().enter(|| {
        let listener = TcpListener::bind(address)?;
        force_buffer(&listener, nix::sys::socket::sockopt::RcvBufForce)?;
        Ok(listener)
    })?
}

fn force_buffer(
    socket: &impl AsFd,
    option: impl nix::sys::socket::SetSockOpt<Val = usize>,
) -> Result<()> {
    Ok(nix::sys::socket::setsockopt(socket, option, &BUFFER)?)
}

/// Returns whether half is left: Linux reports a socket writable from half of `TCP_NOTSENT_LOWAT`
/// on.
fn is_half_empty(socket: &Socket) -> Result<bool> {
    let mut polled = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
    Ok(poll(&mut polled, PollTimeout::ZERO)? > 0)
}

fn receive(listener: TcpListener) -> std::thread::JoinHandle<()> {
    std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        let mut buffer = vec![std::mem::MaybeUninit::uninit(); 1 << 20];
        while SockRef::from(&stream)
            .recv(&mut buffer)
            .is_ok_and(|count| count > 0)
        {}
    })
}
