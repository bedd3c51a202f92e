//! One machine of a test bed.

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Output, Stdio},
    sync::Once,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use socket2::{Domain, Protocol, Socket, Type};
use winkemu::netns::{self, Netns};

use crate::{programs, wait::PATIENCE};

/// A machine in a namespace with loopback up, to which a bed adds interfaces.
#[derive(Debug, Clone)]
pub struct Host {
    netns: Netns,
}

impl Default for Host {
    fn default() -> Self {
        Self::new()
    }
}

impl Host {
    /// Creates a machine without interfaces.
    ///
    /// # Panics
    /// Without the right to create namespaces (run the tests as root).
    pub fn new() -> Self {
        raise_descriptor_limit();
        let netns = Netns::new().expect("network namespaces can be made (run the tests as root)");
        let host = Self { netns };
        // ICMP errors are part of the tests, so none may be rate limited.
        host.sysctl("net.ipv4.icmp_ratelimit", "0");
        host.sysctl("net.ipv6.icmp.ratelimit", "0");
        // Addresses are unique here: link-local ones need no second of waiting either.
        host.sysctl("net.ipv6.conf.default.accept_dad", "0");
        host
    }

    /// Returns a machine in an existing namespace.
    pub fn in_netns(netns: &Netns) -> Self {
        raise_descriptor_limit();
        let netns = netns.clone();
        Self { netns }
    }

    /// Returns the namespace.
    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Runs a closure in the namespace; its sockets stay there.
    ///
    /// # Panics
    /// As the closure does.
    pub fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        self.netns
            .enter(f)
            .expect("an own namespace can be entered")
    }

    /// Sets a sysctl of this machine.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn sysctl(&self, key: &str, value: &str) {
        let set = self.netns.set_sysctl(key, value);
        set.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Listens on an address of this machine, with the kernel's maximum backlog.
    ///
    /// # Panics
    /// When the address is in use.
    pub fn listen(&self, address: SocketAddr) -> TcpListener {
        let listen = || -> io::Result<TcpListener> {
            let socket = stream_socket(address)?;
            socket.set_reuse_address(true)?;
            socket.bind(&address.into())?;
            socket.listen(4096)?;
            Ok(socket.into())
        };
        self.enter(listen)
            .unwrap_or_else(|error| panic!("cannot listen on {address}: {error}"))
    }

    /// Connects with the defaults of [`Dial`].
    ///
    /// # Errors
    /// Those of the connect.
    pub fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.dial(&Dial::to(to))
    }

    /// Connects as the [`Dial`] specifies.
    ///
    /// # Errors
    /// Those of the connect.
    pub fn dial(&self, dial: &Dial) -> io::Result<TcpStream> {
        self.enter(|| dial.connect_here())
    }

    /// Returns a command in this namespace. Start it by [`winkemu::netns::Process::spawn`] or
    /// [`winkemu::netns::spawn`], so that it does not outlive the tests.
    ///
    /// # Panics
    /// When its package is missing and cannot be installed.
    pub fn command(&self, program: &str) -> Command {
        match program.contains('/') {
            true => self.netns.command(program),
            false => self.netns.command(programs::program(program)),
        }
    }

    /// Runs a program to its end.
    ///
    /// # Panics
    /// When it cannot be started.
    pub fn output(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = self.command(program);
        finish(command.args(arguments), "")
    }

    /// Runs a program that must succeed; returns its output.
    ///
    /// # Panics
    /// When it cannot be started or fails, with its standard error.
    pub fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.run_with_input(program, arguments, "")
    }

    /// Loads nft commands.
    ///
    /// # Panics
    /// When nft refuses them.
    pub fn nft(&self, script: &str) {
        self.run_with_input("nft", &["-f", "-"], script);
    }

    /// Returns the kernel's memory for bytes that connections of this host have received unread.
    ///
    /// # Panics
    /// When `ss` cannot list the connections.
    pub fn unread_bytes(&self) -> u64 {
        let listed = self.run("ss", &["-tnmH"]);
        let sizes = listed.split("skmem:(r").skip(1);
        let sizes = sizes.filter_map(|text| text.split(',').next()?.parse::<u64>().ok());
        sizes.sum()
    }

    /// Runs `ip` with these words, including `-6` where needed.
    ///
    /// # Panics
    /// When it fails.
    pub fn ip(&self, words: &str) -> String {
        let words: Vec<_> = words.split_whitespace().collect();
        self.run("ip", &words)
    }

    fn run_with_input(&self, program: &str, arguments: &[&str], input: &str) -> String {
        let mut command = self.command(program);
        let output = finish(command.args(arguments), input);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let mut report = String::new();
        if !output.status.success() {
            let errors = text(&output.stderr);
            let _ = write!(
                report,
                "{program} {arguments:?}: {}: {errors}",
                output.status
            );
        }
        assert!(report.is_empty(), "{report}");
        text(&output.stdout)
    }
}

/// Runs a command to its end with this input.
fn finish(command: &mut Command, input: &str) -> Output {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = netns::spawn(command)
        .unwrap_or_else(|error| panic!("cannot run {:?}: {error}", command.get_program()));
    let mut stdin = child.stdin.take().expect("a pipe was asked for");
    // A program need not read its input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("a child can be waited for")
}

/// Parameters of a connect.
#[derive(Debug, Clone, Copy)]
pub struct Dial {
    to: SocketAddr,
    from: Option<SocketAddr>,
    dscp: Option<u8>,
    receive_buffer: Option<usize>,
    limit: Duration,
}

impl Dial {
    /// Connects from any address and port, within [`PATIENCE`].
    pub fn to(to: SocketAddr) -> Self {
        Self {
            to,
            from: None,
            dscp: None,
            receive_buffer: None,
            limit: PATIENCE,
        }
    }

    /// Binds to this address and port (0: any), with `SO_REUSEADDR`.
    #[must_use]
    pub fn from(mut self, from: SocketAddr) -> Self {
        self.from = Some(from);
        self
    }

    /// Sets this DSCP, 0 to 63, in every packet.
    #[must_use]
    pub fn dscp(mut self, dscp: u8) -> Self {
        self.dscp = Some(dscp);
        self
    }

    /// Sets a receive buffer of about so many bytes.
    #[must_use]
    pub fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = Some(bytes);
        self
    }

    /// Limits the connect to this time; the error then has no number.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Connects from the namespace of the calling thread.
    ///
    /// # Errors
    /// Those of the connect.
    pub fn connect_here(&self) -> io::Result<TcpStream> {
        let socket = self.socket()?;
        socket.connect_timeout(&self.to.into(), self.limit)?;
        let stream: TcpStream = socket.into();
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Begins a connect from the namespace of the calling thread without waiting.
    ///
    /// # Errors
    /// An immediate failure.
    pub fn begin_here(&self) -> io::Result<Socket> {
        let socket = self.socket()?;
        socket.set_nonblocking(true)?;
        match socket.connect(&self.to.into()) {
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => Ok(socket),
            Err(error) => Err(error),
            Ok(()) => Ok(socket),
        }
    }

    fn socket(&self) -> io::Result<Socket> {
        let socket = stream_socket(self.to)?;
        if let Some(from) = self.from {
            socket.set_reuse_address(true)?;
            socket.bind(&from.into())?;
        }
        if let Some(bytes) = self.receive_buffer {
            socket.set_recv_buffer_size(bytes)?;
        }
        if let Some(dscp) = self.dscp {
            let class = u32::from(dscp) << 2;
            match self.to.ip() {
                IpAddr::V4(_) => socket.set_tos_v4(class)?,
                IpAddr::V6(_) => socket.set_tclass_v6(class)?,
            }
        }
        Ok(socket)
    }
}

fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Raises the limit: both ends of thousands of connections live in the test process.
fn raise_descriptor_limit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let limit = getrlimit(Resource::RLIMIT_NOFILE);
        let (_, hard) = limit.expect("every process has this limit");
        let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
        raised.expect("the soft limit may be raised to the hard one");
    });
}
