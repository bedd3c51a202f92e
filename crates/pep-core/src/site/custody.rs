//! `[custody]`: what is held for peers while the link to them is away.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use units::ByteSize;

use crate::reading::{
    Section, section,
    values::{Size, Span, Switch, path, some},
};

/// Memory of all flows, where nothing else is stated.
pub(crate) const MEMORY: ByteSize = ByteSize::mib(1024);

section! {
    /// `[custody]`: what is held for peers while the link to them is away.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Custody(s, of_flows: ByteSize) {
        /// Where bytes go for which there is no memory. Default none: hosts wait instead.
        directory: Option<PathBuf> = some(path("the path of a directory")), None;
        /// Whether flows outlive the process that carries them: a crash, a restart, an upgrade.
        survive: bool = Switch, true;
        /// Bytes in the folder at most.
        disk: ByteSize = disk(), ByteSize::mib(1024);
        /// Bytes of memory at most, beyond the initial buffers of flows.
        memory: ByteSize = Size(ByteSize::mib(1).min(of_flows)..=of_flows), of_flows;
        /// How long bytes are held that do not get on.
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

/// How long bytes may be held.
pub(crate) fn hold() -> Span {
    Span(Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600))
}

impl Custody {
    /// Reads the section, where flows may take this much memory.
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

    /// Bytes on disk at most: none where there is no folder.
    pub fn disk_bytes(&self) -> u64 {
        self.directory.as_ref().map_or(0, |_| self.disk.bytes())
    }
}
