//! `[custody]`: what is held for peers while the link to them is away.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use units::ByteSize;

use super::{Custody, Limits};
use crate::reading::{
    Section,
    values::{NonEmpty, Size, Span, Switch},
};

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
