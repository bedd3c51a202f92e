//! What `pepd reload` prints and waits for.

use std::{
    fmt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use hyper::Method;

use super::{ReloadReport, RunningConfig};
use crate::admin::client::ask;

/// A process that takes over thousands of flows is ready well before.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for remark in &self.remarks {
            writeln!(f, "{remark}")?;
        }
        for change in &self.changes {
            writeln!(f, "{change}")?;
        }
        if self.changes.is_empty() {
            writeln!(f, "the configuration has not changed")?;
        }
        if self.hands_over {
            Ok(())
        } else {
            writeln!(f, "valid; nothing was changed (--dry-run)")
        }
    }
}

/// Waits until another process than the one that has answered at `asked` does so.
///
/// # Errors
/// When none does, or not with the new configuration.
pub fn wait_for_next(asked: &Path, report: &ReloadReport) -> Result<(), String> {
    let Some(socket) = &report.socket else {
        return Err(
            "cannot say whether the next process is ready: its configuration has no admin socket; the log says"
                .to_owned(),
        );
    };
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        // Where it answers if it could not be put in place, too.
        let next = [socket.as_path(), asked]
            .into_iter()
            .find_map(|socket| answers(socket).filter(|running| running.pid != report.pid));
        match next {
            Some(running) if running.reverted => {
                return Err(
                    "the new configuration could not be put in place: the one before is in use again, and flows go on; the log of \
                     pepd says why"
                        .to_owned(),
                );
            }
            Some(_) => return Ok(()),
            None => {}
        }
        if !Path::new(&format!("/proc/{}", report.first)).exists() {
            return Err(
                "pepd has ended instead of taking over; its log says why. Flows wait for `pepd run` for a minute".to_owned(),
            );
        }
        thread::sleep(PAUSE);
    }
    Err(format!(
        "no other process has taken over for {} s; the log of pepd says why",
        PATIENCE.as_secs()
    ))
}

fn answers(socket: &Path) -> Option<RunningConfig> {
    let answer = ask(socket, Method::GET, "/v1/config", String::new()).ok()?;
    serde_json::from_slice(&answer).ok()
}
