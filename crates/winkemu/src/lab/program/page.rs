//! Web page of many objects, fetched as browsers do: first one object, then the others over several
//! connections.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{Nginx, ProgramError, command::last_lines, curl::quiet_curl, run_to_end};
use crate::lab::{Node, topology::Family};

/// Page that curl fetches from nginx.
#[derive(Debug, Clone, PartialEq)]
pub struct Page {
    /// Total size of all objects.
    pub bytes: u64,
    /// Number of objects, all of one size; two or more.
    pub objects: u32,
    /// Parallel connections for all objects after the first; each is reused.
    pub connections: u32,
    /// Address family.
    pub family: Family,
    /// Time limit for the first object, and again for the others.
    pub timeout: Duration,
}

/// Measurements of the page.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageResult {
    /// Time from start to the first byte of the first object.
    pub first_byte_s: f64,
    /// Time from start to the last byte of the first object.
    pub first_object_s: f64,
    /// Time from start to the last byte of the last object.
    pub seconds: f64,
    /// Bytes over `seconds`, in bit/s.
    pub goodput_bps: f64,
    /// Connections opened.
    pub connections: u32,
}

/// Used part of curl's `%{json}`.
#[derive(Debug, Deserialize)]
struct Report {
    http_code: u16,
    num_connects: u32,
    size_download: u64,
    time_starttransfer: f64,
    time_total: f64,
}

impl Page {
    /// Fetches the page from the server to the client's node.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], [`ProgramError::Timeout`], or [`ProgramError::Output`] for
    /// an incomplete object.
    pub fn run(
        &self,
        client: &Node,
        server: &Node,
        nginx: &Nginx,
    ) -> Result<PageResult, ProgramError> {
        nginx.add_file("object", self.object_bytes())?;
        let host = match self.family {
            Family::Ipv4 => server.ipv4().to_string(),
            Family::Ipv6 => format!("[{}]", server.ipv6()),
        };
        let started = Instant::now();
        let first = self.fetch(client, &host, 0..1)?;
        let others = self.fetch(client, &host, 1..self.objects)?;
        let seconds = started.elapsed().as_secs_f64();
        let first = &first[0];
        Ok(PageResult {
            first_byte_s: first.time_starttransfer,
            first_object_s: first.time_total,
            seconds,
            goodput_bps: (self.object_bytes() * u64::from(self.objects)) as f64 * 8.0 / seconds,
            connections: 1 + others.iter().map(|other| other.num_connects).sum::<u32>(),
        })
    }

    fn object_bytes(&self) -> u64 {
        self.bytes / u64::from(self.objects)
    }

    fn fetch(
        &self,
        client: &Node,
        host: &str,
        objects: std::ops::Range<u32>,
    ) -> Result<Vec<Report>, ProgramError> {
        let mut command = client.netns().command("curl");
        quiet_curl(&mut command);
        let connections = self.connections.to_string();
        command.args([
            "--parallel",
            "--parallel-immediate",
            "--parallel-max",
            &connections,
        ]);
        command.args(["--no-progress-meter", "--write-out", "%{json}\n"]);
        for object in objects.clone() {
            // nginx serves the same file for all of them.
            command.args(["--output", "/dev/null"]);
            command.arg(format!("http://{host}/object?{object}"));
        }
        let finished = run_to_end(&mut command, "curl", self.timeout)?;
        if !finished.status.success() {
            return Err(ProgramError::Ended {
                program: "curl".to_owned(),
                status: finished.status,
                log: last_lines(&finished.stderr),
            });
        }
        self.read(&finished.stdout, objects.len())
    }

    fn read(&self, output: &str, objects: usize) -> Result<Vec<Report>, ProgramError> {
        let read: Result<Vec<Report>, _> = output.lines().map(serde_json::from_str).collect();
        let reports = read.map_err(|err| ProgramError::output("curl", err.to_string()))?;
        let whole = |report: &&Report| {
            report.size_download == self.object_bytes() && report.http_code == 200
        };
        let complete = reports.iter().filter(whole).count();
        if complete == objects && reports.len() == objects {
            return Ok(reports);
        }
        let what = format!("{complete} of {objects} objects are complete");
        Err(ProgramError::output("curl", what))
    }
}
