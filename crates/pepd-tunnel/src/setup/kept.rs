//! What custody needs.

use std::path::Path;

use pep_core::{config::Config, custody::Bounds};
use pepd_relay::arena::Arena;
use pepd_sys::threads::IdleThread;
use units::ByteSize;

use super::TunnelError;
use crate::{
    custody::{self, Claimed, Left, Replies, Seal, Spill},
    table::Key,
};

/// What there is for what is held while links are away.
#[derive(Debug)]
pub(crate) struct Kept {
    pub(crate) bounds: Bounds,
    /// Of each site.
    pub(crate) sites: Vec<Bounds>,
    /// With a thread for it.
    folder: Option<(Claimed, IdleThread)>,
}

/// What there is on disk.
#[derive(Debug)]
pub(crate) struct OnDisk {
    pub(crate) spill: Option<Spill<Key>>,
    /// Of the disk.
    pub(crate) answers: Option<Replies<Key>>,
    /// Of processes before this one.
    pub(crate) left: Left,
}

impl Kept {
    pub(super) fn new(config: &Config) -> Result<Self, TunnelError> {
        let custody = &config.custody;
        let sites = config.sites.iter().map(|(_, site)| Bounds {
            disk: site.disk.map_or(u64::MAX, ByteSize::bytes),
            ..Bounds::NONE
        });
        let with_thread = |folder: &Path| -> Result<_, TunnelError> {
            let thread = IdleThread::new("pepd-custody".to_owned());
            Ok((
                custody::claim(folder)?,
                thread.map_err(TunnelError::Thread)?,
            ))
        };
        let folder = custody.folder.as_deref().map(with_thread).transpose();
        Ok(Self {
            bounds: Bounds {
                memory: custody.memory.bytes(),
                disk: custody.disk_bytes(),
            },
            sites: sites.collect(),
            folder: folder?,
        })
    }

    /// What is on disk is sealed by the key of the flows' memory: who goes on with these can read it.
    pub(crate) fn open(&mut self, arena: &Arena) -> OnDisk {
        let Some(folder) = self.folder.take() else {
            return OnDisk {
                spill: None,
                answers: None,
                left: Left::default(),
            };
        };
        // Of so many processes none is left that could seal by the same number.
        let seal = Seal::new(&arena.seal(), arena.generation() as u32);
        let (spill, answers, left) = Spill::open(folder, self.bounds.disk, seal);
        OnDisk {
            spill: Some(spill),
            answers: Some(answers),
            left,
        }
    }
}
