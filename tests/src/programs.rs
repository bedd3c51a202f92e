//! Real servers and clients, run on the machines of a bed.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use winkemu::netns::Process;

use crate::{host::Host, wait::wait_until};

/// Returns the path of a program, and installs it if it is missing (`scripts/install-deps`).
///
/// # Panics
/// When it cannot be installed, with the reason.
pub fn program(name: &str) -> String {
    find(name).unwrap_or_else(|| {
        install(&[name]);
        find(name)
            .unwrap_or_else(|| panic!("there is no {name}, and no package is known to have it"))
    })
}

fn find(name: &str) -> Option<String> {
    const DIRECTORIES: [&str; 5] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/sbin", "/sbin"];
    let mut paths = DIRECTORIES.iter().map(|dir| format!("{dir}/{name}"));
    paths.find(|path| Path::new(path).exists())
}

/// Installs missing programs or packages of the list in `scripts/install-deps`.
///
/// # Panics
/// When that fails, with the reason.
pub fn install(names: &[&str]) {
    try_install(names).unwrap_or_else(|why| panic!("cannot install {names:?}: {why}"));
}

/// Installs like [`install`], for tests that can run without.
///
/// # Errors
/// The reason as text.
pub fn try_install(names: &[&str]) -> Result<(), String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/install-deps");
    let output = Command::new(script).args(names).output();
    let output = output.expect("scripts/install-deps can be run");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(why)
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

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Asks the kernel, since some servers would take a probe for their one client.
fn is_listening(host: &Host, port: u16) -> bool {
    let filter = format!("sport = :{port}");
    !host.run(&program("ss"), &["-Hltn", &filter]).is_empty()
}

/// Formats an address for a URL: IPv6 in brackets.
pub fn url_host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}
