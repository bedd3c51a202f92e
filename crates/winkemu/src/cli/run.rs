//! `winkemu run`.

use std::{
    ffi::OsString,
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixListener},
            process::ExitStatusExt as _,
        },
    },
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM},
    iterator::Signals,
};
use winkemu::{
    netns::{self, Netns, NetnsError, Process, ensure_privileges},
    presets::Preset,
    shell::{LinkHandle, Tun, TunError},
};

use super::{
    common::CommonArgs,
    exit::{Failure, INEXACT},
};

pub(super) const HELP: &str = "\
The command runs in a network namespace of its own. Its only connection is link0, with
this machine at the far end: 10.0.0.1 and fd77:1::1, or the next free subnet. $WINKEMU_HOST and
$WINKEMU_HOST6 hold the addresses. A service that listens on all addresses of this machine is
reachable across the link. With --server, the far end is a namespace that runs that command only.
This works without root if user namespaces are allowed and the user may open /dev/net/tun.

Examples:
  # a web server on this machine, seen through a geostationary satellite
  python3 -m http.server 8000 &
  winkemu run --preset geo -- curl -O http://10.0.0.1:8000/big.bin

  # a server in a namespace of its own, 5 % loss, without root
  winkemu run --preset leo --loss 5% --server 'iperf3 -s' -- sh -c 'iperf3 -c $WINKEMU_HOST'

  # a shell behind a link with short outages
  winkemu run --rate 1mbit --delay 50ms --wink p=0.2,i=500ms -- bash";

pub(super) fn long_help() -> String {
    format!("Presets:\n{}\n{HELP}", Preset::list())
}

/// Run a command whose network lies behind an emulated link.
#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// Run this shell command as a server at the far end, in a namespace of its own
    #[arg(long, value_name = "COMMAND")]
    server: Option<String>,
    #[command(flatten)]
    common: CommonArgs,
    /// Command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Reservation of a subnet among all `winkemu run` of this machine, for as long as it lives.
///
/// The first process to bind an abstract socket name owns the subnet. Such names belong to the
/// network namespace.
#[derive(Debug)]
struct Reserved {
    subnet: Subnet,
    _name: UnixListener,
}

impl Reserved {
    /// Reserves a subnet; `None` if another process holds it.
    fn new(subnet: Subnet) -> io::Result<Option<Self>> {
        let name = SocketAddr::from_abstract_name(format!("winkemu/run/{}", subnet.0))?;
        match UnixListener::bind_addr(&name) {
            Ok(name) => Ok(Some(Self {
                subnet,
                _name: name,
            })),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reserves the first subnet that overlaps with no address of this machine.
    fn free() -> io::Result<Self> {
        for subnet in (0..=255).map(Subnet) {
            // Bind the name before the addresses are checked: the previous owner gives up its
            // addresses first.
            if let Some(reserved) = Self::new(subnet)?
                && !subnet.is_taken()?
            {
                return Ok(reserved);
            }
        }
        let all = "no free subnet in 10.0.0.0/16 on this machine";
        Err(io::Error::other(all))
    }
}

/// Addresses of a link's ends: host 1 is the far end, host 2 the command's.
#[derive(Debug, Clone, Copy)]
struct Subnet(u8);

impl Subnet {
    fn addresses(self, host: u8) -> [IpNet; 2] {
        let v4 = Ipv4Addr::new(10, 0, self.0, host);
        let v6 = Ipv6Addr::new(0xfd77, u16::from(self.0) + 1, 0, 0, 0, 0, 0, host.into());
        [
            Ipv4Net::new_assert(v4, 30).into(),
            Ipv6Net::new_assert(v6, 64).into(),
        ]
    }

    /// Reports whether the subnet overlaps with an address of this machine.
    fn is_taken(self) -> io::Result<bool> {
        let ours = self.addresses(1);
        let shares = |other: IpNet| {
            let with = |ours: &IpNet| other.contains(ours) || ours.contains(&other);
            ours.iter().any(with)
        };
        let addresses = nix::ifaddrs::getifaddrs()?;
        Ok(addresses
            .filter_map(|address| network(&address))
            .any(shares))
    }
}

fn network(address: &nix::ifaddrs::InterfaceAddress) -> Option<IpNet> {
    let (ip, mask) = (address.address.as_ref()?, address.netmask.as_ref()?);
    let (ip, mask): (IpAddr, IpAddr) = match (ip.as_sockaddr_in(), ip.as_sockaddr_in6()) {
        (Some(v4), _) => (v4.ip().into(), mask.as_sockaddr_in()?.ip().into()),
        (_, Some(v6)) => (v6.ip().into(), mask.as_sockaddr_in6()?.ip().into()),
        _ => return None,
    };
    IpNet::with_netmask(ip, mask).ok().map(|net| net.trunc())
}

impl RunCommand {
    pub(super) fn execute(&self) -> Result<ExitCode, Failure> {
        // First of all: the kernel refuses to enter a user namespace once there is a second thread.
        if self.server.is_some() {
            ensure_privileges()?;
        }
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGHUP])?;
        let reserved = Reserved::free()?;
        let subnet = reserved.subnet;
        let far = if self.server.is_some() {
            Netns::new()?
        } else {
            Netns::current()?
        };
        let near = Netns::new().map_err(|error| explain_rights(&error))?;
        let b = self.far_end(&far, subnet)?;
        let a = Tun::create(&near, "link0", &subnet.addresses(2), self.common.mtu())?;
        for all in [IpNet::from(Ipv4Net::default()), Ipv6Net::default().into()] {
            near.add_route(all, None, Some("link0"))?;
        }
        let link = LinkHandle::spawn(self.common.spec(a, b)?)?;
        let server = self.start_server(&far, subnet)?;
        let status = self.run_command(&near, subnet, signals)?;
        drop(server);
        let report = link.stop();
        // The link's addresses are removed by now.
        drop(reserved);
        let counts = self.common.conclude(&report)?;
        Ok(exit_code(status, counts))
    }

    fn far_end(&self, far: &Netns, subnet: Subnet) -> Result<Tun, Failure> {
        let addresses = subnet.addresses(1);
        // The kernel numbers the interface, so that several commands can run.
        let name = if self.server.is_some() {
            "link0"
        } else {
            "wink%d"
        };
        let tun = Tun::create(far, name, &addresses, self.common.mtu());
        tun.map_err(|error| match error {
            TunError::Netns(error) => explain_rights(&error),
            other => other.into(),
        })
    }

    fn start_server(&self, far: &Netns, subnet: Subnet) -> Result<Option<Process>, Failure> {
        let Some(text) = &self.server else {
            return Ok(None);
        };
        let mut command = far.command("sh");
        command
            .args(["-c", text])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut server = Process::spawn(with_hosts(&mut command, subnet))?;
        wait_for_listener(far, &mut server)?;
        Ok(Some(server))
    }

    fn run_command(
        &self,
        near: &Netns,
        subnet: Subnet,
        signals: Signals,
    ) -> Result<ExitStatus, Failure> {
        let mut command = near.foreground_command(&self.command[0]);
        command.args(&self.command[1..]);
        let child = netns::spawn(with_hosts(&mut command, subnet));
        let mut child = child.map_err(|source| Failure::Command {
            command: self.command[0].to_string_lossy().into_owned(),
            source,
        })?;
        forward(signals, &child);
        Ok(child.wait()?)
    }
}

fn with_hosts(command: &mut Command, subnet: Subnet) -> &mut Command {
    let [v4, v6] = subnet
        .addresses(1)
        .map(|address| address.addr().to_string());
    command.env("WINKEMU_HOST", v4).env("WINKEMU_HOST6", v6)
}

/// Forwards signals to the command that only winkemu receives; the terminal signals both.
fn forward(mut signals: Signals, child: &Child) {
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("process ids fit i32"));
    thread::spawn(move || {
        for signal in signals
            .forever()
            .filter(|signal| [SIGTERM, SIGHUP].contains(signal))
        {
            let signal = Signal::try_from(signal).expect("a signal that was registered");
            // An error means that the command has ended, so winkemu ends as well.
            let _ = kill(pid, signal);
        }
    });
}

fn exit_code(status: ExitStatus, counts: bool) -> ExitCode {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    if code == 0 && !counts {
        return INEXACT.into();
    }
    u8::try_from(code).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn explain_rights(error: &NetnsError) -> Failure {
    let hint = "the far end is an interface of this machine, which needs CAP_NET_ADMIN and \
        CAP_SYS_ADMIN: run as root, or use --server COMMAND for a far end in a namespace of its own";
    Failure::Setup(format!("{error} ({hint})").into())
}

/// Maximum time for a server to start listening.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);

/// Waits until a socket listens (TCP) or is bound (UDP) in the namespace.
fn wait_for_listener(netns: &Netns, server: &mut Process) -> Result<(), Failure> {
    let begin = Instant::now();
    while !listens(netns)? {
        if let Some(status) = server.wait(Duration::from_millis(20))? {
            return Err(Failure::Running(format!(
                "server command ended early: {status}"
            )));
        }
        if begin.elapsed() > SERVER_PATIENCE {
            eprintln!("winkemu: server does not listen after 10 s; starting the command");
            break;
        }
    }
    Ok(())
}

fn listens(netns: &Netns) -> Result<bool, Failure> {
    let read = || {
        ["tcp", "tcp6", "udp", "udp6"].map(|table| {
            fs::read_to_string(format!("/proc/thread-self/net/{table}")).unwrap_or_default()
        })
    };
    let tables = netns.enter(read)?;
    // Fourth column: 0A is a listening TCP socket, 07 an unconnected UDP one.
    let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
    let mut states = tables
        .iter()
        .flat_map(|table| table.lines().skip(1).filter_map(state));
    Ok(states.any(|state| state == "0A" || state == "07"))
}
