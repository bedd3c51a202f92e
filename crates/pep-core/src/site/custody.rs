//! What is held for peers while the link to them is away.

use std::{path::PathBuf, time::Duration};

use units::ByteSize;

/// Memory of all flows, where nothing else is stated.
pub(crate) const MEMORY: ByteSize = ByteSize::mib(1024);

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
            memory: MEMORY,
            hold: Duration::from_secs(15 * 60),
        }
    }
}
