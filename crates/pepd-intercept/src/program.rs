//! Programs that change or list rules of the packet filter.

use std::{
    fs::File,
    io::{self, Seek as _, Write as _},
    process::{Output, Stdio},
    time::Duration,
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use tokio::{process::Command, time::timeout};

/// Timeout of a program. It takes some milliseconds, and seconds while another program changes a
/// large table.
const PATIENCE: Duration = Duration::from_secs(10);

/// Failure to run a program to its end.
#[derive(Debug)]
pub(crate) enum RunError {
    /// The program is not installed.
    Missing,
    /// Processes, memory or descriptors have run out.
    Start(io::Error),
    /// The program was killed after this time.
    Hangs(Duration),
}

/// Runs a program until it ends. It reads `input` as a file.
pub(crate) async fn run(
    path: &str,
    args: &[&str],
    variables: &[(&str, &str)],
    input: Option<&str>,
) -> Result<Output, RunError> {
    let input = match input {
        Some(text) => file(text).map_err(RunError::Start)?.into(),
        None => Stdio::null(),
    };
    let child = Command::new(path)
        .args(args)
        .envs(variables.iter().copied())
        .stdin(input)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|err| match err.kind() {
            io::ErrorKind::NotFound => RunError::Missing,
            _ => RunError::Start(err),
        })?;
    match timeout(PATIENCE, child.wait_with_output()).await {
        Ok(output) => output.map_err(RunError::Start),
        Err(_elapsed) => Err(RunError::Hangs(PATIENCE)),
    }
}

/// Returns an in-memory file. Each open through /proc reads it from its start.
fn file(text: &str) -> io::Result<File> {
    let mut file = File::from(memfd_create(c"rules", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(text.as_bytes())?;
    file.rewind()?;
    Ok(file)
}
