//! `[custody]`: what is held for peers while the link to them is away.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use units::ByteSize;

use super::{
    Limits,
    raw::Section,
    values::{NonEmpty, Size, Span, Switch},
};

/// `[custody]`: what is held for peers while the link to them is away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Custody {
    /// Whether flows outlive the process that carries them: a crash, a restart, an upgrade. Default true. Costs two more
    /// processes, which do nothing, and some 5 MB.
    pub survive: bool,
    /// Where bytes go for which there is no memory. Default none: hosts wait instead.
    pub folder: Option<PathBuf>,
    /// Bytes there at most, 1 MiB to 16 TiB. Default 1 GiB.
    pub disk: ByteSize,
    /// Bytes of memory at most, beyond the initial buffers of flows, 1 MiB to `limits.memory`. Default that.
    pub memory: ByteSize,
    /// How long bytes are held that do not get on, 1 s to 365 days. Default 15 min, as hosts' own TCP lasts; sites may say
    /// otherwise.
    pub hold: Duration,
}

impl Default for Custody {
    fn default() -> Self {
        Self {
            survive: true,
            folder: None,
            disk: ByteSize::mib(1024),
            memory: Limits::default().memory,
            hold: Duration::from_secs(15 * 60),
        }
    }
}

/// Bytes on disk.
pub(super) fn disk() -> Size {
    Size(ByteSize::mib(1)..=ByteSize::mib(1 << 24))
}

/// How long bytes may be held.
pub(super) fn hold() -> Span {
    Span(Duration::from_secs(1)..=Duration::from_secs(365 * 24 * 3600))
}

impl Custody {
    pub(super) fn read(mut section: Section<'_>, limits: &Limits) -> Self {
        let d = Self::default();
        let s = &mut section;
        let folder = s.read("folder", NonEmpty("the path of a folder"));
        let least = ByteSize::mib(1).min(limits.memory);
        let custody = Self {
            survive: s.read("survive", Switch).unwrap_or(d.survive),
            folder: folder.map(PathBuf::from),
            disk: s.read("disk", disk()).unwrap_or(d.disk),
            memory: s
                .read("memory", Size(least..=limits.memory))
                .unwrap_or(limits.memory),
            hold: s.read("hold", hold()).unwrap_or(d.hold),
        };
        if section.has("disk") && !section.has("folder") {
            let message = "has no effect: there is no `folder` for it, so nothing goes to disk";
            section.warning("disk", message);
        }
        section.finish();
        custody
    }

    pub(super) fn resolve_paths(&mut self, folder: &Path) {
        if let Some(own) = &mut self.folder {
            *own = folder.join(&*own);
        }
    }

    /// Bytes on disk at most: none where there is no folder.
    pub fn disk_bytes(&self) -> u64 {
        self.folder.as_ref().map_or(0, |_| self.disk.bytes())
    }
}
