//! Giving up what only the loading of programs needs.

use caps::{CapSet, Capability, errors::CapsError};

/// CAP_SYS_ADMIN stands in for the other two, so that it has to go with them.
const OF_LOADING: [Capability; 3] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_ADMIN,
];

/// Gives up, for good, the capabilities by which programs are loaded, of the calling thread and of all
/// threads and programs that it starts from now on.
pub fn drop_those_of_loading() {
    for capability in OF_LOADING {
        or_tell(capability, give_up(capability));
    }
}

fn give_up(capability: Capability) -> Result<(), CapsError> {
    // Without CAP_SETPCAP the bounding set stays as it is; what root starts then has it again.
    if let Err(err) = caps::drop(None, CapSet::Bounding, capability) {
        tracing::debug!(%capability, %err, "the bounding set keeps a capability");
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

fn or_tell(capability: Capability, done: Result<(), CapsError>) {
    if let Err(err) = done {
        tracing::warn!(%capability, %err, "a capability stays where it is not needed any more");
    }
}
