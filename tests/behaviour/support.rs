//! Common setup of many tests.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use pepd_tests::{
    bed::{Bed, Place},
    host::Host,
    outcome::Ended,
    pep::Pep,
    pep_binary::pepd,
    serve::Server,
    wait::{PATIENCE, wait_for},
};
use serde_json::Value;

/// The port of most servers.
pub const PORT: u16 = 7000;

/// A server and, on paths with pepd, pepd; checked to be healthy at the end.
pub struct Running {
    _server: Server,
    /// The pepd on the path.
    pub pep: Option<Pep>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let (Some(pep), false) = (&mut self.pep, thread::panicking()) {
            pep.assert_healthy();
        }
    }
}

/// Starts a server and pepd, and connects.
pub fn connected(
    bed: &Bed,
    serve: impl Fn(TcpStream) + Send + Sync + 'static,
) -> (TcpStream, Running) {
    let listener = bed.server.listen(bed.at(Place::Server, PORT));
    let server = Server::start(listener, move |stream, _| serve(stream));
    let pep = bed.start();
    let stream = connect(bed);
    let running = Running {
        _server: server,
        pep,
    };
    (stream, running)
}

/// Connects to the server, with a read timeout of [`PATIENCE`].
pub fn connect(bed: &Bed) -> TcpStream {
    let stream = bed.client.connect(bed.at(Place::Server, PORT));
    let stream = stream.expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    stream
}

/// A flow that sends and receives until it is dropped.
pub struct Busy {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Busy {
    /// Starts on this connection, to an echo server.
    pub fn start(mut stream: TcpStream) -> Self {
        let end = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&end);
        let thread = thread::spawn(move || {
            // Varying amounts, for the graphs.
            for length in (1..=400).map(|step| step * 500).cycle() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                echo_once(&mut stream, &vec![7; length]);
            }
        });
        Self {
            end,
            thread: Some(thread),
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take()
            && !thread::panicking()
        {
            thread.join().expect("all was echoed");
        }
    }
}

/// Checks that the server echoes these bytes.
pub fn echo_once(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(message).expect("connected");
    let mut answer = vec![0; message.len()];
    stream.read_exact(&mut answer).expect("an echo");
    assert_eq!(answer, message);
}

/// Checks that a connect in `spoof` was answered at once and the connection then reset, possibly
/// before the test examined it.
pub fn assert_reset_after_connect(connect: std::io::Result<TcpStream>) {
    match connect {
        Ok(stream) => assert_eq!(Ended::from_stream(&stream), Ended::RESET),
        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ECONNRESET), "{error}"),
    }
}

/// A filter on the server that drops SYNs to a port, and counts them, until it is opened.
pub struct SynGate<'a> {
    server: &'a Host,
}

impl<'a> SynGate<'a> {
    /// Starts dropping SYNs to this port.
    pub fn closed(bed: &'a Bed, port: u16) -> Self {
        bed.server.nft(&format!(
            "table inet gate {{
                counter seen {{ }}
                chain input {{
                    type filter hook input priority 0;
                    tcp dport {port} tcp flags & (syn | ack) == syn counter name seen drop
                }}
            }}"
        ));
        Self {
            server: &bed.server,
        }
    }

    /// Returns the SYNs dropped so far.
    pub fn seen(&self) -> u64 {
        counter(self.server, "gate", "seen")
    }

    /// Lets SYNs pass from now on; the count stays.
    pub fn open(&self) {
        self.server.nft("flush chain inet gate input");
    }
}

/// Returns the packets of a named nft counter.
pub fn counter(host: &Host, table: &str, name: &str) -> u64 {
    let listed = host.run("nft", &["list", "counter", "inet", table, name]);
    let mut words = listed.split_whitespace();
    words.find(|word| *word == "packets");
    let packets = words.next().and_then(|number| number.parse().ok());
    packets.unwrap_or_else(|| panic!("not a counter: {listed}"))
}

/// Cuts a machine off: drops all packets to and from it silently.
pub fn cut_off(host: &Host) {
    host.nft(
        "table inet outage {
            chain input { type filter hook prerouting priority -400; drop; }
            chain output { type filter hook output priority -400; drop; }
        }",
    );
}

/// Ends [`cut_off`].
pub fn reconnect(host: &Host) {
    host.nft("delete table inet outage");
}

/// Returns the output of `ss` for the gateway's socket with this remote end.
pub fn socket_toward(bed: &Bed, remote: SocketAddr) -> String {
    wait_for("a socket of pepd", || {
        let filter = format!("dst [{}]:{}", remote.ip(), remote.port());
        let arguments = ["-Htino", "state", "established", filter.as_str()];
        let listed = bed.gateway.run("ss", &arguments).replace("\n\t", " ");
        listed.lines().next().map(str::to_owned)
    })
}

/// Checks that `ss -i` shows a word for the socket with this remote end.
pub fn assert_socket_has(bed: &Bed, remote: SocketAddr, word: &str) {
    let socket = socket_toward(bed, remote);
    let has = socket.split_whitespace().any(|found| found == word);
    assert!(has, "no `{word}` in {socket}");
}

/// Returns findings of `pepd check` on a subject, in this state, as text.
pub fn findings(bed: &Bed, pep: &Pep, what: &str, state: &str) -> String {
    let config = pep.path("pepd.toml");
    let words = [
        "check",
        "--json",
        "--config",
        config.to_str().expect("a path"),
    ];
    let output = bed.gateway.output(pepd().to_str().expect("a path"), &words);
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let of = findings
        .iter()
        .filter(|one| one["what"] == what && one["state"] == state);
    let texts = of.map(|one| format!("{}\n{}\n", one["seen"], one["do"]));
    texts.collect::<String>().replace("\\\"", "\"")
}
