//! A client, a machine in the middle and a server.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;
use winkemu::{
    lab::Topology,
    netns::{Netns, Process},
};

use super::Result;

/// Time for pepd to take over the traffic, or to end.
const START_MAX: Duration = Duration::from_secs(10);
/// No accept or read of a measurement takes longer unless something is broken.
const STUCK: Duration = Duration::from_secs(20);

/// What happens to connections in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The kernel forwards the packets; there are no rules and no pepd.
    Direct,
    /// pepd answers handshakes at once.
    Spoof,
    /// pepd answers handshakes when the server has.
    Defer,
}

impl Variant {
    /// The name in tables and configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Spoof => "spoof",
            Self::Defer => "defer",
        }
    }
}

/// Three namespaces in a row, with pepd in the middle or not.
#[derive(Debug)]
pub struct Bed {
    /// What happens in the middle.
    pub variant: Variant,
    nodes: Topology,
    pepd: Option<Process>,
    /// pepd's configuration and log, for as long as the bed is used.
    _files: TempDir,
}

impl Bed {
    /// Builds the namespaces and, unless the variant is direct, waits for pepd to be ready.
    ///
    /// # Errors
    /// Without root, or when pepd does not come up within ten seconds; its log is quoted then.
    pub fn new(variant: Variant, pepd_program: &Path) -> Result<Self> {
        let nodes = Topology::chain(&["client", "middle", "server"])?;
        let client = nodes.node("client").netns();
        client.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        // A SYN that nobody answers fails after 15 s instead of two minutes.
        client.set_sysctl("net.ipv4.tcp_syn_retries", "3")?;
        let files = tempfile::tempdir()?;
        let pepd = match variant {
            Variant::Direct => None,
            _ => {
                let middle = nodes.node("middle").netns();
                Some(start_pepd(middle, variant, pepd_program, files.path())?)
            }
        };
        Ok(Self {
            variant,
            nodes,
            pepd,
            _files: files,
        })
    }

    /// pepd's process id, where there is one.
    pub fn pepd(&self) -> Option<u32> {
        self.pepd.as_ref().map(Process::id)
    }

    /// The client's namespace.
    pub fn client(&self) -> &Netns {
        self.nodes.node("client").netns()
    }

    /// A listener on a port of the server that no earlier measurement used, so that connections
    /// still in TIME_WAIT cannot get in the way.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen(&self) -> Result<(TcpListener, SocketAddr)> {
        let server = self.nodes.node("server");
        let listener: TcpListener = server.netns().enter(|| listener(server.ipv4()))??.into();
        let address = listener.local_addr()?;
        Ok((listener, address))
    }

    /// Connects from the client.
    ///
    /// # Errors
    /// When the server does not answer.
    pub fn connect(&self, server: SocketAddr, count: usize) -> Result<Vec<TcpStream>> {
        let connect_all = || (0..count).map(|_| connect(server)).collect();
        self.client().enter(connect_all)?
    }
}

/// What every socket uses, pepd's too: one that paces, as some systems have by default, would
/// make the figures those of its timers.
const CONGESTION: &str = "cubic";

/// Connects from the namespace of the calling thread, without Nagle's delays.
pub(super) fn connect(server: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_congestion(CONGESTION.as_bytes())?;
    socket.connect(&server.into())?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STUCK))?;
    Ok(stream)
}

fn listener(address: Ipv4Addr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_congestion(CONGESTION.as_bytes())?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.listen(4096)?;
    // Bounds accept(), and is inherited by what it returns.
    socket.set_read_timeout(Some(STUCK))?;
    Ok(socket)
}

fn start_pepd(middle: &Netns, variant: Variant, program: &Path, files: &Path) -> Result<Process> {
    let config = files.join("pepd.toml");
    let syn = variant.name();
    fs::write(
        &config,
        format!(
            "[intercept]\nlan = [\"client\"]\n\n[[site]]\nname = \"bench\"\nsyn = \"{syn}\"\n\
             congestion = [\"{CONGESTION}\"]\n"
        ),
    )?;
    let log = files.join("pepd.log");
    let mut command = middle.command(program);
    command.arg("run").arg("--config").arg(&config);
    // A file, not a pipe: nobody has to spend processor time on reading it.
    command.stderr(File::create(&log)?);
    let mut pepd = Process::spawn(&mut command)?;
    wait_until_ready(&mut pepd, &log)?;
    Ok(pepd)
}

fn wait_until_ready(pepd: &mut Process, log: &Path) -> Result<()> {
    let deadline = Instant::now() + START_MAX;
    loop {
        let text = fs::read_to_string(log)?;
        if text.contains("pepd is ready") {
            return Ok(());
        }
        let ended = pepd.wait(Duration::ZERO)?;
        if ended.is_some() || Instant::now() > deadline {
            return Err(format!("pepd did not become ready ({ended:?}):\n{text}").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
