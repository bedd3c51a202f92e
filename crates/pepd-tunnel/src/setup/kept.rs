//! Resources of custody.

use std::path::Path;

use pep_core::{config::Config, custody::Bounds};
use pepd_relay::arena::Arena;
use pepd_sys::threads::IdleThread;
use tokio::sync::oneshot;
use units::ByteSize;

use super::{super::Inherited, TunnelError};
use crate::{
    custody::{self, Claimed, Left, Replies, Seal, Spill},
    table::Key,
};

/// Resources for bytes held while links are down.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) bounds: Bounds,
    /// Limits of each site.
    pub(crate) sites: Vec<Bounds>,
    /// The directory, with a thread for it.
    directory: Option<(Claimed, IdleThread)>,
}

/// Custody on disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) spill: Option<Spill<Key>>,
    /// Completed operations of the disk.
    pub(crate) answers: Option<Replies<Key>>,
    /// Segments of previous processes.
    pub(crate) left: Left,
}

impl Kept {
    pub(super) fn new(config: &Config) -> Result<Self, TunnelError> {
        let custody = &config.custody;
        let sites = config.sites.iter().map(|(_, site)| Bounds {
            disk: site.disk.map_or(u64::MAX, ByteSize::bytes),
            ..Bounds::NONE
        });
        let with_thread = |directory: &Path| -> Result<_, TunnelError> {
            let thread = IdleThread::new("pepd-custody".to_owned());
            Ok((
                custody::claim(directory)?,
                thread.map_err(TunnelError::Thread)?,
            ))
        };
        let directory = custody.directory.as_deref().map(with_thread).transpose();
        Ok(Self {
            bounds: Bounds {
                memory: custody.memory.bytes(),
                disk: custody.disk_bytes(),
            },
            sites: sites.collect(),
            directory: directory?,
        })
    }

    /// Opens the custody directory for `count` threads. The key of the flows' memory seals its segments: a process that
    /// takes over this memory can read them.
    pub(crate) fn open(&mut self, arena: &Arena) -> OnDisk {
        let Some(directory) = self.directory.take() else {
            return OnDisk {
                spill: None,
                answers: None,
                left: Left::default(),
            };
        };
        // The generation makes the nonces unique: no earlier process with this number still seals.
        let seal = Seal::new(&arena.seal(), arena.generation() as u32);
        let (spill, answers, left) = Spill::open(directory, self.bounds.disk, seal);
        OnDisk {
            spill: Some(spill),
            answers: Some(answers),
            left,
        }
    }
}

/// The custody directory, to be opened by the first thread for all.
pub(crate) struct Opening {
    kept: Kept,
    to: Vec<oneshot::Sender<OnDisk>>,
}

impl Opening {
    /// Returns with it what each thread gets when it is opened.
    pub(crate) fn new(
        kept: Kept,
        inherited: &[Inherited],
    ) -> (Self, Vec<oneshot::Receiver<OnDisk>>) {
        let (to, from) = inherited.iter().map(|_| oneshot::channel()).unzip();
        (Self { kept, to }, from)
    }

    /// Opens the directory.
    pub(crate) fn open(mut self, arena: &Arena) {
        for to in self.to {
            // A thread that has failed to start needs none.
            let _ = to.send(self.kept.open(arena));
        }
    }
}
