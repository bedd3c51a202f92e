//! Boats behind links of a stated rate, and the hub where their tunnels end.

use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::Ordering::Relaxed,
    thread,
    time::{Duration, Instant},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use nix::unistd::Pid;
use serde::Serialize;
use tempfile::TempDir;
use winkemu::{
    lab::{LinkEdge, Topology, TopologyBuilder},
    link::LinkOptions,
    netns::Process,
};

use super::{
    Result,
    bed::{self, CONGESTION, PEER, PORT, READY, keygen, start_pepd},
    boats::{Boats, key_of},
    bulk::{DRAIN, FILL, PIECE, Run},
    meter,
    strangers::Target,
};
use crate::pep::carrier;

/// Bytes of hosts in a full packet: 1,500 without the headers of IPv4 and TCP with timestamps.
const PACKET: f64 = 1448.0;
/// Time in which system calls are counted, after that of everything else: counting costs CPU time.
const CALLS_COUNTED_FOR: Duration = Duration::from_secs(1);

/// The treatment of the boats' uploads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Carried {
    /// The kernel forwards the packets.
    Direct,
    /// A pepd on each boat splits the flows; the hub only forwards packets.
    Split,
    /// Tunnels between a pepd on each boat and that of the hub.
    Tunnel,
    /// Tunnels of the hub's pepd with boats simulated by a thread of this process, without links.
    Simulated,
}

impl Carried {
    /// Returns the name in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Split => "split",
            Self::Tunnel => "tunnel",
            Self::Simulated => "tunnel, simulated boats",
        }
    }
}

/// One upload for each boat, all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fleet {
    /// The treatment of the uploads.
    pub carried: Carried,
    /// The rate of each boat's link in Mbit/s.
    pub rate: u32,
    /// The round trip of each link.
    pub rtt: Duration,
    /// The number of boats.
    pub boats: usize,
    /// The number of threads that share the hub's tunnels.
    pub threads: usize,
}

/// The resources that one side took, and what it carried with them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Cost {
    /// CPU seconds for each 1e9 bytes that hosts received.
    pub cpu_s_per_gb: f64,
    /// Full packets of hosts' bytes for each time that a thread waited.
    pub packets_a_wakeup: f64,
    /// System calls for each full packet of hosts' bytes; `None` if `perf` cannot count them.
    pub calls_a_packet: Option<f64>,
}

/// The result of one run of a fleet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Uploaded {
    /// The goodput of all boats together at the server, in Mbit/s.
    pub mbit_per_s: f64,
    /// The cost of all boats' pepds, or of the thread that simulates boats; `None` without any.
    pub boats: Option<Cost>,
    /// The cost of the hub's pepd; `None` without one.
    pub hub: Option<Cost>,
}

/// The resources that an idle hub takes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Idle {
    /// CPU time in percent of one CPU.
    pub cpu_percent: f64,
    /// Resident memory in MB, and the part of it that other processes do not share.
    pub resident_mb: [f64; 2],
}

/// Namespaces of the boats, their clients, the hub and the server; dropping it ends all.
#[derive(Debug)]
struct Sea {
    nodes: Topology,
    boats: Vec<Process>,
    hub: Option<Process>,
    /// The hub's end of the tunnels, if its boats are simulated.
    target: Option<Target>,
    _files: TempDir,
}

impl Fleet {
    /// Uploads for `warm_up` and then `time`, which is measured.
    ///
    /// # Errors
    /// Without root, when a pepd is not ready in time, or when a flow ends early.
    pub fn upload(&self, pepd: &Path, warm_up: Duration, time: Duration) -> Result<Uploaded> {
        let sea = Sea::new(self, pepd)?;
        let server = sea.nodes.node("server");
        let listener = server.netns().enter(|| bed::listener(server.ipv4()))??;
        let listener = TcpListener::from(listener);
        let address = listener.local_addr()?;
        let (mut sources, mut simulated) = (Vec::new(), None);
        match sea.target {
            Some(target) => simulated = Some(sea.simulate(self, target, address)?),
            None => sources = sea.connect(self.boats, address)?,
        }
        let sinks = (0..self.boats).map(|_| Ok(listener.accept()?.0));
        let sinks = sinks.collect::<Result<_>>()?;
        let run = Run::default();
        let mut threads = vec![run.start(DRAIN, PIECE, sinks)?];
        if !sources.is_empty() {
            threads.push(run.start(FILL, PIECE, sources)?);
        }
        thread::sleep(warm_up);
        let measured = sea.measure(time, &|| run.received.load(Relaxed), simulated.as_ref());
        run.over.store(true, Relaxed);
        for thread in threads {
            thread.join().expect("a traffic thread reports errors")?;
        }
        simulated.map_or(Ok(()), Boats::end)?;
        measured
    }

    /// Leaves tunnels without traffic for `warm_up` and then for `time`, in which the hub is
    /// measured.
    ///
    /// # Errors
    /// Without root, or when a pepd is not ready in time.
    pub fn rest(&self, pepd: &Path, warm_up: Duration, time: Duration) -> Result<Idle> {
        let sea = Sea::new(self, pepd)?;
        let hub = sea.hub.as_ref().ok_or("only tunnels have a hub")?;
        let hub = carrier(hub.id());
        thread::sleep(warm_up);
        let (before, began) = (meter::cpu_time(hub)?, Instant::now());
        thread::sleep(time);
        let (used, took) = (meter::cpu_time(hub)? - before, began.elapsed());
        let resident = meter::resident(hub)?;
        Ok(Idle {
            cpu_percent: used.as_secs_f64() / took.as_secs_f64() * 100.0,
            resident_mb: [resident.total, resident.anonymous].map(|bytes| bytes as f64 / 1e6),
        })
    }

    fn link(&self) -> Result<LinkEdge> {
        let Self { rate, rtt, .. } = self;
        let delay = *rtt / 2;
        let options = format!(
            "rate={rate}Mbit/s,delay={}us,queue=100%bdp",
            delay.as_micros()
        );
        let options: LinkOptions = options.parse()?;
        Ok(LinkEdge::new("link", options.resolve_without_files()?))
    }
}

/// The node of all simulated boats.
const SIMULATED: &str = "boats";

fn client(boat: usize) -> String {
    format!("client{boat}")
}

fn boat(boat: usize) -> String {
    format!("boat{boat}")
}

impl Sea {
    fn new(fleet: &Fleet, pepd: &Path) -> Result<Self> {
        let add = |nodes: TopologyBuilder, index| -> Result<TopologyBuilder> {
            let boat = boat(index);
            Ok(nodes
                .veth(&client(index), &boat)
                .link(&boat, "hub", fleet.link()?))
        };
        let nodes = match fleet.carried {
            Carried::Simulated => Topology::builder().veth(SIMULATED, "hub"),
            _ => (0..fleet.boats).try_fold(Topology::builder(), add)?,
        };
        let mut sea = Self {
            nodes: nodes.veth("hub", "server").build()?,
            boats: Vec::new(),
            hub: None,
            target: None,
            _files: tempfile::tempdir()?,
        };
        match fleet.carried {
            Carried::Direct => {}
            Carried::Split => sea.start_split(fleet, pepd)?,
            Carried::Tunnel => sea.start_tunnels(fleet, pepd)?,
            Carried::Simulated => sea.start_hub_of_simulated(fleet, pepd)?,
        }
        Ok(sea)
    }

    fn start(&self, name: &str, config: &str, pepd: &Path, until: &str) -> Result<Process> {
        let netns = self.nodes.node(name).netns();
        start_pepd(netns, name, config, pepd, self._files.path(), until)
    }

    fn start_split(&mut self, fleet: &Fleet, pepd: &Path) -> Result<()> {
        for index in 0..fleet.boats {
            let config = format!(
                "{}[[site]]\nname = \"all\"\ncongestion = [\"{CONGESTION}\"]\n",
                ends(&client(index), "hub", fleet)
            );
            let boat = self.start(&boat(index), &config, pepd, READY)?;
            self.boats.push(boat);
        }
        Ok(())
    }

    /// Creates a private key. Returns its file and the public key.
    fn key(&self, name: &str, pepd: &Path) -> Result<(PathBuf, String)> {
        let file = self._files.path().join(format!("{name}.key"));
        let public = keygen(pepd, &file)?;
        Ok((file, public))
    }

    /// Starts the hub's pepd for boats with these public keys.
    fn start_hub(
        &self,
        fleet: &Fleet,
        pepd: &Path,
        key: &Path,
        boats: &[String],
    ) -> Result<Process> {
        let mut hub = format!(
            "[intercept]\nlan = [\"server\"]\n\
             [identity]\nkey_file = \"{}\"\nlisten = \"0.0.0.0:{PORT}\"\n",
            key.display()
        );
        // Older pepds do not know the key.
        if fleet.threads > 1 {
            hub += &format!("[limits]\ntunnel_threads = {}\n", fleet.threads);
        }
        for (index, public) in boats.iter().enumerate() {
            hub += &format!(
                "[peer.{}]\nto = [\"0.0.0.0/0\"]\npublic_key = \"{public}\"\nrate = \"{}Mbit/s\"\nrtt = \"{}ms\"\n",
                boat(index),
                fleet.rate,
                fleet.rtt.as_millis()
            );
        }
        self.start("hub", &hub, pepd, READY)
    }

    fn start_tunnels(&mut self, fleet: &Fleet, pepd: &Path) -> Result<()> {
        let (hub_file, hub_key) = self.key("hub", pepd)?;
        let keys = (0..fleet.boats).map(|index| self.key(&boat(index), pepd));
        let (files, publics): (Vec<_>, Vec<_>) =
            keys.collect::<Result<Vec<_>>>()?.into_iter().unzip();
        self.hub = Some(self.start_hub(fleet, pepd, &hub_file, &publics)?);
        for (index, file) in files.iter().enumerate() {
            let name = boat(index);
            let at = self.nodes.node("hub").interface(&name).ipv4.addr();
            let config = format!(
                "{}[identity]\nkey_file = \"{}\"\n\
                 [peer.hub]\npublic_key = \"{hub_key}\"\nendpoint = \"{at}:{PORT}\"\n\
                 [[site]]\nname = \"all\"\nmode = \"tunnel\"\npeer = \"hub\"\n",
                ends(&client(index), "hub", fleet),
                file.display()
            );
            let boat = self.start(&name, &config, pepd, PEER)?;
            self.boats.push(boat);
        }
        Ok(())
    }

    fn start_hub_of_simulated(&mut self, fleet: &Fleet, pepd: &Path) -> Result<()> {
        let (file, public) = self.key("hub", pepd)?;
        let key = BASE64_STANDARD.decode(public)?;
        let boats = (0..fleet.boats).map(|index| BASE64_STANDARD.encode(key_of(index)));
        let boats: Vec<_> = boats.collect();
        self.hub = Some(self.start_hub(fleet, pepd, &file, &boats)?);
        let at = self.nodes.node("hub").interface(SIMULATED).ipv4.addr();
        self.target = Some(Target {
            address: SocketAddr::from((at, PORT)),
            key: key.try_into().map_err(|_| "a key has 32 bytes")?,
        });
        Ok(())
    }

    /// Starts the simulated boats, which upload to the server.
    fn simulate(&self, fleet: &Fleet, hub: Target, server: SocketAddr) -> Result<Boats> {
        let netns = self.nodes.node(SIMULATED).netns();
        // The hub receives each datagram of a batch alone, as over links.
        let off = ["-K", "hub", "tx-udp-segmentation", "off"];
        let output = netns.command("ethtool").args(off).output();
        let output = output.map_err(|err| format!("ethtool: {err}"))?;
        if !output.status.success() {
            return Err(format!("ethtool: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        netns.enter(|| Boats::start(fleet, hub, server))?
    }

    /// Connects a client of each boat to the server.
    fn connect(&self, boats: usize, server: SocketAddr) -> Result<Vec<TcpStream>> {
        let connect = |index| {
            self.nodes
                .node(&client(index))
                .netns()
                .enter(|| bed::connect(server))?
        };
        (0..boats).map(connect).collect()
    }

    fn measure(
        &self,
        time: Duration,
        received: &dyn Fn() -> u64,
        simulated: Option<&Boats>,
    ) -> Result<Uploaded> {
        let ids = |pepds: &mut dyn Iterator<Item = &Process>| -> Vec<u32> {
            pepds.map(|pepd| carrier(pepd.id())).collect()
        };
        let boats = ids(&mut self.boats.iter());
        let hub = ids(&mut self.hub.iter());
        let (bytes, began) = (received(), Instant::now());
        let of_boats = || simulated.map_or_else(|| used(&boats), |simulated| Ok(simulated.used()));
        let before = [of_boats()?, used(&hub)?];
        thread::sleep(time);
        let after = [of_boats()?, used(&hub)?];
        let (bytes, took) = ((received() - bytes) as f64, began.elapsed());
        let count = |ids: &[u32]| count_calls(ids, received);
        let calls = [count(&boats), count(&hub)];
        let cost = |side: usize, exists: bool| {
            exists.then(|| {
                let cpu = after[side].cpu - before[side].cpu;
                let waits = after[side].waits.saturating_sub(before[side].waits);
                Cost {
                    cpu_s_per_gb: cpu.as_secs_f64() / (bytes / 1e9),
                    packets_a_wakeup: bytes / PACKET / waits.max(1) as f64,
                    calls_a_packet: calls[side],
                }
            })
        };
        if bytes == 0.0 {
            return Err("no bytes arrived".into());
        }
        Ok(Uploaded {
            mbit_per_s: bytes * 8.0 / took.as_secs_f64() / 1e6,
            boats: cost(0, !boats.is_empty() || simulated.is_some()),
            hub: cost(1, !hub.is_empty()),
        })
    }
}

/// Returns the configuration of the interfaces of a boat's pepd.
fn ends(lan: &str, link: &str, fleet: &Fleet) -> String {
    format!(
        "[intercept]\nlan = [\"{lan}\"]\n\
         [link]\ninterface = \"{link}\"\nrate = \"{}Mbit/s\"\nrtt = \"{}ms\"\n",
        fleet.rate,
        fleet.rtt.as_millis()
    )
}

/// Resources that processes have used since their start.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Used {
    pub cpu: Duration,
    /// Times that a thread waited.
    pub waits: u64,
}

fn used(ids: &[u32]) -> Result<Used> {
    ids.iter().try_fold(Used::default(), |sum, id| {
        Ok(Used {
            cpu: sum.cpu + meter::cpu_time(*id)?,
            waits: sum.waits + meter::waits(Pid::from_raw(i32::try_from(*id)?))?,
        })
    })
}

/// Returns the system calls of processes for each full packet of hosts' bytes.
fn count_calls(ids: &[u32], received: &dyn Fn() -> u64) -> Option<f64> {
    if ids.is_empty() {
        return None;
    }
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    let before = received();
    let counted = Command::new("perf")
        .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-p"])
        .arg(ids.join(","))
        .args(["--", "sleep", &CALLS_COUNTED_FOR.as_secs().to_string()])
        .output();
    let packets = (received() - before) as f64 / PACKET;
    let text = String::from_utf8(counted.ok()?.stderr).ok()?;
    let count = text.lines().find(|line| line.contains("sys_enter"))?;
    let count: f64 = count.split(',').next()?.parse().ok()?;
    Some(count / packets)
}
