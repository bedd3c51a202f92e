//! Resources of custody.

use std::path::Path;

use pep_core::{
    config::Config,
    custody::{Bounds, Ledger},
};
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
    /// Limits of all flows together and of each site, by number.
    ledger: Ledger,
    /// Maximum bytes on disk.
    disk: u64,
    /// The directory, with a thread for it.
    directory: Option<(Claimed, IdleThread)>,
}

/// Resources of one thread.
#[derive(Debug)]
pub(crate) struct Portion {
    /// Held bytes, which count together with those of all threads.
    pub(crate) ledger: Ledger,
    pub(crate) spill: Option<Spill<Key>>,
    /// Completed operations of the disk.
    pub(crate) answers: Option<Replies<Key>>,
    /// Records of previous processes.
    pub(crate) left: Left,
}

impl Kept {
    pub(super) fn new(config: &Config) -> Result<Self, TunnelError> {
        let custody = &config.custody;
        let disk = custody.disk_bytes();
        let mut ledger = Ledger::new(Bounds {
            memory: config.custody_memory(),
            disk,
        });
        for (_, site) in config.sites.iter() {
            ledger.add_site(Bounds {
                disk: site.disk.map_or(u64::MAX, ByteSize::bytes),
                ..Bounds::NONE
            });
        }
        let with_thread = |directory: &Path| -> Result<_, TunnelError> {
            let thread = IdleThread::new("pepd-custody".to_owned());
            Ok((
                custody::claim(directory)?,
                thread.map_err(TunnelError::Thread)?,
            ))
        };
        let directory = custody.directory.as_deref().map(with_thread).transpose();
        Ok(Self {
            ledger,
            disk,
            directory: directory?,
        })
    }

    /// Opens the custody directory for threads that recover these flows, by their tokens. The first
    /// one also gets the records of other flows, to drop them.
    ///
    /// The key of the flows' memory seals the records: a process that takes over this memory can
    /// read them.
    fn open(self, arena: &Arena, flows: Vec<Vec<u128>>) -> Vec<Portion> {
        let count = flows.len();
        let (mut spills, mut left) = (Vec::new(), Left::default());
        if let Some(directory) = self.directory {
            // The generation makes the nonces unique: no earlier process with this number still
            // seals.
            let seal = Seal::new(&arena.seal(), arena.generation() as u32);
            (spills, left) = Spill::open(directory, self.disk, seal, count);
        }
        let mut spills = spills.into_iter();
        let mut portions: Vec<_> = flows
            .into_iter()
            .enumerate()
            .map(|(thread, flows)| {
                let (spill, answers) = spills.next().unzip();
                let others = (thread > 0).then(|| left.cut(flows));
                Portion {
                    ledger: Ledger::sharing(&self.ledger),
                    spill,
                    answers,
                    left: others.unwrap_or_default(),
                }
            })
            .collect();
        portions[0].left = left;
        portions
    }
}

/// The custody directory, to be opened by the first thread for all.
pub(crate) struct Opening {
    kept: Kept,
    /// Tokens of the flows that each thread recovers.
    flows: Vec<Vec<u128>>,
    to: Vec<oneshot::Sender<Portion>>,
}

impl Opening {
    /// Creates the value, and the receivers by which the threads get their portions.
    pub(crate) fn new(
        kept: Kept,
        inherited: &[Inherited],
    ) -> (Self, Vec<oneshot::Receiver<Portion>>) {
        let (to, from) = inherited.iter().map(|_| oneshot::channel()).unzip();
        let tokens = |inherited: &Inherited| {
            let records = inherited.survivors.iter().map(|survivor| &survivor.record);
            records.map(|record| record.identity.token).collect()
        };
        let flows = inherited.iter().map(tokens).collect();
        (Self { kept, flows, to }, from)
    }

    /// Opens the directory, if there is one, and sends each thread its portion.
    pub(crate) fn open(self, arena: &Arena) {
        let portions = self.kept.open(arena, self.flows);
        for (to, portion) in self.to.into_iter().zip(portions) {
            // A thread that has failed to start needs none.
            let _ = to.send(portion);
        }
    }
}

#[cfg(test)]
mod tests {
    use pep_core::custody::Place;

    use super::*;
    use crate::{rig::context, table::Custody};

    #[test]
    fn every_thread_reports_what_all_hold_within_common_limits() {
        let directory = tempfile::tempdir().unwrap();
        let text = format!(
            "[intercept]\nlan = [\"eth0\"]\n[identity]\nkey_file = \"a\"\n\
             [custody]\nmemory = \"16MiB\"\ndisk = \"64MiB\"\ndirectory = \"{}\"\n\
             [peer.other]\npublic_key = \"AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\"\n\
             [[site]]\nname = \"one\"\nmatch.dst = [\"10.0.0.0/8\"]\nmode = \"tunnel\"\npeer = \"other\"\ndisk = \"8MiB\"\n",
            directory.path().join("custody").display()
        );
        let config = pep_core::config::parse(&text).unwrap();
        let context = context(1, 64 << 20);
        let kept = Kept::new(&config).unwrap();
        let portions = kept.open(&context.arena, vec![Vec::new(); 3]);
        assert_eq!(portions.len(), 3);
        let takes = [(Place::Memory, 1), (Place::Disk, 1), (Place::Disk, 2)];
        let threads = portions
            .into_iter()
            .zip(takes)
            .map(|(portion, (place, mib))| {
                assert!(portion.spill.is_some() && portion.answers.is_some());
                let custody = Custody::new(portion.ledger, portion.spill, &context.counters);
                assert!(custody.try_take(0, place, mib << 20), "{mib} MiB");
                custody
            });
        for custody in threads.collect::<Vec<_>>() {
            custody.age();
            let stats = context.counters.snapshot();
            let held = [stats.custody_memory_bytes, stats.custody_disk_bytes];
            assert_eq!(held, [1 << 20, 3 << 20]);
            assert!(
                !custody.try_take(0, Place::Disk, 6 << 20),
                "the site's limit"
            );
            assert!(custody.try_take(1, Place::Disk, 0), "the built-in site");
        }
    }
}
