//! Tunnels without descriptors, and with little memory in their cgroup.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::Duration,
};

use pepd_tests::{
    bed::Family,
    echo::EchoServer,
    host::Host,
    matrix::shared,
    pep::Pep,
    pep_binary::pepd,
    tunnel::{End, TunnelBed},
    wait::{wait_until, wait_within},
};
use serde_json::Value;

use crate::{
    custody::{HOLD, LINK, MIB, assert_done, sink, upload, wait_down},
    limits::wrapped,
    support::echo_once,
    survive::{crash, next_worker, wait_ready},
    tunnel::{PORT, Running, SITE, STATED, connect},
};

const ADMIN: &str = "[admin]\nsocket = \"admin.sock\"\n";

fn flows(bed: &TunnelBed, count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = connect(bed, Family::V4);
        echo_once(&mut stream, b"x");
        stream
    };
    (0..count).map(open).collect()
}

/// Connects and sends a byte. Returns whether the server answers it, or the flow is reset.
fn is_answered(mut stream: &TcpStream) -> bool {
    // A refusal may come before the byte is sent.
    let sent = stream.write_all(b"x");
    match sent.and_then(|()| stream.read(&mut [0])) {
        Ok(1) => true,
        Ok(_) => panic!("the end of a stream"),
        Err(err) if err.kind() == io::ErrorKind::ConnectionReset => false,
        Err(err) => panic!("neither answered nor reset: {err}"),
    }
}

/// The far end refuses what it cannot serve, and the flow is reset at once; the others continue.
#[test]
fn a_hub_without_descriptors_refuses_new_flows_and_keeps_the_others() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start(&bed, "", SITE);
        let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
        let mut open = flows(&bed, 5);
        // The answer means that its reserve of descriptors is open.
        running.hub.counters();
        let limit = running.hub.descriptors() as u64 + 2;
        running.hub.set_descriptor_limit(limit);
        let more: Vec<_> = (0..20).map(|_| connect(&bed, Family::V4)).collect();
        let answered = more.iter().filter(|stream| is_answered(stream)).count();
        assert!(answered < more.len(), "the limit was not met");
        assert!(running.hub.counter("descriptors_short") > 0);
        for stream in &mut open {
            echo_once(stream, &[7; 20_000]);
        }
        running.hub.set_descriptor_limit(20_000);
        drop(more);
        wait_until("new flows to be served", || {
            is_answered(&connect(&bed, Family::V4))
        });
        for stream in &mut open {
            echo_once(stream, b"after");
        }
        drop(open);
        running.stop_after_errors();
    });
}

/// The near end lets the kernel forward what it cannot serve.
#[test]
fn a_boat_without_descriptors_serves_or_passes_every_flow() {
    shared(|| {
        let bed = TunnelBed::new(LINK);
        let running = Running::start(&bed, "", SITE);
        let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
        let mut open = flows(&bed, 5);
        running.boat.counters();
        let limit = running.boat.descriptors() as u64 + 2;
        running.boat.set_descriptor_limit(limit);
        let waiting: Vec<_> = (0..20)
            .map(|_| {
                let mut stream = connect(&bed, Family::V4);
                stream.write_all(b"x").expect("connected");
                stream
            })
            .collect();
        for stream in &mut open {
            echo_once(stream, &[7; 20_000]);
        }
        assert!(running.boat.counter("descriptors_short") > 0);
        running.boat.set_descriptor_limit(20_000);
        for mut stream in waiting {
            let mut byte = [0];
            stream
                .read_exact(&mut byte)
                .expect("it is answered in the end");
        }
        let near = running.boat.counter("tunnel_flows_near");
        wait_until("new flows in the tunnel", || {
            flows(&bed, 1);
            running.boat.counter("tunnel_flows_near") > near
        });
        for stream in &mut open {
            echo_once(stream, b"after");
        }
        drop(open);
        running.stop_after_errors();
    });
}

/// A cgroup with limited memory, removed on drop.
struct Cgroup {
    directory: PathBuf,
    limit: &'static str,
}

impl Cgroup {
    /// Creates a cgroup of version 2 or 1; `None` where this machine permits neither.
    fn new(limit: u64) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "pepd-test-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let kinds = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        let cgroup = kinds.into_iter().find_map(|(root, file)| {
            let directory = PathBuf::from(root).join(&name);
            fs::create_dir(&directory).ok()?;
            let cgroup = Self {
                directory,
                limit: file,
            };
            // Elsewhere the directory is none of a cgroup.
            cgroup.set(limit).ok()?;
            Some(cgroup)
        });
        if cgroup.is_none() {
            eprintln!("skipped: no cgroup with limited memory can be made here");
        }
        cgroup
    }

    fn set(&self, limit: u64) -> io::Result<()> {
        let mut options = fs::File::options();
        let mut file = options.write(true).open(self.directory.join(self.limit))?;
        file.write_all(limit.to_string().as_bytes())
    }

    /// Wraps a command so that it runs within it.
    fn wrap(&self, host: &Host, command: &Command) -> Command {
        let processes = self.directory.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec \"$@\"", processes.display());
        wrapped(host, "sh", &["-c", &script, "sh"], command)
    }

    /// Starts pepd within it.
    fn start(&self, host: &Host, config: &str) -> Pep {
        Pep::start_by(host, config, |command| self.wrap(host, &command))
    }

    /// Runs `pepd check` of pepd's configuration within it; returns its exit code and messages.
    fn check(&self, host: &Host, pep: &Pep) -> (Option<i32>, String) {
        let mut command = Command::new(pepd());
        command.args(["check", "--config-only", "--config"]);
        command.arg(pep.path("pepd.toml"));
        let output = self.wrap(host, &command).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), text)
    }

    /// Returns the processes that the kernel has killed.
    fn kills(&self) -> u64 {
        let files = ["memory.events", "memory.oom_control"];
        let text = files.map(|name| fs::read_to_string(self.directory.join(name)));
        let text = text.into_iter().find_map(Result::ok).unwrap_or_default();
        let mut lines = text.lines();
        let kills = lines.find_map(|line| line.strip_prefix("oom_kill "));
        kills.and_then(|kills| kills.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Processes leave it a little after their end.
        let removed = || fs::remove_dir(&self.directory).ok();
        if wait_within(Duration::from_secs(5), removed).is_none() {
            eprintln!("cannot remove {}", self.directory.display());
        }
    }
}

/// Without limits in its configuration, custody takes all that it may of the memory of pepd's
/// cgroup, and hosts wait with the rest. The kernel kills nothing. A killed worker is replaced
/// within the same memory, and every acknowledged byte arrives once the link is up.
#[test]
fn with_all_memory_of_its_cgroup_taken_a_boat_loses_no_acknowledged_byte() {
    const MEMORY: u64 = 96 * MIB;
    const FAST: &str = "rate = \"200Mbit/s\"\nrtt = \"20ms\"";
    const FLOWS: u64 = 20;
    const LEN: u64 = 5 * MIB;
    shared(|| {
        let Some(cgroup) = Cgroup::new(MEMORY) else {
            return;
        };
        let bed = TunnelBed::new(LINK);
        let hub = bed.start(End::Hub, &bed.config(End::Hub, FAST, "", ""));
        let config = bed.config(End::Boat, FAST, HOLD, SITE);
        let boat = cgroup.start(&bed.host("boat"), &config);
        let running = Running { boat, hub };
        running.wait_for_session();
        let _sink = sink(&bed, LEN);
        let mut flows: Vec<_> = (0..FLOWS).map(|_| connect(&bed, Family::V4)).collect();
        bed.cut_link();
        wait_down(&running);
        thread::scope(|scope| {
            let uploads = flows.iter_mut().map(|stream| {
                scope.spawn(|| {
                    upload(stream, LEN);
                    assert_done(stream);
                })
            });
            let uploads: Vec<_> = uploads.collect();
            let mut held = 0;
            wait_until("custody to take no more", || {
                thread::sleep(Duration::from_millis(1100));
                let now = running.boat.counter("custody_memory_bytes");
                std::mem::replace(&mut held, now) == now && now > 24 * MIB
            });
            println!("{} MiB in custody", held / MIB);
            crash(&running.boat);
            bed.restore_link();
            for upload in uploads {
                upload.join().expect("whole");
            }
        });
        assert_eq!(cgroup.kills(), 0);
        assert_eq!(running.boat.counter("flows_recovered"), FLOWS);
        assert_eq!(running.boat.counter("flows_lost_at_restart"), 0);
        drop(flows);
        running.stop_after_errors();
    });
}

/// Stated limits above the memory of the cgroup are lowered as the defaults are, and `pepd check`
/// warns, too. A reload sees no difference after the cgroup has got more memory. In a cgroup
/// without memory for flows pepd does not start.
#[test]
fn a_boat_fits_its_limits_to_the_memory_of_its_cgroup() {
    const LESS: &str = "[limits]\nflows = 64\nmemory = \"64MiB\"\n";
    const MORE: &str = "[limits]\nflows = 64\nmemory = \"150MiB\"\n";
    const WARNING: &str = "exceeds the memory for flows in the cgroup";
    shared(|| {
        let Some(cgroup) = Cgroup::new(200 * MIB) else {
            return;
        };
        let bed = TunnelBed::new(LINK);
        let host = bed.host("boat");
        let config = |limits| bed.config(End::Boat, STATED, "", &format!("{SITE}{ADMIN}{limits}"));
        let limits = |boat: &Pep| {
            let status: Value =
                serde_json::from_str(&boat.ask(&["status", "--json"])).expect("JSON");
            let keys = [
                "/limits/memory/most",
                "/custody/memory/most",
                "/limits/flows/most",
            ];
            keys.map(|key| {
                status
                    .pointer(key)
                    .and_then(Value::as_u64)
                    .expect("a number")
            })
        };
        // A peer without others has two thirds.
        let custody = |memory: u64| memory * MIB * 3 / 4 / 9 * 8;
        for (stated, memory, flows) in [(LESS, 64, 64), (MORE, 100, 64)] {
            let boat = cgroup.start(&host, &config(stated));
            assert_eq!(
                limits(&boat),
                [memory * MIB, custody(memory), flows],
                "{stated}"
            );
            assert_eq!(
                boat.log().text().contains(WARNING),
                stated == MORE,
                "{stated}"
            );
            boat.stop();
        }
        let hub = bed.start(End::Hub, &bed.config(End::Hub, STATED, "", ""));
        let boat = cgroup.start(&host, &config(""));
        let running = Running { boat, hub };
        running.wait_for_session();
        assert_eq!(limits(&running.boat), [100 * MIB, custody(100), 800]);
        assert!(running.boat.log().text().contains(WARNING));
        let (code, said) = cgroup.check(&host, &running.boat);
        assert!(code == Some(0) && said.contains(WARNING), "{said}");
        let _echo = EchoServer::start(bed.host("server").listen(bed.server_at(Family::V4, PORT)));
        let mut open = flows(&bed, 1);
        cgroup.set(3 << 30).expect("it grows");
        let (before, position) = (running.boat.id(), running.boat.log().position());
        running.boat.ask(&["reload"]);
        next_worker(&running.boat, before);
        wait_ready(&running.boat, position);
        // The memory of the flow has the size from before.
        assert_eq!(limits(&running.boat), [1 << 30, custody(1 << 10), 800]);
        running.boat.log().expect("has room for 800 flows");
        echo_once(&mut open[0], b"still carried");
        drop(open);
        running.stop_after_errors();
        cgroup.set(32 * MIB).expect("it shrinks");
        let mut boat = Pep::spawn(&host, &config(""), |command| cgroup.wrap(&host, &command));
        assert_eq!(boat.wait().code(), Some(3));
        let said = boat.log().text();
        assert!(said.contains("too small for flows"), "{said}");
    });
}
