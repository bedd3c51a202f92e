//! pepd on a node in the middle.

use std::{
    env,
    path::{Path, PathBuf},
    process::Stdio,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use serde::Serialize;
use serde_json::{Map, Value};

use super::{Lines, ProgramError, READY_TIMEOUT, error::write_file};
use crate::{lab::Node, netns::Process};

/// Log message of pepd when it intercepts traffic.
const READY: &str = "pepd is ready";
/// Log message of pepd, with the peer's name, when a session has started.
const PEER_UP: &str = "peer up: session established";
/// Field of the line that answers `SIGUSR1`.
const COUNTER: &str = "flows_accepted";

/// Time limit for a session to start: a link with short outages lets few handshakes through.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// Time limit for flows to end after the programs: several round trips over a satellite.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(3);

/// Running pepd.
#[derive(Debug)]
pub struct Pepd {
    process: Process,
    log: Lines,
}

/// Report on a pepd.
#[derive(Debug, Clone, Serialize)]
pub struct PepdReport {
    /// Counters before the end.
    pub counters: Map<String, Value>,
    /// Exit code; absent if a signal killed it.
    pub exit_code: Option<i32>,
    /// Warnings and errors from its log.
    pub complaints: Vec<String>,
}

impl Pepd {
    /// Starts pepd on a node with this configuration, in an existing directory of its own, and
    /// waits until it intercepts.
    ///
    /// # Errors
    /// [`ProgramError::Start`] without a binary, the end of its output if it ends,
    /// [`ProgramError::Timeout`] if it does not become ready.
    pub fn start(node: &Node, config: &str, directory: &Path) -> Result<Self, ProgramError> {
        let config = write_file(directory.join("pepd.toml"), config)?;
        let mut command = node.netns().command(pepd_binary()?);
        command
            .args(["run", "--log-format", "json", "--config"])
            .arg(config);
        // Directory of its admin socket.
        command.env("RUNTIME_DIRECTORY", directory);
        command.env_remove("RUST_LOG").stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let process = Process::spawn(&mut command);
        let mut process = process.map_err(|err| ProgramError::start("pepd", "pepd", err))?;
        let log = Lines::collect(process.pipes().stderr.take().expect("piped above"));
        let mut pepd = Self { process, log };
        pepd.wait_ready()?;
        Ok(pepd)
    }

    fn wait_ready(&mut self) -> Result<(), ProgramError> {
        let ready = self
            .log
            .wait_for(0, READY_TIMEOUT, |line| line.contains(READY));
        if ready.is_some() {
            return Ok(());
        }
        let (program, log) = ("pepd".to_owned(), self.log.tail(10));
        // A closed log of a running process is as unexpected as a silent one.
        match self.process.wait(Duration::from_secs(1)) {
            Ok(Some(status)) => Err(ProgramError::Ended {
                program,
                status,
                log,
            }),
            _ => Err(ProgramError::Timeout {
                program,
                what: "become ready",
                after: READY_TIMEOUT,
            }),
        }
    }

    /// Waits until pepd has a session with a peer.
    ///
    /// # Errors
    /// [`ProgramError::Timeout`].
    pub fn wait_for_peer(&self, name: &str) -> Result<(), ProgramError> {
        let name = format!("\"{name}\"");
        let is_up = |line: &str| line.contains(PEER_UP) && line.contains(&name);
        let found = self.log.wait_for(0, SESSION_TIMEOUT, is_up);
        found.map(drop).ok_or_else(|| ProgramError::Timeout {
            program: "pepd".to_owned(),
            what: "establish a session with its peer",
            after: SESSION_TIMEOUT,
        })
    }

    /// Reads its current counters, by name.
    ///
    /// # Errors
    /// [`ProgramError::Timeout`] if it does not answer.
    pub fn counters(&self) -> Result<Map<String, Value>, ProgramError> {
        let before = self.log.count();
        self.process.signal(Signal::SIGUSR1);
        let line = self
            .log
            .wait_for(before, READY_TIMEOUT, |line| line.contains(COUNTER));
        let line = line.ok_or_else(|| ProgramError::Timeout {
            program: "pepd".to_owned(),
            what: "log its counters",
            after: READY_TIMEOUT,
        })?;
        let mut fields = parse(&line)?;
        fields.retain(|_, value| value.is_number());
        Ok(fields)
    }

    /// Reads its counters once the last flow has ended, or after [`SETTLE_TIMEOUT`].
    fn settled_counters(&self) -> Result<Map<String, Value>, ProgramError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let counters = self.counters()?;
            let open = counters.get("flows_open").and_then(Value::as_u64);
            if open.unwrap_or(0) == 0 || Instant::now() > deadline {
                return Ok(counters);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for its flows to end, reads its counters, and stops it; kills it after `grace`.
    ///
    /// # Errors
    /// Those of [`counters`](Self::counters).
    pub fn stop(mut self, grace: Duration) -> Result<PepdReport, ProgramError> {
        let counters = self.settled_counters()?;
        let status = self.process.stop(grace);
        let status = status.map_err(|err| ProgramError::start("pepd", "pepd", err))?;
        self.log.wait_end(READY_TIMEOUT);
        let complaint = |line: &String| line.contains("\"WARN\"") || line.contains("\"ERROR\"");
        let complaints = self.log.all().into_iter().filter(complaint).collect();
        Ok(PepdReport {
            counters,
            exit_code: status.code(),
            complaints,
        })
    }
}

/// Binary to start: `$PEPD_BIN`, else `pepd` beside this program or in the directory above (where
/// tests find it), else in the `PATH`.
///
/// # Errors
/// [`ProgramError::Start`].
pub fn pepd_binary() -> Result<PathBuf, ProgramError> {
    if let Some(path) = env::var_os("PEPD_BIN") {
        return Ok(path.into());
    }
    let own = env::current_exe().unwrap_or_default();
    let beside = own.ancestors().skip(1).take(2).map(Path::to_owned);
    let on_path: Vec<_> = env::var_os("PATH")
        .iter()
        .flat_map(env::split_paths)
        .collect();
    let found = beside
        .chain(on_path)
        .map(|directory| directory.join("pepd"));
    found
        .into_iter()
        .find(|path| path.is_file())
        .ok_or_else(|| ProgramError::Start {
            program: "pepd".to_owned(),
            source: std::io::Error::other(
                "not found beside this program or in the PATH: build it (`cargo build --release -p \
             pepd`), or set PEPD_BIN to its path",
            ),
        })
}

fn parse(line: &str) -> Result<Map<String, Value>, ProgramError> {
    serde_json::from_str(line).map_err(|err| ProgramError::output("pepd", err.to_string()))
}
