//! Transfers by curl, from or to nginx.

use std::{path::Path, process::Command, sync::atomic::AtomicU64, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    Arrival, Nginx, ProgramError, Transfer, arrivals,
    command::{Finished, last_lines},
    nginx::{make_file, size},
    run_to_end,
};
use crate::lab::{Node, topology::Family};

/// curl's exit status at the time limit.
const TIMED_OUT: i32 = 28;
/// Time for curl to end at its own limit.
const GRACE: Duration = Duration::from_secs(10);

/// Transfer of one file by curl.
#[derive(Debug, Clone, PartialEq)]
pub struct Curl {
    /// Direction of the file: `GET` or `PUT`.
    pub transfer: Transfer,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// Address family.
    pub family: Family,
    /// Time limit.
    pub timeout: Duration,
    /// True if a transfer that is incomplete at the time limit is a result, not a failure.
    pub partial: bool,
}

/// Measurements of curl.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurlResult {
    /// Bytes that arrived over the whole time, connection included, in bit/s. An upload ends with
    /// the server's answer, so this is the goodput at the receiver in either direction.
    pub goodput_bps: f64,
    /// Size of the file.
    pub bytes: u64,
    /// Bytes that arrived; fewer than `bytes` if the time limit ended the transfer.
    pub arrived_bytes: u64,
    /// Time from start to end.
    pub seconds: f64,
    /// Time from start to the established connection.
    pub connect_s: f64,
    /// Time from start to the first byte of the answer; 0 without an answer.
    pub first_byte_s: f64,
    /// Bytes at the receiver over time: as nginx writes an upload, in pieces of 16 kB.
    pub arrivals: Vec<Arrival>,
}

/// Used part of curl's `%{json}`.
#[derive(Debug, Deserialize)]
struct Report {
    http_code: u16,
    size_download: u64,
    size_upload: u64,
    time_connect: f64,
    time_starttransfer: f64,
    time_total: f64,
}

/// Adds options that disable the user's settings and proxies; they come first.
pub(super) fn quiet_curl(command: &mut Command) {
    let arguments = [
        "-q",
        "--silent",
        "--show-error",
        "--noproxy",
        "*",
        "--globoff",
    ];
    command.args(arguments);
}

impl CurlResult {
    /// Reports whether the whole file arrived.
    pub fn is_whole(&self) -> bool {
        self.arrived_bytes == self.bytes
    }
}

impl Curl {
    /// Runs curl on the client's node, in a slot of nginx that no other transfer uses. `directory`
    /// exists and belongs to this run alone. `live` holds the bytes that have arrived so far.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], [`ProgramError::Timeout`], or [`ProgramError::Output`] for
    /// an incomplete transfer, unless the time limit ended it and `partial` is true.
    pub fn run(
        &self,
        client: &Node,
        server: &Node,
        (nginx, slot): (&Nginx, usize),
        directory: &Path,
        live: &AtomicU64,
    ) -> Result<CurlResult, ProgramError> {
        let name = format!("{slot}/file");
        let output = directory.join("arrived");
        let mut command = client.netns().command("curl");
        quiet_curl(&mut command);
        command.args(["--no-buffer", "--write-out", "%{json}", "--output"]);
        let read: Box<dyn Fn() -> u64 + Sync> = match self.transfer {
            Transfer::Upload => {
                let file = make_file(directory.join("file"), self.bytes)?;
                command.args(["/dev/null", "--upload-file"]).arg(file);
                let at_server = || nginx.file_size(&name).or_else(|| nginx.unfinished(slot));
                Box::new(move || at_server().unwrap_or(0))
            }
            Transfer::Download => {
                nginx.add_file(&name, self.bytes)?;
                command.arg(&output);
                Box::new(|| size(&output).unwrap_or(0))
            }
        };
        let mut timeout = self.timeout;
        if self.partial {
            command.args(["--max-time", &timeout.as_secs_f64().to_string()]);
            timeout += GRACE;
        }
        let host = match self.family {
            Family::Ipv4 => server.ipv4().to_string(),
            Family::Ipv6 => format!("[{}]", server.ipv6()),
        };
        command.arg(format!("http://{host}/{name}"));
        let work = || run_to_end(&mut command, "curl", timeout);
        let (finished, arrivals) = arrivals::watch(work, &read, live);
        let seen = arrivals.last().map_or(0, |last| last.bytes);
        self.result(&finished?, read(), seen, arrivals)
    }

    /// Result of a finished curl, if all bytes have arrived or need not. Of an upload that was cut
    /// off nginx keeps nothing, so that the last sample counts.
    fn result(
        &self,
        finished: &Finished,
        arrived: u64,
        seen: u64,
        mut arrivals: Vec<Arrival>,
    ) -> Result<CurlResult, ProgramError> {
        let cut = self.partial && finished.status.code() == Some(TIMED_OUT);
        if !finished.status.success() && !cut {
            return Err(ProgramError::Ended {
                program: "curl".to_owned(),
                status: finished.status,
                log: last_lines(&finished.stderr),
            });
        }
        let report = serde_json::from_str(&finished.stdout);
        let report: Report = report.map_err(|err| ProgramError::output("curl", err.to_string()))?;
        let arrived = if cut { arrived.max(seen) } else { arrived };
        if !cut {
            self.check(&report, arrived)?;
        }
        let last = arrivals.last().map_or(0.0, |last| last.t_s);
        arrivals.push(Arrival {
            t_s: report.time_total.max(last),
            bytes: arrived,
        });
        Ok(CurlResult {
            goodput_bps: arrived as f64 * 8.0 / report.time_total.max(1e-9),
            bytes: self.bytes,
            arrived_bytes: arrived,
            seconds: report.time_total,
            connect_s: report.time_connect,
            first_byte_s: report.time_starttransfer,
            arrivals,
        })
    }

    /// Checks that all bytes have arrived.
    fn check(&self, report: &Report, arrived: u64) -> Result<(), ProgramError> {
        let moved = match self.transfer {
            Transfer::Download => report.size_download,
            Transfer::Upload => report.size_upload,
        };
        if moved == self.bytes && arrived == self.bytes && report.http_code / 100 == 2 {
            return Ok(());
        }
        let what = format!(
            "{moved} of {} bytes moved, {arrived} arrived, HTTP status {}",
            self.bytes, report.http_code
        );
        Err(ProgramError::output("curl", what))
    }
}
