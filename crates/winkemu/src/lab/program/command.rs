//! Any program, run to its end.

use std::{
    io::Read,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::ProgramError;
use crate::{lab::Node, netns::Process};

/// Maximum output kept per stream, in bytes.
const OUTPUT_MAX: u64 = 1 << 20;

/// Result of a program that ended on its own.
#[derive(Debug)]
pub struct Finished {
    /// Exit status.
    pub status: ExitStatus,
    /// The first MiB of its output.
    pub stdout: String,
    /// The first MiB of its error output.
    pub stderr: String,
    /// Duration from start to end.
    pub took: Duration,
}

/// Runs a command of [`Netns::command`](crate::netns::Netns::command) to its end.
///
/// # Errors
/// [`ProgramError::NotInstalled`] with the package, or [`ProgramError::Start`] if it cannot be
/// started. [`ProgramError::Timeout`] if it still runs after the timeout; it is killed.
pub fn run_to_end(
    command: &mut Command,
    package: &str,
    timeout: Duration,
) -> Result<Finished, ProgramError> {
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let start = Instant::now();
    let process = Process::spawn(command);
    let mut process = process.map_err(|err| ProgramError::start(&name, package, err))?;
    let stdout = read_all(process.pipes().stdout.take().expect("piped above"));
    let stderr = read_all(process.pipes().stderr.take().expect("piped above"));
    let status = process
        .wait(timeout)
        .map_err(|err| ProgramError::start(&name, package, err))?;
    let took = start.elapsed();
    let status = status.ok_or(ProgramError::Timeout {
        program: name,
        what: "end",
        after: timeout,
    });
    let status = status?;
    let join = |reader: thread::JoinHandle<String>| reader.join().expect("a reader cannot panic");
    Ok(Finished {
        status,
        stdout: join(stdout),
        stderr: join(stderr),
        took,
    })
}

fn read_all(stream: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let mut stream = stream;
        // A broken pipe keeps the output so far. The rest is read and dropped, so that the program
        // never blocks.
        let _ = stream.by_ref().take(OUTPUT_MAX).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Command from the scenario.
#[derive(Debug, Clone, PartialEq)]
pub struct Shell {
    /// Program and its arguments.
    pub command: Vec<String>,
    /// Time limit.
    pub timeout: Duration,
}

impl Shell {
    /// Runs it on a node, with `variables` in its environment.
    ///
    /// # Errors
    /// [`ProgramError::Ended`] if it fails, and the errors of [`run_to_end`].
    pub fn run(
        &self,
        node: &Node,
        variables: &[(String, String)],
    ) -> Result<Finished, ProgramError> {
        let (program, arguments) = self.command.split_first().expect("checked: not empty");
        let mut command = node.netns().command(program);
        command.args(arguments).envs(variables.iter().cloned());
        let finished = run_to_end(&mut command, program, self.timeout)?;
        if finished.status.success() {
            return Ok(finished);
        }
        let log = last_lines(&finished.stderr);
        Err(ProgramError::Ended {
            program: program.clone(),
            status: finished.status,
            log,
        })
    }
}

/// Last lines of a text, for an error message.
pub(super) fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(5)..].join("\n")
}
