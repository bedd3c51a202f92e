//! curl, fetching from nginx or uploading to it.

use std::{path::Path, process::Command, time::Duration};

use serde::{Deserialize, Serialize};

use super::{Nginx, ProgramError, Transfer, command::last_lines, nginx::make_file, run_to_end};
use crate::lab::{Node, topology::Family};

/// A transfer of one file by curl.
#[derive(Debug, Clone, PartialEq)]
pub struct Curl {
    /// Which way the file goes: `GET` or `PUT`.
    pub transfer: Transfer,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// The address family.
    pub family: Family,
    /// How long it may take.
    pub timeout: Duration,
}

/// What curl measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CurlResult {
    /// The file's size over the whole time, connection included, in bit/s. An upload ends when
    /// the server has answered, so this too is what the receiver got.
    pub goodput_bps: f64,
    /// The size of the file.
    pub bytes: u64,
    /// From the start to the end.
    pub seconds: f64,
    /// From the start until the connection was there.
    pub connect_s: f64,
    /// From the start to the first byte of the answer.
    pub first_byte_s: f64,
}

/// The part of curl's `%{json}` that is of interest.
#[derive(Debug, Deserialize)]
struct Report {
    http_code: u16,
    size_download: u64,
    size_upload: u64,
    time_connect: f64,
    time_starttransfer: f64,
    time_total: f64,
}

/// First of all: no settings of whoever runs this, and no proxy.
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
    /// Runs curl on the client's node; `directory` is its own, and exists.
    ///
    /// # Errors
    /// [`ProgramError::NotInstalled`], [`ProgramError::Timeout`], or [`ProgramError::Output`]
    /// when the transfer is not complete.
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

    /// Whether all bytes have arrived.
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
