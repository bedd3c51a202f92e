//! Dropping the privileges for loading programs.

use caps::{CapSet, Capability, errors::CapsError};

/// Capabilities for loading. CAP_SYS_ADMIN implies the other two, so it is dropped as well.
const OF_LOADING: [Capability; 3] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_ADMIN,
];

/// Drops the capabilities for loading programs, for good, from the calling thread and from all
/// threads and programs that it starts later.
pub fn drop_those_of_loading() {
    for capability in OF_LOADING {
        or_log(capability, drop_capability(capability));
    }
}

fn drop_capability(capability: Capability) -> Result<(), CapsError> {
    // Without CAP_SETPCAP the bounding set stays unchanged; programs started as root then regain
    // the capability.
    if let Err(err) = caps::drop(None, CapSet::Bounding, capability) {
        tracing::debug!(%capability, %err, "cannot drop a capability from the bounding set");
    }
    for set in [
        CapSet::Effective,
        CapSet::Ambient,
        CapSet::Inheritable,
        CapSet::Permitted,
    ] {
        caps::drop(None, set, capability)?;
    }
    Ok(())
}

fn or_log(capability: Capability, done: Result<(), CapsError>) {
    if let Err(err) = done {
        tracing::warn!(%capability, %err, "cannot drop a capability that is no longer needed: pepd keeps it, otherwise harmless");
    }
}
