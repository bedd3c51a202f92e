//! Transfers by iperf3, measured at its server.

use std::{process::Stdio, time::Duration};

use serde::Serialize;
use serde_json::Value;

use super::{Lines, ProgramError, READY_TIMEOUT, Transfer, command::last_lines, run_to_end};
use crate::{
    lab::{Node, topology::Family},
    netns::Process,
};

/// Run of iperf3.
#[derive(Debug, Clone, PartialEq)]
pub struct Iperf3 {
    /// Direction of the transfer.
    pub transfer: Transfer,
    /// Duration of sending, rounded up to seconds.
    pub duration: Duration,
    /// Initial part that does not count (`--omit`), rounded up to seconds.
    pub warmup: Duration,
    /// Number of parallel connections.
    pub flows: u32,
    /// Congestion control of the sending sockets; by default that of the node.
    pub congestion: Option<String>,
    /// Address family.
    pub family: Family,
    /// Time limit for the whole run.
    pub timeout: Duration,
}

/// Measurements of iperf3.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Iperf3Result {
    /// Goodput at the receiver after the warm-up, over all connections, in bit/s.
    pub goodput_bps: f64,
    /// Bytes received.
    pub bytes: u64,
    /// Complete report of iperf3.
    pub report: Value,
}

impl Iperf3 {
    /// Runs server and client.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], [`ProgramError::Timeout`] or [`ProgramError::Ended`].
    pub fn run(&self, client: &Node, server: &Node) -> Result<Iperf3Result, ProgramError> {
        let _server = serve(server)?;
        let mut command = client.netns().command("iperf3");
        command.args(["--client", &server.ip(self.family).to_string(), "--json"]);
        command.args([
            "--time",
            &seconds(self.duration),
            "--omit",
            &seconds(self.warmup),
        ]);
        command.args(["--parallel", &self.flows.to_string()]);
        if let Some(name) = &self.congestion {
            command.args(["--congestion", name]);
        }
        if self.transfer == Transfer::Download {
            command.arg("--reverse");
        }
        let finished = run_to_end(&mut command, "iperf3", self.timeout)?;
        let report: Value = serde_json::from_str(&finished.stdout)
            .map_err(|err| ProgramError::output("iperf3", err.to_string()))?;
        if let Some(err) = report["error"].as_str() {
            return Err(ProgramError::output("iperf3", err));
        }
        let received = &report["end"]["sum_received"];
        let (Some(bps), Some(bytes), true) = (
            received["bits_per_second"].as_f64(),
            received["bytes"].as_u64(),
            finished.status.success(),
        ) else {
            let (program, log) = ("iperf3".to_owned(), last_lines(&finished.stderr));
            return Err(ProgramError::Ended {
                program,
                status: finished.status,
                log,
            });
        };
        Ok(Iperf3Result {
            goodput_bps: bps,
            bytes,
            report,
        })
    }
}

/// Starts a server for one client and waits until it listens.
fn serve(node: &Node) -> Result<Process, ProgramError> {
    let mut command = node.netns().command("iperf3");
    command.args(["--server", "--one-off", "--forceflush"]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let process = Process::spawn(&mut command);
    let mut process = process.map_err(|err| ProgramError::start("iperf3", "iperf3", err))?;
    let lines = Lines::collect(process.pipes().stdout.take().expect("piped above"));
    let listens = lines.wait_for(0, READY_TIMEOUT, |line| line.contains("Server listening"));
    listens.ok_or(ProgramError::Timeout {
        program: "iperf3".to_owned(),
        what: "listen",
        after: READY_TIMEOUT,
    })?;
    Ok(process)
}

fn seconds(duration: Duration) -> String {
    duration.as_nanos().div_ceil(1_000_000_000).to_string()
}
