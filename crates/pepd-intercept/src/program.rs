//! Programs that pepd runs: they change or list rules of the packet filter, close sockets, and
//! check configurations.
//!
//! ```text
//!   worker: carries flows,      order, files       runner: has no flow
//!   may run no program       ------------------>   checks the order      ---> nft
//!                            <------------------   runs the program
//!                                  result
//! ```
//!
//! - this module: orders, and their results
//! - `allowed`: the orders that a runner accepts
//! - `execute`: a program in this process's own child
//! - [`runner`]: the process that runs programs for another
//!
//! A process without a [runner](runner::begin) runs programs itself.

mod allowed;
mod execute;
pub mod runner;

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _, Seek as _, Write as _},
    os::fd::OwnedFd,
    path::PathBuf,
    process::Output,
    time::Duration,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::{io::AsyncReadExt as _, net::unix::pipe, time::timeout};

use execute::{Ended, Files};

/// Name by which pepd runs itself.
pub const PEPD: &str = "pepd";

/// Timeout of a program. It takes some milliseconds, and seconds while another program changes a
/// large table.
const PATIENCE: Duration = Duration::from_secs(10);
/// Timeout of a check of a configuration, which waits for programs itself.
const CHECK: Duration = Duration::from_secs(30);
/// Time beyond its timeout in which a program's end is reported.
const GRACE: Duration = Duration::from_secs(5);

/// Failure to run a program to its end.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The program is not installed.
    #[error("it is not installed")]
    Missing,
    /// Processes, memory or descriptors have run out, or pepd does not run this.
    #[error("{0}")]
    Start(io::Error),
    /// The program was killed after this time.
    #[error("it did not end within {} s and was killed", .0.as_secs())]
    Hangs(Duration),
}

/// A program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Order {
    program: OsString,
    args: Vec<OsString>,
}

impl Order {
    /// Returns the time after which the program is killed.
    fn patience(&self) -> Duration {
        if self.program == PEPD {
            CHECK
        } else {
            PATIENCE
        }
    }
}

/// Most bytes of output that are read. Parsed, a listing takes some ten times as many.
const OUTPUT_MAX: u64 = 8 << 20;

/// Runs a program until it ends. It reads `input` as a file.
///
/// # Errors
/// See [`RunError`]. The order must be in the list of this module.
pub async fn run<S: AsRef<OsStr>>(
    program: &str,
    args: &[S],
    input: Option<&str>,
) -> Result<Output, RunError> {
    let args = args.iter().map(|arg| arg.as_ref().to_owned()).collect();
    let order = Order {
        program: program.into(),
        args,
    };
    let patience = order.patience();
    let mut stdout = file(c"output").map_err(RunError::Start)?;
    let mut stderr = file(c"errors").map_err(RunError::Start)?;
    let ended = begin(order, input, &stdout, &stderr).map_err(RunError::Start)?;
    let status = match timeout(patience + GRACE, result(ended)).await {
        Err(_elapsed) => return Err(RunError::Hangs(patience)),
        Ok(Err(err)) => return Err(RunError::Start(err)),
        Ok(Ok(Ended::Missing)) => return Err(RunError::Missing),
        Ok(Ok(Ended::Failed(error))) => {
            return Err(RunError::Start(io::Error::from_raw_os_error(error)));
        }
        Ok(Ok(Ended::Killed)) => return Err(RunError::Hangs(patience)),
        Ok(Ok(Ended::Status(status))) => status,
    };
    let text = |file: &mut File| {
        let mut bytes = Vec::new();
        if file.metadata()?.len() > OUTPUT_MAX {
            let message = format!("its output has more than {OUTPUT_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
        }
        file.rewind()?;
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    Ok(Output {
        status,
        stdout: text(&mut stdout).map_err(RunError::Start)?,
        stderr: text(&mut stderr).map_err(RunError::Start)?,
    })
}

/// Begins to carry out an order. Returns the end of a pipe from which its result comes; the program
/// is killed if it closes before.
fn begin(
    order: Order,
    input: Option<&str>,
    stdout: &File,
    stderr: &File,
) -> io::Result<io::PipeReader> {
    let (ours, theirs) = io::pipe()?;
    let input = input.map(|text| {
        let mut file = file(c"rules")?;
        file.write_all(text.as_bytes())?;
        file.rewind()?;
        Ok::<_, io::Error>(file)
    });
    let files = Files {
        report: theirs,
        stdout: stdout.try_clone()?,
        stderr: stderr.try_clone()?,
        input: input.transpose()?,
    };
    match runner::socket() {
        Some(runner) => {
            let ordered = runner::order(runner, &order, &files);
            ordered.map_err(|err| match err.kind() {
                io::ErrorKind::BrokenPipe => has_ended(),
                _ => err,
            })?;
        }
        None => {
            let run = move || execute::carry_out(&order, files);
            std::thread::Builder::new().spawn(run)?;
        }
    }
    Ok(ours)
}

/// Waits for the result of an order.
async fn result(report: io::PipeReader) -> io::Result<Ended> {
    let mut report = pipe::Receiver::from_owned_fd(OwnedFd::from(report))?;
    let mut bytes = [0; Ended::BYTES];
    let read = report.read_exact(&mut bytes).await;
    read.map_err(|_| has_ended())?;
    Ok(Ended::from_bytes(bytes))
}

fn has_ended() -> io::Error {
    let why = "process pepd-runner, which runs programs, has ended";
    io::Error::new(io::ErrorKind::BrokenPipe, why)
}

/// Returns the path of pepd's program, even if the file has been replaced.
///
/// # Errors
/// Fails without /proc.
pub fn own_path() -> io::Result<PathBuf> {
    let path = env::current_exe()?;
    let text = path.to_string_lossy();
    Ok(match text.strip_suffix(" (deleted)") {
        Some(replaced) => replaced.into(),
        None => path,
    })
}

/// Returns an empty file in memory. Each open through /proc reads it from its start.
fn file(name: &std::ffi::CStr) -> io::Result<File> {
    Ok(memfd_create(name, MFdFlags::MFD_CLOEXEC)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_gets_its_arguments_and_its_output_comes_back() {
        let output = match run("ss", &["--version"], None).await {
            Err(RunError::Missing) => return eprintln!("skipped: no ss"),
            output => output.unwrap(),
        };
        assert!(output.status.success(), "{output:?}");
        assert!(output.stdout.starts_with(b"ss utility"), "{output:?}");
    }

    #[tokio::test]
    async fn what_is_not_in_the_list_is_refused() {
        let refused = run("sh", &["-c", "true"], None).await;
        let Err(RunError::Start(err)) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(err.kind(), io::ErrorKind::PermissionDenied);
    }
}
