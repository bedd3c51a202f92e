//! Privileges of pepd's processes.
//!
//! - this module: capabilities, by process
//! - [`files`]: paths at which a process that carries flows may write
//! - [`calls`]: system calls that it may not make
//!
//! Programs that a process starts have no more privileges than the process. A worker starts none,
//! and the runner starts them for it.

#[expect(unsafe_code, reason = "system calls")]
pub mod calls;
pub mod files;

use std::io;

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::sys::{
    prctl,
    resource::{Resource, getrlimit, setrlimit},
};

/// A process of pepd, or a part of its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The supervisor, which starts workers with this configuration and later ones.
    Supervisor,
    /// The process that carries flows, until it has taken over those of the previous one and loaded
    /// the congestion controls.
    Start,
    /// Process that carries flows, after its start. It reads the network from here on only.
    Worker,
    /// The process that runs programs for a worker.
    Runner,
    /// The keeper.
    Keeper,
}

use Phase::{Keeper, Runner, Start, Supervisor, Worker};

/// A capability, the processes that have it, and its use.
struct Row {
    capability: Capability,
    phases: &'static [Phase],
    /// True if only congestion controls of pepd need it.
    loads: bool,
    reason: &'static str,
}

const fn row(
    capability: Capability,
    phases: &'static [Phase],
    loads: bool,
    reason: &'static str,
) -> Row {
    Row {
        capability,
        phases,
        loads,
        reason,
    }
}

/// All capabilities that pepd uses; its processes drop all others.
const TABLE: [Row; 7] = [
    row(
        Capability::CAP_NET_ADMIN,
        &[Supervisor, Start, Worker, Runner, Keeper],
        false,
        "rules, routes, TUN devices, marks, sockets with addresses of other hosts",
    ),
    row(
        Capability::CAP_NET_RAW,
        &[Supervisor, Start, Worker, Runner, Keeper],
        false,
        "RST and ICMP errors in the name of servers and routers, iptables",
    ),
    row(
        Capability::CAP_NET_BIND_SERVICE,
        &[Supervisor, Start, Worker, Keeper],
        false,
        "server legs from a host's own port below 1024, `intercept.listen_port` below 1024",
    ),
    row(
        Capability::CAP_SYS_RESOURCE,
        &[Supervisor, Start, Worker],
        false,
        "the OOM killer ends keepers last",
    ),
    row(
        Capability::CAP_BPF,
        &[Supervisor, Start],
        true,
        "loading of congestion controls",
    ),
    row(
        Capability::CAP_PERFMON,
        &[Supervisor, Start],
        true,
        "verification of congestion controls, which follow kernel pointers",
    ),
    row(
        Capability::CAP_SETPCAP,
        &[Supervisor, Start],
        false,
        "removing the others from the bounding set",
    ),
];

impl Row {
    fn is_of(&self, phase: Phase, loads: bool) -> bool {
        // A later configuration of the supervisor may have such controls.
        let is_needed = !self.loads || loads || phase == Supervisor;
        self.phases.contains(&phase) && is_needed
    }
}

/// Returns the table of capabilities in Markdown, as in docs/interception.md.
pub fn table() -> String {
    let mut text = "| | supervisor | worker, at its start | worker | runner | keeper | for |\n\
                    |---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in &TABLE {
        text.push_str(&format!("| {} |", row.capability));
        for phase in [Supervisor, Start, Worker, Runner, Keeper] {
            let cell = match phase {
                _ if !row.phases.contains(&phase) => "",
                Keeper => " held",
                Start if row.loads => " if it loads controls",
                _ => " yes",
            };
            text.push_str(&format!("{cell} |"));
        }
        text.push_str(&format!(" {} |\n", row.reason));
    }
    text
}

/// Returns the capabilities of a process, as a mask (capabilities(7)). `loads` is true if the
/// configuration names a congestion control of pepd.
pub fn mask(phase: Phase, loads: bool) -> u64 {
    needed(phase, loads).iter().map(Capability::bitmask).sum()
}

fn needed(phase: Phase, loads: bool) -> CapsHashSet {
    let rows = TABLE.iter().filter(|row| row.is_of(phase, loads));
    rows.map(|row| row.capability).collect()
}

/// Drops all capabilities of the calling thread that the process does not need, for good, and so
/// from all threads and programs that it starts later. None of these gains any by a set-user-ID
/// program or one with file capabilities (`PR_SET_NO_NEW_PRIVS`).
///
/// The bounding set needs CAP_SETPCAP, and stays as it is without.
pub fn limit(phase: Phase, loads: bool) {
    if let Err(err) = prctl::set_no_new_privs() {
        tracing::warn!(error = %err, "cannot set no_new_privs: programs that pepd runs may gain privileges");
    }
    if let Err(err) = limit_to(&needed(phase, loads)) {
        tracing::warn!(%err, "cannot drop capabilities that are not needed: pepd keeps them, otherwise harmless");
    }
}

fn limit_to(needed: &CapsHashSet) -> Result<(), CapsError> {
    let may = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)?;
    let bounding = caps::read(None, CapSet::Bounding)?;
    for capability in bounding.difference(needed).filter(|_| may) {
        caps::drop(None, CapSet::Bounding, *capability)?;
    }
    // The ambient set shrinks with those below it. A set must contain those above.
    for set in [CapSet::Effective, CapSet::Inheritable, CapSet::Permitted] {
        let present = caps::read(None, set)?;
        // A filter may refuse capset(2) where nothing is to be dropped.
        if !present.is_subset(needed) {
            caps::set(None, set, &present.intersection(needed).copied().collect())?;
        }
    }
    Ok(())
}

/// Disables core dumps of this process and of those that it starts, since they would contain keys
/// and payload of hosts. Only root can allow them again: `prlimit --core=unlimited --pid PID`.
///
/// # Errors
/// When the system refuses.
pub fn leave_no_core() -> io::Result<()> {
    Ok(setrlimit(Resource::RLIMIT_CORE, 0, 0)?)
}

/// Keeps other processes of the same user, without CAP_SYS_PTRACE, from the memory of this process,
/// and the kernel from writing it to a core dump, even to one that a program receives (core(5)).
///
/// # Errors
/// When the system refuses.
pub fn protect_memory() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Allows core dumps once root has raised their limit, and forbids them once it is zero again. Call
/// it every second.
pub fn follow_core_limit() {
    let is_allowed = getrlimit(Resource::RLIMIT_CORE).is_ok_and(|(soft, _)| soft > 0);
    if prctl::get_dumpable().is_ok_and(|now| now != is_allowed)
        && let Err(err) = prctl::set_dumpable(is_allowed)
    {
        tracing::debug!(error = %err, "cannot follow the limit of core dumps");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 4] = [Supervisor, Start, Worker, Runner];

    #[test]
    fn the_documents_have_the_table() {
        let docs = include_str!("../../../../docs/interception.md");
        assert!(docs.contains(&table()), "expected:\n{}", table());
    }

    #[test]
    fn no_phase_has_what_an_earlier_one_lacks() {
        for loads in [false, true] {
            for pair in PHASES.windows(2) {
                let [before, after] = [pair[0], pair[1]].map(|phase| mask(phase, loads));
                assert_eq!(after & !before, 0, "{pair:?}");
            }
        }
    }

    #[test]
    fn only_what_loads_has_the_capabilities_for_it() {
        let bpf = Capability::CAP_BPF.bitmask() | Capability::CAP_PERFMON.bitmask();
        assert_eq!(mask(Start, true) & bpf, bpf);
        assert_eq!(mask(Start, false) & bpf, 0);
        let others = [Worker, Runner, Keeper].map(|phase| mask(phase, true));
        assert_eq!(others.iter().fold(0, |all, one| all | one) & bpf, 0);
        for phase in PHASES.into_iter().chain([Keeper]) {
            assert_eq!(mask(phase, true) & Capability::CAP_SYS_ADMIN.bitmask(), 0);
        }
    }

    #[test]
    fn memory_is_readable_by_others_only_while_core_dumps_are_allowed() {
        // Of the whole process, whose other tests it does not affect.
        let hard = getrlimit(Resource::RLIMIT_CORE).unwrap().1;
        setrlimit(Resource::RLIMIT_CORE, 0, hard).unwrap();
        protect_memory().unwrap();
        follow_core_limit();
        assert!(!prctl::get_dumpable().unwrap());
        if hard > 0 {
            setrlimit(Resource::RLIMIT_CORE, 1, hard).unwrap();
            follow_core_limit();
            assert!(prctl::get_dumpable().unwrap());
            setrlimit(Resource::RLIMIT_CORE, 0, hard).unwrap();
            follow_core_limit();
            assert!(!prctl::get_dumpable().unwrap());
        }
        prctl::set_dumpable(true).unwrap();
    }

    #[test]
    fn a_thread_drops_what_is_not_needed_for_good() {
        // Capabilities and no_new_privs belong to the thread.
        std::thread::spawn(|| {
            limit(Worker, false);
            let sets = [
                CapSet::Effective,
                CapSet::Permitted,
                CapSet::Inheritable,
                CapSet::Ambient,
            ];
            for set in sets {
                let left = caps::read(None, set).unwrap();
                let left: u64 = left.iter().map(Capability::bitmask).sum();
                assert_eq!(left & !mask(Worker, false), 0, "{set:?}");
            }
            assert!(prctl::get_no_new_privs().unwrap());
            let regained = caps::raise(None, CapSet::Effective, Capability::CAP_SYS_ADMIN);
            assert!(regained.is_err());
        })
        .join()
        .unwrap();
    }
}
