//! `[custody]`: data held for peers while the link to them is down.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use units::ByteSize;

use crate::reading::{
    Section, section,
    values::{Size, Span, Switch, path, some},
};

/// Default memory of all flows.
pub(crate) const MEMORY: ByteSize = ByteSize::mib(1024);

section! {
    /// `[custody]`: data held for peers while the link to them is down.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Custody(s, of_flows: ByteSize) {
        /// Directory for bytes beyond the memory limit. Default none: hosts wait instead.
        directory: Option<PathBuf> = some(path("the path of a directory")), None;
        /// Flows outlive the process that carries them: a crash, a restart, an upgrade.
        survive: bool = Switch, true;
        /// Maximum number of bytes in the directory.
        disk: ByteSize = disk(), ByteSize::mib(1024);
        /// Maximum memory in bytes, beyond the initial buffers of flows.
        memory: ByteSize = Size(ByteSize::mib(1).min(of_flows)..=of_flows), of_flows;
        /// Maximum time that bytes are held without progress.
        hold: Duration = hold(), Duration::from_secs(15 * 60);
    }
}

impl Default for Custody {
    fn default() -> Self {
        Section::missing(|s| Self::read_keys(s, MEMORY))
    }
}

/// Bytes on disk.
pub(crate) fn disk() -> Size {
    Size(ByteSize::mib(1)..=ByteSize::mib(1 << 24))
}

/// Range of hold times.
pub(crate) fn hold() -> Span {
    Span(Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600))
}

impl Custody {
    /// Reads the section; `of_flows` is the memory limit of all flows.
    pub(crate) fn read(mut section: Section<'_>, of_flows: ByteSize) -> Self {
        let custody = Self::read_keys(&mut section, of_flows);
        if section.has("disk") && !section.has("directory") {
            let message = "has no effect: there is no `directory` for it, so nothing goes to disk";
            section.warning("disk", message);
        }
        section.finish();
        custody
    }

    pub(crate) fn resolve_paths(&mut self, directory: &Path) {
        if let Some(own) = &mut self.directory {
            *own = directory.join(&*own);
        }
    }

    /// Maximum number of bytes on disk: 0 without a directory.
    pub fn disk_bytes(&self) -> u64 {
        self.directory.as_ref().map_or(0, |_| self.disk.bytes())
    }
}
