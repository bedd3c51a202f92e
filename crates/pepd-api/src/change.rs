//! Reload and drain of a running pepd: request and response bodies.

use std::{fmt, path::PathBuf, time::Duration};

use serde::{Deserialize, Serialize};
use units::counted;

/// Body of `PUT /v1/reload`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReloadOrder {
    /// Reports the changes without applying them.
    pub dry_run: bool,
    /// Reloads even if that removes a peer that has flows, and resets these.
    pub reset_flows: bool,
}

/// Configuration in use. Secrets are in separate files, which the configuration only names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningConfig {
    /// Process that carries flows.
    pub pid: u32,
    /// Path of the configuration file.
    pub path: PathBuf,
    /// Content of the file when it was read.
    pub text: String,
    /// True if a newer configuration failed to start and this is the previous one.
    pub reverted: bool,
}

/// Result of a reload, or of a dry run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadReport {
    /// Keys that differ.
    pub changes: Vec<Change>,
    /// Warnings about the new configuration.
    pub remarks: Vec<String>,
    /// True if another process takes over; false if nothing was changed.
    pub hands_over: bool,
    /// Process that answered the request.
    pub pid: u32,
    /// First process, whose process id stays.
    pub first: i32,
    /// Admin socket of the next process; `None` if its configuration has none.
    pub socket: Option<PathBuf>,
}

impl fmt::Display for ReloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Remarks go to standard error, as in `pepd check`.
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

/// Changed key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// Dotted key; sites and peers by name.
    pub key: String,
    /// Old value as TOML; `None` if it was not set.
    pub old: Option<String>,
    /// New value as TOML; `None` if it is no longer set.
    pub new: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [old, new] = [&self.old, &self.new].map(|value| value.as_deref().unwrap_or("not set"));
        write!(f, "{}: {old} -> {new}", self.key)
    }
}

/// Maximum time that flows may take to end.
pub const GRACE_MAX: Duration = Duration::from_secs(7 * 86_400);

/// Body of `PUT /v1/drain`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DrainOrder {
    /// Seconds that flows may take to end; `timeouts.drain` if absent.
    pub timeout_s: Option<f64>,
}

/// Response to `PUT /v1/drain`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DrainReport {
    /// Open flows.
    pub flows: u64,
    /// Seconds that they may take from now on.
    pub timeout_s: f64,
    /// True if a drain was in progress; that one continues unchanged.
    pub already: bool,
    /// Process that ends last.
    pub first: i32,
}

impl fmt::Display for DrainReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timeout = Duration::try_from_secs_f64(self.timeout_s.round()).unwrap_or_default();
        let timeout = units::duration::format(timeout);
        let already = if self.already { " already" } else { "" };
        writeln!(
            f,
            "draining{already}: {} may take {timeout}",
            counted(self.flows, "flow")
        )
    }
}
