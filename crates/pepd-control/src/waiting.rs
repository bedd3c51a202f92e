//! Waits of `pepd reload` and `pepd drain`.

use std::{
    os::fd::{AsFd, OwnedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use hyper::Method;
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    unistd::Pid,
};
use pepd_api::{
    change::{DrainReport, ReloadReport, RunningConfig},
    status::Status,
};

use crate::client::ask;

/// Maximum wait, well above the time that a takeover of thousands of flows takes.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

/// Waits until a process other than the one that answered at `asked` answers.
///
/// # Errors
/// If none does, or not with the new configuration.
pub fn wait_for_next(asked: &Path, report: &ReloadReport) -> Result<(), String> {
    let Some(socket) = &report.socket else {
        return Err(
            "cannot tell whether the next process is ready: its configuration has no admin socket; see the log"
                .to_owned(),
        );
    };
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        // After a revert it answers at the old socket.
        let next = [socket.as_path(), asked]
            .into_iter()
            .find_map(|socket| answers(socket).filter(|running| running.pid != report.pid));
        match next {
            Some(running) if running.reverted => {
                return Err(
                    "the new configuration failed to start: pepd reverted to the previous one, and flows \
                     continue; see the log of pepd"
                        .to_owned(),
                );
            }
            Some(_) => return Ok(()),
            None => {}
        }
        if !Path::new(&format!("/proc/{}", report.first)).exists() {
            return Err(
                "pepd has ended during the takeover, see its log; flows wait a minute for `pepd run`"
                    .to_owned(),
            );
        }
        thread::sleep(PAUSE);
    }
    Err(format!(
        "no process has taken over within {} s; see the log of pepd",
        PATIENCE.as_secs()
    ))
}

/// Waits until the pepd that answers at `asked` has ended; `since` is the time of the request.
/// Calls `tell` with the number of open flows after each change. Returns the number of flows that
/// were open at the timeout; 0 if pepd ended earlier.
///
/// # Errors
/// If pepd does not end in time, or cannot be watched.
pub fn wait_for_end(
    asked: &Path,
    report: &DrainReport,
    since: Instant,
    mut tell: impl FnMut(u64),
) -> Result<u64, String> {
    let timeout = Duration::try_from_secs_f64(report.timeout_s).unwrap_or_default();
    let process = match pepd_sys::process::pidfd_open(Pid::from_raw(report.first)) {
        Ok(process) => process,
        Err(err) if err.raw_os_error() == Some(Errno::ESRCH as i32) => return Ok(0),
        Err(err) => return Err(format!("cannot watch process {}: {err}", report.first)),
    };
    let mut flows = report.flows;
    while !has_ended(&process)? {
        if since.elapsed() > timeout + PATIENCE {
            return Err(format!(
                "process {} has not ended; see the log of pepd",
                report.first
            ));
        }
        // A later query may be answered after the reset.
        let now = open_flows(asked).filter(|now| *now != flows && since.elapsed() < timeout);
        if let Some(now) = now {
            flows = now;
            tell(now);
        }
    }
    Ok(if since.elapsed() < timeout { 0 } else { flows })
}

/// Waits a moment for the end of a process, and returns whether it has ended.
fn has_ended(process: &OwnedFd) -> Result<bool, String> {
    let mut polled = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    let pause = PollTimeout::try_from(PAUSE).unwrap_or(PollTimeout::ZERO);
    match poll(&mut polled, pause) {
        Ok(ended) => Ok(ended > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(err) => Err(format!("cannot wait for the end of pepd: {err}")),
    }
}

fn open_flows(socket: &Path) -> Option<u64> {
    let answer = ask(socket, Method::GET, "/v1/status", String::new()).ok()?;
    let status: Status = serde_json::from_slice(&answer).ok()?;
    Some(status.limits.flows.used)
}

fn answers(socket: &Path) -> Option<RunningConfig> {
    let answer = ask(socket, Method::GET, "/v1/config", String::new()).ok()?;
    serde_json::from_slice(&answer).ok()
}
