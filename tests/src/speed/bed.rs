//! A client, one or two machines in the middle, and a server.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use base64::Engine as _;
use serde::Serialize;
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;
use winkemu::{
    lab::Topology,
    netns::{Netns, Process},
};

use super::{Result, strangers::Target};
use crate::pep::carrier;

/// The time limit for pepd to take over the traffic, or to end.
const START_MAX: Duration = Duration::from_secs(10);
/// The time limit of an accept or read: only a failure takes longer.
const STUCK: Duration = Duration::from_secs(20);

/// The treatment of connections in the middle.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Variant {
    /// The kernel forwards the packets, without rules or pepd.
    Direct,
    /// pepd answers handshakes at once.
    Spoof,
    /// pepd answers handshakes once the server has.
    Defer,
    /// Two machines in the middle, with a tunnel between their pepds.
    Tunnel,
    /// Like `Spoof`, but flows end with their process.
    #[serde(rename = "spoof, no custody")]
    SpoofAlone,
    /// Like `Tunnel`, but nothing is held for hosts beyond the bytes in flight, and flows end with
    /// their process.
    #[serde(rename = "tunnel, no custody")]
    TunnelAlone,
    /// Like `Tunnel`, with datagrams carried as packets.
    Packets,
    /// Like `Packets`, over a link with 1 % loss, with repair packets.
    #[serde(rename = "packets, fec")]
    PacketsFec,
}

impl Variant {
    /// Returns the name in tables and configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Spoof => "spoof",
            Self::Defer => "defer",
            Self::Tunnel => "tunnel",
            Self::SpoofAlone => "spoof, no custody",
            Self::TunnelAlone => "tunnel, no custody",
            Self::Packets => "packets",
            Self::PacketsFec => "packets, fec",
        }
    }

    /// Returns whether there is a tunnel.
    pub fn has_tunnel(self) -> bool {
        matches!(self, Self::Tunnel | Self::TunnelAlone) || self.carries_packets()
    }

    /// Returns whether datagrams are carried as packets.
    pub fn carries_packets(self) -> bool {
        matches!(self, Self::Packets | Self::PacketsFec)
    }

    /// Returns the variant without custody, if there is one.
    pub fn without_custody(self) -> Option<Self> {
        match self {
            Self::Spoof => Some(Self::SpoofAlone),
            Self::Tunnel => Some(Self::TunnelAlone),
            _ => None,
        }
    }

    fn survive(self) -> &'static str {
        match self {
            Self::SpoofAlone | Self::TunnelAlone => "[custody]\nsurvive = false\n",
            _ => "",
        }
    }
}

/// Namespaces in a row; pepd may run in those between client and server.
#[derive(Debug)]
pub struct Bed {
    /// The treatment of connections in the middle.
    pub variant: Variant,
    nodes: Topology,
    pepds: Vec<Process>,
    /// The far end of a tunnel.
    target: Option<Target>,
    /// pepd's configuration and log, kept as long as the bed.
    _files: TempDir,
}

impl Bed {
    /// Builds the namespaces and, unless the variant is direct, waits for pepd to be ready.
    ///
    /// # Errors
    /// Without root, or when pepd is not ready within ten seconds; the error quotes its log.
    pub fn new(variant: Variant, pepd_program: &Path) -> Result<Self> {
        let names: &[&str] = if variant.has_tunnel() {
            &["client", "near", "far", "server"]
        } else {
            &["client", "middle", "server"]
        };
        let nodes = Topology::chain(names)?;
        let client = nodes.node("client").netns();
        client.set_sysctl("net.ipv4.ip_local_port_range", "1024 65535")?;
        // An unanswered SYN fails after 15 s instead of two minutes.
        client.set_sysctl("net.ipv4.tcp_syn_retries", "3")?;
        let files = tempfile::tempdir()?;
        let mut target = None;
        let pepds = match variant {
            Variant::Direct => Vec::new(),
            Variant::Spoof | Variant::Defer | Variant::SpoofAlone => {
                vec![start_split(&nodes, variant, pepd_program, files.path())?]
            }
            Variant::Tunnel | Variant::TunnelAlone | Variant::Packets | Variant::PacketsFec => {
                let pair = start_pair(&nodes, variant, pepd_program, files.path())?;
                target = Some(pair.target);
                pair.pepds
            }
        };
        Ok(Self {
            variant,
            nodes,
            pepds,
            target,
            _files: files,
        })
    }

    /// Returns the ids of the one or two processes that carry flows.
    pub fn pepds(&self) -> Vec<u32> {
        let first = self.pepds.iter().map(Process::id);
        first.map(carrier).collect()
    }

    /// Returns the far end of the tunnel, if there is one.
    pub(super) fn target(&self) -> Option<Target> {
        self.target
    }

    /// Returns the namespace next to the far end of a tunnel.
    pub(super) fn beside_the_far_end(&self) -> &Netns {
        self.nodes.node("near").netns()
    }

    /// Returns the client's namespace.
    pub fn client(&self) -> &Netns {
        self.nodes.node("client").netns()
    }

    /// Returns the server's namespace.
    pub fn server(&self) -> &Netns {
        self.nodes.node("server").netns()
    }

    /// Opens a listener on a new port of the server, so that connections of earlier measurements in
    /// TIME_WAIT do not interfere.
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

/// The congestion control of every socket, including pepd's. One that paces, the default of some
/// systems, would measure its timers.
pub(super) const CONGESTION: &str = "cubic";

/// Connects from the namespace of the calling thread, with TCP_NODELAY.
pub(super) fn connect(server: SocketAddr) -> Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_congestion(CONGESTION.as_bytes())?;
    socket.connect(&server.into())?;
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STUCK))?;
    Ok(stream)
}

pub(super) fn listener(address: Ipv4Addr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_tcp_congestion(CONGESTION.as_bytes())?;
    socket.bind(&SocketAddr::from((address, 0)).into())?;
    socket.listen(4096)?;
    // Limits accept(), and is inherited by accepted sockets.
    socket.set_read_timeout(Some(STUCK))?;
    Ok(socket)
}

fn start_split(
    nodes: &Topology,
    variant: Variant,
    program: &Path,
    files: &Path,
) -> Result<Process> {
    let syn = if variant == Variant::Defer {
        "defer"
    } else {
        "spoof"
    };
    // All connections come from one host.
    let config = format!(
        "[intercept]\nlan = [\"client\"]\n[limits]\nheld_rate = 1000000\nheld_rate_per_source = 1000000\n\
         {}[[site]]\nname = \"bench\"\nsyn = \"{syn}\"\ncongestion = [\"{CONGESTION}\"]\n",
        variant.survive()
    );
    start_pepd(
        nodes.node("middle").netns(),
        "middle",
        &config,
        program,
        files,
        READY,
    )
}

/// The listening port of a tunnel's far end.
pub(super) const PORT: u16 = 5001;
/// Log messages when pepd takes flows, and when it takes them into a tunnel.
pub(super) const READY: &str = "pepd is ready";
pub(super) const PEER: &str = "peer up: session established";

/// The two ends of a tunnel.
struct Pair {
    pepds: Vec<Process>,
    target: Target,
}

/// Starts both ends, the far end first, because the near one calls it.
fn start_pair(nodes: &Topology, variant: Variant, program: &Path, files: &Path) -> Result<Pair> {
    let near_key = keygen(program, &files.join("near.key"))?;
    let far_key = keygen(program, &files.join("far.key"))?;
    let own = |lan: &str, link: &str, name: &str| {
        format!(
            "[intercept]\nlan = [\"{lan}\"]\n{}\
             [link]\ninterface = \"{link}\"\nrate = \"10Gbit/s\"\nrtt = \"1ms\"\n\
             [identity]\nkey_file = \"{}\"\n",
            variant.survive(),
            files.join(format!("{name}.key")).display(),
        )
    };
    let far = format!(
        "{}listen = \"0.0.0.0:{PORT}\"\n[peer.near]\nto = [\"0.0.0.0/0\", \"::/0\"]\npublic_key = \"{near_key}\"\n{}",
        own("server", "near", "far"),
        match variant.carries_packets() {
            true => packet_site("near", ""),
            false => String::new(),
        },
    );
    let hub = nodes.node("far").interface("near").ipv4.addr();
    let custody = match variant {
        Variant::TunnelAlone => "never",
        _ => "outage",
    };
    let site = match variant {
        Variant::Packets => packet_site("far", ""),
        Variant::PacketsFec => packet_site("far", "boost = { fec = true }\n"),
        _ => format!(
            "[[site]]\nname = \"bench\"\nmode = \"tunnel\"\npeer = \"far\"\n\
             congestion = [\"{CONGESTION}\"]\ncustody = \"{custody}\"\n"
        ),
    };
    let near = format!(
        "{}[peer.far]\npublic_key = \"{far_key}\"\nendpoint = \"{hub}:{PORT}\"\n{site}",
        own("client", "far", "near"),
    );
    if variant == Variant::PacketsFec {
        lose_one_in_a_hundred(nodes.node("far").netns())?;
    }
    let start = |name: &str, config: &str, until| {
        start_pepd(
            nodes.node(name).netns(),
            name,
            config,
            program,
            files,
            until,
        )
    };
    let key = base64::prelude::BASE64_STANDARD.decode(&far_key)?;
    let target = Target {
        address: SocketAddr::from((hub, PORT)),
        key: key.try_into().map_err(|_| "a key has 32 bytes")?,
    };
    let pepds = vec![start("far", &far, READY)?, start("near", &near, PEER)?];
    Ok(Pair { pepds, target })
}

/// Returns a site for all datagrams of hosts.
fn packet_site(peer: &str, more: &str) -> String {
    format!(
        "[[site]]\nname = \"bench\"\nmode = \"packet\"\npeer = \"{peer}\"\n\
         match = {{ protocol = \"udp\" }}\n{more}"
    )
}

/// Drops 1 % of the packets arriving at the far end.
fn lose_one_in_a_hundred(far: &Netns) -> Result<()> {
    let rules = format!(
        "add table inet loss; add chain inet loss input {{ type filter hook prerouting priority -400; }}; \
         add rule inet loss input udp dport {PORT} numgen random mod 100 == 0 drop"
    );
    let output = far.command("nft").arg(rules).output()?;
    if !output.status.success() {
        return Err(format!("nft: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(())
}

/// Creates a private key and returns the public one.
pub(super) fn keygen(program: &Path, file: &Path) -> Result<String> {
    let made = Command::new(program)
        .arg("keygen")
        .arg("--out")
        .arg(file)
        .output()?;
    if !made.status.success() {
        return Err(format!("pepd keygen: {}", String::from_utf8_lossy(&made.stderr)).into());
    }
    Ok(String::from_utf8(made.stdout)?.trim().to_owned())
}

/// Starts a pepd of this name and waits until its log contains `until`.
pub(super) fn start_pepd(
    netns: &Netns,
    name: &str,
    config: &str,
    program: &Path,
    files: &Path,
    until: &str,
) -> Result<Process> {
    let file = files.join(format!("{name}.toml"));
    fs::write(&file, config)?;
    let log = files.join(format!("{name}.log"));
    let mut command = netns.command(program);
    command.arg("run").arg("--config").arg(&file);
    // A file, not a pipe: reading a pipe would cost CPU time.
    command.stderr(File::create(&log)?);
    let mut pepd = Process::spawn(&mut command)?;
    wait_until_logged(&mut pepd, &log, until)?;
    Ok(pepd)
}

fn wait_until_logged(pepd: &mut Process, log: &Path, until: &str) -> Result<()> {
    let deadline = Instant::now() + START_MAX;
    loop {
        let text = fs::read_to_string(log)?;
        if text.contains(until) {
            return Ok(());
        }
        let ended = pepd.wait(Duration::ZERO)?;
        if ended.is_some() || Instant::now() > deadline {
            return Err(format!("pepd did not become ready ({ended:?}):\n{text}").into());
        }
        thread::sleep(Duration::from_millis(10));
    }
}
