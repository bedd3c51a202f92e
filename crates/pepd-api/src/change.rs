//! Another configuration for a running pepd, and its orderly end: what is ordered and answered.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use units::counted;

/// The body of `PUT /v1/reload`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadOrder {
    /// Only say what would change.
    pub dry_run: bool,
    /// Even where a peer goes that has flows.
    pub reset_flows: bool,
}

/// The configuration in use. Secrets are in files of their own, which it only names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningConfig {
    /// The process that carries flows.
    pub pid: u32,
    /// Where it was read.
    pub path: PathBuf,
    /// As it was read.
    pub text: String,
    /// A newer one could not be put in place, and this is the one before.
    pub reverted: bool,
}

/// What a reload does, or would do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// The keys that differ.
    pub changes: Vec<Change>,
    /// What is doubtful about the new configuration.
    pub remarks: Vec<String>,
    /// Another process takes over; otherwise nothing was changed.
    pub hands_over: bool,
    /// The process that has answered.
    pub pid: u32,
    /// The first process, which stays.
    pub first: i32,
    /// Where the next one answers; `None` where its configuration wants no admin socket.
    pub socket: Option<PathBuf>,
}

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Remarks go to standard error, as those of `pepd check` do.
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

/// One key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// With dots between its parts; sites and peers by their names.
    pub key: String,
    /// What it was, as TOML; `None` where it was not set.
    pub old: Option<String>,
    /// What it is; `None` where it is not set any more.
    pub new: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [old, new] = [&self.old, &self.new].map(|value| value.as_deref().unwrap_or("not set"));
        write!(f, "{}: {old} -> {new}", self.key)
    }
}

/// The longest that flows may take to end.
pub const GRACE_MAX: Duration = Duration::from_secs(7 * 86_400);

/// The body of `PUT /v1/drain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainOrder {
    /// How many seconds flows may take to end by themselves; as configured (`timeouts.drain`) without.
    pub timeout_s: Option<f64>,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Flows that are open.
    pub flows: u64,
    /// How many seconds they may take from now on.
    pub timeout_s: f64,
    /// It did so already, and what was asked for then goes on.
    pub already: bool,
    /// The process that ends last.
    pub first: i32,
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout = Duration::try_from_secs_f64(self.timeout_s.round()).unwrap_or_default();
        let timeout = units::duration::format(timeout);
        let already = if self.already { " already" } else { "" };
        writeln!(
            f,
            "drains{already}: {} may take {timeout}",
            counted(self.flows, "flow")
        )
    }
}
