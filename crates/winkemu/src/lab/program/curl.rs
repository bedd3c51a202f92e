//! Transfers by curl, from or to nginx.

use std::{path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Nginx, ProgramError, Transfer, command::last_lines, nginx::make_file, run_to_end};
use crate::lab::{Node, topology::Family};

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
}

/// Measurements of curl.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurlResult {
    /// Size of the file over the whole time, connection included, in bit/s. An upload ends with the
    /// server's answer, so this is the goodput at the receiver in either direction.
    pub goodput_bps: f64,
    /// Size of the file.
    pub bytes: u64,
    /// Time from start to end.
    pub seconds: f64,
    /// Time from start to the established connection.
    pub connect_s: f64,
    /// Time from start to the first byte of the answer.
    pub first_byte_s: f64,
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

impl Curl {
    /// Runs curl on the client's node; `directory` exists and belongs to this run alone.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], [`ProgramError::Timeout`], or [`ProgramError::Output`] for
    /// an incomplete transfer.
    pub fn run(
        &self,
        client: &Node,
        server: &Node,
        nginx: &Nginx,
        directory: &Path,
    ) -> Result<CurlResult, ProgramError> {
        let name = "file";
        let mut command = client.netns().command("curl");
        quiet_curl(&mut command);
        command.args(["--write-out", "%{json}", "--output", "/dev/null"]);
        if self.transfer == Transfer::Upload {
            let file = make_file(directory.join(name), self.bytes)?;
            command.arg("--upload-file").arg(file);
        } else {
            nginx.add_file(name, self.bytes)?;
        }
        let host = match self.family {
            Family::Ipv4 => server.ipv4().to_string(),
            Family::Ipv6 => format!("[{}]", server.ipv6()),
        };
        command.arg(format!("http://{host}/{name}"));
        let finished = run_to_end(&mut command, "curl", self.timeout)?;
        if !finished.status.success() {
            let (program, log) = ("curl".to_owned(), last_lines(&finished.stderr));
            return Err(ProgramError::Ended {
                program,
                status: finished.status,
                log,
            });
        }
        let report = serde_json::from_str(&finished.stdout);
        let report: Report = report.map_err(|err| ProgramError::output("curl", err.to_string()))?;
        self.check(&report, nginx.file_size(name))?;
        Ok(self.result(&report))
    }

    /// Checks that all bytes have arrived.
    fn check(&self, report: &Report, at_server: Option<u64>) -> Result<(), ProgramError> {
        let (moved, arrived) = match self.transfer {
            Transfer::Download => (report.size_download, report.size_download),
            Transfer::Upload => (report.size_upload, at_server.unwrap_or(0)),
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

    fn result(&self, report: &Report) -> CurlResult {
        CurlResult {
            goodput_bps: self.bytes as f64 * 8.0 / report.time_total.max(1e-9),
            bytes: self.bytes,
            seconds: report.time_total,
            connect_s: report.time_connect,
            first_byte_s: report.time_starttransfer,
        }
    }
}
