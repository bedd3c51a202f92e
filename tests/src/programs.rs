//! Real servers and clients, run on the machines of a bed.

use std::{fs, net::SocketAddr, path::Path, process::Stdio, time::Duration};

use winkemu::netns::Process;

use crate::{host::Host, wait::wait_until};

/// Programs the tests need, and the Debian packages that have them.
const PACKAGES: [(&str, &str); 14] = [
    ("chromium", "chromium"),
    ("curl", "curl"),
    ("git", "git"),
    ("ip", "iproute2"),
    ("iperf3", "iperf3"),
    ("nft", "nftables"),
    ("nginx", "nginx-light"),
    ("prlimit", "util-linux"),
    ("redis-cli", "redis-tools"),
    ("redis-server", "redis-server"),
    ("scp", "openssh-client"),
    ("ss", "iproute2"),
    ("sshd", "openssh-server"),
    ("vsftpd", "vsftpd"),
];

/// The path of a program.
///
/// # Panics
/// When it is not installed, naming the package to install.
pub fn program(name: &str) -> String {
    const DIRECTORIES: [&str; 5] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let mut paths = DIRECTORIES.iter().map(|dir| format!("{dir}/{name}"));
    paths
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| {
            let package = PACKAGES.iter().find(|(program, _)| *program == name);
            let package = package.map_or(name, |(_, package)| package);
            panic!("{name} is not installed: run `apt-get install {package}`")
        })
}

/// A real server, killed with all its children when dropped.
#[derive(Debug)]
pub struct Daemon {
    process: Process,
}

impl Daemon {
    /// Starts a server that stays in the foreground, and waits until it listens on a port. Its
    /// output goes to the file `log`.
    ///
    /// # Panics
    /// When it is not installed, ends, or does not listen, with its output.
    pub fn start(host: &Host, name: &str, port: u16, log: &Path, arguments: &[&str]) -> Self {
        let file = fs::File::create(log).expect("a temporary file can be made");
        let errors = file.try_clone().expect("a descriptor is left");
        let mut command = host.command(&program(name));
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let process = Process::spawn(&mut command).expect("an installed program can be started");
        let mut daemon = Self { process };
        wait_until(&format!("{name} to listen on port {port}"), || {
            let ended = daemon.process.wait(Duration::ZERO);
            let ended = ended.expect("a child can be waited for");
            let output = || fs::read_to_string(log).unwrap_or_default();
            assert!(ended.is_none(), "{name}: {ended:?}: {}", output());
            is_listening(host, port)
        });
        daemon
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Asked of the kernel, since some servers take a probe for their one client.
fn is_listening(host: &Host, port: u16) -> bool {
    let filter = format!("sport = :{port}");
    !host.run(&program("ss"), &["-Hltn", &filter]).is_empty()
}

/// An address as it stands in a URL: with brackets where it is IPv6.
pub fn url_host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}
