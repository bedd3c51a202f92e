//! Giving up what only the loading of programs needs.

use std::{io, os::fd::AsFd as _};

use caps::{CapSet, Capability, errors::CapsError};
use socket2::{Domain, Socket, Type};

use super::{Controls, Rtt0};

/// CAP_SYS_ADMIN stands in for the other two, so that it has to go with them.
const OF_LOADING: [Capability; 3] = [
    Capability::CAP_BPF,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_ADMIN,
];

/// Gives up, for good, the capabilities by which programs are loaded, of the calling thread and of all
/// threads and programs that it starts from now on.
///
/// Before Linux 5.19, CAP_BPF is kept where RTT0 is stated of sockets, which needs it there.
pub fn drop_those_of_loading(controls: &Controls) {
    for capability in OF_LOADING {
        or_tell(capability, caps::drop(None, CapSet::Effective, capability));
    }
    let mut kept = None;
    if controls
        .stated()
        .next()
        .is_some_and(|rtt0| is_refused(&rtt0))
    {
        kept = Some(Capability::CAP_BPF);
        or_tell(
            Capability::CAP_BPF,
            caps::raise(None, CapSet::Effective, Capability::CAP_BPF),
        );
    }
    for capability in OF_LOADING {
        if kept != Some(capability) {
            or_tell(capability, give_up(capability));
        }
    }
}

fn is_refused(rtt0: &Rtt0) -> bool {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None);
    let stated = socket.and_then(|socket| rtt0.state(socket.as_fd()));
    stated.is_err_and(|err| err.kind() == io::ErrorKind::PermissionDenied)
}

fn give_up(capability: Capability) -> Result<(), CapsError> {
    // Without CAP_SETPCAP the bounding set stays as it is; what root starts then has it again.
    if let Err(err) = caps::drop(None, CapSet::Bounding, capability) {
        tracing::debug!(%capability, %err, "the bounding set keeps a capability");
    }
    for set in [CapSet::Ambient, CapSet::Inheritable, CapSet::Permitted] {
        caps::drop(None, set, capability)?;
    }
    Ok(())
}

fn or_tell(capability: Capability, done: Result<(), CapsError>) {
    if let Err(err) = done {
        tracing::warn!(%capability, %err, "a capability stays where it is not needed any more");
    }
}
